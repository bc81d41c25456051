"""Entry of the pool process: `python -I -m tilewright.harness.worker --mode interpret --control-fd 5`.

Imports what the mode needs, says so on the control socket, and serves. The parent has already scrubbed the
environment.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import socket
import sys
import warnings

OPERATIONS = {
    "interpret": ("op_interpret", "op_census"),
    "compile": ("op_compile", "op_reference"),
    "measure": ("op_measure",),
}
"""What each mode imports before it forks, so that no child has to."""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="tilewright.harness.worker", description=__doc__)
    parser.add_argument("--mode", required=True, choices=sorted(OPERATIONS))
    parser.add_argument("--control-fd", required=True, type=int)
    parser.add_argument("--seed-cache", default=None)
    options = parser.parse_args(arguments)
    control = socket.socket(fileno=options.control_fd)
    if options.mode == "interpret":
        # Before triton is imported: its own library of device functions is decorated at import.
        os.environ["TRITON_INTERPRET"] = "1"
    warnings.simplefilter("ignore")
    import numpy
    import torch
    import triton

    from tilewright.harness.worker.serve import serve
    from tilewright.harness.worker.warm import warm

    torch.set_num_threads(1)  # a forked child has no thread pool to share; one job, one core
    if options.mode != "measure":  # a device's state does not survive a fork
        warm(OPERATIONS[options.mode])
    else:
        importlib.import_module("tilewright.harness.worker.op_measure")
    if options.mode == "measure" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch has no types here
        raise RuntimeError("CUDA was initialised in the pool process; a forked child could not use it")
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "numpy": numpy.__version__,
    }
    control.send(json.dumps({"ready": versions}).encode())
    serve(control, options.seed_cache)


if __name__ == "__main__":
    main(sys.argv[1:])
