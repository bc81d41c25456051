"""What launches ask of the machine at full size, counted from a few of their programs."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.harness.judge.pool import Pool
from tilewright.harness.worker.wire import Blob
from tilewright.knowledge.targets import target

Counted = Callable[..., list[dict[str, Any]]]

HEAD = "import torch\nimport triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n\n"


def tensor(*shape: int, dtype: str = "float32", strides: list[int] | None = None, **spec: Any) -> dict[str, Any]:
    return {"shape": list(shape), "dtype": dtype, "strides": strides, **spec}


@pytest.fixture(scope="session")
def answered(runner: asyncio.Runner, interpreting: Pool) -> Callable[..., dict[str, Any]]:
    """Count a candidate; keyword arguments are the entry's: a spec for a tensor, a value for a scalar."""

    def run(source: str, *, tensors: dict[str, Blob] | None = None, chosen: Any = None, **args: Any) -> dict[str, Any]:
        listed = [
            {"name": name, "tensor": value} if isinstance(value, dict) else {"name": name, "scalar": value}
            for name, value in args.items()
        ]
        job = {
            "op": "census",
            "kind": "triton",
            "source": HEAD + source,
            "entry": "launch",
            "args": listed,
            "target": dataclasses.asdict(target("cuda:90")),
            "chosen": chosen,
        }
        return runner.run(interpreting.run(job, tensors, limit_s=60.0))[0]

    return run


@pytest.fixture(scope="session")
def counted(answered: Callable[..., dict[str, Any]]) -> Counted:
    """The same where nothing fails: each distinct launch."""

    def run(source: str, **args: Any) -> list[dict[str, Any]]:
        reply = answered(source, **args)
        assert "failed" not in reply, reply
        found: list[dict[str, Any]] = reply["launches"]
        return found

    return run


ADD = """
@triton.jit
def add(x, y, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(o + i, tl.load(x + i, mask=m) + tl.load(y + i, mask=m), mask=m)


def launch(x, y):
    o = torch.empty_like(x)
    n = x.numel()
    add[(triton.cdiv(n, 1024),)](x, y, o, n, BLOCK=1024)
    return o
"""


def test_elementwise_bytes_are_exact_at_a_size_that_no_memory_holds(counted: Counted) -> None:
    n = 40_000_000_003
    source = ADD.replace("program_id(0)", "program_id(0).to(tl.int64)")
    (launch,) = counted(source, x=tensor(n), y=tensor(n))
    counts = launch["counts"]
    assert launch["grid"] == [math.ceil(n / 1024), 1, 1]
    assert launch["programs_run"] <= 8
    assert counts["load_bytes"] == 2 * 4 * n
    assert counts["store_bytes"] == 4 * n
    assert counts["unique_load_bytes"] == pytest.approx(8 * n, rel=1e-6)
    assert counts["unique_store_bytes"] == pytest.approx(4 * n, rel=1e-6)
    assert counts["reread_bytes"] == 0
    assert counts["load_rounds"] == 1
    assert counts["fp32_flops"] == pytest.approx(math.ceil(n / 1024) * 1024)
    assert set(launch["lines"]["load"]) == {"11"}
    assert sum(launch["lines"]["load"].values()) == 2 * 4 * n


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2), ("float16", 2), ("float8_e5m2", 1), ("float64", 8)])
def test_every_type_counts_with_its_own_size(counted: Counted, dtype: str, size: int) -> None:
    source = ADD.replace(
        "tl.load(x + i, mask=m) + tl.load(y + i, mask=m)", "(tl.load(x + i, mask=m).to(tl.float32) * 0.5)"
    )
    (launch,) = counted(source, x=tensor(8192, dtype=dtype), y=tensor(8192, dtype=dtype))
    assert (launch["counts"]["load_bytes"], launch["counts"]["store_bytes"]) == (8192 * size, 8192 * size)


