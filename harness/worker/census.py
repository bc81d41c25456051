"""Counts what the programs of a launch ask of memory and arithmetic. No values, only addresses and sizes.

A census runs a few of a launch's programs and scales up: see `sample_programs` for which, and `Census.totals` for how.
Within a program, long loops are sampled too: `census_run` gives the iterations that stand for others a weight.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.harness.worker.failed import Failed

SECTOR_BYTES = 32
"""What DRAM and L2 hand out at the least on every target that we know."""
ACCESSES_PER_PROGRAM = 200_000
"""More than any kernel makes when its long loops are sampled: the program waits for something."""
ACCESS_WORK = 15_000
QUANTILES = (0.125, 0.375, 0.625, 0.875)
"""Which of the inner programs are run, by rank: right on average for work that grows along the grid."""

WAVE_DRAWS = 20

Sectors = npt.NDArray[np.int64]
Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Region:
    """Memory that a launch was handed: one storage, and the extent of the tensors in it."""

    start: int
    end: int
    extent_bytes: int


@dataclass(slots=True)
class Program:
    """What one program asks for. Every count is weighted by the iterations that it stands for."""

    counts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    lines: dict[tuple[str, int], float] = field(default_factory=lambda: defaultdict(float))
    """Bytes by (`load` or `store`, source line)."""
    touched: dict[tuple[str, int], Sectors] = field(default_factory=dict)
    """Sectors touched so far, sorted, by kind and region."""
    first: dict[tuple[str, int], float] = field(default_factory=lambda: defaultdict(float))
    """Bytes of sectors touched for the first time, by kind and region."""
    weight: float = 1.0
    """How many iterations the one being run stands for."""
    skipped: bool = False
    """Some iterations were not run, so that the addresses seen do not span all that are touched."""
    accesses: int = 0
    work: int = 0
    """What running it has cost, in elements handled: an access costs as much as `ACCESS_WORK` of them besides."""
    _round: set[Hashable] = field(default_factory=set)

    def access(
        self, kind: str, addresses: npt.NDArray[Any], item_bytes: int, regions: Sequence[Region], line: int
    ) -> None:
        """Note a load or a store of the elements at `addresses` (bytes)."""
        self.accesses += 1
        if self.accesses > ACCESSES_PER_PROGRAM:
            raise Failed("unsupported", "a program reads memory without end: it waits for another program")
        self.work += ACCESS_WORK + addresses.size
        if addresses.size == 0:
            return
        size = float(addresses.size * item_bytes) * self.weight
        self.counts[f"{kind}_bytes"] += size
        self.lines[kind, line] += size
        sectors = np.unique(addresses.ravel().astype(np.int64) // SECTOR_BYTES)
        self.counts[f"{kind}_sector_bytes"] += sectors.size * SECTOR_BYTES * self.weight
        key = (kind, _region(regions, int(addresses.flat[0])))
        known = self.touched.get(key)
        if known is None:
            fresh = sectors
        else:
            at = np.minimum(np.searchsorted(known, sectors), known.size - 1)
            fresh = sectors[known[at] != sectors]
        self.touched[key] = sectors if known is None else np.union1d(known, fresh)
        self.first[key] += fresh.size * SECTOR_BYTES * self.weight
        if kind == "load":
            self.counts["reread_bytes"] += size * (1.0 - fresh.size / sectors.size)

    def load_at(self, site: Hashable, *, feeds_addresses: bool) -> None:
        """Count dependent round trips to memory.

        Loads of different sites go out together; a site that comes round again waits for its loop's previous
        iteration; what is loaded as whole numbers is needed before the next load can form its address.
        """
        if site in self._round or not self._round:
            self._round.clear()
            self.counts["load_rounds"] += self.weight
        self._round.add(site)
        if feeds_addresses:
            self._round.clear()

    def add(self, name: str, amount: float) -> None:
        """Add to a count, for as many iterations as this one stands for."""
        self.counts[name] += amount * self.weight


def _region(regions: Sequence[Region], address: int) -> int:
    for i, region in enumerate(regions):
        if region.start <= address < region.end:
            return i
    return -1


@dataclass(frozen=True, slots=True)
class Sample:
    """One program to run, and how many it stands for."""

    index: Grid
    stratum: tuple[bool, ...]
    size: int
    """Programs in its stratum, shared by all that are run of it; 0: run only for the addresses it touches."""


def sample_programs(grid: Grid) -> list[Sample]:
    """Which programs to run: all of a small grid, else some of each stratum.

    The last programs along an axis have the masked tails, so they are a stratum of their own (two axes: the right
    edge, the lower edge, the corner); the inner ones are taken at fixed ranks. Program 0 is run besides, for where
    the addresses begin. The order is such that a census that stops early has seen the most telling ones.
    """
    total = math.prod(grid)
    if total <= len(QUANTILES) + 1:
        return [Sample(_unravel(i, grid), (), total) for i in range(total)]
    samples: list[Sample] = []
    edges: list[Sample] = []
    for stratum in product(*((False, True) if n > 1 else (True,) for n in grid)):
        box = [1 if last else n - 1 for n, last in zip(grid, stratum, strict=True)]
        origin = [n - 1 if last else 0 for n, last in zip(grid, stratum, strict=True)]
        size = math.prod(box)
        inner = not any(last and n > 1 for n, last in zip(grid, stratum, strict=True))
        for at in sorted({min(int(q * size), size - 1) for q in (QUANTILES if inner else (0.5,))}):
            x, y, z = (o + i for o, i in zip(origin, _unravel(at, (box[0], box[1], box[2])), strict=True))
            (samples if inner else edges).append(Sample((x, y, z), stratum, size))
    return [*samples[1:2], *edges, Sample((0, 0, 0), (), 0), *samples[:1], *samples[2:]]


def _unravel(index: int, grid: Grid) -> Grid:
    """The program at a rank; the first axis runs fastest, as the device hands programs out."""
    return index % grid[0], index // grid[0] % grid[1], index // (grid[0] * grid[1])


@dataclass(slots=True)
class Census:
    """The programs run of one launch, and what they say of all of them."""

    grid: Grid
    regions: list[Region]
    programs: list[tuple[Sample, Program]] = field(default_factory=list)
    wave: int = 0
    """Programs that run at a time, one a multiprocessor; 0 where it does not matter how they share."""
    wave_load_bytes: float = 0.0

    def totals(self) -> tuple[dict[str, float], dict[str, dict[int, int]]]:
        """Counts for the whole launch, and bytes by source line.

        Each stratum's mean stands for its programs; strata that were not run take the mean of the rest. What the
        launch touches of a region is at most the sum over programs of what each touches first, and at most the span
        of addresses seen; where iterations were skipped, the tensors' extent takes the place of the span.
        """
        shares = self._shares()
        counts: dict[str, float] = defaultdict(float)
        lines: dict[tuple[str, int], float] = defaultdict(float)
        first: dict[tuple[str, int], float] = defaultdict(float)
        for (_, program), share in zip(self.programs, shares, strict=True):
            _accumulate(counts, program.counts.items(), share)
            _accumulate(lines, program.lines.items(), share)
            _accumulate(first, program.first.items(), share)
        total = math.prod(self.grid)
        counts["load_rounds"] /= total
        for kind in ("load", "store"):
            touched = sum(min(first[key], self.bound(key)) for key in first if key[0] == kind)
            counts[f"unique_{kind}_bytes"] = touched
        if self.wave:
            counts["wave_programs"], counts["wave_load_bytes"] = self.wave, self.wave_load_bytes
        by_line: dict[str, dict[int, int]] = {"load": {}, "store": {}}
        for (kind, line), size in lines.items():
            by_line[kind][line] = round(size)
        return dict(counts), by_line

    def _shares(self) -> list[float]:
        """How many programs of the launch each that was run stands for."""
        members: dict[tuple[bool, ...], int] = defaultdict(int)
        sizes: dict[tuple[bool, ...], int] = {}
        for sample, _ in self.programs:
            if sample.size:
                members[sample.stratum] += 1
                sizes[sample.stratum] = sample.size
        scale = math.prod(self.grid) / max(sum(sizes.values()), 1)
        return [s.size / members[s.stratum] * scale if s.size else 0.0 for s, _ in self.programs]

    def bound(self, key: tuple[str, int]) -> float:
        """The most bytes that the launch can touch of a region."""
        sectors = [p.touched[key] for _, p in self.programs if key in p.touched]
        span = float(max(s[-1] for s in sectors) - min(s[0] for s in sectors) + 1) * SECTOR_BYTES
        if any(p.skipped for _, p in self.programs) and key[1] >= 0:
            extent = self.regions[key[1]].extent_bytes
            return max(span, math.ceil(extent / SECTOR_BYTES) * SECTOR_BYTES)
        return span


def wave_bytes(programs: Sequence[Program], wave: int, bounds: Callable[[tuple[str, int]], float]) -> float:
    """Bytes that a wave of `wave` programs loads, what they share counted once, from some drawn at random of it.

    By region: of the programs drawn, those that touch exactly the same sectors are one class, and the number of
    classes in the wave is the one for which as many as were seen are expected (a draw of n from C equally likely
    classes shows C (1 - (1 - 1/C)^n) of them). `bounds` says the most that can be touched of a region.
    """
    total = 0.0
    for key in {key for program in programs for key in program.touched if key[0] == "load"}:
        touching = [program for program in programs if key in program.touched]
        seen = len({program.touched[key].tobytes() for program in touching})
        share = len(touching) / len(programs)
        classes = _classes(seen, len(touching), max(1, round(wave * share)))
        mean = sum(program.first[key] for program in touching) / len(touching)
        total += min(classes * mean, bounds(key))
    return total


def _classes(seen: int, drawn: int, most: int) -> float:
    """How many equally likely classes there are when `drawn` draws showed `seen` of them; at most `most`."""
    if seen >= drawn:
        return float(most)
    low, high = float(seen), float(max(most, seen))
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * (1 - (1 - 1 / middle) ** drawn) < seen else (low, middle)
    return low


def wave_programs(grid: Grid, wave: int) -> list[Grid]:
    """A few programs drawn (always the same) from a wave in the middle of the launch; none if it is all one wave
    or a wave is not worth drawing from."""
    total = math.prod(grid)
    if total <= wave or wave < WAVE_DRAWS:
        return []
    draw = np.random.default_rng(total)
    start = (total - wave) // 2
    return [_unravel(start + int(i), grid) for i in draw.choice(wave, WAVE_DRAWS, replace=False)]


def _accumulate(into: dict[Any, float], items: Iterable[tuple[Any, float]], share: float) -> None:
    for key, amount in items:
        into[key] += amount * share
