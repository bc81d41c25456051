"""Expressions over facts: arithmetic and comparisons, and a clear word for everything else."""

from __future__ import annotations

import pytest

from tilewright.knowledge.vocabulary import Value, evaluate, parse

KNOWN: dict[str, Value] = {"loads": 6, "stores": 2, "mma": "none", "spill_bytes": 0}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("loads / stores", 3.0),
        ("-loads + 2 * stores", -2),
        ("loads > 2 * stores", True),
        ("2 < loads < 6", False),
        ("mma == 'none' and dots > 0", None),
        ("mma == 'wgmma' and dots > 0", False),
        ("dots > 0 or loads > 0", True),
        ("not spill_bytes > 0", True),
        ("dots", None),
        ("loads / spill_bytes > 1", None),
        ("mma == 3", False),
        ("mma > 3", False),
    ],
)
def test_an_expression_says_what_the_facts_say_and_nothing_where_they_are_silent(
    text: str, value: Value | None
) -> None:
    assert evaluate(text, KNOWN) == value


@pytest.mark.parametrize(
    "text", ["loads +", "__import__('os')", "loads ** 9", "[loads]", "lods > 1", "loads.real", "loads is 3"]
)
def test_what_is_not_an_expression_over_facts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an expression|not allowed|unknown fact|are known"):
        parse(text)
