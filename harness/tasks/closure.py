"""Everything that a function needs, gathered from its package's modules into one file.

Helpers, kernels, constants and the blocks that define them are followed through imports within the
package and copied with their comments; imports of the standard library, torch and triton stay imports.
Nothing is run: what a name means is read from the source. Names that clash are renamed.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.harness.errors import TaskProblem
from tilewright.harness.tasks.modules import Alias, Library, Module, NestedImport, Piece, public
from tilewright.harness.tasks.names import Occurrence
from tilewright.harness.tasks.source import is_allowed

CARRIED = {"packaging": "torch._vendor.packaging"}
"""Packages that torch carries a copy of, so that a candidate may use them."""

_GIVEN = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__", "__builtins__"}


@dataclass(frozen=True, slots=True)
class Symbol:
    """A thing that a name means: a definition in a copied module, or an import that stays one."""

    module: str
    name: str | None = None
    """None for an import, whose whole path is in `module`."""


Names = Callable[[Symbol], str]
"""What a symbol is called in the end."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A span of source that must read anew: a name, or an import within a block."""

    start: tuple[int, int]
    """Line from 1, and byte in the line."""
    end: tuple[int, int]
    render: Callable[[Names], str]


@dataclass(slots=True)
class Closure:
    """The pieces that some functions need, and what their names mean."""

    library: Library
    followed: frozenset[str]
    """Top-level packages whose modules are copied."""
    local: bool = False
    """Whether modules beside the first one, in the library's folders, are copied too."""
    pieces: dict[str, list[Piece]] = field(default_factory=dict)
    edits: dict[int, list[Edit]] = field(default_factory=dict)
    """By a piece's identity."""
    mentions: dict[Symbol, list[tuple[Piece, str]]] = field(default_factory=dict)
    """How each symbol is spelled, and where; an empty spelling is one that must not stay."""
    imports: dict[Symbol, Alias] = field(default_factory=dict)
    submodules: set[str] = field(default_factory=set)
    """`import a.b.c` that a use of `a.b` relies on."""
    stars: set[str] = field(default_factory=set)
    given: set[str] = field(default_factory=set)
    """Builtins that are used, and must not be shadowed."""
    edges: dict[str, list[str]] = field(default_factory=dict)
    """Which modules' names each module uses."""

    # --- what a name means --------------------------------------------------------------------------------

    def need(self, module: Module, name: str) -> Symbol:
        """Include the definition of a name. Raises TaskProblem where the module has none."""
        found = None
        if self._defines(module, name):
            found, _ = self._resolve(module, name, (), str(module.path))
        if found is None:
            raise TaskProblem(f"{module.name} does not define {name!r} ({module.path})", "check the function's name")
        return found

    def _resolve(
        self, module: Module, name: str, chain: Sequence[str], where: str, *, soft: bool = False
    ) -> tuple[Symbol | None, int]:
        """What a name with attributes stands for, and how many of the attributes that takes in."""
        own = [piece for piece in module.pieces if name in piece.binds]
        if own:
            for piece in own:
                self._include(module, piece)
            for piece in module.pieces:
                if name in piece.touches:
                    self._include(module, piece)
            return Symbol(module.name, name), 0
        if name in module.aliases:
            return self._alias(module, module.aliases[name], name, chain, where, soft)
        for star in module.stars:
            source = self.library.find(star) if self._follows(star) else None
            if source is not None and public(source, name) and self._defines(source, name):
                self._edge(module, source)
                return self._resolve(source, name, chain, where, soft=soft)
        if name in _GIVEN:
            self.given.add(name)
            return None, 0
        kept = [star for star in module.stars if is_allowed(star.partition(".")[0])]
        if kept:
            self.stars.update(kept)
            return None, 0
        if soft:
            return None, 0
        raise TaskProblem(
            f"{where} uses {name!r}, which {module.name} does not define",
            "the scaffold reads source only; a name made at run time must be written into the task by hand",
        )

    def _alias(
        self, module: Module, alias: Alias, name: str, chain: Sequence[str], where: str, soft: bool
    ) -> tuple[Symbol | None, int]:
        top = alias.module.partition(".")[0]
        if self._follows(alias.module):
            if alias.attribute is None:
                return self._inside(module, alias.module, chain, 0, where)
            source = self.library.find(alias.module)
            if source is not None and self._defines(source, alias.attribute):
                self._edge(module, source)
                return self._resolve(source, alias.attribute, chain, where)
            return self._inside(module, alias.dotted, chain, 0, where)
        if top in CARRIED:
            alias = Alias(CARRIED[top] + alias.module[len(top) :], alias.attribute)
        elif not is_allowed(top):
            if soft:
                return None, 0
            raise TaskProblem(
                f"{where} uses {name!r} from {alias.module!r}, and a candidate may import only the standard "
                "library, torch and triton",
                f"scaffold a function that does not need {top}, or write its part into the task by hand",
            )
        if alias.attribute is None:
            dotted = ".".join([alias.module, *chain])
            self.submodules.update(s for s in module.side_imports if _shares(s, dotted))
            for piece in module.pieces:
                if any(_shares(s, dotted) for s in piece.loads):
                    self._include(module, piece)
        symbol = Symbol(alias.dotted)
        self.imports.setdefault(symbol, alias)
        return symbol, 0

    def _inside(
        self, module: Module, name: str, chain: Sequence[str], taken: int, where: str
    ) -> tuple[Symbol | None, int]:
        """The thing that attributes of a copied module lead to."""
        source = self.library.find(name)
        if source is None:
            raise TaskProblem(f"{where} imports {name!r}, which is not installed", f"install {name.partition('.')[0]}")
        if taken >= len(chain):
            raise TaskProblem(
                f"{where} uses the module {name!r} as a value, so what it needs of it cannot be told",
                "import the names it needs, or write that part into the task by hand",
            )
        attribute = chain[taken]
        self._edge(module, source)
        if self._defines(source, attribute):
            symbol, more = self._resolve(source, attribute, chain[taken + 1 :], where)
            return symbol, taken + 1 + more
        return self._inside(source, f"{name}.{attribute}", chain, taken + 1, where)

    def _defines(self, module: Module, name: str) -> bool:
        if name in module.aliases or any(name in piece.binds for piece in module.pieces):
            return True
        followed = [self.library.find(star) for star in module.stars if self._follows(star)]
        return any(m is not None and public(m, name) and self._defines(m, name) for m in followed)

    def _follows(self, module: str) -> bool:
        top = module.partition(".")[0]
        if top in self.followed:
            return True
        if not self.local or is_allowed(top):
            return False
        found = self.library.find(top)
        return found is not None and any(Path(f) in found.path.parents for f in self.library.folders)

    def _edge(self, user: Module, used: Module) -> None:
        targets = self.edges.setdefault(user.name, [])
        if used.name not in targets:
            targets.append(used.name)

    # --- what a piece needs -------------------------------------------------------------------------------

    def _include(self, module: Module, piece: Piece) -> None:
        have = self.pieces.setdefault(module.name, [])
        if piece in have:
            return
        have.append(piece)
        edits = self.edits.setdefault(id(piece), [])
        for occurrence in piece.occurrences:
            edit = self._occurrence(module, piece, occurrence)
            if edit is not None:
                edits.append(edit)
        edits.extend(self._nested(module, piece, nested) for nested in piece.imports)

    def _mention(self, symbol: Symbol, piece: Piece, spelled: str) -> None:
        self.mentions.setdefault(symbol, []).append((piece, spelled))

    def _occurrence(self, module: Module, piece: Piece, occurrence: Occurrence) -> Edit | None:
        node, name = occurrence.node, occurrence.name
        taken = 0
        if occurrence.binds and name not in module.aliases:
            symbol: Symbol | None = Symbol(module.name, name)
        else:
            chain = [a.attr for a in occurrence.chain]
            where = f"{module.path}:{node.lineno}"
            symbol, taken = self._resolve(module, name, chain, where, soft=occurrence.soft)
        if symbol is None:
            return None
        attributes = occurrence.chain[:taken]
        self._mention(symbol, piece, ".".join([name, *(a.attr for a in attributes)]))
        start, end = _span(module, node, name)
        if attributes:
            end = (attributes[-1].end_lineno or 0, attributes[-1].end_col_offset or 0)
        meant = symbol
        return Edit(start, end, lambda names: names(meant))

    def _nested(self, module: Module, piece: Piece, nested: NestedImport) -> Edit:
        """An import within a block or a function: as it is, or an assignment, or the failure it provides for."""
        node = nested.node
        parts = [self._nested_name(module, piece, nested, alias) for alias in node.names]
        return Edit(
            (node.lineno, node.col_offset),
            (node.end_lineno or 0, node.end_col_offset or 0),
            lambda names: "; ".join(part(names) for part in parts),
        )

    def _nested_name(
        self, module: Module, piece: Piece, nested: NestedImport, alias: ast.alias
    ) -> Callable[[Names], str]:
        node, where = nested.node, f"{module.path}:{nested.node.lineno}"
        target = module.absolute(node) if isinstance(node, ast.ImportFrom) else alias.name
        local = alias.asname or alias.name.partition(".")[0]
        top = target.partition(".")[0]
        bound: Symbol | None = None
        if nested.at_module_level and local not in module.aliases:
            bound = Symbol(module.name, local)
            self._mention(bound, piece, local)
        name: Callable[[Names], str] = lambda names: names(bound) if bound else local  # noqa: E731
        if self._follows(target) and not (nested.guarded and self.library.find(target) is None):
            source = self.library.find(target)
            if source is None or not isinstance(node, ast.ImportFrom) or not self._defines(source, alias.name):
                raise TaskProblem(
                    f"{where} imports {alias.name!r} of {target!r} within a block, which cannot be followed",
                    "write that part into the task by hand",
                )
            self._edge(module, source)
            symbol, _ = self._resolve(source, alias.name, (), where)
            if symbol is None:  # a builtin under its own name
                return lambda names: f"{name(names)} = {alias.name}"
            self._mention(symbol, piece, "")
            meant = symbol
            return lambda names: f"{name(names)} = {names(meant)}"
        if top in CARRIED or is_allowed(top):
            path = CARRIED.get(top, top) + target[len(top) :]
            if isinstance(node, ast.ImportFrom):
                return lambda names: f"from {path} import {_renamed(alias.name, name(names))}"
            if alias.asname or bound is None or "." not in path:
                return lambda names: f"import {_renamed(path, name(names) if alias.asname or bound else path)}"
            return lambda names: f"import {path}"
        if nested.guarded:
            return lambda names: f'raise ImportError("a candidate cannot import {top}")'
        raise TaskProblem(
            f"{where} imports {target!r}, and a candidate may import only the standard library, torch and triton",
            "write that part into the task by hand",
        )


def _renamed(what: str, name: str) -> str:
    return what if what == name else f"{what} as {name}"


def _shares(submodule: str, dotted: str) -> bool:
    """Whether a use of `dotted` may rely on `import submodule`: they share more than the package."""
    return submodule.split(".")[:2] == dotted.split(".")[:2]


def _span(module: Module, node: ast.stmt | ast.Name, name: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where a name stands: a definition or a `global` has it after a keyword."""
    if isinstance(node, ast.Name):
        return (node.lineno, node.col_offset), (node.lineno, node.col_offset + len(name.encode()))
    line = module.source.split("\n")[node.lineno - 1].encode()
    found = re.compile(rb"\b" + re.escape(name.encode()) + rb"\b").search(line, node.col_offset)
    at = found.start() if found else node.col_offset
    return (node.lineno, at), (node.lineno, at + len(name.encode()))
