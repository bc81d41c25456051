"""Where kernels are launched: which argument reaches which parameter, over which grid, and how to edit that."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import libcst as cst

from tilewright.knowledge.rewrites.bindings import definition, entries, items, local_function, returns
from tilewright.knowledge.rewrites.source import Patch, Source, dotted, walk

OPTIONS = frozenset({"num_warps", "num_stages", "num_ctas", "maxnreg", "grid", "warmup"})
"""Keywords of a launch that go to the compiler, not to a parameter of the kernel."""


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """A parameter of a kernel."""

    name: str
    constexpr: bool
    default: cst.BaseExpression | None
    node: cst.Param


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A function under `@triton.jit`: launched from the host, or called from another one."""

    name: str
    node: cst.FunctionDef
    parameters: tuple[Parameter, ...]
    jit: cst.Decorator
    autotune: cst.Call | None = None
    heuristics: cst.Call | None = None

    def parameter(self, name: str) -> Parameter | None:
        """The parameter of that name."""
        return next((p for p in self.parameters if p.name == name), None)


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """One `kernel[grid](…)`."""

    kernel: Kernel
    call: cst.Call
    grid: cst.BaseExpression
    bound: Mapping[str, cst.BaseExpression]
    """Parameter -> the expression that reaches it."""
    options: Mapping[str, cst.BaseExpression]
    """`num_warps`, `num_stages` and the compiler's other keywords."""
    positional: int
    """How many of the kernel's first parameters are given by position."""
    spread: tuple[cst.Arg, ...] = ()
    """`*args` and `**kwargs` whose contents are not known from the text."""
    arguments: Mapping[str, cst.Arg] = field(default_factory=dict)
    """Parameter or option -> its `Arg` in this very call; absent for what comes through a dict."""

    @property
    def complete(self) -> bool:
        """Whether every parameter without a default is given by name or position, outside any spread."""
        tuned = configured(self.kernel)
        return all(p.name in self.bound or p.default is not None or p.name in tuned for p in self.kernel.parameters)


@functools.lru_cache(maxsize=32)
def kernels(source: Source) -> dict[str, Kernel]:
    """Every function under `@triton.jit` at the top of the module, in the order of the text."""
    found: dict[str, Kernel] = {}
    for statement in source.module.body:
        if isinstance(statement, cst.FunctionDef):
            kernel = _kernel(statement)
            if kernel is not None:
                found[kernel.name] = kernel
    return found


def _kernel(node: cst.FunctionDef) -> Kernel | None:
    jit = autotune = heuristics = None
    for decorator in node.decorators:
        call = decorator.decorator if isinstance(decorator.decorator, cst.Call) else None
        last = dotted(call.func if call else decorator.decorator).rpartition(".")[2]
        if last == "jit":
            jit = decorator
        elif last == "autotune" and call:
            autotune = call
        elif last == "heuristics" and call:
            heuristics = call
        elif last != "triton_op":
            return None
    if jit is None or isinstance(node.params.star_arg, cst.Param) or node.params.star_kwarg:
        return None
    parameters = tuple(
        Parameter(p.name.value, _constexpr(p), p.default, p)
        for p in (*node.params.posonly_params, *node.params.params, *node.params.kwonly_params)
    )
    return Kernel(node.name.value, node, parameters, jit, autotune, heuristics)


def _constexpr(param: cst.Param) -> bool:
    annotation = param.annotation.annotation if param.annotation else None
    if isinstance(annotation, cst.SimpleString):
        return str(annotation.evaluated_value).endswith("constexpr")
    return annotation is not None and dotted(annotation).endswith("constexpr")


def configured(kernel: Kernel) -> set[str]:
    """Parameters that the kernel's autotuner or heuristics give: keys of their dicts, as far as readable."""
    found: set[str] = set()
    for decorator in (kernel.autotune, kernel.heuristics):
        for node in walk(decorator) if decorator is not None else ():
            if isinstance(node, cst.Dict):
                found |= {k for k, _ in items(node) or ()}
    return found


