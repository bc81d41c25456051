"""Full tiles without a mask: the part of a kernel's work that lies wholly inside its bound is split off.

A mask `offsets < n` keeps an access from being wide unless n is known to be divisible. A tile that ends before n
needs no mask at all; only the last one does. A flat kernel gets a branch, a loop is cut at the last full tile.
What is computed, and in which order, stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from tilewright.knowledge.rewrites.bindings import definitions
from tilewright.knowledge.rewrites.kernels import Language
from tilewright.knowledge.rewrites.source import Patch, Source, dotted, integer, names, walk
from tilewright.knowledge.rewrites.tiles import tainted

_INDENT = "    "


@dataclass(frozen=True, slots=True)
class _Extent:
    """Offsets `base + arange(0, block)`."""

    base: str
    """Source text of the scalar part; empty where the tile is the only one."""
    block: str


def peeled(source: Source, language: Language, function: cst.FunctionDef) -> list[Patch]:
    """The patches that split off full tiles: of the kernel's only masked loop, or of its straight line; or none."""
    loops = [n for n in function.body.body if isinstance(n, cst.For)]
    for loop in loops:
        patches = _loop(source, language, function, loop)
        if patches:
            return patches
    return [] if loops else _flat(source, language, function)


# --- a straight line ---------------------------------------------------------------------------------------


def _flat(source: Source, language: Language, function: cst.FunctionDef) -> list[Patch]:
    body = list(function.body.body)
    for i, statement in enumerate(body):
        made = _mask(statement)
        if made is None:
            continue
        name, test = made
        rest = body[i + 1 :]
        compared = _compared(source, language, function, test)
        plain = all(isinstance(s, cst.SimpleStatementLine) for s in rest)
        if (
            compared is None
            or not compared[0].base
            or not rest
            or not plain
            or len(definitions(source, name, function)) != 1
        ):
            continue
        unmasked = _unmasked(source, language, rest, name, None)
        start, end = _lines(source, rest)
        text = source.data[start:end].decode()
        if unmasked is None or '"""' in text or "'''" in text:
            continue
        extent, bound = compared
        margin = _margin(source, rest[0])
        lines = [
            f"{margin}if {extent.base} + {extent.block} <= {bound}:\n",
            _indented(_rewritten(source, start, end, unmasked)),
            f"{margin}else:\n",
            _indented(text),
        ]
        return [Patch(start, end, "".join(lines))]
    return []


def _mask(statement: cst.CSTNode) -> tuple[str, cst.Comparison] | None:
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        small = statement.body[0]
        if isinstance(small, cst.Assign) and len(small.targets) == 1 and isinstance(small.value, cst.Comparison):
            target = small.targets[0].target
            if isinstance(target, cst.Name):
                return target.value, small.value
    return None


# --- a loop ------------------------------------------------------------------------------------------------


def _loop(source: Source, language: Language, function: cst.FunctionDef, loop: cst.For) -> list[Patch]:
    call = loop.iter
    if not isinstance(call, cst.Call) or not isinstance(loop.target, cst.Name) or loop.orelse is not None:
        return []
    if dotted(call.func) != "range" and language.op(call.func) != "range":
        return []
    plain = [a.value for a in call.args if a.keyword is None and not a.star]
    if len(plain) != 3 or integer(plain[0]) != 0 or not isinstance(loop.body, cst.IndentedBlock):
        return []
    stop, step = source.code(plain[1]), source.code(plain[2])
    written = {t.value for t in walk(loop.body) if isinstance(t, cst.Name) and _assigned(source, t)}
    if (names(plain[1]) | names(plain[2])) & written or not isinstance(plain[1], cst.Name | cst.Attribute):
        return []
    if not all(isinstance(s, cst.SimpleStatementLine) for s in loop.body.body) or _used_later(function, loop):
        return []

    variable = loop.target.value

    def whole(test: cst.Comparison) -> bool:
        compared = _compared(source, language, function, test)
        return compared is not None and compared == (_Extent(variable, step), stop)

    patches: list[Patch] | None = []
    for statement in loop.body.body:
        made = _mask(statement)
        if made is not None and whole(made[1]) and patches is not None:
            found = _unmasked(source, language, loop.body.body, made[0], None)
            patches = None if found is None else patches + found
    inline = _unmasked(source, language, loop.body.body, None, whole)
    if patches is None or inline is None or not (patches or inline):
        return []
    start, end = _lines(source, [loop])
    start = source.data.rfind(b"\n", 0, source.span(loop)[0]) + 1
    text = source.data[start:end].decode()
    cut = f"{stop} // {step} * {step}"
    first = _rewritten(source, start, end, [*patches, *inline, Patch(*source.outer(plain[1]), cut)])
    second = _rewritten(source, start, end, [Patch(*source.outer(plain[0]), cut)])
    return [] if '"""' in text or "'''" in text else [Patch(start, end, first + second)]


def _assigned(source: Source, node: cst.Name) -> bool:
    parent = source.parents[node]
    return isinstance(parent, cst.AssignTarget) or (
        isinstance(parent, cst.AugAssign | cst.AnnAssign) and parent.target is node
    )


def _used_later(function: cst.FunctionDef, loop: cst.For) -> bool:
    """Whether the loop's variable is read after it, where the cut would change it (an empty second loop)."""
    after = False
    for statement in function.body.body:
        if after and isinstance(loop.target, cst.Name) and loop.target.value in names(statement):
            rebound = isinstance(statement, cst.For) and dotted(statement.target) == loop.target.value
            return not rebound
        after = after or statement is loop
    return False


