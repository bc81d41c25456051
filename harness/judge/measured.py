"""The judge where the GPU is: results compared and calls timed on the device. First version of the protocol.

Of a large batch the cost model says which candidates are worth the device's time. Those go through two stages. First
each runs at reduced sizes, several side by side. Then those that were right there run at full size, one candidate at a
time: each case in a process of its own up to a first result, all elements of which are compared; when all cases have
got that far and nothing else is on the device, they are timed one after the other, and the results of the last timed
call are compared too. Nothing is timed that is not right. The time of a case is the median of single calls with a cold
L2.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tilewright.harness.errors import MachineProblem
from tilewright.harness.judge.correct import Admitted, Checked, Correctness, Prepared, failure_of, task_problem
from tilewright.harness.judge.merge import Mismatch, merged
from tilewright.harness.judge.model import CENSUS_LIMIT_S, Modelled, Modeller
from tilewright.harness.judge.pool import GIB, Pool, processors
from tilewright.harness.judge.replies import TASK, demand
from tilewright.harness.judge.said import contract_of, trial_of, verdict_of, versions_of
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
)
from tilewright.harness.worker.wire import Blob

MEASURE_LIMIT_S = 120.0
"""For one case, waiting for the device not counted: compiling, autotuning, two checks and the timed calls."""
MOST_MEASURED = 6
"""Candidates of one batch that get to the device: those that the cost model puts first. How well its order holds is in
benchmarks/results/model-check.json."""
NOT_CHECKED = ("results cached between timed calls", "distributions of inputs other than the task's own")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was found about one candidate, or about one of its cases."""

    checked: Checked
    kernels: tuple[KernelFacts, ...] = ()
    times: tuple[CaseTime, ...] = ()
    samples_us: dict[str, tuple[float, ...]]
    model: dict[str, Json]
    seconds: float = 0.0
    device_s: float = 0.0


