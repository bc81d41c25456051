"""Runs to read, made with a scripted planner and judge, and the command line called in this process."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tilewright.agent.scripted import EchoSkills, ScriptedPlanner
from tilewright.harness.cli import app
from tilewright.harness.judge.scripted import ScriptedJudge
from tilewright.harness.loop import optimize
from tilewright.harness.runs.state import Run
from tilewright.harness.types import Case, Settings, Task
from tilewright.knowledge.targets import target

ROUNDS = 6


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended."""

    code: int
    out: str
    err: str


Tilewright = Callable[..., Said]


@pytest.fixture
def tilewright(capfd: pytest.CaptureFixture[str]) -> Tilewright:
    """Call the command line: `tilewright("log", run)`."""

    def call(*args: object) -> Said:
        code = app.run([str(arg) for arg in args])
        said = capfd.readouterr()
        return Said(code, said.out, said.err)

    return call


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a few finished rounds. Read only: copy it to change it."""
    path = tmp_path_factory.mktemp("runs") / "run"
    task = Task(
        name="scripted",
        kind="triton",
        path="scripted.py",
        source="# the task\n",
        start="# the start\n",
        entry="launch",
        cases=(Case(name="only", bindings={}),),
    )
    settings = Settings(target="cuda:90", seed=3, run="r", rounds=ROUNDS)
    with Run.create(path, task, target("cuda:90"), settings, {"scripted.py": b"# the task\n"}) as run:
        asyncio.run(optimize(run, ScriptedPlanner(ask=True, batch=3), EchoSkills(), ScriptedJudge(), rounds=ROUNDS))
        assert run.best.n > 0
    return path


@pytest.fixture
def own_run(finished_run: Path, tmp_path: Path) -> Path:
    """The same run, to be changed."""
    path = tmp_path / "own"
    shutil.copytree(finished_run, path, symlinks=True)
    return path
