"""Reduce once after a loop instead of in every round of it.

`acc += tl.sum(x)` in a loop is a tree of shuffles and a barrier each time round. The same sum is had by adding
whole tiles (`lanes += x`) and reducing the lanes once after the loop; maxima likewise. The running maximum and
sum of an online softmax are kept for each lane and merged at the end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import libcst as cst

from tilewright.harness.types import Claim
from tilewright.knowledge.rewrites import Edit, Situation
from tilewright.knowledge.rewrites.copies import Unfit, fresh, margin, outermost
from tilewright.knowledge.rewrites.flow import Flow, Loop, Shape
from tilewright.knowledge.rewrites.kernels import Language, argument, constexprs, flow, language
from tilewright.knowledge.rewrites.launches import Kernel, kernels
from tilewright.knowledge.rewrites.source import Patch, Source, names, patched, read, walk

_LIMIT = {"max": ('float("-inf")', "maximum"), "min": ('float("inf")', "minimum")}
_MINUS_INFINITY = frozenset({'Minus(float("inf"))', "Minus(float('inf'))", 'float("-inf")', "float('-inf')"})


@dataclass(slots=True)
class _Change:
    """The statements around one loop and the patches in it."""

    loop: Loop
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    patches: list[Patch] = field(default_factory=list)
    done: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Kernel:
    source: Source
    kernel: Kernel
    found: Flow
    spoken: Language
    taken: set[str]

    def name(self, wish: str) -> str:
        """A name that the kernel does not use."""
        name = fresh(self.taken, wish)
        self.taken.add(name)
        return name


class ReduceAfterLoop:
    """Accumulate lanes in the loop; reduce them once after it."""

    name = "reduce-after-loop"
    precondition = (
        "A loop adds a reduction to an accumulator (`acc += tl.sum(x)`, a running maximum, an online softmax) and "
        "uses the accumulator for nothing else."
    )
    risk = "The lanes take registers for a whole tile, and sums are added in another order."

    def edits(self, source: str, situation: Situation) -> list[Edit]:
        """One edit for each kernel, covering every accumulator that allows it."""
        return self._look(source)[0]

    def refusals(self, source: str, situation: Situation) -> list[str]:
        """Why each loop with a reduction stays as it is."""
        return self._look(source)[1]

    def _look(self, source: str) -> tuple[list[Edit], list[str]]:
        parsed = read(source)
        if parsed is None:
            return [], ["the source does not parse"]
        edits: list[Edit] = []
        said: list[str] = []
        for kernel in kernels(parsed).values():
            changes, why = _changes(parsed, kernel)
            said += [f"{kernel.name}: {w}" for w in why]
            if not changes:
                continue
            patches = [p for c in changes for p in _around(parsed, c)]
            done = [d for c in changes for d in c.done]
            edits.append(
                Edit(
                    source=patched(parsed, outermost(patches)),
                    label=f"{kernel.name}: reduce {', '.join(done)} after the loop",
                    claim=Claim(fact="reduces_in_loop", relation="falls", kernel=kernel.name),
                    lines=(parsed.lines(changes[0].loop.node)[0], parsed.lines(changes[-1].loop.node)[1]),
                    risk=self.risk,
                )
            )
        return edits, said


REWRITE = ReduceAfterLoop()


def _around(source: Source, change: _Change) -> list[Patch]:
    """The patches in a loop, and the statements before and after it."""
    node = change.loop.node
    outside = margin(source, node)
    start = source.span(node)[0]
    end = source.span(node)[1]
    text = source.data[start:end].rstrip()
    at = start + len(text)
    before = Patch(start, start, "".join(f"{t}\n{outside}" for t in change.before), lead=True)
    after = Patch(at, at, "".join(f"\n{outside}{t}" for t in change.after))
    return [before, *change.patches, after]


def _changes(source: Source, kernel: Kernel) -> tuple[list[_Change], list[str]]:
    found = flow(source, kernel)
    spoken = language(source)
    taken = {n.value for n in walk(kernel.node) if isinstance(n, cst.Name)} | spoken.globals
    where = _Kernel(source, kernel, found, spoken, taken)
    changes, said = [], []
    for loop in found.loops:
        if loop.kind == "static_range":
            continue
        change = _Change(loop)
        inner = [lp for lp in found.loops if loop in lp.outer]
        for name in sorted(loop.carried):
            if any(name in lp.carried for lp in inner):
                continue
            try:
                if _plain(where, change, name) or _online(where, change, name):
                    change.done.append(name)
            except Unfit as why:
                said.append(f"`{name}`: {why}")
        if change.done:
            changes.append(change)
    return changes, said or ([] if changes else ["no loop adds a reduction to an accumulator"])


# --- sums and maxima -------------------------------------------------------------------------------------


def _plain(where: _Kernel, change: _Change, name: str) -> bool:
    """`name += tl.sum(x)` or `name = tl.maximum(name, tl.max(x))`, in as many branches as it stands."""
    source, loop = where.source, change.loop
    updates = _updates(loop.node, name)
    reduced = [_reduction(where, u, name) for u in updates]
    if not updates or all(r is None for r in reduced):
        return False
    calls = [r for r in reduced if r is not None]
    if len(calls) != len(updates):
        raise Unfit("it is changed in another way too")
    kinds = {kind for kind, _ in calls}
    if len(kinds) != 1 or len({_rest(source, c) for _, c in calls}) != 1:
        raise Unfit("it is reduced in more than one way")
    reads = sum(isinstance(n, cst.Name) and n.value == name for n in walk(loop.node.body))
    inside = sum(isinstance(n, cst.Name) and n.value == name for u in updates for n in walk(u))
    if reads != inside or any(name in names(c) for _, c in calls):
        raise Unfit("the loop uses it for something else")
    kind = kinds.pop()
    shape = _shape(where, [c for _, c in calls])
    dtype = _dtype(where, loop, name)
    if kind != "sum" and "int" in dtype:
        raise Unfit("the limit of its type is not known")
    lanes, p = where.name(f"{name}_lanes"), where.spoken.prefix
    if kind == "sum":
        change.before.append(f"{lanes} = {p}.zeros({shape}, dtype={dtype})")
        change.after.append(f"{name} += {p}.sum({lanes}{_rest(source, calls[0][1])})")
    else:
        limit, pick = _LIMIT[kind]
        change.before.append(f"{lanes} = {p}.full({shape}, {limit}, dtype={dtype})")
        change.after.append(f"{name} = {p}.{pick}({name}, {p}.{kind}({lanes}{_rest(source, calls[0][1])}))")
    for update, (_, call) in zip(updates, calls, strict=True):
        tile = source.code(_operand(where, call))
        text = f"{lanes} += {tile}" if kind == "sum" else f"{lanes} = {p}.{_LIMIT[kind][1]}({lanes}, {tile})"
        change.patches.append(Patch(*source.span(update), text))
    return True


def _updates(loop: cst.For, name: str) -> list[cst.Assign | cst.AugAssign | cst.AnnAssign]:
    found: list[cst.Assign | cst.AugAssign | cst.AnnAssign] = []
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


def _reduction(where: _Kernel, update: cst.CSTNode, name: str) -> tuple[str, cst.Call] | None:
    """The reduction that an update adds to an accumulator: its kind and call."""
    if isinstance(update, cst.AugAssign):
        return _called(where, update.value, "sum") if isinstance(update.operator, cst.AddAssign) else None
    if not isinstance(update, cst.Assign) or len(update.targets) != 1:
        return None
    if not isinstance(update.targets[0].target, cst.Name):
        return None
    value = update.value
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add):
        for mine, other in ((value.left, value.right), (value.right, value.left)):
            if isinstance(mine, cst.Name) and mine.value == name:
                return _called(where, other, "sum")
    if isinstance(value, cst.Call) and len(value.args) == 2:
        op = where.spoken.op(value.func) or (value.func.value if isinstance(value.func, cst.Name) else "")
        kind = {"maximum": "max", "max": "max", "minimum": "min", "min": "min"}.get(op)
        a, b = value.args[0].value, value.args[1].value
        for mine, other in ((a, b), (b, a)):
            if kind is not None and isinstance(mine, cst.Name) and mine.value == name:
                return _called(where, other, kind)
    return None


def _called(where: _Kernel, node: cst.BaseExpression, kind: str) -> tuple[str, cst.Call] | None:
    if not isinstance(node, cst.Call) or where.spoken.op(node.func) != kind:
        return None
    keywords = {a.keyword.value for a in node.args if a.keyword is not None}
    return (kind, node) if keywords <= {"axis", "input"} and len(node.args) <= 2 else None


def _operand(where: _Kernel, call: cst.Call) -> cst.BaseExpression:
    tile = argument(call, 0, "input")
    if tile is None or tile not in where.found.values:
        raise Unfit("what is reduced cannot be read")
    return tile


def _rest(source: Source, call: cst.Call) -> str:
    """The arguments after the tile, as written."""
    more = [a for i, a in enumerate(call.args) if (a.keyword is not None and a.keyword.value != "input") or i > 0]
    return "".join(f", {'axis=' if a.keyword else ''}{source.code(a.value)}" for a in more)


def _shape(where: _Kernel, calls: list[cst.Call]) -> str:
    """The lanes' shape as written in the kernel: extents that are constexprs or numbers."""
    shapes = {where.found.values[_operand(where, c)].shape for c in calls}
    shape: Shape | None = shapes.pop() if len(shapes) == 1 else None
    if not shape:
        raise Unfit("the shape of what is reduced is not known")
    for extent_ in shape:
        if not extent_.isdigit() and extent_ not in constexprs(where.kernel):
            raise Unfit(f"the extent `{extent_}` of what is reduced is not a compile-time name")
    return f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(shape)})"


