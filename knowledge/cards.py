"""Directions, strategies, transitions and signs: the project's knowledge of optimising, as data.

Read from TOML beside this file and from any folders of the user's. Everything is checked at load, so that a
card that is loaded can be used: identifiers exist, facts and relations are known, priors are probabilities.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from tilewright.harness.errors import KnowledgeProblem
from tilewright.harness.types import Claim
from tilewright.knowledge.reading import Table, read
from tilewright.knowledge.rewrites import NAMES
from tilewright.knowledge.vocabulary import FACTS, RELATIONS, parse

OWN = Path(__file__).parent
ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
BOTTLENECKS = ("dram", "l2", "lsu", "fp32", "tensor", "latency", "launch")
KINDS = ("source", "symptom", "ir")
START = "start"
"""Stands for the beginning of a lineage where a transition names its first direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is believed before any experience."""

    success: float
    """Probability that a round of this is correct and faster."""
    reward: float
    """Mean share of the remaining logarithmic headroom that it closes when it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """Something that can be seen on a kernel and speaks for or against a strategy."""

    id: str
    kind: str
    """`source`: seen in the syntax; `symptom`: computed from facts; `ir`: diagnosed in the compiler's IR."""
    meaning: str
    holds: str = ""
    """For a symptom: the expression over facts and ceilings that is true when it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """A coarse goal."""

    id: str
    title: str
    intent: str
    aims: tuple[str, ...]
    triggers: tuple[str, ...]
    """Bottlenecks that name this direction."""
    risks: str
    prior: Prior
    prior_triggered: Prior
    """The prior where the context's bottleneck is one of the triggers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """An edit that can be applied, under one direction."""

    id: str
    direction: str
    title: str
    needs: tuple[str, ...]
    """Signs that must hold; one that is known not to hold rules the strategy out."""
    when: tuple[str, ...]
    """Signs that speak for it."""
    unless: tuple[str, ...]
    """Signs that rule it out."""
    edit: str
    preconditions: str
    expected: str
    """What should get better."""
    verify: Claim
    """The fact that must appear in what the compiler makes of the edit."""
    risks: str
    prior: Prior
    source: str
    """Where this knowledge comes from."""
    reopens_when: tuple[str, ...]
    """Signs whose new appearance makes it worth trying again on a candidate on which it failed."""
    bound: str = ""
    """Expression for the most that the mechanism can speed a kernel up, from its facts."""
    rewrite: str | None = None
    """Name of the executable rewrite that carries it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionPrior:
    """What is believed of going from one direction to another, beyond what the second is worth by itself."""

    before: str
    after: str
    residual: float
    """Reward per step above (or below) the second direction's own."""
    pays_when: str
    why: str
    risks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """All cards, by identifier, in the order of their files."""

    directions: Mapping[str, Direction]
    strategies: Mapping[str, Strategy]
    transitions: Mapping[tuple[str, str], TransitionPrior]
    signs: Mapping[str, Sign]
    files: Mapping[str, str] = field(default_factory=dict)
    """Where each strategy was read."""


def load(folders: Sequence[Path | str] = ()) -> Cards:
    """The project's cards and those in `folders`, each laid out as `knowledge/` is; every part is optional.

    A folder adds to what came before it. Raises KnowledgeProblem with file, key, what was expected and what
    was found; an identifier that is already taken is one of those problems.
    """
    return _load(tuple(Path(folder) for folder in folders))


@functools.lru_cache(maxsize=8)
def _load(folders: tuple[Path, ...]) -> Cards:
    for folder in folders:
        if not folder.is_dir():
            raise KnowledgeProblem(f"{folder}: expected a folder of cards, found none", "check the path")
    roots = (OWN, *folders)
    signs = _collect(_each(roots, "signs.toml", "sign"), _sign)
    directions = _collect(_each(roots, "directions.toml", "direction"), _direction)
    files: dict[str, str] = {}
    rows = [
        row
        for root in roots
        for file in sorted((root / "strategies").glob("*.toml"))
        for row in _rows(file, "strategy")
    ]
    strategies = _collect(rows, lambda row: _strategy(row, directions, signs), files)
    transitions: dict[tuple[str, str], TransitionPrior] = {}
    for row in _each(roots, "transitions.toml", "transition"):
        edge = _transition(row, directions)
        if (edge.before, edge.after) in transitions:
            raise row.problem("after", "one transition for each pair", f"a second {edge.before} → {edge.after}")
        transitions[edge.before, edge.after] = edge
    return Cards(directions=directions, strategies=strategies, transitions=transitions, signs=signs, files=files)


