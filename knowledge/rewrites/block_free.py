"""Proves that what a kernel computes does not depend on the block in which it walks a row.

A block may be made larger only then. Not every loop qualifies: one that scales each block by the block's own
maximum, counts blocks, or stores one value for each, means its block. What is accepted: tiles addressed by
`loop variable + arange(block)`; values of a round that are stored without having met a reduction of that round;
and sums, maxima, online softmaxes and first-argmaxes carried round the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from tilewright.knowledge.rewrites.accumulators import PICK, accumulator, online, operand, reduction, updates
from tilewright.knowledge.rewrites.copies import Unfit
from tilewright.knowledge.rewrites.kernels import Language, calls, exposed, following, language, names_written
from tilewright.knowledge.rewrites.launches import Kernel
from tilewright.knowledge.rewrites.meaning import HINTS, REDUCTIONS
from tilewright.knowledge.rewrites.source import Source, walk
from tilewright.knowledge.rewrites.values import Flow, Loop

_ORDERED = frozenset(
    {
        *("cumsum", "cumprod", "associative_scan", "sort", "topk", "flip", "histogram", "gather", "dot", "reshape"),
        *("dot_scaled", "view", "ravel", "join", "split", "interleave", "cat", "trans", "permute", "softmax"),
        *("rand", "randn", "randint", "bitonic_merge", "map_elementwise", "inline_asm_elementwise"),
    }
)
"""Operations that mix the places of a tile, or whose meaning is not followed here."""


def block_free(source: Source, kernel: Kernel, found: Flow, block: str, loops: tuple[Loop, ...]) -> None:
    """Returns where the proof succeeds; `Unfit` says what stands in its way."""
    _places(source, found, block, loops)
    _operations(source, kernel, found, block)
    lanes: dict[str, str] = {}
    for loop in loops:
        _rounds(source, kernel, found, block, loop, lanes)
    _between(source, found, block, loops, lanes)


def _sized(found: Flow, node: cst.BaseExpression, block: str) -> bool:
    """Whether a value has one element for each place of the block; unknown shapes count."""
    given = found.values[node].shape
    return given is None or block in given


def _places(source: Source, found: Flow, block: str, loops: tuple[Loop, ...]) -> None:
    """Every place in a tile is told by `loop variable + arange(block)` alone."""
    token = loops[0].token
    steps = {token, "(" + "*".join(sorted((block, token))) + ")"}
    bare = f"arange(0,{block})"
    for node, value in found.values.items():
        parent = source.parents[node]
        if isinstance(parent, cst.Arg):
            parent = source.parents[parent]
        moving = value.text in steps and isinstance(node, cst.Name)
        if not moving and value.text.partition("[")[0] != bare:
            continue
        if isinstance(parent, cst.Assign | cst.For) or (isinstance(parent, cst.Subscript) and parent.value is node):
            continue
        if isinstance(parent, cst.Call) and parent in found.values and found.values[parent].text == value.text:
            continue  # a hint
        if value.text == token and isinstance(parent, cst.BinaryOperation) and found.values[parent].text in steps:
            continue
        top: cst.CSTNode = node
        while isinstance(source.parents[top], cst.BinaryOperation) and isinstance(
            getattr(source.parents[top], "operator", None), cst.Add
        ):
            top = source.parents[top]
        whole = found.values[top].parts if isinstance(top, cst.BaseExpression) else ()
        starts = {p.partition("[")[0] for p in whole}
        if bare not in starts or not starts & steps:
            raise Unfit("it uses a place within the block for more than the place in the row")


def _operations(source: Source, kernel: Kernel, found: Flow, block: str) -> None:
    """No operation mixes the places of a tile, except reductions in plain sight."""
    spoken = language(source)
    for call in calls(kernel.node.body):
        op = spoken.op(call.func)
        if op is None and isinstance(call.func, cst.Attribute):
            op = call.func.attr.value
        args = [a.value for a in call.args if a.value in found.values]
        sized = any(_sized(found, a, block) for a in args)
        if op in _ORDERED and sized:
            raise Unfit(f"`{op}` mixes the places of a block")
        if op in REDUCTIONS and isinstance(call.func, cst.Attribute) and spoken.op(call.func) is None:
            raise Unfit(f"a reduction is written as a method, `.{op}`")
        name = call.func.value if isinstance(call.func, cst.Name) else ""
        if name in spoken.functions and op is None and _reduces(spoken, name):
            raise Unfit(f"`{name}` reduces, or mixes the places of a tile")


def _reduces(spoken: Language, name: str, seen: frozenset[str] = frozenset()) -> bool:
    for call in calls(spoken.functions[name]):
        op = spoken.op(call.func)
        if op is None and isinstance(call.func, cst.Attribute):
            op = call.func.attr.value
        if op in REDUCTIONS | _ORDERED | {"arange"}:
            return True
        inner = call.func.value if isinstance(call.func, cst.Name) else ""
        if inner in spoken.functions and inner not in seen and _reduces(spoken, inner, seen | {name}):
            return True
    return False


def _reductions(spoken: Language, found: Flow, nodes: Iterable[cst.CSTNode], block: str) -> Iterator[cst.Call]:
    """Reductions along the block."""
    for node in nodes:
        if isinstance(node, cst.Call) and node in found.values and spoken.op(node.func) in REDUCTIONS:
            whole = any(a.value in found.values and _sized(found, a.value, block) for a in node.args)
            left = found.values[node].shape
            if whole and (left is None or block not in left):
                yield node


def _rounds(source: Source, kernel: Kernel, found: Flow, block: str, loop: Loop, lanes: dict[str, str]) -> None:
    """What a loop stores and carries. Tiles that it accumulates are added to `lanes`, with how."""
    spoken = language(source)
    body = list(walk(loop.node.body))
    reduced = list(_reductions(spoken, found, body, block))
    met = {found.values[r].text for r in reduced}

    def tainted(text: str) -> bool:
        return any(m in text for m in met)

    if any(tainted(found.values[operand(found, r)].text) and not _argmax(found, r) for r in reduced):
        softmaxes = [online(spoken, found, loop, n) for n in sorted(loop.carried)]
        known = {s.summed for s in softmaxes if s is not None}
        bad = [r for r in reduced if tainted(found.values[operand(found, r)].text) and r not in known]
        if any(not _argmax(found, r) for r in bad):
            raise Unfit("a block is reduced again after meeting its own reduction")
    inside = set(body)
    for access in found.accesses:
        if access.call not in inside:
            continue
        if access.kind == "store":
            if access.pointer.shape is None or block not in access.pointer.shape:
                raise Unfit("a single value is stored for each block")
            for part in (access.pointer, access.mask, access.value):
                if part is not None and tainted(part.text):
                    raise Unfit("what is stored for a block depends on a reduction of that block")
        elif access.pointer.shape is None or (access.pointer.shape and block not in access.pointer.shape):
            raise Unfit("the shape of a load in the loop is not known")
    for node in body:
        if isinstance(node, cst.If) and tainted(found.values[node.test].text):
            raise Unfit("a branch depends on a reduction of a block")
    accepted: set[str] = set()
    for name in sorted(loop.carried):
        changed = updates(loop.node, name)
        if not exposed(loop.node.body.body, name)[0]:
            continue
        accepted.add(name)
        if not _carried(spoken, found, loop, name, met, lanes, block):
            line = source.lines(changed[0])[0] if changed else source.lines(loop.node)[0]
            raise Unfit(f"how `{name}` is carried round the loop (line {line}) may depend on the block")
    after = following(source, loop.node)
    for name in sorted((names_written(loop.node.body) | {loop.var}) - accepted):
        if exposed(after, name)[0]:
            raise Unfit(f"`{name}` of the last block is used after a loop")


def _carried(
    spoken: Language, found: Flow, loop: Loop, name: str, met: set[str], lanes: dict[str, str], block: str
) -> bool:
    """Whether a name is carried as a sum, maximum, minimum, online softmax or first argmax of the row."""
    combined = accumulator(spoken, loop, name)
    before = loop.inside[name]
    if combined is not None:
        tile = before.shape is not None and block in before.shape
        for value in combined.values:
            direct = reduction(spoken, value, combined.kind)
            text = found.values[value].text if value in found.values else None
            if direct is not None and not tile:
                continue
            if text is None or not tile or any(m in text for m in met):
                return False
        if tile:
            lanes[name] = combined.kind
        return True
    softmax = online(spoken, found, loop, name)
    if softmax is not None:
        return True
    changed = updates(loop.node, name)
    values = [found.values[u.value].text for u in changed if isinstance(u, cst.Assign) and u.value in found.values]
    if len(values) != len(changed):
        return False
    tops = {text for text in met if text.startswith(("max(", "min("))}
    for text in values:
        picked = any(
            text in (f"{pick}({before.text},{t})", f"{pick}({t},{before.text})")
            for t in tops
            for kind, pick in PICK.items()
            if t.startswith(f"{kind}(")
        )
        if not picked and not _first_argmax(loop, text, before.text, tops):
            return False
    return True


def _argmax(found: Flow, call: cst.Call) -> bool:
    """`min(where(x == max(x), …, …))`: the first place of the maximum, the same in whatever blocks it is sought."""
    text = found.values[operand(found, call)].text
    return found.values[call].text.startswith("min(where((") and " Equal max(" in text


def _first_argmax(loop: Loop, text: str, before: str, tops: set[str]) -> bool:
    """`i = where(max(x) > m, place of the maximum, i)` with `m` the maximum so far."""
    for largest in loop.carried:
        for t in tops:
            head = f"where(({t} GreaterThan {loop.inside[largest].text}),min(where(("
            if t.startswith("max(") and text.startswith(head) and text.endswith(f",{before})"):
                return True
    return False


def _between(source: Source, found: Flow, block: str, loops: tuple[Loop, ...], lanes: dict[str, str]) -> None:
    """Outside the loops, a tile of lanes may only be made, and reduced the way it was accumulated."""
    spoken = language(source)
    inside = {n for loop in loops for n in walk(loop.node)}
    for node in found.values:
        if node in inside or not _sized(found, node, block):
            continue
        around = [n for n in source.ancestors(node) if isinstance(n, cst.Call)]
        call = node if isinstance(node, cst.Call) else around[0] if around else None
        op = spoken.op(call.func) if call is not None else None
        if op in {"zeros", "full", "arange"} | HINTS or found.values[node].text.startswith(f"arange(0,{block})"):
            continue
        if isinstance(node, cst.Tuple | cst.List):
            continue
        if isinstance(node, cst.Name) and op in ("sum", "max", "min") and lanes.get(node.value) == op:
            continue
        raise Unfit(
            f"`{source.code(node)}` (line {source.lines(node)[0]}) may be a tile that is used outside the loops"
        )
