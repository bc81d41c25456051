"""One judge and one pool of plain workers for all tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from tilewright.harness.judge.modelled import InterpreterJudge
from tilewright.harness.judge.pool import Pool
from tilewright.harness.tasks import load_task
from tilewright.harness.types import Candidate, Judged, Task
from tilewright.knowledge.targets import target

T = TypeVar("T")


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    """The event loop in which the workers live."""
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="session")
def judge(runner: asyncio.Runner) -> Iterator[InterpreterJudge]:
    """A judge without a GPU."""
    made = InterpreterJudge(target("cuda:90"))
    yield made
    runner.run(made.close())


@pytest.fixture(scope="session")
def compiling(runner: asyncio.Runner) -> Iterator[Pool]:
    """Workers that run references."""
    pool = Pool("compile")
    yield pool
    runner.run(pool.close())


async def once(key: str, kind: type[T], do: Callable[[], Awaitable[T]]) -> T:
    """Do it, and store nothing."""
    return await do()


class Bench:
    """Loads tasks from texts and judges candidates of them."""

    def __init__(self, runner: asyncio.Runner, judge: InterpreterJudge, folder: Path) -> None:
        self.runner, self.judge_, self.folder = runner, judge, folder

    def task(self, text: str, start: str | None = None) -> Task:
        """A task, read from a file as a user would have it."""
        path = self.folder / "task.py"
        path.write_text(text)
        if start is None:
            return load_task(str(path))
        (self.folder / "start.py").write_text(start)
        return load_task(str(path), str(self.folder / "start.py"))

    def judged(self, task: Task, *sources: str) -> Judged:
        """The judge's answer to a batch; no source at all stands for the start."""
        batch: Sequence[Candidate] = [Candidate(source=source) for source in sources or (task.start,)]
        return self.runner.run(self.judge_.judge(task, batch, once))


@pytest.fixture
def bench(runner: asyncio.Runner, judge: InterpreterJudge, tmp_path: Path) -> Bench:
    """A place to judge."""
    return Bench(runner, judge, tmp_path)
