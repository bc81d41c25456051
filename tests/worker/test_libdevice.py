"""The device library and float scalars, in Triton's interpreter."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pytest


class Interpreter(Protocol):
    def result(self, source: str, **args: Any) -> npt.NDArray[Any]: ...
    def failure(self, source: str, **args: Any) -> tuple[str, str]: ...


HEAD = """
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.language.extra.libdevice import rsqrt

"""

APPLY = (
    HEAD
    + """
@triton.jit
def apply(x, y, o, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    m = i < n
    a, b = tl.load(x + i, mask=m, other=1), tl.load(y + i, mask=m, other=1)
    tl.store(o + i, (EXPRESSION), mask=m)


def launch(x, y):
    o = torch.empty(x.numel(), dtype=RESULT, device=x.device)
    apply[(1,)](x, y, o, x.numel(), BLOCK=128)
    return o
"""
)

X = np.linspace(-2.9, 2.9, 59, dtype=np.float32)
POSITIVE = np.linspace(0.01, 9.0, 59, dtype=np.float32)
UNIT = np.linspace(-0.99, 0.99, 59, dtype=np.float32)


def each(function: Callable[..., float]) -> Callable[..., npt.NDArray[np.float64]]:
    return np.vectorize(function, otypes=[np.float64])


@pytest.mark.parametrize(
    ("expression", "x", "expected"),
    [
        ("rsqrt(a)", POSITIVE, lambda x: 1 / np.sqrt(x)),
        ("libdevice.tanh(a)", X, np.tanh),
        ("libdevice.erf(a)", X, each(math.erf)),
        ("libdevice.erfc(a)", X, each(math.erfc)),
        ("libdevice.exp(a)", X, np.exp),
        ("libdevice.exp10(a)", X, lambda x: 10.0**x),
        ("libdevice.log1p(a)", POSITIVE, np.log1p),
        ("libdevice.expm1(a)", X, np.expm1),
        ("libdevice.lgamma(a)", POSITIVE, each(math.lgamma)),
        ("libdevice.tgamma(a)", POSITIVE, each(math.gamma)),
        ("libdevice.acos(a)", UNIT, np.arccos),
        ("libdevice.atanh(a)", UNIT, np.arctanh),
        ("libdevice.sinpi(a)", X, lambda x: np.sin(np.pi * x)),
        ("libdevice.normcdf(a)", X, each(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)))),
        ("libdevice.round(a)", X * 2.5, each(lambda x: math.copysign(math.floor(abs(x) + 0.5), x))),
        ("libdevice.rint(a)", X * 2.5, np.rint),
        ("libdevice.trunc(a)", X, np.trunc),
        ("libdevice.cbrt(a)", X, np.cbrt),
        ("libdevice.fast_expf(a)", X, np.exp),
        ("cuda_libdevice.fast_sinf(a)", X, np.sin),
        ("tl.extra.cuda.libdevice.sqrt_rn(a)", POSITIVE, np.sqrt),
        ("libdevice.pow(a, b)", POSITIVE, lambda x: x**1.5),
        ("libdevice.pow(a, 2.0)", POSITIVE, lambda x: x**2.0),
        ("libdevice.fmod(a, b)", X, lambda x: np.fmod(x, 1.5)),
        ("libdevice.atan2(a, b)", X, lambda x: np.arctan2(x, 1.5)),
        ("libdevice.hypot(a, b)", X, lambda x: np.hypot(x, 1.5)),
        ("libdevice.copysign(b, a)", X, lambda x: np.copysign(1.5, x)),
        ("libdevice.fma(a, b, a)", X, lambda x: x * 1.5 + x),
        ("libdevice.fdim(a, b)", X, lambda x: np.maximum(x - 1.5, 0)),
        ("libdevice.div_rn(a, b)", X, lambda x: x / 1.5),
        ("libdevice.ilogb(a).to(tl.float32)", POSITIVE, each(lambda x: math.frexp(x)[1] - 1)),
        ("libdevice.float2int_rn(a).to(tl.float32)", X * 2.5, np.rint),
        ("libdevice.float2ll_rz(a).to(tl.float32)", X * 2.5, np.trunc),
        ("libdevice.isnan(a).to(tl.float32)", np.array([1, np.nan, np.inf], np.float32), np.isnan),
    ],
)
def test_a_device_function_means_what_it_means_on_the_device(
    interpreter: Interpreter, expression: str, x: npt.NDArray[Any], expected: Callable[..., Any]
) -> None:
    source = APPLY.replace("EXPRESSION", expression).replace("RESULT", "torch.float32")
    found = interpreter.result(source, x=x.astype(np.float32), y=np.full(x.shape, 1.5, np.float32))
    np.testing.assert_allclose(found, expected(x.astype(np.float64)), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("libdevice.popc(a)", lambda x, y: [bin(v & 0xFFFFFFFF).count("1") for v in x]),
        ("libdevice.clz(a)", lambda x, y: [32 - (v & 0xFFFFFFFF).bit_length() for v in x]),
        ("libdevice.ffs(a)", lambda x, y: [(v & -v).bit_length() for v in x]),
        ("libdevice.mulhi(a, b)", lambda x, y: [(v * w) >> 32 for v, w in zip(x, y, strict=True)]),
        ("libdevice.hadd(a, b)", lambda x, y: [(v + w) >> 1 for v, w in zip(x, y, strict=True)]),
        ("libdevice.abs(a)", lambda x, y: [abs(v) for v in x]),
        ("libdevice.float_as_int(libdevice.int_as_float(a))", lambda x, y: x),
    ],
)
def test_functions_of_whole_numbers_are_exact(
    interpreter: Interpreter, expression: str, expected: Callable[..., list[int]]
) -> None:
    x = np.array([1, 2, 3, 1000, 123456789, -5, -2000000000, 2147483647], dtype=np.int32)
    y = np.array([7, 9, -3, 1 << 30, 987654321, -5, 2000000000, 2147483647], dtype=np.int32)
    source = APPLY.replace("EXPRESSION", expression).replace("RESULT", "torch.int32")
    assert interpreter.result(source, x=x, y=y).tolist() == expected(x.tolist(), y.tolist())


def test_a_function_without_a_meaning_is_refused_by_name(interpreter: Interpreter) -> None:
    source = APPLY.replace("EXPRESSION", "libdevice.add_ru(a, b)").replace("RESULT", "torch.float32")
    word, detail = interpreter.failure(source, x=X, y=X)
    assert word == "unsupported"
    assert "__nv_fadd_ru" in detail


SCALARS = (
    HEAD
    + """
@triton.jit
def scaled(x):
    return x * 3.0


@triton.jit
def scale(x, o, eps, n, BLOCK: tl.constexpr, factor: tl.constexpr):
    i = tl.arange(0, BLOCK)
    e = eps.to(tl.float32)
    tl.store(o + i, scaled(tl.load(x + i, mask=i < n)) * factor + e + eps, mask=i < n)


def launch(x, eps):
    o = torch.empty_like(x)
    scale[(1,)](x, o, eps, x.numel(), BLOCK=64, factor=0.5)
    return o
"""
)


def test_a_float_argument_is_an_fp32_scalar_as_it_is_when_compiled(interpreter: Interpreter) -> None:
    found = interpreter.result(SCALARS, x=X, eps=1e-3)
    np.testing.assert_allclose(found, X.astype(np.float64) * 1.5 + 2 * np.float32(1e-3), rtol=1e-6, atol=1e-6)
