"""What a loop accumulates: which names, by which operation, from what start, of what type and shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst

from tilewright.knowledge.rewrites.copies import Unfit
from tilewright.knowledge.rewrites.kernels import Language, argument, constexprs
from tilewright.knowledge.rewrites.launches import Kernel
from tilewright.knowledge.rewrites.source import names, walk
from tilewright.knowledge.rewrites.values import Flow, Loop, Shape

Update = cst.Assign | cst.AugAssign | cst.AnnAssign

PICK = {"max": "maximum", "min": "minimum"}
"""Reduction -> the operation that does the same for two tiles."""
LIMIT = {"max": 'float("-inf")', "min": 'float("inf")'}
"""Reduction -> what changes nothing."""
MINUS_INFINITY = frozenset({'Minus(float("inf"))', "Minus(float('inf'))", 'float("-inf")', "float('-inf')"})
_INFINITY = frozenset({'float("inf")', "float('inf')"})


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A name that a loop combines something into, and nothing else."""

    name: str
    kind: str
    """`sum`, `max` or `min`."""
    updates: tuple[Update, ...]
    values: tuple[cst.BaseExpression, ...]
    """What each update combines into it."""


def updates(loop: cst.For, name: str) -> list[Update]:
    """The statements of a loop that bind a name."""
    found: list[Update] = []
    for node in walk(loop.body):
        if isinstance(node, cst.Assign):
            hit = any(isinstance(n, cst.Name) and n.value == name for t in node.targets for n in walk(t.target))
        elif isinstance(node, cst.AugAssign | cst.AnnAssign):
            hit = isinstance(node.target, cst.Name) and node.target.value == name
        else:
            continue
        if hit:
            found.append(node)
    return found


def accumulator(spoken: Language, loop: Loop, name: str) -> Accumulator | None:
    """How a loop accumulates into a name; None where it uses the name in any other way."""
    changed = updates(loop.node, name)
    combined = [_combined(spoken, u, name) for u in changed]
    found = [c for c in combined if c is not None]
    if not changed or len(found) != len(changed) or len({kind for kind, _ in found}) != 1:
        return None
    reads = sum(isinstance(n, cst.Name) and n.value == name for n in walk(loop.node.body))
    inside = sum(isinstance(n, cst.Name) and n.value == name for u in changed for n in walk(u))
    if reads != inside or any(name in names(v) for _, v in found):
        return None
    return Accumulator(name, found[0][0], tuple(changed), tuple(v for _, v in found))


def _combined(spoken: Language, update: Update, name: str) -> tuple[str, cst.BaseExpression] | None:
    if isinstance(update, cst.AugAssign):
        return ("sum", update.value) if isinstance(update.operator, cst.AddAssign) else None
    if not isinstance(update, cst.Assign) or len(update.targets) != 1:
        return None
    if not isinstance(update.targets[0].target, cst.Name):
        return None
    value = update.value
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add):
        for mine, other in ((value.left, value.right), (value.right, value.left)):
            if isinstance(mine, cst.Name) and mine.value == name:
                return "sum", other
    if isinstance(value, cst.Call):
        op = spoken.op(value.func) or (value.func.value if isinstance(value.func, cst.Name) else "")
        kind = {"maximum": "max", "max": "max", "minimum": "min", "min": "min"}.get(op)
        if kind is not None and len(value.args) == 2 and all(a.keyword is None for a in value.args):
            a, b = value.args[0].value, value.args[1].value
            for mine, other in ((a, b), (b, a)):
                if isinstance(mine, cst.Name) and mine.value == name:
                    return kind, other
        into = argument(value, 2, "acc")
        if op == "dot" and isinstance(into, cst.Name) and into.value == name:
            kept = [a for a in value.args if a.value is not into]
            return "sum", value.with_changes(args=kept)
    return None


