"""The choice: reproducible, explained, moved by evidence, and each ablation takes away what it says."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.harness.errors import Problem
from tilewright.harness.types import Context, Observation, sha256
from tilewright.knowledge.cards import load
from tilewright.knowledge.memory import Chosen, Offer, Statistics, Switches, choose, fold
from tilewright.knowledge.memory.choose import softmax, temperature
from tilewright.knowledge.memory.constants import TAU_START

CARDS = load()
HERE = Context(
    family="softmax", bottleneck="dram", dtype="float16", target="cuda:90", shape="large", triton="3.9", time="modelled"
)
ALL = [Offer(direction=s.direction, strategy=s.id) for s in CARDS.strategies.values()]
SOME = st.sets(st.sampled_from(ALL), min_size=1)


def seen(strategy: str, reward: float, n: int, prefix: tuple[str, ...] = (), context: Context = HERE) -> Observation:
    return Observation(
        context=context,
        kernel=f"kernel {n}",
        prefix=prefix,
        direction=CARDS.strategies[strategy].direction,
        strategy=strategy,
        outcome="faster" if reward else "slower",
        reward_ppm=int(reward * 1_000_000),
        cost_ms=10,
        run="r",
        round=n,
        candidate=sha256(str(n)),
    )


def chosen(
    lessons: Statistics | None = None,
    offered: list[Offer] = ALL,
    prefix: tuple[str, ...] = (),
    seed: int = 0,
    n: int = 5,
    context: Context = HERE,
    **switches: Any,
) -> Chosen:
    how = Switches(**switches)
    known = lessons if lessons is not None else fold([])
    return choose(known, context, prefix, offered, cards=CARDS, seed=seed, n=n, budget=10, switches=how)


def lots(strategy: str, reward: float, prefix: tuple[str, ...] = (), count: int = 40) -> list[Observation]:
    return [seen(strategy, reward, n, prefix) for n in range(count)]


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 10**9), st.integers(1, 30), st.sets(st.sampled_from(ALL), min_size=1), st.randoms(), st.booleans()
)
def test_the_same_seed_gives_the_same_choice_in_whatever_order_things_are_offered(
    seed: int, n: int, offered: set[Offer], order: Random, thompson: bool
) -> None:
    policy = "thompson" if thompson else "softmax"
    lessons = lots("one-pass", 0.5) + lots("tile-search", 0.1)
    once = chosen(fold(lessons), sorted(offered, key=repr), ("precision",), seed, n, policy=policy)
    order.shuffle(lessons)
    again = chosen(
        fold(lessons), order.sample(sorted(offered, key=repr), len(offered)), ("precision",), seed, n, policy=policy
    )
    assert once == again
    assert sum(once.choice.distribution.values()) == pytest.approx(1)
    assert set(once.choice.distribution) == {o.direction for o in offered}
    assert Offer(direction=once.direction, strategy=once.strategy) in offered


def test_seeds_spread_over_the_distribution_as_it_says() -> None:
    drawn = [chosen(seed=seed) for seed in range(600)]
    for direction, probability in drawn[0].choice.distribution.items():
        share = sum(c.direction == direction for c in drawn) / len(drawn)
        assert share == pytest.approx(probability, abs=4 * math.sqrt(0.25 / len(drawn)))


def test_a_favourite_ahead_by_three_tenths_among_nine_is_drawn_six_times_in_ten() -> None:
    scores = {str(i): 0.1 for i in range(8)} | {"favourite": 0.4}
    assert softmax(scores, TAU_START)["favourite"] == pytest.approx(0.6)
    assert temperature(1, 10) == pytest.approx(TAU_START)
    assert temperature(10, 10) == pytest.approx(TAU_START / 4)
    assert softmax(scores, temperature(10, 10))["favourite"] > 0.99


def test_what_has_paid_is_chosen_more_often_and_what_has_not_less() -> None:
    before = chosen().choice.distribution
    after = chosen(fold(lots("coalesce-accesses", 0.9) + lots("one-pass", 0.0))).choice.distribution
    assert after["memory-access"] > 2 * before["memory-access"]
    assert after["data-reuse"] < before["data-reuse"] / 2


def test_what_came_before_decides_between_directions_that_pay_alike() -> None:
    lessons = fold(
        lots("one-pass", 0.8, ("parallel-mapping",))
        + [seen("one-pass", 0.0, 100 + n, ("precision",)) for n in range(40)]
        + [seen("pipeline-loop", 0.4, 200 + n) for n in range(40)]
    )
    offered = [o for o in ALL if o.strategy in ("one-pass", "pipeline-loop")]
    mapped = chosen(lessons, offered, ("parallel-mapping",)).choice.distribution
    precise = chosen(lessons, offered, ("precision",)).choice.distribution
    assert mapped["data-reuse"] > 0.5 > precise["data-reuse"]
    blind = [
        chosen(lessons, offered, (p,), no_prefix=True).choice.distribution for p in ("parallel-mapping", "precision")
    ]
    assert blind[0] == blind[1]


def test_a_direction_just_used_is_penalised_for_each_time() -> None:
    terms: Any = chosen(prefix=("data-reuse", "precision", "data-reuse")).choice.terms
    assert terms["directions"]["data-reuse"]["repeats"] == 2
    assert terms["directions"]["data-reuse"]["penalty"] == pytest.approx(0.1)


def test_every_term_is_recorded_and_they_add_up_to_the_score() -> None:
    lessons = fold(lots("one-pass", 0.5, ("precision", "latency-hiding")))
    choice = chosen(lessons, prefix=("precision",)).choice
    terms: Any = choice.terms
    assert (terms["observations"], terms["set"]) == (40, lessons.digest)
    for direction, term in terms["directions"].items():
        path = sum(e["weight"] * e["residual"] for e in term["edges"].values())
        assert term["score"] == pytest.approx(term["utility"] + path - term["penalty"], abs=1e-6), direction
        assert term["utility"] == pytest.approx(term["success"] * term["reward"], abs=1e-6)
    weights = {d: math.exp(t["score"] / terms["tau"]) for d, t in terms["directions"].items()}
    for direction, probability in choice.distribution.items():
        assert probability == pytest.approx(weights[direction] / sum(weights.values()), abs=1e-5)


def test_the_strategy_is_the_one_with_the_best_mean_until_another_is_worth_exploring() -> None:
    offered = [o for o in ALL if o.strategy in ("tile-search", "rows-per-program")]
    # Equally many lessons keep the bonus alike; then the better record wins.
    for better, worse in (("rows-per-program", "tile-search"), ("tile-search", "rows-per-program")):
        learned = fold([*lots(better, 0.6, count=9), *lots(worse, 0.0, count=9)])
        assert chosen(learned, offered).strategy == better
    worn = fold([seen("tile-search", 0.15, n) for n in range(200)])
    assert chosen(worn, offered).strategy == "rows-per-program"


def test_triages_support_moves_the_prior_and_experience_outweighs_it() -> None:
    plain = chosen().choice.distribution
    offered = [replace(o, support=0.95) if o.strategy == "half-operands" else o for o in ALL]
    assert chosen(offered=offered).choice.distribution["precision"] > 1.2 * plain["precision"]
    failed = fold(lots("half-operands", 0.0))
    assert chosen(failed, offered).choice.distribution["precision"] < plain["precision"]


def test_the_bottleneck_of_the_context_names_directions() -> None:
    launch = chosen(context=replace(HERE, bottleneck="launch")).choice.distribution
    tensor = chosen(context=replace(HERE, bottleneck="tensor")).choice.distribution
    assert launch["launch-and-fusion"] > 1.3 * tensor["launch-and-fusion"]
    assert tensor["precision"] > 1.2 * launch["precision"]


def test_no_update_and_none_learn_nothing_and_none_believes_nothing() -> None:
    lessons = fold(lots("coalesce-accesses", 0.9))
    assert chosen(lessons, no_update=True).choice.distribution == chosen().choice.distribution
    even = chosen(lessons, memory="none").choice.distribution
    assert list(even.values()) == pytest.approx([1 / 9] * 9)


def test_shuffled_memory_attaches_lessons_to_other_names() -> None:
    lessons = fold(lots("coalesce-accesses", 0.9))
    for seed in range(5):
        honest = chosen(lessons, seed=seed).choice.distribution
        shuffled = chosen(lessons, seed=seed, memory="shuffled").choice.distribution
        assert honest["memory-access"] == max(honest.values())
        assert shuffled["memory-access"] < honest["memory-access"] / 2


def test_flat_memory_ranks_strategies_by_similar_rounds_without_directions() -> None:
    far = replace(HERE, family="matmul")
    lessons = fold(lots("one-pass", 0.9) + [seen("one-pass", 0.0, 500 + n, context=far) for n in range(40)])
    flat = chosen(lessons, memory="flat")
    assert set(flat.choice.distribution) == set(CARDS.strategies)
    assert flat.choice.distribution["one-pass"] == max(flat.choice.distribution.values())
    assert chosen(lessons, memory="flat", context=far).choice.distribution["one-pass"] < 0.1
    terms: Any = flat.choice.terms
    assert terms["strategies"]["one-pass"]["place"] == ["modelled", "softmax", "dram", "cuda:9x"]


def test_without_position_weights_the_order_of_moves_says_nothing() -> None:
    lessons = [*lots("one-pass", 0.8, ("precision", "parallel-mapping")), *lots("pipeline-loop", 0.3)]
    ab, ba = ("precision", "parallel-mapping"), ("parallel-mapping", "precision")
    alike = Statistics(lessons, by_position=False)
    off = [chosen(alike, prefix=p, no_position_weights=True).choice.distribution for p in (ab, ba)]
    assert off[0] == off[1]
    on = [chosen(fold(lessons), prefix=p).choice.distribution for p in (ab, ba)]
    assert on[0] != on[1]


def test_without_local_memory_the_strategy_is_drawn_evenly() -> None:
    offered = [o for o in ALL if o.direction == "parallel-mapping"]
    drawn = [chosen(offered=offered, seed=seed, no_local=True).strategy for seed in range(200)]
    assert min(drawn.count(o.strategy) for o in offered) > 200 / len(offered) / 2
    assert {chosen(offered=offered, seed=seed).strategy for seed in range(50)} == {"rows-per-program"}


def test_thompson_follows_the_posterior_and_says_how_often_each_direction_would_win() -> None:
    lessons = fold(lots("one-pass", 0.9))
    choice = chosen(lessons, policy="thompson").choice
    assert choice.policy == "thompson"
    assert choice.distribution["data-reuse"] > 0.8
    assert max(chosen(policy="thompson").choice.distribution.values()) < 0.8
    assert len({chosen(policy="thompson", seed=s).direction for s in range(40)}) > 2


@pytest.mark.parametrize(
    ("offered", "says"),
    [
        ([], "nothing is offered"),
        ([Offer(direction="data-reuse", strategy="magic")], "no card describes the strategy 'magic'"),
        ([Offer(direction="precision", strategy="one-pass")], "one-pass belongs to data-reuse"),
    ],
)
def test_an_offer_that_makes_no_sense_is_refused_with_a_remedy(offered: list[Offer], says: str) -> None:
    with pytest.raises(Problem, match=says) as caught:
        chosen(offered=offered)
    assert caught.value.remedy


@pytest.mark.parametrize("words", [("htgg", "softmax", []), ("htg", "greedy", []), ("htg", "softmax", ["no-luck"])])
def test_an_unknown_switch_is_refused(words: tuple[str, str, list[str]]) -> None:
    with pytest.raises(Problem, match="expected words out of"):
        Switches.of(*words)
