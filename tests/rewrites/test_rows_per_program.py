"""A kernel of one row a program becomes one over a tile of rows, or is refused."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.harness.types import KernelFacts
from tilewright.knowledge.rewrites import Situation
from tilewright.knowledge.rewrites.rows_per_program import REWRITE
from tilewright.knowledge.rewrites.source import read

GOLDEN = Path(__file__).parents[1] / "golden" / "rows-per-program"
ROW = {"shape": [5, 37]}
WEIGHT = {"shape": [37]}
LENGTHS = {"shape": [5], "dtype": "int32", "low": 1, "high": 40}
LIGER: dict[str, list[Any]] = {
    "softmax": [ROW],
    "layer_norm": [ROW, WEIGHT, WEIGHT, 1e-5],
    "rms_norm": [ROW, WEIGHT, 1e-6],
    "swiglu": [ROW, ROW],
}
OWN: dict[str, list[Any]] = {"attention_rows": [ROW, LENGTHS, WEIGHT], "row_moments": [{"shape": [7, 77]}]}


class Runs(Protocol):
    def same(self, before: str, after: str, args: list[Any], tolerance: float = ..., entry: str = ...) -> None: ...


class Compiles(Protocol):
    def one(self, source: str, args: list[Any], entry: str = ...) -> dict[str, Any]: ...


def facts(kernel: str, case: str, programs: int, elements: int, warps: int = 4) -> KernelFacts:
    return KernelFacts(
        kernel=kernel,
        case=case,
        grid=(programs, 1, 1),
        launches=1,
        facts={"tile_elements": elements, "num_warps": warps},
        digest="",
    )


@pytest.mark.parametrize("name", OWN)
def test_the_first_edit_is_the_one_written_down(name: str, kernel: Callable[[str], str], situation: Situation) -> None:
    edit = REWRITE.look(kernel(name), situation).edits[0]
    assert edit.source == (GOLDEN / f"{name}.py").read_text()
    assert (edit.claim.fact, edit.claim.relation) == ("programs", "falls")
    assert edit.params == {"ROWS": 4}


@pytest.mark.parametrize("name", OWN)
def test_the_tests_own_kernels_compute_the_same_in_tiles_of_rows(
    name: str, kernel: Callable[[str], str], situation: Situation, interpreter: Runs
) -> None:
    for edit in REWRITE.look(kernel(name), situation).edits:
        interpreter.same(kernel(name), edit.source, OWN[name])


@pytest.mark.parametrize("name", LIGER)
def test_kernels_of_liger_compute_the_same_in_tiles_of_rows(
    name: str, liger: Callable[[str], str], situation: Situation, interpreter: Runs
) -> None:
    edits = REWRITE.look(liger(name), situation).edits
    assert edits, REWRITE.look(liger(name), situation).refused
    for edit in edits[:2]:
        interpreter.same(liger(name), edit.source, LIGER[name])


@pytest.mark.parametrize("name", LIGER)
def test_compiled_kernels_of_liger_load_tiles_and_launch_fewer_programs(
    name: str, liger: Callable[[str], str], situation: Situation, compiler: Compiles
) -> None:
    full = [{"shape": [512 if n == 5 else 128 for n in a["shape"]]} if isinstance(a, dict) else a for a in LIGER[name]]
    edit = next(e for e in REWRITE.look(liger(name), situation).edits if e.params["ROWS"] == 4)
    before, after = compiler.one(liger(name), full), compiler.one(edit.source, full)
    assert before["grid"] == [512, 1, 1]
    assert after["grid"] == [128, 1, 1]
    assert "tensor<4x128x!tt.ptr<f32>" in after["ttir"]
    assert "tensor<4x128" not in before["ttir"]


def test_the_edit_appears_once_applied_and_then_no_more(
    kernel: Callable[[str], str], liger: Callable[[str], str], situation: Situation
) -> None:
    for source in (kernel("attention_rows"), kernel("row_moments"), liger("softmax"), liger("layer_norm")):
        edit = REWRITE.look(source, situation).edits[0]
        assert read(edit.source) is not None
        assert not REWRITE.look(edit.source, situation).edits


def test_equal_input_gives_equal_edits(liger: Callable[[str], str], situation: Situation) -> None:
    read.cache_clear()
    first = [e.source for e in REWRITE.look(liger("rms_norm"), situation).edits]
    read.cache_clear()
    assert [e.source for e in REWRITE.look(liger("rms_norm"), situation).edits] == first


def test_text_outside_the_edit_stays_as_written(liger: Callable[[str], str], situation: Situation) -> None:
    before = liger("layer_norm")
    after = REWRITE.look(before, situation).edits[0].source
    comments = re.compile(r"#[^\n]*|\"\"\"[\s\S]*?\"\"\"")
    assert comments.findall(after) == comments.findall(before)


def test_short_rows_get_tall_tiles_and_warps_to_match(liger: Callable[[str], str], situation: Situation) -> None:
    known = replace(situation, kernels=(facts("_softmax_single_block_forward_kernel", "a", 65536, 128),))
    first = REWRITE.look(liger("softmax"), known).edits[0]
    assert first.params == {"ROWS": 32, "num_warps": 8}


def test_tiles_that_would_idle_the_device_or_burst_its_registers_are_left_out(
    liger: Callable[[str], str], situation: Situation
) -> None:
    name = "_softmax_single_block_forward_kernel"
    few = replace(situation, kernels=(facts(name, "a", 4 * 132, 128),))
    wide = replace(situation, kernels=(facts(name, "a", 65536, 8192, 16),))
    assert {e.params["ROWS"] for e in REWRITE.look(liger("softmax"), few).edits} == {2, 4}
    assert {e.params["ROWS"] for e in REWRITE.look(liger("softmax"), wide).edits} == {2}
    nothing = replace(situation, kernels=(facts(name, "a", 65536, 65536, 32),))
    assert REWRITE.look(liger("softmax"), nothing).edits == ()
    assert REWRITE.look(liger("softmax"), nothing).refused == (f"{name}: no tile of rows fits what is known of it",)


def test_cases_of_unlike_width_get_a_height_that_follows_the_row(
    liger: Callable[[str], str], situation: Situation, interpreter: Runs
) -> None:
    name = "_rms_norm_forward_kernel"
    known = replace(situation, kernels=(facts(name, "a", 65536, 128), facts(name, "b", 4096, 4096, 8)))
    first = REWRITE.look(liger("rms_norm"), known).edits[0]
    assert "ROWS = max(1, min(16, 4096 // BLOCK_SIZE))" in first.source
    assert "num_warps=max(1, min(16, ROWS * BLOCK_SIZE // 512))" in first.source
    assert (first.claim.fact, first.claim.relation, first.claim.value) == ("tile_rank", "==", 2)
    interpreter.same(liger("rms_norm"), first.source, LIGER["rms_norm"])


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(1, 9), cols=st.integers(1, 70), choice=st.integers(0, 3))
def test_any_number_of_rows_and_columns_computes_the_same(
    kernel: Callable[[str], str], situation: Situation, interpreter: Runs, rows: int, cols: int, choice: int
) -> None:
    edit = REWRITE.look(kernel("row_moments"), situation).edits[choice]
    interpreter.same(kernel("row_moments"), edit.source, [{"shape": [rows, cols]}])


HEAD = """
import torch
import triton
import triton.language as tl

