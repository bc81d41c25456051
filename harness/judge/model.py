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
        kernels = merged(compiled, counted, case.name)
        timed, breakdown = self.time(kernels, case)
        return Modelled(
            kernels=kernels,
            times=(timed,),
            model={case.name: breakdown},
            chosen=chosen,
            not_checked=_unseen(kernels),
        )

    def time(self, kernels: Sequence[KernelFacts], case: Case) -> tuple[CaseTime, Json]:
        """The modelled time of one case, and its terms."""
        return modelled_time(self._target, kernels, case=case.name, weight=case.weight)

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


def merged(compiled: Mapping[str, Any], counted: Mapping[str, Any], case: str) -> tuple[KernelFacts, ...]:
    """Facts of the compiler joined by those of the census, one a distinct launch, in the order of first launch.

    The census sees the same launches but torch's own operations; those two orders are walked side by side.
    """
    counts: dict[int, Mapping[str, Any]] = {}
    own = [i for i in compiled["order"] if not compiled["kernels"][i]["facts"].get("torch_op")]
    for index, seen in zip(own, counted.get("order", []), strict=False):
        entry, launch = compiled["kernels"][index], counted["launches"][seen]
        if launch["kernel"] == entry["kernel"] and list(launch["grid"]) == list(entry["grid"]):
            counts.setdefault(index, launch["counts"])
    return tuple(
        KernelFacts(
            kernel=entry["kernel"],
            case=case,
            grid=(int(entry["grid"][0]), int(entry["grid"][1]), int(entry["grid"][2])),
            launches=int(entry["launches"]),
            facts={**entry["facts"], **counts.get(index, {})},
            digest=entry["digest"],
        )
        for index, entry in enumerate(compiled["kernels"])
    )


def _unseen(kernels: Sequence[KernelFacts]) -> tuple[str, ...]:
    """What the interpreter cannot show of these kernels."""
    precisions = {str(kernel.facts.get("dot_precision", "")) for kernel in kernels}
    return ("tf32 rounding (operands were truncated instead)",) if precisions & {"tf32", "tf32x3"} else ()
