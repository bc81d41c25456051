"""SwiGLU of a feed-forward layer: silu(gate) * up, at the inner widths of 7B and 8B models.

The starting kernel is Liger's: a row a program, in a block of the next power of two.
"""

import torch

start = "liger_kernel.ops.swiglu:swiglu_forward"
family = "elementwise"

inputs = {
    "args": {"gate": "T[M, N]", "up": "T[M, N]"},
    "cases": [
        {"M": 4096, "N": 11008, "T": "float16"},
        {"M": 4096, "N": 14336, "T": "float16"},
    ],
    "check": [{"M": 2, "N": 11008}, {"M": 5, "N": 257}, {"M": 33, "N": 48}, {"M": 1, "N": 97}],
}


def reference(gate, up):
    return torch.nn.functional.silu(gate) * up


def launch(gate, up):
    _, _, output = swiglu_forward(gate, up)  # noqa: F821  # copied in from `start`
    return output
