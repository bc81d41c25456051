"""Runs some programs of each launch in Triton's interpreter, on addresses alone, for a census.

`install()` patches this process for good: see `census_ops` for what operations become. A launch runs the programs that
`census` picks, and a long loop runs four of its iterations: the first, two neighbours in the middle of which the
second stands for all that are not run, and the last.
"""

from __future__ import annotations

import builtins
import inspect
import math
import operator
import warnings
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
from triton.runtime import interpreter as _interpreter

from tilewright.harness.worker import census_ops, interpreter
from tilewright.harness.worker.census import Census, Program, Region, sample_programs, wave_bytes, wave_programs
from tilewright.harness.worker.census_ops import STATE
from tilewright.harness.worker.failed import Failed
from tilewright.harness.worker.redirect import on_cpu

LOOP_ITERATIONS = 8
"""Loops of up to this many iterations run all of them."""
LAUNCH_WORK = 50_000_000
"""No further program of a launch is begun after so much work: about a second. Not a time, so that counts repeat."""
PROGRAMS_AT_LEAST = 3
CROWDED_SHARE = 0.5
"""Loading more than this share of L2, it matters which programs run at a time."""
SHARED_AT_LEAST = 1.5
"""So much more loaded by programs than there is to load, it matters likewise."""


def install() -> None:
    """Turn the interpreter of this process into a counter. Before the candidate is imported; again does nothing."""
    if _interpreter.GridExecutor.__call__ is _execute:
        return
    _install_index()
    interpreter.prepare()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    _interpreter.GridExecutor.__call__ = _execute
    census_ops.install()
    _install_loops()


