"""Whether a task can tell right from wrong: results that need no work must fail its own check.

Tried on each floating output, the others being right: zeros; the same output of another seed; its mean; an input
handed back; every second element doubled; and a run of the reference in the next lower precision. A task that lets
one of them pass is weak: a candidate's correctness is still reported, but no speed-up is claimed on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tilewright.harness.judge.contract import Expected, Output, check
from tilewright.harness.judge.numbers import array, is_float, real, to_blob
from tilewright.harness.worker.wire import Blob


def weaknesses(expected: Expected, other: Expected, inputs: Mapping[str, Blob]) -> list[str]:
    """Names of wrong results that the contract `expected` would accept; empty for a sound task.

    `other` is the contract of the same case under another seed, `inputs` are the inputs of `expected`.
    """
    right = {output.name: output.native for output in expected.outputs}
    twins = {output.name: output for output in other.outputs}
    found = []
    floats = [output for output in expected.outputs if is_float(output.native.dtype)]
    for output in floats or expected.outputs:
        for name, wrong in _wrongs(output, twins[output.name], inputs):
            if check(expected, {**right, output.name: wrong}).failure is None:
                found.append(f"{name} for {output.name}" if len(expected.outputs) > 1 else name)
    return found


def _wrongs(output: Output, twin: Output, inputs: Mapping[str, Blob]) -> Iterator[tuple[str, Blob]]:
    native = output.native
    shape, dtype = native.shape, native.dtype
    number = is_float(dtype)
    yield "zeros", Blob(dtype, shape, bytes(native.nbytes))
    if twin.native.shape == shape:
        yield "the result of other inputs", twin.native
        values = real(twin.native) if number else array(twin.native).astype(np.float64)
        finite = values[np.isfinite(values)]
        if finite.size and dtype != "bool":
            yield "the mean", to_blob(np.full(shape, finite.mean()), dtype)
    for name, value in inputs.items():
        if value.shape == shape and value.dtype == dtype and name != output.name.removeprefix("mutated:"):
            yield f"the input {name}", value
    if shape and shape[-1] > 1:
        plain = array(native)
        sampled = np.repeat(plain[..., ::2], 2, axis=-1)[..., : shape[-1]]
        if not np.array_equal(sampled, plain, equal_nan=number and dtype != "bfloat16"):
            data = np.ascontiguousarray(sampled).reshape(-1).view(np.uint8).data
            yield "every second element", Blob(dtype, shape, data)
    if number and output.lower is not None:
        yield "a run in lower precision", output.lower
