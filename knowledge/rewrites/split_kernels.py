"""The two kernels of a split reduction: one leaves partial results, one combines them."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from tilewright.knowledge.rewrites.accumulators import Accumulator
from tilewright.knowledge.rewrites.copies import Unfit, fresh, margin, renamed
from tilewright.knowledge.rewrites.kernels import Language, language
from tilewright.knowledge.rewrites.launches import Kernel
from tilewright.knowledge.rewrites.source import Patch, Source, walk
from tilewright.knowledge.rewrites.values import Loop, Shape


@dataclass(frozen=True, slots=True)
class Part:
    """One accumulator of the loop."""

    found: Accumulator
    shape: Shape
    dtype: str
    pointer: str
    """The new parameter that holds every program's partial results."""


@dataclass(frozen=True, slots=True)
class Plan:
    loop: Loop
    parts: tuple[Part, ...]
    moves: tuple[tuple[str, str], ...]
    """Pointers that each round moves on: name and step, as written."""
    splits: str
    """The new constexpr."""
    part: str
    program: str
    reads: str
    """A pointer parameter that the loop loads from: the workspace goes to the same device."""


def _parameters(source: Source, kernel: Kernel, plan: Plan) -> Patch:
    """The workspaces and the number of parts as new last parameters."""
    last = kernel.parameters[-1].node
    given = any(p.default is not None for p in kernel.parameters)
    p = language(source).prefix
    added = [f"{part.pointer}{'=None' if given else ''}" for part in plan.parts]
    added.append(f"{plan.splits}: {p}.constexpr{' = 1' if given else ''}")
    end = _end(source, last)
    line = source.data.rfind(b"\n", 0, source.span(last)[0]) + 1
    before = source.data[line : source.span(last)[0]].decode()
    joint = f",\n{before}" if not before.strip() and len(kernel.parameters) > 1 else ", "
    return Patch(end, end, "".join(f"{joint}{a}" for a in added))


def _end(source: Source, param: cst.Param) -> int:
    last: cst.CSTNode = param.name
    if param.annotation is not None:
        last = param.annotation.annotation
    if param.default is not None:
        return source.outer(param.default)[1]
    return source.outer(last)[1] if isinstance(last, cst.BaseExpression) else source.span(last)[1]


def _program(spoken: Language, plan: Plan, axes: int) -> str:
    """The number of this program among those of the old grid."""
    p = spoken.prefix
    number = f"{p}.program_id({axes - 1})"
    for axis in reversed(range(axes - 1)):
        number = f"({number} * {p}.num_programs({axis}) + {p}.program_id({axis}))"
    return f"{number}.to({p}.int64)"


def _place(spoken: Language, part: Part, base: str) -> str:
    """Where one partial result lies: a scalar, or the elements of its tile in order."""
    p = spoken.prefix
    if not part.shape:
        return f"{part.pointer} + {base}"
    size = " * ".join(part.shape)
    at = f"{p}.arange(0, {part.shape[0]})"
    if len(part.shape) == 2:
        at = f"{at}[:, None] * {part.shape[1]} + {p}.arange(0, {part.shape[1]})[None, :]"
    return f"{part.pointer} + {base} * ({size}) + {at}"


def partial(source: Source, kernel: Kernel, plan: Plan, axes: int, name: str) -> str:
    """The kernel up to the end of its loop, over one part of the range, leaving what it accumulated."""
    spoken, loop = language(source), plan.loop
    p, call = spoken.prefix, loop.node.iter
    outside = margin(source, loop.node)
    if not isinstance(call, cst.Call):
        raise Unfit("its loop's range cannot be read")
    bounds = [a for a in call.args if a.keyword is None]
    stop = source.code(bounds[0 if len(bounds) == 1 else 1].value)
    step = source.code(bounds[2].value) if len(bounds) == 3 else "1"
    taken = {n.value for n in walk(kernel.node) if isinstance(n, cst.Name)} | spoken.globals
    share, first, last = (fresh(taken, w) for w in ("share", "first", "last"))
    rounds = f"{p}.cdiv({stop}, {step})" if step != "1" else stop
    before = [
        f"{plan.part} = {p}.program_id({axes})",
        f"{plan.program} = {_program(spoken, plan, axes)}",
        f"{share} = {p}.cdiv({rounds}, {plan.splits})",
        f"{first} = {plan.part} * {share}" + (f" * ({step})" if step != "1" else ""),
        f"{last} = {p}.minimum({stop}, {first} + {share}" + (f" * ({step}))" if step != "1" else ")"),
        *(f"{n} += {plan.part}.to({p}.int64) * {share} * ({s})" for n, s in plan.moves),
    ]
    start = source.span(loop.node)[0]
    patches = [_parameters(source, kernel, plan)]
    patches.append(Patch(start, start, "".join(f"{t}\n{outside}" for t in before), lead=True))
    a, b = source.outer(bounds[0].value)[0], source.outer(bounds[-1].value)[1]
    patches.append(Patch(a, b, f"{first}, {last}" + (f", {step}" if step != "1" else "")))
    end = start + len(source.data[slice(*source.span(loop.node))].rstrip())
    whole_end = source.span(kernel.node)[0] + len(source.data[slice(*source.span(kernel.node))].rstrip())
    base = f"({plan.program} * {plan.splits} + {plan.part})"
    stores = [f"{p}.store({_place(spoken, part, base)}, {part.found.name})" for part in plan.parts]
    patches.append(Patch(end, whole_end, "".join(f"\n{outside}{s}" for s in stores)))
    return renamed(source, kernel, name, patches)


def combine(source: Source, kernel: Kernel, plan: Plan, axes: int, name: str) -> str:
    """The kernel with its loop replaced by one over the parts' results."""
    spoken, loop = language(source), plan.loop
    p, outside = spoken.prefix, margin(source, loop.node)
    lines = [f"{plan.program} = {_program(spoken, plan, axes)}"]
    tiles = []
    for part in plan.parts:
        acc, kind = part.found.name, part.found.kind
        if not part.shape:
            every = f"{part.pointer} + {plan.program} * {plan.splits} + {p}.arange(0, {plan.splits})"
            lines.append(f"{acc} = {p}.{kind}({p}.load({every}), axis=0)")
            continue
        loaded = f"{p}.load({_place(spoken, part, f'({plan.program} * {plan.splits} + {plan.part})')})"
        pick = f"{p}.maximum" if kind == "max" else f"{p}.minimum"
        tiles.append(f"{acc} += {loaded}" if kind == "sum" else f"{acc} = {pick}({acc}, {loaded})")
    if tiles:
        lines.append(f"for {plan.part} in range({plan.splits}):")
        lines += [f"    {t}" for t in tiles]
    start = source.span(loop.node)[0]
    end = start + len(source.data[slice(*source.span(loop.node))].rstrip())
    text = f"\n{outside}".join(lines)
    return renamed(source, kernel, name, [_parameters(source, kernel, plan), Patch(start, end, text)])
