"""What operations become in a census: counted, with as little done as control flow and addresses need.

Floats are never read: a load yields ones. Whole numbers are read where they lie in the launch's own memory, because
loops and addresses hang on them. Nothing is written. Dots are counted, not computed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import interpreter as _native
from triton.runtime import interpreter as _interpreter

from tilewright.harness.worker.census import Census, Program, Region
from tilewright.harness.worker.outcome import FOREIGN

TRANSCENDENTAL = ["cos", "exp", "exp2", "log", "log2", "precise_sqrt", "sqrt", "sin", "rsqrt", "erf"]
DIVISIONS = ["fdiv", "precise_divf", "approx_divf", "frem"]
ARITHMETIC = ["fadd", "fsub", "fmul", "minimumf", "minnumf", "maximumf", "maxnumf"]

Handle = _interpreter.TensorHandle


class State:
    """The launch and program being run; programs are run one after another."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.program: Program | None = None
        self.unrolled: list[int] = []
        """Iteration of each `tl.static_range` that the program is in: the compiler makes them code of their own."""
        self.done: Callable[[str, Census], None] = lambda name, census: None
        self.l2_bytes = self.multiprocessors = 0
        """Of the target; 0 where there is none."""
        self.counted: dict[Hashable, Census] = {}
        """By likeness: what launches ask for that differ in nothing but their pointers is counted once."""


STATE = State()


def install() -> None:
    """Put counting in the place of every operation of the interpreter in this process, for good."""
    _install_types()
    _install_memory()
    _install_arithmetic()
    _install_reductions()


# --- memory -----------------------------------------------------------------------------------------------


def _place() -> tuple[int, tuple[Any, ...]]:
    """The candidate's line that is being run, and what tells this place in the program from every other."""
    line, site = 0, list[Any](STATE.unrolled)
    frame = sys._getframe(2)
    while frame is not None:
        if FOREIGN in frame.f_code.co_filename:
            line = line or frame.f_lineno
            site.append((frame.f_code.co_name, frame.f_lasti))
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return line, tuple(site)


