"""Tiles, warps and stages vary together, within what the source shows to be safe and the target can hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from tilewright.harness.types import KernelFacts
from tilewright.knowledge.rewrites import Situation
from tilewright.knowledge.rewrites.configs import configs
from tilewright.knowledge.rewrites.kernels import language
from tilewright.knowledge.rewrites.launches import kernels
from tilewright.knowledge.rewrites.source import read
from tilewright.knowledge.rewrites.tile_search import BATCH, REWRITE
from tilewright.knowledge.rewrites.tiles import tiles

GOLDEN = Path(__file__).parents[1] / "golden" / "tile-search"
OWN: dict[str, list[Any]] = {
    "vector_add": [{"shape": [3001]}, {"shape": [3001]}],
    "row_moments": [{"shape": [3, 157]}],
    "matmul_tuned": [{"shape": [70, 50]}, {"shape": [50, 90]}],
    "attention_rows": [{"shape": [3, 37]}, {"shape": [3], "dtype": "int32", "low": 1, "high": 40}, {"shape": [37]}],
}
HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n"


class Runs(Protocol):
    def same(self, before: str, after: str, args: list[Any], tolerance: float = ..., entry: str = ...) -> None: ...


class Compiles(Protocol):
    def one(self, source: str, args: list[Any], entry: str = ...) -> dict[str, Any]: ...


def facts(kernel: str, case: str, grid: int, **known: int) -> KernelFacts:
    return KernelFacts(kernel=kernel, case=case, grid=(grid, 1, 1), launches=1, facts=known, digest="")


@pytest.mark.parametrize("name", ["vector_add", "matmul_tuned"])
def test_the_first_variant_is_the_one_written_down(
    name: str, kernel: Callable[[str], str], situation: Situation
) -> None:
    assert REWRITE.look(kernel(name), situation).edits[0].source == (GOLDEN / f"{name}.py").read_text()


@pytest.mark.parametrize("name", OWN)
def test_variants_compute_the_same(
    name: str, kernel: Callable[[str], str], situation: Situation, interpreter: Runs
) -> None:
    edits = REWRITE.look(kernel(name), situation).edits
    seen: dict[str, Any] = {}
    for edit in edits:  # the interpreter knows no warps: one variant for each choice of sizes
        seen.setdefault(str({k: v for k, v in edit.params.items() if not k.startswith("num_")}), edit)
    for edit in list(seen.values())[:5]:
        interpreter.same(kernel(name), edit.source, OWN[name], tolerance=1e-4)


@pytest.mark.parametrize("name", OWN)
def test_a_batch_is_bounded_parses_and_repeats_nothing(
    name: str, kernel: Callable[[str], str], situation: Situation
) -> None:
    edits = REWRITE.look(kernel(name), situation).edits
    assert 0 < len(edits) <= BATCH
    assert len({e.source for e in edits}) == len(edits)
    assert len({e.label for e in edits}) == len(edits)
    assert kernel(name) not in {e.source for e in edits}
    assert all(read(e.source) is not None for e in edits)


def test_the_claimed_warps_and_programs_are_what_the_compiler_is_given(
    kernel: Callable[[str], str], situation: Situation, compiler: Compiles
) -> None:
    source = kernel("vector_add")
    args = [{"shape": [1 << 16]}] * 2
    before = compiler.one(source, args)
    for edit in REWRITE.look(source, situation).edits[:8]:
        after = compiler.one(edit.source, args)
        if edit.claim.fact == "num_warps":
            assert after["num_warps"] == edit.claim.value
        else:
            assert edit.claim.fact == "programs"
            assert (after["grid"][0] < before["grid"][0]) is (edit.claim.relation == "falls")
        size = edit.params.get("BLOCK_SIZE", 1024)
        assert f"tensor<{size}xf32>" in after["ttir"]


def test_a_block_that_covers_the_row_stays_and_warps_vary(liger: Callable[[str], str], situation: Situation) -> None:
    for name in ("softmax", "layer_norm", "swiglu"):
        edits = REWRITE.look(liger(name), situation).edits
        assert {tuple(e.params) for e in edits} == {("num_warps",)}
        assert {e.params["num_warps"] for e in edits} >= {1, 2, 8, 16}


def test_warps_come_near_eight_elements_a_thread_first(liger: Callable[[str], str], situation: Situation) -> None:
    name = "_softmax_single_block_forward_kernel"
    known = replace(situation, kernels=(facts(name, "a", 65536, tile_elements=512, num_warps=4),))
    edits = REWRITE.look(liger("softmax"), known).edits
    assert edits[0].params == {"num_warps": 2}
    assert "num_warps=2\n" in edits[0].source
    assert all(e.params["num_warps"] != 4 for e in edits)


def test_cases_of_unlike_width_get_warps_in_proportion(
    liger: Callable[[str], str], situation: Situation, interpreter: Runs
) -> None:
    name = "_layer_norm_forward_kernel"
    cases = (facts(name, "a", 1, tile_elements=128, num_warps=4), facts(name, "b", 1, tile_elements=8192, num_warps=16))
    first = REWRITE.look(liger("layer_norm"), replace(situation, kernels=cases)).edits[0]
    assert "num_warps=max(1, min(32, BLOCK_SIZE // 256))" in first.source
    weight = {"shape": [37]}
    interpreter.same(liger("layer_norm"), first.source, [{"shape": [3, 37]}, weight, weight, 1e-5])


def test_tiles_that_the_target_cannot_hold_are_left_out(kernel: Callable[[str], str], situation: Situation) -> None:
    small = replace(situation, target=replace(situation.target, shared_bytes_per_block=48 * 1024))
    for edit in REWRITE.look(kernel("matmul_tuned"), small).edits:
        p = {k: v for k, v in edit.params.items() if isinstance(v, int)}
        listed = (p["BLOCK_M"], p["BLOCK_N"], p["BLOCK_K"]) == (64, 64, 32)
        assert listed or p["num_stages"] * (p["BLOCK_M"] + p["BLOCK_N"]) * p["BLOCK_K"] * 2 <= 48 * 1024


def test_a_variant_can_be_varied_again(kernel: Callable[[str], str], situation: Situation) -> None:
    for name in ("vector_add", "matmul_tuned"):
        once = REWRITE.look(kernel(name), situation).edits[0].source
        again = REWRITE.look(once, situation).edits
        assert again
        assert once not in {e.source for e in again}


def test_configurations_of_a_comprehension_are_spelled_out() -> None:
    source = read(
        HEAD
        + """