class _Named(Protocol):
    @property
    def id(self) -> str: ...


Card = TypeVar("Card", bound=_Named)


def _each(roots: Sequence[Path], name: str, key: str) -> list[Table]:
    return [row for root in roots if (root / name).is_file() for row in _rows(root / name, key)]


def _rows(file: Path, key: str) -> list[Table]:
    whole = read(file)
    rows = whole.tables(key)
    whole.done()
    return rows


def _collect(
    rows: Sequence[Table], card: Callable[[Table], Card], files: dict[str, str] | None = None
) -> dict[str, Card]:
    found: dict[str, Card] = {}
    seen: dict[str, Path] = {}
    for row in rows:
        one = card(row)
        row.done()
        if not ID.fullmatch(one.id):
            raise row.problem("id", "lower-case words joined by hyphens", repr(one.id))
        if one.id in found:
            raise row.problem("id", "an identifier of its own", f"{one.id!r}, which {seen[one.id]} has too")
        found[one.id], seen[one.id] = one, row.file
    if files is not None:
        files.update({key: str(file) for key, file in seen.items()})
    return found


def _sign(row: Table) -> Sign:
    kind = row.word("kind", KINDS)
    holds = row.text("holds") if kind == "symptom" else ""
    if holds:
        _expression(row, "holds", holds)
    return Sign(id=row.text("id"), kind=kind, meaning=row.text("meaning"), holds=holds)


def _direction(row: Table) -> Direction:
    prior = _prior(row.table("prior"))
    return Direction(
        id=row.text("id"),
        title=row.text("title"),
        intent=row.text("intent"),
        aims=row.texts("aims"),
        triggers=row.words("triggers", BOTTLENECKS),
        risks=row.text("risks"),
        prior=prior,
        prior_triggered=_prior(row.table("prior_triggered")) if row.has("prior_triggered") else prior,
    )


def _strategy(row: Table, directions: Mapping[str, Direction], signs: Mapping[str, Sign]) -> Strategy:
    bound = row.text("bound", "")
    if bound:
        _expression(row, "bound", bound)
    return Strategy(
        id=row.text("id"),
        direction=row.word("direction", directions),
        title=row.text("title"),
        needs=row.words("needs", signs, ()),
        when=row.words("when", signs),
        unless=row.words("unless", signs, ()),
        edit=row.text("edit"),
        preconditions=row.text("preconditions"),
        expected=row.text("expected"),
        verify=_claim(row.table("verify")),
        risks=row.text("risks"),
        prior=_prior(row.table("prior")),
        source=row.text("source"),
        reopens_when=row.words("reopens_when", signs, ()),
        bound=bound,
        rewrite=row.word("rewrite", NAMES) if row.has("rewrite") else None,
    )


def _transition(row: Table, directions: Mapping[str, Direction]) -> TransitionPrior:
    edge = TransitionPrior(
        before=row.word("before", [START, *directions]),
        after=row.word("after", directions),
        residual=row.number("residual", -1, 1),
        pays_when=row.text("pays_when"),
        why=row.text("why"),
        risks=row.text("risks"),
    )
    row.done()
    return edge


def _prior(row: Table) -> Prior:
    prior = Prior(success=row.number("success", 0, 1), reward=row.number("reward", 0, 1))
    row.done()
    return prior


def _claim(row: Table) -> Claim:
    fact, relation = row.word("fact", sorted(FACTS)), row.word("relation", RELATIONS)
    value = row.scalar("value")
    row.done()
    if (relation in RELATIONS[:3]) is (value is None):
        wanted = f"a value for {relation}" if value is None else f"no value, since {relation} compares with the parent"
        raise row.problem("value", wanted, repr(value))
    return Claim(fact=fact, relation=relation, value=value)


def _expression(row: Table, key: str, text: str) -> None:
    try:
        parse(text)
    except ValueError as failure:
        raise row.problem(key, "an expression over facts", f"{text!r} ({failure})") from None
