"""What a worker's answer must look like before the judge reads a word of it: foreign code can write any frame.

One shape for each operation. Numbers are finite and not negative, and an index points at something. An answer of
another shape is the job's failure, as if its process had written no answer at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tilewright.harness.types import Failure
from tilewright.harness.worker.wire import FrameError

Fits: TypeAlias = Callable[[Any], bool]

MOST = 2**63
"""Nothing that is counted here is as large."""
TASK = "task"
"""The word for a failure that is the task's and not the candidate's."""


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST


def _amount(value: Any) -> bool:
    return _count(value) or (isinstance(value, float) and math.isfinite(value) and 0 <= value < MOST)


def _fact(value: Any) -> bool:
    return _text(value) or isinstance(value, bool) or _amount(value)


def _grid(value: Any) -> bool:
    return _each(_count)(value) and len(value) == 3


def _each(fits: Fits) -> Fits:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _by_name(fits: Fits) -> Fits:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def _by_line(value: Any) -> bool:
    """Numbers by source line, whose number JSON makes a text."""
    return _by_name(_amount)(value) and all(line.isdecimal() for line in value)


def _with(**fields: Fits) -> Fits:
    return lambda value: isinstance(value, dict) and all(n in value and f(value[n]) for n, f in fields.items())


def _facts(value: Any) -> bool:
    whole = ("num_warps", "registers", "shared_bytes")
    return _by_name(_fact)(value) and all(_count(value.get(name, 0)) for name in whole)


_LINES = _with(load=_by_line, store=_by_line)
_AUTOTUNED = _each(_with(kernel=_text, index=_count, configs=_count, config=_text))
_RAN: dict[str, Fits] = {"changed": _each(_text), "autotuned": _AUTOTUNED}
_COMPILED: dict[str, Fits] = {
    "kernels": _each(_with(kernel=_text, grid=_grid, launches=_count, facts=_facts, digest=_text, lines=_LINES)),
    "order": _each(_count),
    "autotuned": _AUTOTUNED,
}
SHAPES: dict[str, dict[str, Fits]] = {
    "interpret": {**_RAN, "rewritten": _each(_text), "ran": _with(kernels=_each(_text), operations=_each(_text))},
    "compile": {**_COMPILED, "compulsory_bytes": _count, "result_bytes": _count},
    "census": {
        "launches": _each(_with(kernel=_text, grid=_grid, counts=_by_name(_amount), lines=_LINES)),
        "order": _each(_count),
    },
    "reference": {"exact": _text, "track": _each(_text)},
    "measure": {**_RAN, **_COMPILED},
}
"""By operation. Of a job that times, this is what it says half-way."""
_LISTED = {"compile": "kernels", "measure": "kernels", "census": "launches"}
"""What `order` points into."""
_FAILED = _with(failure=lambda word: word == TASK or word in set(Failure), detail=_text)


def demand(operation: str, reply: Mapping[str, Any]) -> None:
    """Raise FrameError where a reply to a job of `operation` has not the shape that is read here."""
    if "failed" in reply:
        said = reply["failed"]
        if not (_FAILED(said) and _text(said.get("trace", "")) and (said.get("line") is None or _count(said["line"]))):
            raise FrameError("its failure is none that there is")
        return
    for name, fits in SHAPES.get(operation, {}).items():
        if name not in reply or not fits(reply[name]):
            raise FrameError(f"`{name}` is not what a reply to {operation} holds")
    listed = _LISTED.get(operation)
    if listed and any(index >= len(reply[listed]) for index in reply["order"]):
        raise FrameError(f"`order` points past the end of `{listed}`")
