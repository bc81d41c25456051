"""A judge that runs nothing: a verdict follows from the hash of a candidate. For tests of the harness."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tilewright.harness.roles import Once
from tilewright.harness.types import (
    Candidate,
    CaseTime,
    Failure,
    How,
    Judged,
    KernelFacts,
    Proof,
    Status,
    Task,
    Trial,
    Verdict,
    sha256,
)


class ScriptedJudge:
    """Says PASS to three candidates in four, with times that get lower as a source gets longer, on the whole."""

    def __init__(self, target: str = "scripted") -> None:
        self.target = target
        self.judged: list[str] = []
        """Candidates judged by this object, in order: those read from a journal are not among them."""

    async def judge(self, task: Task, candidates: Sequence[Candidate], once: Once) -> Judged:
        answers = [await once(f"judge/{c.digest}", Judged, partial(self._one, task, c)) for c in candidates]
        best = min(answers, key=lambda a: (a.verdict.status is not Status.PASS, a.verdict.time_us or 0.0))
        return Judged(
            candidate=best.candidate,
            verdict=best.verdict,
            proof=best.proof,
            trials=tuple(trial for a in answers for trial in a.trials),
        )

    async def _one(self, task: Task, candidate: Candidate) -> Judged:
        self.judged.append(candidate.digest)
        draw = int(sha256(candidate.source + task.digest)[:8], 16) / 2**32
        start = candidate.source == task.start
        passed = start or draw > 0.25
        times = (CaseTime(case="only", weight=1.0, time_us=100.0, floor_us=1.0, bound="dram"),)
        if not start:
            growth = len(candidate.source) - len(task.start)
            time_us = 100.0 * (0.6 + 0.8 * draw) * 0.97 ** (growth / 16)
            times = (CaseTime(case="only", weight=1.0, time_us=time_us, floor_us=1.0, bound="dram"),)
        verdict = Verdict(
            status=Status.PASS if passed else Status.FAIL,
            failure=None if passed else Failure.WRONG,
            detail="" if passed else "scripted to be wrong",
            correct=How.INTERPRETER,
            timed=How.MODELLED if passed else How.NOT_CHECKED,
            times=times if passed else (),
        )
        facts = KernelFacts(
            kernel="scripted",
            case="only",
            grid=(1, 1, 1),
            launches=1,
            facts={"num_warps": int(draw * 1e6)},
            digest=sha256(candidate.source),
        )
        proof = Proof(candidate=candidate.digest, task=task.digest, target=self.target, kernels=(facts,))
        trial = Trial(
            candidate=candidate.digest,
            label=candidate.label,
            status=verdict.status,
            failure=verdict.failure,
            detail=verdict.detail,
            time_us=verdict.time_us,
        )
        return Judged(candidate=candidate, verdict=verdict, proof=proof, trials=(trial,))
