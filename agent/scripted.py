"""A planner that needs no knowledge: seeded, instant, for tests and benchmarks of the harness.

Its decisions depend on the history it is shown and on the seed, as a real planner's do, so a resumed run
that was shown another history decides differently and is found out.
"""

from __future__ import annotations

import random

from tilewright.harness.errors import NothingLeft
from tilewright.harness.roles import Ask, History
from tilewright.harness.types import (
    Candidate,
    Choice,
    Claim,
    Evidence,
    Json,
    Move,
    Proposal,
    Standing,
    Status,
    sha256,
)

DIRECTIONS = ("memory-access", "data-reuse", "parallel-mapping", "latency-hiding")


class ScriptedPlanner:
    """Draws a direction by the seed and the history, and appends a numbered comment to the best candidate."""

    def __init__(self, *, ask: bool = False, batch: int = 2, last: int | None = None) -> None:
        """`ask`: put one question to the skill `scripted` a round; `last`: the round after which nothing is left."""
        self.ask, self.batch, self.last = ask, batch, last

    async def propose(self, history: History, ask: Ask) -> Proposal:
        n = len(history.rounds)
        if self.last is not None and n > self.last:
            raise NothingLeft("the script ends here")
        if self.ask:
            await ask("scripted", "look", {"round": n})
        best = history.best
        seen = sha256("".join(f"{r.candidate}{r.decision}" for r in history.rounds[-8:]))
        draw = random.Random(f"{history.settings.seed}/{n}/{seen}")
        weights = [draw.random() for _ in DIRECTIONS]
        total = sum(weights)
        direction = draw.choices(DIRECTIONS, weights)[0]
        source = history.source(best.n)
        candidates = tuple(
            Candidate(source=f"{source}# {n}.{k} {draw.getrandbits(32):08x}\n", label=f"variant {k}")
            for k in range(draw.randint(1, self.batch))
        )
        passed = [r.n for r in history.rounds if r.verdict.status is Status.PASS]
        return Proposal(
            parent=draw.choice([best.n, best.n, best.n, draw.choice(passed)]),
            candidates=candidates,
            move=Move(direction=direction, strategy=f"{direction}/{draw.randint(1, 3)}"),
            hypothesis=f"{direction} was drawn",
            claim=Claim(fact="num_warps", relation="differs"),
            choice=Choice(
                distribution={d: w / total for d, w in zip(DIRECTIONS, weights, strict=True)},
                terms={"draw": weights},
                seed=history.settings.seed,
                policy="scripted",
            ),
        )


class EchoSkills:
    """Skills that answer every question with the question itself."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        """Tools asked of this object, in order: answers read from a journal are not among them."""

    async def ask(self, skill: str, tool: str, arguments: dict[str, Json]) -> Evidence:
        self.asked.append(f"{skill}.{tool}")
        return Evidence(
            skill=skill,
            tool=tool,
            question=arguments,
            answer=arguments,
            standing=Standing.SUPPORTED,
            key=sha256(f"{skill}.{tool} {arguments}"),
        )
