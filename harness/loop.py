"""The loop: propose, judge, decide, commit. The only control flow of the project; read it top to bottom.

There is no state in memory that is not on disk: a run is resumed by calling `optimize` again. What a killed
process had paid for (a model's answer, a verdict) is in the journal and is read back instead of done again.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from tilewright.harness.claims import receipt
from tilewright.harness.decide import decide, speedup
from tilewright.harness.errors import NothingLeft, TaskProblem
from tilewright.harness.observe import observe
from tilewright.harness.roles import Judge, Once, Planner, Skills
from tilewright.harness.runs.state import Run
from tilewright.harness.types import (
    Candidate,
    Cost,
    Decision,
    Evidence,
    Json,
    Judged,
    Proposal,
    Record,
    Round,
    Status,
    Verdict,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A round begins."""

    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """The planner has chosen; judging begins."""

    n: int
    proposal: Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A round is committed."""

    round: Round


Event = Started | Proposed | Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A proposal with the evidence that was asked for on the way to it: what the journal stores."""

    proposal: Proposal
    evidence: tuple[Evidence, ...]
    planning_s: float


async def optimize(
    run: Run,
    planner: Planner,
    skills: Skills,
    judge: Judge,
    *,
    rounds: int,
    tell: Callable[[Event], None] = lambda event: None,
    stop: Callable[[], bool] = lambda: False,
) -> str:
    """Go on until there are `rounds` rounds beside the baseline; return why it ended, in one sentence.

    `stop` is asked between rounds (time limit, Ctrl-C). Raises TaskProblem when the baseline does not pass,
    MachineProblem when the machine fails: either way every finished round is committed.
    """
    if run.next > 0:
        require_sound(run)
    while run.next <= rounds:
        if stop():
            return "stopped"
        n = run.next
        tell(Started(n=n))
        with run.journal(n) as journal:
            if n == 0:
                record = await baseline(run, judge, journal.once)
            else:
                try:
                    record = await one_round(run, planner, skills, judge, journal.once, tell)
                except NothingLeft as end:
                    return str(end) or "the planner has nothing left to try"
            run.commit(record)
        tell(Finished(round=record.round))
        if n == 0:
            require_sound(run)
    return f"{rounds} rounds are done"


async def baseline(run: Run, judge: Judge, once: Once) -> Record:
    """Round 0: the starting kernel, judged like any candidate."""
    start = Candidate(source=run.task.start, label="start")
    began = time.monotonic()
    judged = await judge.judge(run.task, [start], once)
    sound = judged.verdict.status in (Status.PASS, Status.TASK_WEAK)
    done = Round(
        n=0,
        parent=None,
        verdict=judged.verdict,
        decision=Decision.KEPT if sound else Decision.DISCARDED,
        reason="the baseline" if sound else judged.verdict.detail,
        candidate=start.digest,
        label=start.label,
        ratio=1.0 if judged.verdict.times else None,
        trials=judged.trials,
        cost=Cost(judging_s=time.monotonic() - began, device_s=judged.proof.device_s, candidates=1),
    )
    return Record(round=done, source=start.source, proof=judged.proof)


def require_sound(run: Run) -> None:
    """Stop where the starting kernel itself does not pass: every later verdict would be against nothing."""
    verdict = run.rounds[0].verdict
    if verdict.status not in (Status.PASS, Status.TASK_WEAK):
        raise TaskProblem(
            f"the starting kernel does not pass ({verdict.status} {verdict.failure or ''}): {verdict.detail}",
            "mend the starting kernel, or its `inputs`, and start a new run",
            path=run.task.path,
        )


async def one_round(
    run: Run,
    planner: Planner,
    skills: Skills,
    judge: Judge,
    once: Once,
    tell: Callable[[Event], None],
) -> Record:
    """Once round: what to try, is it right, is it faster, did the edit take, is it kept."""
    n = run.next
    planned = await once("planned", Planned, lambda: plan(run, planner, skills, once))
    proposal = planned.proposal
    tell(Proposed(n=n, proposal=proposal))
    done = Round(
        n=n,
        parent=proposal.parent,
        verdict=Verdict(status=Status.FAIL, detail="no candidate was written"),
        move=proposal.move,
        hypothesis=proposal.hypothesis,
        claim=proposal.claim,
        choice=proposal.choice,
        evidence=tuple(e.key for e in planned.evidence),
        asked=proposal.asked,
        reached=proposal.reached,
        cost=Cost(planning_s=planned.planning_s),
        note=proposal.note,
    )
    if not proposal.candidates:
        return Record(round=done, evidence=planned.evidence)

    judged = await once("judged", Timed, lambda: timed(judge.judge(run.task, proposal.candidates, once)))
    done = settle(run, done, proposal, judged.answer, judged.seconds)
    chosen = judged.answer.candidate or proposal.candidates[0]
    return Record(
        round=done,
        source=chosen.source,
        trials={c.digest: c.source for c in proposal.candidates if c.digest != chosen.digest},
        proof=judged.answer.proof,
        evidence=planned.evidence,
        observation=observe(run.task, run.target, run.settings, run.rounds, done, run.fastest_us),
    )


async def plan(run: Run, planner: Planner, skills: Skills, once: Once) -> Planned:
    """Let the planner think; what it asks of the skills is journalled, and is the round's evidence."""
    asked: list[Evidence] = []
    began = time.monotonic()

    async def ask(skill: str, tool: str, arguments: dict[str, Json]) -> Evidence:
        key = f"ask/{len(asked)}/{skill}.{tool}"
        evidence = await once(key, Evidence, lambda: skills.ask(skill, tool, arguments))
        asked.append(evidence)
        return evidence

    proposal = await planner.propose(run, ask)
    return Planned(proposal=proposal, evidence=tuple(asked), planning_s=time.monotonic() - began)


def settle(run: Run, done: Round, proposal: Proposal, judged: Judged, judging_s: float) -> Round:
    """Fill in what the judge found, whether the claim came true, and whether the candidate is kept."""
    chosen = judged.candidate or proposal.candidates[0]
    parent = run.proof(proposal.parent)
    claim = chosen.claim or proposal.claim
    took, facts = receipt(claim, parent.kernels, judged.proof.kernels)
    decision, reason = decide(run.best.verdict, judged.verdict, took)
    return replace(
        done,
        verdict=judged.verdict,
        decision=decision,
        reason=reason,
        candidate=chosen.digest,
        label=chosen.label,
        claim=claim,
        receipt=took,
        trials=judged.trials,
        ratio=speedup(run.rounds[0].verdict, judged.verdict),
        note="; ".join(filter(None, (done.note, facts))),
        cost=replace(
            done.cost,
            judging_s=judging_s,
            device_s=judged.proof.device_s,
            candidates=len(proposal.candidates),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A judge's answer and how long it took to get it."""

    answer: Judged
    seconds: float


async def timed(judging: Awaitable[Judged]) -> Timed:
    """Await a judge and note the seconds."""
    began = time.monotonic()
    answer = await judging
    return Timed(answer=answer, seconds=time.monotonic() - began)
