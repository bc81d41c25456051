"""A candidate's source with the place of every node, and patches of its bytes.

Rewrites edit by patch: whatever a patch does not cover stays as it was written, comments and spacing included.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, CodeSpan, MetadataWrapper


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A parsed module with the place of each node in its text."""

    data: bytes
    module: cst.Module
    spans: Mapping[cst.CSTNode, CodeSpan]
    """Bytes of a node, without its own parentheses and surrounding space."""
    parents: Mapping[cst.CSTNode, cst.CSTNode]

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """First byte and the byte after the last, parentheses of the node excluded."""
        found = self.spans[node]
        return found.start, found.start + found.length

    def outer(self, node: cst.CSTNode) -> tuple[int, int]:
        """The same with the parentheses that belong to the node."""
        start, end = self.span(node)
        for paren in (*getattr(node, "lpar", ()), *getattr(node, "rpar", ())):
            a, b = self.span(paren)
            start, end = min(start, a), max(end, b)
        return start, end

    def code(self, node: cst.CSTNode) -> str:
        """The node as written, parentheses excluded."""
        start, end = self.span(node)
        return self.data[start:end].decode()

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """First and last line, from 1."""
        start, end = self.span(node)
        first = self.data.count(b"\n", 0, start) + 1
        return first, first + self.data.count(b"\n", start, end)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes around this one, innermost first."""
        at = self.parents.get(node)
        while at is not None:
            yield at
            at = self.parents.get(at)

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The innermost `def` around the node."""
        return next((n for n in self.ancestors(node) if isinstance(n, cst.FunctionDef)), None)

    def statement(self, node: cst.CSTNode) -> cst.SimpleStatementLine | None:
        """The line of simple statements that holds the node; None inside a one-line suite or a header."""
        for ancestor in self.ancestors(node):
            if isinstance(ancestor, cst.SimpleStatementLine):
                return ancestor
            if isinstance(ancestor, cst.BaseCompoundStatement | cst.BaseSuite):
                return None
        return None


@dataclass(frozen=True, slots=True)
class Patch:
    """Replace bytes [start, end) with a text. At one place, `lead` insertions nest outwards to the left."""

    start: int
    end: int
    text: str
    lead: bool = False


def patched(source: Source, patches: Iterable[Patch]) -> str:
    """The source's text with the patches applied. `ValueError`: two of them overlap."""
    tail = [p for p in patches if not p.lead]
    lead = [p for p in patches if p.lead]
    order = [(p.start, p.end, 0, i, p) for i, p in enumerate(tail)]
    order += [(p.start, p.end, 1, -i, p) for i, p in enumerate(lead)]
    pieces, at = [], 0
    for start, end, _, _, patch in sorted(order, key=lambda o: (o[0], o[1] != o[0], o[2], o[3])):
        if start < at:
            raise ValueError(f"patches overlap at byte {start}")
        pieces += [source.data[at:start].decode(), patch.text]
        at = end
    return "".join([*pieces, source.data[at:].decode()])


@functools.lru_cache(maxsize=32)
def read(text: str) -> Source | None:
    """The parsed source; None where it is not Python."""
    try:
        module = cst.parse_module(text)
    except cst.ParserSyntaxError:
        return None
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    spans = wrapper.resolve(ByteSpanPositionProvider)
    parents: dict[cst.CSTNode, cst.CSTNode] = {}
    stack: list[cst.CSTNode] = [wrapper.module]
    while stack:
        node = stack.pop()
        for child in node.children:
            parents[child] = node
            stack.append(child)
    return Source(wrapper.module.code.encode(), wrapper.module, spans, parents)


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and everything in it, in the order of the text."""
    stack = [node]
    while stack:
        at = stack.pop()
        yield at
        stack.extend(reversed(at.children))


def dotted(node: cst.CSTNode) -> str:
    """`tl.load` for such a chain of names; empty for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        left = dotted(node.value)
        return f"{left}.{node.attr.value}" if left else ""
    return ""


def names(node: cst.CSTNode) -> set[str]:
    """Names read in an expression: not attributes, not keywords of calls."""
    found: set[str] = set()
    stack: list[cst.CSTNode] = [node]
    while stack:
        at = stack.pop()
        if isinstance(at, cst.Name):
            found.add(at.value)
        elif isinstance(at, cst.Attribute | cst.Arg):
            stack.append(at.value)
        else:
            stack.extend(at.children)
    return found


def integer(node: cst.CSTNode | None) -> int | None:
    """The value of an integer expression made of literals alone."""
    if isinstance(node, cst.Integer):
        return int(node.value.replace("_", ""), 0)
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        inner = integer(node.expression)
        return None if inner is None else -inner
    if isinstance(node, cst.BinaryOperation):
        a, b = integer(node.left), integer(node.right)
        if a is None or b is None or b < 0:
            return None
        match node.operator:
            case cst.Multiply():
                return a * b
            case cst.Add():
                return a + b
            case cst.Subtract():
                return a - b
            case cst.LeftShift():
                return a << b
            case cst.Power():
                return int(a**b)
            case cst.FloorDivide():
                return a // b if b else None
    return None
