"""Runs to test with: a task, a target, records of rounds, and children that die when they are told to."""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tilewright.harness.observe import faster, observe
from tilewright.harness.runs.state import Run
from tilewright.harness.types import (
    Case,
    CaseTime,
    Decision,
    Evidence,
    How,
    KernelFacts,
    Move,
    Observation,
    Proof,
    Record,
    Round,
    Settings,
    Standing,
    Status,
    Target,
    Task,
    TensorSpec,
    Verdict,
    sha256,
)

SOURCE = "def launch(x):\n    return x\n"


@pytest.fixture(scope="session")
def task() -> Task:
    return Task(
        name="copy rows",
        kind="triton",
        path="copy.py",
        source=SOURCE,
        start=SOURCE,
        entry="launch",
        args={"x": TensorSpec(shape=("M",), dtype="float32")},
        cases=(Case(name="only", bindings={"M": 5}),),
    )


@pytest.fixture(scope="session")
def target() -> Target:
    return Target(
        name="cuda:90",
        device="a made up device",
        backend="cuda",
        arch=90,
        warp_size=32,
        multiprocessors=132,
        clock_hz=1.7e9,
        dram_bytes_per_s=4e12,
        dram_latency_s=6e-7,
        l2_bytes=50 << 20,
        l2_bytes_per_s=8e12,
        shared_bytes_per_multiprocessor=228 << 10,
        shared_bytes_per_block=227 << 10,
        registers_per_multiprocessor=65536,
        warps_per_multiprocessor=64,
        blocks_per_multiprocessor=32,
        fp32_flops_per_s=6e13,
        tensor_flops_per_s={"fp16": 9e14},
        launch_s=2e-6,
        source="made up for tests",
    )


@pytest.fixture(scope="session")
def settings() -> Settings:
    return Settings(target="cuda:90", run="run-a", seed=7, versions={"tilewright": "0.1.0", "triton": "3.9.0"})


@pytest.fixture
def create(task: Task, target: Target, settings: Settings) -> Callable[[Path], Run]:
    """Make a run and open it for writing."""
    return lambda path: Run.create(path, task, target, settings, {"copy.py": SOURCE.encode()})


@pytest.fixture
def make(task: Task, target: Target, settings: Settings) -> Callable[..., Record]:
    """A plausible record of round `n`: the baseline for 0, else a child of round 0 with evidence and a trial."""

    def record(n: int, *, kept: bool = False, text: str = "", answer: Any = None, before: Any = ()) -> Record:
        source = SOURCE if n == 0 else f"{SOURCE}# round {n} {text}\n"
        other = f"{source}# another\n"
        time_us = 100.0 if n == 0 else 100.0 / (1 + n) if kept else 101.0
        asked = Evidence(
            skill="scripted",
            tool="look",
            question={"round": n},
            answer=answer if answer is not None else {"seen": n / 3},
            standing=Standing.SUPPORTED,
            key=sha256(f"{n}{text}"),
        )
        done = Round(
            n=n,
            parent=None if n == 0 else 0,
            verdict=Verdict(
                status=Status.PASS,
                correct=How.INTERPRETER,
                timed=How.MODELLED,
                times=(CaseTime(case="only", weight=1.0, time_us=time_us, floor_us=1.0, bound="dram"),),
            ),
            decision=Decision.KEPT if kept or n == 0 else Decision.DISCARDED,
            candidate=sha256(source),
            label="start" if n == 0 else f"variant {n}",
            move=None if n == 0 else Move(direction="data-reuse", strategy="single-pass-rows"),
            evidence=() if n == 0 else (asked.key,),
            ratio=100.0 / time_us,
        )
        facts = KernelFacts(kernel="k", case="only", grid=(1, 1, 1), launches=1, facts={"registers": n}, digest="0")
        return Record(
            round=done,
            source=source,
            trials={} if n == 0 else {sha256(other): other},
            proof=Proof(candidate=sha256(source), task=task.digest, target="cuda:90", kernels=(facts,)),
            evidence=() if n == 0 else (asked,),
            observation=_observed(task, target, settings, before or [record(0).round], done) if n else None,
            messages=None if n == 0 else [{"role": "planner", "text": text}],
        )

    return record


def _observed(
    task: Task, target: Target, settings: Settings, before: Sequence[Round], done: Round
) -> Observation | None:
    return observe(task, target, settings, before, done, functools.reduce(faster, before, None))


@pytest.fixture
def fill(make: Callable[..., Record]) -> Callable[..., None]:
    """Commit rounds to an open run until it has `count`; round 2 is kept."""

    def commit(run: Run, count: int, **more: Any) -> None:
        for n in range(run.next, count):
            run.commit(make(n, kept=n == 2, before=run.rounds, **more))

    return commit


@pytest.fixture
def in_child() -> Callable[..., Any]:
    """Run a function in a forked child; return what it returned or raise what it raised; None if it was killed."""

    def run(function: Callable[[], Any], *, nobody: bool = False) -> Any:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            try:
                if nobody and os.geteuid() == 0:
                    os.setgroups([])
                    os.setgid(65534)
                    os.setuid(65534)
                answer: tuple[str, Any] = ("returned", function())
            except BaseException as error:
                answer = ("raised", (type(error), str(error), getattr(error, "remedy", "")))
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(answer, pipe)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            said = pipe.read()
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return None
        what, value = pickle.loads(said)
        if what == "raised":
            kind, text, remedy = value
            again = kind(text)
            again.remedy = remedy
            raise again
        return value

    return run


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, as pytest's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="tilewright-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
