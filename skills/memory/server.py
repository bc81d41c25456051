"""The memory skill's tools. Thin: the fold and the choice are in `knowledge.memory`, the runs in `library`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from tilewright.harness import codec
from tilewright.harness.errors import Problem
from tilewright.harness.types import Choice, Context, Json, Move, Round, Standing, sha256
from tilewright.knowledge.cards import load
from tilewright.knowledge.memory import Offer, Switches, choose
from tilewright.skills.memory.finding import find
from tilewright.skills.memory.library import MAIN, NUMBER, Library, head, round_folder, texts
from tilewright.skills.memory.verify import disagreement, outcomes

READS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
MOST_REFUSED = 50
MOST_BEHIND = 20
LIBRARY = Library()

Path = Annotated[str, Field(description="A run directory.")]
Folders = Annotated[list[str], Field(description="Folders with more cards, laid out as the project's knowledge/.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """The next move, and why."""

    direction: str
    strategy: str
    choice: Choice
    observations: int
    """How many observations memory knew."""


def suggest(
    run: Path,
    context: Context,
    prefix: Annotated[list[str], Field(description="Directions of the accepted moves so far, oldest first.")],
    offered: Annotated[list[Offer], Field(description="What can be tried now, usually triage's hypotheses.")],
    seed: int,
    round: Annotated[int, Field(ge=1, description="The round that the move is for.")],
    budget: Annotated[int, Field(ge=1, description="Rounds planned in all; exploration shrinks towards its end.")],
    memory: str = "htg",
    policy: str = "softmax",
    switches: Annotated[list[str], Field(description="no-prefix, no-position-weights, no-update, no-local")] = [],  # noqa: B006 - pydantic copies it
    others: Annotated[list[str], Field(description="Other run directories to learn from.")] = [],  # noqa: B006
    folders: Folders = [],  # noqa: B006
) -> Suggestion:
    """Draw the next direction and strategy among those offered, from the outcomes of earlier rounds and priors.

    The answer holds the whole distribution and every term of the score. The same seed, round and committed
    observations give the same suggestion.
    """
    try:
        how = Switches.of(memory, policy, switches)
        statistics = LIBRARY.statistics([run, *others], by_position=not how.no_position_weights)
        chosen = choose(
            statistics,
            context,
            prefix,
            offered,
            cards=load(folders),
            seed=seed,
            n=round,
            budget=budget,
            switches=how,
        )
    except Problem as problem:
        raise _told(problem) from problem
    return Suggestion(
        direction=chosen.direction, strategy=chosen.strategy, choice=chosen.choice, observations=len(statistics)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One observation in short."""

    run: str
    round: int
    strategy: str
    outcome: str
    reward_ppm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a round chose what it chose."""

    round: int
    move: Move
    why: list[str]
    """Sentences, most probable direction first."""
    outcome: str
    choice: Choice
    behind: list[Seen]
    """This run's earlier observations of the chosen direction, newest first."""


