"""Is a candidate right? The reference's worker says what must come out, another worker runs the candidate.

Both judges use this one, with different runners: Triton's interpreter at reduced sizes, or the device at full size.
Neither worker compares anything: that is done here, by `contract`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.harness.codec import plain
from tilewright.harness.errors import TaskProblem
from tilewright.harness.judge.admission import weaknesses
from tilewright.harness.judge.contract import Expected, check, expect
from tilewright.harness.judge.inputs import described, drawn
from tilewright.harness.judge.paths import Ran
from tilewright.harness.judge.pool import Pool
from tilewright.harness.judge.replies import TASK
from tilewright.harness.tasks.kernelbench import substitute
from tilewright.harness.tasks.spec import resolve
from tilewright.harness.types import Candidate, Case, Failure, Json, Status, Target, Task
from tilewright.harness.worker.wire import Blob

REFERENCE_LIMIT_S = 120.0
AGAIN = "again:"
"""Before the names of the second call's arguments and results."""
HIDDEN = frozenset(["task_source", "seed", "case", "lower", "on_device"])
"""Of the reference's job, what the one that runs a candidate is not told."""
SLACK, SLACK_BYTES = 4, 64 << 20
"""How much larger than the right results wrong ones may be and still be compared."""
KEPT_CONTRACTS = 64
"""Contracts held in memory: those of the task in hand. The oldest go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """What the check of a task itself brought."""

    weaknesses: tuple[str, ...]
    """Wrong results that the task would accept; empty for a sound task."""
    notes: tuple[str, ...]
    """What of the contract could not be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the check of one candidate brought."""

    status: Status
    failure: Failure | None = None
    detail: str = ""
    errors: dict[str, Json]
    """Per case and seed, per output: the largest error as a share of what was allowed."""
    not_checked: tuple[str, ...] = ()
    """What the instrument could not see, beyond what it never sees."""
    ran: tuple[Ran, ...] = ()
    """What each call ran, where the interpreter made it."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that is needed to try candidates on one set of inputs."""

    job: dict[str, Any]
    """The runner's job but for the source."""
    inputs: dict[str, Blob]
    expected: Expected
    task_source: str
    """The task's file at this case's sizes: the reference."""


def failure_of(reply: Mapping[str, Any]) -> tuple[Failure, str] | None:
    """The failure that a worker reports about a candidate. One that it blames on the task is its own: see `model`."""
    if "failed" not in reply:
        return None
    said = reply["failed"]
    if said["failure"] == TASK:
        return Failure.LAUNCH, f"it blames the task, which works without it: {said['detail']}"
    trace = said.get("trace", "").strip().splitlines()
    last = f" ({trace[-1].strip()})" if trace else ""
    return Failure(said["failure"]), said["detail"] + last


def task_problem(task: Task, said: Mapping[str, Any]) -> TaskProblem:
    """The problem that a worker found with the task's own code."""
    return TaskProblem(said["detail"], "mend the task's file", path=task.path, line=said.get("line"))


