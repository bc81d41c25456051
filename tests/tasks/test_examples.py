"""The examples: real kernels, scaffolded from an installed package, right at their reduced sizes."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import pytest

from tilewright.harness.judge.correct import Checked, Correctness
from tilewright.harness.judge.pool import Pool
from tilewright.harness.tasks import load_task
from tilewright.harness.tasks.source import imports, is_allowed
from tilewright.harness.tasks.spec import resolve
from tilewright.harness.types import Candidate, Status, Task, Tensor
from tilewright.knowledge.targets import target

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))
NAMES = [path.stem for path in EXAMPLES]


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    return {path.stem: load_task(str(path)) for path in EXAMPLES}


@pytest.fixture(scope="module")
def checked(tasks: dict[str, Task]) -> dict[str, Checked]:
    """Every example's start against its reference, in one pair of worker pools."""

    async def check() -> dict[str, Checked]:
        compiling, interpret = Pool("compile"), Pool("interpret")
        correct = Correctness(compiling, interpret, "interpret", target("cuda:90"), limit_s=120.0)
        try:
            return {
                name: await correct.check(task, Candidate(source=task.start), task.checks, (0,))
                for name, task in tasks.items()
            }
        finally:
            await asyncio.gather(compiling.close(), interpret.close())

    return asyncio.run(check())


def test_there_is_an_example_of_every_promised_kind() -> None:
    assert {"rms_norm", "layer_norm", "softmax", "cross_entropy", "swiglu", "matmul"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_start_is_right_at_every_reduced_size(name: str, checked: dict[str, Checked]) -> None:
    assert checked[name].status is Status.PASS, checked[name].detail


@pytest.mark.parametrize("name", NAMES)
def test_the_start_stands_alone_and_carries_no_reference(name: str, tasks: dict[str, Task]) -> None:
    start = tasks[name].start
    tree = ast.parse(start)
    assert all(is_allowed(package) for _, package in imports(tree))
    assert "def reference" not in start
    assert "@triton.jit" in start


@pytest.mark.parametrize("name", NAMES)
def test_full_sizes_are_real_and_reduced_ones_are_small(name: str, tasks: dict[str, Task]) -> None:
    task = tasks[name]
    for cases, low, high in ((task.cases, 1 << 20, 1 << 28), (task.checks, 1, 1 << 17)):
        for case in cases:
            largest = max(_elements(tensor) for tensor in resolve(task, case).values() if isinstance(tensor, Tensor))
            assert low <= largest <= high, case.name


def _elements(tensor: Tensor) -> int:
    product = 1
    for size in tensor.shape:
        product *= size
    return product


def test_kernels_of_other_projects_are_not_kept_here() -> None:
    for path in EXAMPLES:
        text = path.read_text()
        assert ("start = " in text) != ("@triton.jit" in text), path.name
