"""Two gaps of Triton's interpreter, filled: float scalars, and the device library (`libdevice`).

A float argument stays a Python float in the interpreter, so `eps.to(tl.float32)` fails there alone; the compiler
makes it an fp32 scalar, and so do we. A libdevice function is compiled to a call of a `__nv_…` symbol, which the
interpreter cannot make; here each symbol has its meaning in numpy or torch, computed in float64 and rounded once.
A symbol without one refuses by name: never a wrong value.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from tilewright.harness.worker.failed import Failed

Function = Callable[..., Any]


def install_libdevice() -> None:
    """Make every libdevice function work in the interpreter, or refuse. Before the candidate is imported."""
    import triton.language.extra.cuda.libdevice as device_library
    import triton.language.extra.libdevice as stubs
    from triton.runtime import interpreter

    interpreter.InterpreterBuilder.create_extern_elementwise = _extern_elementwise
    for name, function in list(vars(device_library).items()):
        if hasattr(function, "__wrapped__") and not name.startswith("_"):
            for module in (device_library, stubs):
                setattr(module, name, _interpreted(function))


def install_scalars() -> None:
    """Make the interpreter treat a float argument of a kernel as the compiler does: an fp32 scalar."""
    from triton.runtime import interpreter

    convert = interpreter._implicit_cvt
    if getattr(convert, "wraps_floats", False):
        return

    @functools.wraps(convert)
    def converted(arg: Any) -> Any:
        return _fp32(arg) if type(arg) is float else convert(arg)

    converted.wraps_floats = True  # type: ignore[attr-defined]  # marks that it is installed
    interpreter._implicit_cvt = converted


def wrap_scalars(args: Mapping[str, Any]) -> dict[str, Any]:
    """A kernel's arguments, those not `tl.constexpr`, with Python floats as the fp32 scalars that they become."""
    return {name: _fp32(arg) if type(arg) is float else arg for name, arg in args.items()}


def _fp32(value: float) -> Any:
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return tl.tensor(TensorHandle(np.array([value], dtype=np.float32), tl.float32), tl.float32)


def _interpreted(function: Any) -> Function:
    """The library's own function, given the interpreter's semantic where the compiler would give its own."""
    from triton.runtime import interpreter

    plain = function.__wrapped__

    @functools.wraps(plain)
    def call(*args: Any, _semantic: Any = None, **kwargs: Any) -> Any:
        return plain(*args, _semantic=interpreter.interpreter_semantic, **kwargs)

    del call.__wrapped__  # so that installing twice changes nothing
    return call


def _extern_elementwise(
    builder: Any, library: str, path: str, symbol: str, args: list[Any], result: Any, pure: bool
) -> Any:
    from triton.runtime.interpreter import TensorHandle, _get_np_dtype

    function = _meaning(symbol)
    kind = _get_np_dtype(result)
    with np.errstate(all="ignore"):
        out = function(*(arg.data for arg in args))
    return TensorHandle(np.asarray(out).astype(kind, copy=False), result.scalar)


def _meaning(symbol: str) -> Function:
    """What `__nv_…` computes. Refuses an unknown one, for the interpreter would have to invent it."""
    name = symbol.removeprefix("__nv_")
    if name in _EXACT:
        return _EXACT[name]
    bare = name.removeprefix("fast_").removesuffix("f") if name.endswith("f") else name
    if bare in _REAL:
        return _in_float64(_REAL[bare])
    raise Failed("unsupported", f"the interpreter has no meaning for the device function {symbol}")


def _in_float64(function: Function) -> Function:
    def call(*args: Any) -> Any:
        return function(*(arg.astype(np.float64) if arg.dtype.kind == "f" else arg for arg in args))

    return call


def _torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Function:
    def call(x: Any) -> Any:
        return function(torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64))).numpy().reshape(x.shape)

    return call


def _round_half_away(x: Any) -> Any:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def _unsigned(x: Any) -> Any:
    return x.view(f"u{x.dtype.itemsize}")


def _popc(x: Any) -> Any:
    bits = np.unpackbits(np.ascontiguousarray(x).view(np.uint8).reshape(*x.shape, x.dtype.itemsize), axis=-1)
    return bits.sum(axis=-1).astype(np.int32)


def _clz(x: Any) -> Any:
    width = x.dtype.itemsize * 8
    return np.vectorize(lambda v: width - int(v).bit_length(), otypes=[np.int32])(_unsigned(x))


def _ffs(x: Any) -> Any:
    return np.vectorize(lambda v: (int(v) & -int(v)).bit_length(), otypes=[np.int32])(_unsigned(x))


