"""Joint search of tile sizes, warps and stages: a bounded batch of variants around the present choice.

Sizes vary only where `tiles` shows them free, the grid follows them, and the result must fit the target's shared
memory and registers. A block that covers a whole row stays; then warps (and rows a program) vary. Variants are
ordered by how near they come to a well-filled tile: enough elements a thread for 16-byte accesses, few enough
to stay in registers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import libcst as cst

from tilewright.harness.types import Claim, KernelFacts, Scalar
from tilewright.knowledge.rewrites import Edit, Look, Situation
from tilewright.knowledge.rewrites.configs import argument, configs, pinned
from tilewright.knowledge.rewrites.kernels import language
from tilewright.knowledge.rewrites.launches import Kernel, Launch, give, launches, mentions
from tilewright.knowledge.rewrites.rows_per_program import facts_of, labelled, number, wanted
from tilewright.knowledge.rewrites.sizes import Knob, knobs, resized
from tilewright.knowledge.rewrites.source import Patch, Source, integer, patched, read, walk
from tilewright.knowledge.rewrites.tiles import tiles

BATCH = 16
"""Most variants of one call."""
_WARPS = (1, 2, 4, 8, 16, 32)
_STAGES = (2, 3, 4, 5)
_BEST_PER_THREAD = 8
"""Elements a thread at which a half-precision access is 16 bytes wide and a fp32 one is two of them."""
_REGISTERS_OF_TILE = 64
"""Elements of a tile a thread can hold with room for what is computed from them."""
_ACCUMULATORS = 128
"""fp32 accumulators of a matrix product a thread can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """One choice: sizes by parameter, warps and stages (None: as they are)."""

    sizes: Mapping[str, int]
    warps: int | None = None
    stages: int | None = None

    @property
    def label(self) -> str:
        """In a few words: `num_warps=8 BLOCK=2048`."""
        options = {"num_warps": self.warps, "num_stages": self.stages}
        return " ".join(f"{k}={v}" for k, v in {**options, **self.sizes}.items() if v is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """What is known of a kernel before the search."""

    kernel: Kernel
    sites: tuple[Launch, ...]
    present: _Point
    knobs: Mapping[str, Knob]
    dot: bool
    facts: tuple[KernelFacts, ...]


class TileSearch:
    """Search tile sizes, warps and stages together."""

    name = "tile-search"
    precondition = (
        "The launch or the autotuner gives tile sizes, num_warps or num_stages; a size that varies only tiles its "
        "range, which the grid and the masks follow."
    )
    risk = "Larger tiles can spill registers or exceed shared memory; smaller ones repeat work at their edges."

    def look(self, source: str, situation: Situation) -> Look:
        """At most 16 variants, most promising first, the kernels taking turns."""
        parsed = read(source)
        if parsed is None:
            return Look(refused=("the source is not Python",))
        answers = [(k, *self._kernel(parsed, k, situation)) for k in wanted(parsed, situation)]
        turns = itertools.chain.from_iterable(itertools.zip_longest(*(edits for _, edits, _ in answers)))
        return Look(
            edits=tuple(labelled([edit for edit in turns if edit is not None][:BATCH])),
            refused=tuple(f"{k.name}: {reason}" for k, edits, reason in answers if not edits),
        )

    def _kernel(self, source: Source, kernel: Kernel, situation: Situation) -> tuple[list[Edit], str]:
        sites = launches(source, kernel.name)
        if not sites:
            return [], "it is not launched in this module"
        if mentions(source, kernel.name) != len(sites):
            return [], "it is used in other ways than plain launches"
        facts = tuple(facts_of(situation, kernel.name))
        if argument(kernel) is not None:
            return self._tuned(source, kernel, sites, situation, facts)
        setting = _setting(source, kernel, sites, facts)
        edits = list(_scaled(source, setting))
        for point in _ordered(setting, _around(setting), situation):
            patches = _applied(source, setting, point)
            if patches is not None:
                edits.append(_edit(source, setting, point, patches))
        return edits[:BATCH], "" if edits else "nothing that the launch gives can be varied"

    def _tuned(
        self, source: Source, kernel: Kernel, sites: list[Launch], situation: Situation, facts: tuple[KernelFacts, ...]
    ) -> tuple[list[Edit], str]:
        """Pin one configuration: first those that the author listed (the first one is in force), then neighbours."""
        listed = configs(source, kernel)
        if not listed:
            return [], "the autotuner's configurations are not literal"
        dot = _has(source, kernel, "dot")
        free = tiles(source, language(source), kernel)
        edits = []
        seen = set()
        first = listed[0]
        present = _Point(
            sizes=first.sizes, warps=first.options.get("num_warps", 4), stages=first.options.get("num_stages")
        )
        known = {k: Knob(free[k], first.sizes[k]) for k in first.sizes if k in free}
        setting = _Setting(kernel=kernel, sites=tuple(sites), present=present, knobs=known, dot=dot, facts=facts)
        own = [
            _Point(sizes=c.sizes, warps=c.options.get("num_warps", 4), stages=c.options.get("num_stages"))
            for c in listed
        ]
        near = [p for c in own[:4] for p in _around(replace(setting, present=c))]
        for point in [*_ordered(setting, own, situation, keep_all=True), *_ordered(setting, near, situation)]:
            sizes = {**first.sizes, **point.sizes}
            options = {"num_warps": point.warps or present.warps or 4}
            stages = point.stages or present.stages
            options |= {"num_stages": stages} if stages else {}
            key = (tuple(sizes.items()), tuple(options.items()))
            same = sizes == dict(first.sizes) and options == {"num_warps": 4, **first.options}
            if key not in seen and not same:
                seen.add(key)
                chosen = replace(first, sizes=sizes, options=options)
                full = _Point(sizes=sizes, warps=options["num_warps"], stages=stages)
                edits.append(_edit(source, setting, full, [pinned(source, kernel, chosen)]))
        return edits[:BATCH], "" if edits else "the autotuner has one configuration and no neighbour fits"


def _setting(source: Source, kernel: Kernel, sites: list[Launch], facts: tuple[KernelFacts, ...]) -> _Setting:
    warps = {integer(s.options.get("num_warps")) if "num_warps" in s.options else 4 for s in sites}
    if warps == {None}:
        warps = {number(f, "num_warps") for f in facts} or {None}
    stages = {integer(s.options.get("num_stages")) for s in sites if "num_stages" in s.options}
    seen = {number(f, "tile_elements") for f in facts if number(f, "tile_rank") in (None, 1)}
    found = knobs(source, kernel, sites, seen.pop() if len(seen) == 1 else None)
    return _Setting(
        kernel=kernel,
        sites=tuple(sites),
        present=_Point(
            sizes={k: v.size for k, v in found.items()},
            warps=warps.pop() if len(warps) == 1 else None,
            stages=stages.pop() if len(stages) == 1 else None,
        ),
        knobs=found,
        dot=_has(source, kernel, "dot"),
        facts=facts,
    )


def _has(source: Source, kernel: Kernel, op: str) -> bool:
    spelled = language(source)
    return any(isinstance(n, cst.Call) and spelled.op(n.func) == op for n in walk(kernel.node.body))


# --- the points --------------------------------------------------------------------------------------------


def _around(setting: _Setting) -> list[_Point]:
    """Every point of the neighbourhood: sizes up to four times off, all warps, stages where loads are pipelined."""
    choices: list[list[tuple[str, int]]] = []
    for name, knob in setting.knobs.items():
        size = setting.present.sizes[name]
        sizes = [int(size * f) for f in (1, 2, 0.5, 4, 0.25) if size * f >= knob.smallest(setting.dot)]
        if not knob.tile.masked:
            sizes = [s for s in sizes if s <= size]
        choices.append([(name, s) for s in sizes if s <= (256 if setting.dot else 32768)])
    stages = [None, *(s for s in _STAGES if s != setting.present.stages)] if setting.dot else [None]
    points = []
    for chosen in itertools.product(*choices):
        for warps in _WARPS:
            for stage in stages:
                changed = {n: s for n, s in chosen if s != setting.present.sizes[n]}
                point = _Point(sizes=changed, warps=warps if warps != setting.present.warps else None, stages=stage)
                if changed or point.warps or point.stages:
                    points.append(point)
    return points


def _ordered(setting: _Setting, points: Iterable[_Point], situation: Situation, keep_all: bool = False) -> list[_Point]:
    """The points that fit the target, the most promising first; ties by distance from the present one."""
    scored = []
    for i, point in enumerate(points):
        cost = _cost(setting, point, situation)
        if cost is not None or keep_all:
            scored.append((cost if cost is not None else math.inf, _distance(setting, point), i, point))
    ranked = [s[-1] for s in sorted(scored, key=lambda s: s[:3])]
    taken: dict[tuple[tuple[str, int], ...], int] = {}
    first: list[_Point] = []
    later: list[_Point] = []
    for point in ranked:  # a batch of one tile with every count of warps would say little
        key = tuple(sorted(point.sizes.items()))
        taken[key] = taken.get(key, 0) + 1
        (first if taken[key] <= 2 else later).append(point)
    return first + later


def _distance(setting: _Setting, point: _Point) -> float:
    far = sum(abs(math.log2(s / setting.present.sizes.get(n, s))) for n, s in point.sizes.items())
    if point.warps is not None:
        far += abs(math.log2(point.warps / (setting.present.warps or 4)))
    return far + (abs(point.stages - (setting.present.stages or 3)) if point.stages else 0)


def _cost(setting: _Setting, point: _Point, situation: Situation) -> float | None:
    """How far from a well-filled tile, in powers of two; None where it cannot fit the target."""
    warps = point.warps or setting.present.warps or 4
    if setting.dot:
        return _dot_cost(setting, point, warps, situation)
    scale = math.prod(s / setting.present.sizes[n] for n, s in point.sizes.items() if n in setting.present.sizes)
    elements = [e * scale for f in setting.facts if (e := number(f, "tile_elements"))]
    if not elements:
        sizes = {**setting.present.sizes, **point.sizes}
        elements = [float(math.prod(sizes.values()))] if sizes else []
    if not elements:
        return abs(math.log2(warps / (setting.present.warps or 4)))
    total = 0.0
    for count in elements:
        each = count / (32 * warps)
        if each > _REGISTERS_OF_TILE and warps < 32:
            return None
        total += abs(math.log2(each / _BEST_PER_THREAD))
    return total / len(elements) + _waves(setting, point, situation)


def _waves(setting: _Setting, point: _Point, situation: Situation) -> float:
    """A penalty where so few programs are left that multiprocessors stay idle."""
    factor = math.prod(
        s / setting.present.sizes[n]
        for n, s in point.sizes.items()
        if n in setting.knobs and setting.knobs[n].tile.program
    )
    programs = [math.prod(f.grid) / factor for f in setting.facts]
    short = [math.log2(situation.target.multiprocessors / p) for p in programs if p < situation.target.multiprocessors]
    return max(short, default=0.0)


def _dot_cost(setting: _Setting, point: _Point, warps: int, situation: Situation) -> float | None:
    """For a matrix product: reuse a byte loaded, under the limits of shared memory and accumulators."""
    sizes = {**setting.present.sizes, **point.sizes}
    outer = [s for n, s in sizes.items() if n in setting.knobs and setting.knobs[n].tile.program]
    inner = [s for n, s in sizes.items() if n in setting.knobs and not setting.knobs[n].tile.program]
    if len(outer) < 2 or not inner:
        return 1.0 + _distance(setting, point)
    m, n, k = outer[0], outer[1], inner[0]
    stages = point.stages or setting.present.stages or 3
    if stages * (m + n) * k * 2 > situation.target.shared_bytes_per_block:
        return None
    if m * n / (32 * warps) > _ACCUMULATORS or m * n / (32 * warps) < 8:
        return None
    reuse = 2 * m * n / (m + n)
    narrow = 1.0 if warps < 4 else 0.0  # a warp group's instructions need four warps
    return (
        abs(math.log2(128 / reuse))
        + abs(math.log2(64 / k)) / 2
        + abs(math.log2(m * n / (32 * warps) / 64)) / 2
        + narrow
        + _waves(setting, point, situation)
    )


# --- the edits ---------------------------------------------------------------------------------------------


def _applied(source: Source, setting: _Setting, point: _Point) -> list[Patch] | None:
    patches = resized(source, setting.knobs, point.sizes)
    values = {"num_warps": point.warps, "num_stages": point.stages}
    try:
        for site in setting.sites:
            patches += give(source, site, {k: str(v) for k, v in values.items() if v is not None})
    except ValueError:
        return None
    return patches


def _scaled(source: Source, setting: _Setting) -> Iterator[Edit]:
    """Warps in proportion to a row's block, where cases differ too much for one number to suit them all."""
    extents = {f.case: e for f in setting.facts if (e := number(f, "tile_elements"))}
    if not extents or max(extents.values()) < 4 * min(extents.values()):
        return
    spelled = language(source)
    blocks = {
        a.args[1].value.value
        for a in walk(setting.kernel.node.body)
        if isinstance(a, cst.Call) and spelled.op(a.func) == "arange" and len(a.args) == 2
        if isinstance(a.args[1].value, cst.Name)
    }
    given = [site.bound.get(block) for site in setting.sites for block in blocks if block not in setting.knobs]
    texts = {g.value if isinstance(g, cst.Name) else None for g in given}
    block = texts.pop() if len(texts) == 1 else None
    if block is None:
        return
    now = {f.case: number(f, "num_warps") or 4 for f in setting.facts}
    for each in (256, 512, 1024, 128):
        then = {case: max(1, min(32, e // each)) for case, e in extents.items()}
        if all(then[case] == now[case] for case in then):
            continue
        text = f"max(1, min(32, {block} // {each}))"
        try:
            patches = [p for site in setting.sites for p in give(source, site, {"num_warps": text})]
        except ValueError:
            return
        name = setting.kernel.name
        if all(then[c] < now[c] for c in then):
            claim = Claim(fact="num_warps", relation="falls", kernel=name)
        elif all(then[c] > now[c] for c in then):
            claim = Claim(fact="num_warps", relation="rises", kernel=name)
        else:
            claim = Claim(fact="num_warps", relation="<=", value=max(then.values()), kernel=name)
        yield Edit(
            source=patched(source, patches),
            label=f"num_warps=block/{each}",
            claim=claim,
            lines=source.lines(setting.sites[0].call),
            risk=TileSearch.risk,
            params={"elements_per_warp": each},
        )


def _edit(source: Source, setting: _Setting, point: _Point, patches: list[Patch]) -> Edit:
    params: dict[str, Scalar] = dict(point.sizes)
    params |= {"num_warps": point.warps} if point.warps else {}
    params |= {"num_stages": point.stages} if point.stages else {}
    return Edit(
        source=patched(source, patches),
        label=point.label,
        claim=_claim(setting, point),
        lines=source.lines(setting.sites[0].call),
        risk=TileSearch.risk,
        params=params,
    )


def _claim(setting: _Setting, point: _Point) -> Claim:
    """The fact that shows that the choice reached the compiler."""
    name = setting.kernel.name
    before = {number(f, "num_warps") for f in setting.facts} or {setting.present.warps}
    if point.warps is not None and before != {point.warps}:
        return Claim(fact="num_warps", relation="==", value=point.warps, kernel=name)
    for key, size in point.sizes.items():
        now = setting.present.sizes.get(key, size)
        if size != now and key in setting.knobs and setting.knobs[key].tile.program:
            return Claim(fact="programs", relation="falls" if size > now else "rises", kernel=name)
    for key, size in point.sizes.items():
        now = setting.present.sizes.get(key, size)
        if size != now:
            return Claim(fact="tile_elements", relation="rises" if size > now else "falls", kernel=name)
    if point.stages is not None:
        return Claim(fact="num_stages", relation="==", value=point.stages, kernel=name)
    return Claim(fact="num_warps", relation="==", value=point.warps, kernel=name)


REWRITE = TileSearch()