def launches(source: Source, name: str | None = None) -> list[Launch]:
    """Every launch of the module's kernels (or of one of them), in the order of the text.

    A launch outside a readable form (an alias of the kernel, `kernel.run`) is not listed: compare with
    `mentions` before relying on having all of them.
    """
    return [site for site in _launches(source) if name in (None, site.kernel.name)]


@functools.lru_cache(maxsize=32)
def _launches(source: Source) -> tuple[Launch, ...]:
    known = kernels(source)
    found = []
    for node in walk(source.module):
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Subscript):
            kernel = known.get(_launched(node.func.value))
            if kernel is not None:
                found.append(_launch(source, kernel, node, node.func))
    return tuple(found)


def _launched(value: cst.BaseExpression) -> str:
    if isinstance(value, cst.Call) and dotted(value.func).endswith("wrap_triton") and len(value.args) == 1:
        return dotted(value.args[0].value)
    return dotted(value)


def mentions(source: Source, name: str) -> int:
    """How often a name is read in the module: equals the launches of a kernel that is used in no other way."""
    count = 0
    for node in walk(source.module):
        if isinstance(node, cst.Name) and node.value == name:
            parent = source.parents[node]
            defines = isinstance(parent, cst.FunctionDef | cst.ImportAlias) and parent.name is node
            keyword = isinstance(parent, cst.Arg) and parent.keyword is node
            attribute = isinstance(parent, cst.Attribute) and parent.attr is node
            count += not (defines or keyword or attribute)
    return count


def _launch(source: Source, kernel: Kernel, call: cst.Call, func: cst.Subscript) -> Launch:
    bound: dict[str, cst.BaseExpression] = {}
    options: dict[str, cst.BaseExpression] = {}
    arguments: dict[str, cst.Arg] = {}
    spread: list[cst.Arg] = []
    positional = 0
    order = [p.name for p in kernel.parameters]

    def bind(key: str, value: cst.BaseExpression) -> None:
        (bound if key in order else options)[key] = value

    for arg in call.args:
        if arg.star == "*":
            spread.append(arg)
        elif arg.star == "**":
            given = entries(source, arg.value, call)
            for key, value in (given or {}).items():
                bind(key, value)
            if given is None:
                spread.append(arg)
        elif arg.keyword is not None:
            bind(arg.keyword.value, arg.value)
            arguments[arg.keyword.value] = arg
        elif positional < len(order) and not any(s.star == "*" for s in spread):
            bind(order[positional], arg.value)
            arguments[order[positional]] = arg
            positional += 1
    grid = _grid(func)
    return Launch(kernel, call, grid, bound, options, positional, tuple(spread), arguments)


def _grid(func: cst.Subscript) -> cst.BaseExpression:
    items = [e.slice.value for e in func.slice if isinstance(e.slice, cst.Index)]
    if len(items) == 1 and len(func.slice) == 1:
        return items[0]
    return cst.Tuple([cst.Element(i) for i in items], lpar=[], rpar=[])


def grid_axes(source: Source, launch: Launch) -> tuple[cst.BaseExpression, ...] | None:
    """The launch's grid, one expression an axis, followed through one assignment and a lambda; else None.

    Nodes belong to the source, so they can be patched; `shared_grid` says whether others use them too.
    """
    return _axes(source, launch.grid, launch.call, 3)


def _axes(
    source: Source, grid: cst.BaseExpression, at: cst.CSTNode, depth: int
) -> tuple[cst.BaseExpression, ...] | None:
    if isinstance(grid, cst.Tuple | cst.List):
        if any(not isinstance(e, cst.Element) for e in grid.elements):
            return None
        return tuple(e.value for e in grid.elements)
    if isinstance(grid, cst.Lambda):
        return _axes(source, grid.body, at, depth)
    if isinstance(grid, cst.Name) and depth:
        made = definition(source, grid.value, at)
        if made is not None and made.value is not None and made.index is None:
            return _axes(source, made.value, made.statement, depth - 1)
        local = local_function(source, grid.value, at)
        if local is not None:
            returned = returns(local)
            if len(returned) == 1:
                return _axes(source, returned[0], local, depth - 1)
    return None