@triton.autotune([triton.Config({"B": b}, num_warps=w) for b in [64, 128] for w in (4, 8)], key=["n"])
@triton.jit
def k(x, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + offs, 1.0, mask=offs < n)
"""
    )
    assert source is not None
    found = [(c.sizes["B"], c.options["num_warps"]) for c in configs(source, kernels(source)["k"])]
    assert found == [(64, 4), (64, 8), (128, 4), (128, 8)]


def test_free_tiles_are_told_from_sizes_that_cover(kernel: Callable[[str], str], liger: Callable[[str], str]) -> None:
    def free(text: str, name: str) -> dict[str, tuple[bool, bool]]:
        source = read(text)
        assert source is not None
        found = tiles(source, language(source), kernels(source)[name])
        return {k: (t.program, t.masked) for k, t in found.items()}

    assert free(kernel("vector_add"), "add_kernel") == {"BLOCK_SIZE": (True, True)}
    assert free(kernel("row_moments"), "moments_kernel") == {"BLOCK": (False, True)}
    assert free(kernel("attention_rows"), "rows_kernel") == {}
    assert free(liger("layer_norm"), "_layer_norm_forward_kernel") == {}
    assert free(kernel("matmul_tuned"), "matmul_kernel") == {
        "BLOCK_M": (True, True),
        "BLOCK_N": (True, True),
        "BLOCK_K": (False, True),
    }


ADD = """
@triton.jit
def k(x, out, n, B: tl.constexpr):
    pid = tl.program_id(0)
    offs = pid * B + tl.arange(0, B)
    m = offs < n
    tl.store(out + offs, tl.load(x + offs, mask=m) + 1, mask=m)

