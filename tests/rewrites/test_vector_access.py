"""Lost 16-byte accesses come back where the launch proves what the compiler lacked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.harness.types import Case, KernelFacts
from tilewright.knowledge.rewrites import Edit, Situation
from tilewright.knowledge.rewrites.source import read
from tilewright.knowledge.rewrites.vector_access import REWRITE

GOLDEN = Path(__file__).parents[1] / "golden" / "vector-access"
HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n"
ALIGN = "ALIGN from the launch"
PEEL = "full tiles without mask"


class Runs(Protocol):
    def same(self, before: str, after: str, args: list[Any], tolerance: float = ..., entry: str = ...) -> None: ...


class Compiles(Protocol):
    def one(self, source: str, args: list[Any], entry: str = ...) -> dict[str, Any]: ...


Widths = Callable[[dict[str, Any]], list[int]]


def named(source: str, label: str, situation: Situation) -> Edit:
    return next(e for e in REWRITE.look(source, situation).edits if e.label.endswith(label))


@pytest.mark.parametrize("name", ["vector_add", "row_moments"])
def test_full_tiles_are_split_off_as_written_down(
    name: str, kernel: Callable[[str], str], situation: Situation
) -> None:
    assert named(kernel(name), PEEL, situation).source == (GOLDEN / f"{name}.py").read_text()


@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(1, 5000))
def test_any_length_computes_the_same_with_full_tiles_apart(
    kernel: Callable[[str], str], situation: Situation, interpreter: Runs, n: int
) -> None:
    edit = named(kernel("vector_add"), PEEL, situation)
    interpreter.same(kernel("vector_add"), edit.source, [{"shape": [n]}] * 2)


@pytest.mark.parametrize("columns", [1, 31, 32, 33, 64, 77])
def test_a_cut_loop_computes_the_same(
    columns: int, kernel: Callable[[str], str], situation: Situation, interpreter: Runs
) -> None:
    edit = named(kernel("row_moments"), PEEL, situation)
    interpreter.same(kernel("row_moments"), edit.source, [{"shape": [3, columns]}])


def test_full_tiles_load_sixteen_bytes_though_the_length_is_odd(
    kernel: Callable[[str], str], situation: Situation, compiler: Compiles, widths: Widths
) -> None:
    source, args = kernel("vector_add"), [{"shape": [100003]}] * 2
    assert widths(compiler.one(source, args)) == [32]
    edit = named(source, PEEL, situation)
    assert (edit.claim.fact, edit.claim.relation) == ("load_bits_max", "rises")
    assert widths(compiler.one(edit.source, args)) == [32, 128]


LIGER: dict[str, list[Any]] = {
    "softmax": [{"shape": [5, 36]}],
    "layer_norm": [{"shape": [5, 36]}, {"shape": [36]}, {"shape": [36]}, 1e-5],
    "rms_norm": [{"shape": [5, 36]}, {"shape": [36]}, 1e-6],
    "swiglu": [{"shape": [5, 36]}, {"shape": [5, 36]}],
}


@pytest.mark.parametrize("name", LIGER)
def test_rows_of_a_multiple_of_four_get_wider_loads_in_kernels_of_liger(
    name: str, liger: Callable[[str], str], situation: Situation, interpreter: Runs, compiler: Compiles, widths: Widths
) -> None:
    source = liger(name)
    edit = named(source, ALIGN, situation)
    interpreter.same(source, edit.source, LIGER[name])
    odd = [{"shape": [37 if n == 36 else n for n in a["shape"]]} if isinstance(a, dict) else a for a in LIGER[name]]
    interpreter.same(source, edit.source, odd)
    full = [{"shape": [1000 if n == 36 else 64 for n in a["shape"]]} if isinstance(a, dict) else a for a in LIGER[name]]
    before, after = widths(compiler.one(source, full)), widths(compiler.one(edit.source, full))
    assert max(before) == 32
    assert max(after) == 128


def test_a_stride_of_one_is_left_as_it_is(situation: Situation, interpreter: Runs) -> None:
    source = (
        HEAD
        + """
