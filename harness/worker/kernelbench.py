"""KernelBench's modules: constructed from Model's arguments, given the reference's weights by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tilewright.harness.worker.failed import Failed, sentence
from tilewright.harness.worker.outcome import foreign_lines
from tilewright.harness.worker.tensors import to_tensor
from tilewright.harness.worker.wire import Blob

STATE = "state:"
LISTED = 8
"""Names shown of a long list."""


def packed(value: Any) -> Any:
    """An argument of Model as JSON that keeps tuples apart from lists."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [packed(each) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [packed(each) for each in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: packed(each) for key, each in value.items()}}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    raise Failed("task", f"get_init_inputs() gave a {type(value).__name__}; expected numbers, texts, tuples, lists")


def unpacked(value: Any) -> Any:
    """What `packed` packed."""
    if isinstance(value, list):
        return [unpacked(each) for each in value]
    if isinstance(value, dict):
        ((kind, inner),) = value.items()
        if kind == "tuple":
            return tuple(unpacked(each) for each in inner)
        if kind == "dict":
            return {key: unpacked(each) for key, each in inner.items()}
        return getattr(torch, inner)
    return value


def construct(
    kind: Callable[..., Any],
    init: Any,
    given: Mapping[str, Blob],
    *,
    blame: str,
    device: str,
    dtype: torch.dtype | None = None,
) -> torch.nn.Module:
    """A module with the weights and buffers in `given` (`state:NAME`), in training mode as KernelBench leaves it.

    `init` is packed: a list, or a dict of keywords. Weights that the module does not ask for, or asks for in vain,
    are a failure that lists both sides.
    """
    arguments = unpacked(init)
    try:
        module = kind(**arguments) if isinstance(arguments, dict) else kind(*arguments)
    except Failed:
        raise
    except Exception as error:
        raise Failed(blame, f"constructing it raised {sentence(error)}", foreign_lines(error)) from error
    if not isinstance(module, torch.nn.Module):
        raise Failed(blame, f"expected a torch.nn.Module, found {type(module).__name__}")
    module = module.to(dtype=dtype, device=device)
    state = {name.removeprefix(STATE): to_tensor(b) for name, b in given.items() if name.startswith(STATE)}
    own = module.state_dict()
    missing, extra = sorted(set(own) - set(state)), sorted(set(state) - set(own))
    if missing or extra:
        raise Failed(
            blame,
            "its weights do not match the reference's by name: "
            f"only the candidate has {_listed(missing)}; only the reference has {_listed(extra)}",
        )
    for name, value in state.items():
        if tuple(own[name].shape) != tuple(value.shape):
            expected, found = tuple(value.shape), tuple(own[name].shape)
            raise Failed(blame, f"weight {name}: the reference's shape is {expected}, the candidate's {found}")
    module.load_state_dict(state)
    return module


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more if names else "none"
