"""Does every operation of a mode once, on a kernel of our own, before the pool process forks its first child.

What is done for the first time in a process takes 1.3 to 1.7 s of a processor: libraries that torch imports when
they are first needed, the compiler's own start. A child of a warm process has it behind it and compiles a small
kernel in a tenth of a second.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from typing import Any

import numpy as np

from tilewright.harness.worker.outcome import FOREIGN
from tilewright.harness.worker.wire import Blob

SOURCE = """
import torch, triton, triton.language as tl

@triton.jit
def double(x, y, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    total = tl.sum(tl.exp(value - tl.max(value, 0)), 0)
    for _ in range(2):
        value = value * factor
    tl.store(y + at, value + 0.0 * total, mask=at < n)

def launch(x, factor):
    y = torch.empty_like(x, device="cuda")
    double[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), factor, BLOCK=64)
    return y + torch.zeros(1, device="cuda")

def reference(x, factor):
    return torch.nn.functional.softmax(x * factor, -1)
"""
SIZE = 100


def _reserve(job: dict[str, Any]) -> None:
    """What a census does before it runs programs."""
    from tilewright.harness.worker.driver import driven
    from tilewright.harness.worker.redirect import redirected
    from tilewright.harness.worker.virtual import Virtual, prepared

    with redirected(None), driven(None), Virtual():
        foreign = prepared(job, {})
        foreign.args[0] + foreign.args[0]


def warm(operations: tuple[str, ...]) -> None:
    """Run each operation (a module's name) once. What fails here will fail again, and be reported, in a child."""
    tensor = {"shape": [SIZE], "dtype": "float32", "strides": None, "values": "normal", "low": 0.0, "high": 1.0}
    job: dict[str, Any] = {
        "kind": "triton",
        "source": SOURCE,
        "task_source": SOURCE,
        "entry": "launch",
        "args": [{"name": "x", "tensor": tensor}, {"name": "factor", "scalar": 2.0}],
        "mutates": [],
        "seed": 0,
        "precision": "strict",
        "case": "warm",
        "target": None,
    }
    for name in operations:
        module = importlib.import_module(f"tilewright.harness.worker.{name}")
        values = {"x": Blob("float32", (SIZE,), bytearray(np.ones(SIZE, np.float32).tobytes()))}
        try:
            if name == "op_census":
                _reserve(job)  # its patches would stay, and every later interpretation would only count
            else:
                module.handle(dict(job), {} if name == "op_compile" else values)
        except Exception:
            traceback.print_exc()  # to the pool's log
    for name in [name for name in sys.modules if name.startswith(FOREIGN)]:
        del sys.modules[name]
