"""The nouns. Everything the project says about a run is said with these; nothing here does anything.

Standard library only. All are frozen: a round grows by `dataclasses.replace`, never in place. They are
written to disk and read back by `tilewright.harness.codec`. Times are in microseconds (`_us`) or seconds
(`_s`), sizes in bytes, rates per second.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

Scalar: TypeAlias = bool | int | float | str | None
Json: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None


def sha256(text: str | bytes) -> str:
    """The hexadecimal SHA-256 of a text (as UTF-8) or of bytes."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


# --- words -----------------------------------------------------------------------------------------------


class Status(StrEnum):
    """What the judge found. Only a judge makes one."""

    PASS = "PASS"
    FAIL = "FAIL"
    AMBIGUOUS = "AMBIGUOUS"
    """Correct, but faster and slower cannot be told apart; never kept."""
    TASK_WEAK = "TASK_WEAK"
    """Correct, but the task would accept a wrong answer too; no speed-up is claimed."""
    SUSPECT = "SUSPECT"
    INFRA = "INFRA"
    """The machine failed, not the kernel; never evidence about the kernel."""


class Failure(StrEnum):
    """Why a verdict is FAIL."""

    COMPILE = "compile"
    LAUNCH = "launch"
    WRONG = "wrong"
    PRECISION = "precision"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out-of-memory"
    UNSUPPORTED = "unsupported"
    """This machine cannot judge it (an instrument would lie), which is not the same as wrong."""


class Decision(StrEnum):
    """What the loop did with a round's candidate."""

    KEPT = "kept"
    DISCARDED = "discarded"
    NONE = "none"
    """There was no candidate to decide on."""


class How(StrEnum):
    """How a thing is known. These words are never mixed: not in a field, a column or a sentence."""

    MEASURED = "measured"
    """On the device."""
    INTERPRETER = "interpreter"
    """Checked by running in Triton's interpreter, at reduced shapes."""
    MODELLED = "modelled"
    """Computed by the cost model from compiled facts."""
    COMPILED = "compiled"
    """Read from what the compiler produced; nothing ran."""
    NOT_CHECKED = "not-checked"


class Receipt(StrEnum):
    """Whether the fact that a candidate claimed has appeared in what the compiler made of it."""

    REALISED = "realised"
    REFUTED = "refuted"
    INDETERMINATE = "indeterminate"


class Level(StrEnum):
    """Rungs of the diagnosis ladder."""

    TRIAGE = "L1"
    PROFILE = "L2"
    IR = "L3"
    SOURCE = "L4"


class Standing(StrEnum):
    """How a question put to a skill came out. Unavailable is not inconclusive."""

    SUPPORTED = "supported"
    REFUTED = "refuted"
    INCONCLUSIVE = "inconclusive"
    UNAVAILABLE = "unavailable"


# --- where -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a kernel must be fast: an architecture and one device's ceilings. From knowledge/targets/."""

    name: str
    """For people and files, e.g. `cuda:90`."""
    device: str
    """The device whose ceilings these are, e.g. `NVIDIA H200`."""
    backend: str
    arch: int
    warp_size: int
    multiprocessors: int
    clock_hz: float
    """Sustained SM clock."""
    dram_bytes_per_s: float
    """What a copy kernel reaches, counting bytes read and written; not the datasheet's."""
    dram_latency_s: float
    l2_bytes: int
    l2_bytes_per_s: float
    shared_bytes_per_multiprocessor: int
    shared_bytes_per_block: int
    """The most one program may ask for (opt-in limit)."""
    registers_per_multiprocessor: int
    warps_per_multiprocessor: int
    blocks_per_multiprocessor: int
    fp32_flops_per_s: float
    """Plain fp32 arithmetic, an FMA counted as two."""
    tensor_flops_per_s: Mapping[str, float]
    """Tensor-core rate by operand type (`tf32`, `fp16`, `bf16`, `fp8`, `int8`), dense."""
    launch_s: float
    """Time between two dependent launches on one stream."""
    source: str
    """Where the ceilings come from: measured (when, how) or a public document."""