def reduction(spoken: Language, node: cst.BaseExpression, kind: str) -> cst.Call | None:
    """A plain `tl.sum(x)` or `tl.sum(x, axis)` of that kind; None for anything else."""
    if not isinstance(node, cst.Call) or spoken.op(node.func) != kind:
        return None
    keywords = {a.keyword.value for a in node.args if a.keyword is not None}
    return node if keywords <= {"axis", "input"} and len(node.args) <= 2 else None


def operand(found: Flow, call: cst.Call) -> cst.BaseExpression:
    """What a reduction reduces."""
    tile = argument(call, 0, "input")
    if tile is None or tile not in found.values:
        raise Unfit("what is reduced cannot be read")
    return tile


@dataclass(frozen=True, slots=True)
class Softmax:
    """`new = max(m, max(x)); d = d * e(m - new) + sum(e(x - new)); m = new` in a loop."""

    largest: str
    """`m`."""
    total: str
    """`d`."""
    new: str
    aliases: tuple[str, ...]
    """Names that stand between: of `max(x)`, of `e(m - new)`, of `e(x - new)`."""
    factor: cst.BaseExpression
    """`e(m - new)`."""
    terms: cst.BaseExpression
    """`e(x - new)`."""
    tile: cst.BaseExpression
    """`x`."""
    top: cst.Call
    """`max(x)`."""
    summed: cst.Call
    """`sum(e(x - new))`."""
    lines: Mapping[str, cst.Assign]
    """The assignment of each name."""


def online(spoken: Language, found: Flow, loop: Loop, total: str) -> Softmax | None:
    """The online softmax whose sum is `total`; `Unfit` where one is meant but does not hold together."""
    lines = [s.body[0] for s in loop.node.body.body if isinstance(s, cst.SimpleStatementLine) and len(s.body) == 1]
    simple = {
        s.targets[0].target.value: s
        for s in lines
        if isinstance(s, cst.Assign) and len(s.targets) == 1 and isinstance(s.targets[0].target, cst.Name)
    }
    value = simple[total].value if total in simple and total in loop.carried else None
    if not isinstance(value, cst.BinaryOperation) or not isinstance(value.operator, cst.Add):
        return None
    for scaled, added in ((value.left, value.right), (value.right, value.left)):
        summed, right = reduction(spoken, added, "sum"), _scaled(scaled, total)
        if summed is not None and right is not None and len(updates(loop.node, total)) == 1:
            break
    else:
        return None
    aliases: list[str] = []

    def behind(node: cst.BaseExpression) -> cst.BaseExpression:
        once = isinstance(node, cst.Name) and node.value in simple and len(updates(loop.node, node.value)) == 1
        if once and isinstance(node, cst.Name) and node.value not in loop.carried:
            aliases.append(node.value)
            return simple[node.value].value
        return node

    problem = ""
    tile_sum = operand(found, summed)
    for largest, step in simple.items():
        aliases.clear()
        factor, terms = behind(right), behind(tile_sum)
        new = step.value.value if isinstance(step.value, cst.Name) else ""
        if largest not in loop.carried or new not in simple or len(updates(loop.node, largest)) != 1:
            continue
        top, between = _running(spoken, simple, largest, new)
        if top is None:
            continue
        if between is not None:
            aliases.append(between)
        tile, before = operand(found, top), loop.inside[largest].text
        scale, summand = (found.values[e].text.replace(found.values[step.value].text, "NEW") for e in (factor, terms))
        if f"({before} Subtract NEW)" not in scale:
            problem = "it is not scaled by a function of how much the maximum rose"
        elif scale.replace(before, found.values[tile].text) != summand:
            problem = "it does not scale by the same function of the maximum that it sums"
        else:
            return Softmax(largest, total, new, tuple(aliases), factor, terms, tile, top, summed, simple)
    if problem:
        raise Unfit(problem)
    return None


def _scaled(node: cst.BaseExpression, total: str) -> cst.BaseExpression | None:
    """The factor in `total * factor` or `factor * total`."""
    if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Multiply):
        return None
    for mine, other in ((node.left, node.right), (node.right, node.left)):
        if isinstance(mine, cst.Name) and mine.value == total:
            return other
    return None


