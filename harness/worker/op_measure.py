"""Run a candidate on the GPU: hand back what it computed, then, if told to go on, how long each call took.

Job: as op_interpret's, and `precision`; `time` asks for times, of `reps_s` seconds in all or so. With `eager` it is
the task's reference (`task_source`) that is timed. `warm` instead asks for nothing but a started driver: what Triton's
launcher had the C compiler build is then copied to `seed_into` for the jobs to come.
The reply is `changed`, `autotuned`, `kernels` and `order` (as op_compile's reply, without arguments) with the results
as tensors. Where times are asked for, that is said half-way, and at `go` come `samples_us`, device times of single
calls with a cold L2, and the results of the last of them.

Timing: device events round each call. Before it, on the same stream, arguments that the call may overwrite are
restored and a buffer larger than the L2 is read, so that inputs come from memory and no dirty lines are left to be
written back. Before that the device is held for longer than the host takes to queue the call: else short kernels would
show the host's time between the two events (seen: 14 µs of device time measured as 39).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tilewright.harness.worker import kernelbench, tensors
from tilewright.harness.worker.failed import Failed, sentence
from tilewright.harness.worker.launches import recording
from tilewright.harness.worker.load import entry, load
from tilewright.harness.worker.op_compile import kernel_facts
from tilewright.harness.worker.outcome import chain, foreign_lines
from tilewright.harness.worker.precision import strict_precision
from tilewright.harness.worker.wire import Blob

WARM_UPS = 3
LEAST_REPS, MOST_REPS = 10, 200
LEAST_HOLD_S, HOLD_MARGIN = 50e-6, 2.0
"""How long the device is held before a call: at least, and in multiples of what the host took to queue one."""
FASTEST_CLOCK_HZ = 2.6e9
"""No device counts cycles faster: so many of them last at least as long as asked."""
FLUSH_BYTES = 256 << 20
"""At least; five times the largest L2 there is."""

Say = Callable[[dict[str, Any], dict[str, Blob]], dict[str, Any]]


def converse(job: dict[str, Any], given: dict[str, Blob], say: Say) -> tuple[dict[str, Any], dict[str, Blob]]:
    """See the module."""
    if not torch.cuda.is_available():
        raise Failed("unsupported", "there is no CUDA device here")
    if job.get("warm"):
        return _warm(job["seed_into"])
    try:
        with torch.no_grad(), strict_precision(job.get("precision", "strict")):
            return _eager(job, given, say) if job.get("eager") else _candidate(job, given, say)
    except Exception as error:
        if (failed := _recognised(error)) is not None:
            raise failed from error
        raise


def _candidate(job: dict[str, Any], given: dict[str, Blob], say: Say) -> tuple[dict[str, Any], dict[str, Blob]]:
    module = load(job["source"], "candidate")
    call = entry(module, job["entry"])
    model = None
    if job["kind"] == "kernelbench":
        model = call = kernelbench.construct(call, job["init"], given, blame="launch", device="cuda")
    _first(job, given, call)  # compiles, and lets autotuned kernels choose
    if model is not None:
        model = call = kernelbench.construct(type(model), job["init"], given, blame="launch", device="cuda")
    args = tensors.arguments(job["args"], given, "cuda")
    with recording() as launched, tensors.PoisonedEmpty():
        returned = call(*args.values())
        torch.cuda.synchronize()
    mutates = job.get("mutates", [])
    changed = [n for n, a in args.items() if n in given and n not in mutates and _differs(a, given[n])]
    out = _results(job, returned, args, model)
    kernels, order = launched.reply(kernel_facts)
    said = {"changed": changed, "autotuned": launched.autotuned, "kernels": kernels, "order": order}
    if not job.get("time"):
        return said, out
    if not say(said, out).get("go"):
        return {"samples_us": []}, {}
    samples, returned, args = _timed(job, given, call)
    return {"samples_us": samples, "device": torch.cuda.get_device_name()}, _results(job, returned, args, model)


def _eager(job: dict[str, Any], given: dict[str, Blob], say: Say) -> tuple[dict[str, Any], dict[str, Blob]]:
    module = load(job["task_source"], "task", blame="task")
    if job["kind"] == "kernelbench":
        call = kernelbench.construct(
            entry(module, "Model", blame="task"), job["init"], given, blame="task", device="cuda"
        )
    else:
        call = entry(module, "reference", blame="task")
    _first(job, given, call)
    if not say({}, {}).get("go"):
        return {"samples_us": []}, {}
    samples, _, _ = _timed(job, given, call)
    return {"samples_us": samples, "device": torch.cuda.get_device_name()}, {}


def _first(job: Mapping[str, Any], given: Mapping[str, Blob], call: Callable[..., Any]) -> None:
    call(*tensors.arguments(job["args"], given, "cuda").values())
    torch.cuda.synchronize()


def _results(job: Mapping[str, Any], returned: Any, args: Mapping[str, Any], model: Any) -> dict[str, Blob]:
    out = tensors.named(tensors.results(returned), {name: args[name] for name in job.get("mutates", [])})
    if model is not None:
        state = model.state_dict()
        out |= {f"state:{name}": tensors.to_blob(state[name]) for name in job.get("track", [])}
    return out


def _timed(
    job: Mapping[str, Any], given: Mapping[str, Blob], call: Callable[..., Any]
) -> tuple[list[float], Any, dict[str, Any]]:
    """Microseconds of each timed call, and what the last one left."""
    args = tensors.arguments(job["args"], given, "cuda")
    fresh = {name: args[name].clone() for name in job.get("mutates", [])}
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    buffer = torch.ones(max(FLUSH_BYTES, 4 * l2_bytes) // 4, dtype=torch.float32, device="cuda")

    def once(hold_s: float) -> tuple[Any, Any, Any]:
        for name, value in fresh.items():
            args[name].copy_(value)
        torch.cuda._sleep(int(hold_s * FASTEST_CLOCK_HZ))  # type: ignore[no-untyped-call]  # torch's
        buffer.sum()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's
        start.record()
        returned = call(*args.values())
        end.record()
        return start, end, returned

    def elapsed_us(start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) * 1e3

    hold_s = LEAST_HOLD_S
    for _ in range(WARM_UPS):
        began = time.perf_counter()
        start, end, _ = once(hold_s)
        hold_s = max(LEAST_HOLD_S, HOLD_MARGIN * (time.perf_counter() - began))
        torch.cuda.synchronize()
    budget_us = float(job.get("reps_s", 0.3)) * 1e6
    flush_us = 2.0 * buffer.nbytes / 4e6  # at 4 TB/s, twice over
    reps = int(min(MOST_REPS, max(LEAST_REPS, budget_us / (elapsed_us(start, end) + flush_us + hold_s * 1e6))))
    events = []
    for _ in range(reps):
        start, end, returned = once(hold_s)
        events.append((start, end))
    torch.cuda.synchronize()
    return [elapsed_us(start, end) for start, end in events], returned, args


def _warm(seed_into: str) -> tuple[dict[str, Any], dict[str, Blob]]:
    """Have Triton build its launcher's C parts, and keep them for the jobs to come."""
    import triton

    triton.runtime.driver.active.get_current_target()
    torch.zeros(1, device="cuda")
    shutil.copytree(os.environ["TRITON_CACHE_DIR"], seed_into, dirs_exist_ok=True)
    return {"device": torch.cuda.get_device_name()}, {}


def _differs(now: Any, before: Blob) -> bool:
    return bytes(tensors.to_blob(now).data) != bytes(before.data)


def _recognised(error: Exception) -> Failed | None:
    """A failure of the compiler or the device, by the exception's type; None where it is neither."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError

    for link in chain(error):
        if isinstance(link, Failed):
            return None
        if isinstance(link, CompilationError | PTXASError):
            return Failed("compile", sentence(link), foreign_lines(error))
        if isinstance(link, OutOfResources):
            return Failed("launch", sentence(link), foreign_lines(error))
        if isinstance(link, torch.OutOfMemoryError):
            return Failed("out-of-memory", "the device has no memory left for it", foreign_lines(error))
    return None
