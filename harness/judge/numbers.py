"""Numbers as they travel and as they are compared: blobs to arrays and back, without torch.

A bfloat16 array is held as its bit patterns in uint16; `real` widens it. numpy has no such type.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tilewright.harness.worker.wire import Blob

Array: TypeAlias = npt.NDArray[Any]
Real: TypeAlias = npt.NDArray[np.float64]

SIGNIFICANT_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
"""Of each floating type, the implicit bit counted."""
SMALLEST_NORMAL = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}


def is_float(dtype: str) -> bool:
    """Whether a torch dtype's name is one whose values are compared as real numbers."""
    return dtype in SIGNIFICANT_BITS


def narrow_bf16(values: Array) -> npt.NDArray[np.uint16]:
    """The bfloat16 bit patterns nearest to float32 values, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    with np.errstate(over="ignore"):
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    narrow = np.where(nan, (bits >> np.uint32(16)) | np.uint32(0x40), rounded).astype(np.uint16)
    return narrow.reshape(np.shape(values))


def to_blob(values: Array, dtype: str) -> Blob:
    """Values as a blob of a torch dtype, rounded to nearest even where it is narrower."""
    if dtype == "bfloat16":
        array: Array = narrow_bf16(values)
    else:
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(values, dtype=np.dtype(dtype))
    return Blob(dtype, tuple(int(n) for n in values.shape), array.reshape(-1).view(np.uint8).data)


def array(blob: Blob) -> Array:
    """The elements as numpy holds them: bfloat16 as bit patterns in uint16."""
    kind = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}.get(blob.dtype, blob.dtype)
    return np.frombuffer(blob.data, dtype=np.dtype(kind)).reshape(blob.shape)


def real(blob: Blob) -> Real:
    """The elements of a floating blob as float64, exactly."""
    values = array(blob)
    if blob.dtype == "bfloat16":
        wide: Array = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return wide.astype(np.float64)
    return values.astype(np.float64)


def ulp(values: Real, dtype: str) -> Real:
    """Spacing of `dtype` at each value; at zero and among subnormals that of the smallest normal number."""
    _, exponent = np.frexp(np.maximum(np.abs(values), SMALLEST_NORMAL[dtype]))
    spacing: Real = np.ldexp(np.float64(1.0), exponent - SIGNIFICANT_BITS[dtype])
    return spacing
