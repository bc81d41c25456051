"""Modules on disk as pieces of source: found, read and indexed without importing anything."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.harness.errors import TaskProblem
from tilewright.harness.tasks.names import Occurrence, bound, occurrences
from tilewright.harness.tasks.source import first_line, last_line, parse, read

Import = ast.Import | ast.ImportFrom

_CAUGHT = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")


@dataclass(frozen=True, slots=True)
class Alias:
    """What an import binds a name to: a module, or an attribute of one."""

    module: str
    attribute: str | None = None

    @property
    def dotted(self) -> str:
        """The whole path: `triton.language`, however it was imported."""
        return self.module if self.attribute is None else f"{self.module}.{self.attribute}"


@dataclass(frozen=True, slots=True)
class NestedImport:
    """An import inside a block or a function, where it cannot simply move to the top."""

    node: Import
    guarded: bool
    """Under a `try` that catches its failure."""
    at_module_level: bool


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """One statement at the top of a module, or several that share a line, with the comments above it."""

    first: int
    last: int
    binds: frozenset[str]
    touches: frozenset[str]
    """Names of the module that it changes in place: `TABLE["a"] = f`, `TABLE.update(…)`."""
    occurrences: tuple[Occurrence, ...]
    imports: tuple[NestedImport, ...]
    loads: frozenset[str]
    """Submodules that it loads into a package imported at the top: `import torch.distributed.tensor`."""
    identifiers: frozenset[str]
    """Every name that stands anywhere in it, local ones included."""


@dataclass(slots=True, eq=False)
class Module:
    """A module's source, indexed by what it defines."""

    name: str
    path: Path
    source: str
    tree: ast.Module
    is_package: bool = False
    pieces: list[Piece] = field(default_factory=list)
    aliases: dict[str, Alias] = field(default_factory=dict)
    """What plain imports at the top bind."""
    side_imports: list[str] = field(default_factory=list)
    """`import a.b.c` at the top, which also loads submodules."""
    stars: list[str] = field(default_factory=list)

    @property
    def lazy(self) -> bool:
        """Whether annotations are never evaluated."""
        return any(
            isinstance(n, ast.ImportFrom) and n.module == "__future__" and any(a.name == "annotations" for a in n.names)
            for n in self.tree.body
        )

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module that `from … import` names, relative dots resolved."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        base = parts[: len(parts) - node.level + (1 if self.is_package else 0)]
        return ".".join([*base, *([node.module] if node.module else [])])

    def index(self, skip: Sequence[ast.stmt] = ()) -> Module:
        """Fill in what the module defines, less some statements. Returns itself."""
        body = [n for n in self.tree.body if n not in skip and not _never_runs(n)]
        elsewhere = bound(n for n in body if not isinstance(n, ast.Import | ast.ImportFrom))
        plain_tops = {
            a.asname or a.name for n in body if isinstance(n, ast.Import) for a in n.names if "." not in a.name
        }
        grouped: list[list[ast.stmt]] = []
        for node in body:
            if isinstance(node, ast.Import | ast.ImportFrom) and not self._import(node, elsewhere - plain_tops):
                continue
            if grouped and first_line(node) <= last_line(grouped[-1][-1]):
                grouped[-1].append(node)
            else:
                grouped.append([node])
        lines = self.source.split("\n")
        self.pieces = [self._piece(nodes, lines) for nodes in grouped]
        return self

    def _import(self, node: Import, elsewhere: set[str]) -> bool:
        """Note a top-level import; True where it must stay in place, because its name is bound again later."""
        if isinstance(node, ast.ImportFrom):
            module = self.absolute(node)
            if module == "__future__":
                return False
            if any((a.asname or a.name) in elsewhere for a in node.names):
                return True
            for a in node.names:
                if a.name == "*":
                    self.stars.append(module)
                else:
                    self.aliases[a.asname or a.name] = Alias(module, a.name)
            return False
        for a in node.names:
            if a.asname:
                self.aliases[a.asname] = Alias(a.name)
            else:
                self.aliases[a.name.partition(".")[0]] = Alias(a.name.partition(".")[0])
                if "." in a.name:
                    self.side_imports.append(a.name)
        return False

    def _piece(self, nodes: list[ast.stmt], lines: list[str]) -> Piece:
        first = min(first_line(n) for n in nodes)
        while first > 1 and lines[first - 2].startswith("#"):
            first -= 1
        found = tuple(o for n in nodes for o in occurrences(n, lazy_annotations=self.lazy))
        nested = tuple(i for n in nodes for i in _nested_imports(n, False, True))
        loads = {
            a.name
            for i in nested
            if isinstance(i.node, ast.Import)
            for a in i.node.names
            if not a.asname and "." in a.name and a.name.partition(".")[0] in self.aliases
        }
        return Piece(
            first=first,
            last=max(last_line(n) for n in nodes),
            binds=frozenset(bound(nodes) - {name.partition(".")[0] for name in loads}),
            touches=frozenset(t for n in nodes for t in _touched(n)),
            occurrences=found,
            imports=nested,
            loads=frozenset(loads),
            identifiers=frozenset(name for n in nodes for part in ast.walk(n) for name in _identifiers(part)),
        )

    def text(self, piece: Piece) -> str:
        """The piece's own lines."""
        return "\n".join(self.source.split("\n")[piece.first - 1 : piece.last])