def _dtype(where: _Kernel, loop: Loop, name: str) -> str:
    """The type that the accumulator keeps round the loop, from what it was before."""
    text, p = loop.entry[name].text, where.spoken.prefix
    bare = text.removeprefix("Minus(").removesuffix(")") if text.startswith("Minus(") else text
    if bare.isdigit():
        return f"{p}.int32"
    if text in _MINUS_INFINITY or re.fullmatch(r"(\d+\.\d*|\.\d+)(e-?\d+)?", bare) or "inf" in text[:12]:
        return f"{p}.float32"
    typed = re.fullmatch(r"(?:zeros|full)\(.*?(?:dtype=)?([\w.]+)\)", text)
    if typed and typed[1].rpartition(".")[0] in where.spoken.aliases:
        return typed[1]
    made = re.fullmatch(r"(float32|float64|int32|int64)\(.*\)", text)
    if made:
        return f"{p}.{made[1]}"
    raise Unfit("the type of the accumulator is not certain")


# --- online softmax --------------------------------------------------------------------------------------


def _online(where: _Kernel, change: _Change, total: str) -> bool:
    """`new = max(m, max(x)); d = d * e(m - new) + sum(e(x - new)); m = new`, with `d` named by `total`."""
    source, loop, values = where.source, change.loop, where.found.values
    lines = [s.body[0] for s in loop.node.body.body if isinstance(s, cst.SimpleStatementLine) and len(s.body) == 1]
    simple = {
        s.targets[0].target.value: s
        for s in lines
        if isinstance(s, cst.Assign) and len(s.targets) == 1 and isinstance(s.targets[0].target, cst.Name)
    }
    update = simple.get(total)
    if update is None or not isinstance(update.value, cst.BinaryOperation):
        return False
    value = update.value
    scaled, added = value.left, value.right
    if not (isinstance(value.operator, cst.Add) and isinstance(scaled, cst.BinaryOperation)):
        return False
    if not isinstance(scaled.operator, cst.Multiply) or not isinstance(scaled.left, cst.Name):
        return False
    summed = _called(where, added, "sum")
    if scaled.left.value != total or summed is None:
        return False
    factor, terms = scaled.right, _operand(where, summed[1])
    for largest, step in simple.items():
        if not isinstance(step.value, cst.Name) or largest not in loop.carried or step.value.value not in simple:
            continue
        new = step.value.value
        tile_call, drop = _running(where, simple, largest, new)
        if tile_call is None:
            continue
        tile = _operand(where, tile_call)
        old = where.found.values[simple[new].value].text
        before = next((values[n].text for n in walk(factor) if isinstance(n, cst.Name) and n.value == largest), None)
        scale, summand = (values[e].text.replace(old, "NEW") for e in (factor, terms))
        if before is None or f"({before} Subtract NEW)" not in scale:
            raise Unfit("it is not scaled by a function of how much the maximum rose")
        if scale.replace(before, values[tile].text) != summand:
            raise Unfit("it does not scale by the same function of the maximum that it sums")
        if loop.entry[largest].text not in _MINUS_INFINITY or loop.entry[total].text not in ("0.0", "0", "0."):
            raise Unfit("an online softmax does not start from minus infinity and zero")
        touched = [update, step, simple[new], *([simple[drop]] if drop else [])]
        for used in (largest, total, new, *([drop] if drop else [])):
            reads = sum(isinstance(n, cst.Name) and n.value == used for n in walk(loop.node.body))
            if reads != sum(isinstance(n, cst.Name) and n.value == used for t in touched for n in walk(t)):
                raise Unfit(f"the loop uses `{used}` for something else")
        shape = _shape(where, [tile_call, summed[1]])
        if _rest(source, tile_call) != _rest(source, summed[1]):
            raise Unfit("the maximum and the sum are taken along different axes")
        _keep(where, change, _Softmax(largest, total, new, drop, factor, terms, tile, shape, summed[1], simple))
        change.done.append(largest)
        return True
    return False


