"""Reduced sizes: cases small enough to interpret, derived from the full ones where a task names none.

They must still find what goes wrong at the edges, so sizes are odd and even, primes, one, one more and one
less than powers of two, multiples of 16 (where accesses vectorise), and the full width of the innermost
size over a few rows (where block sizes and the choice of kernel depend on it).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from tilewright.harness.tasks.spec import SpecError, divisions_in, resolve_one, uses
from tilewright.harness.types import Case, Scalar, Tensor, TensorSpec

SMALL = 16
"""A size up to this is a property of the operator (heads, a kernel's width), not of the load: it is kept."""

ELEMENTS = 1 << 16
"""The most elements in one reduced tensor: about half a second in the interpreter."""

WIDE = 1 << 17
"""The same for a check that keeps the innermost size in full."""

WORK = 1 << 21
"""The most that all sizes may multiply to, which is what a product costs: about a tenth of a second."""

Sizes: TypeAlias = dict[str, int]

# Sizes from the innermost outwards; the last repeats.
_ODD = (257, 5, 3), (31, 1), (97, 33, 2)
"""One more than a power of two over few rows; one less, in a single row; a prime over more rows."""
_EVEN = (48, 64, 32), (128, 16)
_FULL, _FULL_LESS_ONE = 0, -1
"""Stand for the full size and one less than it."""


def title(bindings: Mapping[str, Scalar]) -> str:
    """A case's name when it has none: `M=4096 N=4096 T=float16`."""
    return " ".join(f"{name}={value}" for name, value in bindings.items()) or "only"


# --- tasks with declared arguments -----------------------------------------------------------------------


def reduced(args: Mapping[str, TensorSpec | Scalar], cases: Sequence[Case]) -> tuple[Case, ...]:
    """Reduced cases for a task: every combination of dtypes with tails and with full vectors.

    Sizes that are small in all cases stay. Names divided by another (`H // G`), or always a multiple of it
    by an odd factor, stay multiples; names that are always equal though they vary stay equal. Empty where no
    reduction makes sense of the arguments.
    """
    found: dict[str, Case] = {}
    for base, row in _plan(args, cases):
        case = _fitted(args, cases, base, row)
        if case is not None:
            found.setdefault(case.name, case)
    return tuple(found.values())


def _plan(args: Mapping[str, TensorSpec | Scalar], cases: Sequence[Case]) -> Iterator[tuple[Case, tuple[int, ...]]]:
    seen: set[tuple[Scalar, ...]] = set()
    for case in cases:
        words = tuple(v for v in case.bindings.values() if not _is_number(v))
        rows = () if words in seen else (*_ODD, _EVEN[0]) if not seen else (_ODD[0], _EVEN[1])
        yield from ((case, row) for row in rows)
        seen.add(words)
    for i, case in enumerate(cases):
        yield case, (_FULL, 3, 1)
        if i == 0:
            yield case, (_FULL_LESS_ONE, 2, 1)


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _innermost_first(args: Mapping[str, TensorSpec | Scalar]) -> list[str]:
    """Names of sizes, by how far in they occur in any tensor."""
    depth: dict[str, int] = {}
    for spec in args.values():
        if isinstance(spec, TensorSpec):
            for i, text in enumerate(reversed(spec.shape)):
                part = TensorSpec(shape=(text,), dtype="bool")
                for use in uses(part):
                    if use.role == "size":
                        depth[use.name] = min(depth.get(use.name, i), i)
    return sorted(depth, key=lambda name: depth[name])


def _free(args: Mapping[str, TensorSpec | Scalar], cases: Sequence[Case]) -> list[str]:
    """Names of sizes that may shrink, innermost first."""
    return [
        name
        for name in _innermost_first(args)
        if any(isinstance(n := case.bindings.get(name), int) and n > SMALL for case in cases)
    ]


def _numbers(name: str, cases: Sequence[Case]) -> list[int]:
    values = [case.bindings.get(name) for case in cases]
    return [v for v in values if isinstance(v, int)]


def _fitted(
    args: Mapping[str, TensorSpec | Scalar], cases: Sequence[Case], base: Case, row: tuple[int, ...]
) -> Case | None:
    """The base case with a row's sizes, shrunk from the outermost size inwards until it is cheap enough."""
    free = _free(args, cases)
    if not free:
        return Case(name=base.name, bindings=base.bindings)
    wanted = [*row, *row[-1:] * len(free)]
    full = row[0] in (_FULL, _FULL_LESS_ONE)
    sizes: Sizes = {}
    for name, want in zip(free, wanted, strict=False):
        most = max(_numbers(name, cases))
        if want in (_FULL, _FULL_LESS_ONE):
            sizes[name] = max(1, _numbers(name, [base])[0] + want)
        elif want > most:
            sizes[name] = most // 16 * 16 if want % 16 == 0 and most >= 16 else most - 1
        else:
            sizes[name] = want
    while True:
        related = _related(args, cases, base, sizes)
        bindings = {**base.bindings, **related}
        try:
            tensors = [t for k, v in args.items() if isinstance(t := resolve_one(k, v, bindings), Tensor)]
        except SpecError:
            return None
        largest = max(math.prod(t.shape) for t in tensors)
        if largest <= (WIDE if full else ELEMENTS) and math.prod(related[n] for n in free) <= WORK:
            return Case(name=title(bindings), bindings=bindings)
        shrinkable = [n for n in reversed(free[1:] if full else free) if sizes[n] > 1]
        if not shrinkable:
            return None
        sizes[shrinkable[0]] //= 2


def _related(args: Mapping[str, TensorSpec | Scalar], cases: Sequence[Case], base: Case, sizes: Sizes) -> Sizes:
    """The sizes with what holds between names in all cases made to hold again."""
    free, out = list(sizes), dict(sizes)
    for a in free:
        twins = [b for b in free if b != a and _numbers(b, cases) == _numbers(a, cases)]
        if twins and len(set(_numbers(a, cases))) > 1:
            out[a] = out[min([a, *twins], key=free.index)]
    kept = {n: v for n, v in base.bindings.items() if _is_number(v) and n not in free and isinstance(v, int)}
    divided = {pair for spec in args.values() for pair in _divisions(spec)}
    for a in free:
        for b in [*kept, *free]:
            if b == a or not (((a, b) in divided) or _odd_multiple(a, b, cases)):
                continue
            if b in free:
                out[b] = min(out[b], SMALL + 1)
            unit = kept.get(b, out.get(b, 1))
            out[a] = unit * max(1, out[a] // unit) if unit > 0 else out[a]
        least = [v for n, v in kept.items() if all(x <= y for x, y in _pairs(n, a, cases))]
        out[a] = max([out[a], *(v for v in least if v > 1)])
    return out


def _divisions(spec: TensorSpec | Scalar) -> set[tuple[str, str]]:
    if not isinstance(spec, TensorSpec):
        return set()
    return {pair for text in (*spec.shape, *(spec.strides or ())) for pair in divisions_in(text)}


def _pairs(a: str, b: str, cases: Sequence[Case]) -> list[tuple[int, int]]:
    return list(zip(_numbers(a, cases), _numbers(b, cases), strict=False))


def _odd_multiple(a: str, b: str, cases: Sequence[Case]) -> bool:
    """Whether a is always a multiple of b by a factor that no power of two explains."""
    pairs = _pairs(a, b, cases)
    return all(y > 1 and x % y == 0 and x > y for x, y in pairs) and any(
        (f := x // y) & (f - 1) or y & (y - 1) for x, y in pairs
    )


# --- KernelBench files -----------------------------------------------------------------------------------


def reduced_constants(constants: Mapping[str, int]) -> tuple[Case, ...]:
    """Reduced cases for a KernelBench file, by its constants; how they combine into shapes is not known.

    Small constants stay; what they divide stays a multiple of them, so that groups and heads still divide
    channels; equal sizes stay equal, and the order of sizes stays, so that a window still fits.
    """
    large = sorted({v for v in constants.values() if v > SMALL})
    number = sum(v > SMALL for v in constants.values())
    small = math.prod(v for v in constants.values() if 1 < v <= SMALL)
    share = int((ELEMENTS / min(small, ELEMENTS)) ** (1 / max(1, number)))
    budget = min(257, max(SMALL + 1, share))
    units = {v for name, v in constants.items() if 1 < v <= SMALL and "batch" not in name.lower()}
    found: dict[str, Case] = {}
    for want, align in ((budget | 1, 1), (max(SMALL + 3, budget // 2) | 1, 1), (budget // 16 * 16, 16)):
        new: dict[int, int] = {}
        previous = SMALL
        for value in large:
            unit = math.lcm(align, *(u for u in units if value % u == 0))
            size = -(-max(previous + 1, want) // unit) * unit
            previous = new[value] = min(value, size)
        bindings = {name: new.get(v, v) for name, v in constants.items()}
        case = Case(name=title(bindings) if bindings else "as given", bindings=dict(bindings))
        found.setdefault(case.name, case)
    return tuple(found.values())