PASSES = """
@triton.jit
def widest(base, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    top = -float("inf")
    for k in range(0, n, BLOCK):
        top = tl.maximum(top, tl.max(tl.load(base + k + i, mask=k + i < n, other=-float("inf")), 0))
    return top


@triton.jit
def softmax(x, o, n, eps, BLOCK: tl.constexpr):
    base = x + tl.program_id(0) * n
    i = tl.arange(0, BLOCK)
    top = widest(base, n, BLOCK)
    total = eps.to(tl.float32)
    for k in tl.range(0, n, BLOCK, num_stages=2):
        v = tl.load(base + k + i, mask=k + i < n, other=-float("inf"))
        total += tl.sum(libdevice.exp(v - top), 0)
    for k in range(0, n, BLOCK):
        v = tl.load(base + k + i, mask=k + i < n, other=-float("inf"))
        tl.store(o + tl.program_id(0) * n + k + i, tl.exp(v - top) / total, mask=k + i < n)


def launch(x, eps):
    o = torch.empty_like(x)
    softmax[(x.shape[0],)](x, o, x.shape[1], eps, BLOCK=256)
    return o
"""


def test_a_second_pass_over_memory_is_told_from_the_first(counted: Counted) -> None:
    rows, n = 4096, 10_008
    (launch,) = counted(PASSES, x=tensor(rows, n), eps=1e-6)
    counts = launch["counts"]
    assert counts["load_bytes"] == pytest.approx(3 * 4 * rows * n)
    assert counts["reread_bytes"] == pytest.approx(2 * 4 * rows * n, rel=0.01)
    assert counts["unique_load_bytes"] == pytest.approx(4 * rows * n, rel=0.01)
    assert counts["store_bytes"] == pytest.approx(4 * rows * n)
    assert counts["sfu_ops"] == pytest.approx(3 * rows * math.ceil(n / 256) * 256)
    assert counts["reduce_steps"] == rows * 2 * math.ceil(n / 256) * 8


def test_dependent_round_trips_are_those_of_the_loops_however_long(counted: Counted) -> None:
    short, long = 4 * 256, 400 * 256
    for n in (short, long):
        (launch,) = counted(PASSES, x=tensor(64, n), eps=1e-6)
        # Where one loop ends and the next begins their loads may overlap.
        assert launch["counts"]["load_rounds"] == pytest.approx(3 * n / 256, abs=2)


MATMUL = """
@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    pid = tl.program_id(0)
    across = tl.cdiv(N, BN)
    group = pid // (GROUP * across)
    inside = pid % (GROUP * across)
    rm = (group * GROUP + inside % GROUP) * BM + tl.arange(0, BM)
    rn = (inside // GROUP) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    pa = a + rm[:, None] * K + rk[None, :]
    pb = b + rk[:, None] * N + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(tl.load(pa), tl.load(pb), acc)
        pa += BK
        pb += BK * N
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(tl.float16))


def launch(a, b):
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), device="cuda", dtype=a.dtype)
    matmul[(M // 128 * (N // 128),)](a, b, c, M, N, K, BM=128, BN=128, BK=32, GROUP=GROUPED)
    return c
"""


