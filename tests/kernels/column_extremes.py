"""Largest and smallest of every column, several launches, a kernel with defaults."""

import torch
import triton
import triton.language as tl


@triton.jit
def extremes(
    x_ptr,
    top_ptr,
    low_ptr,
    n_rows,
    n_cols,
    BLOCK_R: tl.constexpr = 8,
    BLOCK_C: tl.constexpr = 16,
):
    cols = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    x_ptr += tl.program_id(0) * n_rows * n_cols
    offsets = tl.arange(0, BLOCK_R)[:, None] * n_cols + cols[None, :]
    top = tl.full((BLOCK_C,), float("-inf"), dtype=tl.float32)
    low = tl.full([BLOCK_C], float("inf"), tl.float32)
    for r in tl.range(0, n_rows, BLOCK_R):
        inside = (r + tl.arange(0, BLOCK_R)[:, None] < n_rows) & (cols[None, :] < n_cols)
        x = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        top = tl.maximum(top, tl.max(tl.where(inside, x, float("-inf")), axis=0))
        low = tl.minimum(tl.min(tl.where(inside, x, float("inf")), axis=0), low)
        offsets += BLOCK_R * n_cols
    out = tl.program_id(0) * n_cols + cols
    tl.store(top_ptr + out, top, mask=cols < n_cols)
    tl.store(low_ptr + out, low, mask=cols < n_cols)


def launch(x):
    batch, n_rows, n_cols = x.shape
    top, low = (torch.empty((batch, n_cols), dtype=torch.float32, device=x.device) for _ in range(2))
    if n_cols > 64:
        extremes[(batch, triton.cdiv(n_cols, 32))](x, top, low, n_rows, n_cols, BLOCK_C=32)
    else:
        extremes[batch, triton.cdiv(n_cols, 16)](x, top, low, n_rows, n_cols)
    return top, low
