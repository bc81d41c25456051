"""A candidate's own launch code, run against a driver that compiles every kernel and launches none."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from triton import knobs
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler.compiler import CompiledKernel
from triton.runtime.errors import OutOfResources

from tilewright.harness.worker.driver import driven
from tilewright.harness.worker.failed import Failed
from tilewright.harness.worker.redirect import on_cpu

TENSOR_MEMORY_COLUMNS = 512
"""Of a Blackwell multiprocessor; the compiler counts what a program takes in them."""
THREADS_PER_BLOCK = 1024


@dataclass(slots=True)
class Launch:
    """One launch that would have happened: the compiled kernel, its grid, and its arguments by name."""

    kernel: Any
    grid: tuple[int, int, int]
    args: dict[str, Any]


@contextlib.contextmanager
def keeping_assembler_log() -> Iterator[None]:
    """Keep what `ptxas -v` says of each kernel in its metadata as `ptxas_log`; stdout stays clean."""
    plain = CUDABackend.make_cubin

    def make_cubin(self: Any, src: Any, metadata: dict[str, Any], *rest: Any) -> Any:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            binary = plain(self, src, metadata, *rest)
        metadata["ptxas_log"] = said.getvalue()
        return binary

    CUDABackend.make_cubin = make_cubin
    try:
        with knobs.nvidia.scope():
            knobs.nvidia.dump_ptxas_log = True
            yield
    finally:
        CUDABackend.make_cubin = plain


@contextlib.contextmanager
def capturing(target: Mapping[str, Any], seen: Callable[[Launch], None]) -> Iterator[None]:
    """Compile for `target` whatever is launched inside, and hand each launch to `seen` instead of a device.

    Raises triton's OutOfResources, as a device would, for a kernel that asks for more than the target has.
    """
    plain = CompiledKernel._init_handles

    def init_handles(kernel: Any) -> None:
        if kernel._run is not None:
            return
        _fits(kernel.metadata, target)

        def run(x: int, y: int, z: int, *rest: Any) -> None:
            # stream, function, packed metadata, launch metadata, enter hook, exit hook, then the arguments
            args = dict(zip(kernel.src.fn.arg_names, rest[6:], strict=True))
            seen(Launch(kernel, (int(x), int(y), int(z)), args))

        kernel._run = run

    CompiledKernel._init_handles = init_handles
    try:
        with driven(target), keeping_assembler_log():
            yield
    finally:
        CompiledKernel._init_handles = plain


def _fits(metadata: Any, target: Mapping[str, Any]) -> None:
    shared, limit = metadata.shared, target["shared_bytes_per_block"]
    if shared > limit:
        raise OutOfResources(shared, limit, "shared memory")
    columns = getattr(metadata, "tmem_size", None)
    if columns is not None and columns > TENSOR_MEMORY_COLUMNS:
        raise OutOfResources(columns, TENSOR_MEMORY_COLUMNS, "tensor memory")
    threads = metadata.num_warps * target["warp_size"]
    if threads > THREADS_PER_BLOCK:
        raise OutOfResources(threads, THREADS_PER_BLOCK, "threads")


def checked_grid(launch: Launch) -> None:
    """Refuse what the device would refuse at launch: an impossible grid, or a tensor that is not on it."""
    name = launch.kernel.src.fn.__name__
    for axis, (size, limit) in enumerate(zip(launch.grid, (2**31 - 1, 65535, 65535), strict=True)):
        if not 0 <= size <= limit:
            raise Failed("launch", f"grid axis {axis} of {name} is {size}; the device takes 0 to {limit}")
    for argument, value in launch.args.items():
        if isinstance(value, torch.Tensor) and on_cpu(value):
            raise Failed("launch", f"argument `{argument}` of {name} is a CPU tensor; the kernel runs on the device")
