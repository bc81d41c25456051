"""What each expression of one kernel means, in terms of its parameters.

The kernel's body is followed once, top to bottom. A name stands for what was last assigned to it, so
`X + row * stride + cols` and `Xr = X + row * stride; Xr + cols` get the same text; sums and products are put in
order. What cannot be said (a loaded value, a value carried round a loop, one that differs between branches) gets
a text of its own that equals nothing else. A loop's variable gets a text made of its start, stop and step: two
loops over the same range have equal texts for equal positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from tilewright.knowledge.rewrites.meaning import LONGEST, Expressions
from tilewright.knowledge.rewrites.values import Flow, Loop, Value

if TYPE_CHECKING:
    from tilewright.knowledge.rewrites.kernels import Language

_RANGES = frozenset({"range", "static_range"})


def trace(function: cst.FunctionDef, language: Language) -> Flow:
    """Follow one kernel's body."""
    params = [*function.params.posonly_params, *function.params.params, *function.params.kwonly_params]
    tracer = _Tracer(language, {p.name.value for p in params})
    tracer.block(function.body, ())
    return tracer.flow


class _Tracer(Expressions):
    # statements ---------------------------------------------------------------------------------------

    def block(self, block: cst.BaseSuite, path: tuple[cst.CSTNode, ...]) -> None:
        path = (*path, block)
        for statement in block.body:
            self.path = path
            if isinstance(statement, cst.SimpleStatementLine):
                self.statement = statement
                for small in statement.body:
                    self.small(small)
            elif isinstance(statement, cst.If):
                self.branch(statement, path)
            elif isinstance(statement, cst.For):
                self.loop(statement, path)
            elif isinstance(statement, cst.BaseSmallStatement):
                self.statement = statement
                self.small(statement)
            else:
                self.opaque(statement, path)

    def small(self, node: cst.BaseSmallStatement) -> None:
        if isinstance(node, cst.Assign):
            value = self.eval(node.value)
            for target in node.targets:
                self.bind(target.target, value, node.value)
        elif isinstance(node, cst.AnnAssign) and node.value is not None:
            self.bind(node.target, self.eval(node.value), node.value)
        elif isinstance(node, cst.AugAssign):
            self.bind(node.target, self.combine(node.operator, self.eval(node.target), self.eval(node.value)), None)
        elif isinstance(node, cst.Expr | cst.Return):
            if node.value is not None:
                self.eval(node.value)
        elif isinstance(node, cst.Break | cst.Continue):
            self.flow.unclear.append(type(node).__name__.lower())

    def bind(self, target: cst.BaseExpression, value: Value, source: cst.BaseExpression | None) -> None:
        if isinstance(target, cst.Name):
            self.env[target.value] = value if len(value.text) <= LONGEST else self.fresh(target.value, value.shape)
        elif isinstance(target, cst.Tuple | cst.List):
            items = source.elements if isinstance(source, cst.Tuple | cst.List) else None
            known = [self.flow.values[i.value] for i in items] if items else []
            for i, element in enumerate(target.elements):
                whole = self.fresh("part", None) if i >= len(known) else known[i]
                self.bind(element.value, whole, None)
        else:
            self.eval(target)

    def branch(self, node: cst.If, path: tuple[cst.CSTNode, ...]) -> None:
        self.eval(node.test)
        before = dict(self.env)
        self.block(node.body, path)
        taken, self.env = self.env, dict(before)
        if isinstance(node.orelse, cst.Else):
            self.block(node.orelse.body, path)
        elif isinstance(node.orelse, cst.If):
            self.branch(node.orelse, path)
        if _leaves(node.body):
            return
        for name in taken.keys() | self.env.keys():
            a, b = taken.get(name), self.env.get(name)
            if a is None or b is None or a.text != b.text:
                self.env[name] = self.again(name, *(v for v in (a, b) if v is not None))

    def loop(self, node: cst.For, path: tuple[cst.CSTNode, ...]) -> None:
        call, written = node.iter, _written(node.body)
        op = None
        if isinstance(call, cst.Call):
            plain = isinstance(call.func, cst.Name) and call.func.value == "range"
            op = "range" if plain else self.language.op(call.func)
        bounds: list[Value] = []
        if op in _RANGES and isinstance(call, cst.Call):
            bounds = [self.eval(a.value) for a in call.args if a.keyword is None]
            for a in call.args:
                if a.keyword is not None:
                    self.eval(a.value)
        carried = frozenset(written & self.env.keys())
        entry = {name: self.env[name] for name in carried}
        loop = None
        if bounds and isinstance(node.target, cst.Name) and op is not None and isinstance(call, cst.Call):
            texts = [b.text for b in bounds]
            start, stop, step = ["0", *texts, "1"] if len(texts) == 1 else [*texts, "1"][:3]
            self.count += 1
            loop = Loop(
                node=node,
                var=node.target.value,
                start=start,
                stop=stop,
                step=step,
                kind=op,
                token=f"loop({start},{stop},{step})",
                carried=carried,
                entry=entry,
                inside={},
                outer=self.loops,
                path=path,
                order=self.count,
            )
            self.flow.loops.append(loop)
        else:
            self.flow.unclear.append("for")
        for name in carried:
            self.env[name] = self.again(name, entry[name])
            if loop is not None:
                loop.inside[name] = self.env[name]
        if loop is not None:
            self.env[loop.var] = Value(loop.token)
            self.loops = (*self.loops, loop)
        else:
            self.bind(node.target, self.fresh("item", None), None)
        self.block(node.body, path)
        self.loops = self.loops[:-1] if loop is not None else self.loops
        for name in written & self.env.keys():
            self.env[name] = self.again(name, self.env[name])

    def opaque(self, node: cst.CSTNode, path: tuple[cst.CSTNode, ...]) -> None:
        self.flow.unclear.append(type(node).__name__.lower())
        for name in _written(node):
            self.env[name] = self.fresh(name, None)
        if isinstance(node, cst.While):
            self.eval(node.test)
            self.block(node.body, path)
            for name in _written(node):
                self.env[name] = self.fresh(name, None)


def _leaves(block: cst.BaseSuite) -> bool:
    """True when a block ends the kernel, so that nothing it binds is seen after it."""
    last = block.body[-1] if block.body else None
    return isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Return)


def _written(node: cst.CSTNode) -> set[str]:
    from tilewright.knowledge.rewrites.kernels import names_written

    return set(names_written(node))
