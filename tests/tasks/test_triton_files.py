"""Triton task files: what is read from them, and each mistake against its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.harness.errors import TaskProblem
from tilewright.harness.tasks import load_task
from tilewright.harness.types import TensorSpec

GOOD = '''"""Scale rows."""
import math

import torch
import triton
import triton.language as tl

family = "elementwise"
mutates = ["out"]
precision = "tf32"
tolerance = 1e-3
inputs = {
    "args": {"x": "T[M, N]", "out": "T[M, N]", "scale": 2.0, "mode": "exact"},
    "cases": [
        {"M": 4096, "N": 1000, "T": "float16", "weight": 3},
        {"name": "thin", "M": 65536, "N": 64, "T": "float32"},
    ],
}


def only_for_reference(x):
    return x * math.pi


def reference(x, out, scale, mode):
    out.copy_(only_for_reference(x) * scale)


# What one program does.
@triton.jit
def kernel(x_ptr, out_ptr, n, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # offsets
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * scale, mask=at < n)


def launch(x, out, scale, mode):
    kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), scale * 3.14159265, BLOCK=256)
'''


def task_file(folder: Path, text: str) -> str:
    path = folder / "task.py"
    path.write_text(text)
    return str(path)


def problem(folder: Path, text: str) -> TaskProblem:
    with pytest.raises(TaskProblem) as error:
        load_task(task_file(folder, text))
    return error.value


def test_a_good_file_is_read_without_running_it(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    text = GOOD + f"\nopen({str(marker)!r}, 'w').close()\n"
    task = load_task(task_file(tmp_path, text))
    assert not marker.exists()
    assert (task.name, task.kind, task.entry) == ("task", "triton", "launch")
    assert task.source == text
    assert list(task.args) == ["x", "out", "scale", "mode"]
    assert task.args["x"] == TensorSpec(shape=("M", "N"), dtype="T")
    assert [(c.name, c.weight) for c in task.cases] == [("M=4096 N=1000 T=float16", 3.0), ("thin", 1.0)]
    assert (task.family, task.mutates, task.precision, task.tolerance) == ("elementwise", ("out",), "tf32", 1e-3)


def test_the_start_carries_nothing_of_the_reference(tmp_path: Path) -> None:
    start = load_task(task_file(tmp_path, GOOD)).start
    for word in ("reference", "inputs", "mutates", "family", "precision", "tolerance", "math", "Scale rows"):
        assert word not in start
    assert "# What one program does.\n@triton.jit\ndef kernel(" in start
    assert "# offsets" in start
    compile(start, "start", "exec")


def test_a_check_takes_missing_names_from_the_first_case(tmp_path: Path) -> None:
    text = GOOD.replace('    "cases"', '    "check": [{"M": 5, "N": 257}, {"N": 31, "T": "float32"}],\n    "cases"')
    checks = load_task(task_file(tmp_path, text)).checks
    assert [dict(c.bindings) for c in checks] == [
        {"M": 5, "N": 257, "T": "float16"},
        {"M": 4096, "N": 31, "T": "float32"},
    ]


def test_an_undeclared_family_is_read_from_the_reference(tmp_path: Path) -> None:
    text = GOOD.replace('family = "elementwise"\n', "").replace("x * math.pi", "torch.softmax(x, -1)")
    assert load_task(task_file(tmp_path, text)).family == "softmax"


def test_another_start_may_be_given(tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("import torch\ndef launch(x, out, scale, mode):\n    out.copy_(x)\n")
    task = load_task(task_file(tmp_path, GOOD), str(other))
    assert task.start == other.read_text()


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("def launch(x, out, scale, mode):", "def launch(x, out scale):", 36, "syntax error"),
        ("def reference(", "def referenz(", None, "no function reference"),
        ("def launch(", "def lunch(", None, "no function launch"),
        ("inputs = {", "inputz = {", None, "no inputs"),
        ("def reference(x, out, scale, mode)", "def reference(x, scale, mode)", 25, "does not take the arguments"),
        ("def launch(x, out, scale, mode)", "def launch(x, out, mode, scale)", 36, "does not take the arguments"),
        ("def launch(x, out, scale, mode)", "def launch(*args)", 36, "does not take the arguments"),
        ('"M": 4096', '"M": 4 * K', 15, "must be plain values, found 'K'"),
        ('"M": 4096', '"M": 1 + 4096', 15, "must be plain values"),
        ('"T[M, N]", "out"', '"T[M, N", "out"', 13, "expected `DTYPE[SIZE"),
        ('"T[M, N]", "out"', '"T[M, K]", "out"', 15, "does not bind 'K'"),
        ('"float16", "weight"', '"half", "weight"', 15, "torch calls it 'float16'"),
        ('"weight": 3', '"weight": 0', 15, "weight must be a number above 0"),
        ('"weight": 3', '"weight": True', 15, "weight must be a number above 0"),
        ('"weight": 3', '"wieght": 3', 15, "binds 'wieght', which no argument uses"),
        ('"M": 4096', '"M": -1', 15, "must be at least 1"),
        ('"name": "thin"', '"name": "M=4096 N=1000 T=float16"', 16, "a second case named"),
        ('"name": "thin"', '"name": ""', 16, "name must be a string"),
        ('mutates = ["out"]', 'mutates = ["output"]', 9, "mutates names 'output'"),
        ('mutates = ["out"]', 'mutates = ["scale"]', 9, "no tensor argument"),
        ('mutates = ["out"]', 'mutates = "out"', 9, "must be a list"),
        ('mutates = ["out"]', "mutates = names()", 9, "must be a plain value"),
        ('precision = "tf32"', 'precision = "fp8"', 10, "precision must be one of strict, tf32, half"),
        ("tolerance = 1e-3", "tolerance = -1", 11, "tolerance must be a number"),
        ('family = "elementwise"', 'family = "soft"', 8, "family must be one of"),
        ('"mode": "exact"}', '"mode": [1]}', 13, "expected a tensor's spec"),
        ('"mode": "exact"}', '"mode": ...}', 13, "is not filled in"),
        ('"mode": "exact"}', '"x": "T[M]"}', 13, "'x' is given twice"),
        ("    out.copy_(only_for_reference(x) * scale)", "    raise NotImplementedError", 25, "not filled in"),
        ("import math", "import numpy", None, ""),
    ],
)
def test_a_mistake_is_reported_with_its_line(tmp_path: Path, old: str, new: str, line: int | None, says: str) -> None:
    assert GOOD.count(old) == 1
    text = GOOD.replace(old, new)
    if not says:  # what only the reference imports is its own affair
        load_task(task_file(tmp_path, text))
        return
    found = problem(tmp_path, text)
    assert says in str(found)
    assert found.line == line
    where = f"{tmp_path / 'task.py'}:{line}: " if line else f"{tmp_path / 'task.py'}: "
    assert str(found).startswith(where)


def test_a_start_that_imports_more_than_a_worker_has_is_refused(tmp_path: Path) -> None:
    found = problem(tmp_path, GOOD.replace("    kernel[(", "    import numpy\n    kernel[("))
    assert "import of 'numpy'" in str(found)
    assert found.line == 37
    assert found.remedy


@pytest.mark.parametrize(
    ("cases", "says"),
    [("[]", "inputs['cases'] is empty"), ("{}", "must be a list of dicts"), ("[3]", "must be a dict")],
)
def test_a_task_without_cases_is_refused(tmp_path: Path, cases: str, says: str) -> None:
    before, _, rest = GOOD.partition('"cases": [')
    text = before + f'"cases": {cases},\n}}' + rest.partition("],\n}")[2]
    assert says in str(problem(tmp_path, text))


def test_a_file_that_is_not_one_is_named(tmp_path: Path) -> None:
    for name, says in [("missing.py", "does not exist"), (".", "is a folder")]:
        with pytest.raises(TaskProblem, match=says):
            load_task(str(tmp_path / name))
    (tmp_path / "latin.py").write_bytes(b"# one\n# caf\xe9\n")
    with pytest.raises(TaskProblem, match="not UTF-8") as error:
        load_task(str(tmp_path / "latin.py"))
    assert error.value.line == 2


def test_a_function_alone_is_no_task(tmp_path: Path) -> None:
    with pytest.raises(TaskProblem) as error:
        load_task("some_package.kernels:softmax")
    assert "tilewright scaffold some_package.kernels:softmax -o softmax.py" in error.value.remedy


def test_the_example_of_the_manual_is_a_task(tmp_path: Path) -> None:
    manual = (Path(__file__).resolve().parents[2] / "docs" / "tasks.md").read_text()
    text = manual.partition("```python\n")[2].partition("```")[0]
    task = load_task(task_file(tmp_path, text))
    assert task.family == "normalisation"
    assert [c.name for c in task.cases] == ["M=4096 N=4096 T=float16", "heads"]
    assert dict(task.checks[1].bindings) == {"M": 3, "N": 4096, "T": "float16"}
