"""The planner that needs no model: triage says what applies, memory chooses, an executable rewrite writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilewright.harness import codec
from tilewright.harness.errors import NothingLeft, SkillProblem
from tilewright.harness.roles import Ask, History
from tilewright.harness.types import (
    Candidate,
    Choice,
    Decision,
    Evidence,
    Json,
    Move,
    Proposal,
    Round,
    Standing,
    Status,
)
from tilewright.knowledge.rewrites import Edit, Situation, launched, rewrites

BATCH = 12
"""Candidates of one round. Larger batches find little more and make a round long on two cores."""
PARENTS = 3
"""How many rounds' candidates are looked at for something to try: the best, then the most promising others."""


class BuiltinPlanner:
    """Climbs no higher than L1: triage, then memory, then a rewrite."""

    def __init__(self, *, switches: Sequence[str] = (), budget: int = 10) -> None:
        """`switches`: ablations of memory (`no-prefix`, …); `budget`: rounds planned, which anneal exploration."""
        self.switches, self.budget = tuple(switches), budget

    async def propose(self, history: History, ask: Ask) -> Proposal:
        """Try the best candidate first; where nothing new applies to it, the most promising other one."""
        unwritten: set[str] = set()
        looked: list[int] = []
        for parent in parents(history):
            proposal = await self._on(parent, history, ask, unwritten)
            if proposal is not None:
                return proposal
            looked.append(parent.n)
        more = f"; {', '.join(sorted(unwritten))} may help, but need someone to write them" if unwritten else ""
        raise NothingLeft(f"nothing is left that can be written here on the candidates of rounds {looked}{more}")

    async def _on(self, parent: Round, history: History, ask: Ask, unwritten: set[str]) -> Proposal | None:
        source = history.source(parent.n)
        proof = history.proof(parent.n)
        situation = Situation(target=history.target, kernels=proof.kernels, cases=history.task.cases)
        judged = {trial.candidate for r in history.rounds for trial in r.trials}
        triage = answer_of(
            await ask(
                "triage",
                "rank",
                {
                    "source": source,
                    "entry": history.task.entry,
                    "target": history.target.name,
                    "kernels": [codec.plain(k) for k in proof.kernels],
                    "cases": [codec.plain(c) for c in history.task.cases],
                    "history": tried(history, parent),
                },
            )
        )
        fresh: dict[str, tuple[dict[str, Any], list[Edit]]] = {}
        for hypothesis in triage["hypotheses"]:
            new = new_edits(hypothesis["rewrite"], source, situation, judged)
            if new:
                fresh[hypothesis["strategy"]] = hypothesis, new
            elif hypothesis["rewrite"] is None:
                unwritten.add(hypothesis["strategy"])
        if not fresh:
            return None
        suggestion = await self._choose(parent, history, ask, [h for h, _ in fresh.values()])
        hypothesis, chosen = fresh[suggestion["strategy"]]
        return Proposal(
            parent=parent.n,
            candidates=tuple(Candidate(source=e.source, label=e.label, claim=e.claim) for e in chosen[:BATCH]),
            move=Move(direction=suggestion["direction"], strategy=suggestion["strategy"]),
            hypothesis=hypothesis["expected"],
            claim=chosen[0].claim,
            choice=choice_of(suggestion["choice"]),
            note=f"{len(chosen)} variants; risk: {chosen[0].risk}",
        )

    async def _choose(
        self, parent: Round, history: History, ask: Ask, hypotheses: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Ask memory for a direction and a strategy among those that can write something new."""
        return answer_of(
            await ask(
                "memory",
                "suggest",
                {
                    "run": history.path,
                    "context": codec.plain(history.context(parent.n)),
                    "prefix": list(history.prefix(parent.n)),
                    "offered": [
                        {"direction": h["direction"], "strategy": h["strategy"], "support": h["support"]}
                        for h in hypotheses
                    ],
                    "seed": history.settings.seed,
                    "round": len(history.rounds),
                    "budget": self.budget,
                    "memory": history.settings.memory,
                    "policy": history.settings.policy,
                    "switches": list(self.switches),
                },
            )
        )


def parents(history: History) -> Iterator[Round]:
    """The rounds whose candidate may be changed next: the best, then other correct ones, fastest first.

    A correct candidate that was not kept may be the step before one that pays (an enabling edit).
    """
    best = history.best
    yield best
    others = [
        r
        for r in history.rounds
        if r.verdict.status is Status.PASS and r.candidate != best.candidate and r.verdict.time_us is not None
    ]
    yield from sorted(others, key=lambda r: (r.verdict.time_us or 0.0, r.n))[: PARENTS - 1]


def tried(history: History, parent: Round) -> list[Json]:
    """What was already tried on this candidate, for triage to leave out."""
    same = {r.n for r in history.rounds if r.candidate == parent.candidate}
    return [
        {
            "strategy": r.move.strategy,
            "outcome": "kept" if r.decision is Decision.KEPT else str(r.verdict.failure or r.verdict.status),
            "candidate": parent.candidate,
        }
        for r in history.rounds
        if r.move is not None and r.parent in same
    ]


def new_edits(rewrite: str | None, source: str, situation: Situation, judged: set[str]) -> list[Edit]:
    """The edits whose result this run has not judged yet."""
    if rewrite is None:
        return []
    return [
        e
        for e in launched(rewrites()[rewrite].look(source, situation).edits, situation)
        if Candidate(source=e.source).digest not in judged
    ]


def answer_of(evidence: Evidence) -> dict[str, Any]:
    """The answer of a skill that this planner cannot do without."""
    if evidence.standing is Standing.UNAVAILABLE or not isinstance(evidence.answer, dict):
        raise SkillProblem(
            f"the skill {evidence.skill} did not answer {evidence.tool}: {evidence.note}",
            "run `tilewright doctor`; the builtin planner needs the skills triage and memory",
        )
    return evidence.answer


def choice_of(choice: Mapping[str, Any]) -> Choice:
    """Memory's distribution as the round records it."""
    return Choice(
        distribution=choice["distribution"], terms=choice["terms"], seed=choice["seed"], policy=choice["policy"]
    )
