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
    name: str | None
    copied: bool


@dataclass(frozen=True, slots=True)
class Edit:
    """A span of a piece, in (line, byte column), that must come to read as a symbol's final name."""

    start: tuple[int, int]
    end: tuple[int, int]
    spelled: str
    symbol: Symbol | None
    text: Callable[[Callable[[Symbol], str]], str] | None = None
    """For imports that are rewritten: the new text, given what symbols are called."""
    taken: str = ""
    """A local name that the symbol must not be called by."""


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
    imports: dict[Symbol, Alias] = field(default_factory=dict)
    submodules: set[str] = field(default_factory=set)
    stars: set[str] = field(default_factory=set)
    spellings: dict[Symbol, list[str]] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    edges: dict[str, list[str]] = field(default_factory=dict)
    chains: set[str] = field(default_factory=set)

    # --- what a name means --------------------------------------------------------------------------------

    def need(self, module: Module, name: str) -> Symbol:
        """Include the definition of a name. Raises TaskProblem where the module has none."""
        found, _ = self._resolve(module, name, (), f"{module.path}")
        if found is None:
            raise TaskProblem(f"{module.name} does not define {name!r}", "check the function's name")
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
            return self._symbol(Symbol(module.name, name, True), name), 0
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
                return self._spelled(self._resolve(source, alias.attribute, chain, where), name)
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
            self.chains.add(dotted)
            self.submodules.update(s for s in module.side_imports if _shares(s, dotted))
        symbol = Symbol(alias.dotted, None, False)
        self.imports.setdefault(symbol, alias)
        return self._symbol(symbol, name), 0

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

    def _symbol(self, symbol: Symbol, spelled: str) -> Symbol:
        names = self.spellings.setdefault(symbol, [])
        if spelled not in names:
            names.append(spelled)
        return symbol

    def _spelled(self, found: tuple[Symbol | None, int], name: str) -> tuple[Symbol | None, int]:
        if found[0] is not None:
            self._symbol(found[0], name)
        return found

    # --- what a piece needs -------------------------------------------------------------------------------

    def _include(self, module: Module, piece: Piece) -> None:
        have = self.pieces.setdefault(module.name, [])
        if piece in have:
            return
        have.append(piece)
        edits = self.edits.setdefault(id(piece), [])
        for occurrence in piece.occurrences:
            edit = self._occurrence(module, occurrence)
            if edit is not None:
                edits.append(edit)
        for nested in piece.imports:
            edit = self._nested(module, nested)
            if edit is not None:
                edits.append(edit)

    def _occurrence(self, module: Module, occurrence: Occurrence) -> Edit | None:
        node, name = occurrence.node, occurrence.name
        where = f"{module.path}:{node.lineno}"
        if occurrence.binds and name not in module.aliases:
            symbol: Symbol | None = self._symbol(Symbol(module.name, name, True), name)
            taken = 0
        else:
            attributes = [a.attr for a in occurrence.chain]
            symbol, taken = self._resolve(module, name, attributes, where, soft=occurrence.soft)
        if symbol is None:
            return None
        if isinstance(node, ast.Name):
            end: ast.expr = occurrence.chain[taken - 1] if taken else node
            spelled = ".".join([name, *(a.attr for a in occurrence.chain[:taken])])
            return Edit(
                (node.lineno, node.col_offset), (end.end_lineno or 0, end.end_col_offset or 0), spelled, symbol
            )
        return _word_edit(module, node, name, symbol)

    def _nested(self, module: Module, nested: NestedImport) -> Edit | None:
        """How an import within a block or function must read: as it is, as an assignment, or as a failure."""
        node = nested.node
        parts: list[Callable[[Callable[[Symbol], str]], str]] = []
        changed = False
        taken = ""
        symbols: list[Symbol] = []
        for name in node.names:
            target = module.absolute(node) if isinstance(node, ast.ImportFrom) else name.name
            local = name.asname or name.name.partition(".")[0]
            bound = Symbol(module.name, local, True) if nested.at_module_level and local not in module.aliases else None
            top = target.partition(".")[0]
            where = f"{module.path}:{node.lineno}"
            if self._follows(target) and (self.library.find(target) is not None or not nested.guarded):
                if not isinstance(node, ast.ImportFrom):
                    raise TaskProblem(f"{where} imports the module {target!r} in a block, which is not followed")
                source = self.library.find(target)
                if source is None:
                    raise TaskProblem(f"{where} imports {target!r}, which is not installed", f"install {top}")
                self._edge(module, source)
                symbol, _ = self._resolve(source, name.name, (), where)
                if symbol is None:
                    raise TaskProblem(f"{where} imports {name.name!r}, which {target} does not define")
                symbols.append(symbol)
                taken, changed = local, True
                parts.append(_assign(local, bound, symbol))
            elif is_allowed(top) or top in CARRIED:
                path = CARRIED[top] + target[len(top) :] if top in CARRIED else target
                changed = changed or top in CARRIED
                parts.append(_import(path, name, bound, isinstance(node, ast.ImportFrom)))
            elif nested.guarded:
                changed = True
                parts.append(lambda _, top=top: f'raise ImportError("a candidate cannot import {top}")')  # type: ignore[misc]  # default binds the loop's value
            else:
                raise TaskProblem(
                    f"{where} imports {target!r}, and a candidate may import only the standard library, torch and triton",
                    "write that part into the task by hand",
                )
            if bound is not None:
                self._symbol(bound, local)
                changed = changed or False
        new = parts

        def text(final: Callable[[Symbol], str]) -> str:
            return "; ".join(part(final) for part in new)

        return Edit(
            (node.lineno, node.col_offset),
            (node.end_lineno or 0, node.end_col_offset or 0),
            "" if changed else ast.unparse(node),
            symbols[0] if symbols else None,
            text,
            taken,
        )