def _note(kind: str, pointers: Any, mask: Any) -> None:
    program = STATE.program
    assert program is not None
    addresses = pointers.data if mask is None else pointers.data[np.broadcast_to(mask.data, pointers.data.shape)]
    element = pointers.get_element_ty()
    line, site = _place()
    program.access(kind, addresses, max(1, element.primitive_bitwidth // 8), STATE.regions, line)
    if kind == "load" and addresses.size:
        program.load_at(site, feeds_addresses=element.is_int() and not element.is_int1())


def _values(pointers: Any, mask: Any, other: Any) -> Any:
    """What a load yields: ones for floats; whole numbers as they are in memory, zero outside of it."""
    element = pointers.get_element_ty()
    kind = _interpreter._get_np_dtype(element)
    if not (element.is_int() or isinstance(element, tl.pointer_type)):
        return np.ones(pointers.data.shape, dtype=kind)
    wanted = np.broadcast_to(mask.data, pointers.data.shape) if mask is not None else np.ones(pointers.data.shape, bool)
    last = pointers.data + np.uint64(kind.itemsize - 1)
    inside = np.zeros(pointers.data.shape, bool)
    for region in STATE.regions:
        inside |= (pointers.data >= region.start) & (last < region.end)
    instead = np.zeros(pointers.data.shape, kind)
    if other is not None:
        instead = np.where(wanted, instead, other.data).astype(kind)
    return _native.load(np.ascontiguousarray(pointers.data), np.ascontiguousarray(wanted & inside), instead, kind)


def _install_memory() -> None:
    builder = _interpreter.InterpreterBuilder

    def load(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        _note("load", pointers, mask)
        return Handle(_values(pointers, mask, other), pointers.get_element_ty())

    def store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> None:
        _note("store", pointers, mask)

    def rmw(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        _note("store", pointers, mask)
        assert STATE.program is not None
        STATE.program.add("atomic_ops", float(np.count_nonzero(np.broadcast_to(mask.data, pointers.data.shape))))
        return Handle(_values(pointers, mask, None), value.dtype.scalar)

    def cas(self: Any, pointers: Any, compare: Any, value: Any, *rest: Any) -> Any:
        _note("store", pointers, None)
        assert STATE.program is not None
        STATE.program.add("atomic_ops", float(pointers.data.size))
        return Handle(_values(pointers, None, None), compare.dtype.scalar)

    builder.create_masked_load, builder.create_masked_store = load, store
    builder.create_atomic_rmw, builder.create_atomic_cas = rmw, cas


# --- arithmetic -------------------------------------------------------------------------------------------


def _install_types() -> None:
    """Narrow floats are computed wide: their values say nothing here, only their sizes in memory do."""
    plain = _interpreter._get_np_dtype

    def np_dtype(dtype: Any) -> Any:
        if not isinstance(dtype, tl.pointer_type):
            scalar = dtype.scalar
            if not isinstance(scalar, tl.pointer_type) and scalar.is_floating() and scalar.primitive_bitwidth < 32:
                return np.dtype(np.float32)
        return plain(dtype)

    def cast(self: Any, source: Any, to: Any, *rest: Any) -> Any:
        _count("fp32_flops", source, _floating(source) or _floating_type(to))
        return Handle(source.data.astype(np_dtype(to)), to.scalar)

    def bitcast(self: Any, source: Any, to: Any) -> Any:
        kind = np_dtype(to)
        data = np.ascontiguousarray(source.data).reshape(source.data.shape)
        if data.dtype.itemsize != kind.itemsize:  # a narrow float on either side, whose bits nobody has
            return Handle(np.zeros(data.shape, kind), to.scalar)
        return Handle(data.view(kind), to.scalar)

    builder = _interpreter.InterpreterBuilder
    _interpreter._get_np_dtype = np_dtype
    _interpreter._validate_np_data_size = lambda data, dtype: True
    Handle.__post_init__ = lambda self: None
    for name in ["si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc", "fp_to_fp"]:
        setattr(builder, f"create_{name}", cast)
    builder.create_int_cast = lambda self, source, to, signed: Handle(source.data.astype(np_dtype(to)), to.scalar)
    builder.cast_impl, builder.create_bitcast = cast, bitcast
    builder.create_int_to_ptr = builder.create_ptr_to_int = bitcast
    builder.create_fabs = lambda self, arg: Handle(np.abs(arg.data), arg.dtype.scalar)
    builder.get_bf16 = lambda self, value: Handle(np.array([value], np.float32), tl.bfloat16)


def _floating_type(dtype: Any) -> bool:
    return not isinstance(dtype.scalar, tl.pointer_type) and bool(dtype.scalar.is_floating())


def _floating(handle: Any) -> bool:
    return _floating_type(handle.dtype)


def _count(name: str, handle: Any, applies: bool = True, times: float = 1.0) -> None:
    """Count an operation on each element of a tensor; a scalar costs a program next to nothing."""
    if applies and handle.data.size > 1 and STATE.program is not None:
        double = name == "fp32_flops" and handle.dtype.scalar == tl.float64
        STATE.program.add("fp64_flops" if double else name, handle.data.size * times)


def _install_arithmetic() -> None:
    builder = _interpreter.InterpreterBuilder

    def counted(name: str, counts: dict[str, float]) -> None:
        plain = getattr(builder, f"create_{name}", None)
        if plain is None:
            return

        def operation(self: Any, *args: Any) -> Any:
            out = plain(self, *args)
            for what, times in counts.items():
                _count(what, out, True, times)
            return out

        setattr(builder, f"create_{name}", operation)

    for name in ARITHMETIC:
        counted(name, {"fp32_flops": 1.0})
    for name in [each for each in dir(builder) if each.startswith("create_fcmp")]:
        counted(name.removeprefix("create_"), {"fp32_flops": 1.0})
    counted("fma", {"fp32_flops": 2.0})
    counted("clampf", {"fp32_flops": 2.0})
    counted("select", {"fp32_flops": 1.0})
    # A reciprocal by the special function unit, and a refinement.
    for name in DIVISIONS:
        counted(name, {"sfu_ops": 1.0, "fp32_flops": 4.0})
    for name in TRANSCENDENTAL:
        counted(name, {"sfu_ops": 1.0, "fp32_flops": 2.0})
    # A polynomial as long as the device library's for erf or tanh.
    counted("extern_elementwise", {"sfu_ops": 1.0, "fp32_flops": 12.0})

    def dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        assert STATE.program is not None
        *batch, m, k = a.data.shape
        STATE.program.add("dot_flops", 2.0 * math.prod(batch) * m * k * b.data.shape[-1])
        return d

    def dot_scaled(self: Any, lhs: Any, *rest: Any) -> Any:
        accumulator = rest[-1]
        assert STATE.program is not None
        inner = lhs.data.shape[-1] * (2 if lhs.dtype.scalar == tl.uint8 else 1)
        STATE.program.add("dot_flops", 2.0 * accumulator.data.size * inner)
        return accumulator

    builder.create_dot, builder.create_dot_scaled = dot, dot_scaled


def _install_reductions() -> None:
    """Reductions and scans: counted; those with a combination of the kernel's own are not computed."""
    reduces, scans = _interpreter.ReduceOps, _interpreter.ScanOps

    def counted(kind: Any) -> None:
        plain = kind.apply_impl

        def apply(self: Any, tensors: Any) -> Any:
            each = tensors if isinstance(tensors, tuple) else (tensors,)
            shape = each[0].handle.data.shape
            length = shape[self.axis] if self.axis is not None else math.prod(shape)
            assert STATE.program is not None
            STATE.program.add("reduce_steps", math.ceil(math.log2(length)) if length > 1 else 0)
            STATE.program.add("fp32_flops", math.prod(shape) * len(each))
            return plain(self, tensors)

        kind.apply_impl = apply

    def first(self: Any, tensors: Any) -> Any:
        made = []
        for each in tensors:
            data = each.handle.data
            if self.axis is None:
                data = data.reshape(-1)[:1].reshape([1] * data.ndim) if self.keep_dims else data.reshape(-1)[0]
            else:
                data = data.take([0], axis=self.axis) if self.keep_dims else data.take(0, axis=self.axis)
            made.append(self.to_tensor(data, each.dtype))
        return made

    reduces.generic_reduce = first
    scans.generic_scan = lambda self, tensors: [self.to_tensor(t.handle.data, t.dtype) for t in tensors]
    counted(reduces)
    counted(scans)
