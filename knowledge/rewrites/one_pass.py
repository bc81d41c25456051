"""Read a row once: keep it in registers when it fits, instead of loading it again in a second loop.

A kernel that walks a row several times (`for i in range(0, n, BLOCK)`) and loads the same addresses each time
gets a copy whose block covers the whole row. With `BLOCK >= n` every such loop runs exactly once, so each loop
becomes its body and every later load of the same addresses becomes the value loaded first. The launch takes
the copy where the row fits and the old kernel elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import libcst as cst

from tilewright.harness.types import Claim
from tilewright.knowledge.rewrites import Edit, Look, Situation
from tilewright.knowledge.rewrites.bindings import row_cover
from tilewright.knowledge.rewrites.block_free import block_free
from tilewright.knowledge.rewrites.copies import (
    Unfit,
    after,
    choosing,
    fresh,
    give,
    inlined,
    launching,
    margin,
    outermost,
    pure,
    renamed,
    statement,
    storage,
)
from tilewright.knowledge.rewrites.kernels import constexprs, flow, language
from tilewright.knowledge.rewrites.launches import Kernel, Launch, grid_axes, kernels, launches, mentions
from tilewright.knowledge.rewrites.source import Patch, Source, names, patched, read, walk
from tilewright.knowledge.rewrites.values import Access, Flow, Loop

_FITS = 32768
"""32-bit values that one program can hold in registers beside its temporaries: half of a multiprocessor's."""
_SIZING = frozenset({"arange", "zeros", "full"})


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """What was proved about one kernel."""

    block: str
    """The constexpr that must cover the row."""
    bound: str
    """The parameter that holds the row's length."""
    loops: tuple[Loop, ...]
    again: tuple[tuple[Access, Access], ...]
    """(first load, later load of the same addresses)."""
    beside: tuple[str, ...]
    """Other extents of the loaded tiles: constexprs or numbers."""
    stored: tuple[tuple[str, str], ...]
    """Pairs of pointer parameters that must not be the same tensor: (loaded, stored)."""


class OnePass:
    """Keep a row in registers."""

    name = "one-pass"
    precondition = (
        "Two or more loops of a kernel walk the same row with the same block and load the same addresses, and "
        "nothing between them writes there."
    )
    risk = "A long row needs many registers for each thread: more warps, or it spills."

    def look(self, source: str, situation: Situation) -> Look:
        """One edit for each kernel and number of elements a thread holds."""
        parsed = read(source)
        if parsed is None:
            return Look(refused=("the source does not parse",))
        edits, said = [], []
        for kernel in kernels(parsed).values():
            at = launches(parsed, kernel.name)
            if not at:
                continue
            try:
                plan = _plan(parsed, kernel)
                edits += _edits(parsed, kernel, plan, at, situation)
            except Unfit as why:
                said.append(f"{kernel.name}: {why}")
        if not edits and not said:
            said = ["no kernel is launched here"]
        return Look(edits=tuple(edits), refused=tuple(said))


REWRITE = OnePass()


# --- the proof -------------------------------------------------------------------------------------------


def _plan(source: Source, kernel: Kernel) -> _Plan:
    found = flow(source, kernel)
    loads = [a for a in found.accesses if a.kind == "load" and a.loops and a.pointer.shape]
    repeated = {a.loops[-1].token for a in loads} & {
        b.loops[-1].token
        for a in loads
        for b in loads
        if a.pointer.text == b.pointer.text and a.loops[-1] is not b.loops[-1]
    }
    if not repeated:
        raise Unfit("no two loops load the same addresses")
    if found.unclear:
        raise Unfit(f"it holds what is not followed ({found.unclear[0]})")
    problems: list[str] = []
    for token in sorted(repeated):
        try:
            return _covering(source, kernel, found, token)
        except Unfit as why:
            problems.append(str(why))
    raise Unfit(problems[0])


