"""What triage answers: plain data of bounded size."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.harness.types import Claim, Level, Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A strategy tried before."""

    strategy: str
    outcome: str
    """`faster` `slower` `wrong` `compile` `flagged` `nothing`."""
    candidate: str
    """SHA-256 of the source it was tried on: the parent, not the result."""
    diagnosis: list[str] = field(default_factory=list)
    """Signs that held then; empty: the same as now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """What limits the kernel, as far as the facts say."""

    word: str
    """`dram` `l2` `fp32` `tensor` `latency` `launch`; `unknown` without facts."""
    kernel: str = ""
    case: str = ""
    terms_us: dict[str, float] = field(default_factory=dict)
    """Least time that each resource needs for one call in that case, all kernels together."""
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """A sign that holds here."""

    sign: str
    meaning: str
    evidence: str
    """The numbers, or the line, that show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One strategy that may pay here."""

    strategy: str
    direction: str
    title: str
    support: float
    """Probability that it pays here: the card's prior, raised or lowered by the signs that were looked for."""
    score: float
    """Expected reward, for ranking: support times the card's prior reward."""
    lines: tuple[int, int] | None
    """First and last source line concerned, from 1."""
    because: list[str]
    """Signs that hold and speak for it."""
    edit: str
    """What to do, in words."""
    expected: str
    """What should get better if it works."""
    at_most: float | None
    """Upper bound on the speed-up through this mechanism alone; None when the facts do not say."""
    risk: str
    verify: Claim
    """The fact that must appear in what the compiler makes of the edit."""
    rewrite: str | None
    """Name of the executable rewrite; None: somebody has to write it."""
    edits: int
    """How many untried candidates the rewrite offers now."""
    labels: list[str]
    """What the first of them would change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOut:
    """A strategy that is not offered, and why."""

    strategy: str
    why: str


@dataclass(frozen=True, kw_only=True)  # no slots: the SDK reads defaults from the class
class Ranking:
    """Triage's answer."""

    family: str
    bottleneck: Bottleneck
    symptoms: list[Symptom]
    hypotheses: list[Hypothesis]
    ruled_out: list[RuledOut]
    standing: Standing
    """`supported` when a hypothesis has signs or edits behind it, else `inconclusive`."""
    level: Level = Level.TRIAGE
    note: str = ""
