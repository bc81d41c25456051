"""Makes Triton's interpreter compute with narrow floats as a device does, or refuse. It is silently wrong by itself.

The interpreter keeps bfloat16 as its 16 bits in a uint16 array, so that sums, products, reductions and dots of
them add and multiply bit patterns; its casts to bfloat16 truncate. Here a bfloat16 value in a register is a
float32 array whose elements all are bfloat16 numbers: loads widen, stores narrow, and *every* handle of that type
is rounded to nearest even when it is made, whatever operation made it. A handle with 16-bit patterns in it means
that some operation was overlooked, and is refused loudly. float8 is refused.

A float32 dot under `tf32` (the default) loses the low 13 bits of its operands, as the tensor cores ignore them:
the interpreter would compute it exactly and pass a kernel that fails on the device. `tf32x3` and `ieee` stay exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton._C.libtriton import interpreter as _native
from triton._C.libtriton import ir as _ir
from triton.runtime import interpreter as _interpreter

from tilewright.harness.worker.outcome import Unsupported

Array = npt.NDArray[Any]

_TF32_MASK = np.uint32(0xFFFFE000)


def round_bf16(values: Array) -> npt.NDArray[np.float32]:
    """float32 values rounded to the nearest bfloat16 (ties to even), still as float32. NaN and infinity stay."""
    return widen_bf16(narrow_bf16(values))


def narrow_bf16(values: Array) -> npt.NDArray[np.uint16]:
    """The bfloat16 bit patterns nearest to float32 values, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    with np.errstate(over="ignore"):
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    narrow = np.where(nan, (bits >> np.uint32(16)) | np.uint32(0x40), rounded).astype(np.uint16)
    return narrow.reshape(np.shape(values))


def widen_bf16(bits: Array) -> npt.NDArray[np.float32]:
    """float32 values of bfloat16 bit patterns."""
    wide = np.ascontiguousarray(bits).astype(np.uint32) << np.uint32(16)
    return wide.view(np.float32).reshape(np.shape(bits))


