"""What a node or a transition is worth in a context: the posterior, backed off from the specific to the general.

For a node two quantities are estimated: the probability of success P and the mean reward given success E. Each
level of the chain (all contexts, same family, same bottleneck, same target family) is the prior of the next,
computed without the next one's data, so that no observation counts twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.harness.types import Context
from tilewright.knowledge.cards import Prior
from tilewright.knowledge.memory.constants import (
    COST_RANGE,
    FLAT_ENOUGH,
    FLAT_KAPPA,
    KAPPA_COST,
    KAPPA_EDGE,
    KAPPA_REWARD,
    KAPPA_SUCCESS,
    PPM,
)
from tilewright.knowledge.memory.statistics import EdgeSums, Node, Place, Statistics, Sums, places

NOTHING = Sums()
NO_EDGE = EdgeSums()
MEASURED = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The posterior of one node in one context."""

    success: float
    reward: float
    alpha: float
    """Beta parameters of the success probability."""
    beta: float
    reward_alpha: float
    """Beta parameters of the mean reward given success."""
    reward_beta: float
    kernels: int
    """Kernels behind it, in all contexts of the same kind of time."""
    nearest: int
    """Of those, in this very context."""
    cost_ratio: float = 1.0
    """An average step's cost over this node's; above 1 it is cheap."""

    @property
    def utility(self) -> float:
        """Expected reward per step, for a step of average cost."""
        return self.success * self.reward * self.cost_ratio


def estimate(statistics: Statistics, node: Node, context: Context, prior: Prior) -> Estimate:
    """The posterior of `node` in `context`, from `prior` through the back-off chain."""
    chain = places(context)
    levels = [statistics.nodes.get((node, place), NOTHING) for place in chain]
    success, reward = prior.success, prior.reward
    alpha = beta = reward_alpha = reward_beta = 0.0
    for n, sums in enumerate(levels):
        finer = levels[n + 1] if n + 1 < len(levels) else NOTHING
        count = sums.kernels - finer.kernels
        good = (sums.success_ppm - finer.success_ppm) / PPM
        alpha, beta = KAPPA_SUCCESS * success + good, KAPPA_SUCCESS * (1 - success) + count - good
        success = alpha / (alpha + beta)
        paid = sums.paying - finer.paying
        gain = (sums.reward_ppm - finer.reward_ppm) / PPM
        reward_alpha, reward_beta = KAPPA_REWARD * reward + gain, KAPPA_REWARD * (1 - reward) + paid - gain
        reward = reward_alpha / (reward_alpha + reward_beta)
    return Estimate(
        success=success,
        reward=reward,
        alpha=alpha,
        beta=beta,
        reward_alpha=reward_alpha,
        reward_beta=reward_beta,
        kernels=levels[0].kernels,
        nearest=levels[-1].kernels,
        cost_ratio=_cost_ratio(statistics, chain[0], levels[0]) if context.time == MEASURED else 1.0,
    )


def _cost_ratio(statistics: Statistics, place: Place, node: Sums) -> float:
    """An average step's device time over the node's, shrunken towards 1 and bounded.

    Only measured contexts use it: elsewhere no device is paid for, and the time of judging says more about
    the machine than about the step.
    """
    whole = statistics.all.get(place, NOTHING)
    if not whole.cost_ms:
        return 1.0
    average = whole.cost_ms / whole.kernels
    own = (KAPPA_COST * average + node.cost_ms) / (KAPPA_COST + node.kernels)
    return min(COST_RANGE, max(1 / COST_RANGE, average / own))


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """What coming from one direction adds to another's own utility."""

    value: float
    weight: float
    """Evidence behind it, in kernels weighted by position."""


def residual(statistics: Statistics, before: str, after: str, context: Context, prior: float) -> Residual:
    """Reward per step of `after` following `before`, beyond what `after` gets on average in the same places.

    Shrunken towards `prior` (0 where no card says otherwise): without evidence a transition says nothing.
    """
    chain = places(context)
    edges = [statistics.edges.get((before, after, place), NO_EDGE) for place in chain]
    nodes = [statistics.nodes.get((("direction", after), place), NOTHING) for place in chain]
    value = prior
    for n, edge in enumerate(edges):
        last = n + 1 == len(chain)
        finer, fine_node = (NO_EDGE, NOTHING) if last else (edges[n + 1], nodes[n + 1])
        weight = (edge.weight_ppm - finer.weight_ppm) / PPM
        count = nodes[n].kernels - fine_node.kernels
        if not count or weight <= 0:
            continue
        own = _reward_per_step(nodes[n], fine_node) / count
        extra = (edge.reward_ppm - finer.reward_ppm) / PPM - weight * own
        value = (KAPPA_EDGE * value + extra) / (KAPPA_EDGE + weight)
    return Residual(value=value, weight=edges[0].weight_ppm / PPM)


def _reward_per_step(coarse: Sums, fine: Sums) -> float:
    """Sum over kernels of the reward of an average step, failures included, in `coarse` but not in `fine`."""
    return (coarse.step_ppm - fine.step_ppm) / PPM


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieved:
    """What the rounds of the most similar contexts say of one strategy."""

    value: float
    """Reward per step."""
    kernels: int
    place: Place


def retrieve(statistics: Statistics, strategy: str, context: Context, prior: Prior) -> Retrieved:
    """`flat` memory: the most specific context with enough rounds, with nothing above or below it considered."""
    chosen, place = NOTHING, places(context)[0]
    for candidate in reversed(places(context)):
        sums = statistics.nodes.get((("strategy", strategy), candidate), NOTHING)
        if sums.kernels >= FLAT_ENOUGH or candidate == places(context)[0]:
            chosen, place = sums, candidate
            break
    value = (FLAT_KAPPA * prior.success * prior.reward + chosen.step_ppm / PPM) / (FLAT_KAPPA + chosen.kernels)
    return Retrieved(value=value, kernels=chosen.kernels, place=place)
