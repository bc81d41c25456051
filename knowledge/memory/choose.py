"""The choice of the next move: first a direction by the score of docs/memory.md, then a strategy under it.

A pure function of the statistics, the context, the prefix, what is offered, and the seed: the same of each
gives the same choice, and the order in which strategies are offered does not matter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.harness.errors import Problem
from tilewright.harness.types import Choice, Context, Json, sha256
from tilewright.knowledge.cards import Cards, Prior
from tilewright.knowledge.memory.constants import (
    BONUS,
    PPM,
    REPEAT_PENALTY,
    TAU_END,
    TAU_START,
    THOMPSON_DRAWS,
    WINDOW,
)
from tilewright.knowledge.memory.estimate import Estimate, estimate, residual, retrieve
from tilewright.knowledge.memory.statistics import Statistics, outcomes_of, position_weights
from tilewright.knowledge.memory.switches import Switches


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A strategy that can be applied now."""

    direction: str
    strategy: str
    support: float | None = None
    """Triage's probability that it pays here; takes the place of the card's prior success. None: the card's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The next move, and why."""

    direction: str
    strategy: str
    choice: Choice


def choose(
    statistics: Statistics,
    context: Context,
    prefix: Sequence[str],
    offered: Sequence[Offer],
    *,
    cards: Cards,
    seed: int,
    n: int,
    budget: int,
    switches: Switches | None = None,
) -> Chosen:
    """Draw the next move among `offered`.

    `n` is the round that it is for and `budget` the number of rounds planned, which together set how much is
    explored. Raises Problem where nothing is offered, or something that no card describes.
    """
    how = switches or Switches()
    _check(offered, cards)
    if how.no_update or how.memory == "none":
        statistics = Statistics(by_position=statistics.by_position)
    drawn = int(sha256(f"{seed}/{n}")[:12], 16)
    draw = random.Random(drawn)
    tau = temperature(n, budget)
    names = _Names(cards, seed if how.memory == "shuffled" else None)
    terms: dict[str, Any] = {
        "memory": how.memory,
        "tau": tau,
        "observations": len(statistics),
        "set": statistics.digest,
    }
    if how.memory == "flat":
        return _flat(statistics, context, offered, cards, how, draw, drawn, tau, terms)
    scores, posteriors, terms["directions"], terms["prefix"] = _directions(
        statistics, context, prefix, offered, cards, how, names
    )
    if how.memory == "none":
        scores = dict.fromkeys(scores, 0.0)
    if how.policy == "thompson" and how.memory != "none":
        distribution, direction = _thompson(scores, posteriors, drawn)
    else:
        distribution = softmax(scores, tau)
        direction = pick(distribution, draw)
    local = [offer for offer in offered if offer.direction == direction]
    strategy, terms["strategies"] = _local(statistics, context, local, cards, how, names, draw)
    choice = Choice(distribution=_tidy(distribution), terms=_tidy(terms), seed=drawn, policy=how.policy)
    return Chosen(direction=direction, strategy=strategy, choice=choice)


def temperature(n: int, budget: int) -> float:
    """τ for round `n` of `budget`: from TAU_START in the first round, geometrically to TAU_END in the last."""
    progress = min(1.0, max(0.0, (n - 1) / (budget - 1))) if budget > 1 else 1.0
    return TAU_START * math.exp(progress * math.log(TAU_END / TAU_START))


def softmax(scores: Mapping[str, float], tau: float) -> dict[str, float]:
    """Probabilities proportional to exp(score/τ)."""
    top = max(scores.values())
    weights = {key: math.exp((score - top) / tau) for key, score in scores.items()}
    total = sum(weights.values())
    return {key: weight / total for key, weight in weights.items()}


def pick(distribution: Mapping[str, float], draw: random.Random) -> str:
    """One key, by its probability."""
    left = draw.random() * sum(distribution.values())
    for key, probability in distribution.items():
        left -= probability
        if left < 0:
            return key
    return list(distribution)[-1]


