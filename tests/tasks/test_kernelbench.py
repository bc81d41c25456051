"""KernelBench files: the sizes at their top, and what is missing from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.harness.errors import TaskProblem
from tilewright.harness.tasks import load_task
from tilewright.harness.tasks.kernelbench import substitute

GOOD = """import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.softmax(x * self.scale, dim=1)

batch_size = 4096  # rows
dim = 393 * 1024
shape = (64, 3)
limit: int = 7
ratio = 0.5
fast = True
derived = dim // 2
twice = 3
twice = 4

def get_inputs():
    return [torch.rand(batch_size, dim)]

def get_init_inputs():
    return [2.0]
"""
START = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "23_Softmax.py"
    path.write_text(GOOD)
    return path


def test_whole_numbers_at_the_top_are_the_sizes(file: Path) -> None:
    task = load_task(str(file))
    assert (task.kind, task.entry, task.start, task.family) == ("kernelbench", "ModelNew", "", "softmax")
    assert dict(task.cases[0].bindings) == {
        "batch_size": 4096,
        "dim": 393 * 1024,
        "shape[0]": 64,
        "shape[1]": 3,
        "limit": 7,
    }
    for check in task.checks:
        assert check.bindings["shape[1]"] == 3
        dim = check.bindings["dim"]
        assert isinstance(dim, int)
        assert dim < 4096


def test_substitution_changes_the_numbers_and_nothing_else(file: Path) -> None:
    changed = substitute(GOOD, {"batch_size": 5, "dim": 33, "shape[0]": 17, "limit": 2})
    assert changed == (
        GOOD.replace("4096  # rows", "5  # rows")
        .replace("393 * 1024", "33")
        .replace("(64, 3)", "(17, 3)")
        .replace("int = 7", "int = 2")
    )
    assert substitute(GOOD, {}) == GOOD


def test_substituting_what_is_not_there_names_what_is(file: Path) -> None:
    with pytest.raises(TaskProblem, match=r"named twice .*batch_size, dim"):
        substitute(GOOD, {"twice": 1})


def test_a_start_must_define_the_new_model(file: Path, tmp_path: Path) -> None:
    start = tmp_path / "start.py"
    start.write_text(START)
    assert load_task(str(file), str(start)).start == START
    start.write_text(START.replace("ModelNew", "Modell"))
    with pytest.raises(TaskProblem, match=r"does not define 'ModelNew'; it defines Modell"):
        load_task(str(file), str(start))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("class Model(", "class Modell(", "no class Model"),
        ("def forward(", "def backward(", "has no forward"),
        ("def get_inputs(", "def inputs(", r"no function get_inputs\(\)"),
        ("def get_init_inputs(", "def init_inputs(", r"no function get_init_inputs\(\)"),
        ("def get_inputs()", "def get_inputs(n)", "must take no arguments"),
    ],
)
def test_a_file_that_lacks_a_part_says_which(file: Path, old: str, new: str, says: str) -> None:
    file.write_text(GOOD.replace(old, new))
    with pytest.raises(TaskProblem, match=says) as error:
        load_task(str(file))
    assert str(file) in str(error.value)
