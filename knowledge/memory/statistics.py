"""The fold: what a set of observations amounts to, as integer sums that are the same in any order.

`Statistics` holds a set of observations, identified by their hashes, and sums over them. Adding one costs the
same however many there are; adding one twice changes nothing; merging is union. Nothing is ever edited.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from types import MappingProxyType
from typing import TypeVar

from tilewright.harness.types import Context, Observation
from tilewright.knowledge.cards import START
from tilewright.knowledge.memory.constants import DECAY, PPM, START_WEIGHT, WINDOW

K = TypeVar("K")
V = TypeVar("V")

OUTCOMES = ("faster", "slower", "wrong", "compile", "flagged", "nothing")
SILENT = frozenset({"flagged"})
"""Outcomes that are counted and teach nothing: nobody knows yet whether they are good or bad."""

Node = tuple[str, str]
"""`("direction", id)` or `("strategy", id)`."""
Share = tuple[int, int, int, int, int, int]
"""What one (kernel, strategy, context) adds to `Sums`, field by field."""
Place = tuple[str, ...]
"""A context, as coarse as it is short: (time), (time, family), (…, bottleneck), (…, target family)."""


def target_family(target: str) -> str:
    """What targets share lessons: `cuda:90` → `cuda:9x`, `hip:gfx942` → `hip:gfx94x`."""
    return target[:-1] + "x" if target[-1:].isalnum() and ":" in target else target


@functools.lru_cache(maxsize=4096)
def places(context: Context) -> tuple[Place, ...]:
    """The back-off chain of a context, coarsest first. Measured and modelled times never share a place."""
    whole = (context.time, context.family, context.bottleneck, target_family(context.target))
    return tuple(whole[:n] for n in range(1, len(whole) + 1))


def position_weights(prefix: Iterable[str], *, by_position: bool = True) -> Mapping[str, int]:
    """How much each direction of a prefix counts, in parts per million; they sum to one (rounding aside).

    The last `WINDOW` moves weigh exp(-(i-1)/DECAY), newest first; START always keeps `START_WEIGHT`, and
    has everything when there is nothing else. `by_position=False` weighs the moves alike.
    """
    return _weights(tuple(prefix)[-WINDOW:], by_position)


@functools.lru_cache(maxsize=16384)
def _weights(recent: tuple[str, ...], by_position: bool) -> Mapping[str, int]:
    raw = [_power(i) if by_position else PPM for i in range(len(recent))]
    start = round(START_WEIGHT * PPM) if recent else PPM
    weights = {START: start}
    for direction, weight in zip(reversed(recent), raw, strict=True):
        weights[direction] = weights.get(direction, 0) + weight * (PPM - start) // sum(raw)
    return MappingProxyType(weights)


def _power(i: int) -> int:
    # math.exp may differ in its last bit between C libraries; six digits do not.
    return round(math.exp(-i / DECAY) * PPM)


@dataclass(slots=True)
class Sums:
    """Sums over kernels: each (kernel, strategy, context) counts once, whatever number of rounds it had."""

    kernels: int = 0
    success_ppm: int = 0
    """Sum of success rates."""
    paying: int = 0
    """Kernels with at least one success."""
    reward_ppm: int = 0
    """Sum, over those, of the mean reward of their successes."""
    cost_ms: int = 0
    step_ppm: int = 0
    """Sum of the mean reward of a round, failures included as zero."""

    def grow(self, before: Share, after: Share) -> None:
        """Take one group's former share out and its new one in."""
        self.kernels += after[0] - before[0]
        self.success_ppm += after[1] - before[1]
        self.paying += after[2] - before[2]
        self.reward_ppm += after[3] - before[3]
        self.cost_ms += after[4] - before[4]
        self.step_ppm += after[5] - before[5]


@dataclass(slots=True)
class EdgeSums:
    """Weighted sums over kernels for one transition."""

    weight_ppm: int = 0
    reward_ppm: int = 0
    """Sum of weight times reward per step."""


