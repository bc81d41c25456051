"""The fold: a set of observations means the same in any order, in any parts, on any machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.harness.types import Context, Observation, sha256
from tilewright.knowledge.cards import Prior, load
from tilewright.knowledge.memory import Statistics, fold
from tilewright.knowledge.memory.estimate import estimate, residual
from tilewright.knowledge.memory.statistics import outcomes_of, places, position_weights, refolded, target_family

CARDS = load()
SOFTMAX = Context(
    family="softmax",
    bottleneck="dram",
    dtype="float16",
    target="cuda:90",
    shape="large",
    triton="3.9",
    time="measured",
)


def seen(
    strategy: str = "one-pass", reward: float = 0.5, *, kernel: str = "k", round: int = 1, **changed: Any
) -> Observation:
    """One observation; a reward of 0 is a slower candidate."""
    given: dict[str, Any] = {
        "context": SOFTMAX,
        "kernel": kernel,
        "prefix": (),
        "direction": CARDS.strategies[strategy].direction,
        "strategy": strategy,
        "outcome": "faster" if reward else "slower",
        "reward_ppm": int(reward * 1_000_000),
        "cost_ms": 100,
        "run": "r",
        "round": round,
        "candidate": sha256(f"{kernel}{round}"),
    }
    return Observation(**{**given, **changed})


contexts = st.builds(
    Context,
    family=st.sampled_from(["softmax", "matmul"]),
    bottleneck=st.sampled_from(["dram", "latency"]),
    dtype=st.sampled_from(["float16", "float32"]),
    target=st.sampled_from(["cuda:80", "cuda:86", "cuda:90"]),
    shape=st.just("large"),
    triton=st.just("3.9"),
    time=st.sampled_from(["measured", "modelled"]),
)


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    """Any observation that a run may make, from few enough kernels that repetitions occur."""
    outcome = draw(st.sampled_from(["faster", "slower", "wrong", "compile", "flagged", "nothing"]))
    return seen(
        draw(st.sampled_from(["one-pass", "tile-search", "rows-per-program", "vector-access"])),
        kernel=draw(st.sampled_from(["k", "l", "m"])),
        round=draw(st.integers(1, 50)),
        outcome=outcome,
        reward_ppm=draw(st.integers(1, 1_000_000)) if outcome == "faster" else 0,
        cost_ms=draw(st.integers(0, 10_000)),
        context=draw(contexts),
        prefix=tuple(draw(st.lists(st.sampled_from(list(CARDS.directions)), max_size=6))),
        run=draw(st.sampled_from(["r", "s"])),
    )


BELIEF = Prior(success=0.4, reward=0.2)
ONE_PASS = ("strategy", "one-pass")
many = st.lists(observations(), max_size=24)


@settings(deadline=None, max_examples=60)
@given(many, st.randoms())
def test_the_order_of_observations_does_not_matter_to_the_last_bit(drawn: list[Observation], order: Random) -> None:
    shuffled = list(drawn)
    order.shuffle(shuffled)
    assert fold(shuffled).snapshot() == fold(drawn).snapshot()


@settings(deadline=None, max_examples=60)
@given(many, many, many)
def test_merging_is_union(a: list[Observation], b: list[Observation], c: list[Observation]) -> None:
    whole = fold([*a, *b, *c]).snapshot()
    assert fold(a).merged(fold(b)).merged(fold(c)).snapshot() == whole
    assert fold(c).merged(fold(a).merged(fold(b))).snapshot() == whole
    assert fold([*a, *a]).snapshot() == fold(a).snapshot()


@settings(deadline=None, max_examples=60)
@given(many)
def test_adding_one_by_one_gives_what_folding_at_once_gives(drawn: list[Observation]) -> None:
    grown = Statistics()
    news = [grown.add(o) for o in drawn]
    assert grown.snapshot() == fold(drawn).snapshot()
    assert sum(news) == len(grown) == len({o.digest for o in drawn})


@settings(deadline=None, max_examples=60)
@given(many)
def test_leaving_out_a_run_is_as_if_it_had_never_been(drawn: list[Observation]) -> None:
    assert fold(drawn).without("s").snapshot() == fold(o for o in drawn if o.run == "r").snapshot()


@settings(deadline=None, max_examples=60)
@given(many)
def test_estimates_are_probabilities_and_what_is_flagged_teaches_nothing(drawn: list[Observation]) -> None:
    loud = [o for o in drawn if o.outcome != "flagged"]
    for context in {o.context for o in drawn} | {SOFTMAX}:
        one = estimate(fold(drawn), ONE_PASS, context, BELIEF)
        assert one == estimate(fold(loud), ONE_PASS, context, BELIEF)
        assert 0 < one.success < 1
        assert 0 < one.reward < 1
        assert min(one.alpha, one.beta, one.reward_alpha, one.reward_beta) > 0


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(list(CARDS.directions)), max_size=9), st.booleans())
def test_position_weights_sum_to_one_and_start_never_vanishes(prefix: list[str], by_position: bool) -> None:
    weights = position_weights(prefix, by_position=by_position)
    assert 1_000_000 - 4 <= sum(weights.values()) <= 1_000_000
    assert weights["start"] >= 100_000


def test_newer_moves_weigh_more_and_only_the_last_four_count() -> None:
    weights = position_weights(["precision", "data-reuse", "memory-access", "latency-hiding", "parallel-mapping"])
    assert "precision" not in weights
    assert weights["parallel-mapping"] > weights["latency-hiding"] > weights["memory-access"] > weights["data-reuse"]
    alike = position_weights(["data-reuse", "memory-access"], by_position=False)
    assert alike["data-reuse"] == alike["memory-access"] == 450_000


def test_without_observations_the_prior_stands() -> None:
    one = estimate(fold([]), ONE_PASS, SOFTMAX, BELIEF)
    assert (one.success, one.reward, one.kernels) == (0.4, 0.2, 0)


def test_one_observation_is_counted_once_along_the_chain() -> None:
    one = estimate(fold([seen(reward=0.9)]), ONE_PASS, SOFTMAX, BELIEF)
    # Beta(κ·0.4 + 1, κ·0.6) with κ = 4: as if the chain had one level.
    assert abs(one.success - 2.6 / 5) < 1e-12
    assert abs(one.reward - (3 * 0.2 + 0.9) / 4) < 1e-12


def test_a_hundred_rounds_on_one_kernel_weigh_as_much_as_one() -> None:
    once = estimate(fold([seen(reward=0.5)]), ONE_PASS, SOFTMAX, BELIEF)
    often = estimate(fold(seen(reward=0.5, round=n) for n in range(100)), ONE_PASS, SOFTMAX, BELIEF)
    assert (once.success, once.reward) == (often.success, often.reward)
    others = estimate(fold(seen(reward=0.5, kernel=f"k{n}") for n in range(100)), ONE_PASS, SOFTMAX, BELIEF)
    assert others.success > 0.9


def test_nearer_contexts_count_more_than_farther_ones() -> None:
    far = replace(SOFTMAX, family="matmul")
    lessons = [seen(reward=0.0, kernel=f"a{n}", context=far) for n in range(30)]
    lessons += [seen(reward=0.8, kernel=f"b{n}") for n in range(6)]
    here = estimate(fold(lessons), ONE_PASS, SOFTMAX, BELIEF)
    there = estimate(fold(lessons), ONE_PASS, far, BELIEF)
    assert here.success > 0.5 > 0.2 > there.success
    assert (here.nearest, here.kernels) == (6, 36)


def test_measured_and_modelled_rounds_never_teach_each_other() -> None:
    modelled = replace(SOFTMAX, time="modelled")
    lessons = fold(seen(reward=0.9, kernel=f"k{n}", context=modelled) for n in range(20))
    assert estimate(lessons, ONE_PASS, SOFTMAX, BELIEF).success == 0.4
    assert estimate(lessons, ONE_PASS, modelled, BELIEF).success > 0.8


def test_targets_of_one_generation_share_lessons() -> None:
    assert target_family("cuda:80") == target_family("cuda:86") != target_family("cuda:90")
    assert target_family("hip:gfx942") == target_family("hip:gfx940") != target_family("hip:gfx90a")
    assert places(SOFTMAX)[-1] == ("measured", "softmax", "dram", "cuda:9x")


def test_a_transition_without_evidence_says_nothing_and_one_with_evidence_says_the_difference() -> None:
    assert residual(fold([]), "precision", "data-reuse", SOFTMAX, 0.0).value == 0
    good = [seen(reward=0.8, kernel=f"a{n}", prefix=("parallel-mapping",)) for n in range(20)]
    bad = [seen(reward=0.0, kernel=f"b{n}", prefix=("precision",)) for n in range(20)]
    both = fold([*good, *bad])
    after = {b: residual(both, b, "data-reuse", SOFTMAX, 0.0).value for b in ("parallel-mapping", "precision")}
    assert 0.2 < after["parallel-mapping"] < 0.4  # 0.8 − 0.4 on average, shrunken
    assert -0.4 < after["precision"] < -0.2


def test_a_direction_that_always_pays_alike_owes_nothing_to_what_came_before() -> None:
    alike = fold(seen(reward=0.5, kernel=f"a{n}", prefix=("precision",)) for n in range(20))
    assert abs(residual(alike, "precision", "data-reuse", SOFTMAX, 0.0).value) < 1e-6


def test_dear_steps_are_worth_less_where_a_device_is_paid_for() -> None:
    dear = [seen("one-pass", 0.5, kernel=f"a{n}", cost_ms=900) for n in range(30)]
    cheap = [seen("tile-search", 0.5, kernel=f"a{n}", cost_ms=100) for n in range(30)]
    both = fold([*dear, *cheap])
    tile_search = ("strategy", "tile-search")
    assert estimate(both, ONE_PASS, SOFTMAX, BELIEF).utility < estimate(both, tile_search, SOFTMAX, BELIEF).utility
    modelled = replace(SOFTMAX, time="modelled")
    free = fold(replace(o, context=modelled) for o in both)
    assert estimate(free, ONE_PASS, modelled, BELIEF).cost_ratio == 1.0


def test_outcomes_are_counted_apart_and_can_be_traced_to_their_rounds() -> None:
    lessons = [seen(reward=0.5), seen(reward=0.0, round=2), seen(round=3, outcome="flagged", reward_ppm=0)]
    lessons.append(seen("tile-search", round=4))
    known = fold(lessons)
    assert outcomes_of(known, ONE_PASS) == {"faster": 1, "slower": 1, "flagged": 1}
    assert known.behind(ONE_PASS) == lessons[:3]
    assert known.behind(ONE_PASS, ("modelled",)) == []


def test_a_fold_that_depends_on_the_order_is_found_out() -> None:
    lessons = [seen(reward=0.5, kernel=f"a{n}", prefix=("precision",)) for n in range(9)]
    assert refolded(lessons) == []
    assert refolded([]) == []


def test_refolding_compares_every_observation() -> None:
    class Forgetful(list[Observation]):
        """Loses its first observation when it is read backwards."""

        def __reversed__(self) -> Iterator[Observation]:
            return iter(self[:0:-1])

    lessons = Forgetful(seen(reward=0.5, kernel=f"a{n}") for n in range(3))
    assert refolded(lessons) == ["folded backwards, the observations amount to something else"]