"""
HOST = """
def launch(x, y, out, n_cols):
    k[(x.shape[0],)](x, y, out, x.stride(0), n_cols, BLOCK=64)
"""


def candidate(body: str, host: str = HOST, helpers: str = "") -> str:
    signature = "@triton.jit\ndef k(x, y, out, stride, n_cols, BLOCK: tl.constexpr):\n"
    return HEAD + textwrap.dedent(helpers) + signature + textwrap.indent(textwrap.dedent(body), "    ") + host


PLAIN = """
row = tl.program_id(0)
cols = tl.arange(0, BLOCK)
m = cols < n_cols
v = tl.load(x + row * stride + cols, mask=m, other=0.0)
tl.store(out + row * stride + cols, v / tl.sum(v, axis=0), mask=m)
"""


def test_the_plain_kernel_that_the_refused_ones_are_near_to_is_rewritten(situation: Situation) -> None:
    assert REWRITE.look(candidate(PLAIN), situation).edits


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("v / tl", "v / tl"), None),
        (("m = cols", "if tl.load(y + row) == 7:\n    return\nm = cols"), "branches on a value of one row"),
        (("tl.store(out + row * stride + cols", "tl.store(out + cols"), "the value depends on the row"),
        (("v / tl.sum(v, axis=0)", "tl.sum(tl.reshape(v, (2, 32)), axis=1)"), "not known to work on a tile"),
        (("row = tl.program_id(0)", "row = tl.program_id(0) * tl.num_programs(0)"), "tl.num_programs"),
        (("m = cols < n_cols", "m = cols[None, :] < n_cols"), "already uses two-dimensional tiles"),
        (("m = cols", "while n_cols < 0:\n    n_cols += 1\nm = cols"), "while statements are not followed"),
        (
            ("m = cols", "n = tl.load(y + row)\nfor i in range(0, n):\n    cols += 0\nm = cols"),
            "bounds depend on the row",
        ),
        (("m = cols", "tl.atomic_add(y, 1.0)\nm = cols"), "writes what all rows share"),
        (("v / tl", "v / unknown(v) / tl"), "`unknown` is not known"),
        (("tl.sum(v, axis=0)", "tl.sum(v, axis=n_cols)"), "axis that is not literal"),
        (("tl.sum(v, axis=0)", "tl.sum(v, axis=0, keep_dims=True)"), "is not a plain reduction"),
        (("tl.program_id(0)", "tl.program_id(1)"), "writes what all rows share"),
        (("m = cols", "tl.store(y, 1.0)\nm = cols"), "writes what all rows share"),
    ],
)
def test_a_near_miss_is_refused_with_its_reason(
    change: tuple[str, str], reason: str | None, situation: Situation
) -> None:
    source = candidate(PLAIN.replace(*change))
    edits = REWRITE.look(source, situation).edits
    if reason is None:
        assert edits
        return
    assert edits == ()
    assert reason in " ".join(REWRITE.look(source, situation).refused)


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("def launch(x, y, out, n, grid):\n    k[grid](x, y, out, 1, n, BLOCK=64)\n", "grid cannot be read"),
        (
            "def launch(x, y, out, n):\n    k[(triton.cdiv(n, 64),)](x, y, out, 1, n, BLOCK=64)\n",
            "a program is a tile, not a row",
        ),
        ("def launch(x, y, out, n):\n    k[(rows(x),)](x, y, out, 1, n, BLOCK=64)\n", "the grid calls `rows`"),
        (HOST + "\nTABLE = {'k': k}\n", "used in other ways"),
        ("def launch(x, y, out, n):\n    k[(n,)](*pack(x), n, BLOCK=64)\n", "cannot be read from the launch"),
        ("def launch(x, y, out, n):\n    if n: k[(n,)](x, y, out, 1, n, BLOCK=64)\n", "line of its own"),
        ("", "not launched"),
    ],
)
def test_a_launch_that_does_not_say_how_many_rows_there_are_is_refused(
    host: str, reason: str, situation: Situation
) -> None:
    source = candidate(PLAIN, host)
    assert REWRITE.look(source, situation).edits == ()
    assert reason in " ".join(REWRITE.look(source, situation).refused)


def test_a_helper_that_reduces_is_refused_and_one_that_is_elementwise_is_not(situation: Situation) -> None:
    body = PLAIN.replace("v / tl.sum(v, axis=0)", "helper(v)")
    reduces = "@triton.jit\ndef helper(v):\n    return v / tl.sum(v, axis=0)\n\n"
    pointwise = "@triton.jit\ndef helper(v):\n    return v * tl.sigmoid(v)\n\n"
    assert REWRITE.look(candidate(body, helpers=reduces), situation).edits == ()
    assert REWRITE.look(candidate(body, helpers=pointwise), situation).edits


def test_a_branch_that_gives_a_name_another_shape_is_refused(situation: Situation) -> None:
    source = candidate(
        PLAIN.replace("tl.store(", "if BLOCK > 64:\n    w = v\nelse:\n    w = cols\ntl.store(").replace("v /", "w /")
    )
    assert REWRITE.look(source, situation).edits == ()
    assert "another shape in another branch" in " ".join(REWRITE.look(source, situation).refused)


def test_every_launch_of_the_kernel_is_rewritten(situation: Situation, interpreter: Runs) -> None:
    host = """
def launch(x, n_cols):
    out = torch.empty_like(x)
    grid = (x.shape[0],)
    k[grid](x, x, out, x.stride(0), n_cols, BLOCK=64)
    y = torch.empty_like(x)
    k[grid](out, x, y, out.stride(0), n_cols, BLOCK=64)
    return y
"""
    source = candidate(PLAIN, host)
    edit = REWRITE.look(source, situation).edits[0]
    assert edit.source.count("triton.cdiv(x.shape[0], ROWS)") == 2
    interpreter.same(source, edit.source, [{"shape": [6, 33]}, 33])


def test_text_that_is_not_python_is_answered_with_nothing(situation: Situation) -> None:
    assert REWRITE.look("def f(:", situation).edits == ()
    assert REWRITE.look("def f(:", situation).refused == ("the source is not Python",)
