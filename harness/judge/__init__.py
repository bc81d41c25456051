"""The judge: compiles, checks and times candidates in worker processes, and says what it found.

Nothing here imports torch or triton; foreign code runs in the workers only.
"""

from __future__ import annotations

from typing import Protocol

from tilewright.harness.roles import Judge
from tilewright.harness.types import Target


class ClosableJudge(Judge, Protocol):
    """A judge that holds worker processes."""

    async def close(self) -> None:
        """End the worker processes; harmless when done again."""


def judge_for(target: Target, *, measure: bool | None = None, width: int | None = None) -> ClosableJudge:
    """The judge for a target on this machine: one that measures where its device is present, else one that models.

    `measure` insists on one or the other. `width` is how many workers of a kind run at a time; by default one a
    processor, two at least and eight at most. Raises MachineProblem where measuring is asked for and there is no
    device of the target's architecture.
    """
    from tilewright.harness.judge.device import present, require
    from tilewright.harness.judge.measured import DeviceJudge
    from tilewright.harness.judge.modelled import InterpreterJudge

    if measure:
        require(target)
    if measure or (measure is None and present(target)):
        return DeviceJudge(target, width=width)
    return InterpreterJudge(target, width=width)
