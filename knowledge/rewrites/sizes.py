"""Present sizes of a kernel's tiles at its launches, and patches that change them with the grid in step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst

from tilewright.knowledge.rewrites.bindings import definition, definitions
from tilewright.knowledge.rewrites.kernels import language
from tilewright.knowledge.rewrites.launches import Kernel, Launch, grid_axes, kernels, launches, meta_name, own
from tilewright.knowledge.rewrites.source import Patch, Source, dotted, integer, walk
from tilewright.knowledge.rewrites.tiles import Tile, tiles


@dataclass(frozen=True, slots=True)
class Knob:
    """A tile size that may vary, what it is now, and the literals that say so."""

    tile: Tile
    size: int
    literals: tuple[cst.BaseExpression, ...] = field(default=())
    """Each place where the size is written: the argument or its name's definition, and the grid's own copy."""

    def smallest(self, dot: bool) -> int:
        """The least size worth trying: a matrix product's least operand, a warp's worth, or one row."""
        if dot:
            return 16
        return 1 if self.size < 16 else 32


def knobs(source: Source, kernel: Kernel, sites: Sequence[Launch], compiled: int | None = None) -> dict[str, Knob]:
    """The free tiles whose present size is one literal power of two at every launch, with the grid following it.

    `compiled` is the size that the compiler saw, where the kernel has one tile: a loop's tile may then be an
    expression at the launch (`min(65536, next_power_of_2(n))`), since any other size serves as well.
    """
    found = {}
    every = {k.name: tiles(source, language(source), k) for k in kernels(source).values()}
    for name, tile in every[kernel.name].items():
        places: list[cst.BaseExpression] = []
        values = set()
        for site in sites:
            written = _written(source, site, name, tile, every)
            if written is None:
                break
            places += written
            values.add(integer(written[0]))
        else:
            size = values.pop() if len(values) == 1 else None
            if size is not None and size > 0 and size & (size - 1) == 0:
                found[name] = Knob(tile, size, tuple(dict.fromkeys(places)))
            continue
        given = [own(source, site, name) for site in sites]
        computed = compiled is not None and len(every[kernel.name]) == 1 and tile.masked and not tile.program
        if computed and compiled is not None and compiled & (compiled - 1) == 0 and all(given):
            found[name] = Knob(tile, compiled, tuple(g for g in given if g is not None))
    return found


def _written(
    source: Source, site: Launch, name: str, tile: Tile, free: Mapping[str, Mapping[str, Tile]]
) -> list[cst.BaseExpression] | None:
    """The literals that hold the size at one launch, or None where they cannot all be found."""
    given = site.bound.get(name)
    if given is None:
        return None
    if own(source, site, name) is None:
        return None
    axes = grid_axes(source, site)
    if axes is None:
        return None if tile.program else _literal(given)
    if isinstance(given, cst.Name):
        made = definition(source, given.value, site.call)
        value = made.value if made is not None and made.index is None else None
        read = any(isinstance(n, cst.Name) and n.value == given.value for axis in axes for n in walk(axis))
        if value is None or read != tile.program or not _follows(source, given.value, site, free):
            return None
        return _literal(value)
    literal = _literal(given)
    if literal is None or not tile.program:
        return literal
    meta = meta_name(source, site)
    if meta is not None and any(_reads_meta(node, meta, name) for axis in axes for node in walk(axis)):
        return None if tile.partial else literal
    copies = [c for axis in axes for c in _divisors(axis, integer(given))]
    return None if tile.partial or len(copies) != 1 else [*literal, *copies]


def _follows(source: Source, name: str, site: Launch, free: Mapping[str, Mapping[str, Tile]]) -> bool:
    """Whether every reader of a size's name stays right when the size changes: free tiles and quotients."""
    scope = source.function(site.call)
    if scope is None or not definitions(source, name, scope):
        scope = None
    sites = launches(source)
    for node in walk(scope if scope is not None else source.module):
        if not isinstance(node, cst.Name) or node.value != name:
            continue
        parent = source.parents[node]
        in_tuple = isinstance(parent, cst.Element) and isinstance(
            source.parents[source.parents[parent]], cst.AssignTarget
        )
        if in_tuple or isinstance(parent, cst.AssignTarget):
            continue
        if not isinstance(parent, cst.Arg):
            return False
        if parent.keyword is node:
            continue
        call = source.parents[parent]
        into = next((s for s in sites if s.call is call), None)
        if into is not None:
            bound = [p for p, value in into.bound.items() if value is node]
            if not bound or bound[0] not in free[into.kernel.name]:
                return False
        elif not (isinstance(call, cst.Call) and dotted(call.func).endswith("cdiv") and call.args[-1] is parent):
            return False
    return True


def _literal(node: cst.BaseExpression) -> list[cst.BaseExpression] | None:
    return [node] if integer(node) is not None else None


def _reads_meta(node: cst.CSTNode, meta: str, name: str) -> bool:
    """`META["BLOCK"]`."""
    if not isinstance(node, cst.Subscript) or dotted(node.value) != meta or len(node.slice) != 1:
        return False
    index = node.slice[0].slice
    return (
        isinstance(index, cst.Index)
        and isinstance(index.value, cst.SimpleString)
        and index.value.evaluated_value == name
    )


def _divisors(axis: cst.BaseExpression, size: int | None) -> list[cst.BaseExpression]:
    """Second arguments of `cdiv` in a grid axis that repeat the size."""
    return [
        node.args[1].value
        for node in walk(axis)
        if isinstance(node, cst.Call)
        and dotted(node.func).endswith("cdiv")
        and len(node.args) == 2
        and integer(node.args[1].value) == size
    ]


def resized(source: Source, known: Mapping[str, Knob], sizes: Mapping[str, int]) -> list[Patch]:
    """Patches that write new sizes wherever the present ones are written."""
    return [Patch(*source.outer(place), str(size)) for name, size in sizes.items() for place in known[name].literals]
