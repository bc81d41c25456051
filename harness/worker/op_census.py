"""Count what a candidate's launches ask of the machine at full size, from a few programs run on addresses alone.

Job: kind, source, entry, args, target; for KernelBench `task_source`; `chosen` maps an autotuned kernel to the index of
the configuration that stands for it (from op_compile's reply). Integer arguments are real, floats are never read.
Reply: `launches`, one a distinct launch: kernel, grid, counts, lines (bytes by source line), programs_run; `order`,
indices into it, one a launch. Operations of torch's own are not counted here; op_compile lists them.
"""

from __future__ import annotations

from typing import Any

import torch

from tilewright.harness.worker import census_run
from tilewright.harness.worker.autotuned import first_that_fits
from tilewright.harness.worker.census import Census
from tilewright.harness.worker.census_ops import STATE
from tilewright.harness.worker.driver import driven
from tilewright.harness.worker.redirect import redirected
from tilewright.harness.worker.virtual import Virtual, prepared
from tilewright.harness.worker.wire import Blob

RATES = ("load_rounds",)
"""Counts that are means over programs, not sums."""


def handle(job: dict[str, Any], tensors: dict[str, Blob]) -> tuple[dict[str, Any], dict[str, Blob]]:
    """See the module. For a process of its own: the interpreter is never put back."""
    census_run.install()
    STATE.counted.clear()
    launches: list[dict[str, Any]] = []
    order: list[int] = []
    index: dict[int, int] = {}

    def done(name: str, census: Census) -> None:
        if id(census) not in index:
            index[id(census)] = len(launches)
            launches.append(_entry(name, census))
        order.append(index[id(census)])

    target = job.get("target")
    STATE.done = done
    if target:
        STATE.l2_bytes = target["l2_bytes"]
        STATE.multiprocessors = target["multiprocessors"]
    with redirected(target), driven(target), Virtual(), first_that_fits(job.get("chosen")), torch.no_grad():
        foreign = prepared(job, tensors)
        foreign.call(*foreign.args)
    return {"launches": launches, "order": order}, {}


def _entry(name: str, census: Census) -> dict[str, Any]:
    counts, lines = census.totals()
    return {
        "kernel": name,
        "grid": list(census.grid),
        "counts": {key: round(value, 3) if key in RATES else round(value) for key, value in sorted(counts.items())},
        "lines": lines,
        "programs_run": len(census.programs),
    }