# --- shared ------------------------------------------------------------------------------------------------


def _compared(
    source: Source, language: Language, function: cst.FunctionDef, test: cst.Comparison
) -> tuple[_Extent, str] | None:
    """`offsets < bound` (or `bound > offsets`) as extent and bound, where the bound is a scalar."""
    if len(test.comparisons) != 1:
        return None
    left, operator, right = test.left, test.comparisons[0].operator, test.comparisons[0].comparator
    if isinstance(operator, cst.GreaterThan):
        left, right = right, left
    elif not isinstance(operator, cst.LessThan):
        return None
    vectors = tainted(function, _vectors(language, function))
    extent = _extent(source, language, function, left, vectors)
    if extent is None or names(right) & vectors or not isinstance(right, cst.Name):
        return None
    return extent, source.code(right)


def _vectors(language: Language, function: cst.FunctionDef) -> set[str]:
    found = set()
    for node in walk(function.body):
        if isinstance(node, cst.Assign) and any(
            isinstance(c, cst.Call) and language.op(c.func) in ("arange", "load", "zeros", "full")
            for c in walk(node.value)
        ):
            found |= {t.value for a in node.targets for t in walk(a.target) if isinstance(t, cst.Name)}
    return found


def _extent(
    source: Source, language: Language, function: cst.FunctionDef, node: cst.BaseExpression, vectors: set[str]
) -> _Extent | None:
    if isinstance(node, cst.Name):
        made = definitions(source, node.value, function)
        if len(made) != 1 or made[0].value is None or made[0].index is not None:
            return None
        return _extent(source, language, function, made[0].value, vectors)
    if isinstance(node, cst.Call) and language.op(node.func) == "arange" and len(node.args) == 2:
        block = node.args[1].value
        return _Extent("", source.code(block)) if integer(node.args[0].value) == 0 else None
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        for scalar, vector in ((node.left, node.right), (node.right, node.left)):
            extent = _extent(source, language, function, vector, vectors)
            if extent is not None and not extent.base and not names(scalar) & vectors:
                calls = any(isinstance(c, cst.Call) and language.op(c.func) != "program_id" for c in walk(scalar))
                simple = isinstance(scalar, cst.Name | cst.Call) or (
                    isinstance(scalar, cst.BinaryOperation) and isinstance(scalar.operator, cst.Multiply)
                )
                text = source.code(scalar) if simple else f"({source.code(scalar)})"
                return None if calls else _Extent(text, extent.block)
    return None


def _unmasked(
    source: Source,
    language: Language,
    body: Sequence[cst.CSTNode],
    name: str | None,
    whole: Callable[[cst.Comparison], bool] | None,
) -> list[Patch] | None:
    """Patches that take a mask (of this name, or written in place) off every access; None: it has other uses."""
    patches: list[Patch] = []
    taken = 0
    reads = 0
    for statement in body:
        for node in walk(statement):
            if isinstance(node, cst.Name) and node.value == name and not _assigned(source, node):
                parent = source.parents[node]
                reads += not (isinstance(parent, cst.Arg) and parent.keyword is node)
            if not isinstance(node, cst.Call) or language.op(node.func) not in ("load", "store"):
                continue
            for position, arg in enumerate(node.args):
                place = 1 if language.op(node.func) == "load" else 2
                key = arg.keyword.value if arg.keyword else "mask" if position == place else ""
                named = isinstance(arg.value, cst.Name) and arg.value.value == name
                inline = whole is not None and isinstance(arg.value, cst.Comparison) and whole(arg.value)
                if key == "mask" and (named or inline):
                    taken += named
                    patches += _without(source, node, position, place)
    return patches if taken == reads else None


def _without(source: Source, call: cst.Call, mask: int, place: int) -> Iterator[Patch]:
    """Remove the mask and `other` of an access, each with the comma before it."""
    for position, arg in enumerate(call.args):
        key = arg.keyword.value if arg.keyword else "other" if position == place + 1 else ""
        if position == mask or key == "other":
            before = call.args[position - 1]
            yield Patch(source.outer(before.value)[1], source.outer(arg.value)[1], "")


def _lines(source: Source, statements: Sequence[cst.CSTNode]) -> tuple[int, int]:
    """Bytes of whole lines from the first statement to the last, comments behind it included."""
    start = source.data.rfind(b"\n", 0, source.span(statements[0])[0]) + 1
    last = source.span(statements[-1])[1]
    end = source.data.find(b"\n", last - 1)
    return start, len(source.data) if end < 0 else end + 1


def _margin(source: Source, statement: cst.CSTNode) -> str:
    start = source.span(statement)[0]
    return source.data[source.data.rfind(b"\n", 0, start) + 1 : start].decode()


def _rewritten(source: Source, start: int, end: int, patches: list[Patch]) -> str:
    """Bytes [start, end) with the patches inside them applied."""
    pieces, at = [], start
    for patch in sorted(patches, key=lambda p: (p.start, p.end)):
        if patch.start < at:
            continue  # the same argument, reached by name and in place
        pieces += [source.data[at : patch.start].decode(), patch.text]
        at = patch.end
    return "".join([*pieces, source.data[at:end].decode()])


def _indented(text: str) -> str:
    lines = text.splitlines(keepends=True)
    whole = [line if not line.strip() else _INDENT + line for line in lines]
    return "".join(whole) + ("" if text.endswith("\n") else "\n")
