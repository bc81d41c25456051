"""Run a task's reference on given values: as it is, in float64, with disturbed inputs, and in lower precision.

Job: kind, task_source, args, mutates, seed, precision, target, `on_device` (a GPU is here: use it); the tensors are
the arguments' values. A KernelBench job carries none: its file makes the inputs, the weights and Model's arguments
from the seed, and all of them are in the reply.
Reply: `exact` (`float64`, or `native` with `exact_note`), `mutated` (arguments that the reference overwrites), `track`
(state that it changes); tensors `native:NAME`, `exact:NAME`, `moved0:NAME`… (by how much each disturbed run moved the
result) and, where the job says `lower`, `lower:NAME`. NAME is `out0`…, `mutated:ARG` or `state:NAME`. KernelBench adds
`args`, `init` and tensors `in0`…, `state:NAME`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.harness.worker import kernelbench, tensors
from tilewright.harness.worker.failed import Failed, sentence
from tilewright.harness.worker.load import entry, load
from tilewright.harness.worker.outcome import foreign_lines
from tilewright.harness.worker.precision import (
    disturbed,
    in_float64,
    lower_bits,
    quantised,
    strict_precision,
    to_float64,
)
from tilewright.harness.worker.redirect import redirected
from tilewright.harness.worker.wire import Blob

DEVICE = "cuda"
"""Where the reference runs: on the GPU, or, redirected, in memory that passes for it."""

ENOUGH_ELEMENTS = 4096
"""From so many elements the size of a random error is known from one run."""
MOST_DISTURBED = 4


@dataclass(slots=True)
class Reference:
    """A reference and what it is called with."""

    call: Callable[[Mapping[str, Any], Mapping[str, Any], bool], tuple[Any, dict[str, Any]]]
    """(arguments, state, in float64) → what it returned and its state afterwards."""
    args: dict[str, Any]
    state: dict[str, Any]
    mutates: list[str]
    seed: int


def handle(job: dict[str, Any], given: dict[str, Blob]) -> tuple[dict[str, Any], dict[str, Blob]]:
    """See the module. Whatever the reference raises is the task's fault."""
    with strict_precision(job["precision"]) if job.get("on_device") else redirected(job.get("target")):
        module = load(job["task_source"], "task", blame="task")
        reply: dict[str, Any] = {}
        extra: dict[str, Blob] = {}
        if job["kind"] == "kernelbench":
            reference, reply, extra = _module(job, module)
        else:
            reference = _function(job, module, given)
        results, out = _runs(reference, job["precision"] if job.get("lower") else None)
        return {**reply, **results}, {**extra, **out}


def _function(job: dict[str, Any], module: Any, given: Mapping[str, Blob]) -> Reference:
    function = entry(module, "reference", blame="task")

    def call(args: Mapping[str, Any], state: Mapping[str, Any], wide: bool) -> tuple[Any, dict[str, Any]]:
        return function(*args.values()), {}

    return Reference(call, tensors.arguments(job["args"], given, DEVICE), {}, job.get("mutates", []), job["seed"])


def _module(job: dict[str, Any], module: Any) -> tuple[Reference, dict[str, Any], dict[str, Blob]]:
    kind = entry(module, "Model", blame="task")
    _seed(job["seed"])
    init = _blamed(entry(module, "get_init_inputs", blame="task"))
    packed = kernelbench.packed(init)
    _seed(job["seed"])
    made = _blamed(lambda: kind(**init) if isinstance(init, dict) else kind(*init))
    state = {name: value.clone() for name, value in made.state_dict().items()}
    _seed(job["seed"] + 1)
    inputs = _blamed(entry(module, "get_inputs", blame="task"))
    if not isinstance(inputs, list | tuple):
        raise Failed("task", f"get_inputs() returned a {type(inputs).__name__}; expected a list")
    args: dict[str, Any] = {
        f"in{i}": value.to(DEVICE) if isinstance(value, torch.Tensor) else value for i, value in enumerate(inputs)
    }
    described = []
    for name, value in args.items():
        if isinstance(value, torch.Tensor):
            strides = None if value.is_contiguous() else list(value.stride())
            shape, dtype = list(value.shape), str(value.dtype).removeprefix("torch.")
            described.append({"name": name, "tensor": {"shape": shape, "dtype": dtype, "strides": strides}})
        else:
            kernelbench.packed(value)  # refuses what cannot travel
            described.append({"name": name, "scalar": value})

    def call(args: Mapping[str, Any], state: Mapping[str, Any], wide: bool) -> tuple[Any, dict[str, Any]]:
        blobs = {f"{kernelbench.STATE}{name}": tensors.to_blob(value) for name, value in state.items()}
        wanted = torch.float64 if wide else None
        model = kernelbench.construct(kind, packed, blobs, blame="task", dtype=wanted, device=DEVICE)
        _seed(job["seed"] + 2)
        with torch.no_grad():
            returned = model(*args.values())
        return returned, dict(model.state_dict())

    extra = {name: tensors.to_blob(value) for name, value in args.items() if isinstance(value, torch.Tensor)}
    extra |= {f"{kernelbench.STATE}{name}": tensors.to_blob(value) for name, value in state.items()}
    return Reference(call, args, state, [], job["seed"]), {"args": described, "init": packed}, extra


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch has no types here
        for generator in torch.cuda.default_generators:
            generator.manual_seed(seed)


