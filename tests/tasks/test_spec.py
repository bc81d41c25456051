"""The language of tensors' specs: what it means, and what it says of mistakes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.harness.errors import TaskProblem
from tilewright.harness.tasks.spec import SpecError, evaluate, parse_spec, resolve, resolve_one
from tilewright.harness.types import Case, Scalar, Task, Tensor, TensorSpec

NAMES: dict[str, Scalar] = {"M": 6, "N": 35, "T": "float16"}


def tensor(text: str, **bindings: Scalar) -> Tensor:
    resolved = resolve_one("x", parse_spec(text), bindings or NAMES)
    assert isinstance(resolved, Tensor)
    return resolved


@given(a=st.integers(-99, 99), b=st.integers(-99, 99), c=st.integers(1, 99))
def test_expressions_mean_what_python_means(a: int, b: int, c: int) -> None:
    names = {"a": a, "b": b, "c": c}
    for text in ("a + b * c", "(a - b) // c", "-a + 3 * (b + 2)", "a * b - c // 2"):
        assert evaluate(text, names) == eval(text, {}, names)


def test_a_spec_gives_shape_dtype_strides_and_values() -> None:
    assert tensor("T[M, 2 * N] strides[2 * N + 1, 1]") == Tensor(
        name="x", shape=(6, 70), dtype="float16", strides=(71, 1), low=0, high=1
    )
    assert tensor("int64[M] integers[0, N - 1]") == Tensor(
        name="x", shape=(6,), dtype="int64", values="integers", low=0, high=34
    )
    assert tensor("float32[M] uniform[-0.5, 0.5]").low == -0.5


def test_a_tensor_of_no_dimensions_has_one_element() -> None:
    assert tensor("float32[]").shape == ()


def test_booleans_need_no_range() -> None:
    assert tensor("bool[M]") == Tensor(name="x", shape=(6,), dtype="bool", values="integers", low=0, high=2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("T[M, N", "expected `DTYPE[SIZE"),
        ("[M]", "expected `DTYPE[SIZE"),
        ("T[M,, N]", "expected an expression"),
        ("T[M] strides[1, 1]", "expected 1 strides"),
        ("T[M] stride[1]", "expected strides[…], integers"),
        ("T[M] integers[0, 4] integers[0, 4]", "given twice"),
        ("T[M] integers[0, 4] uniform[0, 1]", "found both"),
        ("T[M] integers[4]", "expected integers[LOW, HIGH]"),
        ("T[M @ N]", "expected names, numbers"),
        ("T[f(M)]", "expected names, numbers"),
        ("T[M / 2]", "expected names, numbers"),
        ("T[M // (N - 35)]", "divides by zero"),
        ("T[K]", "'K' in 'K' is not bound; the case binds M, N, T"),
        ("T[T]", "must be a whole number"),
        ("T[M - 6]", "must be at least 1"),
        ("T[M - 9]", "is -3, and must be at least 1"),
        ("T[M] strides[-1]", "must not be negative"),
        ("float31[M]", "neither a dtype nor a name that the case binds"),
        ("fp16[M]", "torch calls it 'float16'"),
        ("M[M]", "expected a torch dtype's name"),
        ("int64[M]", "write integers[LOW, HIGH]"),
        ("int64[M] integers[4, 4]", "is empty"),
        ("int64[M] integers[0, 0.5]", "expected names, numbers"),
    ],
)
def test_a_mistake_says_what_was_expected(text: str, says: str) -> None:
    with pytest.raises(SpecError) as error:
        tensor(text)
    assert says in str(error.value)


def test_a_string_argument_named_like_a_binding_takes_its_value() -> None:
    task = Task(
        name="t",
        kind="triton",
        path="t.py",
        source="",
        start="",
        entry="launch",
        args={"x": parse_spec("T[M]"), "k": "K", "mode": "mean", "flag": True},
    )
    case = Case(name="c", bindings={"M": 4, "T": "float32", "K": 3})
    assert resolve(task, case) == {
        "x": Tensor(name="x", shape=(4,), dtype="float32", low=0, high=1),
        "k": 3,
        "mode": "mean",
        "flag": True,
    }


def test_a_case_that_does_not_fit_is_the_task_s_mistake() -> None:
    args = {"x": TensorSpec(shape=("M",), dtype="float32")}
    task = Task(name="t", kind="triton", path="t.py", source="", start="", entry="launch", args=args)
    with pytest.raises(TaskProblem, match=r"t\.py: case 'c'.*'M'"):
        resolve(task, Case(name="c", bindings={}))
