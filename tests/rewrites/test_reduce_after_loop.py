"""A reduction in every round of a loop becomes one after it, or the loop stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import liger_kernel.ops.group_norm
import liger_kernel.ops.grpo_loss
import liger_kernel.ops.kl_div
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.harness.worker.facts import ttir_facts
from tilewright.knowledge.rewrites import Situation
from tilewright.knowledge.rewrites.reduce_after_loop import REWRITE
from tilewright.knowledge.rewrites.source import read

GOLDEN = Path(__file__).parents[1] / "golden" / "reduce-after-loop"


class Runs(Protocol):
    def same(self, before: str, after: str, args: list[Any], tolerance: float = ..., entry: str = ...) -> None: ...


class Compiles(Protocol):
    def launches(self, source: str, args: list[Any], entry: str = ...) -> list[dict[str, Any]]: ...


def floats(*shape: int, dtype: str = "float32") -> dict[str, Any]:
    return {"shape": list(shape), "dtype": dtype}


OWN: dict[str, list[list[Any]]] = {
    "row_sums": [[floats(3, 700)], [floats(1, 1)], [floats(2, 128)]],
    "softmax_passes": [[floats(2, 2500)], [floats(2, 1)]],
    "softmax_flash": [[floats(2, 3, 300), 0.7], [floats(1, 1, 1), 2.0]],
    "instance_stats": [[floats(3, 200)]],
    "column_sum": [[floats(70, 40)]],
    "column_extremes": [[floats(2, 41, 17)], [floats(1, 9, 70)]],
}


@pytest.mark.parametrize("name", ["row_sums", "softmax_flash"])
def test_the_edit_is_the_one_written_down(name: str, kernel: Callable[[str], str], situation: Situation) -> None:
    (edit,) = REWRITE.look(kernel(name), situation).edits
    assert edit.source == (GOLDEN / f"{name}.py").read_text()
    assert (edit.claim.fact, edit.claim.relation) == ("reduces_in_loop", "falls")


@pytest.mark.parametrize("name", OWN)
def test_the_results_are_the_same(
    name: str, kernel: Callable[[str], str], situation: Situation, interpreter: Runs
) -> None:
    (edit,) = REWRITE.look(kernel(name), situation).edits
    for args in OWN[name]:
        interpreter.same(kernel(name), edit.source, args, tolerance=1e-4)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(1, 1500), half=st.booleans())
def test_the_results_are_the_same_at_any_length(
    n: int, half: bool, kernel: Callable[[str], str], situation: Situation, interpreter: Runs
) -> None:
    (edit,) = REWRITE.look(kernel("softmax_flash"), situation).edits
    args = [floats(1, 2, n, dtype="float16" if half else "float32"), 1.3]
    interpreter.same(kernel("softmax_flash"), edit.source, args)


@pytest.mark.parametrize("name", OWN)
def test_the_compiled_loop_reduces_less(
    name: str, kernel: Callable[[str], str], situation: Situation, compiler: Compiles
) -> None:
    (edit,) = REWRITE.look(kernel(name), situation).edits
    (before,) = compiler.launches(kernel(name), OWN[name][0])
    (after,) = compiler.launches(edit.source, OWN[name][0])
    assert before["kernel"] == after["kernel"] == edit.claim.kernel
    assert int(ttir_facts(before["ttir"])["reduces_in_loop"]) > 0
    assert ttir_facts(after["ttir"])["reduces_in_loop"] == 0


LIGER: dict[str, tuple[str, str, list[Any]]] = {
    "kl_div": (
        liger_kernel.ops.kl_div.__file__,
        "def launch(y, t):\n    return kldiv_forward_triton(y, t, True, 'batchmean', 1e-10)\n",
        [floats(3, 300), floats(3, 300)],
    ),
    "grpo_loss": (
        liger_kernel.ops.grpo_loss.__file__,
        (
            "def launch(x, ids):\n"
            "    out = torch.zeros(x.shape[0], x.shape[1] - 1)\n"
            "    _selective_log_softmax_kernel[(x.shape[0], x.shape[1] - 1)](\n"
            "        x, ids, out, None, 0.9, ids.stride(0), 1, 0, 0, x.shape[1] - 1, x.shape[2], BLOCK_N=64\n"
            "    )\n"
            "    return out\n"
        ),
        [floats(2, 4, 300), {"shape": [2, 3], "dtype": "int64", "high": 300}],
    ),
}


@pytest.mark.parametrize("name", LIGER)
def test_kernels_of_liger_compute_the_same(name: str, situation: Situation, interpreter: Runs) -> None:
    file, entry, args = LIGER[name]
    source = f"{Path(file).read_text()}\n\n{entry}"
    edits = REWRITE.look(source, situation).edits
    assert edits, REWRITE.look(source, situation).refused
    for edit in edits:
        interpreter.same(source, edit.source, args, tolerance=1e-4)


def test_accumulators_of_a_loop_around_a_loop_are_reduced_after_the_inner_one(situation: Situation) -> None:
    source = Path(liger_kernel.ops.group_norm.__file__).read_text()
    backward = REWRITE.look(source, situation).edits[1]
    assert backward.label == "_group_norm_backward_kernel: reduce c1, c2, dB, dW after the loop"
    assert "            c1_lanes += x_hat * wdy\n" in backward.source
    assert "        c1 += tl.sum(c1_lanes)\n" in backward.source


@pytest.mark.parametrize("name", OWN)
def test_the_edit_is_the_same_again_and_is_not_made_twice(
    name: str, kernel: Callable[[str], str], situation: Situation
) -> None:
    (edit,) = REWRITE.look(kernel(name), situation).edits
    read.cache_clear()
    assert REWRITE.look(kernel(name), situation).edits == (edit,)
    compile(edit.source, name, "exec")
    assert REWRITE.look(edit.source, situation).edits == ()


NEAR: dict[str, tuple[str, str, str, str]] = {
    "a running total that is stored": (
        "row_sums",
        "        power = power + tl.sum(square(x))  # helpers are followed\n",
        "        tl.store(sum_ptr + start, total)\n",
        "total",
    ),
    "a sum that is scaled in the loop": (
        "row_sums",
        "total += tl.sum(x, axis=0)",
        "total = total * 0.5 + tl.sum(x, axis=0)",
        "total",
    ),
    "a maximum of integers": ("row_sums", 'top = -float("inf")', "top = 0", "top"),
    "a tile whose shape is not known": ("row_sums", "tl.sum(x, axis=0)", "tl.sum(unknown(x), axis=0)", "total"),
    "a start of an unknown type": ("row_sums", "    total = 0.0\n", "    total = tl.load(sum_ptr + row)\n", "total"),
    "a correction that something else uses": (
        "softmax_flash",
        "        m_i = new_m_i\n",
        "        m_i = new_m_i\n        temperature = temperature * alpha\n",
        "l_i",
    ),
    "another function in the correction": ("softmax_flash", "alpha = tl.exp(", "alpha = tl.exp2(", "l_i"),
    "another value in the correction": ("softmax_flash", "p = tl.exp(logits -", "p = tl.exp(logits * 2 -", "l_i"),
    "a softmax that goes on": ("softmax_flash", "l_i = 0.0", "l_i = 1.0", "l_i"),
}


@pytest.mark.parametrize("near", NEAR)
def test_an_accumulator_that_only_looks_like_it_is_left_in_the_loop(
    near: str, kernel: Callable[[str], str], situation: Situation
) -> None:
    name, old, new, accumulator = NEAR[near]
    assert old in kernel(name)
    source = kernel(name).replace(old, new)
    compile(source, near, "exec")
    edits = REWRITE.look(source, situation).edits
    assert all(f"{accumulator}_lanes" not in e.source for e in edits)
    assert all(accumulator not in e.label.partition(": reduce ")[2].removesuffix(" after the loop") for e in edits)
