"""Triton's interpreter, made fit to judge by: each known trap either computes rightly or refuses by name."""

from __future__ import annotations

import asyncio
import textwrap
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.harness.judge.numbers import narrow_bf16, real, to_blob
from tilewright.harness.judge.pool import Pool

HEAD = "import torch, triton, triton.language as tl\n"
RNG = np.random.default_rng(0)


def bf16(values: Any) -> Any:
    """float64 values as bfloat16 holds them."""
    return real(to_blob(np.asarray(values, np.float32), "bfloat16"))


def elementwise(expression: str, args: str = "x, y", out: str = "x.dtype") -> str:
    """A candidate that stores an expression of the loaded `a` and `b`."""
    return HEAD + textwrap.dedent(f"""
        @triton.jit
        def kernel(x, y, o, n, BLOCK: tl.constexpr):
            at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            a = tl.load(x + at, mask=at < n)
            b = tl.load(y + at, mask=at < n)
            tl.store(o + at, {expression}, mask=at < n)
        def launch({args}):
            o = torch.empty_like(x, dtype={out})
            kernel[(triton.cdiv(x.numel(), 64),)](x, y, o, x.numel(), BLOCK=64)
            return o
    """)


X, Y = bf16(RNG.standard_normal(100)), bf16(RNG.standard_normal(100))
PAIR = {"x": (X, "bfloat16"), "y": (Y, "bfloat16")}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a + b", X + Y),
        ("a * b", X * Y),
        ("a - b * 2.0", X - bf16(Y * 2.0)),
        ("a * 0.5", X * 0.5),
        ("-a", -X),
        ("tl.abs(a)", np.abs(X)),
        ("tl.where(a > b, a, b)", np.maximum(X, Y)),
        ("tl.maximum(a, b)", np.maximum(X, Y)),
        ("a.to(tl.float32) * b.to(tl.float32)", X * Y),
        ("tl.exp(a.to(tl.float32))", np.exp(X)),
        ("tl.full([64], 1.5, tl.bfloat16) + a", X + 1.5),
        ("a.to(tl.int16, bitcast=True).to(tl.bfloat16, bitcast=True)", X),
        ("a.to(tl.float16)", X.astype(np.float16)),
        ("(a * 3).to(tl.int32)", np.trunc(bf16(X * 3))),
    ],
)
def test_bfloat16_is_computed_and_rounded_to_nearest(expression: str, expected: Any, interpreter: Any) -> None:
    assert np.array_equal(interpreter.result(elementwise(expression), **PAIR), bf16(expected))


def test_a_cast_to_bfloat16_rounds_to_nearest_even_and_not_towards_zero(interpreter: Any) -> None:
    values = RNG.standard_normal(4096).astype(np.float32)
    source = elementwise("a.to(tl.bfloat16)", out="torch.bfloat16")
    assert np.array_equal(interpreter.result(source, x=values, y=values), bf16(values))


def test_sums_and_maxima_of_bfloat16_are_those_of_its_values(interpreter: Any) -> None:
    source = HEAD + textwrap.dedent("""
        @triton.jit
        def kernel(x, o, BLOCK: tl.constexpr):
            v = tl.load(x + tl.arange(0, BLOCK))
            tl.store(o, tl.sum(v, 0))
            tl.store(o + 1, tl.max(v, 0))
            tl.store(o + 2, tl.min(v.to(tl.float32), 0))
        def launch(x):
            o = torch.empty(3, dtype=torch.float32, device="cuda")
            kernel[(1,)](x, o, BLOCK=128)
            return o
    """)
    x = bf16(RNG.standard_normal(128))
    found = interpreter.result(source, x=(x, "bfloat16"))
    assert np.allclose(found, [x.sum(), x.max(), x.min()], rtol=2**-8)
    assert found[1] == x.max()


DOT = HEAD + textwrap.dedent("""
    @triton.jit
    def kernel(x, y, o, N: tl.constexpr):
        i = tl.arange(0, N)
        at = i[:, None] * N + i[None, :]
        tl.store(o + at, tl.dot(tl.load(x + at), tl.load(y + at)PRECISION))
    def launch(x, y):
        o = torch.empty(x.shape, dtype=torch.float32, device="cuda")
        kernel[(1,)](x, y, o, N=32)
        return o
""")
A, B = (RNG.standard_normal((32, 32)).astype(np.float32) for _ in range(2))


