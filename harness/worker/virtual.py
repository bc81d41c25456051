"""Full-size tensors that nobody ever fills, and torch operations on them that are noted instead of computed.

Compiling and counting need a launch's shapes, strides and pointers, not its values. Float memory is reserved but
never touched; an operation on anything large yields uninitialised memory of the right shape, found on `meta`
tensors; small tensors and whole numbers are computed, for control flow may hang on them. While `recording`, each
operation is noted with the bytes and floating-point operations that it would take on the device: torch's own
kernels cost time too, and a candidate that moves its work there must not look free.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.flop_counter import flop_registry

from tilewright.harness.worker.failed import Failed, sentence
from tilewright.harness.worker.load import entry, load
from tilewright.harness.worker.outcome import foreign_lines
from tilewright.harness.worker.redirect import on_cpu
from tilewright.harness.worker.wire import Blob

COMPUTED_ELEMENTS = 1 << 16
"""Tensors up to this size are computed."""
INTEGER_ELEMENTS = 1 << 26
"""Whole numbers are computed up to this size: they may be indices."""
_RESERVE = 0x4000  # MAP_NORESERVE, which Python's mmap names from 3.13 on
_UNFILLED = ("aten::empty", "aten::new_empty")
_COPIES = ("aten::clone", "aten::copy_", "aten::_to_copy")
_LOOKS = ("aten::lift_fresh", "aten::detach", "aten::_local_scalar_dense")


def reserve(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """A flat tensor on pages that are not there until they are touched, and count against no limit until then."""
    if elements == 0:
        return torch.empty(0, dtype=dtype)
    # Shared with nobody: a private mapping would count against the limit on data at its full size.
    pages = mmap.mmap(-1, elements * dtype.itemsize, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _RESERVE)
    return torch.frombuffer(pages, dtype=torch.uint8).view(dtype)


def reserve_strided(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """The same with shape and strides."""
    size = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if math.prod(shape) else 0
    return reserve(size, dtype).as_strided(shape, strides)


def virtual_args(args: Sequence[Mapping[str, Any]], tensors: Mapping[str, Blob], seed: int = 0) -> dict[str, Any]:
    """The entry's arguments at full size: floats uninitialised, whole numbers real in [low, high).

    Values that came with the job are used as they are.
    """
    made: dict[str, Any] = {}
    draw = torch.Generator()
    draw.manual_seed(seed)
    for arg in args:
        if "tensor" not in arg:
            made[arg["name"]] = arg.get("scalar")
            continue
        spec = arg["tensor"]
        dtype = getattr(torch, spec["dtype"])
        shape = [int(n) for n in spec["shape"]]
        tensor = reserve_strided(shape, spec.get("strides") or _contiguous(shape), dtype)
        if (blob := tensors.get(arg["name"])) is not None:
            tensor.copy_(torch.frombuffer(bytearray(blob.data), dtype=dtype).reshape(shape))
        elif not (dtype.is_floating_point or dtype.is_complex):
            tensor.random_(int(spec.get("low", 0)), max(int(spec.get("high", 2)), 1), generator=draw)
        made[arg["name"]] = tensor
    return made


def _contiguous(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return strides


@dataclass(slots=True)
class TorchOp:
    """One operation that torch would launch on the device, and what it asks of it."""

    name: str
    load_bytes: int
    store_bytes: int
    flops: int
    """Of matrix products and convolutions; 0 for others."""
    operand: str
    """The first float input's type, by torch's name."""


class Virtual(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own metaclass hook
    """Answers operations on large tensors with uninitialised memory. `noted` holds those seen while `recording`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.noted: list[TorchOp | object] = []
        self._recording = False

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Note operations while inside."""
        self._recording = True
        plain, threading.Thread.start = threading.Thread.start, _no_thread  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            self._recording = False
            threading.Thread.start = plain  # type: ignore[method-assign]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        if schema.name.startswith(_UNFILLED):
            return _unfilled(func, args, kwargs)
        if is_free(schema):
            return func(*args, **kwargs)
        inputs = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
        shapes = _on_meta(func, args, kwargs)
        if self._recording and shapes is not None and _on_host(schema, inputs, shapes):
            raise Failed("unsupported", f"{schema.name} computes on the host, where the model has no time for it")
        if shapes is None or _small([*inputs, *shapes]) or _whole(inputs, shapes):
            outputs = func(*args, **kwargs)
        else:
            outputs = self._pretend(func, args, kwargs, shapes)
        if self._recording and not (inputs and all(on_cpu(each) for each in inputs)):
            self.noted.append(_cost(func, args, kwargs, inputs, outputs))
        return outputs

    def _pretend(self, func: Any, args: Any, kwargs: dict[str, Any], shapes: list[torch.Tensor]) -> Any:
        """The operation's results without its work: what it writes in place as it is, the rest uninitialised."""
        schema = func._schema
        if schema.is_mutable:
            written = [
                kwargs.get(arg.name, args[i] if i < len(args) else None)
                for i, arg in enumerate(schema.arguments)
                if arg.alias_info is not None and arg.alias_info.is_write
            ]
            return written[0] if len(written) == 1 else tuple(written)
        made = [reserve_strided(s.shape, s.stride(), s.dtype) for s in shapes]
        return made[0] if len(schema.returns) == 1 and not _returns_list(schema) else made


