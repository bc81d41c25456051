"""What candidates are tried on: reproducible, of the right dtype and layout, different where it must be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.harness.errors import TaskProblem
from tilewright.harness.judge.inputs import described, draw, drawn
from tilewright.harness.judge.numbers import array, real
from tilewright.harness.types import Scalar, Tensor

KINDS = st.sampled_from(["float16", "bfloat16", "float32", "float64", "int8", "int64", "bool", "uint8"])


def tensor(dtype: str = "float32", shape: tuple[int, ...] = (50, 40), **more: object) -> Tensor:
    values = "normal" if dtype.startswith(("float", "bfloat")) else "integers"
    return Tensor(name="x", shape=shape, dtype=dtype, **{"values": values, "low": 0, "high": 2, **more})  # type: ignore[arg-type]


@given(KINDS, st.integers(0, 2**63), st.text(max_size=10))
def test_the_same_key_draws_the_same_values(dtype: str, seed: int, case: str) -> None:
    first, again = (draw(tensor(dtype, (7, 3)), seed=seed, case=case) for _ in range(2))
    assert bytes(first.data) == bytes(again.data)
    assert (first.dtype, first.shape) == (dtype, (7, 3))


def test_seed_case_and_argument_each_change_the_values() -> None:
    base = bytes(draw(tensor(), seed=0, case="a").data)
    assert base != bytes(draw(tensor(), seed=1, case="a").data)
    assert base != bytes(draw(tensor(), seed=0, case="b").data)
    other = Tensor(name="y", shape=(50, 40), dtype="float32")
    assert base != bytes(draw(other, seed=0, case="a").data)


def test_normal_uniform_and_whole_values_are_distributed_as_asked() -> None:
    normal = real(draw(tensor(), seed=0, case="a"))
    assert abs(normal.mean()) < 0.1
    assert abs(normal.std() - 1) < 0.1
    uniform = real(draw(tensor(values="uniform", low=-3.0, high=5.0), seed=0, case="a"))
    assert -3 <= uniform.min() < -2.5
    assert 4.5 < uniform.max() < 5
    whole = array(draw(tensor("int64", values="integers", low=-2, high=3), seed=0, case="a"))
    assert set(np.unique(whole)) == {-2, -1, 0, 1, 2}
    truth = array(draw(tensor("bool"), seed=0, case="a"))
    assert set(np.unique(truth)) == {False, True}


def test_elements_that_share_memory_are_equal() -> None:
    shared = draw(tensor(shape=(4, 5), strides=(0, 1)), seed=0, case="a")
    rows = real(shared)
    assert np.array_equal(rows[0], rows[3])
    windows = real(draw(tensor(shape=(4, 5), strides=(1, 1)), seed=0, case="a"))
    assert windows[1, 0] == windows[0, 1]


def test_a_range_that_does_not_fit_its_dtype_is_the_tasks_problem() -> None:
    with pytest.raises(TaskProblem, match="do not fit int8"):
        draw(tensor("int8", values="integers", low=0, high=1000), seed=0, case="a")


def test_a_dtype_that_cannot_be_drawn_is_the_tasks_problem() -> None:
    with pytest.raises(TaskProblem, match="float8_e5m2"):
        draw(tensor("float8_e5m2"), seed=0, case="a")


def test_a_job_lists_arguments_in_order_and_carries_the_tensors_values() -> None:
    resolved: dict[str, Tensor | Scalar] = {"eps": 1e-6, "x": tensor("bfloat16", (3,)), "mode": "mean"}
    assert [each["name"] for each in described(resolved) if isinstance(each, dict)] == ["eps", "x", "mode"]
    assert list(drawn(resolved, seed=0, case="a")) == ["x"]
