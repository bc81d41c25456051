"""What memory may learn from a round. Derived from rounds alone, so that `fsck` can derive it again."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.harness.decide import MEASURED_GAIN, MODELLED_GAIN, speedup
from tilewright.harness.types import (
    CaseTime,
    Context,
    Decision,
    Failure,
    How,
    Observation,
    Round,
    Settings,
    Status,
    Target,
    Task,
    TensorSpec,
    Verdict,
)

MIB = 1 << 20


def observe(
    task: Task, target: Target, settings: Settings, before: Sequence[Round], done: Round, fastest_us: float | None
) -> Observation | None:
    """The observation that round `done` makes, given the rounds before it; None where it teaches nothing.

    `fastest_us` is the lowest time of a round that passed before it (see `faster`).
    The baseline, rounds without a move or a candidate, and failures of the machine teach nothing.
    """
    if done.parent is None or done.move is None or done.candidate is None:
        return None
    if done.verdict.status is Status.INFRA or done.verdict.failure is Failure.UNSUPPORTED:
        return None
    parent = before[done.parent]
    device_s = done.cost.device_s or done.cost.judging_s
    return Observation(
        context=context(task, target, settings, parent.verdict),
        kernel=task.digest,
        prefix=prefix(before, done.parent),
        direction=done.move.direction,
        strategy=done.move.strategy,
        outcome=_outcome(parent.verdict, done.verdict),
        reward_ppm=_reward_ppm(parent.verdict, done.verdict, fastest_us),
        cost_ms=round(device_s * 1000),
        run=settings.run,
        round=done.n,
        candidate=done.candidate,
    )


def prefix(rounds: Sequence[Round], parent: int) -> tuple[str, ...]:
    """Directions of the accepted moves on the lineage that ends at round `parent`, oldest first."""
    directions: list[str] = []
    n: int | None = parent
    while n is not None:
        at = rounds[n]
        if at.move and at.decision is Decision.KEPT:
            directions.append(at.move.direction)
        n = at.parent
    return tuple(reversed(directions))


def context(task: Task, target: Target, settings: Settings, verdict: Verdict) -> Context:
    """What an observation, or a question to memory, is conditioned on: task, target, and where the time goes."""
    longest = max(verdict.times, key=lambda t: t.time_us, default=None)
    triton = settings.versions.get("triton", "unknown")
    return Context(
        family=task.family,
        bottleneck=longest.bound if longest else "unknown",
        dtype=_dtype(task),
        target=target.name,
        shape=_shape(target, longest),
        triton=".".join(triton.split(".")[:2]),
        time=str(verdict.timed if verdict.timed is How.MEASURED else How.MODELLED),
    )


def _outcome(parent: Verdict, child: Verdict) -> str:
    if child.status is Status.PASS:
        if parent.time_us is None or child.time_us is None:
            return "flagged"
        return "faster" if _improved(parent, child) else "slower"
    if child.status is Status.FAIL:
        return "compile" if child.failure is Failure.COMPILE else "wrong"
    return "flagged"


def _improved(parent: Verdict, child: Verdict) -> bool:
    """Whether the child is faster by as much as the loop would keep it for: less is noise, or the model's."""
    gain = speedup(parent, child)
    return gain is not None and gain >= (MODELLED_GAIN if child.timed is How.MODELLED else MEASURED_GAIN)


def faster(fastest_us: float | None, done: Round) -> float | None:
    """The lowest time of a round that passed, with `done` counted in: kept by whoever goes through the rounds."""
    time_us = done.verdict.time_us if done.verdict.status is Status.PASS else None
    return min((t for t in (fastest_us, time_us) if t), default=None)


def _reward_ppm(parent: Verdict, child: Verdict, fastest_us: float | None) -> int:
    """The share of the remaining logarithmic headroom that was closed: clip(ln(p/c) / ln(p/floor), 0, 1).

    The floor is the speed of light of the task, or the best time known if that is lower.
    """
    if child.status is not Status.PASS or parent.time_us is None or child.time_us is None:
        return 0
    if not _improved(parent, child):
        return 0
    floor = min(_floor_us(parent), child.time_us, fastest_us or child.time_us)
    headroom = math.log(parent.time_us / floor)
    return min(1_000_000, round(1_000_000 * math.log(parent.time_us / child.time_us) / headroom))


def _floor_us(verdict: Verdict) -> float:
    total = sum(t.weight for t in verdict.times)
    return math.exp(sum(t.weight * math.log(max(t.floor_us, 1e-3)) for t in verdict.times) / total)


def _dtype(task: Task) -> str:
    """The dtype of the first tensor argument in the first case."""
    for spec in task.args.values():
        if isinstance(spec, TensorSpec):
            bound = task.cases[0].bindings.get(spec.dtype) if task.cases else None
            return str(bound or spec.dtype)
    return "unknown"


def _shape(target: Target, longest: CaseTime | None) -> str:
    if longest is None:
        return "unknown"
    moved = longest.floor_us * 1e-6 * target.dram_bytes_per_s
    return "small" if moved < MIB else "medium" if moved < target.l2_bytes else "large"
