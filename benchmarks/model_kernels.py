"""The kernels that benchmarks/model_check.py compares, as candidates that a planner might have written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n"

ADD = """
@triton.jit
def add(x, y, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(o + i, tl.load(x + i, mask=m) + tl.load(y + i, mask=m), mask=m)


def launch(x, y):
    o = torch.empty_like(x)
    n = x.numel()
    add[(triton.cdiv(n, {block}),)](x, y, o, n, BLOCK={block}, num_warps={warps})
    return o
"""

SOFTMAX = """
@triton.jit
def softmax(x, o, n, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + i, mask=i < n, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(o + row * stride + i, e / tl.sum(e, 0), mask=i < n)


def launch(x):
    o = torch.empty_like(x)
    n = x.shape[1]
    softmax[(x.shape[0],)](x, o, n, x.stride(0), BLOCK=triton.next_power_of_2(n), num_warps={warps})
    return o
"""

SOFTMAX_LOOPS = """
@triton.jit
def softmax(x, o, n, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    base = x + row * stride
    i = tl.arange(0, BLOCK)
    top = -float("inf")
    for k in range(0, n, BLOCK):
        v = tl.load(base + k + i, mask=k + i < n, other=-float("inf")).to(tl.float32)
        top = tl.maximum(top, tl.max(v, 0))
    total = 0.0
    for k in range(0, n, BLOCK):
        v = tl.load(base + k + i, mask=k + i < n, other=-float("inf")).to(tl.float32)
        total += tl.sum(tl.exp(v - top), 0)
    for k in range(0, n, BLOCK):
        v = tl.load(base + k + i, mask=k + i < n, other=-float("inf")).to(tl.float32)
        tl.store(o + row * stride + k + i, tl.exp(v - top) / total, mask=k + i < n)


def launch(x):
    o = torch.empty_like(x)
    softmax[(x.shape[0],)](x, o, x.shape[1], x.stride(0), BLOCK={block}, num_warps={warps})
    return o
"""

RMSNORM = """
@triton.jit
def rmsnorm(x, w, o, rows, n, stride, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i = tl.arange(0, BLOCK)
    m = (r < rows)[:, None] & (i < n)[None, :]
    at = r[:, None] * stride + i[None, :]
    v = tl.load(x + at, mask=m, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v, 1) / n + eps)
    weight = tl.load(w + i, mask=i < n, other=0.0).to(tl.float32)
    tl.store(o + at, v * scale[:, None] * weight[None, :], mask=m)


def launch(x, w, eps):
    o = torch.empty_like(x)
    rows, n = x.shape
    rmsnorm[(triton.cdiv(rows, {rows}),)](
        x, w, o, rows, n, x.stride(0), eps, ROWS={rows}, BLOCK=triton.next_power_of_2(n), num_warps={warps}
    )
    return o
"""

MATMUL = """
@triton.jit
def matmul(a, b, c, M, N, K, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    pid = tl.program_id(0)
    across = tl.cdiv(N, BN)
    group = pid // (GROUP * across)
    inside = pid % (GROUP * across)
    rm = (group * GROUP + inside % GROUP) * BM + tl.arange(0, BM)
    rn = (inside // GROUP) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    pa = a + rm[:, None] * sa + rk[None, :]
    pb = b + rk[:, None] * sb + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(tl.load(pa), tl.load(pb), acc)
        pa += BK
        pb += BK * sb
    tl.store(c + rm[:, None] * sc + rn[None, :], acc.to(c.dtype.element_ty))


def launch(a, b):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    matmul[(triton.cdiv(M, {bm}) * triton.cdiv(N, {bn}),)](
        a, b, c, M, N, K, a.stride(0), b.stride(0), c.stride(0),
        BM={bm}, BN={bn}, BK={bk}, GROUP={group}, num_warps={warps}, num_stages={stages},
    )
    return c
"""


@dataclass(frozen=True)
class Configuration:
    """One candidate on one set of inputs. `args`: (name, shape, dtype) of tensors, (name, value) of scalars."""

    family: str
    label: str
    source: str
    args: tuple[tuple[Any, ...], ...]


def configurations() -> list[Configuration]:
    """The kernels and shapes that are compared."""
    found: list[Configuration] = []

    def add(family: str, label: str, template: str, args: tuple[tuple[Any, ...], ...], **values: int) -> None:
        said = " ".join(f"{name}={value}" for name, value in values.items())
        found.append(Configuration(family, f"{label} {said}", HEAD + template.format(**values), args))

    args: tuple[tuple[Any, ...], ...]
    flat = 64 << 20
    for block, warps in ((256, 4), (1024, 4), (4096, 4), (1024, 8)):
        add(
            "elementwise",
            "fp32 64Mi",
            ADD,
            (("x", (flat,), "float32"), ("y", (flat,), "float32")),
            block=block,
            warps=warps,
        )
    for size, label in ((flat, "fp16 64Mi"), (flat + 1, "fp16 64Mi+1")):
        for block in (512, 2048):
            args = (("x", (size,), "float16"), ("y", (size,), "float16"))
            add("elementwise", label, ADD, args, block=block, warps=4)
    small = 1 << 16
    add("elementwise", "fp32 64Ki", ADD, (("x", (small,), "float32"), ("y", (small,), "float32")), block=1024, warps=4)

    for shape, tag in (((8192, 4096), "8192x4096"), ((4096, 32768), "4096x32768")):
        for warps in (4, 8, 16):
            add("softmax", f"fp32 {tag}", SOFTMAX, (("x", shape, "float32"),), warps=warps)
        for block, warps in ((1024, 4), (4096, 8)):
            add("softmax", f"fp32 {tag} loops", SOFTMAX_LOOPS, (("x", shape, "float32"),), block=block, warps=warps)

    for rows, warps in ((1, 1), (1, 4), (4, 4), (16, 4), (64, 4)):
        args = (("x", (262144, 128), "float16"), ("w", (128,), "float16"), ("eps", 1e-6))
        add("rmsnorm", "fp16 262144x128", RMSNORM, args, rows=rows, warps=warps)
    for warps in (1, 4, 8):
        args = (("x", (16384, 4096), "float16"), ("w", (4096,), "float16"), ("eps", 1e-6))
        add("rmsnorm", "fp16 16384x4096", RMSNORM, args, rows=1, warps=warps)

    square = (("a", (4096, 4096), "float16"), ("b", (4096, 4096), "float16"))
    for bm, bn, bk, group, warps, stages in (
        (32, 32, 32, 1, 4, 2),
        (64, 64, 32, 1, 4, 3),
        (64, 64, 32, 8, 4, 3),
        (128, 128, 32, 8, 4, 3),
        (128, 128, 64, 8, 4, 1),
        (128, 128, 64, 8, 4, 3),
        (128, 128, 64, 8, 8, 4),
        (128, 256, 64, 8, 8, 3),
    ):
        add("matmul", "fp16 4096", MATMUL, square, bm=bm, bn=bn, bk=bk, group=group, warps=warps, stages=stages)
    return found


PROBES = """
@triton.jit
def nothing(x):
    if tl.num_programs(0) < 0:
        tl.store(x, 0)


@triton.jit
def chase(table, x, steps):
    at = tl.load(x)
    for _ in range(steps):
        at = tl.load(table + at)
    tl.store(x, at)


@triton.jit
def again(x, o, blocks, turns, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    for turn in range(turns):
        acc += tl.load(x + ((pid + turn * 997) % blocks) * BLOCK + tl.arange(0, BLOCK))
    tl.store(o + pid * BLOCK + tl.arange(0, BLOCK), acc)


@triton.jit
def copy(x, o, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i))
"""