"""


def sizes(source: str, situation: Situation) -> set[Any]:
    return {e.params["B"] for e in REWRITE.look(HEAD + source, situation).edits if "B" in e.params}


@pytest.mark.parametrize(
    "host",
    [
        "def launch(x, out, n):\n    B = 256\n    k[(triton.cdiv(n, B),)](x, out, n, B=B)\n",
        "def launch(x, out, n):\n    k[(triton.cdiv(n, 256),)](x, out, n, B=256)\n",
        "SIZE = 256\n\ndef launch(x, out, n):\n    grid = (triton.cdiv(n, SIZE),)\n    k[grid](x, out, n, SIZE)\n",
        "def launch(x, out, n):\n    k[lambda m: (triton.cdiv(n, m['B']),)](x, out, n, **{'B': 256})\n",
    ],
)
def test_the_grid_follows_the_tile_however_it_is_written(host: str, situation: Situation, interpreter: Runs) -> None:
    entry = host.replace("def launch(x, out, n):\n", "def launch(x):\n    out, n = torch.zeros_like(x), x.numel()\n")
    text = HEAD + ADD + entry + "    return out\n"
    edits = [e for e in REWRITE.look(text, situation).edits if e.params.get("B") in (512, 64)]
    assert {e.params["B"] for e in edits} == {64, 512}
    for edit in edits[:3]:
        interpreter.same(text, edit.source, [{"shape": [1000]}])


@pytest.mark.parametrize(
    "host",
    [
        "def launch(x, out, n):\n    k[(n // 256,)](x, out, n, B=256)\n",
        "def launch(x, out, n, grid):\n    k[grid](x, out, n, B=256)\n",
        "def launch(x, out, n):\n    k[(4,)](x, out, n, B=triton.next_power_of_2(n))\n",
        "def launch(x, out, n):\n    B = 256\n    x = x.view(-1, B)\n    k[(triton.cdiv(n, B),)](x, out, n, B=B)\n",
        "def launch(x, out, n):\n    B = 256\n    k[(triton.cdiv(n, 256),)](x, out, n, B=B)\n",
        "def launch(x, out, n):\n    k[(triton.cdiv(n, 100),)](x, out, n, B=100)\n",
    ],
)
def test_a_tile_that_the_grid_does_not_follow_stays(host: str, situation: Situation) -> None:
    assert sizes(ADD + host, situation) == set()


def test_a_tile_without_a_mask_only_becomes_a_divisor(situation: Situation) -> None:
    bare = ADD.replace(", mask=m", "")
    host = "def launch(x, out, n):\n    B = 256\n    k[(triton.cdiv(n, B),)](x, out, n, B=B)\n"
    assert sizes(bare + host, situation) == {64, 128}


def test_a_size_with_another_use_stays(situation: Situation) -> None:
    host = "def launch(x, out, n):\n    B = 256\n    k[(triton.cdiv(n, B),)](x, out, n, B=B)\n"
    assert sizes(ADD.replace("+ 1,", "+ B,") + host, situation) == set()
    assert sizes(ADD.replace("    m =", "    if B > 128:\n        pid += 0\n    m =") + host, situation) == set()


def test_a_size_that_another_kernel_uses_as_a_cover_stays(situation: Situation) -> None:
    other = ADD.replace("def k(", "def c(").replace("pid * B + ", "")
    host = (
        "B = 256\n\ndef launch(x, out, n):\n    k[(triton.cdiv(n, B),)](x, out, n, B=B)\n    c[(1,)](x, out, n, B=B)\n"
    )
    assert sizes(ADD + other + host, situation) == set()


def test_partial_results_pin_a_tile_that_only_the_grid_names(situation: Situation) -> None:
    partial = ADD.replace("tl.store(out + offs,", "tl.store(out + pid,").replace("mask=m) + 1, mask=m)", "mask=m) + 1)")
    literal = "def launch(x, out, n):\n    k[(triton.cdiv(n, 256),)](x, out, n, B=256)\n"
    assert sizes(partial + literal, situation) == set()


def test_a_kernel_without_a_readable_launch_says_so(situation: Situation) -> None:
    assert REWRITE.look(HEAD + ADD, situation).refused == ("k: it is not launched in this module",)
    host = "def launch(x, out, n):\n    k[(1,)](x, out, n, B=256)\n\nALIAS = k\n"
    assert REWRITE.look(HEAD + ADD + host, situation).refused == ("k: it is used in other ways than plain launches",)
    assert REWRITE.look("def f(:", situation).edits == ()


def test_sizes_assigned_together_vary_together(situation: Situation, interpreter: Runs) -> None:
    two = """
@triton.jit
def k(x, out, m, n, A: tl.constexpr, B: tl.constexpr):
    rows = tl.program_id(0) * A + tl.arange(0, A)
    cols = tl.program_id(1) * B + tl.arange(0, B)
    at = rows[:, None] * n + cols[None, :]
    keep = (rows[:, None] < m) & (cols[None, :] < n)
    tl.store(out + at, tl.load(x + at, mask=keep) * 2, mask=keep)


def launch(x):
    m, n = x.shape
    out = torch.zeros_like(x)
    A, B = 8, 64
    grid = (triton.cdiv(m, A), triton.cdiv(n, B))
    k[grid](x, out, m, n, A=A, B=B)
    return out
"""
    edits = [e for e in REWRITE.look(HEAD + two, situation).edits if {"A", "B"} <= set(e.params)]
    assert edits
    for edit in edits[:2]:
        assert f"A, B = {edit.params['A']}, {edit.params['B']}" in edit.source
        interpreter.same(HEAD + two, edit.source, [{"shape": [21, 150]}])


def test_a_loop_tile_that_the_launch_computes_is_varied_from_its_compiled_size(
    kernel: Callable[[str], str], situation: Situation, interpreter: Runs
) -> None:
    source = kernel("row_moments").replace("BLOCK=32", "BLOCK=min(64, triton.next_power_of_2(n_cols))")
    assert all("BLOCK" not in e.params for e in REWRITE.look(source, situation).edits)
    record = facts("moments_kernel", "a", 4096, tile_elements=64, tile_rank=1, num_warps=2)
    edits = REWRITE.look(source, replace(situation, kernels=(record,))).edits
    changed = next(e for e in edits if e.params.get("BLOCK") == 128)
    assert "BLOCK=128, " in changed.source
    interpreter.same(source, changed.source, [{"shape": [3, 157]}], tolerance=1e-4)


def test_labels_name_the_kernel_where_several_vary(situation: Situation) -> None:
    host = "def launch(x, out, n):\n    k[(1,)](x, out, n, B=256)\n    c[(1,)](x, out, n, B=256)\n"
    edits = REWRITE.look(HEAD + ADD + ADD.replace("def k(", "def c(") + host, situation).edits
    assert {e.label.split(":")[0] for e in edits} == {"k", "c"}
