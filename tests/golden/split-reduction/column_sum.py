"""Column sums of a tall matrix: a program for each stripe of columns, and a loop over all rows."""

import torch
import triton
import triton.language as tl


@triton.jit
def column_sum_kernel(x_ptr, out_ptr, n_rows, n_cols, stride_row, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    pid = tl.program_id(axis=0)
    cols = pid * BLOCK_C + tl.arange(0, BLOCK_C)
    acc = tl.zeros((BLOCK_C,), dtype=tl.float32)
    for r in range(0, n_rows, BLOCK_R):
        rows = r + tl.arange(0, BLOCK_R)
        mask = (rows[:, None] < n_rows) & (cols[None, :] < n_cols)
        x = tl.load(x_ptr + rows[:, None] * stride_row + cols[None, :], mask=mask, other=0.0)
        acc += tl.sum(x.to(tl.float32), axis=0)
    tl.store(out_ptr + cols, acc / n_rows, mask=cols < n_cols)


@triton.jit
def column_sum_kernel_partial(x_ptr, out_ptr, n_rows, n_cols, stride_row, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, acc_parts_ptr, SPLITS: tl.constexpr):
    pid = tl.program_id(axis=0)
    cols = pid * BLOCK_C + tl.arange(0, BLOCK_C)
    acc = tl.zeros((BLOCK_C,), dtype=tl.float32)
    part = tl.program_id(1)
    program = tl.program_id(0).to(tl.int64)
    share = tl.cdiv(tl.cdiv(n_rows, BLOCK_R), SPLITS)
    first = part * share * (BLOCK_R)
    last = tl.minimum(n_rows, first + share * (BLOCK_R))
    for r in range(first, last, BLOCK_R):
        rows = r + tl.arange(0, BLOCK_R)
        mask = (rows[:, None] < n_rows) & (cols[None, :] < n_cols)
        x = tl.load(x_ptr + rows[:, None] * stride_row + cols[None, :], mask=mask, other=0.0)
        acc += tl.sum(x.to(tl.float32), axis=0)
    tl.store(acc_parts_ptr + (program * SPLITS + part) * (BLOCK_C) + tl.arange(0, BLOCK_C), acc)


@triton.jit
def column_sum_kernel_combine(x_ptr, out_ptr, n_rows, n_cols, stride_row, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, acc_parts_ptr, SPLITS: tl.constexpr):
    pid = tl.program_id(axis=0)
    cols = pid * BLOCK_C + tl.arange(0, BLOCK_C)
    acc = tl.zeros((BLOCK_C,), dtype=tl.float32)
    program = tl.program_id(0).to(tl.int64)
    for part in range(SPLITS):
        acc += tl.load(acc_parts_ptr + (program * SPLITS + part) * (BLOCK_C) + tl.arange(0, BLOCK_C))
    tl.store(out_ptr + cols, acc / n_rows, mask=cols < n_cols)


def launch(x):
    n_rows, n_cols = x.shape
    out = torch.empty(n_cols, dtype=torch.float32, device=x.device)

    def grid(meta):
        return (triton.cdiv(n_cols, meta["BLOCK_C"]),)

    split_grid = (triton.cdiv(n_cols, 32),)
    if split_grid[0] < 264:
        acc_parts = torch.empty((split_grid[0] * 16 * 32,), dtype=torch.float32, device=x.device)
        column_sum_kernel_partial[(*split_grid, 16)](x, out, n_rows, n_cols, x.stride(0), BLOCK_R=16, BLOCK_C=32, acc_parts_ptr=acc_parts, SPLITS=16)
        column_sum_kernel_combine[split_grid](x, out, n_rows, n_cols, x.stride(0), BLOCK_R=16, BLOCK_C=32, acc_parts_ptr=acc_parts, SPLITS=16)
    else:
        column_sum_kernel[grid](x, out, n_rows, n_cols, x.stride(0), BLOCK_R=16, BLOCK_C=32)
    return out
