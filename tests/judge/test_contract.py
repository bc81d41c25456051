"""What counts as right: honest rounding passes, everything that only looks right does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tilewright.harness.judge.admission import weaknesses
from tilewright.harness.judge.contract import Expected, Finding, check, expect
from tilewright.harness.judge.numbers import Array, array, real, to_blob, ulp
from tilewright.harness.judge.pattern import pattern
from tilewright.harness.types import Failure
from tilewright.harness.worker.wire import Blob

Function = Callable[..., Array]


def contract(
    function: Function, inputs: list[Array], dtype: str = "float32", seed: int = 0, **settings_: Any
) -> tuple[Expected, Array]:
    """The contract of a numpy function, as the reference's worker would make it, and its result in its own dtype."""
    rng = np.random.default_rng(seed)
    rounded = [real(to_blob(x, dtype)) for x in inputs]
    kind = np.float64 if dtype == "float64" else np.float32
    native = function(*[x.astype(kind) for x in rounded])
    tensors = {"native:out0": to_blob(native, dtype), "exact:out0": to_blob(function(*rounded), "float64")}
    for run in range(3):
        near = [x * (1 + rng.uniform(-1, 1, x.shape) * 2.0**-24) for x in rounded]
        tensors[f"moved{run}:out0"] = to_blob(function(*near) - function(*rounded), "float32")
    longest = max(n for x in inputs for n in x.shape)
    made = expect({"exact": "float64"}, tensors, case="c", seed=seed, longest=longest, **settings_)
    return made, native


def judged(expected: Expected, values: Array, dtype: str = "float32") -> Finding:
    return check(expected, {"out0": to_blob(np.asarray(values), dtype)})


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def normals(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


# --- honest kernels ---------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 600), st.sampled_from([1, 2, 3, 7]))
def test_a_sum_in_another_order_passes(seed: int, columns: int, rows: int) -> None:
    x = normals(rows, columns, seed=seed)
    expected, _ = contract(lambda x: x.sum(-1), [x], seed=seed)
    narrow = x.astype(np.float32)
    one_by_one = np.zeros(rows, np.float32)
    for column in range(columns):
        one_by_one += narrow[:, column]
    assert judged(expected, one_by_one).failure is None
    assert judged(expected, narrow[:, ::-1].sum(-1, dtype=np.float32)).failure is None


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([16, 64, 500, 2048]))
def test_a_product_summed_in_blocks_and_one_by_one_passes(seed: int, inner: int) -> None:
    a, b = normals(9, inner, seed=seed), normals(inner, 11, seed=seed + 1)
    expected, _ = contract(np.matmul, [a, b], seed=seed)
    x, y = a.astype(np.float32), b.astype(np.float32)
    blocked = np.zeros((9, 11), np.float32)
    for start in range(0, inner, 32):
        blocked += x[:, start : start + 32] @ y[start : start + 32]
    one_by_one = np.zeros((9, 11), np.float32)
    for k in range(inner):
        one_by_one += x[:, k, None] * y[None, k]
    assert judged(expected, blocked).failure is None
    assert judged(expected, one_by_one).failure is None


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3000))
def test_a_softmax_by_powers_of_two_passes(seed: int, columns: int) -> None:
    x = normals(4, columns, seed=seed)
    expected, _ = contract(softmax, [x], seed=seed)
    narrow = x.astype(np.float32)
    scaled = (narrow - narrow.max(-1, keepdims=True)) * np.float32(np.log2(np.e))
    e = np.exp2(scaled)
    assert judged(expected, e / e.sum(-1, keepdims=True, dtype=np.float32)).failure is None


def test_rows_in_which_large_numbers_cancel_do_not_fail_an_honest_kernel() -> None:
    x = normals(6, 400)
    x[3] += 3000.0

    def centred(x: Array) -> Array:
        return np.asarray(x - x.mean(-1, keepdims=True))

    expected, _ = contract(centred, [x])
    narrow = x.astype(np.float32)
    mean = np.float32(0)
    means = []
    for row in narrow:
        mean = np.float32(0)
        for value in row:
            mean += value
        means.append(mean / np.float32(400))
    assert judged(expected, narrow - np.array(means, np.float32)[:, None]).failure is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_half_precision_kernel_that_computes_in_float32_passes(dtype: str) -> None:
    expected, native = contract(softmax, [normals(8, 1000)], dtype)
    assert judged(expected, native, dtype).failure is None


# --- what must not pass -----------------------------------------------------------------------------------

