"""Between frames and torch: arguments with their strides, results as bytes, memory that nobody has written yet."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tilewright.harness.worker.failed import Failed
from tilewright.harness.worker.wire import ITEM_BYTES, Blob

M_PERTURB, M_MMAP_THRESHOLD = -6, -3
"""Names of glibc's for two parameters of its heap."""
HEAP_FILL = 0x01
LARGEST_ON_HEAP_BYTES = 32 << 20
POISON_BYTE = 0x5A
"""Fills integer memory that nobody has written: 1515870810 as an int32."""


def to_tensor(blob: Blob) -> torch.Tensor:
    """A blob as a contiguous CPU tensor that shares its bytes."""
    dtype = getattr(torch, blob.dtype)
    if not blob.nbytes:
        return torch.empty(blob.shape, dtype=dtype)
    data = memoryview(blob.data)
    return torch.frombuffer(bytearray(data) if data.readonly else data, dtype=dtype).reshape(blob.shape)


def to_blob(tensor: torch.Tensor) -> Blob:
    """A tensor's elements in C order. Refuses what cannot travel, and tensors that only pretend to be one."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise Failed("launch", f"expected a plain tensor, found {type(tensor).__name__}")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in ITEM_BYTES:
        raise Failed("unsupported", f"results of type {dtype} cannot be compared here")
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        raise Failed("launch", f"expected a dense tensor in memory, found {tensor.layout} on {tensor.device}")
    plain = tensor.detach().cpu().contiguous()
    shape = tuple(plain.shape)
    if not plain.numel():
        return Blob(dtype, shape, b"")
    return Blob(dtype, shape, plain.reshape(-1).view(torch.uint8).numpy().data)


def arguments(args: Sequence[Mapping[str, Any]], tensors: Mapping[str, Blob], device: str = "cpu") -> dict[str, Any]:
    """The entry's arguments by name: scalars as given, tensors with the strides asked for.

    A strided tensor lies in storage of its own, poisoned between its elements.
    """
    made: dict[str, Any] = {}
    for arg in args:
        name = arg["name"]
        if "tensor" not in arg:
            made[name] = arg.get("scalar")
            continue
        values = to_tensor(tensors[name])
        strides = arg["tensor"].get("strides")
        if strides is None:
            made[name] = values.to(device, copy=True)
            continue
        size = 1 + sum((n - 1) * s for n, s in zip(values.shape, strides, strict=True))
        storage = poison(torch.empty(size, dtype=values.dtype))
        storage.as_strided(values.shape, strides).copy_(values)
        made[name] = storage.to(device).as_strided(values.shape, strides)
    return made


def results(returned: Any, *, blame: str = "launch") -> list[torch.Tensor]:
    """What an entry returned as a flat list of tensors: a tensor, a tuple or list of them, or None."""
    if returned is None:
        return []
    if isinstance(returned, torch.Tensor):
        return [returned]
    if isinstance(returned, tuple | list) and all(isinstance(each, torch.Tensor) for each in returned):
        return list(returned)
    kinds = [type(x).__name__ for x in returned] if isinstance(returned, tuple | list) else None
    found = f"a {type(returned).__name__} of {', '.join(kinds)}" if kinds else type(returned).__name__
    raise Failed(blame, f"expected a tensor or a tuple of tensors to be returned, found {found}")


def named(outputs: Sequence[torch.Tensor], mutated: Mapping[str, Any]) -> dict[str, Blob]:
    """Results as they travel: `out0`, `out1`, …, and `mutated:NAME` for arguments overwritten by contract."""
    blobs = {f"out{i}": to_blob(each) for i, each in enumerate(outputs)}
    blobs |= {f"mutated:{name}": to_blob(value) for name, value in mutated.items()}
    return blobs


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fill a tensor with NaN, or with a sentinel where it holds whole numbers, so that reading it shows."""
    with torch.no_grad():
        if tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1:
            tensor.fill_(float("nan"))
        elif tensor.dtype is torch.bool:
            tensor.fill_(True)
        elif not tensor.dtype.is_complex:
            for part in _dense(tensor):
                part.view(torch.uint8).fill_(POISON_BYTE)
    return tensor


def poison_heap() -> None:
    """Have the C library fill what it hands out from now on, which no patch of torch need notice; glibc only.

    Floats of its bytes are -1.7e38 (NaN in half precision): nobody takes them for zeros.
    """
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_ON_HEAP_BYTES)  # larger pieces come from the kernel, as zeros
        libc.mallopt(M_PERTURB, HEAP_FILL)


def _dense(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if tensor.numel() and tensor.is_contiguous():
        yield tensor.reshape(-1)


class PoisonedEmpty(TorchFunctionMode):
    """Makes `torch.empty` and its kin return poisoned memory: what is never written is then seen."""

    _NAMES = frozenset(["empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"])

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in self._NAMES and isinstance(made, torch.Tensor):
            with torch._C.DisableTorchFunction():
                poison(made)
        return made
