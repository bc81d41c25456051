"""Bad input: one line for the cause, one for the remedy, exit status 2, and no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Said, Tilewright

TASK = """
import torch
import triton
import triton.language as tl

inputs = {"args": {"x": "float32[N]"}, "cases": [{"N": 4096}], "check": [{"N": 100}]}


def reference(x):
    return x + 1


@triton.jit
def add_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


def launch(x):
    y = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
    return y
"""
KERNELBENCH = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1

n = 64

def get_inputs():
    return [torch.rand(n)]

def get_init_inputs():
    return []
"""
NEW = "import torch\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x + 1\n"


def is_a_problem(said: Said, cause: str) -> None:
    lines = said.err.splitlines()
    assert said.code == 2
    assert lines[0].startswith("error: ")
    assert cause in lines[0]
    assert lines[1].startswith("remedy: ")
    assert len(lines) == 2
    assert "Traceback" not in said.out + said.err


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "add.py"
    path.write_text(TASK)
    return path


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run directories that nobody named land here."""
    monkeypatch.chdir(tmp_path)


def test_a_missing_file(tilewright: Tilewright) -> None:
    is_a_problem(tilewright("optimize", "missing.py"), "missing.py: the task file does not exist")
    is_a_problem(tilewright("evaluate", "missing.py", "other.py"), "missing.py: the task file does not exist")


def test_a_missing_start_and_a_missing_candidate(tilewright: Tilewright, task: Path) -> None:
    is_a_problem(tilewright("optimize", task, "--start", "gone.py"), "gone.py: the start file does not exist")
    is_a_problem(tilewright("evaluate", task, "gone.py"), "gone.py: the candidate file does not exist")


def test_a_folder(tilewright: Tilewright, tmp_path: Path) -> None:
    is_a_problem(tilewright("optimize", tmp_path), "the task is a folder")


def test_a_syntax_error(tilewright: Tilewright, task: Path) -> None:
    task.write_text(TASK + "def f(:\n")
    line = TASK.count("\n") + 1
    is_a_problem(tilewright("optimize", task), f"add.py:{line}: syntax error")


@pytest.mark.parametrize("nested", ["-" * 50_000 + "1", "1" + "+1" * 2_000, "a" + ".b" * 2_000])
def test_code_that_is_nested_too_deeply(tilewright: Tilewright, task: Path, tmp_path: Path, nested: str) -> None:
    (tmp_path / "deep.py").write_text(f"{TASK}\n\nX = {nested}\n")
    for args in (("optimize", "deep.py"), ("evaluate", task, "deep.py")):
        said = tilewright(*args)
        is_a_problem(said, "deep.py")
        assert "nested" in said.err


def test_an_expression_that_is_too_long(tilewright: Tilewright, task: Path) -> None:
    task.write_text(TASK.replace("float32[N]", "float32[N" + "+1" * 2_000 + "]"))
    said = tilewright("optimize", task)
    assert said.code == 2
    assert said.err.startswith("error: ")
    assert "is too long" in said.err
    assert "Traceback" not in said.err


def test_a_home_directory_of_nobody(tilewright: Tilewright) -> None:
    is_a_problem(tilewright("optimize", "~nobody_at_all/x.py"), "does not exist")


def test_no_model(tilewright: Tilewright, tmp_path: Path) -> None:
    (tmp_path / "kb.py").write_text(KERNELBENCH.replace("class Model", "class Net"))
    is_a_problem(tilewright("optimize", "kb.py"), "no class Model")


def test_a_kernelbench_file_without_a_start(tilewright: Tilewright, tmp_path: Path) -> None:
    (tmp_path / "kb.py").write_text(KERNELBENCH)
    said = tilewright("optimize", "kb.py")
    is_a_problem(said, "no starting candidate")
    assert "--start FILE" in said.err
    assert "ModelNew" in said.err


def test_inputs_that_raise(tilewright: Tilewright, tmp_path: Path) -> None:
    (tmp_path / "kb.py").write_text(KERNELBENCH.replace("[torch.rand(n)]", "[torch.rand(n) / undefined]"))
    (tmp_path / "new.py").write_text(NEW)
    is_a_problem(tilewright("optimize", "kb.py", "--start", "new.py", "--run", "r", "--rounds", "0"), "undefined")
    assert tilewright("fsck", "r").code == 0


def test_a_start_that_does_not_compile(tilewright: Tilewright, task: Path) -> None:
    task.write_text(TASK.replace("tl.load(x_ptr + at, mask=at < n) + 1", "tl.nonsense(x_ptr + at)"))
    said = tilewright("optimize", task, "--run", "r", "--rounds", "1")
    is_a_problem(said, "the starting kernel does not pass (FAIL compile)")
    assert tilewright("fsck", "r").code == 0
    assert tilewright("log", "r").out.count("\n") == 1


def test_an_unknown_target(tilewright: Tilewright, task: Path) -> None:
    said = tilewright("optimize", task, "--target", "cuda:7")
    is_a_problem(said, "no target is called 'cuda:7'")
    assert "cuda:90" in said.err


@pytest.mark.parametrize(
    ("option", "value", "cause"),
    [
        ("--model", "clever", "there is no planner 'clever'"),
        ("--memory", "elephant", "found 'elephant'"),
        ("--policy", "greedy", "found 'greedy'"),
        ("--time-limit", "soon", "expected a duration"),
    ],
)
def test_an_option_with_a_value_it_cannot_have(
    tilewright: Tilewright, task: Path, option: str, value: str, cause: str
) -> None:
    is_a_problem(tilewright("optimize", task, option, value), cause)


def test_a_run_directory_that_is_not_one(tilewright: Tilewright, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for name in ("folder", "file", "missing"):
        for command in (("log",), ("show",), ("resume",), ("fsck",), ("export",)):
            is_a_problem(tilewright(*command, name), name)
        is_a_problem(tilewright("diff", name, 0, 1), name)


def test_a_run_directory_in_use(tilewright: Tilewright, task: Path, finished_run: Path) -> None:
    is_a_problem(tilewright("optimize", task, "--run", finished_run), "holds a run already")
    is_a_problem(tilewright("optimize", task, "--run", task.parent), "is not empty")
    is_a_problem(tilewright("optimize", task, "--run", task), "is a file")


def test_a_directory_that_cannot_be_written(tilewright: Tilewright, task: Path) -> None:
    is_a_problem(tilewright("optimize", task, "--run", "/proc/here"), "/proc/here")


def test_a_round_that_is_not_there(tilewright: Tilewright, finished_run: Path) -> None:
    is_a_problem(tilewright("show", finished_run, 99), "no round 99")
    is_a_problem(tilewright("diff", finished_run, 0, 99), "no round 99")


def test_a_function_that_cannot_be_scaffolded(tilewright: Tilewright, task: Path) -> None:
    is_a_problem(tilewright("scaffold", "no_such_package_here:f"), "no module 'no_such_package_here'")
    is_a_problem(tilewright("scaffold", "launch"), "expected package.module:function")
    is_a_problem(tilewright("scaffold", f"{task}:launch", "-o", task), "exists already")
    is_a_problem(tilewright("optimize", "no_such_package_here:f"), "needs a reference and inputs")


def test_a_candidate_that_no_worker_could_load(tilewright: Tilewright, task: Path, tmp_path: Path) -> None:
    candidate = tmp_path / "candidate.py"
    candidate.write_text(TASK.replace("import torch\n", "import torch\nimport numpy\n"))
    is_a_problem(tilewright("evaluate", task, candidate), "candidate.py:3: import of 'numpy'")
    candidate.write_text("import torch\n")
    is_a_problem(tilewright("evaluate", task, candidate), "does not define 'launch'")


def test_mistaken_arguments_end_with_2_and_say_how_to_call(tilewright: Tilewright) -> None:
    for args in (("optimize",), ("nonsense",), ("optimize", "x.py", "--rounds", "many"), ("log", "r", "--nonsense")):
        said = tilewright(*args)
        assert said.code == 2
        assert "Usage: " in said.err
        assert "Traceback" not in said.err


def test_a_file_that_begins_with_a_byte_order_mark_is_read(tilewright: Tilewright, task: Path) -> None:
    task.write_text(TASK.replace("def reference", "def other"), encoding="utf-8-sig")
    is_a_problem(tilewright("optimize", task), "no function reference")


def test_checks_that_do_not_fit_into_memory(tilewright: Tilewright, task: Path) -> None:
    task.write_text(TASK.replace('{"N": 100}', '{"N": 1000000000000000}'))
    is_a_problem(tilewright("evaluate", task, task), "do not fit into this machine's memory")


def test_a_task_or_an_export_that_could_not_be_written_whole_is_not_left(tmp_path: Path, finished_run: Path) -> None:
    limited = 'ulimit -f 1; exec "$@" 2>&1'  # a kilobyte a file: less than any task
    function = "liger_kernel.ops.swiglu:swiglu_forward"
    for args in (("scaffold", function, "-o", "task.py"), ("export", finished_run, "-o", "best")):
        command = ["bash", "-c", limited, "-", sys.executable, "-m", "tilewright.harness.cli.app", *map(str, args)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, "File too large" in done.stdout) == (2, True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
