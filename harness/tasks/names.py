"""Which names of a statement belong to its module, and where they stand: Python's scoping, read from the tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A name of the module's own scope, used or bound within a statement."""

    name: str
    node: ast.Name | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Global
    """Where it stands. A definition or a `global` names it somewhere in its text."""
    chain: tuple[ast.Attribute, ...] = ()
    """Attributes taken of it, innermost first: for `a.b.c` those of `b` and `c`."""
    binds: bool = False
    soft: bool = False
    """In an annotation that is never evaluated."""

    @property
    def dotted(self) -> str:
        """The name with its attributes: `torch.nn.functional`."""
        return ".".join([self.name, *(a.attr for a in self.chain)])


def bound(statements: Iterable[ast.AST]) -> set[str]:
    """Names that statements bind in their own scope, blocks included, inner functions and classes not."""
    return set(_bindings(statements))


def _bindings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
                yield from _bindings(node.decorator_list)
                continue
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (a.asname or a.name.partition(".")[0] for a in names)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name
            case ast.Lambda():
                continue
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                yield from (n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
                continue
        yield from _bindings(ast.iter_child_nodes(node))


def occurrences(statement: ast.stmt, *, lazy_annotations: bool = False) -> list[Occurrence]:
    """Every place in a top statement that names something of the module (or a builtin)."""
    finder = _Finder(lazy_annotations)
    finder.visit(statement)
    return finder.found


class _Finder(ast.NodeVisitor):
    def __init__(self, lazy_annotations: bool) -> None:
        self.found: list[Occurrence] = []
        self.lazy = lazy_annotations
        self.soft = False
        self.scopes: list[tuple[set[str], set[str], bool]] = []
        """Inner scopes, outermost first: bound names, names declared global, whether it is a class body."""

    def is_global(self, name: str) -> bool:
        for depth, (local, declared, is_class) in enumerate(reversed(self.scopes)):
            if name in declared:
                return True
            if name in local and (not is_class or depth == 0):
                return False
        return True

    def add(self, name: str, node: ast.AST, chain: tuple[ast.Attribute, ...] = (), binds: bool = False) -> None:
        assert isinstance(node, ast.Name | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Global)
        if self.is_global(name):
            self.found.append(Occurrence(name, node, chain, binds, self.soft))

    def visit_Name(self, node: ast.Name) -> None:
        self.add(node.id, node, binds=not isinstance(node.ctx, ast.Load))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        chain = [node]
        while isinstance(inner := chain[-1].value, ast.Attribute):
            chain.append(inner)
        if isinstance(inner, ast.Name):
            self.add(inner.id, inner, tuple(reversed(chain)))
        else:
            self.visit(inner)

    def visit_Global(self, node: ast.Global) -> None:
        for name in node.names:
            self.found.append(Occurrence(name, node, binds=True))

    def annotation(self, node: ast.expr | None, lazy: bool) -> None:
        if node is not None:
            before, self.soft = self.soft, self.soft or lazy
            self.visit(node)
            self.soft = before

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        self.annotation(node.annotation, self.lazy or bool(self.scopes and not self.scopes[-1][2]))
        if node.value is not None:
            self.visit(node.value)

    def arguments(self, args: ast.arguments) -> list[ast.arg]:
        everything = [*args.posonlyargs, *args.args, *args.kwonlyargs]
        everything += [a for a in (args.vararg, args.kwarg) if a is not None]
        for arg in everything:
            self.annotation(arg.annotation, self.lazy)
        for default in [*args.defaults, *(d for d in args.kw_defaults if d is not None)]:
            self.visit(default)
        return everything

    def function(self, node: _Function, body: list[ast.stmt] | list[ast.expr]) -> None:
        params = {a.arg for a in self.arguments(node.args)}
        params |= {p.name for p in getattr(node, "type_params", [])}
        declared = {n for s in body for g in ast.walk(s) if isinstance(g, ast.Global) for n in g.names}
        outer = {n for s in body for g in ast.walk(s) if isinstance(g, ast.Nonlocal) for n in g.names}
        self.scopes.append(((bound(body) - declared - outer) | params, declared, False))
        for part in body:
            self.visit(part)
        self.scopes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        self.add(node.name, node, binds=True)
        self.annotation(node.returns, self.lazy)
        self.function(node, node.body)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.function(node, [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in [*node.decorator_list, *node.bases, *(k.value for k in node.keywords)]:
            self.visit(part)
        self.add(node.name, node, binds=True)
        self.scopes.append((bound(node.body), set(), True))
        for statement in node.body:
            self.visit(statement)
        self.scopes.pop()

    def comprehension(self, node: _Comprehension, results: list[ast.expr]) -> None:
        self.visit(node.generators[0].iter)
        names = {
            n.id
            for g in node.generators
            for n in ast.walk(g.target)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        self.scopes.append((names, set(), False))
        for i, generator in enumerate(node.generators):
            self.visit(generator.target)
            for part in [*([generator.iter] if i else []), *generator.ifs]:
                self.visit(part)
        for result in results:
            self.visit(result)
        self.scopes.pop()

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self.comprehension(node, [node.elt])

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self.comprehension(node, [node.elt])

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self.comprehension(node, [node.elt])

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self.comprehension(node, [node.key, node.value])