class DeviceJudge:
    """Judges on this machine's GPU, which must be of `target`'s architecture. `close` ends its workers."""

    def __init__(self, target: Target, *, width: int | None = None, seeds: tuple[int, int] = (0, 1)) -> None:
        self._target, self._seeds = target, seeds
        self._width = width = width or processors()
        self._measure = Pool("measure", width=width, memory_bytes=64 * GIB, file_bytes=16 * GIB)
        self._interpret = Pool("interpret", width=width)
        self._modeller = Modeller(self._measure, self._interpret, target)
        self._correct = Correctness(
            self._measure, self._measure, "measure", target, limit_s=MEASURE_LIMIT_S, on_device=True
        )
        self._alone = asyncio.Lock()
        """Held by the candidate that is at full size."""
        self._warm = False

    async def close(self) -> None:
        """End the worker processes."""
        await asyncio.gather(self._measure.close(), self._interpret.close())

    async def judge(self, task: Task, candidates: Sequence[Candidate], once: Once) -> Judged:
        """As roles.Judge. What was found about a candidate is stored under its digest, stage by stage."""
        if not candidates:
            raise ValueError("an empty batch has no verdict")
        await self._start()
        admitted = await once(f"admission/{task.digest}", Admitted, partial(self._admit, task))
        distinct = {candidate.digest: candidate for candidate in candidates}
        models = await self._models(task, distinct, once)
        few = sorted(distinct, key=lambda digest: models[digest])[:MOST_MEASURED]
        first = await asyncio.gather(
            *(once(f"judge/{d}/checked", Checked, partial(self._reduced, task, distinct[d])) for d in few)
        )
        found: dict[str, Measured] = {}
        for digest, checked in zip(few, first, strict=True):
            if checked.status is Status.PASS:
                do = partial(self._full, task, distinct[digest], checked)
                found[digest] = await once(f"judge/{digest}/measured", Measured, do)
            else:
                found[digest] = Measured(checked=checked, samples_us={}, model={})
        verdicts = {
            d: verdict_of(m.checked, admitted, correct=How.MEASURED, timed=How.MEASURED, times=m.times)
            for d, m in found.items()
        }
        chosen = min(found, key=lambda d: (found[d].checked.status is not Status.PASS, verdicts[d].time_us or 0.0))
        return Judged(
            candidate=distinct[chosen],
            verdict=verdicts[chosen],
            proof=self._proof(task, distinct[chosen], found[chosen], admitted),
            trials=tuple(
                trial_of(c, verdicts[d], verdicts[d].time_us) if d in found else _left_out(c, models[d])
                for d, c in distinct.items()
            ),
        )

    async def eager_ms(self, task: Task) -> dict[str, float]:
        """Milliseconds that the reference takes on the device, by case. Raises TaskProblem where it cannot run."""
        await self._start()
        times = {}
        async with self._alone:
            for case in task.cases:
                ready = await self._correct.prepare(task, case, self._seeds[0], lower=False)
                job = {**ready.job, "op": "measure", "eager": True, "task_source": ready.task_source}
                reply, _ = await self._measure.run(job, ready.inputs, limit_s=MEASURE_LIMIT_S, on_pending=_go)
                if "failed" in reply and reply["failed"]["failure"] == TASK:
                    raise task_problem(task, reply["failed"])
                if failed := failure_of(reply):
                    raise MachineProblem(f"{task.name}: timing the reference failed: {failed[1]}")
                times[case.name] = statistics.median(reply["samples_us"]) / 1e3
        return times

    # --- the stages --------------------------------------------------------------------------------------

    async def _models(self, task: Task, distinct: Mapping[str, Candidate], once: Once) -> dict[str, float]:
        """Modelled µs of each candidate of a batch too large to measure whole: which ones get to the device.

        Infinite where the model has no answer; what is small enough to be measured whole is not modelled first.
        """
        if len(distinct) <= MOST_MEASURED:
            return dict.fromkeys(distinct, math.inf)
        models = await asyncio.gather(
            *(once(f"judge/{d}/model", Modelled, partial(self._modeller.model, task, c)) for d, c in distinct.items())
        )
        found = zip(distinct, models, strict=True)
        return {d: m.time_us if m.status is Status.PASS else math.inf for d, m in found}

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

    async def _reduced(self, task: Task, candidate: Candidate) -> Checked:
        if not task.checks:
            return Checked(status=Status.PASS, errors={})
        return await self._correct.check(task, candidate, task.checks, self._seeds[:1])

    async def _full(self, task: Task, candidate: Candidate, reduced: Checked) -> Measured:
        """Compare and time every full case of one candidate, which has the device for itself."""
        began = time.monotonic()
        async with self._alone:
            ready = [await self._correct.prepare(task, case, self._seeds[0], lower=False) for case in task.cases]
            parts: list[Measured] = []
            pairs = list(zip(task.cases, ready, strict=True))
            for start in range(0, len(pairs), self._width):
                some = pairs[start : start + self._width]
                turn = _Turn([case.name for case, _ in some])
                parts += await asyncio.gather(*(self._case(task, candidate, *pair, turn) for pair in some))
        wrong = next((part.checked for part in parts if part.checked.status is not Status.PASS), reduced)
        errors = {key: value for each in (reduced, *(p.checked for p in parts)) for key, value in each.errors.items()}
        return Measured(
            checked=Checked(status=wrong.status, failure=wrong.failure, detail=wrong.detail, errors=errors),
            kernels=tuple(kernel for part in parts for kernel in part.kernels),
            times=() if wrong.status is not Status.PASS else tuple(one for part in parts for one in part.times),
            samples_us={key: value for part in parts for key, value in part.samples_us.items()},
            model={key: value for part in parts for key, value in part.model.items()},
            seconds=time.monotonic() - began,
            device_s=sum(part.device_s for part in parts),
        )

    async def _case(self, task: Task, candidate: Candidate, case: Case, ready: Prepared, turn: _Turn) -> Measured:
        seen: dict[str, Any] = {}

        async def on_pending(said: dict[str, Any], out: dict[str, Blob]) -> dict[str, Any]:
            demand("measure", said)
            seen.update(said, out=out)
            seen["checked"] = await asyncio.to_thread(self._correct.verdict, ready, said, out)
            if seen["checked"].status is not Status.PASS:
                return {"go": False}
            await turn.taken(case.name)
            seen["began"] = time.monotonic()
            return {"go": True}

        job = {**ready.job, "op": "measure", "source": candidate.source, "time": True}
        try:
            reply, out = await self._measure.run(job, ready.inputs, limit_s=MEASURE_LIMIT_S, on_pending=on_pending)
        finally:
            turn.over(case.name)
        device_s = time.monotonic() - seen["began"] if "began" in seen else 0.0
        checked = await self._after(task, ready, seen, reply, out)
        if checked.status is not Status.PASS:
            return Measured(checked=checked, samples_us={}, model={}, device_s=device_s)
        samples = tuple(float(each) for each in reply["samples_us"])
        kernels, modelled, breakdown = await self._explained(task, candidate, case, seen)
        timed = CaseTime(
            case=case.name,
            weight=case.weight,
            time_us=statistics.median(samples),
            floor_us=modelled.floor_us if modelled else 0.0,
            bound=modelled.bound if modelled else "unknown",
        )
        return Measured(
            checked=checked,
            kernels=kernels,
            times=(timed,),
            samples_us={case.name: samples},
            model={case.name: breakdown},
            device_s=device_s,
        )

    async def _after(
        self, task: Task, ready: Prepared, seen: Mapping[str, Any], reply: Mapping[str, Any], out: Mapping[str, Blob]
    ) -> Checked:
        """What a child's end amounts to: a failure of its own, the check before timing, or the one after."""
        case = ready.expected.case
        if failed := failure_of(reply):
            return Checked(status=Status.FAIL, failure=failed[0], detail=f"case {case!r}: {failed[1]}", errors={})
        first: Checked | None = seen.get("checked")
        if first is not None and first.status is not Status.PASS:
            return first
        samples = reply.get("samples_us")
        if first is None or not isinstance(samples, list) or not samples or not all(map(_plausible, samples)):
            detail = f"case {case!r}: it answered without being timed"
            return Checked(status=Status.FAIL, failure=Failure.LAUNCH, detail=detail, errors={})
        if await asyncio.to_thread(_same, seen["out"], out):
            return first  # the very bytes that were compared before
        last = await asyncio.to_thread(self._correct.verdict, ready, {"changed": []}, out)
        return first if last.status is Status.PASS else last

    async def _explained(
        self, task: Task, candidate: Candidate, case: Case, seen: Mapping[str, Any]
    ) -> tuple[tuple[KernelFacts, ...], CaseTime | None, Json]:
        """Facts of the kernels that ran, with the census of the same launches where the interpreter can make one."""
        chosen = {each["kernel"]: each["index"] for each in seen["autotuned"]}
        job = {**self._modeller.job(task, candidate, case), "op": "census", "chosen": chosen}
        counted, _ = await self._interpret.run(job, limit_s=CENSUS_LIMIT_S)
        bare = merged(seen, None, case.name)
        if "failed" in counted:
            return bare, None, None
        try:
            kernels = merged(seen, counted, case.name)
        except Mismatch:
            return bare, None, None
        timed, breakdown = self._modeller.timed(kernels, case)
        return kernels, timed, breakdown

    def _proof(self, task: Task, candidate: Candidate, found: Measured, admitted: Admitted) -> Proof:
        return Proof(
            candidate=candidate.digest,
            task=task.digest,
            target=self._target.name,
            kernels=found.kernels,
            contract=contract_of(task, (*task.checks, *task.cases), self._seeds[:1], admitted),
            errors=dict(found.checked.errors),
            model=found.model,
            samples_us=found.samples_us,
            not_checked=(*NOT_CHECKED, *admitted.notes),
            versions=versions_of(self._measure),
            confinement="L0",
            judged_s=found.seconds,
            device_s=found.device_s,
        )