def _no_thread(thread: threading.Thread) -> None:
    raise Failed("unsupported", "the launch code starts a thread, whose work the model does not see")


def _unfilled(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    shapes = _on_meta(func, args, kwargs)
    if shapes is None or len(shapes) != 1 or _small(shapes):
        made = func(*args, **kwargs)
        # Whole numbers may be indices or locks: zero, as fresh pages are, and not what lay there before.
        return made if made.dtype.is_floating_point or made.dtype.is_complex else made.zero_()
    return reserve_strided(shapes[0].shape, shapes[0].stride(), shapes[0].dtype)


def _returns_list(schema: Any) -> bool:
    return any("[]" in str(each.type) for each in schema.returns)


def is_free(schema: Any) -> bool:
    """Whether an operation only looks at, or asks for, memory."""
    return schema.name.startswith((*_LOOKS, *_UNFILLED)) or _is_view(schema)


def _is_view(schema: Any) -> bool:
    return any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)


def _small(tensors: Sequence[torch.Tensor]) -> bool:
    return all(each.numel() <= COMPUTED_ELEMENTS for each in tensors)


def _on_host(schema: Any, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
    """Whether an operation works on much that was left on, or brought to, the CPU; copies do not count."""
    return (
        bool(inputs)
        and all(on_cpu(each) for each in inputs)
        and not schema.name.startswith(_COPIES)
        and not _small([*inputs, *outputs])
    )


def _whole(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
    """Whether results are whole numbers of bearable size that no uninitialised float went into."""
    return all(
        not each.dtype.is_floating_point and not each.dtype.is_complex and each.numel() <= INTEGER_ELEMENTS
        for each in (*inputs, *outputs)
    )


def _on_meta(func: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor] | None:
    """The shapes of an operation's results; None where they hang on values."""

    def there(each: Any) -> Any:
        if isinstance(each, torch.Tensor):
            return torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="meta")
        if isinstance(each, torch.device):
            return torch.device("meta")
        return None if isinstance(each, torch.Generator) else each

    try:
        results = func(*tree_map(there, args), **tree_map(there, kwargs))
    except (NotImplementedError, RuntimeError):
        return None
    return [each for each in tree_flatten(results)[0] if isinstance(each, torch.Tensor)]


def _cost(func: Any, args: Any, kwargs: dict[str, Any], inputs: list[torch.Tensor], outputs: Any) -> TorchOp:
    made = [each for each in tree_flatten(outputs)[0] if isinstance(each, torch.Tensor)]
    # An operation that writes in place reads its target too, unless it only fills it.
    fills = func._schema.name in ("aten::zero_", "aten::fill_", "aten::copy_") or "out" in kwargs
    targets = {id(each) for each in made} if fills else set()
    read = {id(each): each.numel() * each.element_size() for each in inputs if id(each) not in targets}
    flops = 0
    if (formula := flop_registry.get(func.overloadpacket)) is not None:
        flops = int(formula(*args, **kwargs, out_val=outputs))
    floats = [str(each.dtype).removeprefix("torch.") for each in inputs if each.dtype.is_floating_point]
    return TorchOp(
        name=func._schema.name,
        load_bytes=sum(read.values()),
        store_bytes=sum(each.numel() * each.element_size() for each in made),
        flops=flops,
        operand=floats[0] if floats else "",
    )


@dataclass(slots=True)
class Foreign:
    """What was made of a job's source: the function to call, and what to call it with."""

    call: Any
    args: list[Any] = field(default_factory=list)


def prepared(job: Mapping[str, Any], tensors: Mapping[str, Blob]) -> Foreign:
    """Load the job's candidate and make its full-size arguments. Inside `redirected` and `Virtual`.

    For KernelBench the task's own file makes the arguments, and the module is constructed from its init inputs.
    """
    module = load(job["source"], "candidate")
    if job.get("kind") != "kernelbench":
        return Foreign(entry(module, job["entry"]), list(virtual_args(job["args"], tensors).values()))
    task = load(job["task_source"], "task", blame="task")
    try:
        made = entry(task, "get_inputs", blame="task")()
        init = entry(task, "get_init_inputs", blame="task")() if hasattr(task, "get_init_inputs") else []
    except Failed:
        raise
    except Exception as error:
        raise Failed("task", f"making its inputs raised {sentence(error)}", foreign_lines(error)) from error
    kind = entry(module, job["entry"])
    model = kind(**init) if isinstance(init, dict) else kind(*init)
    inputs = [each.cuda() if isinstance(each, torch.Tensor) else each for each in made]
    return Foreign(model.cuda() if isinstance(model, torch.nn.Module) else model, inputs)
