"""Reading a run: log, show, diff, fsck, export."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import ROUNDS, Tilewright
from tilewright.harness.runs.state import Run


def test_log_is_a_line_a_round(tilewright: Tilewright, finished_run: Path) -> None:
    said = tilewright("log", finished_run)
    lines = said.out.splitlines()
    assert said.code == 0
    assert [int(line.split()[0]) for line in lines] == list(range(ROUNDS + 1))
    assert "start" in lines[0]
    assert any("x modelled" in line for line in lines[1:])
    assert "speed-up" not in said.out


def test_log_as_json_says_the_same(tilewright: Tilewright, finished_run: Path) -> None:
    rows = [json.loads(line) for line in tilewright("log", finished_run, "--json").out.splitlines()]
    with Run.open(finished_run, write=False) as run:
        assert [row["decision"] for row in rows] == [str(done.decision) for done in run.rounds]


def test_show_tells_a_run_and_a_round(tilewright: Tilewright, finished_run: Path) -> None:
    whole = tilewright("show", finished_run).out
    assert f"rounds: {ROUNDS} and the baseline" in whole
    assert "best: round" in whole
    one = tilewright("show", finished_run, 1).out
    for part in ("move: ", "hypothesis: ", "claim: num_warps differs", "verdict: ", "decision: ", "evidence: scripted"):
        assert part in one
    detail = json.loads(tilewright("show", finished_run, 1, "--json").out)
    assert detail["round"]["n"] == 1


def test_show_source_is_the_candidate_and_nothing_else(tilewright: Tilewright, finished_run: Path) -> None:
    with Run.open(finished_run, write=False) as run:
        for n in range(ROUNDS + 1):
            assert tilewright("show", finished_run, n, "--source").out == run.source(n)


def test_diff_is_between_two_candidates(tilewright: Tilewright, finished_run: Path) -> None:
    said = tilewright("diff", finished_run, 0, 1)
    assert said.code == 0
    assert said.out.startswith("--- round 0/candidate.py\n+++ round 1/candidate.py\n")
    assert tilewright("diff", finished_run, 1, 1).out == ""


def test_fsck_finds_a_sound_run_sound(tilewright: Tilewright, finished_run: Path) -> None:
    said = tilewright("fsck", finished_run)
    assert (said.code, said.out) == (0, f"{finished_run}: sound\n")


def test_fsck_of_a_damaged_run_is_a_no_with_a_remedy(tilewright: Tilewright, own_run: Path) -> None:
    _damage(own_run)
    said = tilewright("fsck", own_run)
    assert said.code == 1
    assert "damage: " in said.out
    assert "Traceback" not in said.out + said.err
    assert all("fatal" in json.loads(line) for line in tilewright("fsck", own_run, "--json").out.splitlines())


def test_reading_a_damaged_run_is_a_problem_and_no_traceback(tilewright: Tilewright, own_run: Path) -> None:
    _damage(own_run)
    for command in (("show", own_run), ("resume", own_run), ("export", own_run)):
        said = tilewright(*command)
        assert said.code == 2
        assert said.err.startswith("error: ")
        assert "Traceback" not in said.err


def _damage(run: Path) -> None:
    """Overwrite every object of the history with noise."""
    for file in (run / ".git" / "objects").rglob("*"):
        if file.is_file() and file.suffix in ("", ".pack"):
            file.chmod(0o600)
            file.write_bytes(b"noise" * 20)


def test_export_writes_the_winner_with_its_proof(tilewright: Tilewright, finished_run: Path, tmp_path: Path) -> None:
    said = tilewright("export", finished_run, "-o", tmp_path / "best")
    assert said.code == 0
    with Run.open(finished_run, write=False) as run:
        assert (tmp_path / "best" / "scripted.py").read_text() == run.source(run.best.n)
    assert "Predicted, not measured" in (tmp_path / "best" / "PROOF.md").read_text()
    again = tilewright("export", finished_run, "-o", tmp_path / "best")
    assert again.code == 2
    assert "nothing was overwritten" in again.err
