"""RMS normalisation per attention head, as in models that normalise queries and keys (head size 128).

The starting kernel is Liger's, one row a program; rows are short and many.
"""

import torch

start = "liger_kernel.ops.rms_norm:rms_norm_forward"
family = "normalisation"

inputs = {
    "args": {"x": "T[M, N]", "weight": "T[N]", "eps": 1e-6},
    "cases": [
        {"name": "4096 tokens, 32 heads", "M": 131072, "N": 128, "T": "float16"},
        {"name": "512 tokens, 32 heads", "M": 16384, "N": 128, "T": "float16"},
    ],
    "check": [{"M": 33}, {"M": 5, "N": 127}, {"M": 7, "N": 257}, {"M": 1, "N": 96}],
}


def reference(x, weight, eps):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)


def launch(x, weight, eps):
    output, *_ = rms_norm_forward(x, weight, eps, 0.0, "llama", True)  # noqa: F821  # copied in from `start`
    return output
