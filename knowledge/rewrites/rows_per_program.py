"""Several rows a program: a kernel of one row a program becomes one over a tile [ROWS, BLOCK].

Short rows leave a program little to do: its threads wait for one load and one reduction across warps. A tile of
rows keeps more loads in flight and lets each warp reduce rows of its own. The edit is a change of shape alone:
every row is computed from the same values in the same way, up to the order of a reduction's sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import libcst as cst

from tilewright.harness.types import Claim, KernelFacts, Scalar
from tilewright.knowledge.rewrites import Edit, Look, Situation
from tilewright.knowledge.rewrites.bindings import definitions
from tilewright.knowledge.rewrites.elementwise import Refused
from tilewright.knowledge.rewrites.kernels import language
from tilewright.knowledge.rewrites.launches import (
    Kernel,
    Launch,
    before,
    configured,
    give,
    grid_axes,
    kernels,
    launches,
    mentions,
    shared_grid,
)
from tilewright.knowledge.rewrites.parameters import added, fresh, prologue
from tilewright.knowledge.rewrites.row_kinds import RowKinds
from tilewright.knowledge.rewrites.source import Patch, Source, dotted, names, patched, read, walk

_TILES = (4096, 2048, 8192, 1024)
"""Elements of a tile, most promising first: 8 to 32 elements a thread at 4 to 8 warps."""
_MOST = 16
_PURE = frozenset({"size", "numel", "stride", "dim", "len", "int", "max", "min", "prod"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """One way to set the tile: an expression for ROWS at the launch and one for `num_warps` (None: as it is)."""

    rows: str
    warps: str | None
    claim: Claim
    label: str
    params: dict[str, Scalar]


class RowsPerProgram:
    """Give each program a tile of rows in place of one."""

    name = "rows-per-program"
    precondition = (
        "Each program computes one row, named by tl.program_id(0); rows share nothing but what they read; "
        "the launch's grid is the number of rows."
    )
    risk = "A larger tile needs more registers, and fewer programs may leave multiprocessors idle."

    def look(self, source: str, situation: Situation) -> Look:
        """Tiles of several heights for every kernel that allows it, most promising first."""
        parsed = read(source)
        if parsed is None:
            return Look(refused=("the source is not Python",))
        found: list[Edit] = []
        reasons: list[str] = []
        for kernel in wanted(parsed, situation):
            try:
                edits = self._kernel(parsed, kernel, situation)
            except Refused as refused:
                reasons.append(f"{kernel.name}: {refused}")
                continue
            found += edits
            if not edits:
                reasons.append(f"{kernel.name}: no tile of rows fits what is known of it")
        return Look(edits=tuple(labelled(found)), refused=tuple(reasons))

    def _kernel(self, source: Source, kernel: Kernel, situation: Situation) -> list[Edit]:
        sites = launches(source, kernel.name)
        if not sites:
            raise Refused("it is not launched in this module")
        if mentions(source, kernel.name) != len(sites):
            raise Refused("it is used in other ways than plain launches")
        around = [kernel.node, *(source.function(site.call) or source.module for site in sites)]
        taken = {n.value for scope in around for n in walk(scope) if isinstance(n, cst.Name)}
        inside = {n.value for n in walk(kernel.node) if isinstance(n, cst.Name)}
        rows, mask, tile = fresh("rows", inside), fresh("row_mask", inside), fresh("ROWS", taken)
        grids = [_rows_of(source, site) for site in sites]
        kinds = RowKinds(source, language(source), kernel.node, rows, mask, tile)
        kinds.run()
        count = _same_parameter(source, kernel, sites, grids) or fresh("n_rows", {p.name for p in kernel.parameters})
        header = [
            f"{rows} = {kinds.prefix}.program_id(0) * {tile} + {kinds.prefix}.arange(0, {tile})",
            f"{mask} = {rows} < {count}",
        ]
        new = [] if kernel.parameter(count) else [(count, "", "None")]
        parameters = added(source, kernel, [*new, (tile, f"{kinds.prefix}.constexpr", "1")])
        start = prologue(source, kernel, header)
        if parameters is None or start is None:
            raise Refused("the kernel's header has no room for two more parameters")
        body = [*kinds.patches, parameters, start]
        block = _block(kinds.blocks, sites)
        plans = _plans(kernel, sites, block, situation)
        edits = []
        for plan in plans:
            patches = list(body)
            for site, grid in zip(sites, grids, strict=True):
                patches += _relaunch(source, site, grid, count, tile, plan)
            edits.append(
                Edit(
                    source=patched(source, patches),
                    label=plan.label,
                    claim=plan.claim,
                    lines=source.lines(kernel.node),
                    risk=self.risk,
                    params=plan.params,
                )
            )
        return edits


def wanted(source: Source, situation: Situation) -> list[Kernel]:
    """The module's kernels that matter: those that were compiled, dearest first; all where nothing was compiled."""
    known = kernels(source)
    if not situation.kernels:
        return list(known.values())
    moved: dict[str, float] = {}
    for facts in situation.kernels:
        number = [facts.facts.get(k, 0) for k in ("load_sector_bytes", "store_sector_bytes")]
        total = sum(n for n in number if isinstance(n, int | float)) * facts.launches
        moved[facts.kernel] = moved.get(facts.kernel, 0.0) + total
    return [known[name] for name in sorted(moved, key=lambda n: -moved[n]) if name in known]