@triton.jit
def k(x, out, row_stride, col_stride, n, B: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, B)
    v = tl.load(x + row * row_stride + cols * col_stride, mask=cols < n, other=0.0)
    tl.store(out + row * n + cols, v, mask=cols < n)


def launch(x):
    inner = x.stride()[1]
    out = torch.empty(x.shape)
    k[(x.shape[0],)](x, out, x.stride(0), inner, x.shape[1], B=64)
    return out
"""
    )
    edit = named(source, ALIGN, situation)
    interpreter.same(source, edit.source, [{"shape": [4, 48]}])
    interpreter.same(source, edit.source, [{"shape": [4, 48], "strides": [96, 2]}])


def test_sizes_that_divide_by_sixteen_or_by_nothing_have_no_alignment_to_gain(
    liger: Callable[[str], str], situation: Situation
) -> None:
    cases = (Case(name="a", bindings={"M": 4096, "N": 1024, "T": "float16"}),)
    labels = [e.label for e in REWRITE.look(liger("layer_norm"), replace(situation, cases=cases)).edits]
    assert ALIGN not in labels
    cases = (Case(name="a", bindings={"M": 4096, "N": 197, "T": "float16"}),)
    assert ALIGN not in [e.label for e in REWRITE.look(liger("layer_norm"), replace(situation, cases=cases)).edits]
    cases = (Case(name="a", bindings={"M": 4096, "N": 1000, "T": "float16"}),)
    assert ALIGN in [e.label for e in REWRITE.look(liger("layer_norm"), replace(situation, cases=cases)).edits]


UNSPECIALISED = (
    HEAD
    + """
@triton.jit(do_not_specialize=["n", "stride"], debug=False)
def k(x, out, stride, n, B: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, B)
    v = tl.load(x + row * stride + cols, mask=cols < n)
    tl.store(out + row * stride + cols, v * 2, mask=cols < n)


def launch(x):
    out = torch.empty_like(x)
    k[(x.shape[0],)](x, out, x.stride(0), x.shape[1], B=1024)
    return out
"""
)


def test_specialisation_is_switched_on_again(
    situation: Situation, interpreter: Runs, compiler: Compiles, widths: Widths
) -> None:
    (edit,) = REWRITE.look(UNSPECIALISED, situation).edits
    assert "@triton.jit(debug=False)\n" in edit.source
    interpreter.same(UNSPECIALISED, edit.source, [{"shape": [3, 40]}])
    args = [{"shape": [64, 1024]}]
    assert widths(compiler.one(UNSPECIALISED, args)) == [32]
    assert widths(compiler.one(edit.source, args)) == [128]


def known(situation: Situation, kernel: str, **facts: int) -> Situation:
    record = KernelFacts(kernel=kernel, case="a", grid=(64, 1, 1), launches=1, facts=facts, digest="")
    return replace(situation, kernels=(record,))


def test_fewer_warps_where_a_thread_has_less_than_sixteen_bytes(
    kernel: Callable[[str], str], situation: Situation, compiler: Compiles, widths: Widths
) -> None:
    source, args = kernel("vector_add"), [{"shape": [4096], "dtype": "float16"}] * 2
    before = compiler.one(source, args)
    assert widths(before) == [128]
    source = source.replace("BLOCK_SIZE=1024", "BLOCK_SIZE=256")
    assert widths(compiler.one(source, args)) == [32]
    narrow = known(situation, "add_kernel", load_bits_max=32, narrow_loads=2, num_warps=4, tile_elements=256)
    edit = named(source, "num_warps=1 for wide accesses", narrow)
    assert (edit.claim.fact, edit.claim.relation, edit.claim.value) == ("load_bits_max", ">=", 64)
    assert widths(compiler.one(edit.source, args)) == [128]


def test_nothing_is_repaired_where_no_access_is_narrow(kernel: Callable[[str], str], situation: Situation) -> None:
    wide = known(situation, "add_kernel", load_bits_max=128, narrow_loads=0, narrow_stores=0)
    assert REWRITE.look(kernel("vector_add"), wide).edits == ()
    assert REWRITE.look(kernel("vector_add"), wide).refused == ("add_kernel: every access is 16 bytes wide already",)


def test_a_repair_is_not_made_twice(kernel: Callable[[str], str], situation: Situation) -> None:
    for label in (ALIGN, PEEL):
        for name in ("vector_add", "row_moments"):
            once = named(kernel(name), label, situation).source
            assert read(once) is not None
            assert label not in [e.label for e in REWRITE.look(once, situation).edits]


FLAT = """
@triton.jit
def k(x, out, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    m = offs < n
    v = tl.load(x + offs, mask=m, other=0.0)
    tl.store(out + offs, v, mask=m)


def launch(x, out):
    k[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), B=64)
