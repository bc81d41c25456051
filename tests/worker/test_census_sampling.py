"""Which programs of a launch a census runs, and what they stand for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.harness.worker.census import Census, Program, Region, sample_programs, wave_bytes

grids = st.tuples(st.integers(1, 300), st.integers(1, 40), st.integers(1, 7))


@given(grids)
def test_the_programs_run_stand_for_all_of_the_grid(grid: tuple[int, int, int]) -> None:
    samples = sample_programs(grid)
    assert len(samples) <= 4 + 7 + 1
    assert all(0 <= i < n for s in samples for i, n in zip(s.index, grid, strict=True))
    census = Census(grid, [], [(s, Program()) for s in samples])
    for _, program in census.programs:
        program.add("ones", 1.0)
    assert census.totals()[0]["ones"] == pytest.approx(math.prod(grid))


@given(st.integers(64, 5000))
def test_work_that_grows_along_the_grid_is_right_on_average(n: int) -> None:
    census = Census((n, 1, 1), [], [(s, Program()) for s in sample_programs((n, 1, 1))])
    for sample, program in census.programs:
        program.add("rank", sample.index[0])
    assert census.totals()[0]["rank"] == pytest.approx(n * (n - 1) / 2, rel=0.03)


@given(st.integers(1, 12))
def test_stopping_early_still_stands_for_all_of_the_grid(run: int) -> None:
    grid = (50, 20, 3)
    census = Census(grid, [], [(s, Program()) for s in sample_programs(grid)[:run]])
    for _, program in census.programs:
        program.add("ones", 1.0)
    assert census.totals()[0]["ones"] == pytest.approx(math.prod(grid))


@given(st.integers(1, 60), st.integers(0, 1000))
def test_a_wave_is_never_said_to_load_less_than_was_seen_nor_more_than_all_apart(classes: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    programs = []
    for kind in draw.integers(0, classes, 20):
        program = Program()
        program.access("load", np.arange(256, dtype=np.uint64) * 4 + int(kind) * 4096, 4, [], 1)
        programs.append(program)
    seen = len({p.touched["load", -1][0] for p in programs})
    found = wave_bytes(programs, 132, lambda key: math.inf)
    assert seen * 1024 <= found * 1.001
    assert found <= 132 * 1024


def test_tensors_that_lie_side_by_side_in_memory_are_told_apart() -> None:
    regions = [Region(0, 4096, 4096), Region(4096, 8192, 4096)]
    program = Program()
    program.access("load", np.arange(4096, 4096 + 64, 4, dtype=np.uint64), 4, regions, 1)
    assert dict(program.first) == {("load", 1): 64}
