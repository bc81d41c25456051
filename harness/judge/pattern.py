"""Says where the wrong elements of an output lie: the tail, some rows, every k-th column, all of it."""

from __future__ import annotations

import numpy as np

from tilewright.harness.judge.numbers import Array


def pattern(wrong: Array) -> str:
    """One phrase for where a mask is true. The mask must be true somewhere."""
    count = int(wrong.sum())
    if count == wrong.size:
        return "every element is wrong"
    parts = []
    for axis in range(wrong.ndim):
        others = tuple(other for other in range(wrong.ndim) if other != axis)
        bad = np.flatnonzero(wrong.any(axis=others))
        if len(bad) < wrong.shape[axis]:
            parts.append(f"{_run(bad, wrong.shape[axis])} of dimension {axis}")
    where = ", all in " + " and ".join(parts) if parts else ", scattered"
    return f"{count} of {wrong.size} elements are wrong{where}"


def _run(bad: Array, size: int) -> str:
    """Indices in words: one, a range, a tail, a step."""
    first, last = int(bad[0]), int(bad[-1])
    if len(bad) == 1:
        return f"index {first}"
    steps = np.unique(np.diff(bad))
    if len(steps) == 1 and steps[0] == 1:
        return f"the tail from index {first}" if last == size - 1 else f"indices {first} to {last}"
    if len(steps) == 1:
        return f"every {int(steps[0])}th index from {first}"
    return f"{len(bad)} indices between {first} and {last}"