def test_a_dot_of_bfloat16_is_that_of_its_values(interpreter: Any) -> None:
    a, b = bf16(A), bf16(B)
    found = interpreter.result(DOT.replace("PRECISION", ""), x=(a, "bfloat16"), y=(b, "bfloat16"))
    assert np.allclose(found, a @ b, atol=1e-4)


def test_a_dot_in_tf32_loses_what_the_tensor_core_does_not_read(interpreter: Any) -> None:
    exact = A.astype(np.float64) @ B.astype(np.float64)

    def error(precision: str) -> float:
        return float(np.abs(interpreter.result(DOT.replace("PRECISION", precision), x=A, y=B) - exact).max())

    assert error("") == error(', input_precision="tf32"')
    assert 1e-4 < error("") < 5e-2
    assert error(', input_precision="ieee"') < 1e-5
    assert error(', input_precision="tf32x3"') < 1e-5


@given(st.floats(min_value=2.0**-120, max_value=2.0**120, width=32))
def test_rounding_to_bfloat16_finds_the_nearest_value_and_of_two_the_even_one(value: float) -> None:
    near = int(narrow_bf16(np.array([value], np.float32))[0])
    below, chosen, above = (
        (np.array([near + d], np.uint32) << 16).view(np.float32).astype(float)[0] for d in (-1, 0, 1)
    )
    gap, others = abs(value - chosen), min(value - below, above - value)
    assert gap < others or (gap == others and near % 2 == 0)


def test_rounding_to_bfloat16_keeps_what_is_not_a_number_and_what_is_infinite() -> None:
    found = real(to_blob(np.array([np.nan, np.inf, -np.inf, 0.0, 3.4e38], np.float32), "bfloat16"))
    assert np.isnan(found[0])
    assert found[1:].tolist() == [np.inf, -np.inf, 0.0, np.inf]


@pytest.mark.parametrize(
    "language",
    [
        "import triton.language\n",
        "from triton.language import program_id, arange, load, store\nimport triton.language as lang\n",
    ],
)
def test_the_language_may_be_spelt_in_any_way(language: str, interpreter: Any) -> None:
    direct = "lang" in language.split()
    source = "import torch, triton\n" + language + elementwise("a + b").removeprefix(HEAD)
    for name in ("program_id", "arange", "load", "store"):
        source = source.replace(f"tl.{name}", name if direct else f"triton.language.{name}")
    source = source.replace("tl.constexpr", "lang.constexpr" if direct else "triton.language.constexpr")
    values = np.ones(100, np.float32)
    assert np.array_equal(interpreter.result(source, x=values, y=values), np.full(100, 2.0))


# --- what the interpreter cannot do -----------------------------------------------------------------------