def _brev(x: Any) -> Any:
    width = x.dtype.itemsize * 8
    flip = np.vectorize(lambda v: int(f"{int(v):0{width}b}"[::-1], 2), otypes=[_unsigned(x).dtype])
    return flip(_unsigned(x)).view(x.dtype)


def _mulhi(x: Any, y: Any) -> Any:
    shift = x.dtype.itemsize * 8
    return np.vectorize(lambda a, b: (int(a) * int(b)) >> shift, otypes=[x.dtype])(x, y)


def _byte_perm(x: Any, y: Any, selector: Any) -> Any:
    def pick(a: Any, b: Any, s: Any) -> int:
        both = (int(a) & 0xFFFFFFFF) | (int(b) & 0xFFFFFFFF) << 32
        value = sum(((both >> 8 * (int(s) >> 4 * i & 7)) & 0xFF) << 8 * i for i in range(4))
        return value - (1 << 32) if value >= 1 << 31 else value

    return np.vectorize(pick, otypes=[np.int32])(x, y, selector)


def _mul24(x: Any, y: Any) -> Any:
    def low(v: Any) -> Any:
        wide = v.astype(np.int64) & 0xFFFFFF
        return np.where(wide & 0x800000, wide - 0x1000000, wide) if v.dtype.kind == "i" else wide

    return (low(x) * low(y)).astype(x.dtype)


def _to_integer(rounding: Function, kind: type[np.integer[Any]]) -> Function:
    limits = np.iinfo(kind)

    def call(x: Any) -> Any:
        whole = np.nan_to_num(rounding(x.astype(np.float64)), nan=0.0, posinf=limits.max, neginf=limits.min)
        inside = np.clip(whole, limits.min, limits.max)
        # The largest 64-bit integer is no float64: what reaches it is saturated by hand.
        top = whole >= float(limits.max)
        return np.where(top, limits.max, np.where(top, 0, inside).astype(kind))

    return call


def _sinc_pi(function: Function) -> Function:
    return lambda x: function(np.pi * np.fmod(x, 2.0))


_REAL: dict[str, Function] = {
    **{name: getattr(np, name) for name in ("ceil", "cbrt", "cos", "cosh", "exp", "exp2", "expm1", "fabs")},
    **{name: getattr(np, name) for name in ("floor", "fmod", "hypot", "log", "log10", "log1p", "log2")},
    **{name: getattr(np, name) for name in ("rint", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "copysign")},
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "cospi": _sinc_pi(np.cos),
    "sinpi": _sinc_pi(np.sin),
    "exp10": lambda x: np.power(10.0, x),
    "pow": np.power,
    "powi": lambda x, n: np.power(x, n.astype(np.float64)),
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "rcbrt": lambda x: 1.0 / np.cbrt(x),
    "rhypot": lambda x, y: 1.0 / np.hypot(x, y),
    "norm3d": lambda x, y, z: np.sqrt(x * x + y * y + z * z),
    "rnorm3d": lambda x, y, z: 1.0 / np.sqrt(x * x + y * y + z * z),
    "norm4d": lambda x, y, z, w: np.sqrt(x * x + y * y + z * z + w * w),
    "rnorm4d": lambda x, y, z, w: 1.0 / np.sqrt(x * x + y * y + z * z + w * w),
    "fdim": lambda x, y: np.where(np.isnan(x) | np.isnan(y), np.nan, np.fmax(x - y, 0.0)),
    "fdivide": np.divide,
    "nearbyint": np.rint,
    "round": _round_half_away,
    "remainder": np.vectorize(
        lambda x, y: math.remainder(x, y) if math.isfinite(x) and y != 0.0 else math.nan, otypes=[np.float64]
    ),
    "logb": lambda x: np.where(x == 0.0, -np.inf, np.where(np.isinf(x), np.inf, np.frexp(x)[1] - 1.0)),
    "ldexp": np.ldexp,
    "scalbn": np.ldexp,
    "saturate": lambda x: np.clip(np.nan_to_num(x, nan=0.0), 0.0, 1.0),
    "erf": _torch(torch.special.erf),
    "erfc": _torch(torch.special.erfc),
    "erfcx": _torch(torch.special.erfcx),
    "erfinv": _torch(torch.special.erfinv),
    "erfcinv": _torch(lambda x: torch.special.ndtri(x / 2) / -math.sqrt(2.0)),
    "normcdf": _torch(torch.special.ndtr),
    "normcdfinv": _torch(torch.special.ndtri),
    "lgamma": _torch(torch.special.gammaln),
    "tgamma": np.vectorize(
        lambda x: math.gamma(x) if abs(x) < 171.0 and not (x <= 0.0 and x == int(x)) else math.nan,
        otypes=[np.float64],
    ),
    "j0": _torch(torch.special.bessel_j0),
    "j1": _torch(torch.special.bessel_j1),
    "y0": _torch(torch.special.bessel_y0),
    "y1": _torch(torch.special.bessel_y1),
    "cyl_bessel_i0": _torch(torch.special.i0),
    "cyl_bessel_i1": _torch(torch.special.i1),
}
"""By name without the `f` of fp32: of float64 arrays (integers as they are), rounded to the result afterwards."""

