"""Few rows, very long: sums, means and maxima reduced in each round of the loop."""

import torch
import triton
import triton.language as tl


@triton.jit
def square(x):
    return x * x


@triton.jit
def row_stats(x_ptr, sum_ptr, power_ptr, top_ptr, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * stride
    total = 0.0
    power = 0.0
    top = -float("inf")
    power_lanes = tl.zeros((BLOCK,), dtype=tl.float32)
    top_lanes = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    total_lanes = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n
        x = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        total_lanes += x
        power_lanes += square(x)  # helpers are followed
        top_lanes = tl.maximum(top_lanes, tl.where(mask, x, -float("inf")))
    power += tl.sum(power_lanes)
    top = tl.maximum(top, tl.max(top_lanes, axis=0))
    total += tl.sum(total_lanes, axis=0)
    tl.store(sum_ptr + row, total / n)
    tl.store(power_ptr + row, tl.sqrt(power))
    tl.store(top_ptr + row, top)


def launch(x):
    rows, n = x.shape
    out = [torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(3)]
    meta = {"BLOCK": 128, "num_warps": 4}
    row_stats[(rows,)](x, out[0], out[1], out[2], x.stride(0), n, **meta)
    return tuple(out)