class _Names:
    """Under which name the lessons about a direction or strategy are looked up: its own, unless shuffled."""

    def __init__(self, cards: Cards, seed: int | None) -> None:
        self._of: dict[str, str] = {}
        if seed is not None:
            for kind, ids in (("direction", sorted(cards.directions)), ("strategy", sorted(cards.strategies))):
                order = random.Random(f"{kind}/{seed}").sample(ids, len(ids))
                # A cycle in random order: nobody keeps their own lessons.
                self._of.update(zip(order, [*order[1:], order[0]], strict=True))

    def __getitem__(self, name: str) -> str:
        return self._of.get(name, name)


def _check(offered: Sequence[Offer], cards: Cards) -> None:
    if not offered:
        raise Problem("nothing is offered to choose from", "ask triage first, and offer its hypotheses")
    for offer in offered:
        card = cards.strategies.get(offer.strategy)
        if card is None:
            raise Problem(f"no card describes the strategy {offer.strategy!r}", "offer strategies that triage names")
        if card.direction != offer.direction:
            raise Problem(
                f"strategy {card.id} belongs to {card.direction}, not to {offer.direction!r}", "correct the direction"
            )


def _directions(
    statistics: Statistics,
    context: Context,
    prefix: Sequence[str],
    offered: Sequence[Offer],
    cards: Cards,
    how: Switches,
    names: _Names,
) -> tuple[dict[str, float], dict[str, Estimate], dict[str, Any], dict[str, float]]:
    """Score, posterior and terms of every direction of which a strategy is offered, in the cards' order."""
    weights = {} if how.no_prefix else position_weights(prefix, by_position=statistics.by_position)
    recent = [] if how.no_prefix else list(prefix)[-WINDOW:]
    scores: dict[str, float] = {}
    posteriors: dict[str, Estimate] = {}
    terms: dict[str, Any] = {}
    for direction in cards.directions:
        offers = [offer for offer in offered if offer.direction == direction]
        if not offers:
            continue
        own = estimate(
            statistics, ("direction", names[direction]), context, _direction_prior(cards, direction, offers, context)
        )
        edges = {}
        for before, ppm in weights.items():
            known = cards.transitions.get((before, direction))
            prior = known.residual if known else 0.0
            extra = residual(statistics, names[before], names[direction], context, prior)
            edges[before] = {"weight": ppm / PPM, "residual": extra.value, "evidence": extra.weight}
        path = sum(edge["weight"] * edge["residual"] for edge in edges.values())
        repeats = recent.count(direction)
        scores[direction] = own.utility + path - REPEAT_PENALTY * repeats
        posteriors[direction] = own
        terms[direction] = {
            **_said(own),
            "edges": edges,
            "path": path,
            "repeats": repeats,
            "penalty": REPEAT_PENALTY * repeats,
            "score": scores[direction],
            "outcomes": dict(outcomes_of(statistics, ("direction", names[direction]))),
        }
    return scores, posteriors, terms, {before: ppm / PPM for before, ppm in weights.items()}


def _direction_prior(cards: Cards, direction: str, offers: Sequence[Offer], context: Context) -> Prior:
    """The card's prior, drawn half-way to the best supported strategy that is offered under it.

    The bottleneck and what triage has seen enter here and nowhere else: evidence moves a prior, which
    experience then outweighs, instead of being one more weight in the score.
    """
    card = cards.directions[direction]
    prior = card.prior_triggered if context.bottleneck in card.triggers else card.prior
    best = max((_strategy_prior(cards, offer) for offer in offers), key=lambda p: p.success * p.reward)
    return Prior(success=(prior.success + best.success) / 2, reward=(prior.reward + best.reward) / 2)


def _strategy_prior(cards: Cards, offer: Offer) -> Prior:
    prior = cards.strategies[offer.strategy].prior
    return prior if offer.support is None else Prior(success=min(1.0, max(0.0, offer.support)), reward=prior.reward)


