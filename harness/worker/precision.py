"""The reference in other precisions than its own: far better, slightly disturbed, and plainly worse."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

LOW = frozenset([torch.float32, torch.float16, torch.bfloat16])
BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""Significant bits, the implicit one counted."""


class _Promoting(TorchFunctionMode):
    """Makes `x.float()`, `x.to(torch.float16)`, `dtype=torch.float32` and their kin mean float64."""

    _CASTS = frozenset(["float", "half", "bfloat16"])

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in self._CASTS and isinstance(args[0], torch.Tensor):
            return args[0].double()
        args = tuple(_promoted(arg) for arg in args)
        return func(*args, **{key: _promoted(value) for key, value in (kwargs or {}).items()})


def _promoted(arg: Any) -> Any:
    return torch.float64 if isinstance(arg, torch.dtype) and arg in LOW else arg


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """Compute in float64 whatever the code asks for: its own casts down are part of the error to be measured."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Promoting():
            yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def strict_precision(precision: str) -> Iterator[None]:
    """Products in the format of the contract on a device: torch would use tf32 in convolutions unasked."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "strict"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def to_float64(value: Any) -> Any:
    """A float64 copy of a floating tensor with the same strides; anything else as it is, tensors copied."""
    if not isinstance(value, torch.Tensor):
        return value
    if not value.dtype.is_floating_point:
        return value.clone()
    return value.to(torch.float64, copy=True)


def disturbed(value: Any, generator: torch.Generator) -> Any:
    """A float64 tensor with each element off by up to half a unit in the last place of float32, at random.

    What comes of that at the output is how much rounding any fp32 algorithm has to be allowed.
    """
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return value
    noise = torch.rand(value.shape, generator=generator, dtype=torch.float64) * 2 - 1
    return value * (1 + noise.to(value.device) * 2.0**-24)


def quantised(value: Any, bits: int) -> Any:
    """A floating tensor rounded to `bits` significant bits, in its own dtype; anything else as it is."""
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return value
    mantissa, exponent = torch.frexp(value.double())
    rounded = torch.ldexp(torch.round(mantissa * 2.0**bits), exponent - bits)
    return torch.where(torch.isfinite(value), rounded.to(value.dtype), value)


def lower_bits(dtype: torch.dtype, precision: str) -> int:
    """Significant bits of the next format below what a contract asks of `dtype`."""
    if dtype is torch.float64:
        return 24
    if dtype is torch.float32:
        return {"strict": 11, "tf32": 8, "half": 4}[precision]
    return 4 if dtype is torch.float16 else 3