class _Turn:
    """Lets children be timed one at a time, and only when all of them have come to that point, or to their end."""

    def __init__(self, children: Sequence[str]) -> None:
        self._awaited = set(children)
        self._arrived = asyncio.Event()
        self._device = asyncio.Lock()
        self._holder = ""

    async def taken(self, child: str) -> None:
        """Wait for quiet, then hold the device."""
        self._arrive(child)
        await self._arrived.wait()
        await self._device.acquire()
        self._holder = child

    def over(self, child: str) -> None:
        """A child has ended, perhaps while it held the device."""
        if self._holder == child:
            self._holder = ""
            self._device.release()
        self._arrive(child)

    def _arrive(self, child: str) -> None:
        self._awaited.discard(child)
        if not self._awaited:
            self._arrived.set()


def _left_out(candidate: Candidate, modelled_us: float) -> Trial:
    """A candidate that was not measured because the model put enough others before it."""
    said = f"modelled {modelled_us:.1f} µs" if math.isfinite(modelled_us) else "it cannot be modelled"
    detail = f"not measured: {said}, and {MOST_MEASURED} others come first"
    return Trial(candidate=candidate.digest, label=candidate.label, status=None, detail=detail)


def _same(one: Mapping[str, Blob], other: Mapping[str, Blob]) -> bool:
    """Whether two sets of results are equal to the last bit."""

    def bits(blob: Blob) -> Any:
        return np.frombuffer(blob.data, dtype=np.uint8 if blob.nbytes % 8 else np.uint64)

    return one.keys() == other.keys() and all(
        (a.dtype, a.shape) == (b.dtype, b.shape) and np.array_equal(bits(a), bits(b))
        for a, b in ((one[name], other[name]) for name in one)
    )


def _plausible(sample: Any) -> bool:
    return isinstance(sample, int | float) and math.isfinite(sample) and sample > 0


async def _go(said: dict[str, Any], out: dict[str, Blob]) -> dict[str, Any]:
    return {"go": True}
