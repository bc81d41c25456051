"""Reduce once after a loop instead of in every round of it.

`acc += tl.sum(x)` in a loop is a tree of shuffles and a barrier each time round. The same sum is had by adding
whole tiles (`lanes += x`) and reducing the lanes once after the loop; maxima likewise. The running maximum and
sum of an online softmax are kept for each lane and merged at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from tilewright.harness.types import Claim
from tilewright.knowledge.rewrites import Edit, Look, Situation
from tilewright.knowledge.rewrites.accumulators import (
    LIMIT,
    MINUS_INFINITY,
    PICK,
    Softmax,
    accumulator,
    dtype,
    online,
    operand,
    reduction,
    shape,
    written,
)
from tilewright.knowledge.rewrites.copies import Unfit, fresh, margin, outermost
from tilewright.knowledge.rewrites.kernels import Language, flow, language
from tilewright.knowledge.rewrites.launches import Kernel, kernels
from tilewright.knowledge.rewrites.source import Patch, Source, patched, read, walk
from tilewright.knowledge.rewrites.values import Flow, Loop


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

    def look(self, source: str, situation: Situation) -> Look:
        """One edit for each kernel, covering every accumulator that allows it."""
        parsed = read(source)
        if parsed is None:
            return Look(refused=("the source does not parse",))
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
        return Look(edits=tuple(edits), refused=tuple(said))


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
    source, p = where.source, where.spoken.prefix
    found = accumulator(where.spoken, change.loop, name)
    if found is None:
        return False
    calls = [reduction(where.spoken, v, found.kind) for v in found.values]
    reductions = [c for c in calls if c is not None]
    if not reductions:
        return False
    if len(reductions) != len(calls) or len({_rest(source, c) for c in reductions}) != 1:
        raise Unfit("it is reduced in more than one way")
    extents = shape(where.kernel, where.found, [operand(where.found, c) for c in reductions])
    kept = dtype(where.spoken, change.loop, name)
    if not extents:
        raise Unfit("what is reduced is a single value")
    if found.kind != "sum" and "int" in kept:
        raise Unfit("the limit of its type is not known")
    lanes, rest = where.name(f"{name}_lanes"), _rest(source, reductions[0])
    if found.kind == "sum":
        change.before.append(f"{lanes} = {p}.zeros({written(extents)}, dtype={kept})")
        change.after.append(f"{name} += {p}.sum({lanes}{rest})")
    else:
        pick = f"{p}.{PICK[found.kind]}"
        change.before.append(f"{lanes} = {p}.full({written(extents)}, {LIMIT[found.kind]}, dtype={kept})")
        change.after.append(f"{name} = {pick}({name}, {p}.{found.kind}({lanes}{rest}))")
    for update, call in zip(found.updates, reductions, strict=True):
        tile = source.code(operand(where.found, call))
        text = f"{lanes} += {tile}" if found.kind == "sum" else f"{lanes} = {pick}({lanes}, {tile})"
        change.patches.append(Patch(*source.span(update), text))
    return True


def _rest(source: Source, call: cst.Call) -> str:
    """The arguments after the tile, as written."""
    more = [a for i, a in enumerate(call.args) if (a.keyword is not None and a.keyword.value != "input") or i > 0]
    return "".join(f", {'axis=' if a.keyword else ''}{source.code(a.value)}" for a in more)


# --- online softmax --------------------------------------------------------------------------------------


def _online(where: _Kernel, change: _Change, total: str) -> bool:
    """The running maximum and sum of an online softmax, the sum named by `total`."""
    source, loop = where.source, change.loop
    s = online(where.spoken, where.found, loop, total)
    if s is None:
        return False
    if loop.entry[s.largest].text not in MINUS_INFINITY or loop.entry[total].text not in ("0.0", "0", "0."):
        raise Unfit("an online softmax does not start from minus infinity and zero")
    gone = [s.new, *s.aliases]
    touched = [s.lines[n] for n in (s.largest, total, *gone)]
    for name in (s.largest, total, *gone):
        reads = _count(loop.node.body, name)
        if reads != sum(_count(t, name) for t in touched):
            raise Unfit(f"the loop uses `{name}` for something else")
        if name in gone and reads != _count(where.kernel.node, name):
            raise Unfit(f"`{name}` is used outside the loop too")
    extents = shape(where.kernel, where.found, [s.tile, s.terms])
    if not extents:
        return False
    if _rest(source, s.top) != _rest(source, s.summed):
        raise Unfit("the maximum and the sum are taken along different axes")
    _keep(where, change, s, written(extents))
    change.done.append(s.largest)
    return True


def _count(node: cst.CSTNode, name: str) -> int:
    return sum(isinstance(n, cst.Name) and n.value == name for n in walk(node))


def _keep(where: _Kernel, change: _Change, s: Softmax, extents: str) -> None:
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
        f"{tops} = {p}.full({extents}, {infinity}, dtype={p}.float32)",
        f"{sums} = {p}.zeros({extents}, dtype={p}.float32)",
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
    for alias in s.aliases:
        start, end = source.span(source.parents[s.lines[alias]])
        line = source.data.rfind(b"\n", 0, start) + 1
        change.patches.append(Patch(line, source.data.find(b"\n", end - 1) + 1, ""))
