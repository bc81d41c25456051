"""Runs of the real loop with a planner and a judge that take no time: what is left is the harness itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from tilewright.agent.scripted import EchoSkills, ScriptedPlanner
from tilewright.harness.judge.scripted import ScriptedJudge
from tilewright.harness.loop import Event, optimize
from tilewright.harness.runs.state import Run
from tilewright.harness.types import Case, Settings, Target, Task, TensorSpec

START = "import triton\n\n\ndef launch(x):\n    return x\n"

TASK = Task(
    name="synthetic",
    kind="triton",
    path="synthetic.py",
    source=f'"""Nothing."""\n{START}',
    start=START,
    entry="launch",
    args={"x": TensorSpec(shape=("M",), dtype="float32")},
    cases=(Case(name="only", bindings={"M": 4096}),),
)

TARGET = Target(
    name="cuda:90",
    device="none: nothing is compiled or timed",
    backend="cuda",
    arch=90,
    warp_size=32,
    multiprocessors=132,
    clock_hz=1.7e9,
    dram_bytes_per_s=4e12,
    dram_latency_s=6e-7,
    l2_bytes=50 << 20,
    l2_bytes_per_s=8e12,
    shared_bytes_per_multiprocessor=228 << 10,
    shared_bytes_per_block=227 << 10,
    registers_per_multiprocessor=65536,
    warps_per_multiprocessor=64,
    blocks_per_multiprocessor=32,
    fp32_flops_per_s=6e13,
    tensor_flops_per_s={"fp16": 9e14},
    launch_s=2e-6,
    source="made up",
)


def opened(path: Path, seed: int) -> Run:
    """The run at `path`, open for writing; made first where there is none yet."""
    if (path / "run.json").exists() or (path / ".git" / "refs" / "heads" / "main").exists():
        return Run.open(path, write=True)
    settings = Settings(target="cuda:90", run=f"synthetic-{seed}", seed=seed, versions={"triton": "3.9.0"})
    return Run.create(path, TASK, TARGET, settings, {"synthetic.py": TASK.source.encode()})


def go(
    path: Path,
    *,
    seed: int,
    rounds: int,
    judge: ScriptedJudge | None = None,
    skills: EchoSkills | None = None,
    tell: Callable[[Event], None] = lambda event: None,
) -> None:
    """Make or resume the run at `path` until it has `rounds` rounds beside the baseline."""
    with opened(path, seed) as run:
        planner = ScriptedPlanner(ask=True, batch=3)
        asyncio.run(optimize(run, planner, skills or EchoSkills(), judge or ScriptedJudge(), rounds=rounds, tell=tell))
