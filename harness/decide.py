"""Kept or discarded: what the loop does with a verdict. Pure; the rules are those of docs/verdicts.md."""

from __future__ import annotations

import math

from tilewright.harness.types import Decision, How, Receipt, Status, Verdict

MEASURED_GAIN = 1.01
"""A measured candidate must be at least 1 % faster: below that, noise decides."""
MODELLED_GAIN = 1 / 0.95
"""A modelled time must be at least 5 % lower: the model is no better than that."""
WORST_CASE = 0.98
"""No case may get more than 2 % slower, however much the others gain."""


def ratios(base: Verdict, new: Verdict) -> dict[str, float]:
    """Time of `base` over time of `new`, case by case; > 1 means that `new` is faster."""
    before = {t.case: t.time_us for t in base.times}
    return {t.case: before[t.case] / t.time_us for t in new.times if t.case in before}


def speedup(base: Verdict, new: Verdict) -> float | None:
    """Weighted geometric mean of the per-case ratios; None where the two were not timed alike."""
    if base.timed is not new.timed or not new.times:
        return None
    ratio = ratios(base, new)
    if len(ratio) != len(base.times) or len(ratio) != len(new.times):
        return None
    total = sum(t.weight for t in new.times)
    return math.exp(sum(t.weight * math.log(ratio[t.case]) for t in new.times) / total)


def decide(best: Verdict, new: Verdict, receipt: Receipt | None) -> tuple[Decision, str]:
    """Whether `new` replaces `best`, and why, in one sentence."""
    if new.status is not Status.PASS:
        why = f"{new.status} {new.failure}" if new.failure else str(new.status)
        return Decision.DISCARDED, f"{why}: {new.detail}" if new.detail else why
    gain = speedup(best, new)
    if gain is None:
        return Decision.DISCARDED, f"its time is {new.timed}, the best one's {best.timed}: not comparable"
    modelled = new.timed is How.MODELLED
    needed = MODELLED_GAIN if modelled else MEASURED_GAIN
    if gain < needed:
        return Decision.DISCARDED, f"{new.timed} {gain:.3f} times the best one's speed, {needed:.3f} needed"
    case, worst = min(ratios(best, new).items(), key=lambda item: item[1])
    if worst < WORST_CASE:
        return Decision.DISCARDED, f"case {case} got {1 / worst - 1:.1%} slower ({new.timed}), 2 % allowed"
    if modelled and receipt is not Receipt.REALISED:
        return (
            Decision.DISCARDED,
            f"modelled {gain:.3f} times faster, but its claim is {receipt or 'missing'}",
        )
    return Decision.KEPT, f"{new.timed} {gain:.3f} times the speed of the best so far"
