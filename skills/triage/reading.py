"""A candidate's source as triage sees it: kernels, their loops and memory accesses, and the launch code.

Read with `ast`, never run. What cannot be decided from the syntax is not claimed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

Lines = tuple[int, int]
REDUCTIONS = frozenset({"sum", "max", "min", "argmax", "argmin", "reduce", "xor_sum"})


@dataclass(frozen=True, eq=False)
class Kernel:
    """One `triton.jit` function."""

    node: ast.FunctionDef
    language: frozenset[str]
    """Names that stand for `triton.language` in this module."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Local names of operations imported by themselves: `from triton.language.math import rsqrt`."""

    def op(self, node: ast.AST) -> str | None:
        """The Triton operation that a call names (`load`, `sum`); None for any other node."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            base = ast.unparse(node.func.value)
            if base in self.language or base.rpartition(".")[0] in self.language:
                return node.func.attr
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self.names.get(node.func.id)
        return None

    def calls(self, *names: str, within: ast.AST | None = None) -> Iterator[ast.Call]:
        """Calls of these Triton operations, in the order of `ast.walk`."""
        for node in ast.walk(within or self.node):
            if self.op(node) in names and isinstance(node, ast.Call):
                yield node

    @cached_property
    def params(self) -> frozenset[str]:
        """Names of run-time parameters."""
        return frozenset(a.arg for a in self._args if not self._constexpr(a))

    @cached_property
    def constexprs(self) -> frozenset[str]:
        """Names of compile-time parameters."""
        return frozenset(a.arg for a in self._args if self._constexpr(a))

    @cached_property
    def loops(self) -> list[ast.For]:
        """`for` loops that are not unrolled at compile time, outermost first."""
        return [n for n in ast.walk(self.node) if isinstance(n, ast.For) and self.op(n.iter) != "static_range"]

    @cached_property
    def outer_loops(self) -> list[ast.For]:
        """Those that stand in no other loop."""
        inner = {id(n) for loop in self.loops for n in ast.walk(loop) if n is not loop}
        return [loop for loop in self.loops if id(loop) not in inner]

    @cached_property
    def assigned(self) -> dict[str, list[ast.expr]]:
        """Every expression that a name is bound to in the body."""
        found: dict[str, list[ast.expr]] = {}
        for node in ast.walk(self.node):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    found.setdefault(name, []).append(value)
                case ast.AugAssign(target=ast.Name(id=name), value=value):
                    found.setdefault(name, []).append(value)
        return found

    @cached_property
    def tensors(self) -> frozenset[str]:
        """Names whose value is a tensor of indices: they come from `arange`."""
        known: set[str] = set()
        while True:
            more = {
                n for n, values in self.assigned.items() if n not in known and any(self._wide(v, known) for v in values)
            }
            if not more:
                return frozenset(known)
            known |= more

    def wide(self, node: ast.AST) -> bool:
        """Whether an expression is a tensor of indices."""
        return self._wide(node, self.tensors)

    def root(self, pointer: ast.expr) -> str | None:
        """The pointer parameter that an address starts from, following assignments; None where it is not one."""
        node, seen = pointer, set[str]()
        while True:
            while isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
                node = node.left
            if not isinstance(node, ast.Name):
                return None
            if node.id in self.params:
                return node.id
            values = self.assigned.get(node.id)
            if not values or node.id in seen:
                return None
            seen.add(node.id)
            node = values[0]

    @property
    def _args(self) -> list[ast.arg]:
        a = self.node.args
        return [*a.posonlyargs, *a.args, *a.kwonlyargs]

    def _constexpr(self, arg: ast.arg) -> bool:
        return arg.annotation is not None and "constexpr" in ast.unparse(arg.annotation)

    def _wide(self, node: ast.AST, known: set[str] | frozenset[str]) -> bool:
        # What a load or a reduction yields is data, not an index, whatever its address is made of.
        if self.op(node) in {"load", *REDUCTIONS}:
            return False
        if self.op(node) == "arange" or (isinstance(node, ast.Name) and node.id in known):
            return True
        return any(self._wide(child, known) for child in ast.iter_child_nodes(node))


@dataclass(frozen=True, eq=False)
class Launch:
    """One `kernel[grid](…)` in launch code."""

    call: ast.Call
    kernel: str
    function: str
    """The function or method that contains it."""


@dataclass(frozen=True, eq=False)
class Module:
    """A candidate, read."""

    tree: ast.Module
    kernels: tuple[Kernel, ...]
    launches: tuple[Launch, ...]
    functions: tuple[ast.FunctionDef, ...]
    """Functions and methods that are not kernels."""
    defined: frozenset[str] = field(default_factory=frozenset)
    """Names of the functions and classes at module level."""


def read(source: str) -> Module:
    """Read a candidate. Raises SyntaxError where it is not Python."""
    tree = ast.parse(source)
    language, operations = frozenset(_language(tree)), dict(_operations(tree))
    defs = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    jitted = {n for n in defs if any(_last(d) == "jit" for d in n.decorator_list)}
    names = {n.name for n in jitted}
    plain = tuple(n for n in defs if n not in jitted)
    return Module(
        tree=tree,
        kernels=tuple(Kernel(n, language, operations) for n in defs if n in jitted),
        launches=tuple(launch for f in plain for launch in _launches(f, names)),
        functions=plain,
        defined=frozenset(n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))),
    )


def span(node: ast.AST) -> Lines:
    """First and last line of a node."""
    first = getattr(node, "lineno", 1)
    return first, getattr(node, "end_lineno", None) or first


def decorators(kernel: Kernel) -> list[str]:
    """Last component of each decorator's name."""
    return [_last(d) for d in kernel.node.decorator_list]


def _language(tree: ast.Module) -> Iterator[str]:
    yield from ("tl", "triton.language")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.asname for a in node.names if a.name == "triton.language" and a.asname)
        elif isinstance(node, ast.ImportFrom) and node.module == "triton":
            yield from (a.asname or a.name for a in node.names if a.name == "language")


def _operations(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("triton.language"):
            yield from ((a.asname or a.name, a.name) for a in node.names)


def _last(decorator: ast.expr) -> str:
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _launches(function: ast.FunctionDef, kernels: set[str]) -> Iterator[Launch]:
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Subscript(value=ast.Name(id=name))) if name in kernels:
                yield Launch(node, name, function.name)