class Correctness:
    """Checks candidates of one task after another. `op` is the runner's operation: `interpret` or `measure`."""

    def __init__(
        self,
        reference: Pool,
        runner: Pool,
        op: str,
        target: Target | None,
        *,
        limit_s: float,
        on_device: bool = False,
    ) -> None:
        self._reference, self._runner, self._op = reference, runner, op
        self._target: Json = None if target is None else plain(target)
        self._limit_s, self._on_device = limit_s, on_device
        self._prepared: dict[tuple[str, str, int], asyncio.Task[Prepared]] = {}

    async def admit(self, task: Task, cases: Sequence[Case], seeds: tuple[int, int]) -> Admitted:
        """Whether wrong results pass, tried on the case with the largest results."""
        sets = [await self.prepare(task, case, seeds[0]) for case in cases]
        case, one = max(
            zip(cases, sets, strict=True), key=lambda pair: sum(o.native.nbytes for o in pair[1].expected.outputs)
        )
        other = await self.prepare(task, case, seeds[1])
        found = await asyncio.to_thread(weaknesses, one.expected, other.expected, one.inputs)
        notes = dict.fromkeys(note for each in sets for note in each.expected.notes)
        return Admitted(weaknesses=tuple(found), notes=tuple(notes))

    async def check(
        self,
        task: Task,
        candidate: Candidate,
        cases: Sequence[Case],
        seeds: Sequence[int],
        chosen: Mapping[str, int] | None = None,
    ) -> Checked:
        """Try a candidate on every case and seed. The first trial goes ahead: most wrong candidates fail it.

        In the interpreter the first trial calls it twice in one process, for two seeds, the second values lying in
        the first one's memory: what it kept from one call must not show in the other.
        `chosen` says which configuration of an autotuned kernel stands for it.
        """
        trials: list[tuple[Case, tuple[int, ...]]] = [(case, (seed,)) for case in cases for seed in seeds]
        if self._op == "interpret" and len(seeds) > 1:
            trials[:2] = [(cases[0], tuple(seeds[:2]))]
        done = [await self._try(task, candidate, *trials[0], chosen)]
        if done[0].status is Status.PASS:
            done += await asyncio.gather(*(self._try(task, candidate, *trial, chosen) for trial in trials[1:]))
        errors = {key: value for each in done for key, value in each.errors.items()}
        notes = tuple(dict.fromkeys(note for each in done for note in each.not_checked))
        worst = next((each for each in done if each.status is not Status.PASS), done[0])
        return Checked(
            status=worst.status,
            failure=worst.failure,
            detail=worst.detail,
            errors=errors,
            not_checked=notes,
            ran=tuple(one for each in done for one in each.ran),
        )

    async def _try(
        self, task: Task, candidate: Candidate, case: Case, seeds: Sequence[int], chosen: Mapping[str, int] | None
    ) -> Checked:
        ready, *more = [await self.prepare(task, case, seed) for seed in seeds]
        job = {**ready.job, "op": self._op, "source": candidate.source, "chosen": dict(chosen or {})}
        given = dict(ready.inputs)
        for second in more:
            job["again"] = second.job
            given |= {AGAIN + name: blob for name, blob in second.inputs.items()}
        right = sum(output.native.nbytes for each in (ready, *more) for output in each.expected.outputs)
        reply, out = await self._runner.run(job, given, limit_s=self._limit_s, most_bytes=SLACK * right + SLACK_BYTES)
        first = {name: blob for name, blob in out.items() if not name.startswith(AGAIN)}
        checked = await asyncio.to_thread(self.verdict, ready, reply, first)
        for second in more:
            if checked.status is Status.PASS:
                later = {name.removeprefix(AGAIN): blob for name, blob in out.items() if name.startswith(AGAIN)}
                then = await asyncio.to_thread(self.verdict, second, reply, later)
                detail = f"called twice in one process: {then.detail}" if then.detail else ""
                checked = replace(then, detail=detail, errors={**checked.errors, **then.errors})
        return checked

    def verdict(self, ready: Prepared, reply: Mapping[str, Any], out: Mapping[str, Blob]) -> Checked:
        """What a runner's reply amounts to."""
        key = f"{ready.expected.case}, seed {ready.expected.seed}"
        if failed := failure_of(reply):
            failure, detail = failed
            detail = f"case {ready.expected.case!r}: {detail}"
            return Checked(status=Status.FAIL, failure=failure, detail=detail, errors={})
        if reply["changed"]:
            names = ", ".join(reply["changed"])
            detail = f"input-mutation: it overwrites {names}, which the task does not list under `mutates`"
            return Checked(status=Status.SUSPECT, detail=detail, errors={})
        if reply.get("rewritten"):
            names = ", ".join(reply["rewritten"])
            detail = f"case {ready.expected.case!r}: a second call overwrites {names} of the first"
            return Checked(status=Status.FAIL, failure=Failure.WRONG, detail=detail, errors={})
        finding = check(ready.expected, out)
        errors: dict[str, Json] = {key: finding.errors}
        if finding.failure is not None:
            return Checked(status=Status.FAIL, failure=finding.failure, detail=finding.detail, errors=errors)
        tuned = [each for each in reply.get("autotuned", []) if each["configs"] > 1]
        notes = tuple(f"configurations of {each['kernel']} other than {each['config']}" for each in tuned)
        ran = reply.get("ran")
        ways = () if ran is None else (Ran(kernels=tuple(ran["kernels"]), operations=tuple(ran["operations"])),)
        return Checked(status=Status.PASS, errors=errors, not_checked=notes, ran=ways)

    async def prepare(self, task: Task, case: Case, seed: int, *, lower: bool = True) -> Prepared:
        """The inputs of a case under a seed and what must come of them. Raises TaskProblem where nothing can.

        `lower` asks for the run in lower precision as well, which only `admit` needs: large cases go without.
        """
        key = (task.digest, case.name, seed)
        if key not in self._prepared:
            while len(self._prepared) >= KEPT_CONTRACTS:
                self._prepared.pop(next(iter(self._prepared)))
            self._prepared[key] = asyncio.create_task(self._prepare(task, case, seed, lower))
        try:
            return await asyncio.shield(self._prepared[key])
        except Exception:
            self._prepared.pop(key, None)
            raise

    async def _prepare(self, task: Task, case: Case, seed: int, lower: bool) -> Prepared:
        job: dict[str, Any] = {
            "op": "reference",
            "kind": task.kind,
            "entry": task.entry,
            "seed": seed,
            "precision": task.precision,
            "mutates": list(task.mutates),
            "case": case.name,
            "target": self._target,
            "on_device": self._on_device,
            "lower": lower,
        }
        inputs: dict[str, Blob] = {}
        if task.kind == "kernelbench":
            job |= {"task_source": substitute(task.source, case.bindings), "args": []}
        else:
            resolved = resolve(task, case)
            try:
                inputs = await asyncio.to_thread(drawn, resolved, seed=seed, case=case.name)
            except MemoryError:
                raise TaskProblem(
                    f"the tensors of {case.name!r} do not fit into this machine's memory",
                    "give smaller sizes in `check`" if not self._on_device else "give smaller sizes in `cases`",
                    path=task.path,
                ) from None
            job |= {"task_source": task.source, "args": described(resolved)}
        reply, out = await self._reference.run(job, inputs, limit_s=REFERENCE_LIMIT_S)
        if "failed" in reply:
            raise task_problem(task, reply["failed"])
        if task.kind == "kernelbench":
            job |= {"args": reply["args"], "init": reply["init"]}
            inputs = {name: blob for name, blob in out.items() if name.startswith(("in", "state:"))}
        expected = await asyncio.to_thread(
            expect,
            reply,
            out,
            case=case.name,
            seed=seed,
            longest=max((n for blob in inputs.values() for n in blob.shape), default=1),
            precision=task.precision,
            tolerance=task.tolerance,
        )
        runner = {key: value for key, value in job.items() if key not in HIDDEN}
        runner |= {"mutates": list(task.mutates), "track": reply["track"]}
        return Prepared(runner, inputs, expected, job["task_source"])