def explain(run: Path, round: Annotated[int, Field(ge=0)]) -> Explanation:
    """Say why a finished round of a run chose its direction and strategy, in words and numbers, and what came of it."""
    try:
        done = _round(run, round)
        earlier = [o for o in LIBRARY.observations(run) if o.round < round]
    except Problem as problem:
        raise _told(problem) from problem
    if done.move is None or done.choice is None:
        raise ToolError(f"round {round} made no choice: {done.note or done.reason or 'it is the baseline'}")
    behind = [
        Seen(run=o.run, round=o.round, strategy=o.strategy, outcome=o.outcome, reward_ppm=o.reward_ppm)
        for o in reversed(earlier)
        if o.direction == done.move.direction
    ]
    return Explanation(
        round=round,
        move=done.move,
        why=_sentences(done.choice),
        outcome=f"{done.decision}: {done.reason}" if done.reason else f"{done.decision}: {done.verdict.status}",
        choice=done.choice,
        behind=behind[:MOST_BEHIND],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An observation that memory must not learn from."""

    round: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What can be learned from a run."""

    run: str
    commit: str
    learned: int
    outcomes: dict[str, int]
    refused: list[Refused]
    standing: Standing
    """`supported` when every observation agrees with its round, `refuted` when one does not."""
    note: str = ""


def record(
    run: Path,
    observations: Annotated[
        list[str], Field(description="SHA-256 of observations that the run must hold; empty: whatever it holds.")
    ] = [],  # noqa: B006
) -> Recorded:
    """Check that a run's committed observations agree with its rounds, verdicts and candidates.

    Memory has no store of its own: what a run's commits hold is what is learned. A result that no commit holds
    cannot be recorded.
    """
    try:
        at = head(_resolved(run))
        seen = {int(m[1]): o for o in LIBRARY.observations(run) if (m := NUMBER.match(f"{round_folder(o.round)}/"))}
        rounds = {_number(name): codec.load(Round, text) for name, text in texts(run, "/round.json").items()}
        sources = {_number(n): sha256(t) for n, t in texts(run, "/candidate.py").items() if NUMBER.match(n)}
        header = codec.load(dict[str, Json], texts(run, "run.json")["run.json"])
    except Problem as problem:
        raise _told(problem) from problem
    held = {o.digest for o in seen.values()}
    if unknown := [digest for digest in observations if digest not in held]:
        raise ToolError(
            f"no commit of {run} holds the observation {unknown[0][:80]}; only what the judge has found and a round "
            "has committed can be recorded"
        )
    settings = header.get("settings")
    identity = str(settings.get("run", "")) if isinstance(settings, dict) else ""
    refused = []
    for number, one in seen.items():
        if why := disagreement(one, rounds, sources, number, identity):
            refused.append(Refused(round=number, why=why))
    bad = {r.round for r in refused}
    good = [o for n, o in seen.items() if n not in bad]
    return Recorded(
        run=identity or run,
        commit=at,
        learned=len(good),
        outcomes=outcomes(good),
        refused=refused[:MOST_REFUSED],
        standing=Standing.REFUTED if refused else Standing.SUPPORTED,
        note=f"{len(refused)} observations disagree with their rounds; `tilewright fsck` says more" if refused else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A card that matches."""

    kind: str
    """`direction` or `strategy`."""
    id: str
    title: str
    direction: str
    text: str
    """The edit, or the direction's intent."""
    verify: str
    rewrite: str | None
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """Cards that match a query, best first."""

    hits: list[Found]
    standing: Standing = Standing.SUPPORTED
    note: str = field(default="")


def search(
    query: Annotated[str, Field(min_length=1, max_length=500)],
    limit: Annotated[int, Field(ge=1, le=25)] = 5,
    folders: Folders = [],  # noqa: B006
) -> Hits:
    """Find direction and strategy cards by words."""
    try:
        cards = load(folders)
    except Problem as problem:
        raise _told(problem) from problem
    hits = []
    for kind, name, score in find(cards, query, limit):
        if kind == "direction":
            d = cards.directions[name]
            hits.append(
                Found(kind=kind, id=name, title=d.title, direction=name, text=d.intent, verify="", rewrite=None, score=score)
            )
            continue
        s = cards.strategies[name]
        verify = " ".join(str(p) for p in (s.verify.fact, s.verify.relation, s.verify.value) if p is not None)
        hits.append(
            Found(
                kind=kind,
                id=name,
                title=s.title,
                direction=s.direction,
                text=s.edit,
                verify=verify,
                rewrite=s.rewrite,
                score=score,
            )
        )
    if not hits:
        return Hits(hits=[], standing=Standing.INCONCLUSIVE, note="no card shares a word with the query")
    return Hits(hits=hits)


def add(server: MCPServer) -> None:
    """Register the tools."""
    for tool, title in ((suggest, "Suggest"), (explain, "Explain"), (record, "Record"), (search, "Search")):
        server.tool(name=f"memory_{tool.__name__}", title=f"Memory: {title.lower()}", annotations=READS)(tool)


def _told(problem: Problem) -> ToolError:
    return ToolError(f"{problem}; {problem.remedy}" if problem.remedy else str(problem))
