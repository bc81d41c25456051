"""A row that is loaded in several loops is loaded once where it fits, or the kernel stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import liger_kernel.ops.cross_entropy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.harness.worker.facts import ttir_facts
from tilewright.knowledge.rewrites import Situation
from tilewright.knowledge.rewrites.one_pass import REWRITE
from tilewright.knowledge.rewrites.source import read

GOLDEN = Path(__file__).parents[1] / "golden" / "one-pass"


class Runs(Protocol):
    def same(self, before: str, after: str, args: list[Any], tolerance: float = ..., entry: str = ...) -> None: ...


class Compiles(Protocol):
    def launches(self, source: str, args: list[Any], entry: str = ...) -> list[dict[str, Any]]: ...


def floats(*shape: int, dtype: str = "float32") -> dict[str, Any]:
    return {"shape": list(shape), "dtype": dtype}


def arguments(name: str, rows: int, columns: int) -> list[Any]:
    more = [floats(columns), floats(columns), 1e-5] if name == "layer_norm_loops" else []
    return [floats(rows, columns), *more]


OWN = ("softmax_passes", "layer_norm_loops", "instance_stats")


@pytest.mark.parametrize("name", OWN)
def test_the_first_edit_is_the_one_written_down(name: str, kernel: Callable[[str], str], situation: Situation) -> None:
    edit = REWRITE.look(kernel(name), situation).edits[0]
    assert edit.source == (GOLDEN / f"{name}.py").read_text()
    assert (edit.claim.fact, edit.claim.relation) == ("loads_in_loop", "falls")


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("columns", [1, 128, 2500])
def test_the_results_are_the_same(
    name: str, columns: int, kernel: Callable[[str], str], situation: Situation, interpreter: Runs
) -> None:
    for edit in REWRITE.look(kernel(name), situation).edits[:1]:
        interpreter.same(kernel(name), edit.source, arguments(name, 3, columns))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(1, 4), columns=st.integers(1, 3000), half=st.booleans())
def test_the_results_are_the_same_at_any_size(
    rows: int, columns: int, half: bool, kernel: Callable[[str], str], situation: Situation, interpreter: Runs
) -> None:
    source = kernel("softmax_passes")
    edit = REWRITE.look(source, situation).edits[0]
    x = floats(rows, columns, dtype="float16" if half else "float32")
    interpreter.same(source, edit.source, [x], tolerance=2e-3 if half else 2e-5)


@pytest.mark.parametrize("name", OWN)
def test_the_compiled_kernel_has_no_loads_in_a_loop(
    name: str, kernel: Callable[[str], str], situation: Situation, compiler: Compiles
) -> None:
    edit = REWRITE.look(kernel(name), situation).edits[0]
    (before,) = compiler.launches(kernel(name), arguments(name, 4, 4096))
    (after,) = compiler.launches(edit.source, arguments(name, 4, 4096))
    old, new = ttir_facts(before["ttir"]), ttir_facts(after["ttir"])
    assert int(old["loads_in_loop"]) >= 2
    assert new["loads_in_loop"] == new["loops"] == 0
    assert int(new["loads"]) < int(old["loads"])


def test_warps_follow_the_row(kernel: Callable[[str], str], situation: Situation, compiler: Compiles) -> None:
    by_share = {
        e.params["elements_per_thread"]: e.source for e in REWRITE.look(kernel("softmax_passes"), situation).edits
    }
    warps = {
        (share, n): compiler.launches(source, [floats(1, n)])[0]["num_warps"]
        for share, source in by_share.items()
        for n in (100, 16384)
    }
    assert warps == {(32, 100): 4, (32, 16384): 16, (16, 100): 4, (16, 16384): 32, (64, 100): 4, (64, 16384): 8}


def test_a_row_that_does_not_fit_takes_the_old_kernel(
    kernel: Callable[[str], str], situation: Situation, compiler: Compiles
) -> None:
    edit = REWRITE.look(kernel("softmax_passes"), situation).edits[0]
    fits, long = (compiler.launches(edit.source, [floats(1, n)])[0]["kernel"] for n in (32768, 32769))
    assert fits == "softmax_rows_one_pass"
    assert long == "softmax_rows"


def test_a_launch_whose_block_covers_the_row_anyway_is_left_alone_and_its_kernel_edited_in_place(
    kernel: Callable[[str], str], situation: Situation, interpreter: Runs, compiler: Compiles
) -> None:
    source = kernel("layer_norm_loops").replace("BLOCK_SIZE=128", "BLOCK_SIZE=triton.next_power_of_2(N)")
    (edit,) = REWRITE.look(source, situation).edits
    assert "one_pass" not in edit.source
    assert edit.claim.kernel == "layer_norm_forward"
    assert edit.source.partition("class LayerNorm")[2] == source.partition("class LayerNorm")[2]
    interpreter.same(source, edit.source, arguments("layer_norm_loops", 2, 77))
    (after,) = compiler.launches(edit.source, arguments("layer_norm_loops", 2, 77))
    assert ttir_facts(after["ttir"])["loads"] == 3


def cross_entropy() -> str:
    """Liger's cross-entropy from the installed wheel, with short blocks and no look at the device."""
    text = Path(liger_kernel.ops.cross_entropy.__file__).read_text()
    for name, value in (("infer_device", "cuda"), ("infer_device_arch", "hopper")):
        imported = f"from liger_kernel.utils import {name}\n"
        assert imported in text
        text = text.replace(imported, f"def {name}(): return {value!r}\n")
    assert "MAX_FUSED_SIZE = 65536 // 2" in text
    return text.replace("MAX_FUSED_SIZE = 65536 // 2", "MAX_FUSED_SIZE = 128") + (
        "\n\ndef launch(x, target, weight, smoothing, reduction, more, gradient):\n"
        "    x = x.requires_grad_(gradient)\n"
        "    with torch.no_grad():\n"
        "        out = cross_entropy_forward(\n"
        "            x, target, weight, 3, 1e-3, smoothing, reduction, None, more, more, more\n"
        "        )\n"
        "    x.requires_grad_(False)\n"
        "    return tuple(o.detach() for o in out if o is not None)\n"
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("smoothing", "more", "gradient"), [(0.0, False, True), (0.1, True, True), (0.1, True, False)])
def test_ligers_cross_entropy_computes_the_same_in_one_pass(
    weighted: bool, smoothing: float, more: bool, gradient: bool, situation: Situation, interpreter: Runs
) -> None:
    source = cross_entropy()
    edit = REWRITE.look(source, situation).edits[0]
    target = {"shape": [5], "dtype": "int64", "high": 6}
    args = [floats(5, 300), target, floats(300) if weighted else None, smoothing, "mean", more, gradient]
    interpreter.same(source, edit.source, args)


