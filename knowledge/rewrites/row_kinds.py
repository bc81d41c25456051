"""From one row a program to a tile of rows: the statements of a kernel, followed from top to bottom.

Anything that has no such reading (a branch on a row's value, a store that all rows share, a reshape) is refused.
"""

from __future__ import annotations

import libcst as cst

from tilewright.knowledge.rewrites.elementwise import ATOMICS, REDUCTIONS, SILENT, Refused
from tilewright.knowledge.rewrites.kernels import Language
from tilewright.knowledge.rewrites.row_expressions import LIFT, Kind, RowExpressions, Value, atom
from tilewright.knowledge.rewrites.source import Patch, dotted


class _Grow(Exception):
    """An initial value must have the shape of what its loop carries."""

    def __init__(self, site: cst.CSTNode, kind: Kind) -> None:
        self.site, self.kind = site, kind


class RowKinds(RowExpressions):
    """One kernel, followed from top to bottom."""

    def run(self) -> None:
        """Fills `patches`, `blocks`. `Refused`: there is no reading as a tile of rows."""
        for _ in range(16):
            self.patches, self.environment, self.found = [], {}, 0
            try:
                self.block(self.kernel.body)
            except _Grow as grow:
                if grow.site in self.grown:
                    raise Refused("a value carried round a loop changes its shape") from None
                self.grown[grow.site] = grow.kind
                continue
            if not self.found:
                raise Refused("the kernel does not read tl.program_id(0)")
            return
        raise Refused("the shapes of values carried round loops do not settle")

    # --- statements ------------------------------------------------------------------------------------

    def block(self, body: cst.BaseSuite) -> None:
        """One suite."""
        for statement in body.body:
            match statement:
                case cst.SimpleStatementLine():
                    for small in statement.body:
                        self.small(small)
                case cst.If():
                    self.branch(statement)
                case cst.For():
                    self.loop(statement)
                case cst.BaseSmallStatement():
                    self.small(statement)
                case _:
                    raise Refused(f"{type(statement).__name__.lower()} statements are not followed")

    def small(self, node: cst.BaseSmallStatement) -> None:
        match node:
            case cst.Assign(targets=[cst.AssignTarget(target=target)], value=value):
                self.assign(target, value)
            case cst.AnnAssign(target=target, value=value) if value is not None:
                self.assign(target, value)
            case cst.AugAssign():
                self.augment(node)
            case cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString()):
                pass
            case cst.Expr(value=cst.Call() as call) if self.language.op(call.func) == "store":
                self.store(call)
            case cst.Expr(value=cst.Call() as call) if self.language.op(call.func) in ATOMICS:
                self.store(call)
            case cst.Expr(value=cst.Call() as call) if self.language.op(call.func) in SILENT:
                pass
            case cst.Return(value=None) | cst.Pass():
                pass
            case _:
                raise Refused(f"`{self.source.code(node)[:60]}` is not followed")

    def assign(self, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        if isinstance(target, cst.Name):
            self.environment[target.value] = Value(self.kind(value), _constant(value, self.language))
            return
        names = [e.value for e in target.elements] if isinstance(target, cst.Tuple) else []
        if not names or any(not isinstance(n, cst.Name) for n in names):
            raise Refused(f"assignment to `{self.source.code(target)}` is not followed")
        if isinstance(value, cst.Tuple) and len(value.elements) == len(names):
            kinds = [self.kind(e.value) for e in value.elements]
        elif isinstance(value, cst.Call) and self.language.op(value.func) in REDUCTIONS:
            kinds = [self.reduce(value, pair=True)] * len(names)
        else:
            raise Refused(f"`{self.source.code(value)[:60]}` gives several values and is not followed")
        for name, kind in zip(names, kinds, strict=True):
            if isinstance(name, cst.Name):
                self.environment[name.value] = Value(kind)

    def augment(self, node: cst.AugAssign) -> None:
        if not isinstance(node.target, cst.Name):
            raise Refused(f"assignment to `{self.source.code(node.target)}` is not followed")
        left, right = self.read(node.target), self.kind(node.value)
        both = self.join(left, right)
        if both is not left and left is not Kind.SAME and both is Kind.MATRIX:
            # `pointer += columns`: the target itself must be lifted, so the statement is written out.
            start, end = self.source.span(node.operator)
            lifted = node.target.value + LIFT[left]
            operator = self.source.code(node.operator).strip().removesuffix("=")
            self.patches.append(Patch(start, end, f" = {lifted} {operator} "))
            if right is Kind.MATRIX and not atom(node.value):
                self.wrap(node.value)
        self.lift(node.value, right, both)
        self.environment[node.target.value] = Value(both)

    def branch(self, node: cst.If) -> None:
        if self.kind(node.test) is not Kind.SAME:
            raise Refused(f"`if {self.source.code(node.test)[:60]}` branches on a value of one row")
        before = dict(self.environment)
        self.block(node.body)
        taken, self.environment = self.environment, before
        match node.orelse:
            case cst.If():
                self.branch(node.orelse)
            case cst.Else():
                self.block(node.orelse.body)
        for name, value in taken.items():
            other = self.environment.get(name)
            if other is None:
                self.environment[name] = value
            elif other.kind is not value.kind:
                self.environment[name] = Value(Kind.MIXED)
            elif other.site is not value.site:
                self.environment[name] = Value(value.kind)

    def loop(self, node: cst.For) -> None:
        call = node.iter
        called = dotted(call.func) if isinstance(call, cst.Call) else ""
        if not isinstance(call, cst.Call) or called.rpartition(".")[2] not in ("range", "static_range"):
            raise Refused(f"`for … in {self.source.code(node.iter)[:40]}` is not a range")
        if not isinstance(node.target, cst.Name) or node.orelse is not None:
            raise Refused("a loop of this form is not followed")
        if any(self.kind(a.value) is not Kind.SAME for a in call.args):
            raise Refused("a loop's bounds depend on the row")
        self.environment[node.target.value] = Value(Kind.SAME)
        before = dict(self.environment)
        self.block(node.body)
        for name, value in before.items():
            after = self.environment[name]
            if after.kind is not value.kind:
                if value.site is None or after.kind is Kind.MIXED:
                    raise Refused(f"`{name}` is {value.kind.value} before a loop and {after.kind.value} after it")
                raise _Grow(value.site, after.kind)
            if after.site is not value.site:
                self.environment[name] = Value(value.kind)


def _constant(node: cst.BaseExpression, language: Language) -> cst.CSTNode | None:
    """The node, where it makes a constant whose shape could be another."""
    if isinstance(node, cst.Integer | cst.Float):
        return node
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        return node if _constant(node.expression, language) is not None else None
    if isinstance(node, cst.Call) and (dotted(node.func) == "float" or language.op(node.func) in ("zeros", "full")):
        return node
    return None
