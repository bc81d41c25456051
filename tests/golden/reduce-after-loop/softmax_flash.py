"""Log-sum-exp of rows in the style of attention kernels: a named correction, several rows of a 2-D grid."""

import torch
import triton
import triton.language as tl


@triton.jit
def _lse(X, L, stride_b, stride_l, N, temperature, BLOCK_N: tl.constexpr = 128):
    off_b = tl.program_id(0)
    off_l = tl.program_id(1)
    X += off_b * stride_b + off_l * stride_l
    m_i = float("-inf")
    l_i = 0.0
    m_i_lanes = tl.full((BLOCK_N,), float("-inf"), dtype=tl.float32)
    l_i_lanes = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        logits = tl.load(X + cols, mask=cols < N, other=float("-inf")).to(tl.float32) / temperature
        new_m_i = tl.maximum(m_i_lanes, logits)
        new_m_i_finite = tl.where(new_m_i == float("-inf"), 0.0, new_m_i)
        l_i_lanes = l_i_lanes * tl.exp(m_i_lanes - new_m_i_finite) + tl.exp(logits - new_m_i_finite)
        m_i_lanes = new_m_i
    m_i = tl.max(m_i_lanes)
    l_i = tl.sum(l_i_lanes * tl.exp(m_i_lanes - m_i))
    tl.store(L + off_b * tl.num_programs(1) + off_l, m_i + tl.log(l_i))


def launch(x, temperature):
    B, L, N = x.shape
    out = torch.empty((B, L), dtype=torch.float32, device=x.device)
    _lse[(B, L)](x, out, x.stride(0), x.stride(1), N, temperature)
    return out