@dataclass(slots=True)
class _Group:
    """All rounds of one (kernel, strategy, context)."""

    rounds: int = 0
    successes: int = 0
    reward: int = 0
    cost: int = 0

    def share(self) -> Share:
        """What the group adds to `Sums`: integers that depend on its totals alone."""
        if not self.rounds:
            return (0, 0, 0, 0, 0, 0)
        paying = min(self.successes, 1)
        mean = self.reward // self.successes if self.successes else 0
        rate = PPM * self.successes // self.rounds
        return (1, rate, paying, mean, self.cost // self.rounds, self.reward // self.rounds)


@dataclass(slots=True)
class _EdgeGroup:
    rounds: int = 0
    weight: int = 0
    weighted: int = 0

    def share(self) -> tuple[int, int]:
        if not self.rounds:
            return (0, 0)
        return (self.weight // self.rounds, self.weighted // (self.rounds * PPM))


class Statistics:
    """A set of observations and what it amounts to."""

    def __init__(self, observations: Iterable[Observation] = (), *, by_position: bool = True) -> None:
        """`by_position=False`: edges are updated with equal weights (an ablation)."""
        self.by_position = by_position
        self._seen: dict[str, Observation] = {}
        self._groups: dict[tuple[str, ...], _Group] = {}
        self._edge_groups: dict[tuple[str, ...], _EdgeGroup] = {}
        self.nodes: dict[tuple[Node, Place], Sums] = {}
        self.edges: dict[tuple[str, str, Place], EdgeSums] = {}
        self.all: dict[Place, Sums] = {}
        """Over all strategies: what an average step costs."""
        self.outcomes: dict[tuple[Node, str], int] = {}
        self._mark = 0
        self.update(observations)

    def __len__(self) -> int:
        return len(self._seen)

    def __contains__(self, digest: str) -> bool:
        return digest in self._seen

    def __iter__(self) -> Iterator[Observation]:
        return iter(self._seen.values())

    @property
    def digest(self) -> str:
        """Identity of the set of observations, independent of order."""
        return f"{self._mark:064x}"

    def update(self, observations: Iterable[Observation]) -> int:
        """Add those that are new; return how many were. Order does not matter, nor does repetition."""
        return sum(self.add(one) for one in observations)

    def add(self, observation: Observation) -> bool:
        """Add one observation; False if it is in the set already."""
        digest = observation.digest
        if digest in self._seen:
            return False
        self._seen[digest] = observation
        # A sum of hashes identifies a set whatever the order, and can be kept up to date in one step.
        self._mark = (self._mark + int(digest, 16)) % (1 << 256)
        for node in _nodes(observation):
            key = (node, observation.outcome)
            self.outcomes[key] = self.outcomes.get(key, 0) + 1
        if observation.outcome not in SILENT:
            self._learn(observation)
        return True

    def merged(self, other: Statistics) -> Statistics:
        """Union of two sets. Neither is changed."""
        both = Statistics(self, by_position=self.by_position)
        both.update(other)
        return both

    def without(self, run: str) -> Statistics:
        """What is left when one run is not believed."""
        return Statistics((o for o in self if o.run != run), by_position=self.by_position)

    def behind(self, node: Node, place: Place = ()) -> list[Observation]:
        """The observations behind a statistic, by run and round. Looks at all of them: for explaining."""
        chosen = [o for o in self if node in _nodes(o) and places(o.context)[-1][: len(place)] == place]
        return sorted(chosen, key=lambda o: (o.run, o.round))

    def snapshot(self) -> bytes:
        """Every sum, in canonical order: equal for equal sets of observations, on any machine."""
        rows: dict[str, object] = {
            "observations": self.digest,
            "nodes": sorted(([*node, *place], list(astuple(s))) for (node, place), s in self.nodes.items()),
            "edges": sorted(([a, b, *place], list(astuple(s))) for (a, b, place), s in self.edges.items()),
            "outcomes": sorted(([*node, outcome], n) for (node, outcome), n in self.outcomes.items()),
        }
        return json.dumps(rows, separators=(",", ":")).encode()

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the snapshot."""
        return hashlib.sha256(self.snapshot()).hexdigest()

    def _learn(self, o: Observation) -> None:
        success = o.outcome == "faster"
        reward = o.reward_ppm if success else 0
        c = o.context
        chain = places(c)
        key = (o.kernel, o.direction, o.strategy, c.family, c.bottleneck, c.dtype, c.target, c.shape, c.triton, c.time)
        group = _of(self._groups, key, _Group)
        before = group.share()
        group.rounds += 1
        group.successes += success
        group.reward += reward
        group.cost += o.cost_ms
        after = group.share()
        if after != before:
            for place in chain:
                _of(self.all, place, Sums).grow(before, after)
                for node in _nodes(o):
                    _of(self.nodes, (node, place), Sums).grow(before, after)
        for source, weight in position_weights(o.prefix, by_position=self.by_position).items():
            edge = _of(self._edge_groups, (source, *key), _EdgeGroup)
            was = edge.share()
            edge.rounds += 1
            edge.weight += weight
            edge.weighted += weight * reward
            now = edge.share()
            for place in chain if now != was else ():
                sums = _of(self.edges, (source, o.direction, place), EdgeSums)
                sums.weight_ppm += now[0] - was[0]
                sums.reward_ppm += now[1] - was[1]


def fold(observations: Iterable[Observation]) -> Statistics:
    """Statistics of a set of observations."""
    return Statistics(observations)


def refolded(observations: Sequence[Observation]) -> list[str]:
    """What differs when observations are folded backwards, or in two halves that are merged; nothing should."""
    whole, half = fold(observations), len(observations) // 2
    others = {
        "backwards": fold(reversed(observations)),
        "in halves": fold(observations[half:]).merged(fold(observations[:half])),
    }
    return [
        f"folded {how}, the observations amount to something else"
        for how, other in others.items()
        if other.fingerprint != whole.fingerprint
    ]


def _nodes(o: Observation) -> tuple[Node, Node]:
    return ("direction", o.direction), ("strategy", o.strategy)


def _of(table: dict[K, V], key: K, make: Callable[[], V]) -> V:
    """The entry, made when it is missing; unlike `setdefault`, nothing is made in vain (this is the hot path)."""
    found = table.get(key)
    if found is None:
        found = table[key] = make()
    return found


def outcomes_of(statistics: Statistics, node: Node) -> Mapping[str, int]:
    """How often each outcome was seen at a node, in all contexts."""
    return {o: n for o in OUTCOMES if (n := statistics.outcomes.get((node, o), 0))}