@dataclass(frozen=True, slots=True)
class _Softmax:
    largest: str
    total: str
    new: str
    drop: str | None
    factor: cst.BaseExpression
    terms: cst.BaseExpression
    tile: cst.BaseExpression
    shape: str
    summed: cst.Call
    lines: dict[str, cst.Assign]


def _running(
    where: _Kernel, simple: dict[str, cst.Assign], largest: str, new: str
) -> tuple[cst.Call | None, str | None]:
    """The `tl.max(x)` in `new = tl.maximum(m, tl.max(x))`, and the name in between where there is one."""
    value = simple[new].value
    if not isinstance(value, cst.Call) or len(value.args) != 2:
        return None, None
    op = where.spoken.op(value.func) or (value.func.value if isinstance(value.func, cst.Name) else "")
    for mine, other in ((0, 1), (1, 0)):
        a, b = value.args[mine].value, value.args[other].value
        if op not in ("maximum", "max") or not isinstance(a, cst.Name) or a.value != largest:
            continue
        drop = b.value if isinstance(b, cst.Name) and b.value in simple else None
        call = _called(where, simple[drop].value if drop else b, "max")
        return (call[1], drop) if call else (None, None)
    return None, None


def _keep(where: _Kernel, change: _Change, s: _Softmax) -> None:
    source, p = where.source, where.spoken.prefix
    tops, sums, base = where.name(f"{s.largest}_lanes"), where.name(f"{s.total}_lanes"), where.name(f"{s.new}_finite")
    rest = _rest(source, s.summed)
    infinity = 'float("-inf")'

    def put(node: cst.BaseExpression, **new: str) -> str:
        start, end = source.span(node)
        inside = [
            Patch(*source.span(n), new[n.value]) for n in walk(node) if isinstance(n, cst.Name) and n.value in new
        ]
        whole = patched(source, inside).encode()
        return whole[start : len(whole) - (len(source.data) - end)].decode()

    change.before += [
        f"{tops} = {p}.full({s.shape}, {infinity}, dtype={p}.float32)",
        f"{sums} = {p}.zeros({s.shape}, dtype={p}.float32)",
    ]
    change.after += [
        f"{s.largest} = {p}.max({tops}{rest})",
        f"{s.total} = {p}.sum({sums} * {put(s.factor, **{s.largest: tops, s.new: s.largest})}{rest})",
    ]
    inside = margin(source, source.parents[s.lines[s.new]])
    newest = (
        f"{s.new} = {p}.maximum({tops}, {source.code(s.tile)})\n"
        f"{inside}{base} = {p}.where({s.new} == {infinity}, 0.0, {s.new})"
    )
    change.patches.append(Patch(*source.span(s.lines[s.new]), newest))
    scaled = put(s.factor, **{s.largest: tops, s.new: base})
    terms = put(s.terms, **{s.new: base})
    change.patches.append(Patch(*source.span(s.lines[s.total]), f"{sums} = {sums} * {scaled} + {terms}"))
    change.patches.append(Patch(*source.span(s.lines[s.largest]), f"{tops} = {s.new}"))
    if s.drop is not None:
        start, end = source.span(source.parents[s.lines[s.drop]])
        line = source.data.rfind(b"\n", 0, start) + 1
        change.patches.append(Patch(line, source.data.find(b"\n", end - 1) + 1, ""))
