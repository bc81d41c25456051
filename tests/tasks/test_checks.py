"""Reduced sizes: small, awkward, and true to what holds between the full ones."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.harness.tasks.checks import ELEMENTS, WIDE, reduced, reduced_constants, title
from tilewright.harness.tasks.spec import parse_spec, resolve_one
from tilewright.harness.types import Case, Scalar, Tensor, TensorSpec


def case(weight: float = 1.0, **bindings: Scalar) -> Case:
    return Case(name=title(bindings), bindings=bindings, weight=weight)


ROWS: dict[str, TensorSpec | Scalar] = {"x": parse_spec("T[M, N]"), "w": parse_spec("T[N]"), "eps": 1e-6}


def sizes(cases: tuple[Case, ...], name: str) -> list[int]:
    return [v for c in cases if isinstance(v := c.bindings[name], int)]


def test_rows_are_checked_at_tails_single_rows_full_vectors_and_full_width() -> None:
    checks = reduced(ROWS, [case(M=4096, N=4096, T="float16")])
    columns, rows = sizes(checks, "N"), sizes(checks, "M")
    assert 4096 in columns
    assert 4095 in columns
    assert any(n % 16 == 0 and m % 16 == 0 for m, n in zip(rows, columns, strict=True))
    assert any(n % 2 for n in columns)
    assert any(n > 1 and math.log2(n - 1).is_integer() for n in columns)
    assert any(math.log2(n + 1).is_integer() for n in columns)
    assert 1 in rows
    assert len(checks) <= 8


def test_every_dtype_of_the_cases_is_checked() -> None:
    checks = reduced(ROWS, [case(M=512, N=512, T="float16"), case(M=512, N=512, T="bfloat16")])
    assert {c.bindings["T"] for c in checks} == {"float16", "bfloat16"}


def test_small_sizes_belong_to_the_operator_and_stay() -> None:
    checks = reduced({"x": parse_spec("T[B, H, S]")}, [case(B=512, H=12, S=2048, T="float16")])
    assert set(sizes(checks, "H")) == {12}


def test_a_size_divided_by_another_stays_a_multiple() -> None:
    args = {"x": parse_spec("float32[M, H]"), "y": parse_spec("float32[M, H // G]")}
    checks = reduced(args, [case(M=1024, H=4096, G=64)])
    assert checks
    for h, g in zip(sizes(checks, "H"), sizes(checks, "G"), strict=True):
        assert h % g == 0


def test_an_odd_multiple_stays_a_multiple() -> None:
    args = {"x": parse_spec("float32[M, E]"), "y": parse_spec("float32[M, H]")}
    checks = reduced(args, [case(M=1024, E=768, H=12)])
    assert checks
    assert all(e % 12 == 0 for e in sizes(checks, "E"))


def test_sizes_that_are_always_equal_stay_equal() -> None:
    args = {"x": parse_spec("float32[A, B]")}
    checks = reduced(args, [case(A=512, B=512), case(A=1024, B=1024)])
    assert checks
    assert sizes(checks, "A") == sizes(checks, "B")


def test_a_kept_size_that_bounds_another_still_does() -> None:
    args = {"x": parse_spec("float32[M, N]"), "out": parse_spec("float32[M, K]")}
    checks = reduced(args, [case(M=1024, N=4096, K=16)])
    assert all(n >= 16 for n in sizes(checks, "N"))


def test_very_wide_rows_are_checked_without_the_full_width() -> None:
    checks = reduced(ROWS, [case(M=64, N=1 << 20, T="float32")])
    assert checks
    assert max(sizes(checks, "N")) < 1 << 20


@given(
    m=st.integers(1, 100_000),
    n=st.integers(1, 100_000),
    k=st.integers(1, 100_000),
    dtype=st.sampled_from(["float16", "float32"]),
)
def test_reduced_cases_resolve_and_are_cheap(m: int, n: int, k: int, dtype: str) -> None:
    args = {"a": parse_spec("T[M, K]"), "b": parse_spec("T[K, N]")}
    full = case(M=m, N=n, K=k, T=dtype)
    checks = reduced(args, [full])
    assert checks
    assert len({c.name for c in checks}) == len(checks)
    for check in checks:
        for name, spec in args.items():
            resolved = resolve_one(name, spec, check.bindings)
            assert isinstance(resolved, Tensor)
            assert math.prod(resolved.shape) <= max(WIDE, ELEMENTS)
        for name in ("M", "N", "K"):
            size, most = check.bindings[name], full.bindings[name]
            assert isinstance(size, int)
            assert isinstance(most, int)
            assert 1 <= size <= max(most, 1)


def test_constants_keep_their_order_and_their_divisors() -> None:
    constants = {"batch_size": 128, "in_channels": 64, "height": 512, "width": 512, "kernel_size": 3, "groups": 8}
    checks = reduced_constants(constants)
    assert len(checks) >= 2
    for check in checks:
        now = check.bindings
        assert now["kernel_size"] == 3
        assert now["groups"] == 8
        assert now["height"] == now["width"]
        channels, height = now["in_channels"], now["height"]
        assert isinstance(channels, int)
        assert isinstance(height, int)
        assert channels % 8 == 0
        assert channels < height <= 512


@pytest.mark.parametrize("constants", [{}, {"dim": 1}, {"k": 3, "stride": 2}])
def test_constants_that_are_small_already_are_one_check(constants: dict[str, int]) -> None:
    (only,) = reduced_constants(constants)
    assert only.bindings == constants
