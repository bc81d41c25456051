"""Repairs of lost 16-byte access: what the compiler could not prove, it is told, where the launch proves it.

The compiler makes a load wide when it knows the address and the mask to be constant or contiguous over 16 bytes.
It learns divisibility from arguments that are multiples of 16, and from nothing else. Four causes have a repair
that changes no value: specialisation switched off; strides and bounds that divide by 8 or 4 and not by 16; a mask
that only the last tile needs; more threads than the tile has wide accesses for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import libcst as cst

from tilewright.harness.types import Claim, Scalar
from tilewright.knowledge.rewrites import Edit, Look, Situation
from tilewright.knowledge.rewrites.kernels import Language, language
from tilewright.knowledge.rewrites.launches import Kernel, Launch, before, give, launches, mentions
from tilewright.knowledge.rewrites.parameters import added, fresh, prologue
from tilewright.knowledge.rewrites.peel import peeled
from tilewright.knowledge.rewrites.rows_per_program import facts_of, labelled, number, wanted
from tilewright.knowledge.rewrites.source import Patch, Source, dotted, integer, names, patched, read, walk

_FULL_BITS = 128
_PURE = frozenset({"stride", "size", "numel", "dim", "len", "int", "min", "max"})


class VectorAccess:
    """Give the compiler back what it needs for 16-byte loads and stores."""

    name = "vector-access"
    precondition = (
        "A tensor is accessed in less than 16 bytes at a time because specialisation is off, a stride or bound "
        "divides by 8 or 4 and not by 16, a mask covers full tiles, or a thread has too few elements."
    )
    risk = "More code, or one more specialisation; no gain where the address itself is misaligned."

    def look(self, source: str, situation: Situation) -> Look:
        """Repairs of every kernel, the most certain first."""
        parsed = read(source)
        if parsed is None:
            return Look(refused=("the source is not Python",))
        found: list[Edit] = []
        reasons: list[str] = []
        for kernel in wanted(parsed, situation):
            if _wide(kernel, situation):
                reasons.append(f"{kernel.name}: every access is 16 bytes wide already")
                continue
            repairs = list(_repairs(parsed, kernel, situation))
            found += repairs
            if not repairs:
                reasons.append(f"{kernel.name}: no cause that the launch and the kernel show has a repair")
        return Look(edits=tuple(labelled(found)), refused=tuple(reasons))


def _wide(kernel: Kernel, situation: Situation) -> bool:
    """Whether the compiled kernel is known to have no narrow access."""
    facts = facts_of(situation, kernel.name)
    counts = [number(f, key) for f in facts for key in ("narrow_loads", "narrow_stores")]
    return bool(counts) and all(c == 0 for c in counts)


def _repairs(source: Source, kernel: Kernel, situation: Situation) -> Iterator[Edit]:
    sites = launches(source, kernel.name)
    if not sites or mentions(source, kernel.name) != len(sites):
        return
    widths = [w for f in facts_of(situation, kernel.name) if (w := number(f, "load_bits_max"))]
    claim = Claim(fact="load_bits_max", relation="rises", kernel=kernel.name)
    if widths:  # a case that is wide already must not refute it
        claim = Claim(fact="load_bits_max", relation=">=", value=min(_FULL_BITS, 2 * min(widths)), kernel=kernel.name)
    at = source.lines(kernel.node)
    specialised = list(_specialise(source, kernel))
    if specialised:
        yield _edit(source, specialised, "specialise arguments", claim, at, {})
        return  # the other causes show only once this one is gone
    aligned = _align(source, kernel, sites, situation)
    if aligned:
        yield _edit(source, aligned, "ALIGN from the launch", claim, at, {})
    fewer = _fewer_threads(source, kernel, sites, situation)
    if fewer is not None:
        patches, warps = fewer
        label = f"num_warps={warps} for wide accesses"
        yield _edit(source, patches, label, claim, source.lines(sites[0].call), {"num_warps": warps})
    cut = peeled(source, language(source), kernel.node)
    if cut:
        yield _edit(source, cut, "full tiles without mask", claim, at, {})


def _edit(
    source: Source, patches: list[Patch], label: str, claim: Claim, lines: tuple[int, int], params: dict[str, Scalar]
) -> Edit:
    text = patched(source, patches)
    return Edit(source=text, label=label, claim=claim, lines=lines, risk=VectorAccess.risk, params=params)


# --- specialisation ----------------------------------------------------------------------------------------


def _specialise(source: Source, kernel: Kernel) -> Iterator[Patch]:
    """Take `do_not_specialize` and its kin off the decorator."""
    call = kernel.jit.decorator
    if not isinstance(call, cst.Call):
        return
    kept = [a for a in call.args if not (a.keyword and a.keyword.value.startswith("do_not_specialize"))]
    if len(kept) == len(call.args):
        return
    arguments = ", ".join(source.data[slice(*source.span(a))].decode() for a in kept)
    text = source.code(call.func) + (f"({arguments})" if kept else "")
    yield Patch(*source.span(call), text)


# --- divisibility ------------------------------------------------------------------------------------------


def _align(source: Source, kernel: Kernel, sites: list[Launch], situation: Situation) -> list[Patch]:
    """Pass the largest power of two (at most 16) that divides the strides and bounds, and divide and multiply by it.

    `n // ALIGN * ALIGN` is n exactly, and the compiler sees a multiple of ALIGN.
    """
    numbers = [v for c in situation.cases for v in c.bindings.values() if isinstance(v, int) and v > 1]
    if numbers and all(math.gcd(n, 16) in (1, 16) for n in numbers):
        return []  # nothing lies between what the compiler sees already and what is odd
    counted = [
        name
        for name in _extents(source, language(source), kernel)
        if all(_plain_integer(source, site, name) for site in sites)
    ]
    if not counted or any(s.star == "*" for site in sites for s in site.spread):
        return []
    inside = {n.value for n in walk(kernel.node) if isinstance(n, cst.Name)}
    around = [source.function(site.call) or source.module for site in sites]
    outside = {n.value for scope in around for n in walk(scope) if isinstance(n, cst.Name)}
    if "ALIGN" in inside:
        return []
    align, divisor = fresh("ALIGN", outside), fresh("divisor", outside)
    first = prologue(source, kernel, [f"{n} = {n} // ALIGN * ALIGN" for n in counted])
    more = added(source, kernel, [("ALIGN", f"{language(source).prefix}.constexpr", "1")])
    if first is None or more is None:
        return []
    patches = [first, more]
    for site in sites:
        given = list(dict.fromkeys(_operand(source, site.bound[n]) for n in counted))
        lines = [f"{divisor} = {' | '.join([*given, '16'])}", f"{align} = {divisor} & -{divisor}"]
        line = before(source, site.call, lines)
        if line is None:
            return []
        patches += [line, *give(source, site, {"ALIGN": align})]
    return patches


def _operand(source: Source, node: cst.BaseExpression) -> str:
    text = source.code(node)
    return text if isinstance(node, cst.Name | cst.Call | cst.Attribute | cst.Subscript) else f"({text})"


def _plain_integer(source: Source, site: Launch, name: str) -> bool:
    """Whether an argument can be divided: given by the launch, and not a literal or an inner stride."""
    value = site.bound.get(name)
    if value is None or integer(value) is not None:
        return False
    calls = [c.func for c in walk(value) if isinstance(c, cst.Call)]
    if any((f.attr.value if isinstance(f, cst.Attribute) else dotted(f)) not in _PURE for f in calls):
        return False
    text = source.code(value).replace(" ", "")
    return not text.endswith((".stride(1)", ".stride(-1)"))


def _extents(source: Source, spelled: Language, kernel: Kernel) -> list[str]:
    """Parameters that are strides or bounds of the accesses to whole tiles: integers in addresses and masks."""
    made: dict[str, list[cst.BaseExpression]] = {}
    for node in walk(kernel.node.body):
        if isinstance(node, cst.Assign | cst.AugAssign) and node.value is not None:
            targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
            for target in targets:
                for n in walk(target):
                    if isinstance(n, cst.Name):
                        made.setdefault(n.value, []).append(node.value)

    def has(node: cst.CSTNode, op: str) -> bool:
        return any(isinstance(c, cst.Call) and spelled.op(c.func) == op for c in walk(node))

    def reads(node: cst.CSTNode, seen: set[str]) -> set[str]:
        found = names(node)
        for name in sorted(found - seen):
            seen.add(name)
            for value in made.get(name, []):
                if not has(value, "load"):
                    found |= reads(value, seen)
        return found

    def vector(node: cst.CSTNode) -> bool:
        return has(node, "arange") or any(has(v, "arange") for n in reads(node, set()) for v in made.get(n, []))

    used: set[str] = set()
    for node in walk(kernel.node.body):
        if isinstance(node, cst.Call) and spelled.op(node.func) in ("load", "store") and node.args:
            if not vector(node.args[0].value):
                continue
            used |= reads(node.args[0].value, set())
            for i, arg in enumerate(node.args):
                place = 1 if spelled.op(node.func) == "load" else 2
                if (arg.keyword and arg.keyword.value == "mask") or (not arg.keyword and i == place):
                    for part in _comparisons(arg.value, made):
                        loaded = any(has(v, "load") for n in reads(part, set()) for v in made.get(n, []))
                        used |= set() if loaded else reads(part, set())
    whole = {n for n in used if _counts(source, kernel, n)}
    return [p.name for p in kernel.parameters if p.name in whole and not p.constexpr]


def _comparisons(node: cst.BaseExpression, made: dict[str, list[cst.BaseExpression]]) -> Iterator[cst.Comparison]:
    stack: list[cst.CSTNode] = [node]
    seen: set[str] = set()
    while stack:
        at = stack.pop()
        if isinstance(at, cst.Comparison):
            yield at
        elif isinstance(at, cst.Name) and at.value not in seen:
            seen.add(at.value)
            stack.extend(made.get(at.value, []))
        elif not isinstance(at, cst.Call):
            stack.extend(at.children)


def _counts(source: Source, kernel: Kernel, name: str) -> bool:
    """Whether a name is used as a number: multiplied, divided or compared, which a pointer never is."""
    for node in walk(kernel.node.body):
        if isinstance(node, cst.Name) and node.value == name:
            parent = source.parents[node]
            if isinstance(parent, cst.BinaryOperation) and not isinstance(parent.operator, cst.Add | cst.Subtract):
                return True
            if isinstance(parent, cst.Comparison | cst.ComparisonTarget):
                return True
    return False


# --- threads -----------------------------------------------------------------------------------------------


def _fewer_threads(
    source: Source, kernel: Kernel, sites: list[Launch], situation: Situation
) -> tuple[list[Patch], int] | None:
    """Fewer warps, where a thread has less of the tile than 16 bytes."""
    choices = set()
    for facts in facts_of(situation, kernel.name):
        bits, warps = number(facts, "load_bits_max"), number(facts, "num_warps")
        elements = number(facts, "tile_elements")
        if not bits or not warps or not elements:
            return None
        each = elements // (32 * warps)
        if bits >= _FULL_BITS or each > 8 or bits // 8 < each:
            return None
        choices.add(max(1, warps * bits // _FULL_BITS))
        if choices == {warps}:
            return None
    if len(choices) != 1:
        return None
    fewer = choices.pop()
    try:
        return [p for site in sites for p in give(source, site, {"num_warps": str(fewer)})], fewer
    except ValueError:
        return None


REWRITE = VectorAccess()
