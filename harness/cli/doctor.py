"""`tilewright doctor`: what this machine can do, found out by doing it, and how to get the rest."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.harness.errors import Problem

if TYPE_CHECKING:
    from tilewright.harness.judge.pool import Pool

NEEDED_FREE_BYTES = 2 << 30
"""Compile caches and a long run's history stay far below this."""
LIMIT_S = 120.0
LENGTH = 1000
"""Not a multiple of the probe's block: its last program must mask."""

PROBE = """
import torch
import triton
import triton.language as tl


@triton.jit
def probe_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, 2.0 * x + 1.0, mask=at < n)


def launch(x):
    y = torch.empty_like(x)
    probe_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that this machine can or cannot do."""

    what: str
    state: str
    """`ok`; `missing`: can be had, see `remedy`; `broken`: should work and does not."""
    detail: str
    remedy: str = ""


def doctor(as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False) -> None:
    """Say what this machine can and cannot do.

    Everything is tried, not guessed; what is missing comes with how to get it. Exit status 1 where something
    that should work does not.
    """
    asyncio.run(_printed(as_json))


async def _printed(as_json: bool) -> None:
    broken = 0
    async with aclosing(examined()) as findings:
        async for finding in findings:
            broken += finding.state == "broken"
            if as_json:
                print(json.dumps(asdict(finding), ensure_ascii=False), flush=True)
                continue
            print(f"{finding.state:<8} {finding.what}: {finding.detail}", flush=True)
            if finding.remedy:
                print(f"{'':<8} -> {finding.remedy}", flush=True)
    if broken:
        raise typer.Exit(1)


async def examined() -> AsyncGenerator[Finding]:
    """Everything that is looked at, as it is found."""
    for finding in (*_packages(), _git(), _disk(), _gpu()):
        yield finding
    async with aclosing(_workers()) as findings:
        async for finding in findings:
            yield finding
    yield await _skills()
    yield _examples()


def _packages() -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding(what="python", state="ok", detail=f"{python} on {sys.platform}")
    for name, why in (("torch", "references run in it"), ("triton", "kernels are written in it")):
        try:
            yield Finding(what=name, state="ok", detail=metadata.version(name))
        except metadata.PackageNotFoundError:
            remedy = f"pip install {name}" if sys.platform == "linux" else "use Linux, or WSL on Windows"
            yield Finding(what=name, state="broken", detail=f"not installed; {why}", remedy=remedy)


def _git() -> Finding:
    try:
        answer = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=15, check=True)
    except (OSError, subprocess.SubprocessError):
        return Finding(what="git", state="broken", detail="not found; a run is a git repository", remedy="install git")
    return Finding(what="git", state="ok", detail=answer.stdout.strip().removeprefix("git version "))


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    detail = f"{free / 2**30:.1f} GiB free here"
    if free < NEEDED_FREE_BYTES:
        return Finding(what="disk", state="missing", detail=detail, remedy="make room, or use --run on another disk")
    return Finding(what="disk", state="ok", detail=detail)


def _gpu() -> Finding:
    from tilewright.harness.judge.device import devices

    found = devices()
    if found:
        listed = ", ".join(f"{d.name} (cuda:{d.arch}, {d.memory_bytes / 2**30:.0f} GiB)" for d in found)
        return Finding(what="gpu", state="ok", detail=f"{listed}; times are measured")
    without = "correctness is checked in Triton's interpreter, times are modelled"
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return Finding(
            what="gpu",
            state="missing",
            detail=f"no NVIDIA driver answers; {without}",
            remedy="run on a machine with an NVIDIA GPU to measure",
        )
    return Finding(
        what="gpu",
        state="missing",
        detail=f"{answer.stdout.strip().splitlines()[0]} is here, but torch cannot use it; {without}",
        remedy="install a torch built for CUDA (https://pytorch.org/get-started)",
    )


async def _workers() -> AsyncGenerator[Finding]:
    """Run a small kernel in the interpreter, and compile it for every known target, in real workers."""
    from tilewright.harness.judge.pool import Pool
    from tilewright.knowledge.targets import target_names

    interpret, compiling = Pool("interpret"), Pool("compile")
    try:
        yield await _interpreted(interpret)
        for name in target_names():
            yield await _compiled(compiling, name)
    finally:
        await asyncio.gather(interpret.close(), compiling.close())


def _job(op: str) -> tuple[dict[str, Any], Any]:
    from tilewright.harness.judge.inputs import described, draw
    from tilewright.harness.types import Tensor

    x = Tensor(name="x", shape=(LENGTH,), dtype="float32")
    job = {"op": op, "kind": "triton", "source": PROBE, "entry": "launch", "mutates": [], "case": "probe"}
    return {**job, "args": described({"x": x}), "target": None}, draw(x, seed=0, case="probe")


async def _interpreted(pool: Pool) -> Finding:
    import numpy as np

    what = "interpreter"
    remedy = "reinstall torch and triton; triton 3.6 also needs numpy<2.4"
    job, x = _job("interpret")
    began = time.monotonic()
    try:
        reply, out = await pool.run(job, {"x": x}, limit_s=LIMIT_S)
    except Problem as problem:
        return Finding(what=what, state="broken", detail=str(problem), remedy=remedy)
    if "failed" in reply:
        return Finding(what=what, state="broken", detail=str(reply["failed"]["detail"]), remedy=remedy)
    given = np.frombuffer(x.data, dtype=np.float32)
    if not np.array_equal(np.frombuffer(out["out0"].data, dtype=np.float32), 2 * given + 1):
        return Finding(what=what, state="broken", detail="a kernel that doubles and adds one gave other numbers")
    detail = f"ran a kernel of {LENGTH} elements rightly, {time.monotonic() - began:.1f} s with the start of a worker"
    return Finding(what=what, state="ok", detail=detail)


async def _compiled(pool: Pool, name: str) -> Finding:
    from tilewright.harness.codec import plain
    from tilewright.knowledge.targets import target

    what = f"compile for {name}"
    job, _ = _job("compile")
    try:
        known = target(name)
        reply, _ = await pool.run({**job, "target": plain(known)}, limit_s=LIMIT_S)
    except Problem as problem:
        return Finding(what=what, state="broken", detail=str(problem), remedy=problem.remedy)
    if "failed" in reply:
        detail = str(reply["failed"]["detail"])
        return Finding(what=what, state="broken", detail=detail, remedy="reinstall triton")
    facts = reply["kernels"][0]["facts"]
    return Finding(what=what, state="ok", detail=f"{known.device}: {facts['registers']} registers for the probe")


async def _skills() -> Finding:
    from tilewright.harness.host import Host

    async with Host() as host:
        loaded, broken = sorted(host.skills), host.broken
    if broken or not loaded:
        detail = "; ".join(f"{b.name} ({b.origin}): {b.cause}" for b in broken) or "none is installed"
        return Finding(what="skills", state="broken", detail=detail, remedy="reinstall tilewright, or mend the skill")
    return Finding(what="skills", state="ok", detail=", ".join(loaded))


def _examples() -> Finding:
    try:
        return Finding(what="liger-kernel", state="ok", detail=f"{metadata.version('liger-kernel')}; the examples run")
    except metadata.PackageNotFoundError:
        return Finding(
            what="liger-kernel",
            state="missing",
            detail="not installed; the examples start from its kernels",
            remedy="pip install 'tilewright[examples]'",
        )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)
