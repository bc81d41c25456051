"""One file from the pieces of a closure: names settled, imports first, modules in order of dependence."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping

from tilewright.harness.errors import TaskProblem
from tilewright.harness.tasks.closure import Closure, Edit, Symbol
from tilewright.harness.tasks.modules import Module, Piece


def settled(closure: Closure, first: Symbol) -> Mapping[Symbol, str]:
    """What each symbol is called: its own name where that is free and hides nothing, else one like it."""
    names: dict[Symbol, str] = {}
    taken: dict[str, Symbol] = {}

    def fits(symbol: Symbol, name: str) -> bool:
        return (
            name not in taken
            and name not in closure.given
            and all(spelled == name or name not in piece.identifiers for piece, spelled in closure.mentions[symbol])
        )

    for symbol in sorted(closure.mentions, key=lambda s: s != first):
        spellings = [spelled for _, spelled in closure.mentions[symbol] if spelled.isidentifier()]
        own = symbol.name or (spellings[0] if spellings else symbol.module.rpartition(".")[2])
        choices = [own, *spellings]
        name = next((n for n in choices if fits(symbol, n)), None)
        number = 2
        while name is None:
            name = f"{own}_{number}" if fits(symbol, f"{own}_{number}") else None
            number += 1
        names[symbol] = name
        taken[name] = symbol
    return names


def emitted(
    closure: Closure, root: str, names: Mapping[Symbol, str], *, preamble: str = "", quiet: bool = False
) -> str:
    """The file's text: imports, then each module's pieces in the order they stood, dependences first.

    `preamble` goes between the imports and the pieces. A comment says where pieces come from; `quiet` leaves
    it out for those of the root.
    """
    lazy = any(_module(closure, name).lazy for name in closure.pieces)
    parts = ["\n".join([*(["from __future__ import annotations", ""] if lazy else []), *_imports(closure, names)])]
    parts.append(preamble)
    for name in _order(closure, root):
        module, last = _module(closure, name), 0
        for piece in sorted(closure.pieces.get(name, []), key=lambda p: p.first):
            text = _edited(module, piece, closure.edits[id(piece)], names)
            if last and piece.first == last + 1:
                parts[-1] += f"\n{text}"
            else:
                parts.append(text if quiet and name == root else f"# from {name}, line {piece.first}\n{text}")
            last = piece.last
    return "\n\n\n".join(part for part in parts if part) + "\n"


def _module(closure: Closure, name: str) -> Module:
    module = closure.library.find(name)
    assert module is not None, name
    return module


def _order(closure: Closure, root: str) -> list[str]:
    order: list[str] = []
    seen: set[str] = set()

    def visit(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        for used in closure.edges.get(name, []):
            visit(used)
        order.append(name)

    visit(root)
    return order


def _imports(closure: Closure, names: Mapping[Symbol, str]) -> list[str]:
    """Import lines: the standard library first, whole modules before names."""
    lines: set[str] = {f"import {path}" for path in closure.submodules}
    lines |= {f"from {path} import *" for path in closure.stars}
    for symbol, alias in closure.imports.items():
        name = names[symbol]
        if alias.attribute is None:
            lines.add(f"import {alias.module}" + ("" if name == alias.module else f" as {name}"))
        else:
            tail = "" if name == alias.attribute else f" as {name}"
            lines.add(f"from {alias.module} import {alias.attribute}{tail}")

    def rank(line: str) -> tuple[bool, bool, str]:
        top = line.split()[1].partition(".")[0]
        return top not in sys.stdlib_module_names, line.startswith("from"), line

    ordered = sorted(lines, key=rank)
    standard = [line for line in ordered if not rank(line)[0]]
    other = [line for line in ordered if rank(line)[0]]
    return [*standard, *([""] if standard and other else []), *other]


def _edited(module: Module, piece: Piece, edits: list[Edit], names: Mapping[Symbol, str]) -> str:
    """A piece's text with its names as they were settled; untouched where nothing changes."""
    lines = [line.encode() for line in module.source.split("\n")]
    for edit in sorted(edits, key=lambda e: e.start, reverse=True):
        (row, column), (last, end) = edit.start, edit.end
        new = edit.render(lambda symbol: names[symbol])
        old = b"\n".join([*lines[row - 1 : last - 1], lines[last - 1][:end]])[column:].decode(errors="replace")
        if new == old or _same(new, old):
            continue
        if not old.isidentifier() and not _parses(old):
            raise TaskProblem(
                f"{module.path}:{row}: a name within a format string would have to become {new!r}",
                "write that part into the task by hand",
            )
        lines[row - 1 : last] = [
            lines[row - 1][:column] + new.encode() + lines[last - 1][end:],
            *[b"\0"] * (last - row),
        ]
    kept = [line for line in lines[piece.first - 1 : piece.last] if line != b"\0"]
    return b"\n".join(kept).decode()


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _same(new: str, old: str) -> bool:
    """Whether two imports say the same, however they are laid out."""
    return "import" in old and _parses(old) and _flat(new) == _flat(old)


def _flat(text: str) -> list[str]:
    """An import statement as one line a name."""
    return list(_flattened(ast.parse(text)))


def _flattened(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for a in node.names:
                yield f"from {'.' * node.level}{node.module or ''} import {a.name} as {a.asname or a.name}"
        elif isinstance(node, ast.Import):
            yield from (f"import {a.name} as {a.asname or a.name}" for a in node.names)
        else:
            yield ast.unparse(node)
