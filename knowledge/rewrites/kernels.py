"""What a kernel does, read from its syntax: how the module spells Triton, and each kernel's flow.

`source.read` parses a module and `launches.kernels` finds its kernels; `flow(source, kernel)` then follows one
kernel from top to bottom (see `flow.py`) and says of every expression what it is in terms of the kernel's
parameters, so that two spellings of one address compare equal. Nothing here is executed and nothing is edited.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import libcst as cst

from tilewright.knowledge.rewrites.flow import trace
from tilewright.knowledge.rewrites.launches import Kernel, kernels
from tilewright.knowledge.rewrites.source import Source, dotted, names, walk
from tilewright.knowledge.rewrites.values import Flow

_MEMORY = frozenset({"load", "store", "load_tensor_descriptor", "store_tensor_descriptor", "inline_asm_elementwise"})


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Language:
    """How one module spells Triton's language."""

    aliases: frozenset[str]
    """Dotted names that stand for `triton.language`: `tl`, `triton.language`."""
    names: dict[str, str]
    """Local names imported from it or its maths libraries: `{'tanh': 'tanh'}`."""
    functions: dict[str, cst.FunctionDef]
    """Every `triton.jit` function of the module."""
    globals: frozenset[str]
    """Names bound at module level."""

    @property
    def prefix(self) -> str:
        """The shortest way to write `triton.language` here: `tl`."""
        return min(self.aliases, key=lambda a: (len(a), a))

    def op(self, function: cst.BaseExpression) -> str | None:
        """The operation that a called expression names (`load`, `sum`, `program_id`); None when it is not Triton's."""
        if isinstance(function, cst.Name):
            return self.names.get(function.value)
        if isinstance(function, cst.Attribute):
            base = dotted(function.value)
            if base:
                parent = base.rpartition(".")[0] if base.endswith((".math", ".libdevice")) else base
                if base in self.aliases or parent in self.aliases:
                    return function.attr.value
        return None

    def touches_memory(self, name: str, seen: frozenset[str] = frozenset()) -> bool:
        """True when the jit function `name`, or one that it calls, reads, writes or synchronises memory."""
        if name not in self.functions or name in seen:
            return name not in self.functions
        for call in calls(self.functions[name]):
            op = self.op(call.func)
            if op is not None and (op in _MEMORY or op.startswith("atomic") or "barrier" in op):
                return True
            called = call.func.value if isinstance(call.func, cst.Name) else None
            if called in self.functions and self.touches_memory(called, seen | {name}):
                return True
        return False


def flow(source: Source, kernel: Kernel) -> Flow:
    """What each expression of a kernel means, and its loops and memory accesses in program order."""
    return _flow(source, kernel.node)


@functools.lru_cache(maxsize=64)
def _flow(source: Source, node: cst.FunctionDef) -> Flow:
    return trace(node, language(source))


def plain(kernel: Kernel) -> bool:
    """True when nothing but `jit` decorates the kernel, so that the launch alone decides every parameter."""
    return len(kernel.node.decorators) == 1


def constexprs(kernel: Kernel) -> frozenset[str]:
    """Names of the compile-time parameters."""
    return frozenset(p.name for p in kernel.parameters if p.constexpr)


def calls(node: cst.CSTNode) -> Iterator[cst.Call]:
    """Every call at or under a node."""
    return (n for n in walk(node) if isinstance(n, cst.Call))


def names_written(node: cst.CSTNode) -> frozenset[str]:
    """Names that a statement binds, in nested statements too."""
    found: set[str] = set()
    for n in walk(node):
        targets: list[cst.BaseExpression] = []
        if isinstance(n, cst.AssignTarget | cst.AugAssign | cst.AnnAssign | cst.For | cst.NamedExpr):
            targets.append(n.target)
        for target in targets:
            found |= {t.value for t in walk(target) if isinstance(t, cst.Name)}
    return frozenset(found)


