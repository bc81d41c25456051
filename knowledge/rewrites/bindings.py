"""Following a name to what it stands for, by syntax alone.

A name is followed only where exactly one assignment can have made it; anything else is answered with None, and
a rewrite then stays silent.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from tilewright.knowledge.rewrites.source import Source, dotted, walk


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """The one assignment that made a name."""

    statement: cst.CSTNode
    value: cst.BaseExpression | None
    """What was assigned; None where the name is a parameter, a loop variable or an import."""
    index: int | None = None
    """Which element of `value`, where the target was a tuple."""


def definitions(source: Source, name: str, scope: cst.FunctionDef | cst.Module) -> list[Definition]:
    """Everything in a scope that gives the name a value, in the order of the text; nested scopes left out."""
    found: list[Definition] = []
    if isinstance(scope, cst.FunctionDef):
        p = scope.params
        every: list[cst.Param] = [*p.posonly_params, *p.params, *p.kwonly_params]
        every += [q for q in (p.star_arg, p.star_kwarg) if isinstance(q, cst.Param)]
        found += [Definition(q, None) for q in every if q.name.value == name]
    stack: list[cst.CSTNode] = list(reversed(scope.children if isinstance(scope, cst.Module) else scope.body.children))
    while stack:
        node = stack.pop()
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            if node.name.value == name:
                found.append(Definition(node, None))
            continue
        if isinstance(node, cst.Lambda | cst.BaseComp):
            continue
        found += _defines(node, name)
        stack.extend(reversed(node.children))
    return found


def _defines(node: cst.CSTNode, name: str) -> list[Definition]:
    match node:
        case cst.Assign():
            return [d for t in node.targets for d in _targets(t.target, node.value, node, name)]
        case cst.AnnAssign(value=value) if value is not None:
            return _targets(node.target, value, node, name)
        case cst.AugAssign() | cst.For() | cst.NamedExpr():
            hit = any(isinstance(n, cst.Name) and n.value == name for n in walk(node.target))
            if isinstance(node, cst.NamedExpr) and hit:
                return [Definition(node, node.value)]
            return [Definition(node, None)] if hit else []
        case cst.AsName() | cst.Global() | cst.Nonlocal() | cst.Del():
            hit = any(isinstance(n, cst.Name) and n.value == name for n in walk(node))
            return [Definition(node, None)] if hit else []
        case cst.ImportAlias(asname=None):
            return [Definition(node, None)] if dotted(node.name).partition(".")[0] == name else []
    return []


def _targets(target: cst.BaseExpression, value: cst.BaseExpression, at: cst.CSTNode, name: str) -> list[Definition]:
    if isinstance(target, cst.Name):
        return [Definition(at, value)] if target.value == name else []
    if isinstance(target, cst.Tuple | cst.List):
        found = []
        plain = all(isinstance(e, cst.Element) for e in target.elements)
        for i, element in enumerate(target.elements):
            if isinstance(element.value, cst.Name) and element.value.value == name:
                if plain and isinstance(value, cst.Tuple | cst.List) and len(value.elements) == len(target.elements):
                    found.append(Definition(at, value.elements[i].value))
                else:
                    found.append(Definition(at, value if plain else None, i if plain else None))
        return found
    return []


def definition(source: Source, name: str, at: cst.CSTNode) -> Definition | None:
    """The only definition of a name as seen from a place: in the innermost scope that has one; else None."""
    scopes: list[cst.FunctionDef | cst.Module] = [n for n in source.ancestors(at) if isinstance(n, cst.FunctionDef)]
    if isinstance(at, cst.FunctionDef):
        scopes.insert(0, at)
    for scope in (*scopes, source.module):
        found = definitions(source, name, scope)
        if found:
            return found[0] if len(found) == 1 else None
    return None


def local_function(source: Source, name: str, at: cst.CSTNode) -> cst.FunctionDef | None:
    """The function that a name stands for at a place, where it is defined once and in this module."""
    made = definition(source, name, at)
    return made.statement if made is not None and isinstance(made.statement, cst.FunctionDef) else None


def returns(function: cst.FunctionDef) -> list[cst.BaseExpression]:
    """What a function returns, statement by statement; nested functions left out."""
    found: list[cst.BaseExpression] = []
    stack: list[cst.CSTNode] = list(reversed(function.body.children))
    while stack:
        node = stack.pop()
        if isinstance(node, cst.Return) and node.value is not None:
            found.append(node.value)
        elif not isinstance(node, cst.FunctionDef | cst.ClassDef | cst.Lambda):
            stack.extend(reversed(node.children))
    return found


def entries(source: Source, value: cst.BaseExpression, at: cst.CSTNode) -> dict[str, cst.BaseExpression] | None:
    """A dict's entries by literal key: written in place, `dict(k=v)`, or a name that nothing but reads touch."""
    if isinstance(value, cst.Name):
        made = definition(source, value.value, at)
        if made is None or made.value is None or made.index is not None:
            return None
        if not _untouched(source, value.value, source.function(at) or source.module):
            return None
        return entries(source, made.value, made.statement)
    written = items(value)
    return None if written is None else dict(written)


