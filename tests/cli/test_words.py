"""The words for results: measured and modelled are never mixed, and what was not checked is said."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tilewright.harness.cli import progress, words
from tilewright.harness.cli.optimize import seconds
from tilewright.harness.loop import Finished
from tilewright.harness.types import CaseTime, Cost, Decision, How, Move, Proof, Round, Status, Verdict


def a_round(n: int, timed: How, time_us: float, speedup: float) -> Round:
    times = (CaseTime(case="c", weight=1.0, time_us=time_us, floor_us=1.0),)
    return Round(
        n=n,
        parent=n - 1 if n else None,
        verdict=Verdict(status=Status.PASS, correct=How.INTERPRETER, timed=timed, times=times),
        decision=Decision.KEPT,
        move=Move(direction="data-reuse", strategy="one-pass") if n else None,
        ratio=speedup,
        cost=Cost(planning_s=0.5, judging_s=1.0, candidates=4),
    )


PROOF = Proof(candidate="c", task="t", target="cuda:90", not_checked=("races", "time on a device"))


def test_a_modelled_ratio_is_never_called_a_speed_up() -> None:
    start, best = a_round(0, How.MODELLED, 100.0, 1.0), a_round(3, How.MODELLED, 50.0, 2.0)
    summary = words.finished("runs/r", 5, 20, best, PROOF)
    assert summary == {
        "event": "finished",
        "run": "runs/r",
        "rounds": 5,
        "candidates": 20,
        "best": {
            "round": 3,
            "predicted_ratio": 2.0,
            "baseline": "start",
            "time": "modelled",
            "correct": "interpreter",
            "not_checked": ["races", "time on a device"],
        },
    }
    text = "\n".join(words.outcome(best, start, PROOF))
    assert "modelled 2.00x" in text
    assert "a prediction, nothing was timed" in text
    assert "not checked: races; time on a device" in text
    assert "speed-up" not in text + json.dumps(progress._json_round(best))
    assert "measured" not in text


def test_a_measured_ratio_is_a_speed_up() -> None:
    start, best = a_round(0, How.MEASURED, 3000.0, 1.0), a_round(3, How.MEASURED, 1500.0, 2.0)
    best = replace(best, verdict=replace(best.verdict, correct=How.MEASURED))
    result = words.finished("r", 5, 20, best, PROOF)["best"]
    assert isinstance(result, dict)
    assert result["speedup"] == 2.0
    assert "predicted_ratio" not in result
    assert "speed-up 2.00x over the start, measured: 3 ms -> 1.5 ms" in words.outcome(best, start, PROOF)[0]


def test_a_run_that_found_nothing_says_so() -> None:
    start = a_round(0, How.MODELLED, 100.0, 1.0)
    assert words.outcome(start, start, PROOF)[0] == "no candidate was better: the start is still the best"


def test_plain_lines_say_what_was_tried_found_and_decided(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.screen(False) as screen:
        screen.opened({"run": "r", "task": "t", "target": "cuda:90", "time": "modelled"}, [])
        screen.tell(Finished(round=a_round(1, How.MODELLED, 50.0, 2.0)))
    assert capsys.readouterr().out.splitlines() == [
        "run r: t for cuda:90, time modelled",
        "round 1: data-reuse / one-pass: PASS 2.00x modelled kept",
    ]


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_has_a_row_a_round(width: int) -> None:
    from rich.console import Console

    console = Console(width=width)
    with console.capture() as captured:
        rounds = [a_round(0, How.MODELLED, 100.0, 1.0), a_round(1, How.MODELLED, 50.0, 2.0)]
        console.print(progress.table(rounds, width))
    header, first, second = captured.get().rstrip().splitlines()
    for name in ("round", "strategy", "level", "verdict", "decision", "cost"):
        assert name in header
    assert ("direction" in header) == ("data-reuse" in second) == (width > 80)
    assert "100 µs modelled" in first
    for cell in ("one-pass", "L1", "PASS", "2.00x modelled", "kept", "4 in 1.5 s"):
        assert cell in second


@pytest.mark.parametrize(("text", "expected"), [("90", 90), ("1.5s", 1.5), ("10m", 600), ("2h", 7200)])
def test_durations(text: str, expected: float) -> None:
    assert seconds(text) == expected
