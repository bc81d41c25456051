"""A candidate's own launch code, run against a driver that compiles every kernel and launches none."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler.compiler import CompiledKernel
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from tilewright.harness.worker.driver import driven
from tilewright.harness.worker.failed import Failed, sentence
from tilewright.harness.worker.redirect import on_cpu

# Triton 3.9 warns where this is not said, and 3.10 changes its default; measured and modelled must agree on it.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

TENSOR_MEMORY_COLUMNS = 512
"""Of a Blackwell multiprocessor; the compiler counts what a program takes in them."""
THREADS_PER_BLOCK = 1024


@dataclass(slots=True)
class Launch:
    """One launch that would have happened: the compiled kernel, its grid, and its arguments by name."""

    kernel: Any
    grid: tuple[int, int, int]
    args: dict[str, Any]


class CompilerFailed(Exception):
    """The compiler gave up on a kernel without a message for its author."""


class DoesNotFit(OutOfResources):  # type: ignore[misc]  # triton is untyped
    """A kernel asks for more than a multiprocessor has. `kernel` is the compiled one."""

    def __init__(self, required: int, limit: int, what: str, kernel: Any) -> None:
        super().__init__(required, limit, what)
        self.what, self.kernel = what, kernel


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

    Raises DoesNotFit (an OutOfResources of triton's), as a device would, for a kernel that asks for more than
    the target has.
    """
    plain, plain_compile = CompiledKernel._init_handles, triton.compiler.compile

    def init_handles(kernel: Any) -> None:
        if kernel._run is not None:
            return
        _check_room(kernel, target)

        def run(x: int, y: int, z: int, *rest: Any) -> None:
            # stream, function, packed metadata, launch metadata, enter hook, exit hook, then the arguments
            args = dict(zip(kernel.src.fn.arg_names, rest[6:], strict=True))
            seen(Launch(kernel, (int(x), int(y), int(z)), args))

        kernel._run = run

    def compiled(*args: Any, **kwargs: Any) -> Any:
        try:
            return plain_compile(*args, **kwargs)
        except (CompilationError, PTXASError):
            raise
        except Exception as error:
            # What passes of the compiler raise is no exception of its own kind; here is where it is known.
            raise CompilerFailed(sentence(error)) from error

    CompiledKernel._init_handles, triton.compiler.compile = init_handles, compiled
    try:
        with driven(target), keeping_assembler_log():
            yield
    finally:
        CompiledKernel._init_handles, triton.compiler.compile = plain, plain_compile


def _check_room(kernel: Any, target: Mapping[str, Any]) -> None:
    asked = {
        "bytes of shared memory": (kernel.metadata.shared, target["shared_bytes_per_block"]),
        "columns of tensor memory": (getattr(kernel.metadata, "tmem_size", None) or 0, TENSOR_MEMORY_COLUMNS),
        "threads": (kernel.metadata.num_warps * target["warp_size"], THREADS_PER_BLOCK),
    }
    for what, (required, limit) in asked.items():
        if required > limit:
            raise DoesNotFit(required, limit, what, kernel)


def checked(launch: Launch) -> Launch:
    """The launch itself; refuses what the device would: an impossible grid, or a tensor that is not on it."""
    name = launch.kernel.src.fn.__name__
    for axis, (size, limit) in enumerate(zip(launch.grid, (2**31 - 1, 65535, 65535), strict=True)):
        if not 0 <= size <= limit:
            raise Failed("launch", f"grid axis {axis} of {name} is {size}; the device takes 0 to {limit}")
    for argument, value in launch.args.items():
        if isinstance(value, torch.Tensor) and on_cpu(value):
            raise Failed("launch", f"argument `{argument}` of {name} is a CPU tensor; the kernel runs on the device")
    return launch
