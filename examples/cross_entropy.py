"""Mean cross-entropy of logits over a vocabulary, with the gradient written over the logits.

The starting kernel is Liger's: a row a program, once over the row for the loss and once for the gradient.
Overwriting the logits is its contract, so the reference does it too.
"""

import torch

start = "liger_kernel.ops.cross_entropy:cross_entropy_forward"
family = "loss"
mutates = ["logits"]

inputs = {
    "args": {"logits": "T[M, V]", "target": "int64[M] integers[0, V]"},
    "cases": [
        {"M": 2048, "V": 32000, "T": "float32"},
        {"M": 512, "V": 128256, "T": "float32"},
    ],
    "check": [{"M": 5, "V": 257}, {"M": 3, "V": 1024}, {"M": 1, "V": 31}, {"M": 2, "V": 32000}, {"M": 1, "V": 33001}],
}


def reference(logits, target):
    rows = torch.arange(logits.shape[0], device=logits.device)
    loss = torch.nn.functional.cross_entropy(logits, target)
    gradient = torch.softmax(logits, dim=-1)
    gradient[rows, target] -= 1.0
    logits.copy_(gradient / logits.shape[0])
    return loss


def launch(logits, target):
    wants_gradient = logits.detach().requires_grad_()
    loss, *_ = cross_entropy_forward(  # noqa: F821  # copied in from `start`
        wants_gradient, target, None, -100, 0.0, 0.0, "mean", None, False
    )
    return loss