def _thompson(
    scores: Mapping[str, float], posteriors: Mapping[str, Estimate], seed: int
) -> tuple[dict[str, float], str]:
    """How often each direction wins among draws from the posteriors, and the winner of the first draw."""
    # RandomState, not Generator: its stream is frozen for ever, so that a seed means the same in every numpy.
    stream = np.random.RandomState(seed % (1 << 32))
    names = list(scores)
    draws = np.empty((len(names), THOMPSON_DRAWS))
    for row, name in enumerate(names):
        p = posteriors[name]
        success = stream.beta(max(p.alpha, 1e-6), max(p.beta, 1e-6), THOMPSON_DRAWS)
        reward = stream.beta(max(p.reward_alpha, 1e-6), max(p.reward_beta, 1e-6), THOMPSON_DRAWS)
        draws[row] = success * reward * p.cost_ratio + (scores[name] - p.utility)
    winners = draws.argmax(axis=0)
    counts = np.bincount(winners, minlength=len(names))
    return {n: int(c) / THOMPSON_DRAWS for n, c in zip(names, counts, strict=True)}, names[int(winners[0])]


def _local(
    statistics: Statistics,
    context: Context,
    offers: Sequence[Offer],
    cards: Cards,
    how: Switches,
    names: _Names,
    draw: random.Random,
) -> tuple[str, dict[str, Any]]:
    """The strategy: posterior mean plus a bonus for what is little known; ties go to the cards' order."""
    order = [s for s in cards.strategies if any(offer.strategy == s for offer in offers)]
    if how.no_local:
        return draw.choice(order), {s: {} for s in order}
    if how.memory == "none":
        # Nothing is remembered, so what triage says decides alone.
        support = {offer.strategy: _strategy_prior(cards, offer).success for offer in offers}
        return max(order, key=lambda s: support[s]), {s: {"support": support[s]} for s in order}
    by_name = {offer.strategy: offer for offer in offers}
    posteriors = {
        s: estimate(statistics, ("strategy", names[s]), context, _strategy_prior(cards, by_name[s])) for s in order
    }
    total = sum(p.nearest for p in posteriors.values())
    terms: dict[str, Any] = {}
    for s, p in posteriors.items():
        bonus = BONUS * math.sqrt(math.log(math.e + total) / (1 + p.nearest))
        terms[s] = {**_said(p), "bonus": bonus, "score": p.utility + bonus}
    return max(order, key=lambda s: float(terms[s]["score"])), terms


def _flat(
    statistics: Statistics,
    context: Context,
    offered: Sequence[Offer],
    cards: Cards,
    how: Switches,
    draw: random.Random,
    drawn: int,
    tau: float,
    terms: dict[str, Any],
) -> Chosen:
    """Retrieval without a hierarchy: strategies compete directly by what similar past rounds earned."""
    by_name = {offer.strategy: offer for offer in offered}
    order = [s for s in cards.strategies if s in by_name]
    found = {s: retrieve(statistics, s, context, _strategy_prior(cards, by_name[s])) for s in order}
    scores = {s: r.value + (0.0 if how.no_local else BONUS / math.sqrt(1 + r.kernels)) for s, r in found.items()}
    distribution = softmax(scores, tau)
    strategy = pick(distribution, draw)
    terms["strategies"] = {
        s: {"value": r.value, "kernels": r.kernels, "place": list(r.place), "score": scores[s]}
        for s, r in found.items()
    }
    choice = Choice(distribution=_tidy(distribution), terms=_tidy(terms), seed=drawn, policy="softmax")
    return Chosen(direction=by_name[strategy].direction, strategy=strategy, choice=choice)


def _said(p: Estimate) -> dict[str, Json]:
    return {
        "success": p.success,
        "reward": p.reward,
        "cost_ratio": p.cost_ratio,
        "utility": p.utility,
        "kernels": p.kernels,
        "nearest": p.nearest,
    }


def _tidy(value: Any) -> Any:
    """Floats to nine digits: what a reader sees, and what is stored, does not hang on the last bit."""
    if isinstance(value, float):
        return round(value, 9)
    if isinstance(value, dict):
        return {key: _tidy(item) for key, item in value.items()}
    return value
