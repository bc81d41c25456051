"""A loop without a matrix product is pipelined when its range asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import pytest

from tilewright.harness.worker.facts import ttgir_facts
from tilewright.knowledge.rewrites import Situation
from tilewright.knowledge.rewrites.pipeline_loop import REWRITE


class Runs(Protocol):
    def same(self, before: str, after: str, args: list[Any], tolerance: float = ..., entry: str = ...) -> None: ...


class Compiles(Protocol):
    def launches(self, source: str, args: list[Any], entry: str = ...) -> list[dict[str, Any]]: ...


ROW: dict[str, Any] = {"shape": [2, 1500]}


@pytest.mark.parametrize("name", ["row_sums", "softmax_passes", "column_sum"])
def test_the_loads_become_asynchronous_and_the_results_stay(
    name: str, kernel: Callable[[str], str], situation: Situation, interpreter: Runs, compiler: Compiles
) -> None:
    edits = REWRITE.look(kernel(name), situation).edits
    assert [e.params for e in edits] == [{"num_stages": n} for n in (3, 2, 4)]
    (before,) = compiler.launches(kernel(name), [ROW])
    assert ttgir_facts(before["ttgir"])["async_copies"] == 0
    copies = [ttgir_facts(compiler.launches(e.source, [ROW])[0]["ttgir"])["async_copies"] for e in edits]
    assert all(int(c) > 0 for c in copies)
    assert (edits[0].claim.fact, edits[0].claim.relation) == ("async_copies", "rises")
    interpreter.same(kernel(name), edits[0].source, [ROW])
    assert REWRITE.look(edits[0].source, situation).edits == ()


def test_only_the_range_changes(kernel: Callable[[str], str], situation: Situation) -> None:
    edit = REWRITE.look(kernel("row_sums"), situation).edits[0]
    assert edit.source == kernel("row_sums").replace("range(0, n, BLOCK)", "tl.range(0, n, BLOCK, num_stages=3)")


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("matmul_long_k", "", "", "matrix product"),
        ("row_sums", "range(0, n, BLOCK)", "tl.range(0, n, BLOCK, num_stages=1)", "stages already"),
        ("row_sums", "range(0, n, BLOCK)", "tl.static_range(0, 512, BLOCK)", "unrolled"),
        ("row_sums", "        mask = cols < n\n", "        mask = cols < n\n        tl.debug_barrier()\n", "effects"),
        ("softmax_passes", "tl.store(Y_ptr + row_id * Y", "tl.store(X_ptr + row_id * Y", "writes to what it reads"),
        ("vector_add", "", "", "no loop"),
    ],
)
def test_other_loops_are_refused_with_the_reason(
    name: str, old: str, new: str, reason: str, kernel: Callable[[str], str], situation: Situation
) -> None:
    source = kernel(name).replace(old, new) if old else kernel(name)
    compile(source, name, "exec")
    assert any(reason in said for said in REWRITE.look(source, situation).refused), REWRITE.look(
        source, situation
    ).refused
    if name != "softmax_passes":  # whose first loop may be pipelined all the same
        assert REWRITE.look(source, situation).edits == ()


def test_a_target_without_asynchronous_copies_is_refused(kernel: Callable[[str], str], situation: Situation) -> None:
    old = replace(situation, target=replace(situation.target, name="cuda:75", arch=75))
    assert REWRITE.look(kernel("row_sums"), old).edits == ()
    assert REWRITE.look(kernel("row_sums"), old).refused == ("cuda:75 has no asynchronous copies to pipeline with",)