def shared_grid(source: Source, launch: Launch) -> bool:
    """Whether the grid's expression is named and read somewhere else than in this launch."""
    if not isinstance(launch.grid, cst.Name):
        return False
    scope: cst.CSTNode = source.function(launch.call) or source.module
    reads = sum(1 for n in walk(scope) if isinstance(n, cst.Name) and n.value == launch.grid.value)
    return reads > 2


def meta_name(source: Source, launch: Launch) -> str | None:
    """The grid's lambda parameter (`META`), through one assignment; None where the grid is not a lambda."""
    grid: cst.BaseExpression | None = launch.grid
    if isinstance(grid, cst.Name):
        made = definition(source, grid.value, launch.call)
        local = local_function(source, grid.value, launch.call)
        if local is not None and local.params.params:
            return local.params.params[0].name.value
        grid = made.value if made is not None else None
    if isinstance(grid, cst.Lambda) and grid.params.params:
        return grid.params.params[0].name.value
    return None


# --- editing a launch ------------------------------------------------------------------------------------


def own(source: Source, launch: Launch, key: str) -> cst.BaseExpression | None:
    """The expression that gives a parameter or option to this launch and to no other; None where there is none."""
    arg = launch.arguments.get(key)
    if arg is not None:
        return arg.value
    for spread in launch.call.args:
        if spread.star == "**":
            given = entries(source, spread.value, launch.call) or {}
            if key in given:
                if not isinstance(spread.value, cst.Name):
                    return given[key]
                scope = source.function(launch.call) or source.module
                uses = sum(isinstance(n, cst.Name) and n.value == spread.value.value for n in walk(scope))
                return given[key] if uses == 2 and source.function(given[key]) is source.function(launch.call) else None
    return None


def give(source: Source, launch: Launch, values: Mapping[str, str]) -> list[Patch]:
    """Patches that give parameters or options of one launch these expressions, adding keywords as needed.

    `ValueError`: a present value is shared with other launches, so that it cannot be changed for this one.
    """
    patches: list[Patch] = []
    fresh: list[str] = []
    for key, text in values.items():
        place = own(source, launch, key)
        if place is not None:
            patches.append(Patch(*source.outer(place), text))
        elif key in launch.bound or key in launch.options:
            raise ValueError(f"{key} comes through a dict that others use too")
        else:
            fresh.append(f"{key}={text}")
    if fresh:
        patches.append(_insert(source, launch.call, fresh))
    return patches


def _insert(source: Source, call: cst.Call, keywords: list[str]) -> Patch:
    """Insert keyword arguments after the last one that is not a `**` spread, on a line like its own."""
    plain = [a for a in call.args if a.star != "**"]
    if not plain:
        start = source.span(call.args[0])[0] if call.args else source.span(call)[1] - 1
        return Patch(start, start, ", ".join(keywords) + (", " if call.args else ""))
    last = plain[-1]
    end = source.outer(last.value)[1]
    line = source.data.rfind(b"\n", 0, source.span(last)[0]) + 1
    margin = source.data[line : source.span(last)[0]].decode()
    separator = f",\n{margin}" if not margin.strip() and len(call.args) > 1 else ", "
    return Patch(end, end, "".join(f"{separator}{k}" for k in keywords))


def before(source: Source, node: cst.CSTNode, lines: Iterable[str]) -> Patch | None:
    """Insert statements in front of the one that holds a node, with its margin; None where there is no line."""
    line = source.statement(node)
    if line is None:
        return None
    start = source.span(line)[0]
    margin = source.data[source.data.rfind(b"\n", 0, start) + 1 : start].decode()
    if margin.strip():
        return None
    return Patch(start, start, "".join(f"{text}\n{margin}" for text in lines), lead=True)
