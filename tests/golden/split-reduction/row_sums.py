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
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n
        x = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(x, axis=0)
        power = power + tl.sum(square(x))  # helpers are followed
        top = tl.maximum(top, tl.max(tl.where(mask, x, -float("inf")), axis=0))
    tl.store(sum_ptr + row, total / n)
    tl.store(power_ptr + row, tl.sqrt(power))
    tl.store(top_ptr + row, top)


@triton.jit
def row_stats_partial(x_ptr, sum_ptr, power_ptr, top_ptr, stride, n, BLOCK: tl.constexpr, power_parts_ptr, top_parts_ptr, total_parts_ptr, SPLITS: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * stride
    total = 0.0
    power = 0.0
    top = -float("inf")
    part = tl.program_id(1)
    program = tl.program_id(0).to(tl.int64)
    share = tl.cdiv(tl.cdiv(n, BLOCK), SPLITS)
    first = part * share * (BLOCK)
    last = tl.minimum(n, first + share * (BLOCK))
    for start in range(first, last, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n
        x = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(x, axis=0)
        power = power + tl.sum(square(x))  # helpers are followed
        top = tl.maximum(top, tl.max(tl.where(mask, x, -float("inf")), axis=0))
    tl.store(power_parts_ptr + (program * SPLITS + part), power)
    tl.store(top_parts_ptr + (program * SPLITS + part), top)
    tl.store(total_parts_ptr + (program * SPLITS + part), total)


@triton.jit
def row_stats_combine(x_ptr, sum_ptr, power_ptr, top_ptr, stride, n, BLOCK: tl.constexpr, power_parts_ptr, top_parts_ptr, total_parts_ptr, SPLITS: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * stride
    total = 0.0
    power = 0.0
    top = -float("inf")
    program = tl.program_id(0).to(tl.int64)
    power = tl.sum(tl.load(power_parts_ptr + program * SPLITS + tl.arange(0, SPLITS)), axis=0)
    top = tl.max(tl.load(top_parts_ptr + program * SPLITS + tl.arange(0, SPLITS)), axis=0)
    total = tl.sum(tl.load(total_parts_ptr + program * SPLITS + tl.arange(0, SPLITS)), axis=0)
    tl.store(sum_ptr + row, total / n)
    tl.store(power_ptr + row, tl.sqrt(power))
    tl.store(top_ptr + row, top)


def launch(x):
    rows, n = x.shape
    out = [torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(3)]
    meta = {"BLOCK": 128, "num_warps": 4}
    split_grid = (rows,)
    if split_grid[0] < 264:
        power_parts = torch.empty((split_grid[0] * 16,), dtype=torch.float32, device=x.device)
        top_parts = torch.empty((split_grid[0] * 16,), dtype=torch.float32, device=x.device)
        total_parts = torch.empty((split_grid[0] * 16,), dtype=torch.float32, device=x.device)
        row_stats_partial[(*split_grid, 16)](x, out[0], out[1], out[2], x.stride(0), n, power_parts_ptr=power_parts, top_parts_ptr=top_parts, total_parts_ptr=total_parts, SPLITS=16, **meta)
        row_stats_combine[split_grid](x, out[0], out[1], out[2], x.stride(0), n, power_parts_ptr=power_parts, top_parts_ptr=top_parts, total_parts_ptr=total_parts, SPLITS=16, **meta)
    else:
        row_stats[(rows,)](x, out[0], out[1], out[2], x.stride(0), n, **meta)
    return tuple(out)