"""
LOOP = """
@triton.jit
def k(x, out, n, B: tl.constexpr):
    s = 0.0
    for i in range(0, n, B):
        offs = i + tl.arange(0, B)
        s += tl.sum(tl.load(x + offs, mask=offs < n, other=0.0))
    tl.store(out, s)


def launch(x, out):
    k[(1,)](x, out, x.numel(), B=64)
"""


def peels(text: str, situation: Situation) -> bool:
    return PEEL in [e.label for e in REWRITE.look(HEAD + text, situation).edits]


def test_the_plain_kernels_that_the_refused_ones_are_near_to_are_split(situation: Situation) -> None:
    assert peels(FLAT, situation)
    assert peels(LOOP, situation)


@pytest.mark.parametrize(
    "change",
    [
        ("tl.store(out + offs, v, mask=m)", "tl.store(out + offs, tl.where(m, v, 1.0), mask=m)"),
        ("mask=m, other", "mask=m & (offs > 3), other"),
        ("m = offs < n", "m = offs <= n"),
        ("m = offs < n", "m = offs < tl.load(out)"),
        ("    v = ", "    m = m & (offs > 3)\n    v = "),
        ("    v = ", "    if n > 4:\n        n += 0\n    v = "),
        ("tl.program_id(0) * B + ", ""),
        ("offs = tl.program_id(0) * B", "offs = tl.load(out) * B"),
    ],
)
def test_a_flat_kernel_whose_mask_is_more_than_its_tail_stays_whole(
    change: tuple[str, str], situation: Situation
) -> None:
    assert change[0] in FLAT
    assert not peels(FLAT.replace(*change), situation)


@pytest.mark.parametrize(
    "change",
    [
        ("range(0, n, B)", "range(3, n, B)"),
        ("range(0, n, B)", "range(0, n + 1, B)"),
        ("range(0, n, B)", "range(0, n, 32)"),
        ("mask=offs < n", "mask=offs < n - 1"),
        ("offs = i + ", "offs = i * 2 + "),
        ("        s +=", "        n -= 1\n        s +="),
        ("tl.store(out, s)", "tl.store(out, s + i)"),
        ("        s +=", "        if s > 3:\n            s = 0.0\n        s +="),
    ],
)
def test_a_loop_whose_mask_is_more_than_its_tail_stays_whole(change: tuple[str, str], situation: Situation) -> None:
    assert change[0] in LOOP
    assert not peels(LOOP.replace(*change), situation)


def test_bounds_and_strides_that_the_launch_does_not_give_as_whole_numbers_are_not_divided(
    situation: Situation,
) -> None:
    literal = FLAT.replace("x, out, x.numel(), B", "x, out, 4096, B")
    called = FLAT.replace("x, out, x.numel(), B", "x, out, count(x), B")
    for text in (literal, called):
        assert ALIGN not in [e.label for e in REWRITE.look(HEAD + text, situation).edits]


def test_a_kernel_that_is_passed_around_is_left_alone(situation: Situation) -> None:
    assert REWRITE.look(HEAD + FLAT + "\nTABLE = [k]\n", situation).edits == ()
    assert REWRITE.look("def f(:", situation).edits == ()
