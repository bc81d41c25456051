"""What the compiler, the census and the cost model say of a candidate at full size. Nothing runs on a device."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.harness.codec import plain
from tilewright.harness.judge.correct import failure_of
from tilewright.harness.judge.cost import modelled_time
from tilewright.harness.judge.inputs import described
from tilewright.harness.judge.merge import Mismatch, merged
from tilewright.harness.judge.pool import Pool
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Modelled:
    """What the compiler and the cost model say of one candidate."""

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
        failed = next((part for part in parts if part.failure is not None), None)
        if failed is not None:
            return Modelled(failure=failed.failure, detail=failed.detail, model={}, seconds=time.monotonic() - began)
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
        compiled, _ = await self._compile.run({**job, "op": "compile"}, limit_s=COMPILE_LIMIT_S)
        if failed := failure_of(compiled, task):
            return Modelled(failure=failed[0], detail=f"case {case.name!r}: {failed[1]}", model={})
        chosen = {each["kernel"]: int(each["index"]) for each in compiled["autotuned"]}
        counted, _ = await self._interpret.run({**job, "op": "census", "chosen": chosen}, limit_s=CENSUS_LIMIT_S)
        if failed := failure_of(counted, task):
            return Modelled(failure=failed[0], detail=f"case {case.name!r}: {failed[1]}", model={})
        try:
            kernels = merged(compiled, counted, case.name)
        except Mismatch as error:
            return Modelled(failure=Failure.UNSUPPORTED, detail=f"case {case.name!r}: {error}", model={})
        timed, breakdown = self.timed(kernels, case, int(compiled["compulsory_bytes"]))
        return Modelled(
            kernels=kernels,
            times=(timed,),
            model={case.name: breakdown},
            chosen=chosen,
            not_checked=_unseen(kernels, job),
        )

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


def _unseen(kernels: Sequence[KernelFacts], job: Mapping[str, Any]) -> tuple[str, ...]:
    """What the interpreter cannot show of these kernels."""
    notes = []
    if {str(kernel.facts.get("dot_precision", "")) for kernel in kernels} & {"tf32", "tf32x3"}:
        notes.append("tf32 rounding (operands were truncated instead)")
    if any(arg.get("tensor", {}).get("dtype") == "bfloat16" for arg in job["args"]):
        notes.append("bf16 rounding (every operation was rounded to nearest instead)")
    return tuple(notes)
