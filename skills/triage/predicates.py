"""Source signs: what the syntax of a kernel shows. One function a sign, named after it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilewright.skills.triage.reading import REDUCTIONS, Kernel, Lines, Module, decorators, span

_WORK = """
contiguous to float half bfloat16 sum mean max min zero_ fill_ copy_ clone
mul mul_ div div_ add add_ exp sqrt rsqrt
"""
TORCH_WORK = frozenset(_WORK.split())
"""Tensor methods that launch work of their own (or may, for those that copy)."""

_FREE = """
empty empty_like empty_strided device tensor cdiv no_grad set_device finfo iinfo is_tensor Size dtype
"""
TORCH_FREE = frozenset(_FREE.split())
"""Functions of torch that launch nothing."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Where a sign was seen."""

    lines: Lines
    words: str


Predicate = Callable[[Module], Iterator[Seen]]


def source_signs(module: Module) -> dict[str, Seen]:
    """Every source sign that holds, at the first place where it does."""
    return {name: seen for name, look in PREDICATES.items() if (seen := next(look(module), None))}


def _loop_over_blocks(module: Module) -> Iterator[Seen]:
    for kernel in module.kernels:
        for loop in kernel.loops:
            if any(kernel.calls("load", within=loop)):
                yield _at(kernel, loop, "loads in a loop")


def _same_loads_in_two_loops(module: Module) -> Iterator[Seen]:
    for kernel in module.kernels:
        seen: dict[str, ast.For] = {}
        for loop in kernel.outer_loops:
            roots = {kernel.root(c.args[0]) for c in kernel.calls("load", within=loop) if c.args} - {None}
            for root in sorted(str(r) for r in roots):
                if root in seen:
                    first, last = span(seen[root])[0], span(loop)[1]
                    yield Seen((first, last), f"{kernel.node.name} loads {root} in two loops")
                seen.setdefault(root, loop)


def _reduction_in_loop(module: Module) -> Iterator[Seen]:
    for kernel in module.kernels:
        for loop in kernel.loops:
            for call in kernel.calls(*REDUCTIONS, within=loop):
                yield _at(kernel, call, f"{kernel.op(call)} in a loop")


def _whole_row_block(module: Module) -> Iterator[Seen]:
    for kernel in module.kernels:
        axes = {ast.unparse(a) for c in kernel.calls("program_id") for a in [*c.args, *(k.value for k in c.keywords)]}
        if axes != {"0"} or any(any(kernel.calls("load", within=loop)) for loop in kernel.loops):
            continue
        blocks = [c for c in kernel.calls("arange") if len(c.args) == 2 and ast.unparse(c.args[1]) in kernel.constexprs]
        if len(blocks) != 1 or not any(kernel.calls("load")):
            continue
        # An elementwise kernel adds the block's start to its offsets; a row kernel bounds the bare columns.
        bare = {n for n, values in kernel.assigned.items() if any(v is blocks[0] for v in values)}
        for node in ast.walk(kernel.node):
            if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and node.left.id in bare:
                yield _at(kernel, blocks[0], "one block covers the row")


def _tunable_launch(module: Module) -> Iterator[Seen]:
    constexprs = {k.node.name: k.constexprs for k in module.kernels}
    for launch in module.launches:
        given = {k.arg for k in launch.call.keywords if k.arg}
        tuned = given & ({"num_warps", "num_stages"} | constexprs[launch.kernel])
        if tuned:
            yield Seen(span(launch.call), f"{launch.kernel} is launched with {', '.join(sorted(tuned))}")
        elif constexprs[launch.kernel]:
            yield Seen(span(launch.call), f"{launch.kernel} has {', '.join(sorted(constexprs[launch.kernel]))}")


def _autotuned(module: Module) -> Iterator[Seen]:
    for kernel in module.kernels:
        if "autotune" in decorators(kernel):
            yield _at(kernel, kernel.node.decorator_list[0], "autotune")


def _masked_loop(module: Module) -> Iterator[Seen]:
    for kernel in module.kernels:
        for loop in kernel.loops:
            for call in kernel.calls("load", within=loop):
                if any(k.arg == "mask" for k in call.keywords) or len(call.args) > 1:
                    yield _at(kernel, call, "a masked load in a loop")


def _remainder_in_address(module: Module) -> Iterator[Seen]:
    for kernel in module.kernels:
        for node in ast.walk(kernel.node):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and kernel.wide(node.left):
                yield _at(kernel, node, ast.unparse(node))