def _covering(source: Source, kernel: Kernel, found: Flow, token: str) -> _Plan:
    loops = tuple(loop for loop in found.loops if loop.token == token)
    start, stop, step = loops[0].start, loops[0].stop, loops[0].step
    params = {p.name for p in kernel.parameters}
    if step == "1" and stop.startswith("cdiv(") and stop.endswith(")") and stop.count(",") == 1:
        bound, block = stop[5:-1].split(",")
    else:
        bound, block = stop, step
    if start != "0" or block not in constexprs(kernel) or bound not in params or bound == block:
        raise Unfit("its loops do not run from 0 to a parameter in steps of a compile-time block")
    _only_sizes(source, kernel, block, loops)
    inside = [a for a in found.accesses if any(lp in loops for lp in a.loops)]
    blocks = {lp.node.body for lp in loops}
    if any(sum(lp in loops for lp in a.loops) > 1 for a in inside):
        raise Unfit("one of its loops over the row holds another")
    again: list[tuple[Access, Access]] = []
    seen: list[Access] = []
    for access in (a for a in inside if a.kind == "load" and a.pointer.shape):
        first = next((s for s in seen if _same(s, access, blocks)), None)
        if first is None:
            seen.append(access)
        else:
            again.append((first, access))
    if not again:
        raise Unfit("the addresses that are loaded twice are masked differently, or not always loaded first")
    stored = _unwritten(found, inside, again)
    beside = {d for first, _ in again for d in first.pointer.shape or () if d not in (block, "1")}
    if any(not d.isdigit() and d not in constexprs(kernel) for d in beside):
        raise Unfit("the size of its tiles is not known")
    return _Plan(block, bound, loops, tuple(again), tuple(sorted(beside)), tuple(stored))


def _only_sizes(source: Source, kernel: Kernel, block: str, loops: tuple[Loop, ...]) -> None:
    """The block may only size tiles and step the loops: then making it larger changes nothing else."""
    spoken = language(source)
    iters = [lp.node.iter for lp in loops]
    for node in walk(kernel.node.body):
        if not isinstance(node, cst.Name) or node.value != block:
            continue
        parent = source.parents[node]
        if isinstance(parent, cst.Arg) and parent.keyword is node:
            continue
        around = list(source.ancestors(node))
        if any(it in around for it in iters):
            continue
        if isinstance(parent, cst.BinaryOperation) and isinstance(parent.operator, cst.Multiply):
            other = parent.left if parent.right is node else parent.right
            if isinstance(other, cst.Name) and any(lp.var == other.value and lp.node in around for lp in loops):
                continue
        call = next((n for n in around if isinstance(n, cst.Call)), None)
        operation = spoken.op(call.func) if call is not None else None
        if operation not in _SIZING:
            raise Unfit(f"`{block}` is used for more than the size of its tiles")


def _same(first: Access, later: Access, unrolled: set[cst.BaseSuite]) -> bool:
    """Whether the first load always ran, on the same addresses, before the later one."""
    if first.pointer.text != later.pointer.text or "volatile" in _keywords(first) | _keywords(later):
        return False
    if (first.mask and first.mask.text) != (later.mask and later.mask.text):
        return False
    outer = [b for b in first.path if b not in unrolled]
    return outer == [b for b in later.path if b not in unrolled][: len(outer)]


def _keywords(access: Access) -> set[str]:
    return {a.keyword.value for a in access.call.args if a.keyword is not None}


def _unwritten(found: Flow, inside: list[Access], again: list[tuple[Access, Access]]) -> list[tuple[str, str]]:
    """No write can change what a kept value stands for; which pointers must therefore be different tensors."""
    pairs: set[tuple[str, str]] = set()
    loaded = {a.root for a in inside if a.kind == "load"}
    if None in loaded:
        raise Unfit("it is not certain which argument a load reads")
    for write in (a for a in found.accesses if a.kind in ("store", "atomic", "call")):
        between = [(f, g) for f, g in again if f.order < write.order < g.order and not _gone(write, g)]
        if not between and write not in inside:
            continue
        if write.kind != "store" or write.root is None:
            raise Unfit(f"a {write.kind} between two loads of a row may write to it")
        touched = [a for a in inside if a.kind == "load" and a.root == write.root]
        if any(f.root == write.root for f, _ in between):
            raise Unfit(f"`{write.root}` is written between two loads of the same row")
        if write in inside and any(a.pointer.text != write.pointer.text for a in touched):
            raise Unfit(f"`{write.root}` is written and read at different places in the loops")
        pairs |= {(root, write.root) for root in loaded if root is not None and root != write.root}
    return sorted(pairs)