def labelled(edits: list[Edit]) -> list[Edit]:
    """The edits, with the kernel's name before each label where they are of several kernels."""
    if len({e.claim.kernel for e in edits}) < 2:
        return edits
    return [replace(e, label=f"{e.claim.kernel}: {e.label}") for e in edits]


def facts_of(situation: Situation, kernel: str) -> list[KernelFacts]:
    """One record a case: the kernel's launch with the largest grid."""
    best: dict[str, KernelFacts] = {}
    for facts in situation.kernels:
        if facts.kernel == kernel and (facts.case not in best or facts.grid > best[facts.case].grid):
            best[facts.case] = facts
    return list(best.values())


def number(facts: KernelFacts, key: str) -> int | None:
    """An integer fact, where it is known."""
    value = facts.facts.get(key)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


# --- the launch --------------------------------------------------------------------------------------------


def _rows_of(source: Source, site: Launch) -> cst.BaseExpression:
    """The expression that is the number of rows: the grid's first axis."""
    axes = grid_axes(source, site)
    if not axes:
        raise Refused("the grid cannot be read from the launch")
    if not site.complete or any(s.star == "*" for s in site.spread):
        raise Refused("some of the kernel's arguments cannot be read from the launch")
    first = axes[0]
    for node in walk(first):
        if isinstance(node, cst.Call):
            last = dotted(node.func).rpartition(".")[2] if dotted(node.func) else getattr(node.func, "attr", None)
            word = last if isinstance(last, str) else getattr(last, "value", "")
            if word == "cdiv":
                raise Refused("a program is a tile, not a row: the grid is a quotient")
            if word not in _PURE:
                raise Refused(f"the grid calls `{word}`")
        if isinstance(node, cst.FloorDivide) and b"- 1" in source.data[slice(*source.span(first))]:
            raise Refused("a program is a tile, not a row: the grid is a quotient")
    scope = source.function(site.call) or source.module
    inner = [f for f in walk(scope) if isinstance(f, cst.Lambda) and first in set(walk(f))]
    if any(p.name.value in names(first) for f in inner for p in f.params.params):
        raise Refused("the number of programs depends on a tile size")
    if source.function(first) is not source.function(site.call):
        raise Refused("the grid is made by another function")
    if isinstance(site.grid, cst.Name):
        for name in names(first):
            if isinstance(scope, cst.FunctionDef) and len(definitions(source, name, scope)) > 1:
                raise Refused(f"`{name}` is assigned more than once around the launch")
    return first


def _same_parameter(source: Source, kernel: Kernel, sites: list[Launch], grids: list[cst.BaseExpression]) -> str | None:
    """A parameter that already receives the number of rows at every launch."""
    for parameter in kernel.parameters:
        given = [site.bound.get(parameter.name) for site in sites]
        if not parameter.constexpr and all(
            g is not None and source.code(g) == source.code(n) for g, n in zip(given, grids, strict=True)
        ):
            return parameter.name
    return None