def argument(call: cst.Call, position: int, name: str) -> cst.BaseExpression | None:
    """A call's argument by position or keyword; None where it is absent."""
    positional = [a.value for a in call.args if a.keyword is None and not a.star]
    if position < len(positional):
        return positional[position]
    return next((a.value for a in call.args if a.keyword and a.keyword.value == name), None)


def exposed(statements: Iterable[cst.CSTNode], name: str) -> tuple[bool, bool]:
    """Whether some statements may read a name's earlier value, and whether they certainly set it."""
    for s in statements:
        if isinstance(s, cst.SimpleStatementLine):
            reads, sets = exposed(s.body, name)
        elif isinstance(s, cst.Assign | cst.AnnAssign):
            targets = [t.target for t in s.targets] if isinstance(s, cst.Assign) else [s.target]
            parts = [e.value for t in targets if isinstance(t, cst.Tuple) for e in t.elements]
            sets = any(isinstance(t, cst.Name) and t.value == name for t in (*targets, *parts))
            whole = [t for t in targets if not isinstance(t, cst.Name | cst.Tuple)]
            reads = any(name in names(n) for n in (s.value, *whole) if n is not None)
        elif isinstance(s, cst.If):
            then, other = exposed(s.body.body, name), (False, False)
            if s.orelse is not None:
                other = exposed(s.orelse.body.body if isinstance(s.orelse, cst.Else) else [s.orelse], name)
            reads = name in names(s.test) or then[0] or other[0]
            sets = then[1] and other[1]
        elif isinstance(s, cst.For):
            bound = name in {n.value for n in walk(s.target) if isinstance(n, cst.Name)}
            reads, sets = name in names(s.iter) or (not bound and exposed(s.body.body, name)[0]), False
        else:
            reads, sets = name in names(s), False
        if reads or sets:
            return reads, sets
    return False, False


def following(source: Source, node: cst.CSTNode) -> list[cst.CSTNode]:
    """The statements that can run after one, to the end of its function; a loop around it starts again."""
    found: list[cst.CSTNode] = []
    at = node
    for around in source.ancestors(node):
        if isinstance(around, cst.IndentedBlock | cst.SimpleStatementLine):
            body = list(around.body)
            found += body[body.index(at) + 1 :]
        if isinstance(around, cst.For):
            found += around.body.body
        if isinstance(around, cst.FunctionDef):
            break
        at = around
    return found


@functools.lru_cache(maxsize=32)
def language(source: Source) -> Language:
    """How a module spells Triton's language, from its imports."""
    tree, functions = source.module, {k.name: k.node for k in kernels(source).values()}
    aliases, names, bound = {"triton.language"}, {}, set(functions)
    for node in walk(tree):
        if isinstance(node, cst.Import):
            for item in node.names:
                full = dotted(item.name)
                local = item.asname.name.value if item.asname and isinstance(item.asname.name, cst.Name) else full
                bound.add((local or "").partition(".")[0])
                if local and full == "triton.language":
                    aliases.add(local)
                elif local and full == "triton":
                    aliases.add(f"{local}.language")
        elif isinstance(node, cst.ImportFrom) and node.module and not isinstance(node.names, cst.ImportStar):
            module = dotted(node.module)
            for item in node.names:
                full = item.name.value if isinstance(item.name, cst.Name) else ""
                local = item.asname.name.value if item.asname and isinstance(item.asname.name, cst.Name) else full
                bound.add(local)
                if f"{module}.{full}" == "triton.language" or full == "libdevice":
                    aliases.add(local)
                elif module.startswith("triton.language"):
                    names[local] = full
    for statement in tree.body:
        bound |= (
            names_written(statement) if isinstance(statement, cst.SimpleStatementLine | cst.If | cst.Try) else set()
        )
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            bound.add(statement.name.value)
    return Language(aliases=frozenset(aliases), names=names, functions=functions, globals=frozenset(bound))