def truncate_tf32(values: Array) -> npt.NDArray[np.float32]:
    """float32 values with the 13 bits that a tf32 tensor core does not read set to zero."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) & _TF32_MASK
    return bits.view(np.float32).reshape(np.shape(values))


def _is_bf16(dtype: Any) -> bool:
    return not isinstance(dtype, tl.pointer_type) and dtype.scalar == tl.bfloat16


def _is_fp8(dtype: Any) -> bool:
    return bool(dtype.is_fp8())


def install() -> None:
    """Patch the interpreter of this process, for good."""
    builder = _interpreter.InterpreterBuilder
    if getattr(builder, "_tilewright_floats", False):
        return
    builder._tilewright_floats = True
    _install_registers()
    _install_memory(builder)
    _install_casts(builder)
    _install_dot(builder)


def _install_registers() -> None:
    plain_size, plain_dtype = _interpreter._validate_np_data_size, _interpreter._get_np_dtype

    def size_fits(data: Array, dtype: Any) -> bool:
        return data.itemsize <= 4 if _is_bf16(dtype) else bool(plain_size(data, dtype))

    def np_dtype(dtype: Any) -> Any:
        return np.dtype(np.float32) if _is_bf16(dtype) else plain_dtype(dtype)

    def after_init(self: Any) -> None:
        if isinstance(self.dtype, tl.pointer_type):
            return
        scalar = self.dtype.scalar
        if isinstance(scalar, tl.pointer_type):
            return
        if _is_fp8(scalar):
            raise Unsupported(f"{scalar} is not computed faithfully by Triton's interpreter")
        if scalar == tl.bfloat16 and self.data.dtype != np.bool_:  # comparisons keep their operands' type
            if not np.issubdtype(self.data.dtype, np.floating):
                raise Unsupported(f"an operation on bfloat16 gave {self.data.dtype} in Triton's interpreter")
            self.data = round_bf16(self.data)
        if not size_fits(self.data, self.dtype):
            raise ValueError(f"{self.data.dtype} does not fit {self.dtype}")

    _interpreter._validate_np_data_size = size_fits
    _interpreter._get_np_dtype = np_dtype
    _interpreter.TensorHandle.__post_init__ = after_init


def _install_memory(builder: Any) -> None:
    plain_load, plain_store = builder.create_masked_load, builder.create_masked_store
    plain_rmw, plain_cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def load(self: Any, ptrs: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        if ptrs.get_element_ty() != tl.bfloat16:
            return plain_load(self, ptrs, mask, other, *rest, **named)
        instead = np.zeros_like(ptrs.data, dtype=np.uint16) if other is None else narrow_bf16(other.data)
        bits = _native.load(ptrs.data, mask.data, instead, np.dtype(np.uint16))
        return _interpreter.TensorHandle(widen_bf16(bits), tl.bfloat16)

    def store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        if ptrs.get_element_ty() != tl.bfloat16:
            return plain_store(self, ptrs, value, mask, *rest, **named)
        return _native.store(ptrs.data, narrow_bf16(value.data), mask.data)

    def rmw(self: Any, op: Any, ptr: Any, *rest: Any, **named: Any) -> Any:
        if ptr.get_element_ty() == tl.bfloat16:
            raise Unsupported("Triton's interpreter has no atomic operations on bfloat16")
        return plain_rmw(self, op, ptr, *rest, **named)

    def cas(self: Any, ptr: Any, *rest: Any, **named: Any) -> Any:
        if ptr.get_element_ty() == tl.bfloat16:
            raise Unsupported("Triton's interpreter has no atomic operations on bfloat16")
        return plain_cas(self, ptr, *rest, **named)

    builder.create_masked_load, builder.create_masked_store = load, store
    builder.create_atomic_rmw, builder.create_atomic_cas = rmw, cas


def _install_casts(builder: Any) -> None:
    handle = _interpreter.TensorHandle

    def cast(self: Any, src: Any, dst_type: Any) -> Any:
        to = dst_type.scalar
        data = src.data.astype(_interpreter._get_np_dtype(to))
        return handle(data, to)

    def fp_to_fp(self: Any, src: Any, dst_type: Any, rounding: Any) -> Any:
        source, to = src.dtype.scalar, dst_type.scalar
        if _is_fp8(source) or _is_fp8(to):
            raise Unsupported(f"a cast from {source} to {to} is not faithful in Triton's interpreter")
        if rounding == _ir.ROUNDING_MODE.RTZ and to == tl.bfloat16:
            bits = np.ascontiguousarray(src.data, dtype=np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
            return handle(bits.view(np.float32).reshape(src.data.shape), to)
        if rounding == _ir.ROUNDING_MODE.RTZ and to.primitive_bitwidth < source.primitive_bitwidth:
            nearest = src.data.astype(_interpreter._get_np_dtype(to))
            over = np.abs(nearest.astype(src.data.dtype)) > np.abs(src.data)
            return handle(np.where(over, np.nextafter(nearest, np.zeros_like(nearest)), nearest), to)
        return cast(self, src, dst_type)

    def bitcast(self: Any, src: Any, dst_type: Any) -> Any:
        data = narrow_bf16(src.data) if _is_bf16(src.dtype) else src.data
        if _is_bf16(dst_type):
            return handle(widen_bf16(np.ascontiguousarray(data).view(np.uint16)), tl.bfloat16)
        data = np.ascontiguousarray(data).reshape(src.data.shape)
        return handle(data.view(_interpreter._get_np_dtype(dst_type)), dst_type.scalar)

    plain_fabs = builder.create_fabs

    def fabs(self: Any, arg: Any) -> Any:
        return handle(np.abs(arg.data), tl.bfloat16) if _is_bf16(arg.dtype) else plain_fabs(self, arg)

    def get_bf16(self: Any, value: float) -> Any:
        return handle(np.array([value], dtype=np.float32), tl.bfloat16)

    names = ["si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc"]
    for name in names:
        setattr(builder, f"create_{name}", cast)
    builder.cast_impl, builder.create_fp_to_fp, builder.create_bitcast = cast, fp_to_fp, bitcast
    builder.create_fabs, builder.get_bf16 = fabs, get_bf16


def _install_dot(builder: Any) -> None:
    plain_dot = builder.create_dot
    handle = _interpreter.TensorHandle

    def dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, *rest: Any) -> Any:
        if input_precision == _ir.INPUT_PRECISION.TF32 and a.dtype.scalar == tl.float32:
            a = handle(truncate_tf32(a.data), a.dtype)
            b = handle(truncate_tf32(b.data), b.dtype)
        return plain_dot(self, a, b, d, input_precision, *rest)

    def dot_scaled(self: Any, *args: Any, **named: Any) -> Any:
        raise Unsupported("tl.dot_scaled is not computed faithfully by Triton's interpreter")

    builder.create_dot, builder.create_dot_scaled = dot, dot_scaled