def _untouched(source: Source, name: str, scope: cst.CSTNode) -> bool:
    """Whether a dict is only spread (`**name`), so that its entries are those of its definition."""
    for node in walk(scope):
        if isinstance(node, cst.Name) and node.value == name:
            parent = source.parents[node]
            spread = isinstance(parent, cst.Arg) and parent.star == "**"
            if not (spread or isinstance(parent, cst.AssignTarget)):
                return False
    return True


def items(value: cst.CSTNode) -> list[tuple[str, cst.BaseExpression]] | None:
    """A dict's entries as written, `{...}` or `dict(...)`, where every key is a literal."""
    found: list[tuple[str, cst.BaseExpression]] = []
    if isinstance(value, cst.Dict):
        for element in value.elements:
            if not isinstance(element, cst.DictElement) or not isinstance(element.key, cst.SimpleString):
                return None
            found.append((str(element.key.evaluated_value), element.value))
        return found
    if isinstance(value, cst.Call) and dotted(value.func) == "dict":
        for arg in value.args:
            if arg.keyword is None:
                return None
            found.append((arg.keyword.value, arg.value))
        return found
    return None


def row_cover(source: Source, value: cst.BaseExpression, at: cst.CSTNode) -> cst.BaseExpression | None:
    """The `n` of a value that is `next_power_of_2(n)` wherever it comes from: in place, by name, from a helper.

    A helper (`BLOCK, warps = settings(n)`) counts where all it returns at that place is the power of two of
    one of its own parameters. `max(k, next_power_of_2(n))` covers too; `min(...)` does not.
    """
    return _cover(source, value, at, None, 6)


def _cover(
    source: Source, value: cst.BaseExpression, at: cst.CSTNode, index: int | None, depth: int
) -> cst.BaseExpression | None:
    if not depth:
        return None
    if isinstance(value, cst.Tuple) and index is not None and index < len(value.elements):
        return _cover(source, value.elements[index].value, at, None, depth - 1)
    if isinstance(value, cst.Name) and index is None:
        made = definition(source, value.value, at)
        if made is None or made.value is None:
            return None
        return _cover(source, made.value, made.statement, made.index, depth - 1)
    if not isinstance(value, cst.Call):
        return None
    called = dotted(value.func)
    if called.rpartition(".")[2] == "next_power_of_2" and len(value.args) == 1 and index is None:
        return value.args[0].value
    if called == "max" and index is None:
        inner = [_cover(source, a.value, at, None, depth - 1) for a in value.args]
        return next((n for n in inner if n is not None), None)
    helper = local_function(source, called, at) if called and "." not in called else None
    if helper is None:
        return None
    covered = [_cover(source, r, helper, index, depth - 1) for r in returns(helper)]
    parameters = [p.name.value for p in helper.params.params]
    if not covered or any(not isinstance(c, cst.Name) or c.value not in parameters for c in covered):
        return None
    used = {c.value for c in covered if isinstance(c, cst.Name)}
    if len(used) != 1:
        return None
    wanted = used.pop()
    if len(definitions(source, wanted, helper)) != 1:
        return None
    for position, arg in enumerate(value.args):
        if arg.star or (arg.keyword is None and position >= len(parameters)):
            return None
        if (arg.keyword.value if arg.keyword else parameters[position]) == wanted:
            return arg.value
    return None