_ROUNDINGS: dict[str, Function] = {"rn": np.rint, "rd": np.floor, "ru": np.ceil, "rz": np.trunc}
_INTEGERS: dict[str, type[np.integer[Any]]] = {
    "int": np.int32,
    "uint": np.uint32,
    "ll": np.int64,
    "ull": np.uint64,
}

_EXACT: dict[str, Function] = {
    **{
        f"{source}2{word}_{mode}": _to_integer(rounding, kind)
        for source in ("float", "double")
        for word, kind in _INTEGERS.items()
        for mode, rounding in _ROUNDINGS.items()
    },
    # To nearest only: the directed roundings of a sum or a product have no counterpart in numpy.
    **{f"{word}2{to}_rn": lambda x: x for word in _INTEGERS for to in ("float", "double")},
    "double2float_rn": lambda x: x.astype(np.float32),
    **{f"{p}add_rn": np.add for p in "fd"},
    **{f"{p}sub_rn": np.subtract for p in "fd"},
    **{f"{p}mul_rn": np.multiply for p in "fd"},
    **{f"{p}div_rn": np.divide for p in "fd"},
    **{f"{p}sqrt_rn": np.sqrt for p in "fd"},
    **{f"{p}rcp_rn": np.reciprocal for p in "fd"},
    "frsqrt_rn": _in_float64(lambda x: 1.0 / np.sqrt(x)),
    # A product of two fp32 is exact in float64; the sum is then rounded twice, at worst half an ulp of float64 off.
    "fmaf": _in_float64(lambda x, y, z: x * y + z),
    "fmaf_rn": _in_float64(lambda x, y, z: x * y + z),
    "abs": np.abs,
    "llabs": np.abs,
    "fabs": np.abs,
    "fabsf": np.abs,
    "clz": _clz,
    "clzll": _clz,
    "popc": _popc,
    "popcll": _popc,
    "ffs": _ffs,
    "ffsll": _ffs,
    "brev": _brev,
    "brevll": _brev,
    "byte_perm": _byte_perm,
    "mul24": _mul24,
    "umul24": _mul24,
    **dict.fromkeys(("mulhi", "umulhi", "mul64hi", "umul64hi"), _mulhi),
    "sad": lambda x, y, z: np.abs(x.astype(np.int64) - y) + z,
    "usad": lambda x, y, z: np.abs(x.astype(np.int64) - y) + z,
    **{name: lambda x, y: (x.astype(np.int64) + y) >> 1 for name in ("hadd", "uhadd")},
    **{name: lambda x, y: (x.astype(np.int64) + y + 1) >> 1 for name in ("rhadd", "urhadd")},
    "float_as_int": lambda x: x.view(np.int32),
    "float_as_uint": lambda x: x.view(np.uint32),
    "int_as_float": lambda x: x.view(np.float32),
    "uint_as_float": lambda x: x.view(np.float32),
    "double_as_longlong": lambda x: x.view(np.int64),
    "longlong_as_double": lambda x: x.view(np.float64),
    "nextafter": np.nextafter,
    "nextafterf": np.nextafter,
    **dict.fromkeys(("isnanf", "isnand"), np.isnan),
    **dict.fromkeys(("isinff", "isinfd"), np.isinf),
    **dict.fromkeys(("finitef", "isfinited"), np.isfinite),
    **dict.fromkeys(("signbitf", "signbitd"), np.signbit),
    **{name: _to_integer(np.rint, np.int64) for name in ("llrint", "llrintf")},
    **{name: _to_integer(_round_half_away, np.int64) for name in ("llround", "llroundf")},
    **{name: _to_integer(lambda x: np.frexp(x)[1] - 1.0, np.int32) for name in ("ilogb", "ilogbf")},
}
"""By full name: where the argument's own type matters."""