def _strided_columns(module: Module) -> Iterator[Seen]:
    for kernel in module.kernels:
        for node in ast.walk(kernel.node):
            if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
                continue
            for index, stride in ((node.left, node.right), (node.right, node.left)):
                runtime = isinstance(stride, ast.Name) and stride.id in kernel.params
                # `rows[:, None] * stride` moves between rows; the fastest axis is 1-D or `[None, :]`.
                if runtime and kernel.wide(index) and not ast.unparse(index).endswith("[:, None]"):
                    yield _at(kernel, node, ast.unparse(node))


def _int64_offsets(module: Module) -> Iterator[Seen]:
    for kernel in module.kernels:
        for node in ast.walk(kernel.node):
            match node:
                case ast.Call(func=ast.Attribute(value=value, attr="to"), args=[kind]):
                    if ast.unparse(kind).endswith("int64") and kernel.wide(value):
                        yield _at(kernel, node, ast.unparse(node))


def _dot_in_loop(module: Module) -> Iterator[Seen]:
    for kernel in module.kernels:
        for loop in kernel.loops:
            for call in kernel.calls("dot", within=loop):
                yield _at(kernel, call, "a matrix product in a loop")


def _upcast_before_dot(module: Module) -> Iterator[Seen]:
    for kernel in module.kernels:
        for call in kernel.calls("dot"):
            for operand in call.args[:2]:
                named = kernel.assigned.get(operand.id, []) if isinstance(operand, ast.Name) else []
                if any(ast.unparse(v).endswith(".to(tl.float32)") for v in [operand, *named]):
                    yield _at(kernel, call, f"{ast.unparse(operand)} is cast to fp32")


def _full_precision_dot(module: Module) -> Iterator[Seen]:
    for kernel in module.kernels:
        for call in kernel.calls("dot"):
            for k in call.keywords:
                if (k.arg, ast.unparse(k.value)) in (("input_precision", "'ieee'"), ("allow_tf32", "False")):
                    yield _at(kernel, call, f"{k.arg}={ast.unparse(k.value)}")


def _division_in_loop(module: Module) -> Iterator[Seen]:
    for kernel in module.kernels:
        for loop in kernel.loops:
            changing = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            for node in ast.walk(loop):
                if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
                    continue
                names = {n.id for n in ast.walk(node.right) if isinstance(n, ast.Name)}
                calls = any(isinstance(n, ast.Call) for n in ast.walk(node.right))
                if names and not names & changing and not calls:
                    yield _at(kernel, node, ast.unparse(node))


def _atomic_update(module: Module) -> Iterator[Seen]:
    for kernel in module.kernels:
        for node in ast.walk(kernel.node):
            if (kernel.op(node) or "").startswith("atomic_"):
                yield _at(kernel, node, str(kernel.op(node)))


def _several_launches(module: Module) -> Iterator[Seen]:
    for function in module.functions:
        own = [launch for launch in module.launches if launch.function == function.name]
        if len(own) > 1:
            yield Seen((span(own[0].call)[0], span(own[-1].call)[1]), f"{function.name} launches {len(own)} kernels")


def _torch_in_launch(module: Module) -> Iterator[Seen]:
    launching = {launch.function for launch in module.launches}
    for function in module.functions:
        if function.name not in launching:
            continue
        for node in ast.walk(function):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name)) if name not in TORCH_FREE:
                    yield Seen(span(node), f"torch.{name} in {function.name}")
                case ast.Call(func=ast.Attribute(value=base, attr=name)) if name in TORCH_WORK:
                    if ast.unparse(base) not in ("torch", "triton", "math"):
                        yield Seen(span(node), f".{name}() in {function.name}")


def _staged_loop(module: Module) -> Iterator[Seen]:
    for kernel in module.kernels:
        for loop in kernel.loops:
            if isinstance(loop.iter, ast.Call) and any(k.arg == "num_stages" for k in loop.iter.keywords):
                yield _at(kernel, loop, ast.unparse(loop.iter))


def _at(kernel: Kernel, node: ast.AST, words: str) -> Seen:
    return Seen(span(node), f"{kernel.node.name}: {words}")


PREDICATES: dict[str, Predicate] = {
    "loop-over-blocks": _loop_over_blocks,
    "same-loads-in-two-loops": _same_loads_in_two_loops,
    "reduction-in-loop": _reduction_in_loop,
    "whole-row-block": _whole_row_block,
    "tunable-launch": _tunable_launch,
    "autotuned": _autotuned,
    "masked-loop": _masked_loop,
    "remainder-in-address": _remainder_in_address,
    "strided-columns": _strided_columns,
    "int64-offsets": _int64_offsets,
    "dot-in-loop": _dot_in_loop,
    "upcast-before-dot": _upcast_before_dot,
    "full-precision-dot": _full_precision_dot,
    "division-in-loop": _division_in_loop,
    "atomic-update": _atomic_update,
    "several-launches": _several_launches,
    "torch-in-launch": _torch_in_launch,
    "staged-loop": _staged_loop,
}
