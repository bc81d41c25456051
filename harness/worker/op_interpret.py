"""Run a candidate on given values in Triton's interpreter and hand back what it computed.

Job: kind, source, entry, args, mutates, target, `chosen` (configurations of autotuned kernels); the tensors are the
arguments' values. For KernelBench also `init` (Model's arguments), tensors `state:NAME`, and `track`, the names of
state that the reference's forward changes.
Reply: `changed` (arguments overwritten without leave), `launches`, `autotuned`; tensors `out0`…, `mutated:NAME`,
`state:NAME`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from tilewright.harness.worker import interpreter, interpreter_bounds, kernelbench, tensors
from tilewright.harness.worker.autotuned import first_that_fits
from tilewright.harness.worker.driver import driven
from tilewright.harness.worker.failed import sentence
from tilewright.harness.worker.load import entry, load
from tilewright.harness.worker.outcome import Unsupported, chain, foreign_lines
from tilewright.harness.worker.redirect import redirected
from tilewright.harness.worker.wire import Blob


def handle(job: dict[str, Any], given: dict[str, Blob]) -> tuple[dict[str, Any], dict[str, Blob]]:
    """See the module."""
    interpreter.prepare()
    try:
        target = job.get("target")
        with (
            redirected(target),
            driven(target),
            first_that_fits(job.get("chosen")) as chosen,
            interpreter_bounds.watching() as watch,
            torch.no_grad(),
        ):
            reply, out = _run(job, given)
    except Exception as error:
        _recognise(error)
        raise
    return {**reply, "launches": watch.launches, "autotuned": [asdict(each) for each in chosen]}, out


def _run(job: dict[str, Any], given: dict[str, Blob]) -> tuple[dict[str, Any], dict[str, Blob]]:
    module = load(job["source"], "candidate")
    interpreter.expose_language(module)
    call = entry(module, job["entry"])
    model = None
    if job["kind"] == "kernelbench":
        model = call = kernelbench.construct(call, job["init"], given, blame="launch", device="cuda")
    args = tensors.arguments(job["args"], given, "cuda")
    with tensors.PoisonedEmpty():
        returned = call(*args.values())
    mutates = job.get("mutates", [])
    changed = [n for n, a in args.items() if n in given and n not in mutates and _differs(a, given[n])]
    out = tensors.named(tensors.results(returned), {name: args[name] for name in mutates})
    if model is not None:
        state = model.state_dict()
        out |= {f"state:{name}": tensors.to_blob(state[name]) for name in job.get("track", [])}
    return {"changed": changed}, out


def _differs(now: Any, before: Blob) -> bool:
    return bytes(tensors.to_blob(now).data) != bytes(before.data)


def _recognise(error: Exception) -> None:
    """Raise `unsupported` where triton's own code, not the candidate, says that it cannot do something."""
    for link in chain(error):
        if isinstance(link, NotImplementedError) and link.__traceback__ is not None:
            frame = link.__traceback__
            while frame.tb_next is not None:
                frame = frame.tb_next
            if "/triton/" in frame.tb_frame.f_code.co_filename:
                refused = Unsupported(f"Triton's interpreter refuses: {sentence(link)}")
                refused.trace = foreign_lines(error)
                raise refused from error
