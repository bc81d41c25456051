"""What both judges say of a candidate, from what they found: verdict, trial, and the contract that it was held to."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from tilewright.harness.judge.correct import Admitted, Checked
from tilewright.harness.judge.pool import Pool
from tilewright.harness.types import Candidate, Case, CaseTime, How, Json, Status, Task, Trial, Verdict


def verdict_of(checked: Checked, admitted: Admitted, *, correct: How, timed: How, times: Sequence[CaseTime]) -> Verdict:
    """The verdict on a candidate whose results were compared. Times count for right candidates alone."""
    if checked.status is not Status.PASS:
        return Verdict(status=checked.status, failure=checked.failure, detail=checked.detail, correct=correct)
    weak = admitted.weaknesses
    return Verdict(
        status=Status.TASK_WEAK if weak else Status.PASS,
        detail=f"the task would also accept {'; '.join(weak)}" if weak else "",
        correct=correct,
        timed=timed,
        times=tuple(times),
    )


def trial_of(candidate: Candidate, verdict: Verdict | None, time_us: float | None) -> Trial:
    """A candidate's verdict in short; without one it was not judged to the end."""
    if verdict is None:
        return Trial(candidate=candidate.digest, label=candidate.label, status=None, time_us=time_us)
    return Trial(
        candidate=candidate.digest,
        label=candidate.label,
        status=verdict.status,
        failure=verdict.failure,
        detail=verdict.detail,
        time_us=time_us,
    )


def contract_of(task: Task, checks: Sequence[Case], seeds: Sequence[int], admitted: Admitted) -> Json:
    """The contract as a proof records it."""
    return {
        "rule": "every element, float64 reference: docs/contract.md",
        "precision": task.precision,
        "tolerance": task.tolerance,
        "seeds": list(seeds),
        "distributions": ["as the task gives"],
        "checks": [case.name for case in checks],
        "weaknesses": list(admitted.weaknesses),
    }


def versions_of(pool: Pool) -> dict[str, str]:
    """What the workers ran, and what judged them."""
    return {**pool.versions, "tilewright": version("tilewright")}
