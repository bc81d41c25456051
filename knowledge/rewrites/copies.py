"""Editing a kernel as text: copies under another name, a loop turned into its body, a choice at the launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import libcst as cst

from tilewright.knowledge.rewrites.bindings import definition, entries
from tilewright.knowledge.rewrites.launches import Kernel, Launch
from tilewright.knowledge.rewrites.source import Patch, Source, dotted, patched, walk

_PURE_METHODS = frozenset({"size", "stride", "numel", "element_size", "dim"})


class Unfit(Exception):
    """Why a kernel or a launch cannot be rewritten, in words."""


def extent(source: Source, kernel: Kernel) -> tuple[int, int]:
    """First byte of a kernel, decorators included, and the byte after its last statement."""
    start, end = source.span(kernel.node)
    if kernel.node.decorators:
        start = min(start, source.span(kernel.node.decorators[0])[0])
    text = source.data[start:end].rstrip()
    return start, start + len(text)


def renamed(source: Source, kernel: Kernel, name: str, patches: Iterable[Patch]) -> str:
    """The kernel's text with patches of its inside, under another name and under `jit` alone."""
    start, end = extent(source, kernel)
    edits = [*patches, Patch(*source.span(kernel.node.name), name)]
    for decorator in kernel.node.decorators:
        if decorator is not kernel.jit:
            a, b = source.span(decorator)
            b = source.data.find(b"\n", b) + 1
            edits.append(Patch(a, b, ""))
    whole = patched(source, edits).encode()
    return whole[start : len(whole) - (len(source.data) - end)].decode()


def after(source: Source, kernel: Kernel, texts: Sequence[str]) -> Patch:
    """Insert functions after a kernel."""
    end = extent(source, kernel)[1]
    return Patch(end, end, "".join(f"\n\n\n{t}" for t in texts))


def margin(source: Source, node: cst.CSTNode) -> str:
    """The white space in front of a statement. `Unfit` where something else stands there."""
    start = source.span(node)[0]
    text = source.data[source.data.rfind(b"\n", 0, start) + 1 : start].decode()
    if text.strip():
        raise Unfit("a statement shares its line with another")
    return text


def inlined(source: Source, loop: cst.For, first: Sequence[str]) -> list[Patch]:
    """Patches that replace a loop by some statements and then its body, one level further out."""
    if not isinstance(loop.body, cst.IndentedBlock) or loop.orelse is not None:
        raise Unfit("a loop is not a plain indented block")
    for node in walk(loop.body):
        if isinstance(node, cst.SimpleString) and "\n" in node.value:
            raise Unfit("a loop holds a string of several lines")
    outside, inside = margin(source, loop), margin(source, loop.body.body[0])
    data = source.data
    start, head = source.span(loop)[0], source.outer(loop.iter)[1]
    head = data.index(b":", head) + 1
    patches = [Patch(start, head, f"\n{outside}".join(first))]
    cut = len(inside) - len(outside)
    end = source.span(loop.body.body[-1])[1]
    line = data.find(b"\n", head) + 1
    while 0 < line < end:
        if data[line : line + cut].strip() == b"" and data[line : line + 1] not in (b"\n", b"\r"):
            patches.append(Patch(line, line + cut, ""))
        line = data.find(b"\n", line) + 1
    return patches


def outermost(patches: Sequence[Patch]) -> list[Patch]:
    """The patches without those that lie inside a text which another one replaces: margins of a call's lines."""
    wide = [p for p in patches if p.end > p.start]
    return [p for p in patches if not any(w.start < p.start and p.end < w.end for w in wide)]


def pure(node: cst.BaseExpression) -> bool:
    """Whether a host expression may be evaluated twice: names, attributes, subscripts, sizes and arithmetic."""
    for n in walk(node):
        if isinstance(n, cst.NamedExpr | cst.Await | cst.Yield | cst.Lambda | cst.BaseComp):
            return False
        if isinstance(n, cst.Call):
            method = n.func.attr.value if isinstance(n.func, cst.Attribute) else dotted(n.func)
            if method not in _PURE_METHODS | {"len", "min", "max", "int", "cdiv", "next_power_of_2"}:
                return False
    return True


def storage(source: Source, node: cst.BaseExpression, at: cst.CSTNode, depth: int = 8) -> str:
    """The host name or call that a tensor comes from, through other names, methods, attributes and subscripts."""
    if isinstance(node, cst.Name):
        made = definition(source, node.value, at) if depth else None
        if made is None or made.value is None or made.index is not None or source.code(made.value).startswith("torch."):
            return node.value
        return storage(source, made.value, made.statement, depth - 1)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return storage(source, node.func.value, at, depth - 1) if depth else source.code(node)
    if isinstance(node, cst.Attribute | cst.Subscript) and depth:
        return storage(source, node.value, at, depth - 1)
    return source.code(node)


def give(source: Source, launch: Launch, values: Mapping[str, str]) -> list[Patch]:
    """Patches of a launch's arguments, whether they are written in the call, come through a dict, or are new."""
    from tilewright.knowledge.rewrites.launches import give as directly

    direct, patches = dict(values), []
    for arg in launch.call.args:
        if arg.star != "**":
            continue
        inside = entries(source, arg.value, launch.call) or {}
        mine = {k: direct.pop(k) for k in values if k in inside and k not in launch.arguments}
        if mine:
            more = ", ".join(f'"{k}": {v}' for k, v in mine.items())
            patches.append(Patch(*source.outer(arg.value), f"{{**{source.code(arg.value)}, {more}}}"))
    return [*patches, *directly(source, launch, direct)] if direct else patches


def statement(source: Source, launch: Launch) -> cst.SimpleStatementLine:
    """The line that holds a launch and nothing else; `Unfit` where there is none."""
    line = source.statement(launch.call)
    if line is None or len(line.body) != 1:
        raise Unfit("a launch is not a statement of its own")
    margin(source, line)
    for node in walk(line):
        if isinstance(node, cst.SimpleString) and "\n" in node.value:
            raise Unfit("a launch holds a string of several lines")
    return line


def launching(source: Source, launch: Launch, name: str, patches: Iterable[Patch]) -> str:
    """A launch's statement with patches, launching the kernel `name`."""
    line = statement(source, launch)
    if not isinstance(launch.call.func, cst.Subscript) or not isinstance(launch.call.func.value, cst.Name):
        raise Unfit("a launch does not name its kernel")
    start, end = source.span(line)
    end = start + len(source.data[start:end].rstrip())
    whole = patched(source, [*patches, Patch(*source.span(launch.call.func.value), name)]).encode()
    return whole[start : len(whole) - (len(source.data) - end)].decode()


def choosing(source: Source, launch: Launch, test: str, then: Sequence[str]) -> Patch:
    """Replace a launch's statement by `if test: then… else: what it was`."""
    line = statement(source, launch)
    outside = margin(source, line)
    start, end = source.span(line)
    old = source.data[start:end].rstrip().decode()

    def deeper(text: str) -> str:
        return "\n".join(f"    {t}" if i == 0 or t.strip() else t for i, t in enumerate(text.split("\n")))

    lines = [f"if {test}:", *(outside + deeper(t) for t in then), f"{outside}else:", outside + deeper(old)]
    return Patch(start, start + len(old.encode()), "\n".join(lines))


def fresh(taken: Iterable[str], wish: str) -> str:
    """`wish`, or `wish` with a number, so that it is not among the names taken."""
    used = set(taken)
    name, n = wish, 2
    while name in used:
        name, n = f"{wish}_{n}", n + 1
    return name
