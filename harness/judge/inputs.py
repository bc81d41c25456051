"""Draws the values that a candidate is tried on. The judge alone does it, from a key that names what for.

Philox, keyed by (seed, case, argument), so that any value can be drawn again by anyone who knows the seed. A
tensor travels as its elements in C order; a worker lays them out with the strides that the task asks for. Where
strides make elements share memory, the shared elements are equal, because the memory is what is drawn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from tilewright.harness.errors import TaskProblem
from tilewright.harness.judge.numbers import Array, is_float, to_blob
from tilewright.harness.types import Json, Scalar, Tensor
from tilewright.harness.worker.wire import ITEM_BYTES, Blob


def generator(seed: int, case: str, argument: str) -> np.random.Generator:
    """The generator that draws one argument of one case."""
    key = hashlib.sha256(f"{seed}\0{case}\0{argument}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key[:16], dtype=np.uint64)))


def draw(tensor: Tensor, *, seed: int, case: str) -> Blob:
    """The values of one tensor argument. Raises TaskProblem for a dtype that cannot be drawn."""
    if tensor.dtype not in ITEM_BYTES or tensor.dtype.startswith("float8"):
        raise TaskProblem(f"argument {tensor.name}: values of type {tensor.dtype} cannot be drawn", "use another dtype")
    source = generator(seed, case, tensor.name)
    if tensor.strides is None:
        return to_blob(_values(tensor, source, tensor.shape), tensor.dtype)
    size = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))
    storage = _values(tensor, source, (size,))
    steps = tuple(s * storage.itemsize for s in tensor.strides)
    view = np.lib.stride_tricks.as_strided(storage, tensor.shape, steps)
    return to_blob(np.ascontiguousarray(view), tensor.dtype)


def _values(tensor: Tensor, source: np.random.Generator, shape: tuple[int, ...]) -> Array:
    whole = not is_float(tensor.dtype)
    if tensor.values == "integers" or whole:
        low, high = int(tensor.low), int(tensor.high)
        kind = np.dtype(tensor.dtype) if whole and tensor.dtype != "bool" else np.dtype(np.int64)
        try:
            drawn: Array = source.integers(low, high, size=shape, dtype=kind)
        except ValueError as error:
            raise TaskProblem(
                f"argument {tensor.name}: integers [{low}, {high}) do not fit {tensor.dtype}", "mend the range"
            ) from error
        return drawn if whole else drawn.astype(np.float64)
    kind32 = np.float64 if tensor.dtype == "float64" else np.float32
    if tensor.values == "uniform":
        return np.asarray(tensor.low + (tensor.high - tensor.low) * source.random(shape, dtype=kind32), kind32)
    return source.standard_normal(shape, dtype=kind32)


def described(resolved: Mapping[str, Tensor | Scalar]) -> list[Json]:
    """The arguments as a job's header lists them, in the order of the entry's parameters."""
    listing: list[Json] = []
    for name, value in resolved.items():
        if isinstance(value, Tensor):
            tensor: dict[str, Json] = {
                "shape": list(value.shape),
                "dtype": value.dtype,
                "strides": None if value.strides is None else list(value.strides),
                "values": value.values,
                "low": value.low,
                "high": value.high,
            }
            listing.append({"name": name, "tensor": tensor})
        else:
            listing.append({"name": name, "scalar": value})
    return listing


def drawn(resolved: Mapping[str, Tensor | Scalar], *, seed: int, case: str) -> dict[str, Blob]:
    """The values of every tensor argument of a case, by name."""
    return {n: draw(t, seed=seed, case=case) for n, t in resolved.items() if isinstance(t, Tensor)}
