"""A long reduction by few programs is split over more of them, or the kernel stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.harness.types import KernelFacts
from tilewright.harness.worker.facts import ttir_facts
from tilewright.knowledge.rewrites import Situation
from tilewright.knowledge.rewrites.source import read
from tilewright.knowledge.rewrites.split_reduction import REWRITE

GOLDEN = Path(__file__).parents[1] / "golden" / "split-reduction"


class Runs(Protocol):
    def same(self, before: str, after: str, args: list[Any], tolerance: float = ..., entry: str = ...) -> None: ...


class Compiles(Protocol):
    def launches(self, source: str, args: list[Any], entry: str = ...) -> list[dict[str, Any]]: ...


def floats(*shape: int, dtype: str = "float32") -> dict[str, Any]:
    return {"shape": list(shape), "dtype": dtype}


OWN: dict[str, list[list[Any]]] = {
    "row_sums": [[floats(3, 3000)], [floats(2, 128)], [floats(1, 1)]],
    "column_sum": [[floats(300, 70)], [floats(1, 1)]],
    "column_extremes": [[floats(2, 41, 17)], [floats(1, 150, 70)]],
    "matmul_long_k": [
        [floats(20, 999, dtype="float16"), floats(999, 17, dtype="float16")],
        [floats(3, 5, dtype="float16"), floats(5, 17, dtype="float16")],
    ],
    "matmul_tuned": [[floats(20, 333), floats(333, 17)]],
}


def facts(kernel: str, programs: int) -> KernelFacts:
    return KernelFacts(kernel=kernel, case="a", grid=(programs, 1, 1), launches=1, facts={}, digest="")


@pytest.mark.parametrize("name", ["row_sums", "column_sum", "matmul_long_k"])
def test_the_first_edit_is_the_one_written_down(name: str, kernel: Callable[[str], str], situation: Situation) -> None:
    edit = REWRITE.look(kernel(name), situation).edits[0]
    assert edit.source == (GOLDEN / f"{name}.py").read_text()
    assert (edit.claim.fact, edit.claim.relation) == ("programs", "rises")
    assert edit.params == {"splits": 16}


@pytest.mark.parametrize("name", OWN)
def test_the_results_are_the_same(
    name: str, kernel: Callable[[str], str], situation: Situation, interpreter: Runs
) -> None:
    tolerance = 2e-3 if name.startswith("matmul") else 1e-4
    for edit in REWRITE.look(kernel(name), situation).edits[-1:]:
        for args in OWN[name]:
            interpreter.same(kernel(name), edit.source, args, tolerance)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(1, 60), columns=st.integers(1, 80), splits=st.sampled_from([2, 4, 8]))
def test_the_results_are_the_same_at_any_size(
    rows: int, columns: int, splits: int, kernel: Callable[[str], str], situation: Situation, interpreter: Runs
) -> None:
    programs = 2 * situation.target.multiprocessors // splits
    known = replace(situation, kernels=(facts("extremes", programs),))
    edit = REWRITE.look(kernel("column_extremes"), known).edits[0]
    assert edit.params == {"splits": splits}
    interpreter.same(kernel("column_extremes"), edit.source, [floats(2, rows, columns)])


@pytest.mark.parametrize("name", OWN)
def test_the_compiled_candidate_launches_more_programs_and_then_combines(
    name: str, kernel: Callable[[str], str], situation: Situation, compiler: Compiles
) -> None:
    edit = REWRITE.look(kernel(name), situation).edits[0]
    args = OWN[name][0]
    before = compiler.launches(kernel(name), args)[-1]
    partial, combine = [la for la in compiler.launches(edit.source, args) if la["kernel"] != before["kernel"]]
    assert partial["kernel"] == f"{before['kernel']}_partial"
    x, y, z = before["grid"]
    assert partial["grid"][0] == x
    assert partial["grid"][0] * partial["grid"][1] * partial["grid"][2] == 16 * x * y * z
    assert int(ttir_facts(partial["ttir"])["loads_in_loop"]) > 0
    assert combine["grid"] == before["grid"]


def test_a_launch_with_programs_enough_takes_the_old_kernel(
    kernel: Callable[[str], str], situation: Situation, compiler: Compiles
) -> None:
    edit = REWRITE.look(kernel("row_sums"), situation).edits[0]
    full = 2 * situation.target.multiprocessors
    few, many = (compiler.launches(edit.source, [floats(rows, 64)]) for rows in (full - 1, full))
    assert [la["kernel"] for la in few] == ["row_stats_partial", "row_stats_combine"]
    assert [la["kernel"] for la in many] == ["row_stats"]


def test_the_number_of_parts_follows_from_the_programs_there_are(
    kernel: Callable[[str], str], situation: Situation
) -> None:
    known = replace(situation, kernels=(facts("row_stats", 8),))
    assert [e.params["splits"] for e in REWRITE.look(kernel("row_sums"), known).edits] == [32, 64, 16]
    full = replace(situation, kernels=(facts("row_stats", 4096),))
    assert REWRITE.look(kernel("row_sums"), full).edits == ()
    assert "row_stats: its 4096 programs already fill the machine" in REWRITE.look(kernel("row_sums"), full).refused


@pytest.mark.parametrize("name", OWN)
def test_the_edit_is_the_same_again_and_is_not_made_twice(
    name: str, kernel: Callable[[str], str], situation: Situation
) -> None:
    first = REWRITE.look(kernel(name), situation).edits
    read.cache_clear()
    assert REWRITE.look(kernel(name), situation).edits == first
    for edit in first:
        compile(edit.source, name, "exec")
        assert REWRITE.look(edit.source, situation).edits == ()


NEAR: dict[str, tuple[str, str, str, str]] = {
    "a store in the loop": (
        "row_sums",
        "        total += tl.sum(x, axis=0)\n",
        "        total += tl.sum(x, axis=0)\n        tl.store(x_ptr + cols, x, mask=mask)\n",
        "store stands before",
    ),
    "a running value that another one uses": (
        "row_sums",
        "power = power + tl.sum(square(x))",
        "power = power + total",
        "`total`",
    ),
    "a value of the last round": (
        "row_sums",
        "tl.store(top_ptr + row, top)",
        "tl.store(top_ptr + row, tl.max(x))",
        "last round",
    ),
    "a product": ("row_sums", "total += tl.sum(x, axis=0)", "total *= tl.sum(x, axis=0)", "more than a sum"),
    "a start that would count in every part": ("row_sums", "total = 0.0", "total = 1.0", "does not start"),
    "a maximum that starts at zero": ("row_sums", 'top = -float("inf")', "top = 0.0", "does not start"),
    "a pointer that moves by what was loaded": (
        "matmul_long_k",
        "        b_ptrs += BLOCK_K * stride_bk\n",
        "        b_ptrs += tl.load(c_ptr + k)\n",
        "`b_ptrs`",
    ),
    "a pointer that moves in a branch": (
        "matmul_long_k",
        "        b_ptrs += BLOCK_K * stride_bk\n",
        "        if k > 2:\n            b_ptrs += BLOCK_K * stride_bk\n",
        "`b_ptrs`",
    ),
    "a second loop": (
        "row_sums",
        "    tl.store(sum_ptr + row, total / n)\n",
        "    for i in range(3):\n        total += 1.0\n    tl.store(sum_ptr + row, total / n)\n",
        "exactly one loop",
    ),
    "heuristics": (
        "row_sums",
        "@triton.jit\ndef row_stats",
        '@triton.heuristics({"BLOCK": lambda a: 64})\n@triton.jit\ndef row_stats',
        "heuristics",
    ),
    "a loop that does not start at its start": ("column_sum", "range(0, n_rows", "range(pid, n_rows", "run from 0"),
    "a grid out of sight": ("row_sums", "row_stats[(rows,)]", "row_stats[grid_of(x)]", "grid cannot be read"),
    "a tuner that does more": (
        "matmul_tuned",
        '    key=["M", "N", "K"],\n',
        '    key=["M"],\n    reset_to_zero=["c_ptr"],\n',
        "tuner",
    ),
}


@pytest.mark.parametrize("near", NEAR)
def test_a_kernel_that_only_looks_like_it_is_refused_with_the_reason(
    near: str, kernel: Callable[[str], str], situation: Situation
) -> None:
    name, old, new, reason = NEAR[near]
    assert old in kernel(name)
    source = kernel(name).replace(old, new)
    compile(source, near, "exec")
    assert REWRITE.look(source, situation).edits == ()
    assert any(reason in said for said in REWRITE.look(source, situation).refused), REWRITE.look(
        source, situation
    ).refused
