"""What people ask of a run, and what they take away from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.harness.errors import RunProblem
from tilewright.harness.runs import views
from tilewright.harness.runs.export import export
from tilewright.harness.runs.state import Run
from tilewright.harness.types import Decision, Failure, How, Record, Status, Verdict

Make = Callable[..., Record]


@pytest.fixture
def run(tmp_path: Path, create: Callable[[Path], Run], fill: Callable[..., None], make: Make) -> Path:
    """Rounds 0 to 3, round 2 kept; round 4 wrote nothing."""
    with create(tmp_path) as run:
        fill(run, 4)
        lost = make(4)
        nothing = replace(
            lost.round,
            verdict=Verdict(status=Status.FAIL, failure=Failure.COMPILE, detail="no candidate was written"),
            decision=Decision.NONE,
            candidate=None,
            ratio=None,
            evidence=(),
        )
        run.commit(Record(round=nothing))
    return tmp_path


def test_the_log_says_of_each_round_what_the_round_says(run: Path) -> None:
    rows = list(views.log(run))
    with Run.open(run, write=False) as opened:
        rounds = list(opened.rounds)
    assert [r.n for r in rows] == [0, 1, 2, 3, 4]
    for row, done in zip(rows, rounds, strict=True):
        assert row.parent == done.parent
        assert (row.verdict, row.decision, row.time) == (done.verdict.status, done.decision, done.verdict.timed)
        assert row.candidate == (done.candidate or "")
        assert row.ratio == (None if done.ratio is None else pytest.approx(done.ratio, abs=1e-4))
        assert row.strategy == (done.move.strategy if done.move else "")
    assert (rows[4].failure, rows[4].subject) == ("compile", "round 4: no candidate for single-pass-rows")


def test_the_summary_names_the_best_and_whether_a_round_was_begun(run: Path) -> None:
    seen = views.summary(run)
    assert (seen.rounds, seen.kept, seen.in_progress) == (5, (0, 2), False)
    assert seen.best is not None
    assert seen.best.n == 2
    (run / ".git/tilewright/wip/5.jsonl").write_text('{"key":"a","value":1}\n')
    assert views.summary(run).in_progress


def test_one_round_is_shown_with_all_that_belongs_to_it(run: Path, make: Make) -> None:
    detail, record = views.show(run, 3), make(3)
    assert (detail.round, detail.source, detail.proof) == (record.round, record.source, record.proof)
    assert detail.evidence == record.evidence
    assert detail.parent_source == make(0).source
    assert detail.observation is not None
    assert detail.commit == list(views.log(run))[3].commit
    empty = views.show(run, 4)
    assert (empty.source, empty.proof, empty.evidence, empty.observation) == (None, None, (), None)


def test_the_difference_of_two_rounds_is_a_unified_diff(run: Path) -> None:
    assert views.diff(run, 0, 2) == (
        "--- round 0/candidate.py\n+++ round 2/candidate.py\n"
        "@@ -1,2 +1,3 @@\n def launch(x):\n     return x\n+# round 2 \n"
    )
    assert views.diff(run, 1, 1) == ""


@pytest.mark.parametrize("ask", [lambda p: views.show(p, 9), lambda p: views.diff(p, 0, -1)])
def test_a_round_that_is_not_there_is_a_problem_that_says_which_are(run: Path, ask: Callable[[Path], object]) -> None:
    with pytest.raises(RunProblem, match="has no round") as caught:
        ask(run)
    assert caught.value.remedy == "it has 0 to 4"


def test_a_round_without_a_candidate_has_no_difference(run: Path) -> None:
    with pytest.raises(RunProblem, match="round 4 has no candidate"):
        views.diff(run, 0, 4)


@pytest.mark.parametrize("ask", [views.log, views.summary, export])
def test_what_is_no_run_is_a_problem(tmp_path: Path, ask: Callable[[Path], object]) -> None:
    with pytest.raises(RunProblem, match="is no run"):
        ask(tmp_path / "nowhere")


def test_the_winner_stands_alone_with_a_proof_that_says_modelled(run: Path, make: Make) -> None:
    files = export(run)
    record = make(2, kept=True)
    assert sorted(files) == ["PROOF.md", "copy_rows.py", "proof.json"]
    assert files["copy_rows.py"].decode() == record.source
    assert json.loads(files["proof.json"])["proof"]["candidate"] == record.round.candidate
    text = files["PROOF.md"].decode()
    assert "Predicted, not measured: 3.000 times the speed of the start" in text
    assert "in Triton's interpreter on the CPU" in text
    assert "| only | 1 | 33.333 | 3.000 | 1.000 | dram |" in text
    not_checked = text[text.index("## Not checked") :]
    assert "the time on a GPU" in not_checked
    assert "measured (" not in text


def test_a_measured_winner_says_measured(tmp_path: Path, create: Callable[[Path], Run], make: Make) -> None:
    with create(tmp_path) as run:
        for n in range(2):
            record = make(n, kept=n == 1, before=run.rounds)
            verdict = replace(record.round.verdict, correct=How.MEASURED, timed=How.MEASURED, proof="proof")
            proof = replace(record.proof, not_checked=("power limits",)) if record.proof else None
            run.commit(replace(record, round=replace(record.round, verdict=verdict), proof=proof, observation=None))
    text = export(tmp_path)["PROOF.md"].decode()
    assert "2.000 times the speed of the start, measured (proof)." in text
    assert "Predicted" not in text
    assert text[text.index("## Not checked") :].splitlines()[2] == "- power limits"


def test_a_run_in_which_nothing_was_kept_has_nothing_to_export(
    tmp_path: Path, create: Callable[[Path], Run], fill: Callable[..., None]
) -> None:
    with create(tmp_path) as run:
        fill(run, 2)
    with pytest.raises(RunProblem, match="after 1 rounds the start is still the best") as caught:
        export(tmp_path)
    assert "resume" in caught.value.remedy