def _identifiers(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.partition(".")[0]
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            yield from names
        case ast.ExceptHandler(name=str(name)):
            yield name


def _never_runs(node: ast.stmt) -> bool:
    """`if TYPE_CHECKING:` and `if __name__ == "__main__":` do nothing in a module that is imported."""
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"), orelse=[]):
            return True
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__")), orelse=[]):
            return True
    return False


def _touched(node: ast.AST) -> Iterator[str]:
    """Names whose value a statement changes in place when the module is loaded."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return
    part: ast.AST | None = None
    match node:
        case ast.Subscript(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
            part = node
        case ast.Expr(value=ast.Call(func=ast.Attribute() as method)):
            part = method
    while isinstance(part, ast.Subscript | ast.Attribute):
        part = part.value
    if isinstance(part, ast.Name):
        yield part.id
    for child in ast.iter_child_nodes(node):
        yield from _touched(child)


def _nested_imports(node: ast.AST, guarded: bool, at_module_level: bool) -> Iterator[NestedImport]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield NestedImport(node, guarded, at_module_level)
        return
    if isinstance(node, ast.Try):
        caught = {
            part.attr if isinstance(part, ast.Attribute) else part.id
            for handler in node.handlers
            for part in ast.walk(handler.type or ast.Name("Exception"))
            if isinstance(part, ast.Name | ast.Attribute)
        }
        for statement in node.body:
            yield from _nested_imports(statement, guarded or bool(caught & set(_CAUGHT)), at_module_level)
        for other in [*node.handlers, *node.orelse, *node.finalbody]:
            yield from _nested_imports(other, guarded, at_module_level)
        return
    inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _nested_imports(child, guarded, at_module_level and not inside)


@dataclass(slots=True)
class Library:
    """Finds modules by name, without running any of them."""

    folders: tuple[str, ...] = ()
    """Looked at before the interpreter's own path."""
    known: dict[str, Module | None] = field(default_factory=dict)

    def add(self, module: Module) -> None:
        """Put a module that was read otherwise under its name."""
        self.known[module.name] = module

    def find(self, name: str) -> Module | None:
        """The module of a name, or None where there is none. Raises TaskProblem where it has no source."""
        if name not in self.known:
            self.known[name] = self._found(name)
        return self.known[name]

    def _found(self, name: str) -> Module | None:
        top, *rest = name.split(".")
        file, folders = _beside(top, [*self.folders, *sys.path])
        if file is None and not folders:
            # Editable installs answer through a finder of their own; a top-level name runs nothing.
            spec = importlib.util.find_spec(top)
            if spec is None:
                return None
            file = None if spec.origin is None else Path(spec.origin)
            folders = list(spec.submodule_search_locations or [])
        for part in rest:
            file, folders = _beside(part, folders)
        if file is None and not folders:
            return None
        return _read(name, file, folders)


def _beside(name: str, folders: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The file of a module in one of the folders, and the folders of its submodules where it is a package.

    As the interpreter looks, but without its finders, which want parent packages to be imported.
    """
    spaces: list[str] = []
    for folder in folders:
        at = Path(folder) / name
        if (at / "__init__.py").is_file():
            return at / "__init__.py", [str(at)]
        for suffix in importlib.machinery.all_suffixes():
            if (file := at.with_name(name + suffix)).is_file():
                return file, []
        if at.is_dir():
            spaces.append(str(at))  # a namespace package: a folder and nothing else
    return None, spaces


def _read(name: str, file: Path | None, folders: Sequence[str]) -> Module:
    if file is None:
        return Module(name, Path(folders[0]), "", ast.parse(""), True)
    if file.suffix != ".py":
        raise TaskProblem(
            f"module {name} has no Python source ({file}), so it cannot be copied",
            "scaffold a function whose helpers are written in Python",
        )
    source = read(file, "module's")
    return Module(name, file, source, parse(source, str(file)), bool(folders)).index()


def public(module: Module, name: str) -> bool:
    """Whether `from module import *` brings a name: as `__all__` says, else unless it starts with `_`."""
    for node in module.tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=names) | ast.Tuple(elts=names)):
                return any(isinstance(n, ast.Constant) and n.value == name for n in names)
    return not name.startswith("_")