def test_a_tiled_product_is_counted_without_being_computed(counted: Counted) -> None:
    size = 8192
    square = tensor(size, size, dtype="float16")
    (launch,) = counted(MATMUL.replace("GROUPED", "1"), a=square, b=square)
    counts = launch["counts"]
    assert counts["dot_flops"] == 2 * size**3
    assert counts["load_bytes"] == 2 * 2 * size * size * (size // 128)
    assert counts["unique_load_bytes"] == 2 * 2 * size * size
    assert counts["unique_store_bytes"] == 2 * size * size
    assert counts["load_rounds"] == size / 32


def test_an_order_of_programs_that_shares_more_shows_in_what_a_wave_loads(counted: Counted) -> None:
    square = tensor(8192, 8192, dtype="float16")
    (rows,) = counted(MATMUL.replace("GROUPED", "64"), a=square, b=square)
    (grouped,) = counted(MATMUL.replace("GROUPED", "8"), a=square, b=square)
    assert rows["counts"]["wave_programs"] == grouped["counts"]["wave_programs"] == 132
    # 132 programs: a column of 64 tiles twice over needs all of `a` and 2 or 3 columns; 8 x 16.5 tiles need 24.5.
    tile_row = 128 * 8192 * 2
    assert rows["counts"]["wave_load_bytes"] == pytest.approx(66.5 * tile_row, rel=0.35)
    assert grouped["counts"]["wave_load_bytes"] == pytest.approx(24.5 * tile_row, rel=0.5)
    assert grouped["counts"]["wave_load_bytes"] < 0.7 * rows["counts"]["wave_load_bytes"]


def test_a_strided_walk_touches_a_sector_an_element(counted: Counted) -> None:
    source = ADD.replace("x + i", "x + i * 32")
    (launch,) = counted(source, x=tensor(65536, strides=[32]), y=tensor(65536))
    assert launch["counts"]["load_bytes"] == 2 * 65536 * 4
    assert launch["counts"]["load_sector_bytes"] == 65536 * 32 + 65536 * 4


def test_what_all_programs_load_is_unique_once(counted: Counted) -> None:
    source = ADD.replace("y + i, mask=m", "y + i % 1024")
    (launch,) = counted(source, x=tensor(1 << 20), y=tensor(1024))
    assert launch["counts"]["load_bytes"] == 2 * 4 << 20
    assert launch["counts"]["unique_load_bytes"] == (4 << 20) + 4096


GATHER = """
@triton.jit
def gather(table, index, o, n, D: tl.constexpr):
    row = tl.load(index + tl.program_id(0))
    i = tl.arange(0, D)
    for repeat in range(tl.load(index + tl.program_id(0)) // 1000):
        tl.store(o + tl.program_id(0) * D + i, tl.load(table + row * D + i))


def launch(table, index):
    o = torch.empty((index.numel(), table.shape[1]), device=table.device)
    gather[(index.numel(),)](table, index, o, index.numel(), D=128)
    return o
"""


def test_indices_are_real_so_that_loops_and_addresses_hang_on_them(counted: Counted) -> None:
    index = tensor(512, dtype="int64", values="integers", low=2000, high=2999)
    (launch,) = counted(GATHER, table=tensor(1 << 20, 128), index=index)
    counts = launch["counts"]
    assert counts["store_bytes"] == 512 * 2 * 128 * 4
    assert counts["load_bytes"] == 512 * (2 * 8 + 2 * 128 * 4)
    assert counts["unique_load_bytes"] <= 512 * (32 + 512)


def test_values_that_come_with_the_job_are_used(counted: Counted) -> None:
    values = np.full(64, 3000, dtype=np.int64)
    blob = {"index": Blob("int64", (64,), values.tobytes())}
    (launch,) = counted(GATHER, tensors=blob, table=tensor(4096, 128), index=tensor(64, dtype="int64"))
    assert launch["counts"]["store_bytes"] == 64 * 3 * 128 * 4


ODDS = """
@triton.jit
def odds(x, o, locks, n, half, BLOCK: tl.constexpr):
    while tl.atomic_cas(locks, 0, 1) == 1:
        pass
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for step in tl.static_range(0, 4):
        total += tl.load(x + (tl.program_id(0) * 4 + step) * BLOCK + i)
    total = tl.where(total > 0, tl.cumsum(total, 0), -total) * half.to(tl.float32)
    best, at = tl.max(total, 0, return_indices=True)
    tl.atomic_add(o + i, total)
    tl.atomic_xchg(locks, 0)


def launch(x, half):
    o = torch.zeros(256, device=x.device)
    locks = torch.zeros(1, device=x.device, dtype=torch.int32)
    odds[(x.numel() // 1024,)](x, o, locks, x.numel(), half, BLOCK=256)
    return o
"""


def test_locks_atomics_scans_and_unrolled_loops_are_counted(counted: Counted) -> None:
    (launch,) = counted(ODDS, x=tensor(1 << 20), half=0.5)
    counts, programs = launch["counts"], (1 << 20) // 1024
    assert counts["load_bytes"] == 4 << 20
    assert counts["atomic_ops"] == programs * (256 + 2)
    # The lock's old value is waited for; the four unrolled loads go out together.
    assert counts["load_rounds"] == 1


def test_an_edge_of_the_grid_stands_for_no_more_than_itself(counted: Counted) -> None:
    source = """
@triton.jit
def copy(x, o, rows, cols, BM: tl.constexpr, BN: tl.constexpr):
    r = tl.program_id(1) * BM + tl.arange(0, BM)
    c = tl.program_id(0) * BN + tl.arange(0, BN)
    m = (r < rows)[:, None] & (c < cols)[None, :]
    at = r[:, None] * cols + c[None, :]
    tl.store(o + at, tl.load(x + at, mask=m), mask=m)


def launch(x):
    o = torch.empty_like(x)
    rows, cols = x.shape
    copy[(triton.cdiv(cols, 64), triton.cdiv(rows, 32))](x, o, rows, cols, BM=32, BN=64)
    return o
"""
    for rows, cols in ((1001, 130), (33, 6401), (40, 65)):
        (launch,) = counted(source, x=tensor(rows, cols))
        assert launch["counts"]["load_bytes"] == pytest.approx(rows * cols * 4, abs=2), (rows, cols)
        assert launch["counts"]["store_bytes"] == pytest.approx(rows * cols * 4, abs=2)


def test_equal_launches_are_counted_once_and_listed_in_order(answered: Callable[..., dict[str, Any]]) -> None:
    twice = ADD.replace(
        "return o", "add[(64,)](o, y, x, 65536, BLOCK=1024)\n    add[(7,)](o, y, x, n, BLOCK=256)\n    return x"
    )
    reply = answered(twice, x=tensor(65536), y=tensor(65536))
    assert reply["order"] == [0, 0, 1]
    assert [launch["grid"] for launch in reply["launches"]] == [[64, 1, 1], [7, 1, 1]]


def test_the_configuration_that_was_chosen_is_the_one_counted(counted: Counted) -> None:
    tuned = ADD.replace(
        "@triton.jit",
        '@triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (256, 512, 2048)], key=["n"])\n@triton.jit',
    ).replace("(triton.cdiv(n, 1024),)", 'lambda m: (triton.cdiv(n, m["BLOCK"]),)')
    tuned = tuned.replace(", BLOCK=1024)", ")")
    args = {"x": tensor(65536), "y": tensor(65536)}
    assert counted(tuned, **args)[0]["grid"] == [256, 1, 1]
    assert counted(tuned, chosen={"add": 2}, **args)[0]["grid"] == [32, 1, 1]


def test_a_census_repeats_itself_exactly(counted: Counted) -> None:
    square = tensor(8192, 8192, dtype="float16")
    source = MATMUL.replace("GROUPED", "8")
    assert counted(source, a=square, b=square) == counted(source, a=square, b=square)


@pytest.mark.parametrize(
    ("source", "word", "detail"),
    [
        (ADD.replace("torch.empty_like(x)", "torch.empty(x.shape)"), "launch", "argument `o` of add is a CPU tensor"),
        (ADD.replace("m = i < n", "m = i < n\n    while tl.load(x) == tl.load(x):\n        pass"),
         "unsupported", "waits for another program"),
        (ADD.replace("tl.load(x + i, mask=m)", "libdevice.jn(2, tl.load(x + i, mask=m))"), "unsupported", "__nv_jn"),
    ],
)  # fmt: skip
def test_what_cannot_be_counted_is_refused_in_one_sentence(
    answered: Callable[..., dict[str, Any]], source: str, word: str, detail: str
) -> None:
    reply = answered(source, x=tensor(4096), y=tensor(4096))
    assert reply["failed"]["failure"] == word, reply
    assert detail in reply["failed"]["detail"]
