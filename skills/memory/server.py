"""The memory skill's tools. Thin: the fold and the choice are in `knowledge.memory`, the runs in `library`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from tilewright.harness import codec
from tilewright.harness.errors import Problem
from tilewright.harness.types import Choice, Context, Json, Move, Observation, Round, Standing, sha256
from tilewright.knowledge.cards import Cards, load
from tilewright.knowledge.memory import Offer, Switches, choose
from tilewright.skills.memory.finding import find
from tilewright.skills.memory.library import Library, head, load_as, number, texts
from tilewright.skills.memory.verify import disagreement, outcomes
from tilewright.skills.memory.wording import sentences

READS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
MOST_REFUSED = 50
MOST_BEHIND = 20
LIBRARY = Library()

T = TypeVar("T")

RunPath = Annotated[str, Field(description="A run directory.")]
Folders = Annotated[Sequence[str], Field(description="Folders with more cards, laid out as the project's knowledge/.")]


@dataclass(frozen=True, kw_only=True)  # no slots: the SDK reads defaults from the class
class Suggestion:
    """The next move, and why."""

    direction: str
    strategy: str
    choice: Choice
    observations: int
    """How many observations memory knew."""


def suggest(
    run: RunPath,
    context: Context,
    prefix: Annotated[list[str], Field(description="Directions of the accepted moves so far, oldest first.")],
    offered: Annotated[list[Offer], Field(description="What can be tried now, usually triage's hypotheses.")],
    seed: int,
    round: Annotated[int, Field(ge=1, description="The round that the move is for.")],
    budget: Annotated[int, Field(ge=1, description="Rounds planned in all; exploration shrinks towards its end.")],
    memory: str = "htg",
    policy: str = "softmax",
    switches: Annotated[Sequence[str], Field(description="no-prefix, no-position-weights, no-update, no-local")] = (),
    others: Annotated[Sequence[str], Field(description="Other run directories to learn from.")] = (),
    folders: Folders = (),
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


@dataclass(frozen=True, kw_only=True)  # no slots: the SDK reads defaults from the class
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


def explain(run: RunPath, round: Annotated[int, Field(ge=0)]) -> Explanation:
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
        why=sentences(done.choice),
        outcome=f"{done.decision}: {done.reason}" if done.reason else f"{done.decision}: {done.verdict.status}",
        choice=done.choice,
        behind=behind[:MOST_BEHIND],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An observation that memory must not learn from."""

    round: int
    why: str


@dataclass(frozen=True, kw_only=True)  # no slots: the SDK reads defaults from the class
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
    run: RunPath,
    observations: Annotated[
        Sequence[str], Field(description="SHA-256 of observations that the run must hold; empty: whatever it holds.")
    ] = (),
) -> Recorded:
    """Check that a run's committed observations agree with its rounds, verdicts and candidates.

    Memory has no store of its own: what a run's commits hold is what is learned. A result that no commit holds
    cannot be recorded.
    """
    try:
        at = head(Path(run))
        seen = _numbered(run, "/observation.json", Observation)
        rounds = _numbered(run, "/round.json", Round)
        sources = {number(name): sha256(text) for name, text in texts(run, "/candidate.py").items()}
        header = codec.load(dict[str, Json], texts(run, "run.json").get("run.json", b"{}"))
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
    for n, one in seen.items():
        if why := disagreement(one, rounds, sources, n, identity):
            refused.append(Refused(round=n, why=why))
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


@dataclass(frozen=True, kw_only=True)  # no slots: the SDK reads defaults from the class
class Hits:
    """Cards that match a query, best first."""

    hits: list[Found]
    standing: Standing = Standing.SUPPORTED
    note: str = ""


def search(
    query: Annotated[str, Field(min_length=1, max_length=500)],
    limit: Annotated[int, Field(ge=1, le=25)] = 5,
    folders: Folders = (),
) -> Hits:
    """Find direction and strategy cards by words."""
    try:
        cards = load(folders)
    except Problem as problem:
        raise _told(problem) from problem
    hits = [_found(cards, kind, name, score) for kind, name, score in find(cards, query, limit)]
    if not hits:
        return Hits(hits=[], standing=Standing.INCONCLUSIVE, note="no card shares a word with the query")
    return Hits(hits=hits)


def add(server: MCPServer) -> None:
    """Register the tools."""
    for tool, title in ((suggest, "Suggest"), (explain, "Explain"), (record, "Record"), (search, "Search")):
        server.tool(name=f"memory_{tool.__name__}", title=f"Memory: {title.lower()}", annotations=READS)(tool)


def _found(cards: Cards, kind: str, name: str, score: float) -> Found:
    if kind == "direction":
        d = cards.directions[name]
        return Found(
            kind=kind, id=name, title=d.title, direction=name, text=d.intent, verify="", rewrite=None, score=score
        )
    s = cards.strategies[name]
    return Found(
        kind=kind,
        id=name,
        title=s.title,
        direction=s.direction,
        text=s.edit,
        verify=" ".join(str(p) for p in (s.verify.fact, s.verify.relation, s.verify.value) if p is not None),
        rewrite=s.rewrite,
        score=score,
    )


def _round(run: str, n: int) -> Round:
    rounds = texts(run, f"/{n:04d}/round.json")
    if not rounds:
        raise Problem(f"{run} has no round {n}", "`tilewright log RUN` lists its rounds")
    ((name, text),) = rounds.items()
    return load_as(Round, text, f"{run}: {name}")


def _numbered(run: str, suffix: str, kind: type[T]) -> dict[int, T]:
    return {number(name): load_as(kind, text, f"{run}: {name}") for name, text in texts(run, suffix).items()}


def _told(problem: Problem) -> ToolError:
    return ToolError(f"{problem}; {problem.remedy}" if problem.remedy else str(problem))
