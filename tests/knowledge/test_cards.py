"""Cards: what is shipped holds together, and what an author gets wrong is said so that it can be mended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.harness.errors import KnowledgeProblem
from tilewright.knowledge import cards
from tilewright.knowledge.rewrites import NAMES, rewrites
from tilewright.skills.triage.predicates import PREDICATES

SIGN = 'id = "wet"\nkind = "symptom"\nmeaning = "it rains"\nholds = "loads > 3 * multiprocessors"\n'
STRATEGY = """
[[strategy]]
id = "umbrella"
direction = "data-reuse"
title = "Open it"
when = ["wet", "loop-over-blocks"]
edit = "Open the umbrella."
preconditions = "There is one."
expected = "Dry."
verify = { fact = "loads", relation = "falls" }
risks = "Wind."
prior = { success = 0.5, reward = 0.25 }
source = "Own reasoning."
"""


def folder(tmp_path: Path, strategy: str = STRATEGY, sign: str = SIGN) -> Path:
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "mine.toml").write_text(strategy)
    (tmp_path / "signs.toml").write_text(f"[[sign]]\n{sign}")
    return tmp_path


def test_every_direction_has_a_strategy_and_every_strategy_a_direction() -> None:
    known = cards.load()
    assert len(known.directions) == 9
    assert {s.direction for s in known.strategies.values()} == set(known.directions)
    assert len(known.strategies) >= 10


def test_every_source_sign_of_the_cards_can_be_looked_for_and_none_is_looked_for_in_vain() -> None:
    known = cards.load()
    assert {s.id for s in known.signs.values() if s.kind == "source"} == set(PREDICATES)


def test_each_executable_rewrite_stands_on_exactly_one_card() -> None:
    named = [s.rewrite for s in cards.load().strategies.values() if s.rewrite]
    assert sorted(named) == sorted(NAMES)


def test_every_rewrite_goes_by_the_name_of_its_file() -> None:
    assert {name: rewrite.name for name, rewrite in rewrites().items()} == {name: name for name in NAMES}


def test_a_users_folder_adds_cards_and_signs(tmp_path: Path) -> None:
    known = cards.load([folder(tmp_path)])
    mine = known.strategies["umbrella"]
    assert (mine.direction, mine.when, mine.rewrite) == ("data-reuse", ("wet", "loop-over-blocks"), None)
    assert known.files["umbrella"] == str(tmp_path / "strategies" / "mine.toml")
    assert "one-pass" in known.strategies


@pytest.mark.parametrize(
    ("old", "new", "key", "expected", "found"),
    [
        ('"data-reuse"', '"reuse"', "direction", "one of memory-access", "'reuse'"),
        ('"umbrella"', '"one-pass"', "id", "an identifier of its own", "'one-pass'"),
        ('"umbrella"', '"Umbrella One"', "id", "lower-case words", "'Umbrella One'"),
        ('fact = "loads"', 'fact = "load"', "verify.fact", "one of async_copies", "'load'"),
        ('"falls"', '"sinks"', "verify.relation", "one of ==", "'sinks'"),
        ('"falls"', '"=="', "verify.value", "a value for ==", "None"),
        ('relation = "falls"', 'relation = "falls", value = 3', "verify.value", "no value", "3"),
        ("success = 0.5", "success = 1.5", "prior.success", "a number from 0 to 1", "1.5"),
        ("reward = 0.25", "reward = true", "prior.reward", "a number from 0 to 1", "True"),
        ('"wet", ', '"dry", ', "when", "words out of", "'dry'"),
        ('when = ["wet", "loop-over-blocks"]', 'when = "wet"', "when", "a list of texts", "'wet'"),
        ('risks = "Wind."\n', "", "risks", "a text", "nothing"),
        ('risks = "Wind."\n', 'risks = "Wind."\nrisk = "Rain."\n', "risk", "only the keys", "'risk'"),
        ('risks = "Wind."\n', 'risks = "Wind."\nrewrite = "magic"\n', "rewrite", "one of one-pass", "'magic'"),
        (
            'risks = "Wind."\n',
            'risks = "Wind."\nbound = "bytes / 2"\n',
            "bound",
            "an expression",
            "unknown fact 'bytes'",
        ),
    ],
)
def test_a_wrong_card_is_refused_with_file_key_expectation_and_finding(
    tmp_path: Path, old: str, new: str, key: str, expected: str, found: str
) -> None:
    assert old in STRATEGY
    with pytest.raises(KnowledgeProblem) as caught:
        cards.load([folder(tmp_path, STRATEGY.replace(old, new))])
    said = str(caught.value)
    assert str(tmp_path / "strategies" / "mine.toml") in said
    assert f".{key}: expected {expected}" in said
    assert found in said
    assert caught.value.remedy


def test_a_symptom_that_is_no_expression_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        KnowledgeProblem, match=r"holds: expected an expression over facts, found .*Call is not allowed"
    ):
        cards.load([folder(tmp_path, sign=SIGN.replace("loads > 3 * multiprocessors", "open('x') > 3"))])


def test_a_file_that_is_not_toml_is_refused_with_the_place(tmp_path: Path) -> None:
    with pytest.raises(KnowledgeProblem, match=r"mine\.toml: expected TOML, found .*line 2"):
        cards.load([folder(tmp_path, "[[strategy]]\nid = \n")])


def test_a_second_transition_for_one_pair_is_refused(tmp_path: Path) -> None:
    row = '[[transition]]\nbefore = "precision"\nafter = "data-reuse"\nresidual = 0.1\n'
    row += 'pays_when = "a"\nwhy = "b"\nrisks = "c"\n'
    (tmp_path / "transitions.toml").write_text(row * 2)
    with pytest.raises(KnowledgeProblem, match="one transition for each pair"):
        cards.load([tmp_path])


def test_a_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KnowledgeProblem, match="expected a folder of cards"):
        cards.load([tmp_path / "nowhere"])
