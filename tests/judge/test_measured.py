"""The judge on a GPU: measured verdicts, and a device that outlives whatever a candidate does to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.judge.conftest import once
from tests.judge.test_modelled import STORE, TASK
from tilewright.harness.judge.device import devices
from tilewright.harness.judge.measured import DeviceJudge
from tilewright.harness.tasks import load_task
from tilewright.harness.types import Candidate, Failure, How, Judged, Status, Task
from tilewright.knowledge.targets import target

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not devices(), reason="there is no GPU here")]


@pytest.fixture(scope="module")
def device_judge(runner: asyncio.Runner) -> Iterator[DeviceJudge]:
    made = DeviceJudge(target(f"cuda:{devices()[0].arch}"))
    yield made
    runner.run(made.close())


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "task.py").write_text(TASK)
    return load_task(str(tmp_path / "task.py"))


def judged(runner: asyncio.Runner, judge: DeviceJudge, task: Task, *sources: str) -> Judged:
    return runner.run(judge.judge(task, [Candidate(source=source) for source in sources], once))


def test_a_sound_start_is_measured(runner: asyncio.Runner, device_judge: DeviceJudge, task: Task) -> None:
    found = judged(runner, device_judge, task, task.start)
    assert found.verdict.status is Status.PASS, found.verdict.detail
    assert (found.verdict.correct, found.verdict.timed) == (How.MEASURED, How.MEASURED)
    (time,) = found.verdict.times
    assert time.time_us >= time.floor_us > 0
    (kernel,) = found.proof.kernels
    assert kernel.facts["registers"]
    assert kernel.facts["load_bytes"] == 4096 * 1000 * 4
    assert all(len(samples) >= 10 for samples in found.proof.samples_us.values())
    assert runner.run(device_judge.eager_ms(task)).keys() == {time.case}


ILLEGAL = STORE.replace("o + row * n + at", "o + (row + 1) * 1000000007 + at")
HANG = "    while tl.load(o, volatile=True) != 12345.678:\n        pass\n    " + STORE


@pytest.mark.parametrize(
    ("new", "failure"),
    [
        (STORE.replace("e / tl.sum(e, 0)", "e * 0.0"), Failure.WRONG),
        (STORE.replace("e / tl.sum(e, 0)", "(e / tl.sum(e, 0)).to(tl.float16).to(tl.float32)"), Failure.PRECISION),
        (ILLEGAL, Failure.LAUNCH),
        (HANG.strip(), Failure.TIMEOUT),
        (STORE.replace("e /", "e_ /"), Failure.COMPILE),
    ],
)
def test_a_wrong_candidate_fails_and_the_next_one_is_unaffected(
    new: str,
    failure: Failure,
    runner: asyncio.Runner,
    device_judge: DeviceJudge,
    task: Task,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if failure is Failure.TIMEOUT:
        monkeypatch.setattr(device_judge._correct, "_limit_s", 15.0)
    found = judged(runner, device_judge, task, task.start.replace(STORE, new), task.start)
    bad = found.trials[0]
    assert (bad.status, bad.failure) == (Status.FAIL, failure), bad.detail
    assert found.verdict.status is Status.PASS, found.verdict.detail


def test_a_candidate_without_room_on_the_device_is_out_of_memory(
    runner: asyncio.Runner, device_judge: DeviceJudge, task: Task
) -> None:
    greedy = task.start.replace("    o = torch", "    z = torch.empty(1 << 40, device='cuda')\n    o = torch")
    assert judged(runner, device_judge, task, greedy).verdict.failure is Failure.OUT_OF_MEMORY
