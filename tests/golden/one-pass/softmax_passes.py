"""Softmax of long rows: an online pass for maximum and sum, then a second pass that writes."""

import torch
import triton
import triton.language as tl


def settings(n):
    block = min(triton.next_power_of_2(n), 1024)
    return block, 8 if block >= 1024 else 4


@triton.jit
def softmax_rows(
    Y_ptr,
    Y_stride,
    X_ptr,
    X_stride,
    n_cols,
    BLOCK_SIZE: tl.constexpr,
):
    row_id = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK_SIZE)

    m = -float("inf")
    d = 0.0
    for start in tl.range(0, n_cols, BLOCK_SIZE):
        idx = start + offs  # this block
        mask = idx < n_cols
        xblk = tl.load(X_ptr + row_id * X_stride + idx, mask=mask, other=-float("inf"), cache_modifier=".ca")
        blk_max = tl.max(xblk, axis=0)
        new_m = tl.maximum(m, blk_max)
        d = d * tl.exp(m - new_m) + tl.sum(tl.exp(xblk - new_m), axis=0)
        m = new_m

    for start in tl.range(0, n_cols, BLOCK_SIZE):
        idx = start + offs
        mask = idx < n_cols
        xblk = tl.load(
            X_ptr + row_id * X_stride + idx,
            mask=mask,
            other=-float("inf"),
            cache_modifier=".ca",
        )
        yblk = tl.exp(xblk - m) / d
        tl.store(Y_ptr + row_id * Y_stride + idx, yblk, mask=mask, cache_modifier=".cs")


@triton.jit
def softmax_rows_one_pass(
    Y_ptr,
    Y_stride,
    X_ptr,
    X_stride,
    n_cols,
    BLOCK_SIZE: tl.constexpr,
):
    row_id = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK_SIZE)

    m = -float("inf")
    d = 0.0
    start = 0
    d = tl.full((), d, tl.float32)
    m = tl.full((), m, tl.float32)
    idx = start + offs  # this block
    mask = idx < n_cols
    X_row = tl.load(X_ptr + row_id * X_stride + idx, mask=mask, other=-float("inf"), cache_modifier=".ca")
    xblk = X_row
    blk_max = tl.max(xblk, axis=0)
    new_m = tl.maximum(m, blk_max)
    d = d * tl.exp(m - new_m) + tl.sum(tl.exp(xblk - new_m), axis=0)
    m = new_m

    start = 0
    idx = start + offs
    mask = idx < n_cols
    xblk = X_row
    yblk = tl.exp(xblk - m) / d
    tl.store(Y_ptr + row_id * Y_stride + idx, yblk, mask=mask, cache_modifier=".cs")


def launch(x):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    BLOCK_SIZE, num_warps = settings(n_cols)
    if 0 < n_cols <= 32768:
        row_block = triton.next_power_of_2(n_cols)
        softmax_rows_one_pass[(n_rows,)](
            y,
            y.stride(0),
            x,
            x.stride(0),
            n_cols,
            BLOCK_SIZE=row_block,
            num_warps=min(max(row_block // 1024, 4), 32),
        )
    else:
        softmax_rows[(n_rows,)](
            y,
            y.stride(0),
            x,
            x.stride(0),
            n_cols,
            BLOCK_SIZE=BLOCK_SIZE,
            num_warps=num_warps,
        )
    return y
