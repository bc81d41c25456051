"""What the compiler, the census and the cost model say of a candidate at full size. Nothing runs on a device."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.harness.codec import plain
from tilewright.harness.judge.correct import failure_of, task_problem
from tilewright.harness.judge.cost import modelled_time
from tilewright.harness.judge.inputs import described
from tilewright.harness.judge.merge import Mismatch, merged
from tilewright.harness.judge.pool import Pool
from tilewright.harness.judge.replies import TASK
from tilewright.harness.tasks.kernelbench import substitute
from tilewright.harness.tasks.spec import resolve
from tilewright.harness.types import (
    Candidate,
    Case,
    CaseTime,
    Failure,
    Json,
    KernelFacts,
    Status,
    Target,
    Task,
    Verdict,
)

COMPILE_LIMIT_S = 90.0
"""A 256 x 256 tile on 4 warps spills for 39 s; nothing that is worth having takes longer."""
CENSUS_LIMIT_S = 60.0
WRITTEN_SHARE = 0.9
"""Of the bytes of its results, what a candidate's launches must be seen to write; counts are of a sample."""
IDLE = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self, *args, **named):
        super().__init__()

    def forward(self, *args):
        return args
"""
"""A candidate for any KernelBench task that cannot fail by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Modelled:
    """What the compiler and the cost model say of one candidate."""

    status: Status = Status.PASS
    failure: Failure | None = None
    detail: str = ""
    kernels: tuple[KernelFacts, ...] = ()
    times: tuple[CaseTime, ...] = ()
    model: dict[str, Json]
    """Per case, each term of the modelled time."""
    chosen: dict[str, int] = field(default_factory=dict)
    """Autotuned kernel → index of the configuration that stands for it."""
    not_checked: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def time_us(self) -> float:
        """Weighted geometric mean over the cases; infinite where it has no time."""
        found = Verdict(status=Status.PASS, times=self.times).time_us
        return float("inf") if found is None else found


class Modeller:
    """Compiles and counts in two pools, for the device that `target` describes."""

    def __init__(self, compiling: Pool, interpreting: Pool, target: Target) -> None:
        self._compile, self._interpret, self._target = compiling, interpreting, target

    async def model(self, task: Task, candidate: Candidate) -> Modelled:
        """Compile and count every case at full size, and make times of it."""
        began = time.monotonic()
        parts = await asyncio.gather(*(self._case(task, candidate, case) for case in task.cases))
        failed = next((part for part in parts if part.status is not Status.PASS), None)
        if failed is not None:
            return replace(failed, seconds=time.monotonic() - began)
        return Modelled(
            kernels=tuple(kernel for part in parts for kernel in part.kernels),
            times=tuple(one for part in parts for one in part.times),
            model={key: value for part in parts for key, value in part.model.items()},
            chosen={kernel: index for part in parts for kernel, index in part.chosen.items()},
            not_checked=tuple(dict.fromkeys(note for part in parts for note in part.not_checked)),
            seconds=time.monotonic() - began,
        )

    async def _case(self, task: Task, candidate: Candidate, case: Case) -> Modelled:
        job = self.job(task, candidate, case)
        compiled, _ = await self._compile.run({**job, "op": "compile"}, limit_s=COMPILE_LIMIT_S, most_bytes=0)
        if failed := await self._failure(compiled, task, job):
            return _refused(case, *failed)
        chosen = {each["kernel"]: int(each["index"]) for each in compiled["autotuned"]}
        counted, _ = await self._interpret.run(
            {**job, "op": "census", "chosen": chosen}, limit_s=CENSUS_LIMIT_S, most_bytes=0
        )
        if failed := await self._failure(counted, task, job):
            return _refused(case, *failed)
        try:
            kernels = merged(compiled, counted, case.name)
        except Mismatch as error:
            return _refused(case, Failure.UNSUPPORTED, str(error))
        if doubt := _unwritten(kernels, task, int(compiled["result_bytes"])):
            return _refused(case, None, doubt)
        timed, breakdown = self.timed(kernels, case, int(compiled["compulsory_bytes"]))
        return Modelled(
            kernels=kernels,
            times=(timed,),
            model={case.name: breakdown},
            chosen=chosen,
            not_checked=_unseen(kernels, job),
        )

    async def _failure(
        self, reply: Mapping[str, Any], task: Task, job: Mapping[str, Any]
    ) -> tuple[Failure, str] | None:
        """The candidate's failure. What it blames on the task counts where an idle candidate meets it as well."""
        said = reply.get("failed")
        if said and said["failure"] == TASK and task.kind == "kernelbench":
            idle, _ = await self._compile.run({**job, "op": "compile", "source": IDLE}, limit_s=COMPILE_LIMIT_S)
            if "failed" in idle and idle["failed"]["failure"] == TASK:
                raise task_problem(task, idle["failed"])
        return failure_of(reply)

    def timed(
        self, kernels: Sequence[KernelFacts], case: Case, compulsory_bytes: int | None = None
    ) -> tuple[CaseTime, Json]:
        """The modelled time of one case, and its terms. `compulsory_bytes`, inputs and outputs once, make the floor."""
        return modelled_time(
            self._target, kernels, case=case.name, weight=case.weight, compulsory_bytes=compulsory_bytes
        )

    def job(self, task: Task, candidate: Candidate, case: Case) -> dict[str, Any]:
        """What the compiler and the census need to know of a candidate in one case."""
        job: dict[str, Any] = {
            "kind": task.kind,
            "source": candidate.source,
            "entry": task.entry,
            "mutates": list(task.mutates),
            "case": case.name,
            "target": plain(self._target),
        }
        if task.kind == "kernelbench":
            return {**job, "args": [], "task_source": substitute(task.source, case.bindings)}
        return {**job, "args": described(resolve(task, case))}


def _refused(case: Case, failure: Failure | None, detail: str) -> Modelled:
    """No time for one case; without a failure it is suspect."""
    status = Status.SUSPECT if failure is None else Status.FAIL
    return Modelled(status=status, failure=failure, detail=f"case {case.name!r}: {detail}", model={})


def _unwritten(kernels: Sequence[KernelFacts], task: Task, result_bytes: int) -> str:
    """Why the launches cannot have made the results; empty where they can. Arguments may be overwritten in part."""
    written = sum(kernel.launches * int(kernel.facts.get("store_bytes", 0)) for kernel in kernels)
    if written < WRITTEN_SHARE * result_bytes:
        return f"not-written: results of {result_bytes} bytes are returned, and its launches write {written}"
    if task.mutates and not result_bytes and not written:
        return f"not-written: nothing is returned, and no launch writes to {', '.join(task.mutates)}"
    return "" if kernels else "not-executed: nothing is launched at full size"


def _unseen(kernels: Sequence[KernelFacts], job: Mapping[str, Any]) -> tuple[str, ...]:
    """What the interpreter cannot show of these kernels."""
    notes = []
    if {str(kernel.facts.get("dot_precision", "")) for kernel in kernels} & {"tf32", "tf32x3"}:
        notes.append("tf32 rounding (operands were truncated instead)")
    if any(arg.get("tensor", {}).get("dtype") == "bfloat16" for arg in job["args"]):
        notes.append("bf16 rounding (every operation was rounded to nearest instead)")
    return tuple(notes)
