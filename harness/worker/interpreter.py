"""Triton's interpreter made fit to judge by: its traps mended, or turned into a clear refusal.

`prepare()` patches this process for good, so it belongs into a pool process that does nothing else. It sees to
narrow floats (`interpreter_floats`), device libraries and scalars (`interpreter_libdevice`), kernels that use
names of a closure, operations that the interpreter lacks, and accesses outside of a kernel's
arguments: a device may fault on those or return anything, the interpreter returns whatever lies there.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter as _interpreter

from tilewright.harness.worker import interpreter_floats
from tilewright.harness.worker.failed import Failed
from tilewright.harness.worker.interpreter_libdevice import install_libdevice, install_scalars
from tilewright.harness.worker.outcome import Unsupported


@dataclass(slots=True)
class Region:
    """Memory that a launch may touch: the storage of one of its arguments."""

    start: int
    end: int
    name: str


@dataclass(slots=True)
class Watch:
    """What the interpreter notes while foreign code runs."""

    regions: list[Region] = field(default_factory=list)
    starts: Any = None
    ends: Any = None
    pointers_made: bool = False
    """The kernel made pointers from numbers: where they may point is not known, so nothing is checked."""
    launches: int = 0


WATCH = Watch()


def prepare() -> None:
    """Mend the interpreter of this process. Harmless when done again. Raises Unsupported where it cannot be."""
    if not triton.knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET=1 must be set before triton is imported")
    if getattr(_interpreter, "_tilewright", False):
        return
    _refuse_numpy()
    interpreter_floats.install()
    _install_bounds()
    _install_refusals()
    _install_closures()
    install_libdevice()
    install_scalars()
    _interpreter._tilewright = True


def _refuse_numpy() -> None:
    """Triton before 3.7 cannot turn a one-element array into a number under numpy 2.4; every loop bound needs it."""

    class Probe:
        handle = _interpreter.TensorHandle(np.array([3], dtype=np.int32), tl.int32)

    scope = _interpreter._LangPatchScope()
    _interpreter._patch_lang_tensor(Probe, scope)
    try:
        operator.index(Probe())  # type: ignore[arg-type]  # the patch gives it __index__
    except TypeError:
        raise Unsupported(
            f"Triton {triton.__version__}'s interpreter fails with numpy {np.__version__}: pip install 'numpy<2.4'"
        ) from None
    finally:
        scope.restore()


def expose_language(module: ModuleType) -> None:
    """Let the interpreter find the language however a module spells it.

    It patches modules called `tl` alone; `triton.language.load` and `from triton.language import load` escape it.
    """

    def given(builtin: Any) -> Any:
        def call(*args: Any, _semantic: Any = None, **kwargs: Any) -> Any:
            return builtin(*args, _semantic=_interpreter.interpreter_semantic, **kwargs)

        return call

    for name, value in list(vars(module).items()):
        if tl.core.is_builtin(value):
            module.__dict__[name] = given(value)
    if not any(value is tl or value is tl.core for value in vars(module).values()):
        module.__dict__["_tilewright_tl"] = tl


@contextlib.contextmanager
def watching() -> Iterator[Watch]:
    """Run foreign code; afterwards the watch says what was launched."""
    WATCH.launches, WATCH.pointers_made = 0, False
    yield WATCH


# --- accesses outside of the arguments --------------------------------------------------------------------


def _storages(name: str, value: Any) -> Iterator[Region]:
    if isinstance(value, tuple | list):
        for each in value:
            yield from _storages(name, each)
    elif hasattr(value, "base") and hasattr(value, "block_shape"):  # a tensor descriptor made on the host
        yield from _storages(name, value.base)
    elif hasattr(value, "data_ptr"):
        storage = _interpreter._unwrap_tensor(value).untyped_storage()
        if storage.nbytes():
            yield Region(storage.data_ptr(), storage.data_ptr() + storage.nbytes(), name)


def _enter(arguments: Mapping[str, Any]) -> None:
    regions: dict[int, Region] = {}
    for name, value in arguments.items():
        for region in _storages(name, value):
            regions.setdefault(region.start, region)
    WATCH.regions = sorted(regions.values(), key=lambda r: r.start)
    WATCH.starts = np.array([r.start for r in WATCH.regions], dtype=np.uint64)
    WATCH.ends = np.array([r.end for r in WATCH.regions], dtype=np.uint64)


def check_bounds(ptrs: Any, mask: Any, verb: str, program: tuple[int, ...]) -> None:
    """Raise `launch` where an unmasked element lies outside of the launch's arguments."""
    if WATCH.pointers_made or WATCH.starts is None:
        return
    addresses = ptrs.data if mask is None else ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape)]
    if not addresses.size:
        return
    size = np.uint64(max(1, ptrs.get_element_ty().primitive_bitwidth // 8))
    low, high = addresses.min(), addresses.max()
    if any(r.start <= low and int(high) + int(size) <= r.end for r in WATCH.regions):
        return
    at = np.searchsorted(WATCH.starts, addresses, side="right").astype(np.int64) - 1
    inside = (at >= 0) & (addresses + size <= WATCH.ends[np.maximum(at, 0)]) if len(WATCH.starts) else at > 0
    if inside.all():
        return
    first = int(addresses[~inside].flat[0])
    where = "none of them holds memory"
    if WATCH.regions:
        near = min(WATCH.regions, key=lambda r: min(abs(first - r.start), abs(first - r.end)))
        past = first - near.end
        where = f"{past + 1} bytes past the end" if past >= 0 else f"{near.start - first} bytes before the start"
        where = f"the first {where} of `{near.name}`"
    count = int((~inside).sum())
    raise Failed("launch", f"program {program} {verb} {count} elements outside of its arguments, {where}")


def _install_bounds() -> None:
    builder, executor = _interpreter.InterpreterBuilder, _interpreter.GridExecutor
    plain_call = executor.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _enter({**dict(zip(self.arg_names, args, strict=False)), **kwargs})
        WATCH.launches += 1
        return plain_call(self, *args, **kwargs)

    executor.__call__ = call

    def checked(name: str, verb: str, pointer: int, mask: int | None) -> None:
        plain = getattr(builder, name)

        def access(self: Any, *args: Any, **kwargs: Any) -> Any:
            check_bounds(args[pointer], None if mask is None else args[mask], verb, self.grid_idx)
            return plain(self, *args, **kwargs)

        setattr(builder, name, access)

    checked("create_masked_load", "reads", 0, 1)
    checked("create_masked_store", "writes", 0, 2)
    checked("create_atomic_rmw", "updates", 1, 3)
    checked("create_atomic_cas", "updates", 0, None)

    plain_to_ptr = builder.create_int_to_ptr

    def to_pointer(self: Any, *args: Any) -> Any:
        WATCH.pointers_made = True
        return plain_to_ptr(self, *args)

    builder.create_int_to_ptr = to_pointer


# --- the rest ---------------------------------------------------------------------------------------------


def _install_refusals() -> None:
    builder = _interpreter.InterpreterBuilder

    def refuse(what: str) -> Callable[..., Any]:
        def raising(self: Any, *args: Any, **kwargs: Any) -> Any:
            raise Unsupported(f"{what} cannot be run by Triton's interpreter")

        return raising

    builder.create_inline_asm = refuse("inline assembly")


def _install_closures() -> None:
    """Kernels defined inside a function keep the names that they close over; constexpr may be spelt in any way."""
    rewriter = _interpreter.FunctionRewriter
    plain = rewriter._compile_and_exec

    def compile_and_exec(self: Any, tree: Any) -> Any:
        scope = self.fn.__globals__
        closed = zip(self.fn.__code__.co_freevars, self.fn.__closure__ or (), strict=True)
        for name, cell in closed:
            if scope.get(name, cell.cell_contents) is not cell.cell_contents:
                raise Unsupported(f"kernel {self.fn.__name__} closes over {name!r}, which its module defines too")
            scope[name] = cell.cell_contents
        made = plain(self, tree)
        # The rewritten function's annotations are texts, of which only `tl.constexpr` would be understood.
        made.__annotations__ = {
            name: "constexpr" if "constexpr" in str(kind) else kind for name, kind in made.__annotations__.items()
        }
        return made

    rewriter._compile_and_exec = compile_and_exec