def _blamed(do: Callable[[], Any]) -> Any:
    """Do something with the task's code; what it raises is reported with the task's own line."""
    try:
        return do()
    except Failed:
        raise
    except Exception as error:
        raise Failed("task", sentence(error), foreign_lines(error)) from error


# --- the runs ---------------------------------------------------------------------------------------------


def _runs(reference: Reference, lower: str | None) -> tuple[dict[str, Any], dict[str, Blob]]:
    before = {name: tensors.to_blob(reference.args[name]) for name in reference.mutates}
    native = _once(reference, reference.args, reference.state)
    if not native:
        raise Failed("task", "the reference returned nothing and overwrites nothing: there is nothing to compare")
    mutated = [name for name in before if _changed(native[f"mutated:{name}"], before[name])]
    state = {name: tensors.to_blob(value) for name, value in reference.state.items()}
    track = [name for name in state if _changed(native[f"state:{name}"], state[name])]
    kept = {
        name
        for name in native
        if not name.startswith(("mutated:", "state:"))
        or name.split(":", 1)[1] in (mutated if name.startswith("mutated:") else track)
    }
    native = {name: value for name, value in native.items() if name in kept}
    if not native:
        raise Failed("task", "the reference returned nothing and overwrites nothing: there is nothing to compare")
    reply: dict[str, Any] = {"mutated": mutated, "track": track, "exact": "float64"}
    out = {f"native:{name}": tensors.to_blob(value) for name, value in native.items()}
    wide_args = {name: to_float64(value) for name, value in reference.args.items()}
    wide_state = {name: to_float64(value) for name, value in reference.state.items()}
    exact, note = _wide(reference, wide_args, wide_state, native)
    if exact is None:
        return {**reply, "exact": "native", "exact_note": note}, {**out, **_lower(reference, lower, native)}
    out |= {f"exact:{name}": tensors.to_blob(value) for name, value in exact.items()}
    generator = torch.Generator().manual_seed(reference.seed)
    elements = sum(value.numel() for value in native.values())
    for run in range(min(MOST_DISTURBED, 1 + ENOUGH_ELEMENTS // max(elements, 1))):
        args = {name: disturbed(value, generator) for name, value in wide_args.items()}
        weights = {name: disturbed(value, generator) for name, value in wide_state.items()}
        values, _ = _wide(reference, args, weights, native)
        if values is not None:
            out |= {f"moved{run}:{name}": _moved(values[name], exact[name]) for name in values}
    return reply, {**out, **_lower(reference, lower, native)}


def _once(
    reference: Reference, args: Mapping[str, Any], state: Mapping[str, Any], *, wide: bool = False
) -> dict[str, torch.Tensor]:
    """One call on private copies; everything it left behind, by name."""
    own = {n: _copy(value) if isinstance(value, torch.Tensor) else value for n, value in args.items()}
    _seed(reference.seed)
    returned, after = _blamed(lambda: reference.call(own, state, wide))
    named = {f"out{i}": value for i, value in enumerate(tensors.results(returned, blame="task"))}
    named |= {f"mutated:{name}": own[name] for name in reference.mutates}
    named |= {f"state:{name}": value for name, value in after.items()}
    return {name: value.detach() for name, value in named.items()}


def _copy(value: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, overlapping ones included."""
    if value.is_contiguous():
        return value.clone()
    size = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    storage = value.as_strided((size,), (1,)).clone()
    return storage.as_strided(value.shape, value.stride())


def _wide(
    reference: Reference, args: Mapping[str, Any], state: Mapping[str, Any], native: Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor] | None, str]:
    """The results in float64, or why there are none."""
    try:
        with in_float64():
            found = _once(reference, args, state, wide=True)
    except Failed as error:
        return None, error.detail
    for name, value in native.items():
        if found[name].shape != value.shape:
            return None, f"{name} has another shape in float64"
    return {name: found[name] for name in native}, ""


def _moved(disturbed_: torch.Tensor, exact: torch.Tensor) -> Blob:
    """By how much a result moved, as float32: an error's size needs no more."""
    return tensors.to_blob((disturbed_.double() - exact.double()).float())


def _lower(reference: Reference, precision: str | None, native: Mapping[str, torch.Tensor]) -> dict[str, Blob]:
    """The results with inputs and outputs rounded to the next lower format: what must not pass."""
    values = [*reference.args.values(), *reference.state.values(), *native.values()]
    floats = [v.dtype for v in values if isinstance(v, torch.Tensor) and v.dtype.is_floating_point]
    if precision is None or not floats:
        return {}
    bits = min(lower_bits(dtype, precision) for dtype in floats)
    args = {name: quantised(value, bits) for name, value in reference.args.items()}
    state = {name: quantised(value, bits) for name, value in reference.state.items()}
    found = _once(reference, args, state)
    return {f"lower:{n}": tensors.to_blob(quantised(found[n], bits)) for n in native if n in found}


def _changed(now: torch.Tensor, before: Blob) -> bool:
    return bytes(tensors.to_blob(now).data) != bytes(before.data)
