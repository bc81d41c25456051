"""Finds accesses outside of a kernel's arguments. A device may fault on them; the interpreter takes what lies there.

A pointer knows the argument that it was made from, through additions, broadcasts and reshapes, and may reach that
argument's storage alone. Where it is not known (a choice between two pointers), any argument of the launch will do;
where a kernel makes pointers from numbers, nothing can be said and nothing is checked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as _interpreter

from tilewright.harness.worker.failed import Failed

FOLLOWED = {"addptr": 0, "splat": 1, "unsplat": 0, "broadcast": 0, "expand_dims": 0, "reshape": 0, "trans": 0}
"""Operations whose result points where their operand did, and which operand that is."""


@dataclass(slots=True)
class Region:
    """Memory that a launch may touch: the storage of one of its arguments."""

    start: int
    end: int
    name: str


@dataclass(slots=True)
class Watch:
    """What is noted while foreign code runs."""

    regions: dict[int, Region] = field(default_factory=dict)
    """By address of the storage."""
    pointers_made: bool = False
    """The kernel made pointers from numbers."""
    launches: int = 0
    kernels: dict[str, int] = field(default_factory=dict)
    """Names of those launched, and how often."""
    inside: bool = False
    """A launch is under way."""


WATCH = Watch()


@contextlib.contextmanager
def watching() -> Iterator[Watch]:
    """Run foreign code; afterwards the watch says how often it launched a kernel."""
    WATCH.launches, WATCH.pointers_made, WATCH.regions, WATCH.kernels = 0, False, {}, {}
    yield WATCH


def _storages(name: str, value: Any) -> Iterator[Region]:
    if isinstance(value, tuple | list):
        for each in value:
            yield from _storages(name, each)
    elif hasattr(value, "base") and hasattr(value, "block_shape"):  # a tensor descriptor made on the host
        yield from _storages(name, value.base)
    elif hasattr(value, "data_ptr"):
        storage = _interpreter._unwrap_tensor(value).untyped_storage()
        yield Region(storage.data_ptr(), storage.data_ptr() + storage.nbytes(), name)


def _enter(arguments: Mapping[str, Any]) -> None:
    WATCH.launches += 1
    WATCH.regions = {}
    for name, value in arguments.items():
        for region in _storages(name, value):
            WATCH.regions.setdefault(region.start, region)


def _check(ptrs: Any, mask: Any, verb: str, program: tuple[int, ...]) -> None:
    """Raise `launch` where an unmasked element lies outside of what the pointer may reach."""
    if WATCH.pointers_made:
        return
    addresses = ptrs.data if mask is None else ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape)]
    if not addresses.size:
        return
    origin = getattr(ptrs, "origin", None)
    allowed = [origin] if origin is not None else [r for r in WATCH.regions.values() if r.end > r.start]
    size = np.uint64(max(1, ptrs.get_element_ty().primitive_bitwidth // 8))
    low, high = int(addresses.min()), int(addresses.max()) + int(size)
    if any(r.start <= low and high <= r.end for r in allowed):
        return
    inside = np.zeros(addresses.shape, dtype=bool)
    for r in allowed:
        inside |= (addresses >= np.uint64(r.start)) & (addresses + size <= np.uint64(r.end))
    if inside.all():
        return
    first = int(addresses[~inside].flat[0])
    where = "none of them holds memory"
    if allowed:
        near = min(allowed, key=lambda r: min(abs(first - r.start), abs(first - r.end)))
        past = first - near.end
        where = f"{past + 1} bytes past the end" if past >= 0 else f"{near.start - first} bytes before the start"
        where = f"the first {where} of `{near.name}`"
    count = int((~inside).sum())
    raise Failed("launch", f"program {program} {verb} {count} elements outside of its arguments, {where}")


def install() -> None:
    """Patch the interpreter of this process, for good."""
    _install_origins()
    executor = _interpreter.GridExecutor
    plain_call = executor.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _enter({**dict(zip(self.arg_names, args, strict=False)), **kwargs})
        name = self.fn.__name__
        WATCH.kernels[name] = WATCH.kernels.get(name, 0) + 1
        WATCH.inside = True
        try:
            return plain_call(self, *args, **kwargs)
        finally:
            WATCH.inside = False

    executor.__call__ = call
    _checked("create_masked_load", "reads", 0, 1)
    _checked("create_masked_store", "writes", 0, 2)
    _checked("create_atomic_rmw", "updates", 1, 3)
    _checked("create_atomic_cas", "updates", 0, None)


def _checked(name: str, verb: str, pointer: int, mask: int | None) -> None:
    builder = _interpreter.InterpreterBuilder
    plain = getattr(builder, name)

    def access(self: Any, *args: Any, **kwargs: Any) -> Any:
        _check(args[pointer], None if mask is None else args[mask], verb, self.grid_idx)
        return plain(self, *args, **kwargs)

    setattr(builder, name, access)


def _install_origins() -> None:
    builder = _interpreter.InterpreterBuilder
    plain_convert, plain_to_ptr = _interpreter._implicit_cvt, builder.create_int_to_ptr

    def convert(arg: Any) -> Any:
        made = plain_convert(arg)
        if isinstance(made, tl.tensor) and hasattr(arg, "data_ptr"):
            storage = _interpreter._unwrap_tensor(arg).untyped_storage()
            made.handle.origin = WATCH.regions.get(storage.data_ptr())
        return made

    def to_pointer(self: Any, *args: Any) -> Any:
        WATCH.pointers_made = True
        return plain_to_ptr(self, *args)

    _interpreter._implicit_cvt, builder.create_int_to_ptr = convert, to_pointer
    for name, operand in FOLLOWED.items():
        if hasattr(builder, f"create_{name}"):
            _follow(builder, f"create_{name}", operand)


def _follow(builder: Any, name: str, operand: int) -> None:
    plain = getattr(builder, name)

    def followed(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = plain(self, *args, **kwargs)
        if (origin := getattr(args[operand], "origin", None)) is not None:
            made.origin = origin
        return made

    setattr(builder, name, followed)
