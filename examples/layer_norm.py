"""Layer normalisation of hidden states, 768 wide (encoders) and 4096 wide (decoders).

The starting kernel is Liger's: a row a program, in a block of the next power of two.
"""

import torch

start = "liger_kernel.ops.layer_norm:layer_norm_forward"
family = "normalisation"

inputs = {
    "args": {"x": "T[M, N]", "weight": "T[N]", "bias": "T[N]", "eps": 1e-5},
    "cases": [
        {"M": 32768, "N": 768, "T": "float16"},
        {"M": 8192, "N": 4096, "T": "float16"},
    ],
    "check": [{"M": 5, "N": 768}, {"M": 2, "N": 767}, {"M": 17, "N": 97}, {"M": 1, "N": 4096}],
}


def reference(x, weight, bias, eps):
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def launch(x, weight, bias, eps):
    output, *_ = layer_norm_forward(x, weight, bias, eps)  # noqa: F821  # copied in from `start`
    return output
