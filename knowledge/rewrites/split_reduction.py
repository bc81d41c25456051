"""Split a long reduction over more programs: partial results first, then a second, small kernel.

A kernel with few programs that each walk a long loop leaves most of the machine idle. Its loop is cut into
parts along a new grid axis; every part leaves what it accumulated in a workspace, and a second kernel with the
old grid combines the parts and does what came after the loop. Sums, means, maxima, column sums and the inner
product of a matmul with a long K (split-K) are the same thing here.
"""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from tilewright.harness.types import Claim
from tilewright.knowledge.rewrites import Edit, Look, Situation, split_kernels
from tilewright.knowledge.rewrites.accumulators import Accumulator, accumulator, dtype, fixed, neutral, updates
from tilewright.knowledge.rewrites.configs import configs
from tilewright.knowledge.rewrites.copies import (
    Unfit,
    after,
    choosing,
    fresh,
    give,
    launching,
    margin,
    pure,
    statement,
)
from tilewright.knowledge.rewrites.kernels import Language, calls, exposed, flow, language, names_written, plain
from tilewright.knowledge.rewrites.launches import (
    Kernel,
    Launch,
    grid_axes,
    kernels,
    launches,
    meta_name,
)
from tilewright.knowledge.rewrites.source import Patch, Source, names, patched, read, walk
from tilewright.knowledge.rewrites.split_kernels import Part, Plan
from tilewright.knowledge.rewrites.values import Loop, Shape, Value

_ENOUGH = 2
"""Programs for each multiprocessor above which a reduction is not split."""
_MOST = 256
"""Parts of one reduction, at most."""
_TORCH = {"float32": "float32", "float64": "float64", "float16": "float16", "int32": "int32", "int64": "int64"}


class SplitReduction:
    """Split a reduction over a second grid axis."""

    name = "split-reduction"
    precondition = (
        "Few programs, each with one loop at the top of the kernel that only accumulates (sum, maximum, minimum, "
        "inner product), and no store before it ends."
    )
    risk = "Partial results go through memory and a second launch; sums are added in another order."

    def look(self, source: str, situation: Situation) -> Look:
        """One edit for each kernel and number of parts."""
        parsed = read(source)
        if parsed is None:
            return Look(refused=("the source does not parse",))
        edits: list[Edit] = []
        said: list[str] = []
        for kernel in kernels(parsed).values():
            at = launches(parsed, kernel.name)
            if not at:
                continue
            try:
                sizes = _sizes(kernel, situation)
                plan, tuned = _plan(parsed, kernel), _tuned(parsed, kernel)
                edits += [_edit(parsed, kernel, plan, at, tuned, s, situation) for s in sizes]
            except Unfit as why:
                said.append(f"{kernel.name}: {why}")
        if not edits and not said:
            said = ["no kernel is launched here"]
        return Look(edits=tuple(edits), refused=tuple(said))


REWRITE = SplitReduction()