# --- what ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A tensor argument. In a `Task` the numbers are expressions over a case's names; `resolve` fills them."""

    shape: tuple[str, ...]
    dtype: str
    """A torch dtype's name (`float32`, `bfloat16`, `int64`, …) or a case's name for one."""
    strides: tuple[str, ...] | None = None
    """In elements; `None` is contiguous."""
    values: str = "normal"
    """`normal` (mean 0, deviation 1), `uniform` or `integers`, the last two over [low, high)."""
    low: str = "0"
    high: str = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor argument of one case, with every number known."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None
    values: str = "normal"
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One set of shapes, strides and dtypes: values for the names that a task's arguments use."""

    name: str
    bindings: Mapping[str, Scalar]
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to optimise and what it must compute. A file of Python, read but never imported by the harness."""

    name: str
    kind: str
    """`triton` (reference, inputs, launch) or `kernelbench` (Model, get_inputs, get_init_inputs)."""
    path: str
    """Where the task came from, for messages."""
    source: str
    """The task file, byte for byte. What it names by `start = "package.module:…"` is copied into `start` only."""
    start: str
    """The starting candidate's source."""
    entry: str
    """What a candidate must define: `launch`, or `ModelNew`."""
    args: Mapping[str, TensorSpec | Scalar] = field(default_factory=dict)
    """Arguments of `reference` and `launch` in order; empty for KernelBench, whose file makes its own."""
    cases: tuple[Case, ...] = ()
    """Weighted, at full size: what is compiled, modelled and timed."""
    checks: tuple[Case, ...] = ()
    """At reduced size, with tails and odd numbers: what is run to compare results where there is no GPU."""
    mutates: tuple[str, ...] = ()
    """Arguments that `launch` may overwrite by contract."""
    family: str = "unknown"
    """Operator family (softmax, normalisation, matmul, …): part of memory's context."""
    precision: str = "strict"
    """`strict` | `tf32` | `half`: what the contract lets an inner product lose."""
    tolerance: float | None = None
    """The task's own bound on |error| relative to the output's scale; `None` takes the published one by dtype."""

    @property
    def digest(self) -> str:
        """SHA-256 of the task's source: of what must be computed and for which inputs, not of where one starts."""
        return sha256(self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One version of the kernel: a Python source that defines the task's entry, and imports torch and triton only."""

    source: str
    label: str = ""
    """What is different about it, in a few words: `num_warps=8 BLOCK=1024`."""
    claim: Claim | None = None
    """The fact that must change if this edit takes; None: the proposal's claim."""

    @property
    def digest(self) -> str:
        """SHA-256 of the source."""
        return sha256(self.source)


# --- what was found --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """What the compiler made of one kernel in one case, and what one launch of it asks of the machine."""

    kernel: str
    case: str
    grid: tuple[int, int, int]
    launches: int
    """How often this specialisation is launched, with this grid, for one call of the entry."""
    facts: Mapping[str, int | float | str | bool]
    """Named in docs/facts.md: `registers`, `spill_bytes`, `load_bits_min`, `reduces_in_loop`, …"""
    digest: str
    """SHA-256 of the device binary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseTime:
    """How long one call takes for one case. The verdict's `timed` says whether measured or modelled."""

    case: str
    weight: float
    time_us: float
    floor_us: float
    """Speed of light: compulsory bytes over the device's memory rate."""
    bound: str = "unknown"
    """What limits it: `dram`, `l2`, `lsu`, `fp32`, `tensor`, `latency`, `launch`; `unknown` when nobody looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the judge found about one candidate. Only the judge makes one; `Proof` is what stands behind it."""

    status: Status
    failure: Failure | None = None
    detail: str = ""
    """One sentence for a person: what was expected, what was found, where."""
    correct: How = How.NOT_CHECKED
    timed: How = How.NOT_CHECKED
    times: tuple[CaseTime, ...] = ()
    proof: str = "screen"
    """`screen` steers the search; `proof` is the full contract and timing protocol."""

    @property
    def time_us(self) -> float | None:
        """Weighted geometric mean over the task's cases, or None where nothing was timed."""
        if not self.times:
            return None
        total = sum(t.weight for t in self.times)
        return math.exp(sum(t.weight * math.log(t.time_us) for t in self.times) / total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Everything behind a verdict that another person needs to judge it."""

    candidate: str
    """SHA-256 of the candidate's source."""
    task: str
    target: str
    kernels: tuple[KernelFacts, ...] = ()
    contract: Json = None
    """Tolerances, seeds, distributions and shapes used."""
    errors: Json = None
    """Per check: the largest error found beside what was allowed, and the worst element when wrong."""
    model: Json = None
    """Per case: each term of the modelled time."""
    samples_us: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Raw measured times by case."""
    not_checked: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    confinement: str = "none"
    judged_s: float = 0.0
    device_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One candidate of a round's batch, in short."""

    candidate: str
    label: str
    status: Status | None
    """None: not judged to the end, because a faster one passed first."""
    failure: Failure | None = None
    detail: str = ""
    time_us: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A judge's answer to a batch: the one it would put forward, its verdict and proof, and every trial."""

    candidate: Candidate | None
    verdict: Verdict
    proof: Proof
    trials: tuple[Trial, ...] = ()


# --- why -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one skill answered to one question; advice, never a verdict."""

    skill: str
    tool: str
    question: Json
    """The tool's arguments; long texts stand as their SHA-256."""
    answer: Json
    standing: Standing
    level: Level = Level.TRIAGE
    note: str = ""
    """Why it is unavailable or inconclusive, and the remedy."""
    key: str = ""
    """SHA-256 over skill, tool, version and arguments: equal keys need not be asked twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The mechanism that a candidate claims: which fact must change, and how, if the edit took."""

    fact: str
    """A name from `KernelFacts.facts`, or `programs`, `launches`, `kernels`."""
    relation: str
    """`==` `>=` `<=` against `value`; `rises` `falls` `differs` against the parent."""
    value: int | float | str | bool | None = None
    kernel: str | None = None
    """The kernel it must change in; None: the kernel that takes the most time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What a round tries: a strategy under a direction."""

    direction: str
    strategy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Why this move: the distribution it was drawn from, each term, and the seed."""

    distribution: Mapping[str, float]
    terms: Json
    seed: int
    policy: str = "softmax"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A planner's answer: what to try next, on which round's candidate, and what should change if it works."""

    parent: int
    candidates: tuple[Candidate, ...] = ()
    """A batch to choose from within the round; empty: the planner found nothing to write."""
    move: Move | None = None
    hypothesis: str = ""
    claim: Claim | None = None
    choice: Choice | None = None
    asked: Level = Level.TRIAGE
    reached: Level = Level.TRIAGE
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a round cost."""

    planning_s: float = 0.0
    judging_s: float = 0.0
    device_s: float = 0.0
    candidates: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Everything that happened once round the loop, in short; the unit of commit."""

    n: int
    parent: int | None
    """The round whose candidate was changed; None for round 0, the baseline."""
    verdict: Verdict
    decision: Decision = Decision.NONE
    reason: str = ""
    """Why kept or discarded."""
    candidate: str | None = None
    """SHA-256 of what this round proposed."""
    label: str = ""
    move: Move | None = None
    hypothesis: str = ""
    claim: Claim | None = None
    receipt: Receipt | None = None
    choice: Choice | None = None
    evidence: tuple[str, ...] = ()
    """SHA-256 of each piece of evidence, in the order asked."""
    asked: Level = Level.TRIAGE
    reached: Level = Level.TRIAGE
    trials: tuple[Trial, ...] = ()
    ratio: float | None = None
    """Time of the start over this one's, > 1 is faster: a speed-up where the verdict is measured, else a prediction."""
    cost: Cost = Cost()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What memory conditions an observation on."""

    family: str
    bottleneck: str
    dtype: str
    target: str
    shape: str
    """Class of the largest case: `small` (< 1 MiB moved), `medium` (< L2), `large`."""
    triton: str
    """Minor version, `3.9`."""
    time: str
    """`measured` or `modelled`: never mixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What memory may learn from one round. Derived from rounds alone, so it can always be derived again."""

    context: Context
    kernel: str
    """SHA-256 of the task: repetitions on one kernel count once."""
    prefix: tuple[str, ...]
    """Directions of the accepted moves on the parent's lineage, oldest first."""
    direction: str
    strategy: str
    outcome: str
    """`faster` `slower` `wrong` `compile` `flagged` `nothing`."""
    reward_ppm: int
    """Share of the remaining logarithmic headroom that the round closed, in parts per million."""
    cost_ms: int
    """Device time, or judging time where there is no device, in milliseconds."""
    run: str
    round: int
    candidate: str
    """SHA-256 of the candidate observed."""

    @property
    def digest(self) -> str:
        """Identity for union: equal observations from any source count once."""
        return sha256(repr(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What was decided when a run was made; never changes afterwards."""

    target: str
    run: str = ""
    """Identity of the run, unique across machines: observations carry it."""
    planner: str = "builtin"
    memory: str = "htg"
    policy: str = "softmax"
    ladder: str = "progressive"
    seed: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    """tilewright, torch, triton, python at creation."""
    rounds: int = 10
    """How many were asked for; `resume` goes on to as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One round with all that belongs to it on disk: what a commit holds."""

    round: Round
    source: str | None = None
    """The round's candidate."""
    trials: Mapping[str, str] = field(default_factory=dict)
    """Sources of the batch's other candidates, by SHA-256."""
    proof: Proof | None = None
    evidence: tuple[Evidence, ...] = ()
    observation: Observation | None = None
    messages: Json = None
    """The planner's conversation for the round, secrets removed."""