def _install_index() -> None:
    """Loop bounds under numpy 2.4, which makes no number of a one-element array any more."""
    plain = _interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        plain(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    _interpreter._patch_lang_tensor = patch


# --- launches ---------------------------------------------------------------------------------------------


def _execute(executor: Any, *args: Any, **kwargs: Any) -> None:
    """In place of a launch: run some of its programs."""
    spec = inspect.getfullargspec(executor.fn)
    kwargs = {name: value for name, value in kwargs.items() if name in (*spec.args, *spec.kwonlyargs)}
    for hook in executor.pre_run_hooks:
        hook(*args, **kwargs)
    name = executor.fn.__name__
    scope = _interpreter._patch_lang(executor.fn)
    try:
        bound = inspect.getcallargs(executor.fn, *args, **kwargs)
        for argument, value in bound.items():
            if hasattr(value, "untyped_storage") and on_cpu(value):
                raise Failed(
                    "launch", f"argument `{argument}` of {name} is a CPU tensor; the kernel runs on the device"
                )
        STATE.regions = _regions(bound)
        given = {
            argument: value if argument in executor.constexprs else _interpreter._implicit_cvt(value)
            for argument, value in bound.items()
        }
        asked = executor.grid(given) if callable(executor.grid) else executor.grid
        sizes = [operator.index(each) for each in asked]
        x, y, z = (*sizes, 1, 1)[:3]
        key = (id(executor.fn), x, y, z, tuple((argument, _likeness(value)) for argument, value in bound.items()))
        if key not in STATE.counted:
            STATE.counted[key] = _run(executor.fn, given, (x, y, z))
        STATE.done(name, STATE.counted[key])
    finally:
        STATE.program, STATE.unrolled = None, []
        scope.restore()


def _likeness(value: Any) -> Hashable:
    if hasattr(value, "data_ptr"):
        return str(value.dtype), tuple(value.shape), tuple(value.stride())
    if isinstance(value, tuple | list):
        return tuple(_likeness(each) for each in value)
    return repr(value)


def _run(fn: Any, given: dict[str, Any], grid: tuple[int, int, int]) -> Census:
    census = Census(grid, STATE.regions)
    builder = _interpreter.interpreter_builder
    builder.set_grid_dim(*grid)
    if math.prod(grid) > 0:
        for sample in sample_programs(grid):
            if len(census.programs) >= PROGRAMS_AT_LEAST and _work(census) > LAUNCH_WORK:
                break
            builder.set_grid_idx(*sample.index)
            STATE.program = Program()
            fn(**given)
            census.programs.append((sample, STATE.program))
    _probe_wave(census, fn, given)
    return census


def _work(census: Census) -> int:
    return sum(program.work for _, program in census.programs)


def _probe_wave(census: Census, fn: Any, given: dict[str, Any]) -> None:
    """Where programs load the same and it cannot all stay in L2: what a wave of them loads."""
    if not STATE.l2_bytes or not census.programs:
        return
    counts, _ = census.totals()
    unique = counts["unique_load_bytes"]
    afresh = counts.get("load_sector_bytes", 0.0) - counts.get("reread_bytes", 0.0)
    if unique <= STATE.l2_bytes * CROWDED_SHARE or afresh < unique * SHARED_AT_LEAST:
        return
    programs: list[Program] = []
    for index in wave_programs(census.grid, STATE.multiprocessors):
        if _work(census) + sum(program.work for program in programs) > 2 * LAUNCH_WORK:
            break
        _interpreter.interpreter_builder.set_grid_idx(*index)
        STATE.program = Program()
        fn(**given)
        programs.append(STATE.program)
    if len(programs) >= PROGRAMS_AT_LEAST:
        census.wave = STATE.multiprocessors
        census.wave_load_bytes = wave_bytes(programs, census.wave, census.bound)


def _regions(bound: dict[str, Any]) -> list[Region]:
    """The storages among a launch's arguments, with the extent of the tensors in each."""
    found: dict[int, Region] = {}

    def look(value: Any) -> None:
        if isinstance(value, tuple | list):
            for each in value:
                look(each)
        elif hasattr(value, "base") and hasattr(value, "block_shape"):  # a tensor descriptor made on the host
            look(value.base)
        elif hasattr(value, "data_ptr"):
            tensor = _interpreter._unwrap_tensor(value)
            storage = tensor.untyped_storage()
            span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            extent = span * tensor.element_size() if tensor.numel() else 0
            before = found.get(storage.data_ptr())
            found[storage.data_ptr()] = Region(
                start=storage.data_ptr(),
                end=storage.data_ptr() + storage.nbytes(),
                extent_bytes=max(extent, before.extent_bytes if before else 0),
            )

    for value in bound.values():
        look(value)
    return list(found.values())


# --- loops ------------------------------------------------------------------------------------------------


def _some(*bounds: Any, **options: Any) -> Iterator[int]:
    """`range` within a program: all of a short one, else four iterations with the weight of the rest."""
    start, stop, step = _bounds(bounds, options)
    iterations = builtins.range(start, stop, step)
    program = STATE.program
    if program is None or len(iterations) <= LOOP_ITERATIONS:
        yield from iterations
        return
    count, outer = len(iterations), program.weight
    program.skipped = True
    middle = count // 2
    for index, weight in ((0, 1), (middle - 1, 1), (middle, count - 3), (count - 1, 1)):
        program.weight = outer * weight
        yield iterations[index]
        program.weight = outer


def _unrolled(*bounds: Any, **options: Any) -> Iterator[int]:
    """`tl.static_range`: every iteration, each code of its own."""
    start, stop, step = _bounds(bounds, options)
    for index in builtins.range(start, stop, step):
        STATE.unrolled.append(index)
        yield index
        STATE.unrolled.pop()


def _bounds(bounds: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, int, int]:
    given = [operator.index(getattr(each, "value", each)) for each in bounds]
    step = options.get("step")
    if len(given) == 1:
        given = [0, *given]
    if len(given) == 2:
        given.append(1 if step is None else operator.index(getattr(step, "value", step)))
    return given[0], given[1], given[2]


def _install_loops() -> None:
    plain_patch, plain_rewrite = _interpreter._patch_lang_core, _interpreter.InterpretedFunction.rewrite

    def patch(language: Any, scope: Any) -> None:
        plain_patch(language, scope)
        scope.set_attr(language, "range", _some)
        scope.set_attr(language, "static_range", _unrolled)

    def rewrite(self: Any) -> Any:
        # Outside of a program it is the ordinary range, so the module's own code may use it as well.
        self.fn.__globals__.setdefault("range", _some)
        return plain_rewrite(self)

    _interpreter._patch_lang_core = patch
    _interpreter.InterpretedFunction.rewrite = rewrite
