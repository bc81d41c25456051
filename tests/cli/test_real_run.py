"""The command as people run it: a process of its own, real workers, a kernel that can be improved."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "tilewright.harness.cli.app"]
TASK = '''
"""Scale short rows, one a program."""

import torch
import triton
import triton.language as tl

inputs = {
    "args": {"x": "T[M, N]"},
    "cases": [{"M": 65536, "N": 128, "T": "float16"}],
    "check": [{"M": 33, "N": 128}, {"M": 5, "N": 97}],
}


def reference(x):
    return x / x.abs().amax(dim=-1, keepdim=True)


@triton.jit
def rows_kernel(x_ptr, y_ptr, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * stride + at, x / tl.max(tl.abs(x), axis=0), mask=at < n)


def launch(x):
    y = torch.empty_like(x)
    rows, n = x.shape
    rows_kernel[(rows,)](x, y, x.stride(0), n, BLOCK=triton.next_power_of_2(n), num_warps=4)
    return y
'''
MODELLED = ["--target", "cuda:80"]
"""Compiled for, and present nowhere that these tests run: times are modelled on every machine."""


def tilewright(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *args], cwd=folder, capture_output=True, text=True, check=False)


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("work")
    (path / "rows.py").write_text(TASK)
    return path


@pytest.fixture(scope="module")
def optimised(folder: Path) -> subprocess.CompletedProcess[str]:
    return tilewright(folder, "optimize", "rows.py", "--rounds", "1", "--run", "run", "--json", *MODELLED)


def test_optimize_ends_with_the_result(optimised: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert (optimised.returncode, optimised.stderr) == (0, "")
    told = events(optimised.stdout)
    assert [e["event"] for e in told] == [
        "opened",
        "started",
        "round",
        "started",
        "proposed",
        "round",
        "finished",
    ]
    last = told[-1]
    assert set(last) == {"event", "run", "rounds", "candidates", "best"}
    assert (Path(folder / last["run"]).resolve(), last["rounds"]) == ((folder / "run").resolve(), 1)
    assert last["candidates"] == sum(e["candidates"] for e in told if e["event"] == "round")
    best = last["best"]
    assert set(best) == {"round", "predicted_ratio", "baseline", "time", "correct", "not_checked"}
    assert (best["baseline"], best["time"], best["correct"]) == ("start", "modelled", "interpreter")
    assert best["not_checked"]
    assert best["round"] == 1
    assert best["predicted_ratio"] > 1.05


def test_what_it_leaves_can_be_read_checked_and_taken_away(
    optimised: subprocess.CompletedProcess[str], folder: Path
) -> None:
    assert optimised.returncode == 0
    assert tilewright(folder, "fsck", "run").returncode == 0
    assert len(tilewright(folder, "log", "run").stdout.splitlines()) == 2
    assert tilewright(folder, "diff", "run", "0", "1").stdout.startswith("--- round 0/candidate.py")
    exported = tilewright(folder, "export", "run")
    assert exported.returncode == 0
    judged = tilewright(folder, "evaluate", "rows.py", "rows-best/rows.py", "--json", *MODELLED)
    assert judged.returncode == 0
    assert events(judged.stdout)[0]["verdict"]["status"] == "PASS"


def test_a_wrong_candidate_is_a_no(folder: Path) -> None:
    (folder / "wrong.py").write_text(TASK.replace("tl.max(tl.abs(x), axis=0)", "tl.max(x, axis=0)"))
    said = tilewright(folder, "evaluate", "rows.py", "wrong.py", *MODELLED)
    assert said.returncode == 1
    assert said.stdout.startswith("FAIL wrong")
    assert "Traceback" not in said.stdout + said.stderr


def test_a_time_limit_leaves_a_judged_baseline_and_a_way_to_go_on(folder: Path) -> None:
    said = tilewright(
        folder, "optimize", "rows.py", "--rounds", "3", "--run", "limited", "--time-limit", "0", *MODELLED
    )
    assert said.returncode == 0
    assert "round 0: start: PASS" in said.stdout
    assert "the time limit is reached; go on with `tilewright resume" in said.stdout
    assert "round 1" not in said.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_says_how_to_go_on_and_does(folder: Path, number: signal.Signals) -> None:
    run = f"stopped-{number.name}"
    args = ["optimize", "rows.py", "--rounds", "3", "--run", run, "--json", *MODELLED]
    process = _started(folder, args)
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == "started":
            process.send_signal(number)
            break
    out, err = process.communicate()
    assert process.returncode == 130
    assert events(out)[-1]["event"] == "stopped"
    assert f"Go on with `tilewright resume {run}`" in err.replace(str(folder.resolve()) + os.sep, "")
    assert "Traceback" not in err
    assert tilewright(folder, "fsck", run).returncode == 0
    resumed = tilewright(folder, "resume", run, "--rounds", "0", "--json")
    assert resumed.returncode == 0
    assert events(resumed.stdout)[-1]["best"]["round"] == 0


def _started(folder: Path, args: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *args], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
