"""Which parts of memory are on. Ablations are switches over one code path, not forks of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.harness.errors import Problem

MEMORIES = ("htg", "flat", "none", "shuffled")
POLICIES = ("softmax", "thompson")
WORDS = ("no-prefix", "no-position-weights", "no-update", "no-local")


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """How memory decides."""

    memory: str = "htg"
    """`htg`: all of it. `flat`: similar past rounds of each strategy, no hierarchy. `none`: nothing is
    remembered or believed. `shuffled`: all of it, with the lessons attached to the wrong names."""
    policy: str = "softmax"
    """`softmax` of the score, or `thompson`: the best of one draw from the posteriors."""
    no_prefix: bool = False
    """Ignore what was done before: no transitions, no penalty for repeats."""
    no_position_weights: bool = False
    """Weigh the moves of the window alike, in scoring and in learning."""
    no_update: bool = False
    """Believe the priors and learn nothing."""
    no_local: bool = False
    """Draw the strategy within the direction at random."""

    @classmethod
    def of(cls, memory: str = "htg", policy: str = "softmax", words: Iterable[str] = ()) -> Switches:
        """From the words of the command line. Raises Problem for one that is unknown."""
        on = set(words)
        for what, found, known in (
            ("memory", {memory}, MEMORIES),
            ("policy", {policy}, POLICIES),
            ("switches", on, WORDS),
        ):
            if unknown := sorted(found - set(known)):
                listed = ", ".join(known)
                raise Problem(f"{what}: expected words out of {listed}; found {unknown[0]!r}", f"use {listed}")
        return cls(
            memory=memory,
            policy=policy,
            no_prefix="no-prefix" in on,
            no_position_weights="no-position-weights" in on,
            no_update="no-update" in on,
            no_local="no-local" in on,
        )