def _sizes(kernel: Kernel, situation: Situation) -> list[int]:
    """How many parts to try: enough to fill the machine once, twice or half."""
    wanted = _ENOUGH * situation.target.multiprocessors
    programs = [k.grid[0] * k.grid[1] * k.grid[2] for k in situation.kernels if k.kernel == kernel.name]
    if not programs:
        return [16, 64, 4]
    if min(programs) >= wanted:
        raise Unfit(f"its {min(programs)} programs already fill the machine")
    fill = 1 << max(1, (wanted // min(programs)).bit_length() - 1)
    return list(dict.fromkeys(min(_MOST, s) for s in (fill, 2 * fill, max(2, fill // 2))))


# --- the proof -------------------------------------------------------------------------------------------


def _plan(source: Source, kernel: Kernel) -> Plan:
    spoken = language(source)
    if kernel.name.endswith("_combine") and f"{kernel.name.removesuffix('_combine')}_partial" in spoken.globals:
        raise Unfit("it combines the parts of a reduction that is split")
    found = flow(source, kernel)
    if found.unclear:
        raise Unfit(f"it holds what is not followed ({found.unclear[0]})")
    if len(found.loops) != 1:
        raise Unfit("it does not have exactly one loop" if found.loops else "it has no loop")
    loop = found.loops[0]
    if len(loop.path) != 1 or loop.kind == "static_range" or loop.start != "0":
        raise Unfit("its loop does not stand at the top of the kernel, or does not run from 0")
    late = list(kernel.node.body.body[kernel.node.body.body.index(loop.node) + 1 :])
    for access in found.accesses:
        over = any(n is access.call for s in late for n in walk(s))
        if access.kind != "load" and not over:
            raise Unfit(f"a {access.kind} stands before the end of its loop")
    reads = next((a.root for a in found.accesses if a.kind == "load" and a.loops and a.root), None)
    if reads is None:
        raise Unfit("its loop loads nothing that can be told")
    _whole(source, kernel, loop)
    taken = {n.value for n in walk(kernel.node) if isinstance(n, cst.Name)} | spoken.globals
    parts, moves = [], []
    for name in sorted(loop.carried):
        combined = accumulator(spoken, loop, name)
        step = _move(source, loop, name)
        if exposed(late, name)[0]:
            if combined is None:
                raise Unfit(f"`{name}` leaves the loop, and is more than a sum, maximum or minimum")
            if not neutral(loop, combined):
                raise Unfit(f"`{name}` does not start from what changes nothing")
            kept = dtype(spoken, loop, name)
            extents = _result(kernel, loop, found.values, combined)
            if kept.rpartition(".")[2] not in _TORCH or len(extents) > 2:
                raise Unfit(f"a partial `{name}` cannot be kept in a workspace")
            pointer = fresh(taken, f"{name}_parts_ptr")
            taken.add(pointer)
            parts.append(Part(combined, extents, kept, pointer))
        elif combined is not None:
            continue  # nothing reads it: every part may have its own
        elif step is not None:
            moves.append((name, step))
        elif exposed(loop.node.body.body, name)[0]:
            raise Unfit(f"`{name}` is carried round the loop in a way that cannot be started in the middle")
    inside = names_written(loop.node) - loop.carried
    if any(exposed(late, n)[0] for n in inside):
        raise Unfit("a value of the last round is used after the loop")
    if not parts:
        raise Unfit("its loop accumulates nothing that is used after it")
    splits, part, program = (fresh(taken, w) for w in ("SPLITS", "part", "program"))
    return Plan(loop, tuple(parts), tuple(moves), splits, part, program, reads)


def _tuned(source: Source, kernel: Kernel) -> dict[str, str]:
    """What an autotuner would give, from its first configuration: both kernels must agree on it."""
    if plain(kernel):
        return {}
    if kernel.autotune is None or len(kernel.node.decorators) != 2:
        raise Unfit("heuristics or other decorators decide its parameters")
    keywords = {a.keyword.value for a in kernel.autotune.args if a.keyword is not None}
    listed = configs(source, kernel)
    if not listed or listed[0].extra or keywords & {"reset_to_zero", "restore_value", "pre_hook", "post_hook"}:
        raise Unfit("its autotuner's configurations cannot be read, or do more than choose sizes")
    return {k: str(v) for k, v in {**listed[0].sizes, **listed[0].options}.items()}


def _whole(source: Source, kernel: Kernel, loop: Loop) -> None:
    """The range's stop and step must be able to stand in the kernel again."""
    call = loop.node.iter
    if (
        not isinstance(call, cst.Call)
        or any(a.star for a in call.args)
        or not isinstance(loop.node.body, cst.IndentedBlock)
    ):
        raise Unfit("its loop's range cannot be read")
    if any(isinstance(n, cst.Return) for n in walk(loop.node)) or loop.node.orelse is not None:
        raise Unfit("its loop can be left early")
    first = kernel.node.body.body[0]
    margin(source, first)


def _move(source: Source, loop: Loop, name: str) -> str | None:
    """The step of `name += step`, once in every round and the same each time; None for anything else."""
    changed = updates(loop.node, name)
    if len(changed) != 1 or not isinstance(changed[0], cst.AugAssign):
        return None
    update = changed[0]
    top = any(isinstance(s, cst.SimpleStatementLine) and update in s.body for s in loop.node.body.body)
    moving = names_written(loop.node.body) | {loop.var}
    if not top or not isinstance(update.operator, cst.AddAssign) or names(update.value) & moving:
        return None
    return source.code(update.value) if pure(update.value) else None


def _result(kernel: Kernel, loop: Loop, values: dict[cst.BaseExpression, Value], found: Accumulator) -> Shape:
    """The accumulator's own shape, which its start must already have."""
    start = loop.entry[found.name].shape
    if start is None:
        raise Unfit(f"the shape of `{found.name}` is not known")
    for value in found.values:
        given = values[value].shape if value in values else None
        if given is not None and len(given) > len(start):
            raise Unfit(f"`{found.name}` starts smaller than what is added to it")
    return fixed(kernel, start)


# --- the launch ------------------------------------------------------------------------------------------


def _edit(
    source: Source,
    kernel: Kernel,
    plan: Plan,
    at: list[Launch],
    tuned: Mapping[str, str],
    splits: int,
    situation: Situation,
) -> Edit:
    spoken = language(source)
    if f"{kernel.name}_partial" in spoken.globals:
        raise Unfit("it already has a copy that is split")
    if "torch" not in spoken.globals:
        raise Unfit("the module does not import torch to make a workspace with")
    partial, combine = f"{kernel.name}_partial", fresh(spoken.globals, f"{kernel.name}_combine")
    used = [int(source.code(c.args[0].value)) for c in calls(kernel.node) if _axis(source, spoken, c)]
    depth = {len(grid_axes(source, la) or ()) for la in at}
    axes = max([*depth, *(u + 1 for u in used)])
    if 0 in depth or len(depth) != 1 or axes > 2:
        raise Unfit("its grid cannot be read, or has no axis left")
    limit = _ENOUGH * situation.target.multiprocessors
    changes = [
        after(
            source,
            kernel,
            [
                split_kernels.partial(source, kernel, plan, axes, partial),
                split_kernels.combine(source, kernel, plan, axes, combine),
            ],
        )
    ]
    changes += [_launch(source, kernel, plan, la, (partial, combine), tuned, splits, limit) for la in at]
    return Edit(
        source=patched(source, changes),
        label=f"{kernel.name}: {splits} parts",
        claim=Claim(fact="programs", relation="rises"),
        lines=source.lines(plan.loop.node),
        risk=SplitReduction.risk,
        params={"splits": splits},
        kernel=kernel.name,
    )


def _axis(source: Source, spoken: Language, call: cst.Call) -> bool:
    """Whether a call reads a grid axis; `Unfit` where the axis is not a number."""
    if spoken.op(call.func) not in ("program_id", "num_programs"):
        return False
    if len(call.args) != 1 or not source.code(call.args[0].value).isdigit():
        raise Unfit("a grid axis that it reads is not written as a number")
    return True


def _launch(
    source: Source,
    kernel: Kernel,
    plan: Plan,
    launch: Launch,
    new: tuple[str, str],
    tuned: Mapping[str, str],
    splits: int,
    limit: int,
) -> Patch:
    statement(source, launch)
    if launch.spread:
        raise Unfit("a launch passes arguments that cannot be read")
    reads = launch.bound.get(plan.reads)
    if reads is None or not isinstance(reads, cst.Name | cst.Attribute):
        raise Unfit(f"`{plan.reads}` at a launch is not a named tensor")
    scope = source.function(launch.call) or source.module
    taken = {n.value for n in walk(scope) if isinstance(n, cst.Name)}
    grid = [_host(source, kernel, launch, tuned, axis) for axis in grid_axes(source, launch) or ()]
    dims = fresh(taken, "split_grid")
    programs = " * ".join(f"{dims}[{i}]" for i in range(len(grid)))
    lines: list[str] = []
    values: dict[str, str] = {k: v for k, v in tuned.items() if k not in launch.bound and k not in launch.options}
    for part in plan.parts:
        space = fresh(taken, part.pointer.removesuffix("_ptr"))
        values[part.pointer] = space
        extents = [_bound(source, kernel, launch, tuned, e) for e in part.shape]
        size = " * ".join([programs, str(splits), *extents])
        kind = _TORCH[part.dtype.rpartition(".")[2]]
        lines.append(f"{space} = torch.empty(({size},), dtype=torch.{kind}, device={source.code(reads)}.device)")
    values[plan.splits] = str(splits)
    func = launch.call.func
    assert isinstance(func, cst.Subscript)
    where = (source.outer(launch.grid) if launch.grid in source.spans else None) or _inside(source, func)
    for name, shape_ in zip(new, (f"(*{dims}, {splits})", dims), strict=True):
        lines.append(launching(source, launch, name, [Patch(*where, shape_), *give(source, launch, values)]))
    outside = margin(source, statement(source, launch))
    made = f"{dims} = ({', '.join(grid)},)"
    patch = choosing(source, launch, f"{programs} < {limit}", lines)
    return Patch(patch.start, patch.end, f"{made}\n{outside}{patch.text}")


def _inside(source: Source, func: cst.Subscript) -> tuple[int, int]:
    """The bytes between the brackets of `kernel[...]`."""
    return source.span(func.slice[0])[0], source.span(func.slice[-1])[1]


def _bound(source: Source, kernel: Kernel, launch: Launch, tuned: Mapping[str, str], name: str) -> str:
    """A compile-time parameter's value at a launch, as host code."""
    if name.isdigit() or name in tuned:
        return tuned.get(name, name)
    given = launch.bound.get(name)
    default = next((p.default for p in kernel.parameters if p.name == name), None)
    node = given if given is not None else default
    if node is None or not pure(node):
        raise Unfit(f"`{name}` at a launch is not a plain expression")
    code = source.code(node)
    return code if code.isidentifier() or code.isdigit() else f"({code})"


def _host(source: Source, kernel: Kernel, launch: Launch, tuned: Mapping[str, str], axis: cst.BaseExpression) -> str:
    """An axis of the grid as host code, with `META["BLOCK"]` replaced by what the launch gives."""
    meta = meta_name(source, launch)
    start, end = source.outer(axis)
    inside: list[Patch] = []
    for n in walk(axis):
        if isinstance(n, cst.Subscript) and isinstance(n.value, cst.Name) and n.value.value == meta:
            key = n.slice[0].slice
            if not isinstance(key, cst.Index) or not isinstance(key.value, cst.SimpleString):
                raise Unfit("the grid's parameters cannot be read")
            inside.append(
                Patch(*source.outer(n), _bound(source, kernel, launch, tuned, str(key.value.evaluated_value)))
            )
    whole = patched(source, inside).encode()
    text = whole[start : len(whole) - (len(source.data) - end)].decode()
    if not pure(axis) or (meta is not None and len(inside) != sum(_named(n, meta) for n in walk(axis))):
        raise Unfit("the grid is not a plain expression")
    return " ".join(text.split())


def _named(node: cst.CSTNode, name: str) -> bool:
    return isinstance(node, cst.Name) and node.value == name