FUNCTIONS: dict[str, tuple[Function, list[Array]]] = {
    "softmax over many columns": (softmax, [normals(2, 50_000)]),
    "normalisation": (lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6), [normals(8, 300)]),
    "matrix product": (np.matmul, [normals(17, 256), normals(256, 19, seed=1)]),
    "row sums": (lambda x: x.sum(-1), [normals(64, 200)]),
    "frobenius norm": (lambda x: np.sqrt((x * x).sum()), [normals(64, 64)]),
    "scale": (lambda x: x * 3, [normals(100)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_results_that_need_no_work_fail(name: str, dtype: str) -> None:
    function, inputs = FUNCTIONS[name]
    expected, native = contract(function, inputs, dtype)
    native = np.asarray(native, np.float64)
    assert judged(expected, np.zeros_like(native), dtype).failure is Failure.WRONG
    if native.size > 1:
        assert judged(expected, np.full_like(native, native.mean()), dtype).failure is not None
        half_done = native.copy()
        half_done.reshape(-1)[-1] = 0
        assert judged(expected, half_done, dtype).failure is Failure.WRONG


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_result_with_half_precision_inside_fails_for_its_precision(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    expected, _ = contract(function, inputs)
    halves = [x.astype(np.float16).astype(np.float32) for x in inputs]
    finding = judged(expected, function(*halves).astype(np.float16).astype(np.float32))
    assert finding.failure is Failure.PRECISION


def test_a_tf32_product_fails_a_strict_contract_and_passes_its_own() -> None:
    a, b = normals(32, 512), normals(512, 32, seed=1)

    def cut(x: Array) -> Array:
        return (x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)

    product = cut(a) @ cut(b)
    assert judged(contract(np.matmul, [a, b])[0], product).failure is Failure.PRECISION
    assert judged(contract(np.matmul, [a, b], precision="tf32")[0], product).failure is None
    zeros = np.zeros_like(product)
    assert judged(contract(np.matmul, [a, b], precision="tf32")[0], zeros).failure is Failure.WRONG


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_element_that_is_not_finite_fails(bad: float) -> None:
    expected, native = contract(softmax, [normals(4, 30)])
    native = native.copy()
    native[2, 7] = bad
    finding = judged(expected, native)
    assert finding.failure is Failure.WRONG
    assert "[2, 7]" in finding.detail


def test_not_a_number_is_right_only_where_the_reference_has_it() -> None:
    x = np.array([[1.0, -1.0, 4.0, np.inf]])
    with np.errstate(invalid="ignore"):
        expected, native = contract(np.sqrt, [x])
        assert judged(expected, native).failure is None
        assert judged(expected, np.full_like(native, np.nan)).failure is Failure.WRONG
        assert judged(expected, np.array([[1.0, 0.0, 2.0, np.inf]])).failure is Failure.WRONG
        assert judged(expected, np.array([[1.0, np.nan, 2.0, -np.inf]])).failure is Failure.WRONG


@given(npst.arrays(np.float32, (3, 8), elements=st.floats(-100, 100, width=32)), st.integers(0, 23))
def test_any_single_element_that_is_off_is_found(x: Array, at: int) -> None:
    expected, native = contract(lambda x: x * 2 + 1, [x.astype(np.float64)])
    wrong = native.astype(np.float64)
    wrong.reshape(-1)[at] += np.abs(wrong).max() * 0.01 + 0.01
    assert judged(expected, wrong).failure is not None
    assert judged(expected, native).failure is None


def test_shape_and_dtype_and_number_of_results_are_part_of_the_contract() -> None:
    expected, native = contract(softmax, [normals(4, 6)])
    assert "float32[4, 6]" in judged(expected, native.reshape(6, 4)).detail
    assert judged(expected, native, "float16").failure is Failure.WRONG
    assert "expected 1 results, found 0" in check(expected, {}).detail
    two = {"out0": to_blob(native, "float32"), "out1": to_blob(native, "float32")}
    assert "expected 1 results, found 2" in check(expected, two).detail


def test_whole_numbers_must_be_equal() -> None:
    index = np.arange(20, dtype=np.int64)
    expected = expect({"exact": "float64"}, {"native:out0": to_blob(index, "int64")}, case="c", seed=0, longest=20)
    assert check(expected, {"out0": to_blob(index, "int64")}).failure is None
    finding = check(expected, {"out0": to_blob(np.where(index == 19, 0, index), "int64")})
    assert finding.failure is Failure.WRONG
    assert "expected 19 at [19], found 0" in finding.detail


def test_a_reference_without_float64_stands_alone_and_says_so() -> None:
    native = to_blob(normals(4, 4), "float32")
    expected = expect(
        {"exact": "native", "exact_note": "no kernel for double"}, {"native:out0": native}, case="c", seed=0, longest=4
    )
    assert expected.notes == ("float64 reference (no kernel for double)",)
    assert check(expected, {"out0": native}).failure is None
    assert check(expected, {"out0": to_blob(real(native) * 1.01, "float32")}).failure is not None


def test_a_reference_that_disagrees_with_itself_in_float64_stands_alone() -> None:
    native = normals(4, 4)
    tensors = {"native:out0": to_blob(native, "float32"), "exact:out0": to_blob(native + 1, "float64")}
    expected = expect({"exact": "float64"}, tensors, case="c", seed=0, longest=4)
    assert "float64 reference of out0" in expected.notes[0]
    assert judged(expected, native).failure is None


def test_the_tasks_own_tolerance_takes_the_place_of_the_published_one() -> None:
    x = normals(4, 100)
    loose, native = contract(softmax, [x], tolerance=1e-7)
    assert judged(loose, native * (1 + 1e-6)).failure is not None


# --- words ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda m: m.fill(True), "every element is wrong"),
        (lambda m: m.__setitem__((2, 3), True), "index 2 of dimension 0 and index 3 of dimension 1"),
        (lambda m: m.__setitem__(slice(6, None), True), "the tail from index 6 of dimension 0"),
        (lambda m: m.__setitem__((slice(None), slice(1, None, 4)), True), "every 4th index from 1 of dimension 1"),
        (lambda m: m.__setitem__((slice(None), slice(3, 5)), True), "indices 3 to 4 of dimension 1"),
    ],
)
def test_where_the_wrong_elements_lie_is_said_in_words(make: Callable[[Array], None], expected: str) -> None:
    mask = np.zeros((8, 12), bool)
    make(mask)
    assert expected in pattern(mask)


@given(st.floats(-(2.0**100), 2.0**100, width=32))
def test_an_ulp_is_the_step_to_the_next_number(value: float) -> None:
    step = float(ulp(np.array([value]), "float32")[0])
    beyond = abs(float(np.nextafter(np.float32(abs(value)), np.float32(np.inf)))) - abs(value)
    assert step >= beyond
    if abs(value) >= 2.0**-126:
        assert step == beyond


# --- admission --------------------------------------------------------------------------------------------


def admitted(function: Function, *shapes: tuple[int, ...], dtype: str = "float32") -> list[str]:
    """Weaknesses of a task made of a numpy function."""
    contracts = []
    for seed in (0, 1):
        inputs = [normals(*shape, seed=10 * seed + i) for i, shape in enumerate(shapes)]
        made, _ = contract(function, inputs, dtype, seed)
        halves = [x.astype(np.float16).astype(np.float64) for x in inputs]
        lower = to_blob(function(*halves).astype(np.float16), dtype)
        outputs = tuple(type(o)(o.name, o.native, o.exact, o.allowed, o.scale, lower) for o in made.outputs)
        contracts.append(Expected(made.case, made.seed, outputs))
    blobs = {f"x{i}": to_blob(normals(*shape, seed=i), dtype) for i, shape in enumerate(shapes)}
    return weaknesses(contracts[0], contracts[1], blobs)


def test_sound_tasks_are_admitted() -> None:
    assert admitted(softmax, (4, 1000)) == []
    assert admitted(np.matmul, (8, 64), (64, 8)) == []
    assert admitted(lambda x: (x * x).mean(), (64, 64)) == []


def test_a_task_whose_result_does_not_depend_on_its_inputs_is_weak() -> None:
    found = admitted(lambda x: softmax(x).sum(-1), (64, 10))
    assert "the result of other inputs" in found
    assert "the mean" in found


def test_a_task_whose_result_is_nothing_is_weak() -> None:
    assert "zeros" in admitted(lambda x: x * 0, (8, 8))


def test_a_task_that_hands_back_its_input_is_weak() -> None:
    assert admitted(lambda x: x * 1, (8, 8)) == ["the input x0"]


def test_a_task_whose_tolerance_lets_half_precision_pass_is_weak() -> None:
    made = []
    for seed in (0, 1):
        x = normals(4, 100, seed=seed)
        expected, native = contract(softmax, [x], seed=seed, tolerance=None)
        lower = to_blob(native.astype(np.float16), "float32")
        outputs = tuple(
            type(o)(o.name, o.native, o.exact, np.full(o.native.shape, 1e-3), o.scale, lower) for o in expected.outputs
        )
        made.append(Expected("c", seed, outputs))
    assert weaknesses(made[0], made[1], {}) == ["a run in lower precision"]


def test_blobs_are_arrays_and_back() -> None:
    for dtype in ("float32", "float16", "int64", "bool", "uint8"):
        values = np.array([[0, 1, 1], [1, 0, 1]])
        blob = to_blob(values, dtype)
        assert isinstance(blob, Blob)
        assert np.array_equal(array(blob), values)
