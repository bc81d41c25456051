"""When a result is right: every element, against the reference in float64, within what honest rounding needs.

For an output element with reference value r (float64), allowed is

    |found - r| <= min(P * s, k * max(e * s, n) + 2 ulp(r))

    P  the published tolerance by dtype (float32 1e-4, half precisions 1e-2), or the task's own
    s  the larger of |r| and the root mean square of r over the element's row (the last dimension; a vector is one
       row), so that nothing is measured by an absolute number that small outputs would hide under
    e  the root mean square of (error / s) over the whole output, of two kinds of error, the larger counting: of the
       reference itself in its own dtype, and of the float64 reference when its inputs are disturbed by half a unit
       in the last place of float32, which is what any backward-stable algorithm in float32 may do; at least an
       eighth of an ulp, for an error can be zero by luck
    n  the same kinds of error over the element's own row, absolute: rows where large numbers cancel
    k  max(16, 2 sqrt(K)), K the largest dimension of any input: the rounding of a sum of K terms in order grows
       with sqrt(K) beyond that of the pairwise sums that references use; 16 covers the largest of a million
       Gaussian errors three times over

Under `precision = "tf32"` (or `half`) the disturbance counts as one in the last place of that format, and P is 1e-2.
Positions of NaN and of each infinity must be those of the reference in its own dtype. Whole numbers and truth values
must be equal. Shape and dtype must be the reference's. Where the reference cannot run in float64, or disagrees with
itself there by more than P, it stands alone in its own dtype, within P * s, and the contract says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.harness.judge.numbers import SIGNIFICANT_BITS, Array, Real, array, is_float, real, ulp
from tilewright.harness.judge.pattern import pattern
from tilewright.harness.types import Failure, Json
from tilewright.harness.worker.wire import Blob

PUBLISHED = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}
"""Largest error relative to the output's scale, by dtype of the output."""
LOOSER = {"float64": 1e-4, "float32": 2e-2, "float16": 1e-1, "bfloat16": 1e-1}
"""What the next lower precision would reach: an error between the two is one of precision, not of meaning."""
PRECISION_BITS = {"strict": 24, "tf32": 11, "half": 8}
"""Significant bits that a contract lets an inner product's operands keep, of float32."""
MARGIN = 16.0
ULPS = 2.0


@dataclass(frozen=True, slots=True)
class Output:
    """What one result must be."""

    name: str
    """`out0`…, `mutated:ARGUMENT` or `state:NAME`."""
    native: Blob
    exact: Real | None
    """float64 values; None for whole numbers, which are compared with `native`."""
    allowed: Real | None
    scale: Real | None
    lower: Blob | None


@dataclass(frozen=True, slots=True)
class Expected:
    """What a candidate must compute on one set of inputs."""

    case: str
    seed: int
    outputs: tuple[Output, ...]
    notes: tuple[str, ...] = ()
    """What of the contract could not be had, such as a float64 reference."""


@dataclass(frozen=True, slots=True)
class Finding:
    """How a candidate's results compare."""

    failure: Failure | None
    detail: str
    errors: dict[str, Json]
    """Per output the largest error as a share of what was allowed, and the worst element when wrong."""


@np.errstate(invalid="ignore", over="ignore")
def expect(
    header: Mapping[str, Any],
    tensors: Mapping[str, Blob],
    *,
    case: str,
    seed: int,
    longest: int,
    precision: str = "strict",
    tolerance: float | None = None,
) -> Expected:
    """Make the contract of one set of inputs from the reference worker's reply.

    `longest` is the largest dimension of any input.
    """
    names = [name.removeprefix("native:") for name in tensors if name.startswith("native:")]
    notes: list[str] = []
    if header["exact"] != "float64":
        notes.append(f"float64 reference ({header['exact_note']})")
    outputs = []
    for name in names:
        native = tensors[f"native:{name}"]
        lower = tensors.get(f"lower:{name}")
        if not is_float(native.dtype):
            outputs.append(Output(name, native, None, None, None, lower))
            continue
        bound = PUBLISHED[native.dtype] if tolerance is None else tolerance
        if precision != "strict" and native.dtype == "float32" and tolerance is None:
            bound = PUBLISHED["float16"]
        exact = tensors.get(f"exact:{name}")
        moved = [tensors[key] for key in sorted(tensors) if key.startswith("moved") and key.endswith(f":{name}")]
        found = _tolerances(native, exact, moved, bound, longest, precision)
        if not found[3] and exact is not None:
            notes.append(
                f"float64 reference of {name} (it differs from the reference's own dtype by more than {bound:g})"
            )
        outputs.append(Output(name, native, found[0], found[1], found[2], lower))
    return Expected(case, seed, tuple(outputs), tuple(notes))


def _tolerances(
    native: Blob, exact: Blob | None, moved: list[Blob], bound: float, longest: int, precision: str
) -> tuple[Real, Real, Real, bool]:
    """Values to compare with, what is allowed, the scale, and whether the float64 reference was used."""
    own = real(native)
    values = own if exact is None else np.where(np.isfinite(own), real(exact), own)
    scale = _scale(values)
    usable = exact is not None and bool(np.all(_finite(np.abs(own - values)) <= bound * scale + _floor(own, native)))
    if not usable:
        scale = _scale(own)
        return own, bound * scale + ULPS * ulp(_finite(own), native.dtype), scale, False
    growth = 2.0 ** (PRECISION_BITS["strict"] - PRECISION_BITS[precision])
    kinds = [[np.abs(own - values)], [growth * np.abs(real(blob)) for blob in moved]]
    share = 2.0 ** -(SIGNIFICANT_BITS[native.dtype] - 1) / 8
    row: Real = np.zeros_like(scale)
    for errors in kinds:
        if errors:
            mean = np.mean([_finite(error) ** 2 for error in errors], axis=0)
            relative = np.divide(mean, scale**2, out=np.zeros_like(mean), where=scale > 0)
            share = max(share, math.sqrt(float(relative.mean()))) if relative.size else share
            row = np.maximum(row, np.sqrt(_row_mean(mean)))
    margin = max(MARGIN, 2.0 * math.sqrt(longest))
    honest = margin * np.maximum(share * scale, row) + ULPS * ulp(_finite(values), native.dtype)
    return values, np.minimum(np.maximum(bound * scale, _floor(values, native)), honest), scale, True


