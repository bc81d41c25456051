"""The cost model: more work is never faster, and what is known of real kernels comes out about right."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.harness.judge.cost import modelled_time, occupancy
from tilewright.harness.judge.merge import Mismatch, merged
from tilewright.harness.types import CaseTime, KernelFacts, Target
from tilewright.knowledge.targets import target

H200 = target("cuda:90")


def kernel(programs: int = 4096, launches: int = 1, **facts: Any) -> KernelFacts:
    """A launch that streams 16 KiB a program in and out with wide accesses, but for what is said."""
    size = programs * 16384
    base: dict[str, Any] = {
        "registers": 32,
        "spill_bytes": 0,
        "shared_bytes": 0,
        "num_warps": 4,
        "num_stages": 3,
        "async_copies": 0,
        "loops": 0,
        "load_bytes": size,
        "load_sector_bytes": size,
        "unique_load_bytes": size,
        "store_bytes": size,
        "store_sector_bytes": size,
        "unique_store_bytes": size,
        "reread_bytes": 0,
        "load_requests": size // 512,
        "store_requests": size // 512,
        "load_rounds": 1,
    }
    found = {**base, **facts}
    return KernelFacts(kernel="k", case="c", grid=(programs, 1, 1), launches=launches, facts=found, digest="")


def timed(*kernels: KernelFacts, on: Target = H200, **options: Any) -> CaseTime:
    return modelled_time(on, kernels, case="c", **options)[0]


AMOUNTS = [
    "registers",
    "spill_bytes",
    "shared_bytes",
    "load_bytes",
    "load_sector_bytes",
    "unique_load_bytes",
    "store_bytes",
    "store_sector_bytes",
    "unique_store_bytes",
    "load_requests",
    "store_requests",
    "load_rounds",
    "fp32_flops",
    "fp64_flops",
    "sfu_ops",
    "dot_flops",
    "reduce_steps",
    "converts_in_loop",
    "atomic_ops",
    "wave_load_bytes",
]

facts = st.fixed_dictionaries(
    {
        "registers": st.integers(16, 255),
        "spill_bytes": st.integers(0, 4000),
        "shared_bytes": st.integers(0, 200_000),
        "num_warps": st.sampled_from([1, 2, 4, 8, 16, 32]),
        "num_stages": st.integers(1, 5),
        "async_copies": st.integers(0, 4),
        "loops": st.integers(0, 2),
        "fp32_flops": st.integers(0, 10**13),
        "fp64_flops": st.integers(0, 10**11),
        "sfu_ops": st.integers(0, 10**12),
        "dot_flops": st.integers(0, 10**14),
        "dot_precision": st.sampled_from(["fp16", "tf32", "ieee", "tf32x3", "fp8", "int8+fp16"]),
        "mma": st.sampled_from(["none", "mma.v2", "wgmma", "tcgen05"]),
        "reduce_steps": st.integers(0, 10**8),
        "converts_in_loop": st.integers(0, 3),
        "atomic_ops": st.integers(0, 10**9),
        "load_rounds": st.floats(0, 500),
    }
)


@given(
    facts,
    st.sampled_from(AMOUNTS),
    st.floats(1, 100),
    st.integers(1, 200_000),
    st.sampled_from(["cuda:80", "cuda:90", "cuda:100"]),
)
def test_more_of_anything_is_never_faster(
    some: dict[str, Any], name: str, factor: float, programs: int, where: str
) -> None:
    before = kernel(programs, **some, wave_programs=132, wave_load_bytes=programs * 8192)
    old = before.facts.get(name, 0)
    assert isinstance(old, int | float)
    limit = {"registers": 255, "shared_bytes": target(where).shared_bytes_per_block}.get(name, math.inf)
    after = dataclasses.replace(before, facts={**before.facts, name: min(old * factor + 1, limit)})
    assert timed(after, on=target(where)).time_us >= timed(before, on=target(where)).time_us * (1 - 1e-9)


@given(facts, st.integers(1, 100_000), st.integers(1, 100_000))
def test_more_waves_of_the_same_programs_are_never_faster(some: dict[str, Any], few: int, more: int) -> None:
    few, more = sorted((few, more))
    each = {name: value for name, value in some.items() if name not in AMOUNTS or name in ("registers", "shared_bytes")}
    assert timed(kernel(more, **each)).time_us >= timed(kernel(few, **each)).time_us * (1 - 1e-9)


@given(facts, st.sampled_from([(128, 64), (128, 32), (64, 32), (32, 16), (128, 8)]))
def test_narrower_accesses_are_never_faster(some: dict[str, Any], bits: tuple[int, int]) -> None:
    wide, narrow = (kernel(**some, load_bits_min=each, load_requests=4096 * 16384 * 8 // (each * 32)) for each in bits)
    assert timed(narrow).time_us >= timed(wide).time_us


@given(facts, st.integers(1, 20))
def test_every_launch_costs_and_none_is_free(some: dict[str, Any], launches: int) -> None:
    one, many = timed(kernel(**some)), timed(kernel(**some, launches=launches))
    assert many.time_us == pytest.approx(launches * one.time_us)
    assert one.time_us > H200.launch_s * 1e6


@given(facts)
def test_no_kernel_is_faster_than_its_compulsory_bytes(some: dict[str, Any]) -> None:
    found = timed(kernel(**some))
    assert found.time_us > found.floor_us
    assert found.floor_us == pytest.approx(2 * 4096 * 16384 / H200.dram_bytes_per_s * 1e6)


def test_the_floor_is_the_tasks_bytes_but_never_more_than_is_touched() -> None:
    touched = 2 * 4096 * 16384
    assert timed(kernel(), compulsory_bytes=touched // 2).floor_us == pytest.approx(
        touched / 2 / H200.dram_bytes_per_s * 1e6
    )
    assert timed(kernel(), compulsory_bytes=touched * 2).floor_us == timed(kernel()).floor_us


def test_a_stream_of_wide_accesses_runs_at_the_rate_that_was_measured() -> None:
    found = timed(kernel(65536, fp32_flops=65536 * 4096))
    assert found.bound == "dram"
    assert found.time_us == pytest.approx(2 * 65536 * 16384 / 4.25e12 * 1e6, rel=0.1)


def test_a_hopper_product_runs_near_the_tensor_cores_rate_when_its_tiles_are_large() -> None:
    size, tile = 8192, (128, 256)
    programs = size * size // (tile[0] * tile[1])
    loaded = 2 * size * (tile[0] + tile[1]) * programs
    dots = kernel(
        programs,
        registers=168,
        shared_bytes=196608,
        num_warps=8,
        num_stages=4,
        async_copies=8,
        loops=1,
        load_bytes=loaded,
        load_sector_bytes=loaded,
        unique_load_bytes=2 * 2 * size * size,
        load_requests=loaded // 512,
        store_bytes=2 * size * size,
        store_sector_bytes=2 * size * size,
        unique_store_bytes=2 * size * size,
        store_requests=2 * size * size // 512,
        load_rounds=size / 64,
        dot_flops=2 * size**3,
        dot_precision="fp16",
        mma="wgmma",
    )
    rate = 2 * size**3 / (timed(dots).time_us * 1e-6)
    assert 400e12 < rate < 800e12
    old = dataclasses.replace(dots, facts={**dots.facts, "mma": "mma.v2"})
    lanes = dataclasses.replace(dots, facts={**dots.facts, "mma": "none", "dot_precision": "ieee"})
    assert timed(dots).time_us < timed(old).time_us < timed(lanes).time_us
    assert timed(lanes).bound == "tensor"


def test_one_small_program_is_bound_by_its_launch() -> None:
    assert timed(kernel(1)).bound == "launch"


def test_many_programs_that_do_next_to_nothing_are_bound_by_latency_and_fewer_larger_ones_are_not() -> None:
    rows, row = 262_144, 256

    def grouped(group: int) -> KernelFacts:
        size = rows * row
        sizes = dict.fromkeys(
            ["load_bytes", "load_sector_bytes", "unique_load_bytes", "store_bytes", "store_sector_bytes"], size
        )
        requests = {"load_requests": size // 512, "store_requests": size // 512}
        return kernel(rows // group, **sizes, unique_store_bytes=size, **requests)

    assert timed(grouped(1)).bound == "latency"
    assert timed(grouped(16)).time_us < 0.5 * timed(grouped(1)).time_us


def test_a_row_read_again_costs_memory_only_when_the_caches_cannot_hold_it() -> None:
    def passes(bytes_a_row: int, again: int) -> float:
        rows = (1 << 30) // bytes_a_row
        loaded = (1 + again) << 30
        return timed(
            kernel(
                rows,
                load_bytes=loaded,
                load_sector_bytes=loaded,
                unique_load_bytes=1 << 30,
                reread_bytes=again << 30,
                load_requests=loaded // 512,
                loops=1,
            )
        ).time_us

    small, large = (passes(size, 2) / passes(size, 0) for size in (8 << 10, 1 << 20))
    assert small < 1.3
    assert large > 1.8


def test_weights_that_all_rows_share_cost_l2_next_to_nothing() -> None:
    def row(weights: int) -> float:
        size = 4096 * (16384 + weights)
        shared = {"load_bytes": size, "load_sector_bytes": size, "load_requests": size // 512, "num_warps": 8}
        breakdown = modelled_time(H200, [kernel(**shared)], case="c")[1]
        assert isinstance(breakdown["kernels"], list)
        found: float = breakdown["kernels"][0]["terms_us"]["l2"]
        return found

    assert row(8192) == row(0)
    assert row(1 << 20) > 10 * row(0)


def test_what_a_wave_shares_is_loaded_from_memory_once_for_it() -> None:
    def grouped(wave_bytes: int) -> float:
        size = 17 << 30
        return timed(
            kernel(
                4096,
                load_bytes=size,
                load_sector_bytes=size,
                unique_load_bytes=256 << 20,
                load_requests=size // 512,
                wave_programs=132,
                wave_load_bytes=wave_bytes,
            )
        ).time_us

    assert grouped(50 << 20) < grouped(130 << 20) < grouped(550 << 20)


def test_a_torch_operation_is_a_stream_or_a_product() -> None:
    def op(**counts: Any) -> KernelFacts:
        return KernelFacts(
            kernel="torch:mm",
            case="c",
            grid=(1, 1, 1),
            launches=1,
            facts={"torch_op": True, "load_bytes": 1 << 28, "store_bytes": 1 << 28, **counts},
            digest="",
        )

    assert timed(op()).bound == "dram"
    assert timed(op()).time_us == pytest.approx((1 << 29) / (0.9 * 4.25e12) * 1e6, rel=0.1)
    assert timed(op(dot_flops=2 * 8192**3, dot_operand="float32")).time_us > 15_000
    assert timed(op(dot_flops=2 * 8192**3, dot_operand="float16")).time_us < 2_000


def test_the_breakdown_shows_every_term_and_adds_up() -> None:
    parts = (kernel(launches=2), kernel(16, dot_flops=10**9, mma="wgmma", dot_precision="bf16"))
    found, breakdown = modelled_time(H200, parts, case="c", weight=3.0)
    assert (found.case, found.weight) == ("c", 3.0)
    listed = breakdown["kernels"]
    assert isinstance(listed, list)
    total = sum(each["launches"] * each["time_us"] for each in listed) + breakdown["launch_us"]
    assert total == pytest.approx(found.time_us, rel=1e-3)
    assert set(listed[0]["terms_us"]) == {"dram", "l2", "lsu", "fp32", "sfu", "tensor", "atomics", "latency"}
    assert listed[0]["time_us"] >= max(listed[0]["terms_us"].values())


def test_an_empty_grid_costs_its_launch_alone() -> None:
    empty = dataclasses.replace(kernel(), grid=(0, 1, 1))
    assert timed(empty).time_us == pytest.approx(H200.launch_s * 1e6)


def test_a_kernel_that_nobody_counted_is_refused() -> None:
    bare = KernelFacts(kernel="k", case="c", grid=(8, 1, 1), launches=1, facts={"registers": 32}, digest="")
    with pytest.raises(ValueError, match="k was compiled but not counted"):
        timed(bare)


@pytest.mark.parametrize(
    ("facts", "resident", "limit"),
    [
        ({"registers": 32, "num_warps": 4, "shared_bytes": 0}, 16, "warps"),
        ({"registers": 32, "num_warps": 1, "shared_bytes": 0}, 32, "blocks"),
        ({"registers": 128, "num_warps": 4, "shared_bytes": 0}, 4, "registers"),
        ({"registers": 255, "num_warps": 8, "shared_bytes": 0}, 1, "registers"),
        ({"registers": 64, "num_warps": 4, "shared_bytes": 65536}, 3, "shared"),
    ],
)
def test_occupancy_is_what_the_tightest_resource_allows(facts: dict[str, Any], resident: int, limit: str) -> None:
    held = occupancy(H200, facts, 10_000)
    assert (held.resident, held.limit) == (resident, limit)
    assert held.waves == pytest.approx(10_000 / (132 * resident))


# --- joining what the compiler said with what was counted -------------------------------------------------


def compiled(*entries: tuple[str, int], order: list[int]) -> dict[str, Any]:
    return {
        "kernels": [
            {
                "kernel": name,
                "grid": [programs, 1, 1],
                "launches": order.count(i),
                "facts": {"torch_op": True} if name.startswith("torch:") else {"registers": 20 + i},
                "digest": f"{i}",
                "lines": {"load": {"7": 128}, "store": {"8": 32}},
            }
            for i, (name, programs) in enumerate(entries)
        ],
        "order": order,
    }


def counted(*entries: tuple[str, int, int], order: list[int]) -> dict[str, Any]:
    return {
        "launches": [
            {
                "kernel": name,
                "grid": [programs, 1, 1],
                "counts": {"load_bytes": size, "load_rounds": 1.5},
                "lines": {"load": {"7": size, "9": 64}, "store": {"8": 1024}},
            }
            for name, programs, size in entries
        ],
        "order": order,
    }


def test_launches_are_joined_in_order_past_torchs_own() -> None:
    one, other, last = merged(
        compiled(("a", 4), ("torch:sum", 1), ("b", 8), order=[0, 1, 2, 0]),
        counted(("a", 4, 5120), ("b", 8, 10240), order=[0, 1, 0]),
        "case",
    )
    assert [each.kernel for each in (one, other, last)] == ["a", "torch:sum", "b"]
    assert (one.launches, one.case, one.grid) == (2, "case", (4, 1, 1))
    assert (one.facts["programs"], one.facts["load_bytes"], one.facts["registers"]) == (4, 5120, 20)
    # 16 bytes a lane for line 7, 4 for line 9, which has no width of its own; 4 a lane stored.
    assert (one.facts["load_requests"], one.facts["store_requests"]) == (round(5120 / 512 + 64 / 128), 8)
    assert last.facts["load_rounds"] == 1.5
    assert "load_bytes" not in other.facts


def test_without_a_census_there_are_the_compilers_facts_alone() -> None:
    (one,) = merged(compiled(("a", 4), order=[0, 0]), {}, "case")
    assert (one.launches, dict(one.facts)) == (2, {"registers": 20, "programs": 4})


def test_launches_that_compile_alike_share_the_mean_of_their_counts() -> None:
    (both,) = merged(compiled(("a", 4), order=[0, 0]), counted(("a", 4, 1000), ("a", 4, 3000), order=[0, 1]), "case")
    assert both.facts["load_bytes"] == 2000


@pytest.mark.parametrize(
    ("entries", "order", "message"),
    [
        ([("a", 4, 1)], [0], "2 launches were compiled and 1 counted"),
        ([("a", 4, 1), ("b", 4, 1)], [0, 1], r"launch 1 was compiled as a \(4, 1, 1\) and counted as b"),
        ([("a", 4, 1), ("a", 5, 1)], [0, 1], r"counted as a \(5, 1, 1\)"),
    ],
)
def test_different_launches_are_never_joined(entries: list[Any], order: list[int], message: str) -> None:
    with pytest.raises(Mismatch, match=message):
        merged(compiled(("a", 4), order=[0, 0]), counted(*entries, order=order), "case")