def test_ligers_cross_entropy_compiles_without_a_loop(situation: Situation, compiler: Compiles) -> None:
    args = [floats(2, 700), {"shape": [2], "dtype": "int64", "high": 6}, None, 0.0, "mean", False, True]
    (before,) = compiler.launches(cross_entropy(), args)
    (after,) = compiler.launches(REWRITE.look(cross_entropy(), situation).edits[0].source, args)
    assert ttir_facts(before["ttir"])["loads_in_loop"] == 2
    assert ttir_facts(after["ttir"])["loads_in_loop"] == 0


@pytest.mark.parametrize("name", OWN)
def test_the_edit_is_the_same_again_and_is_not_made_twice(
    name: str, kernel: Callable[[str], str], situation: Situation
) -> None:
    first = REWRITE.look(kernel(name), situation).edits
    read.cache_clear()
    assert [e.source for e in REWRITE.look(kernel(name), situation).edits] == [e.source for e in first]
    for edit in first:
        compile(edit.source, name, "exec")
        assert REWRITE.look(edit.source, situation).edits == ()


NEAR: dict[str, tuple[str, str, str, str]] = {
    "a store between the passes": (
        "softmax_passes",
        "        m = new_m\n",
        "        m = new_m\n    tl.store(X_ptr + row_id * X_stride, 1.0)\n",
        "written between two loads",
    ),
    "an input that is overwritten": (
        "softmax_passes",
        "    softmax_rows[(n_rows,)](\n        y,",
        "    softmax_rows[(n_rows,)](\n        x,",
        "same tensor",
    ),
    "an input that is overwritten under another name": (
        "softmax_passes",
        "    y = torch.empty_like(x)\n",
        "    y = x.view(n_rows, n_cols)\n",
        "same tensor",
    ),
    "a store a block further on": (
        "softmax_passes",
        "tl.store(Y_ptr + row_id * Y_stride + idx,",
        "tl.store(X_ptr + row_id * X_stride + idx + BLOCK_SIZE,",
        "more than the size",
    ),
    "a store one place further on": (
        "softmax_passes",
        "tl.store(Y_ptr + row_id * Y_stride + idx,",
        "tl.store(X_ptr + row_id * X_stride + idx + 1,",
        "different places",
    ),
    "each block scaled by its own maximum": (
        "softmax_passes",
        "yblk = tl.exp(xblk - m) / d",
        "yblk = xblk / tl.max(xblk, axis=0)",
        "reduction of that block",
    ),
    "a branch on a block's own maximum": (
        "softmax_passes",
        "        yblk = tl.exp(xblk - m) / d\n",
        "        yblk = xblk\n        if tl.max(xblk, axis=0) > 0:\n            yblk = xblk * 2\n",
        "branch depends",
    ),
    "a count of blocks": (
        "layer_norm_loops",
        "        _mean += a\n",
        "        _mean += a\n        mean += 1\n",
        "`mean`",
    ),
    "a sum of the blocks' maxima": (
        "softmax_passes",
        "        d = d * tl.exp(m - new_m) + tl.sum(tl.exp(xblk - new_m), axis=0)\n",
        "        d += blk_max\n",
        "`d`",
    ),
    "the last block's maximum": ("softmax_passes", "- m) / d", "- blk_max) / d", "last block"),
    "a running sum over places": (
        "softmax_passes",
        "yblk = tl.exp(xblk - m) / d",
        "yblk = tl.cumsum(tl.exp(xblk - m) / d, axis=0)",
        "mixes the places",
    ),
    "weights by place in the block": (
        "layer_norm_loops",
        "w = tl.load(W + cols, mask=mask)",
        "w = tl.load(W + tl.arange(0, BLOCK_SIZE))",
        "place within the block",
    ),
    "a special first block": (
        "softmax_passes",
        "        yblk = tl.exp(xblk - m) / d\n",
        "        yblk = tl.exp(xblk - m) / d\n        if start == 0:\n            yblk = yblk * 2\n",
        "place within the block",
    ),
    "a mean of squares of lanes": (
        "layer_norm_loops",
        "mean = tl.sum(_mean, axis=0) / N",
        "mean = tl.sum(_mean * _mean, axis=0) / N",
        "outside the loops",
    ),
    "lanes that are stored": (
        "layer_norm_loops",
        "    tl.store(Rstd + row, rstd)\n",
        "    tl.store(Rstd + row, rstd)\n    tl.store(Y + tl.arange(0, BLOCK_SIZE), _var)\n",
        "place within the block",
    ),
    "another mask": (
        "softmax_passes",
        "        mask = idx < n_cols\n        xblk = tl.load(\n",
        "        mask = idx < n_cols - 1\n        xblk = tl.load(\n",
        "masked differently",
    ),
    "rows cut up over programs by the block": (
        "softmax_passes",
        "row_id = tl.program_id(0).to(tl.int64)",
        "row_id = tl.program_id(0).to(tl.int64) * BLOCK_SIZE // BLOCK_SIZE",
        "more than the size",
    ),
    "a loop that can be left": (
        "softmax_passes",
        "        m = new_m\n",
        "        m = new_m\n        if m > 3:\n            break\n",
        "not followed",
    ),
    "a row that does not start at its start": (
        "layer_norm_loops",
        "for off in range(0, N, BLOCK_SIZE)",
        "for off in range(8, N, BLOCK_SIZE)",
        "from 0",
    ),
    "a length with a side effect": (
        "softmax_passes",
        "        n_cols,\n        BLOCK",
        "        count(x),\n        BLOCK",
        "plain expression",
    ),
    "arguments out of sight": ("layer_norm_loops", "self.eps, BLOCK", "*self.rest, BLOCK", "cannot be read"),
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


def test_what_is_not_python_is_refused(situation: Situation) -> None:
    assert REWRITE.look("def (", situation).edits == ()
    assert REWRITE.look("def (", situation).refused == ("the source does not parse",)
