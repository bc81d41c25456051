"""Run a candidate on given values in Triton's interpreter and hand back what it computed.

Job: kind, source, entry, args, mutates, target, `chosen` (configurations of autotuned kernels); the tensors are the
arguments' values. For KernelBench also `init` (Model's arguments), tensors `state:NAME`, and `track`, the names of
state that the reference's forward changes. With `again` (a mapping that replaces parts of the job, with tensors
`again:…`) it is called a second time, on values that take the first ones' place in memory.
Reply: `changed` (arguments overwritten without leave), `rewritten` (results that a second call overwrote), `launches`,
`autotuned`, `ran` (names of the kernels launched and of torch's own operations); tensors `out0`…, `mutated:NAME`,
`state:NAME`, and the same with `again:` before them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.harness.worker import interpreter, interpreter_bounds, kernelbench, tensors
from tilewright.harness.worker.autotuned import first_that_fits
from tilewright.harness.worker.driver import driven
from tilewright.harness.worker.failed import sentence
from tilewright.harness.worker.load import entry, load
from tilewright.harness.worker.outcome import Unsupported, chain, foreign_lines
from tilewright.harness.worker.redirect import redirected
from tilewright.harness.worker.virtual import is_free
from tilewright.harness.worker.wire import Blob

AGAIN = "again:"


def handle(job: dict[str, Any], given: dict[str, Blob]) -> tuple[dict[str, Any], dict[str, Blob]]:
    """See the module."""
    interpreter.prepare()
    tensors.poison_heap()
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
    ran = {"kernels": sorted(watch.kernels), "operations": reply.pop("operations")}
    return {**reply, "launches": watch.launches, "ran": ran, "autotuned": [asdict(each) for each in chosen]}, out


def _run(job: dict[str, Any], given: dict[str, Blob]) -> tuple[dict[str, Any], dict[str, Blob]]:
    module = load(job["source"], "candidate")
    interpreter.expose_language(module)
    kind = entry(module, job["entry"])
    first = {name: blob for name, blob in given.items() if not name.startswith(AGAIN)}
    calls = [_Call(job, first, kind, {})]
    if again := job.get("again"):
        later = {name.removeprefix(AGAIN): blob for name, blob in given.items() if name.startswith(AGAIN)}
        calls.append(_Call({**job, **again}, later, kind, calls[0].args))
    # Read again only now: a second call must leave the first one's results alone.
    out = calls[0].results()
    rewritten = [name for name, blob in calls[0].found.items() if bytes(out[name].data) != bytes(blob.data)]
    for each in calls[1:]:
        out |= {AGAIN + name: blob for name, blob in each.results().items()}
    operations = {name for each in calls for name in each.operations}
    changed = {name for each in calls for name in each.changed}
    return {"changed": sorted(changed), "rewritten": rewritten, "operations": sorted(operations)}, out


class _Call:
    """One call of the candidate, and what it left behind."""

    def __init__(self, job: dict[str, Any], given: dict[str, Blob], kind: Any, before: dict[str, Any]) -> None:
        """`before`: the arguments of the call before, whose memory is used again."""
        self.args = {
            name: _refilled(before.get(name), value)
            for name, value in tensors.arguments(job["args"], given, "cuda").items()
        }
        # Held until the end, so that no other module has its address.
        self._model = model = None
        if job["kind"] == "kernelbench":
            self._model = model = kernelbench.construct(kind, job["init"], given, blame="launch", device="cuda")
        noted = Operations()
        with tensors.PoisonedEmpty(), noted:
            returned = (model or kind)(*self.args.values())
        self.operations = noted.names
        mutates = job.get("mutates", [])
        self.changed = [n for n, a in self.args.items() if n in given and n not in mutates and _differs(a, given[n])]
        overwritten = {f"mutated:{name}": self.args[name] for name in mutates}
        if model is not None:
            state = model.state_dict()
            overwritten |= {f"state:{name}": state[name] for name in job.get("track", [])}
        own = {f"out{i}": each for i, each in enumerate(tensors.results(returned))}
        lent = {a.untyped_storage().data_ptr() for a in self.args.values() if isinstance(a, torch.Tensor)}
        # What lies in an argument's memory is overwritten by the call after by right.
        taken = {n: each for n, each in own.items() if each.untyped_storage().data_ptr() in lent}
        self._own = {name: each for name, each in own.items() if name not in taken}
        self.found = {name: _copied(each) for name, each in self._own.items()}
        """The results that are its own, as they were when it returned."""
        self._taken = {name: _copied(each) for name, each in {**taken, **overwritten}.items()}

    def results(self) -> dict[str, Blob]:
        """Results, overwritten arguments and state, by name, as they are now."""
        return {**{name: tensors.to_blob(each) for name, each in self._own.items()}, **self._taken}


def _copied(tensor: torch.Tensor) -> Blob:
    blob = tensors.to_blob(tensor)
    return Blob(blob.dtype, blob.shape, bytes(blob.data))


def _refilled(before: Any, value: Any) -> Any:
    """The tensor of the call before with the new values, unseen by its version counter; else the new one."""
    if not isinstance(before, torch.Tensor) or not isinstance(value, torch.Tensor):
        return value
    if (before.shape, before.stride(), before.dtype) != (value.shape, value.stride(), value.dtype):
        return value
    memory, new = before.untyped_storage(), value.untyped_storage()
    if memory.nbytes() != new.nbytes():
        return value
    memory.copy_(new)
    return before


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own metaclass hook
    """Notes the operations of torch's own that are made between launches; views and unfilled memory are none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not interpreter_bounds.WATCH.inside and not is_free(func._schema):
            self.names.add(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


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