def _gone(write: Access, later: Access) -> bool:
    """Whether a write stands in a branch that leaves the kernel, so that the later load never follows it."""
    for block in write.path:
        last = block.body[-1] if isinstance(block, cst.IndentedBlock) else None
        ends = isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Return)
        if ends and block not in later.path:
            return True
    return False


# --- the edit --------------------------------------------------------------------------------------------


def _kernel_patches(source: Source, kernel: Kernel, plan: _Plan) -> list[Patch]:
    spoken = language(source)
    taken = {n.value for n in walk(kernel.node) if isinstance(n, cst.Name)} | spoken.globals
    patches: list[Patch] = []
    cut = {}
    for loop in plan.loops:
        first = [f"{loop.var} = 0"]
        for name in sorted(loop.carried):
            kind = _number(loop.entry[name].text)
            words = set(re.findall(r"[A-Za-z_#][\w#]*", loop.entry[name].text))
            if kind is None and words <= constexprs(kernel):
                raise Unfit(f"the type of `{name}`, carried round a loop, is not certain")
            if kind is not None:
                first.append(f"{name} = {spoken.prefix}.full((), {name}, {spoken.prefix}.{kind})")
        patches += inlined(source, loop.node, first)
        body = loop.node.body.body[0]
        cut[loop.node] = len(margin(source, body)) - len(margin(source, loop.node))
    kept: dict[Access, str] = {}
    for first_load, later in plan.again:
        if first_load not in kept:
            base = (first_load.root or "row").removesuffix("_ptr").removesuffix("_ptrs")
            name = fresh(taken, f"{base}_row")
            taken.add(name)
            kept[first_load] = name
            before = margin(source, first_load.statement)
            removed = sum(cut[lp.node] for lp in first_load.loops if lp in plan.loops)
            start = source.span(first_load.statement)[0]
            loaded = source.code(first_load.call).replace(f"\n{before}", f"\n{before[: len(before) - removed]}")
            text = f"{name} = {loaded}\n{before[: len(before) - removed]}"
            patches.append(Patch(start, start, text, lead=True))
            patches.append(Patch(*source.outer(first_load.call), name))
        patches.append(Patch(*source.outer(later.call), _value(source, spoken.prefix, first_load, later, kept)))
    return outermost(patches)


def _value(source: Source, prefix: str, first: Access, later: Access, kept: dict[Access, str]) -> str:
    """The later load's value: the kept one, with its own filling outside the mask."""
    mine, other = later.other.text if later.other else None, first.other.text if first.other else None
    if later.mask is None or mine == other or mine is None:
        return kept[first]
    arguments = {a.keyword.value: a.value for a in later.call.args if a.keyword is not None}
    positional = [a.value for a in later.call.args if a.keyword is None]
    mask = arguments.get("mask", positional[1] if len(positional) > 1 else None)
    fill = arguments.get("other", positional[2] if len(positional) > 2 else None)
    if mask is None or fill is None:
        raise Unfit("a load's mask cannot be read")
    filled = f"{prefix}.where({source.code(mask)}, {kept[first]}, {source.code(fill)})"
    return filled if _number(later.other.text if later.other else "") else f"{filled}.to({kept[first]}.dtype)"


def _number(text: str) -> str | None:
    """The type that Triton gives a Python number carried round a loop."""
    bare = text.removeprefix("Minus(").removesuffix(")") if text.startswith("Minus(") else text
    if bare.isdigit():
        return "int32"
    if bare in ('float("inf")', "float('inf')", 'float("-inf")', "float('-inf')"):
        return "float32"
    try:
        float(bare)
    except ValueError:
        return None
    return "float32"


