"""The judge where the GPU is: results compared and calls timed on the device. First version of the protocol.

Every candidate runs in a process of its own, in three steps: on reduced sizes and several seeds; on each full case,
all elements compared; then timed there, alone on the device (a lock is held from `go` to the end). Nothing is timed
that is not right, and the results of the last timed call are compared as well. The time of a case is the median of
single calls with a cold L2.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

from tilewright.harness.errors import MachineProblem
from tilewright.harness.judge.correct import Admitted, Checked, Correctness, Prepared, failure_of
from tilewright.harness.judge.merge import Mismatch, merged
from tilewright.harness.judge.model import CENSUS_LIMIT_S, Modeller
from tilewright.harness.judge.pool import GIB, Pool, processors
from tilewright.harness.roles import Once
from tilewright.harness.types import (
    Candidate,
    Case,
    CaseTime,
    Failure,
    How,
    Json,
    Judged,
    KernelFacts,
    Proof,
    Status,
    Target,
    Task,
    Trial,
    Verdict,
)
from tilewright.harness.worker.wire import Blob

MEASURE_LIMIT_S = 120.0
"""For one case, waiting for the device not counted: compiling, autotuning, two checks and the timed calls."""
MOST_MEASURED = 16
"""Candidates of one batch that get to the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was found about one candidate."""

    checked: Checked
    kernels: tuple[KernelFacts, ...] = ()
    times: tuple[CaseTime, ...] = ()
    samples_us: dict[str, tuple[float, ...]]
    model: dict[str, Json]
    seconds: float = 0.0
    device_s: float = 0.0

    @property
    def time_us(self) -> float:
        """Weighted geometric mean over the cases; infinite where it has no time."""
        found = Verdict(status=Status.PASS, times=self.times).time_us
        return float("inf") if found is None else found


class DeviceJudge:
    """Judges on this machine's GPU, which must be of `target`'s architecture. `close` ends its workers."""

    def __init__(self, target: Target, *, width: int | None = None, seeds: tuple[int, int] = (0, 1)) -> None:
        self._target, self._seeds = target, seeds
        width = width or processors()
        self._measure = Pool("measure", width=min(width, 4), memory_bytes=64 * GIB, file_bytes=16 * GIB)
        self._interpret = Pool("interpret", width=width)
        self._modeller = Modeller(self._measure, self._interpret, target)
        self._correct = Correctness(
            self._measure, self._measure, "measure", target, limit_s=MEASURE_LIMIT_S, on_device=True
        )
        self._device = asyncio.Lock()
        self._warm = False

    async def close(self) -> None:
        """End the worker processes."""
        await asyncio.gather(self._measure.close(), self._interpret.close())

    async def judge(self, task: Task, candidates: Sequence[Candidate], once: Once) -> Judged:
        """As roles.Judge. What was found about a candidate is stored under its digest."""
        if not candidates:
            raise ValueError("an empty batch has no verdict")
        await self._start()
        admitted = await once(f"admission/{task.digest}", Admitted, partial(self._admit, task))
        distinct = {candidate.digest: candidate for candidate in candidates}
        picked = list(distinct)[:MOST_MEASURED]
        answers = await asyncio.gather(
            *(once(f"judge/{d}/measured", Measured, partial(self._candidate, task, distinct[d])) for d in picked)
        )
        found = dict(zip(picked, answers, strict=True))
        chosen = min(picked, key=lambda d: (found[d].checked.status is not Status.PASS, found[d].time_us))
        return Judged(
            candidate=distinct[chosen],
            verdict=self._verdict(found[chosen], admitted),
            proof=self._proof(task, distinct[chosen], found[chosen], admitted),
            trials=tuple(self._trial(c, found.get(c.digest), admitted) for c in distinct.values()),
        )

    async def eager_ms(self, task: Task) -> dict[str, float]:
        """Milliseconds that the reference takes on the device, by case. Raises TaskProblem where it cannot run."""
        await self._start()
        times = {}
        for case in task.cases:
            ready = await self._correct.prepare(task, case, self._seeds[0])
            job = {**ready.job, "op": "measure", "eager": True, "task_source": ready.task_source}
            async with self._device:
                reply, _ = await self._measure.run(job, ready.inputs, limit_s=MEASURE_LIMIT_S, on_pending=_go)
            if failed := failure_of(reply, task):
                raise MachineProblem(f"{task.name}: timing the reference failed: {failed[1]}")
            times[case.name] = statistics.median(reply["samples_us"]) / 1e3
        return times

    # --- the stages --------------------------------------------------------------------------------------

    async def _start(self) -> None:
        await asyncio.gather(self._measure.start(), self._interpret.start())
        if not self._warm:
            job = {"op": "measure", "warm": True, "seed_into": self._measure.seed_cache}
            reply, _ = await self._measure.run(job, limit_s=MEASURE_LIMIT_S)
            if "failed" in reply:
                raise MachineProblem(f"the device does not answer: {reply['failed']['detail']}", "run `nvidia-smi`")
            self._warm = True

    async def _admit(self, task: Task) -> Admitted:
        return await self._correct.admit(task, task.checks or task.cases, self._seeds)

    async def _candidate(self, task: Task, candidate: Candidate) -> Measured:
        began = time.monotonic()
        checked = Checked(status=Status.PASS, errors={})
        if task.checks:
            checked = await self._correct.check(task, candidate, task.checks, self._seeds)
        measured = Measured(checked=checked, samples_us={}, model={})
        if checked.status is Status.PASS:
            measured = _joined(checked, [await self._case(task, candidate, case) for case in task.cases])
        return Measured(
            checked=measured.checked,
            kernels=measured.kernels,
            times=measured.times,
            samples_us=measured.samples_us,
            model=measured.model,
            device_s=measured.device_s,
            seconds=time.monotonic() - began,
        )

    async def _case(self, task: Task, candidate: Candidate, case: Case) -> Measured:
        """Compare and time one full case."""
        ready = await self._correct.prepare(task, case, self._seeds[0])
        seen: dict[str, Any] = {}
        holding = False
        began = 0.0

        async def on_pending(said: dict[str, Any], out: dict[str, Blob]) -> dict[str, Any]:
            nonlocal holding, began
            seen.update(said)
            seen["checked"] = await asyncio.to_thread(self._correct.verdict, task, ready, said, out)
            if seen["checked"].status is not Status.PASS:
                return {"go": False}
            await self._device.acquire()
            holding, began = True, time.monotonic()
            return {"go": True}

        job = {**ready.job, "op": "measure", "source": candidate.source, "time": True}
        try:
            reply, out = await self._measure.run(job, ready.inputs, limit_s=MEASURE_LIMIT_S, on_pending=on_pending)
        finally:
            device_s = time.monotonic() - began if holding else 0.0
            if holding:
                self._device.release()
        checked = await self._after(task, ready, seen, reply, out)
        samples = tuple(float(each) for each in reply.get("samples_us", ()))
        if checked.status is not Status.PASS:
            return Measured(checked=checked, samples_us={}, model={}, device_s=device_s)
        kernels, timed, breakdown = await self._explained(task, candidate, case, seen)
        return Measured(
            checked=checked,
            kernels=kernels,
            times=(
                CaseTime(
                    case=case.name,
                    weight=case.weight,
                    time_us=statistics.median(samples),
                    floor_us=timed.floor_us if timed else 0.0,
                    bound=timed.bound if timed else "unknown",
                ),
            ),
            samples_us={case.name: samples},
            model={case.name: breakdown},
            device_s=device_s,
        )

    async def _after(
        self, task: Task, ready: Prepared, seen: dict[str, Any], reply: dict[str, Any], out: dict[str, Blob]
    ) -> Checked:
        """The verdict once the child has ended: a failure of its own, the check before timing, or the one after."""
        if failed := failure_of(reply, task):
            detail = f"case {ready.expected.case!r}: {failed[1]}"
            return Checked(status=Status.FAIL, failure=failed[0], detail=detail, errors={})
        first: Checked = seen["checked"]
        if first.status is not Status.PASS:
            return first
        if not reply["samples_us"]:
            detail = f"case {ready.expected.case!r}: it answered without being timed"
            return Checked(status=Status.FAIL, failure=Failure.LAUNCH, detail=detail, errors={})
        last = await asyncio.to_thread(self._correct.verdict, task, ready, {"changed": []}, out)
        return first if last.status is Status.PASS else last

    async def _explained(
        self, task: Task, candidate: Candidate, case: Case, seen: dict[str, Any]
    ) -> tuple[tuple[KernelFacts, ...], CaseTime | None, Json]:
        """Facts of the kernels that ran, with the census of the same launches where the interpreter can make one."""
        chosen = {each["kernel"]: each["index"] for each in seen["autotuned"]}
        job = {**self._modeller.job(task, candidate, case), "op": "census", "chosen": chosen}
        counted, _ = await self._interpret.run(job, limit_s=CENSUS_LIMIT_S)
        try:
            kernels = merged(seen, None if "failed" in counted else counted, case.name)
        except Mismatch:
            counted = {"failed": "it saw other launches than the device"}
            kernels = merged(seen, None, case.name)
        if "failed" in counted:
            return kernels, None, None
        timed, breakdown = self._modeller.time(kernels, case)
        return kernels, timed, breakdown

    # --- what is said about it ---------------------------------------------------------------------------

    def _verdict(self, found: Measured, admitted: Admitted) -> Verdict:
        checked = found.checked
        if checked.status is not Status.PASS:
            return Verdict(status=checked.status, failure=checked.failure, detail=checked.detail, correct=How.MEASURED)
        weak = admitted.weaknesses
        return Verdict(
            status=Status.TASK_WEAK if weak else Status.PASS,
            detail=f"the task would also accept {'; '.join(weak)}" if weak else "",
            correct=How.MEASURED,
            timed=How.MEASURED,
            times=found.times,
        )

    def _trial(self, candidate: Candidate, found: Measured | None, admitted: Admitted) -> Trial:
        if found is None:
            return Trial(candidate=candidate.digest, label=candidate.label, status=None)
        verdict = self._verdict(found, admitted)
        return Trial(
            candidate=candidate.digest,
            label=candidate.label,
            status=verdict.status,
            failure=verdict.failure,
            detail=verdict.detail,
            time_us=verdict.time_us,
        )

    def _proof(self, task: Task, candidate: Candidate, found: Measured, admitted: Admitted) -> Proof:
        return Proof(
            candidate=candidate.digest,
            task=task.digest,
            target=self._target.name,
            kernels=found.kernels,
            contract={
                "rule": "every element, float64 reference: docs/verdicts.md",
                "precision": task.precision,
                "tolerance": task.tolerance,
                "seeds": list(self._seeds),
                "distributions": ["as the task gives"],
                "checks": [case.name for case in (*task.checks, *task.cases)],
                "weaknesses": list(admitted.weaknesses),
            },
            errors=dict(found.checked.errors),
            model=found.model,
            samples_us=found.samples_us,
            not_checked=("results cached between timed calls", "other distributions of inputs", *admitted.notes),
            versions={**self._measure.versions, "tilewright": version("tilewright")},
            confinement="L0",
            judged_s=found.seconds,
            device_s=found.device_s,
        )


async def _go(said: dict[str, Any], out: dict[str, Blob]) -> dict[str, Any]:
    return {"go": True}


def _joined(checked: Checked, parts: Sequence[Measured]) -> Measured:
    """The cases of one candidate together; the first that is not right speaks for all."""
    wrong = next((part.checked for part in parts if part.checked.status is not Status.PASS), None)
    errors = {**checked.errors, **{key: value for part in parts for key, value in part.checked.errors.items()}}
    status = wrong or checked
    return Measured(
        checked=Checked(status=status.status, failure=status.failure, detail=status.detail, errors=errors),
        kernels=tuple(kernel for part in parts for kernel in part.kernels),
        times=() if wrong else tuple(one for part in parts for one in part.times),
        samples_us={key: value for part in parts for key, value in part.samples_us.items()},
        model={key: value for part in parts for key, value in part.model.items()},
        device_s=sum(part.device_s for part in parts),
    )
