"""What following a kernel finds: meanings of expressions, loops, and places where memory is touched."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

Shape = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """What an expression means: a canonical text, and its shape with symbolic extents (None: not known)."""

    text: str
    shape: Shape | None = ()
    terms: tuple[str, ...] = ()
    """The summands, where it is a sum."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The summands; the text itself when it is no sum."""
        return self.terms or (self.text,)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Loop:
    """A `for` over a range."""

    node: cst.For
    var: str
    start: str
    """Canonical texts of the range's bounds and step."""
    stop: str
    step: str
    kind: str
    """`range`, `tl.range` or `tl.static_range`, without the prefix: `range` or `static_range`."""
    token: str
    """The loop variable's canonical text; equal for loops over equal ranges."""
    carried: frozenset[str]
    """Names bound before the loop and bound again in it."""
    entry: dict[str, Value]
    """What each carried name was before the loop."""
    inside: dict[str, Value]
    """What each carried name is at the start of a round."""
    outer: tuple[Loop, ...]
    path: tuple[cst.CSTNode, ...]
    order: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Access:
    """A place where a kernel reads, writes or synchronises memory."""

    kind: str
    """`load`, `store`, `atomic`, `barrier`, or `call` (a function with effects)."""
    call: cst.Call
    pointer: Value
    mask: Value | None
    other: Value | None
    value: Value | None
    root: str | None
    """The pointer parameter that the address is computed from; None when that is not certain."""
    loops: tuple[Loop, ...]
    """Enclosing loops, outermost first."""
    path: tuple[cst.CSTNode, ...]
    """Enclosing blocks, outermost first, from the kernel's body."""
    statement: cst.CSTNode
    order: int


@dataclass(slots=True, eq=False)
class Flow:
    """What was found while following one kernel."""

    values: dict[cst.BaseExpression, Value] = field(default_factory=dict)
    """Every expression of the body, by identity."""
    accesses: list[Access] = field(default_factory=list)
    """In program order."""
    loops: list[Loop] = field(default_factory=list)
    """In program order, outer before inner."""
    unclear: list[str] = field(default_factory=list)
    """Constructs that were not followed; a rewrite that depends on all effects must refuse when there are any."""


def broadcast(*shapes: Shape | None) -> Shape | None:
    """The shape of an elementwise result; None when one is unknown or two extents cannot be shown to agree."""
    out: list[str] = []
    for shape in shapes:
        if shape is None:
            return None
        padded = ["1"] * (len(shape) - len(out)) + out
        given = ["1"] * (len(padded) - len(shape)) + list(shape)
        out = []
        for a, b in zip(padded, given, strict=True):
            if a != b and "1" not in (a, b):
                return None
            out.append(b if a == "1" else a)
    return tuple(out)