def _edits(source: Source, kernel: Kernel, plan: _Plan, at: list[Launch], situation: Situation) -> list[Edit]:
    if f"{kernel.name}_one_pass" in language(source).globals:
        raise Unfit("it has a copy that reads its row once")
    patches = _kernel_patches(source, kernel, plan)
    ready, problems = [], []
    for launch in at:
        try:
            _launchable(source, kernel, plan, launch)
            ready.append(launch)
        except Unfit as why:
            problems.append(str(why))
    if not ready:
        raise Unfit(problems[0])
    lines = (source.lines(plan.loops[0].node)[0], source.lines(plan.loops[-1].node)[1])
    if len(ready) == mentions(source, kernel.name) and all(_covered(source, plan, la) for la in ready):
        return [
            Edit(
                source=patched(source, patches),
                label=f"{kernel.name}: one pass over {plan.bound}",
                claim=Claim(fact="loads_in_loop", relation="falls", kernel=kernel.name),
                lines=lines,
                risk=OnePass.risk,
            )
        ]
    block_free(source, kernel, flow(source, kernel), plan.block, plan.loops)
    name = fresh(language(source).globals, f"{kernel.name}_one_pass")
    new = renamed(source, kernel, name, patches)
    most = 1024 // situation.target.warp_size
    out = []
    for each in (32, 16, 64):
        changes = [after(source, kernel, [new])]
        for launch in ready:
            changes.append(_choice(source, plan, launch, name, each * situation.target.warp_size, most))
        out.append(
            Edit(
                source=patched(source, changes),
                label=f"{kernel.name}: one pass over {plan.bound}, {each} elements a thread",
                claim=Claim(fact="loads_in_loop", relation="falls"),
                lines=lines,
                risk=OnePass.risk,
                params={"elements_per_thread": each},
                kernel=kernel.name,
            )
        )
    return out


def _launchable(source: Source, kernel: Kernel, plan: _Plan, launch: Launch) -> None:
    if launch.spread:
        raise Unfit("a launch passes arguments that cannot be read")
    for p in kernel.parameters:
        if p.name not in launch.bound and p.default is None and p.name != plan.block:
            raise Unfit(f"a launch does not give `{p.name}` itself")
    if plan.bound not in launch.bound:
        raise Unfit(f"a launch does not give `{plan.bound}`")
    for needed in (plan.bound, *(b for b in plan.beside if not b.isdigit())):
        if needed not in launch.bound or not pure(launch.bound[needed]):
            raise Unfit(f"`{needed}` at a launch is not a plain expression")
    for a, b in plan.stored:
        if a not in launch.bound or b not in launch.bound:
            continue
        if storage(source, launch.bound[a], launch.call) == storage(source, launch.bound[b], launch.call):
            raise Unfit(f"`{a}` and `{b}` are the same tensor at a launch")
    axes = grid_axes(source, launch)
    if axes is None or any(
        isinstance(n, cst.Subscript) and plan.block in source.code(n) for a in axes for n in walk(a)
    ):
        raise Unfit("the grid depends on the block, or cannot be read")
    statement(source, launch)


def _covered(source: Source, plan: _Plan, launch: Launch) -> bool:
    """Whether the launch's own block already covers the row, whatever the row."""
    given = launch.bound.get(plan.block)
    if given is None:
        return False
    cover = row_cover(source, given, launch.call)
    return cover is not None and source.code(cover) == source.code(launch.bound[plan.bound])


def _choice(source: Source, plan: _Plan, launch: Launch, name: str, share: int, most: int) -> Patch:
    length = source.code(launch.bound[plan.bound])
    beside = [d if d.isdigit() else source.code(launch.bound[d]) for d in plan.beside]
    fits = _FITS // (1 << (len({id(f) for f, _ in plan.again}) - 1).bit_length())
    scope = source.function(launch.call) or source.module
    taken = {n.value for n in walk(scope) if isinstance(n, cst.Name)}
    row = fresh(taken, "row_block")
    simple = length if length.isidentifier() else f"({length})"
    power = "triton.next_power_of_2" if "triton" in language(source).globals else ""
    size = f"{power}({length})" if power else f"1 << ({simple} - 1).bit_length()"
    elements = " * ".join([*beside, row])
    warps = f"min(max({elements} // {share}, 4), {most})"
    text = launching(source, launch, name, give(source, launch, {plan.block: row, "num_warps": warps}))
    product = " * ".join([*(b if b.isidentifier() or b.isdigit() else f"({b})" for b in beside), simple])
    used = names(launch.bound[plan.bound])
    if row in used:
        raise Unfit("no free name at a launch")
    return choosing(source, launch, f"0 < {product} <= {fits}", [f"{row} = {size}", text])