REFUSED = {
    "inline assembly": (
        elementwise('tl.inline_asm_elementwise("add.f32 $0,$1,$2;", "=f,f,f", [a, b], tl.float32, True, 1)'),
        "inline assembly",
    ),
    "float8": (elementwise("a.to(tl.float8e5).to(tl.float32)"), "fp8e5"),
    "an unknown libdevice function": (
        elementwise("libdevice.nan_of_no_meaning(a)").replace("libdevice.nan_of_no_meaning", "odd")
        + textwrap.dedent("""
        @triton.language.core.extern
        def odd(arg0, _semantic=None):
            f32 = (tl.dtype("fp32"),)
            return tl.core.extern_elementwise(
                "", "", [arg0], {f32: ("__nv_oddf", tl.dtype("fp32"))}, is_pure=True, _semantic=_semantic)
        """),
        "__nv_oddf",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_computed_faithfully_is_refused_by_name(name: str, interpreter: Any) -> None:
    source, expected = REFUSED[name]
    values = np.ones(8, np.float32)
    failure, detail = interpreter.failure(source, x=values, y=values)
    assert failure == "unsupported", detail
    assert expected in detail


def test_block_pointers_work_or_are_refused_by_name(interpreter: Any) -> None:
    pointer = "tl.make_block_ptr(x, (n,), (1,), (0,), (BLOCK,), (0,))"
    source = elementwise(f"tl.load({pointer}, boundary_check=(0,))")
    header, tensors = interpreter.reply(source, x=np.ones(64, np.float32), y=np.ones(64, np.float32))
    if "failed" in header:
        assert header["failed"]["failure"] == "unsupported"
        assert "lock pointers" in header["failed"]["detail"]
    else:
        assert np.array_equal(real(tensors["out0"]), np.ones(64))


# --- what it does not see by itself -----------------------------------------------------------------------

UNMASKED = elementwise("a + b").replace(", mask=at < n", "", 2)


def test_a_read_past_the_end_of_an_argument_is_found(interpreter: Any) -> None:
    failure, detail = interpreter.failure(UNMASKED, x=np.ones(100, np.float32), y=np.ones(100, np.float32))
    assert failure == "launch"
    assert "reads 28 elements outside of its arguments" in detail
    assert "past the end of `x`" in detail


def test_a_write_past_the_end_of_an_argument_is_found(interpreter: Any) -> None:
    source = elementwise("a + b").replace("a + b, mask=at < n", "a + b")
    failure, detail = interpreter.failure(source, x=np.ones(100, np.float32), y=np.ones(100, np.float32))
    assert failure == "launch"
    assert "writes 28 elements outside" in detail


def test_an_access_before_the_start_is_found(interpreter: Any) -> None:
    source = elementwise("a + b").replace("tl.load(x + at,", "tl.load(x + at - 3,")
    _, detail = interpreter.failure(source, x=np.ones(64, np.float32), y=np.ones(64, np.float32))
    assert "12 bytes before the start of `x`" in detail


def test_an_atomic_outside_of_its_argument_is_found(interpreter: Any) -> None:
    source = elementwise("a + b").replace("tl.store(o + at, a + b, mask=at < n)", "tl.atomic_add(o + at, a + b)")
    assert (
        "updates 28 elements" in interpreter.failure(source, x=np.ones(100, np.float32), y=np.ones(100, np.float32))[1]
    )


def test_a_read_that_lands_in_another_argument_is_found_all_the_same(interpreter: Any) -> None:
    source = (
        elementwise("a + b")
        .replace("tl.load(x + at,", "tl.load(x + far + at,")
        .replace("n, BLOCK: tl", "n, far, BLOCK: tl")
    )
    source = source.replace("x.numel(), BLOCK=", "x.numel(), (y.data_ptr() - x.data_ptr()) // 4, BLOCK=")
    failure, detail = interpreter.failure(source, x=np.ones(64, np.float32), y=np.ones(64, np.float32))
    assert failure == "launch"
    assert "reads 64 elements outside" in detail
    assert "of `x`" in detail


def test_exact_use_of_every_element_is_not_mistaken_for_more(interpreter: Any) -> None:
    values = np.arange(128, dtype=np.float32)
    assert np.array_equal(interpreter.result(UNMASKED, x=values, y=values), 2 * values)


def test_results_that_nobody_writes_are_seen(interpreter: Any) -> None:
    source = elementwise("a + b").replace("(triton.cdiv(x.numel(), 64),)", "(1,)")
    found = interpreter.result(source, x=np.ones(100, np.float32), y=np.ones(100, np.float32))
    assert np.array_equal(np.isnan(found), np.arange(100) >= 64)


def test_an_input_overwritten_without_leave_is_reported(interpreter: Any) -> None:
    source = "def launch(x):\n    x += 1\n    return x * 1\n"
    header, _ = interpreter.reply(source, x=np.ones(4, np.float32))
    assert header["changed"] == ["x"]


def test_an_input_overwritten_by_contract_comes_back(interpreter: Any) -> None:
    header, tensors = interpreter.reply("def launch(x):\n    x += 1\n", mutates=("x",), x=np.ones(4, np.float32))
    assert header["changed"] == []
    assert np.array_equal(real(tensors["mutated:x"]), np.full(4, 2.0))


# --- what launch code does --------------------------------------------------------------------------------


def test_float_arguments_have_the_methods_of_the_devices_scalars(interpreter: Any) -> None:
    source = (
        elementwise("a + n.to(tl.float32) * b").replace("x.numel(), BLOCK", "0.25, BLOCK").replace("at < n", "at < 8")
    )
    assert np.array_equal(
        interpreter.result(source, x=np.ones(8, np.float32), y=np.ones(8, np.float32)), np.full(8, 1.25)
    )


def test_libdevice_functions_have_their_meaning(interpreter: Any) -> None:
    source = elementwise("libdevice.tanh(a) + libdevice.rsqrt(b)").replace(
        HEAD, HEAD + "from triton.language.extra import libdevice\n"
    )
    x, y = RNG.standard_normal(64).astype(np.float32), RNG.uniform(1, 2, 64).astype(np.float32)
    assert np.allclose(interpreter.result(source, x=x, y=y), np.tanh(x) + 1 / np.sqrt(y), atol=1e-6)


def test_an_autotuned_kernel_runs_one_configuration_and_says_which(interpreter: Any) -> None:
    source = elementwise("a + b").replace(
        "@triton.jit",
        "@triton.autotune([triton.Config({'BLOCK': 32}), triton.Config({'BLOCK': 64})], key=['n'])\n@triton.jit",
    )
    source = source.replace("x.numel(), BLOCK=64", "x.numel()").replace("triton.cdiv(x.numel(), 64)", "4")
    header, tensors = interpreter.reply(source, x=np.ones(100, np.float32), y=np.ones(100, np.float32))
    assert np.array_equal(real(tensors["out0"]), np.full(100, 2.0))
    (chosen,) = header["autotuned"]
    assert (chosen["kernel"], chosen["index"], chosen["configs"]) == ("kernel", 0, 2)


def test_kernels_keep_the_names_that_they_close_over(interpreter: Any) -> None:
    source = HEAD + textwrap.dedent("""
        def make(scale):
            @triton.jit
            def helper(v):
                return v * scale
            @triton.jit
            def kernel(x, o, BLOCK: tl.constexpr):
                at = tl.arange(0, BLOCK)
                tl.store(o + at, helper(tl.load(x + at)))
            return kernel
        kernel = make(tl.constexpr(3))
        def launch(x):
            o = torch.empty_like(x)
            kernel[(1,)](x, o, BLOCK=16)
            return o
    """)
    assert np.array_equal(interpreter.result(source, x=np.ones(16, np.float32)), np.full(16, 3.0))


def test_code_for_a_cuda_device_runs_where_there_is_none(interpreter: Any) -> None:
    source = HEAD + textwrap.dedent("""
        def launch(x):
            assert x.is_cuda and x.device.type == "cuda"
            with torch.cuda.device(x.device):
                count = torch.cuda.get_device_properties(0).multi_processor_count
            assert count > 0
            torch.manual_seed(3)
            torch.cuda.synchronize()
            return x + torch.ones(x.shape, device=x.device)
    """)
    assert np.array_equal(interpreter.result(source, x=np.ones(4, np.float32)), np.full(4, 2.0))


def test_integers_stay_integers(interpreter: Any) -> None:
    source = "import torch\ndef launch(x):\n    assert x.dtype is torch.int64\n    return x.double() + 0.5\n"
    assert np.array_equal(interpreter.result(source, x=np.arange(3)), np.arange(3) + 0.5)


def test_strides_are_as_asked_for_and_padding_is_poisoned(runner: asyncio.Runner, interpreting: Pool) -> None:
    source = textwrap.dedent("""
        import torch
        def launch(x):
            assert x.stride() == (10, 2), x.stride()
            whole = x.as_strided((15,), (1,))
            return x + 0, whole.isnan().sum()
    """)
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    job: dict[str, Any] = {
        "op": "interpret",
        "kind": "triton",
        "source": source,
        "entry": "launch",
        "target": None,
        "mutates": [],
    }
    spec = {"shape": [2, 3], "dtype": "float32", "strides": [10, 2]}
    job["args"] = [{"name": "x", "tensor": spec}]
    header, tensors = runner.run(interpreting.run(job, {"x": to_blob(values, "float32")}, limit_s=60))
    assert "failed" not in header, header
    assert np.array_equal(real(tensors["out0"]), values)
    assert np.frombuffer(tensors["out1"].data, np.int64)[0] == 9


# --- what is said about a failure -------------------------------------------------------------------------


def test_a_traceback_holds_the_candidates_own_lines_alone(interpreter: Any) -> None:
    header, _ = interpreter.reply(elementwise("a + missing"), x=np.ones(4, np.float32), y=np.ones(4, np.float32))
    trace = header["failed"]["trace"].splitlines()
    assert all(line.startswith("candidate line ") for line in trace)
    assert "in kernel: tl.store(o + at, a + missing" in trace[-1]
    assert "NameError" in header["failed"]["detail"]


@pytest.mark.parametrize(
    ("source", "failure", "expected"),
    [
        ("def launch(x:\n", "compile", "line 1"),
        ("def lunch(x):\n    return x\n", "compile", "it defines no `launch`; it defines lunch"),
        ("import tensorflow_of_no_kind\n", "launch", "ModuleNotFoundError"),
        ("1 / 0\n", "launch", "ZeroDivisionError"),
        ("def launch(x, more):\n    return x\n", "launch", "missing 1 required positional argument: 'more'"),
    ],
)
def test_a_source_that_does_not_load_is_the_candidates_failure(
    source: str, failure: str, expected: str, interpreter: Any
) -> None:
    found, detail = interpreter.failure(source, x=np.ones(4, np.float32))
    assert found == failure
    assert expected in detail
