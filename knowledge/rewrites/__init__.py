"""Executable strategies: edits of a candidate's source that work on kernels nobody here wrote.

A rewrite proves its precondition on the source, or stays silent. Each edit names the fact that must appear
in what the compiler makes of it; the round checks that fact.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol

from tilewright.harness.types import Case, Claim, KernelFacts, Scalar, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is known about the candidate that is to be rewritten."""

    target: Target
    kernels: tuple[KernelFacts, ...] = ()
    """Facts of every kernel in every case; empty when nothing was compiled yet."""
    cases: tuple[Case, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One way to rewrite the source."""

    source: str
    label: str
    """What changed, in a few words: `num_warps=8 BLOCK_SIZE=2048`."""
    claim: Claim
    """The fact that must appear if the edit took."""
    lines: tuple[int, int]
    """First and last line of the old source that the edit touches, from 1."""
    risk: str
    """What could go wrong, in one sentence."""
    params: Mapping[str, Scalar] = field(default_factory=dict)
    kernel: str | None = None
    """The kernel of the old source that it changes; None: the one its claim names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a rewrite found in a source."""

    edits: tuple[Edit, ...] = ()
    """Every edit that applies, most promising first; empty where no precondition can be proved."""
    refused: tuple[str, ...] = ()
    """Why something was left as it is, a sentence each."""


class Rewrite(Protocol):
    """A strategy that can write the next kernel itself."""

    name: str
    precondition: str
    """When it applies, in words."""
    risk: str

    def look(self, source: str, situation: Situation) -> Look:
        """Look at every kernel of the source: what can be written, most promising first, and why not more."""


NAMES = (
    "one-pass",
    "rows-per-program",
    "tile-search",
    "split-reduction",
    "reduce-after-loop",
    "vector-access",
    "pipeline-loop",
)
"""Every rewrite; `one-pass` is the module `one_pass`, which exports `REWRITE`."""


@functools.cache
def rewrites() -> Mapping[str, Rewrite]:
    """Every rewrite by name. libcst is imported here, on first use, not with this module."""
    found: dict[str, Rewrite] = {}
    for name in NAMES:
        found[name] = import_module(f"{__name__}.{name.replace('-', '_')}").REWRITE
    return found


def launched(edits: Sequence[Edit], situation: Situation) -> list[Edit]:
    """The edits without those of kernels that no case of the task launches: they would change nothing."""
    running = {kernel.kernel for kernel in situation.kernels}
    return [e for e in edits if not running or (e.kernel or e.claim.kernel) in {None, *running}]
