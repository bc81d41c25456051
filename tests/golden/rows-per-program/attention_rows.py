"""Masked, scaled softmax of rows with a helper, a mask by row length, a class for a launcher and a dict of options."""

import torch
import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def soft_cap(x, cap, HAS_CAP: tl.constexpr):
    if HAS_CAP:
        x = cap * (2 * tl.sigmoid(2 * x / cap) - 1)
    return x


@triton.jit
def rows_kernel(
    out, x, lengths, bias,
    stride_out, stride_x,  # in elements
    n_cols,
    cap: tl.float32,
    HAS_CAP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
    n_rows,
    ROWS: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row_mask = rows < n_rows
    pid = rows
    x += pid * stride_x
    out += pid * stride_out
    cols = tl.arange(0, BLOCK)
    length = tl.load(lengths + pid, mask=row_mask)
    keep = (cols < n_cols)[None, :] & (cols[None, :] < length[:, None])
    v = tl.load(x[:, None] + cols[None, :], keep & row_mask[:, None], float("-inf")).to(tl.float32)
    v = soft_cap(v, cap, HAS_CAP)
    if HAS_BIAS:
        v += tl.load(bias + cols, mask=cols < n_cols, other=0.0)[None, :]
    v = tl.where(keep, v, -float("inf"))
    top = tl.max(v, 1)
    e = tl.exp2((v - top[:, None]) * LOG2E)
    total = tl.sum(e, axis=1)
    tl.store(out[:, None] + cols[None, :], e / total[:, None], (cols < n_cols)[None, :] & row_mask[:, None])


class Rows:
    def __init__(self, cap=None):
        self.cap = cap

    def __call__(self, x, lengths, bias):
        n_rows, n_cols = x.shape
        out = torch.empty_like(x)
        meta = {"BLOCK": triton.next_power_of_2(n_cols), "num_warps": 4}
        ROWS = 4
        rows_kernel[(triton.cdiv(n_rows, ROWS),)](
            out, x, lengths, bias,
            out.stride(0), x.stride(0),
            n_cols,
            self.cap or 0.0,
            HAS_CAP=self.cap is not None,
            HAS_BIAS=bias is not None,
            n_rows=n_rows,
            ROWS=ROWS,
            **meta,
        )
        return out


def launch(x, lengths, bias):
    return Rows(30.0)(x, lengths, bias)
