"""New parameters of a kernel, and statements at its start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import libcst as cst

from tilewright.knowledge.rewrites.launches import Kernel
from tilewright.knowledge.rewrites.source import Patch, Source


def fresh(name: str, taken: Iterable[str]) -> str:
    """The name, numbered where it is taken."""
    used = set(taken)
    return name if name not in used else next(f"{name}_{i}" for i in range(2, 999) if f"{name}_{i}" not in used)


def added(source: Source, kernel: Kernel, new: Sequence[tuple[str, str, str]]) -> Patch | None:
    """Add parameters (name, annotation, default), last in the list so that positional arguments keep their places.

    The default is written only where the last parameter has one. None where the kernel takes keyword-only ones.
    """
    last = kernel.parameters[-1]
    if kernel.node.params.kwonly_params:
        return None
    texts = []
    for name, annotation, default in new:
        text = f"{name}: {annotation}" if annotation else name
        if last.default is not None:
            text += f" = {default}" if annotation else f"={default}"
        texts.append(text)
    if isinstance(last.node.comma, cst.Comma):
        close = source.data.index(b")", source.span(last.node.comma)[1])
        line = source.data.rfind(b"\n", 0, close) + 1
        start = source.data.rfind(b"\n", 0, source.span(last.node)[0]) + 1
        margin = source.data[start : len(source.data)].decode()
        margin = margin[: len(margin) - len(margin.lstrip(" \t"))]
        if not source.data[line:close].strip() and line > start:
            return Patch(line, line, "".join(f"{margin}{text},\n" for text in texts))
    written = [last.node.name, last.node.annotation and last.node.annotation.annotation, last.default]
    end = max(source.outer(part)[1] for part in written if part is not None)
    return Patch(end, end, "".join(f", {text}" for text in texts))


def prologue(source: Source, kernel: Kernel, lines: Iterable[str]) -> Patch | None:
    """Insert statements at the start of the kernel, after its docstring; None where it has no body to stand in."""
    body = list(kernel.node.body.body)
    first = body[0]
    small = first.body[0] if isinstance(first, cst.SimpleStatementLine) else None
    if isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString | cst.ConcatenatedString):
        if len(body) < 2:
            return None
        first = body[1]
    start = source.span(first)[0]
    margin = source.data[source.data.rfind(b"\n", 0, start) + 1 : start].decode()
    if margin.strip() or not isinstance(first, cst.SimpleStatementLine | cst.BaseCompoundStatement):
        return None
    return Patch(start, start, "".join(f"{line}\n{margin}" for line in lines), lead=True)