def _relaunch(
    source: Source, site: Launch, grid: cst.BaseExpression, count: str, tile: str, plan: _Plan
) -> Iterator[Patch]:
    text = source.code(grid)
    quotient = f"triton.cdiv({text}, {tile})" if _has_triton(source) else f"({text} + {tile} - 1) // {tile}"
    set_rows = f"{tile} = {plan.rows}"
    in_place = isinstance(site.grid, cst.Tuple | cst.List)
    anchor: cst.CSTNode = site.call if in_place else grid
    if not in_place and shared_grid(source, site):
        axes = grid_axes(source, site) or ()
        rest = "".join(f", {source.code(a)}" for a in axes[1:])
        yield Patch(*source.outer(site.grid), f"({quotient}{rest or ','})")
        anchor = site.call
    else:
        yield Patch(*source.outer(grid), quotient)
    first = before(source, anchor, [set_rows])
    if first is None:
        raise Refused("the launch does not stand on a line of its own")
    yield first
    values = {} if site.kernel.parameter(count) else {count: text}
    values[tile] = tile
    if plan.warps is not None:
        values["num_warps"] = plan.warps.replace("{rows}", tile)
    try:
        yield from give(source, site, values)
    except ValueError as error:
        raise Refused(str(error)) from None


def _has_triton(source: Source) -> bool:
    return any(
        isinstance(n, cst.ImportAlias) and dotted(n.name) == "triton" and n.asname is None for n in walk(source.module)
    )


# --- which tiles -------------------------------------------------------------------------------------------


def _block(blocks: set[str], sites: list[Launch]) -> str | None:
    """The row's extent as the launches know it: a name that can be used in an expression there."""
    if len(blocks) != 1:
        return None
    given = {site.bound.get(next(iter(blocks))) for site in sites}
    texts = {g.value for g in given if isinstance(g, cst.Name)}
    return texts.pop() if len(texts) == 1 and len(given) == len(sites) else None


def _plans(kernel: Kernel, sites: list[Launch], block: str | None, situation: Situation) -> list[_Plan]:
    """Heights and warps to try: about as many elements a program as keep its threads busy."""
    facts = facts_of(situation, kernel.name)
    extents = sorted({e for f in facts if (e := number(f, "tile_elements"))})
    fixed_warps = "num_warps" in configured(kernel) or kernel.autotune is not None
    plans: list[_Plan] = []
    if len(extents) > 1 and block is not None and extents[-1] >= 4 * extents[0]:
        for elements in _TILES[:3]:
            rows = f"max(1, min({_MOST}, {elements} // {block}))"
            warps = f"max(1, min(16, {{rows}} * {block} // 512))"
            claim = Claim(fact="tile_rank", relation="==", value=2, kernel=kernel.name)
            params: dict[str, Scalar] = {"tile_elements": elements}
            label = f"ROWS={elements}/{block}"
            if not fixed_warps:
                plans.append(
                    _Plan(rows=rows, warps=warps, claim=claim, label=f"{label} num_warps=tile/512", params=params)
                )
            plans.append(_Plan(rows=rows, warps=None, claim=claim, label=label, params=params))
    widest = extents[-1] if extents else None
    programs = min((f.grid[0] for f in facts), default=None)
    for rows_n in _heights(extents[0] if extents else None, widest, programs, situation):
        claim = Claim(fact="programs", relation="falls", kernel=kernel.name)
        options: list[int | None] = [None]
        if widest is not None and not fixed_warps:
            now = {number(f, "num_warps") for f in facts}
            best = max(1, min(16, rows_n * widest // 512))
            options = [w for w in (best, best // 2) if w >= 1 and {w} != now] + [None]
        for w in options:
            label = f"ROWS={rows_n}" + (f" num_warps={w}" if w else "")
            params = {"ROWS": rows_n, **({"num_warps": w} if w else {})}
            plans.append(_Plan(rows=str(rows_n), warps=str(w) if w else None, claim=claim, label=label, params=params))
    return plans[:12]


def _heights(narrowest: int | None, widest: int | None, programs: int | None, situation: Situation) -> list[int]:
    """Heights, best first: the tile near its best size, and programs enough for every multiprocessor."""
    heights = [2, 4, 8, 16]
    if widest is not None:
        heights = [h for h in (2, 4, 8, 16, 32) if h * widest <= 16384]
    if programs is not None:
        heights = [h for h in heights if programs >= h * situation.target.multiprocessors]
    if narrowest is None:
        return [h for h in (4, 2, 8, 16) if h in heights]
    order = {tile: i for i, tile in enumerate(_TILES)}
    return sorted(heights, key=lambda h: (order.get(h * narrowest, len(order)), abs(h * narrowest - _TILES[0])))


REWRITE = RowsPerProgram()