def _running(
    spoken: Language, simple: Mapping[str, cst.Assign], largest: str, new: str
) -> tuple[cst.Call | None, str | None]:
    """The `tl.max(x)` in `new = tl.maximum(m, tl.max(x))`, and the name in between where there is one."""
    value = simple[new].value
    if not isinstance(value, cst.Call) or len(value.args) != 2:
        return None, None
    op = spoken.op(value.func) or (value.func.value if isinstance(value.func, cst.Name) else "")
    for mine, other in ((0, 1), (1, 0)):
        a, b = value.args[mine].value, value.args[other].value
        if op not in ("maximum", "max") or not isinstance(a, cst.Name) or a.value != largest:
            continue
        between = b.value if isinstance(b, cst.Name) and b.value in simple else None
        call = reduction(spoken, simple[between].value if between else b, "max")
        return (call, between) if call else (None, None)
    return None, None


def dtype(spoken: Language, loop: Loop, name: str) -> str:
    """The type that a name keeps round a loop, from what it was before; `Unfit` where that is not certain."""
    text, p = loop.entry[name].text, spoken.prefix
    for outer in reversed(loop.outer):  # a type stays the same round every loop
        if name in outer.carried and text.startswith(f"{name}#"):
            text = outer.entry[name].text
    bare = text.removeprefix("Minus(").removesuffix(")") if text.startswith("Minus(") else text
    if bare.isdigit():
        return f"{p}.int32"
    if text in MINUS_INFINITY | _INFINITY or re.fullmatch(r"(\d+\.\d*|\.\d+|\d+)(e-?\d+)?", bare):
        return f"{p}.float32"
    typed = re.fullmatch(r"(?:zeros|full)\(.*?(?:dtype=)?([\w.]+)\)", text)
    if typed and typed[1].rpartition(".")[0] in spoken.aliases:
        return typed[1]
    made = re.fullmatch(r"(?:zeros|full)\(.*?dtype=([\w.]+)(?:,.*)?\)", text)
    if made and made[1].rpartition(".")[0] in spoken.aliases:
        return made[1]
    cast = re.fullmatch(r"(float32|float64|int32|int64)\(.*\)", text)
    if cast:
        return f"{p}.{cast[1]}"
    raise Unfit("the type of the accumulator is not certain")


def neutral(loop: Loop, found: Accumulator) -> bool:
    """Whether the accumulator starts from what changes nothing: zero, or the limit of a maximum or minimum."""
    text = loop.entry[found.name].text
    if found.kind == "sum":
        zero = r"0|0\.0*"
        full = rf"full\(\[.*?\],(?:{zero})[,)].*"
        return re.fullmatch(rf"{zero}|zeros\(.*\)|float32\((?:{zero})\)|{full}", text) is not None
    limits = MINUS_INFINITY if found.kind == "max" else _INFINITY
    return text in limits or any(re.match(rf"full\(\[[^\]]*\],{re.escape(lim)}[,)]", text) for lim in limits)


def shape(kernel: Kernel, found: Flow, tiles: list[cst.BaseExpression]) -> Shape:
    """The one shape of some expressions, of extents that are numbers or constexprs; `Unfit` otherwise."""
    shapes = {found.values[t].shape if t in found.values else None for t in tiles}
    one = shapes.pop() if len(shapes) == 1 else None
    if one is None:
        raise Unfit("the shape of what is accumulated is not known")
    return fixed(kernel, one)


def fixed(kernel: Kernel, extents: Shape) -> Shape:
    """A shape as it is; `Unfit` where an extent is not a number or a compile-time parameter."""
    for extent in extents:
        if not extent.isdigit() and extent not in constexprs(kernel):
            raise Unfit(f"the extent `{extent}` of what is accumulated is not a compile-time name")
    return extents


def written(extents: Shape) -> str:
    """A shape as source text."""
    return f"({extents[0]},)" if len(extents) == 1 else f"({', '.join(extents)})"