def _floor(values: Real, native: Blob) -> Real:
    return ULPS * ulp(_finite(values), native.dtype)


def _finite(values: Real) -> Real:
    return np.where(np.isfinite(values), values, 0.0)


def _row_mean(values: Real) -> Real:
    """Means over rows, spread over their elements."""
    if values.ndim == 0 or not values.size:
        return values
    return np.broadcast_to(values.mean(axis=-1, keepdims=True), values.shape)


def _scale(values: Real) -> Real:
    finite = _finite(values)
    return np.asarray(np.maximum(np.abs(finite), np.sqrt(_row_mean(finite**2))))


# --- comparing --------------------------------------------------------------------------------------------


@np.errstate(invalid="ignore", over="ignore")
def check(expected: Expected, found: Mapping[str, Blob]) -> Finding:
    """Compare a candidate's results with what they must be, all elements of all outputs."""
    errors: dict[str, Json] = {}
    worst: tuple[Failure, str] | None = None
    wanted = {output.name for output in expected.outputs}
    results = {name for name in found if name.startswith("out")}
    if results != {name for name in wanted if name.startswith("out")}:
        count = sum(name.startswith("out") for name in wanted)
        return Finding(Failure.WRONG, f"expected {count} results, found {len(results)}", {})
    for output in expected.outputs:
        if output.name not in found:
            return Finding(Failure.WRONG, f"{output.name} is missing", errors)
        failure, detail, report = _one(output, found[output.name])
        errors[output.name] = report
        if failure and (worst is None or worst[0] is Failure.PRECISION):
            worst = (failure, f"{output.name}: {detail}" if len(expected.outputs) > 1 else detail)
    if worst is None:
        return Finding(None, "", errors)
    return Finding(worst[0], f"case {expected.case!r}, seed {expected.seed}: {worst[1]}", errors)


def _one(output: Output, found: Blob) -> tuple[Failure | None, str, Json]:
    native = output.native
    if found.shape != native.shape or found.dtype != native.dtype:
        detail = f"expected {native.dtype}{list(native.shape)}, found {found.dtype}{list(found.shape)}"
        return Failure.WRONG, detail, None
    if output.exact is None or output.allowed is None or output.scale is None:
        return _whole(array(native), array(found))
    own, values, exact = real(native), real(found), output.exact
    mismatch = _special(own) != _special(values)
    if mismatch.any():
        at = _first(mismatch)
        nan = " (NaN: perhaps never written)" if math.isnan(values[at]) else ""
        detail = f"expected {own[at]:.9g} at {_index(at)}, found {values[at]:.9g}{nan}; {pattern(mismatch)}"
        return Failure.WRONG, detail, {"worst": _element(at, exact, values, output.allowed)}
    error = np.where(np.isfinite(own), np.abs(_finite(values) - _finite(exact)), 0.0)
    share = error / output.allowed
    at = _first(share == share.max()) if share.size else ()
    report: dict[str, Json] = {"share_of_allowed": float(share.max()) if share.size else 0.0}
    if not share.size or share[at] <= 1.0:
        return None, "", report
    report["worst"] = _element(at, exact, values, output.allowed)
    loose = LOOSER[native.dtype] * output.scale + output.allowed
    failure = Failure.PRECISION if bool(np.all(error <= loose)) else Failure.WRONG
    detail = (
        f"expected {exact[at]:.9g} at {_index(at)}, found {values[at]:.9g}, "
        f"off by {error[at]:.3g} where {output.allowed[at]:.3g} is allowed; {pattern(share > 1.0)}"
    )
    return failure, detail, report


def _whole(expected: Array, found: Array) -> tuple[Failure | None, str, Json]:
    different = expected != found
    if not different.any():
        return None, "", {"share_of_allowed": 0.0}
    at = _first(different)
    detail = f"expected {expected[at]} at {_index(at)}, found {found[at]}; {pattern(different)}"
    return (
        Failure.WRONG,
        detail,
        {"worst": {"index": _index(at), "expected": int(expected[at]), "found": int(found[at])}},
    )


def _special(values: Real) -> Array:
    """0 for a finite element, else which of NaN and the infinities it is."""
    return np.select([np.isnan(values), np.isposinf(values), np.isneginf(values)], [1, 2, 3], 0)


def _first(where: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(where)), where.shape))


def _index(at: tuple[int, ...]) -> Json:
    return list(at)


def _element(at: tuple[int, ...], expected: Real, found: Real, allowed: Real) -> Json:
    numbers = {"expected": expected[at], "found": found[at], "allowed": allowed[at]}
    # JSON has no NaN and no infinity: a number that is not finite is written as its name.
    return {"index": _index(at), **{k: float(v) if math.isfinite(v) else str(float(v)) for k, v in numbers.items()}}
