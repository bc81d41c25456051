"""The judge where there is no GPU: compiled for the target, modelled, and checked in Triton's interpreter.

Every candidate of a batch is compiled at full size, a sample of its programs is counted, and the cost model makes
a time of it. Then the candidates are checked at reduced sizes, the fastest first, until one passes: that one is put
forward. Its verdict says `correct: interpreter, timed: modelled`, and its proof lists what neither can see.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilewright.harness.errors import TaskProblem
from tilewright.harness.judge.correct import Admitted, Checked, Correctness
from tilewright.harness.judge.model import Modelled, Modeller
from tilewright.harness.judge.paths import unchecked
from tilewright.harness.judge.pool import Pool, processors
from tilewright.harness.judge.said import contract_of, trial_of, verdict_of, versions_of
from tilewright.harness.roles import Once
from tilewright.harness.types import (
    Candidate,
    How,
    Judged,
    Proof,
    Status,
    Target,
    Task,
    Trial,
    Verdict,
)

INTERPRET_LIMIT_S = 90.0
MOST_CHECKED = 4
"""Candidates of one batch whose results are compared before the batch is given up."""
NEVER_CHECKED = (
    "races between programs",
    "indices at full size",
    "time on a device",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A check with what it cost."""

    checked: Checked
    seconds: float


class InterpreterJudge:
    """Judges without a GPU, for the device that `target` describes. `close` ends its workers."""

    def __init__(self, target: Target, *, width: int | None = None, seeds: tuple[int, int] = (0, 1)) -> None:
        self._target, self._seeds = target, seeds
        width = width or processors()
        self._compile, self._interpret = Pool("compile", width=width), Pool("interpret", width=width)
        self._modeller = Modeller(self._compile, self._interpret, target)
        self._correct = Correctness(self._compile, self._interpret, "interpret", target, limit_s=INTERPRET_LIMIT_S)

    async def close(self) -> None:
        """End the worker processes."""
        await asyncio.gather(self._compile.close(), self._interpret.close())

    async def judge(self, task: Task, candidates: Sequence[Candidate], once: Once) -> Judged:
        """As roles.Judge. What was found about a candidate is stored under its digest, model and check apart."""
        if not candidates:
            raise ValueError("an empty batch has no verdict")
        await asyncio.gather(self._compile.start(), self._interpret.start())
        admitted = await once(f"admission/{task.digest}", Admitted, partial(self._admit, task))
        distinct = {candidate.digest: candidate for candidate in candidates}
        models = await asyncio.gather(
            *(once(f"judge/{d}/model", Modelled, partial(self._modeller.model, task, c)) for d, c in distinct.items())
        )
        found = dict(zip(distinct, models, strict=True))
        looks: dict[str, Look] = {}
        order = sorted((d for d in distinct if found[d].status is Status.PASS), key=lambda d: found[d].time_us)
        for digest in order[:MOST_CHECKED]:
            look = await once(f"judge/{digest}/check", Look, partial(self._look, task, distinct[digest], found[digest]))
            looks[digest] = look
            if look.checked.status is Status.PASS:
                break
        chosen = self._chosen(order, looks, distinct)
        verdict = self._verdict(found[chosen], looks.get(chosen), admitted)
        assert verdict is not None  # whoever was not looked at is never chosen
        return Judged(
            candidate=distinct[chosen],
            verdict=verdict,
            proof=self._proof(task, distinct[chosen], found[chosen], looks.get(chosen), admitted),
            trials=tuple(self._trial(c, found[c.digest], looks.get(c.digest), admitted) for c in distinct.values()),
        )

    @staticmethod
    def _chosen(order: Sequence[str], looks: Mapping[str, Look], distinct: Mapping[str, Candidate]) -> str:
        """The first that passed; else the fastest that was looked at; else the planner's first."""
        passed = [digest for digest in order if digest in looks and looks[digest].checked.status is Status.PASS]
        return (passed or [digest for digest in order if digest in looks] or list(distinct))[0]

    # --- the stages --------------------------------------------------------------------------------------

    async def _admit(self, task: Task) -> Admitted:
        if not task.checks:
            raise TaskProblem("there is no reduced case to check results on", "add `check`", path=task.path)
        return await self._correct.admit(task, task.checks, self._seeds)

    async def _look(self, task: Task, candidate: Candidate, model: Modelled) -> Look:
        began = time.monotonic()
        checked = await self._correct.check(task, candidate, task.checks, self._seeds, model.chosen)
        if checked.status is Status.PASS and (doubt := unchecked(model.kernels, checked.ran)):
            checked = replace(checked, status=Status.SUSPECT, detail=doubt)
        return Look(checked=checked, seconds=time.monotonic() - began)

    # --- what is said about it ---------------------------------------------------------------------------

    def _verdict(self, model: Modelled, look: Look | None, admitted: Admitted) -> Verdict | None:
        """None where it was compiled and modelled, but not looked at."""
        if model.status is not Status.PASS:
            return Verdict(status=model.status, failure=model.failure, detail=model.detail)
        if look is None:
            return None
        return verdict_of(look.checked, admitted, correct=How.INTERPRETER, timed=How.MODELLED, times=model.times)

    def _trial(self, candidate: Candidate, model: Modelled, look: Look | None, admitted: Admitted) -> Trial:
        time_us = model.time_us if model.status is Status.PASS else None
        return trial_of(candidate, self._verdict(model, look, admitted), time_us)

    def _proof(self, task: Task, candidate: Candidate, model: Modelled, look: Look | None, admitted: Admitted) -> Proof:
        unseen = [*NEVER_CHECKED, *model.not_checked, *admitted.notes]
        unseen += look.checked.not_checked if look else ["results"]
        return Proof(
            candidate=candidate.digest,
            task=task.digest,
            target=self._target.name,
            kernels=model.kernels,
            contract=contract_of(task, task.checks, self._seeds, admitted),
            errors=dict(look.checked.errors) if look else None,
            model=model.model,
            not_checked=tuple(dict.fromkeys(unseen)),
            versions=versions_of(self._compile),
            confinement="L0",
            judged_s=model.seconds + (look.seconds if look else 0.0),
        )
