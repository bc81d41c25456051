"""What the harness itself costs: a round, the log and the resumption of a long run, and the command line's start.

    python benchmarks/overhead.py [--long 10000] [--reuse DIR]

A round's figure is all of its time, journal and commit included, with a planner and a judge that take none. The
long run is made by the same loop (a few minutes); `--reuse` keeps it in DIR for the next time. `log` and `--help`
are the real commands in fresh processes; the resumption is a fresh process that opens the run for writing, folds
its memory and plans a round. Needs no GPU. Writes benchmarks/results/overhead.json.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import record
from rich.console import Console
from rich.table import Table

TARGETS = {"round_overhead_ms": 60.0, "log_10k_s": 1.0, "resume_10k_s": 2.0, "help_s": 0.6}
ROUNDS, REPEATS = 200, 5
TILEWRIGHT = [sys.executable, "-m", "tilewright.harness.cli.app"]

RESUME = """
import asyncio
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import synthetic
from tilewright.agent.scripted import EchoSkills, ScriptedPlanner
from tilewright.harness.judge.scripted import ScriptedJudge
from tilewright.harness.loop import Proposed, optimize
from tilewright.knowledge.memory.statistics import fold

class Decided(Exception):
    pass

def tell(event):
    if isinstance(event, Proposed):
        print("decided", event.n, flush=True)
        raise Decided

run = synthetic.opened(Path(sys.argv[1]), 1)
fold(run.observations)
try:
    asyncio.run(optimize(run, ScriptedPlanner(ask=True), EchoSkills(), ScriptedJudge(), rounds=10**9, tell=tell))
except Decided:
    run.close()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--long", type=int, default=10_000, help="rounds of the long run")
    parser.add_argument("--reuse", type=Path, help="keep the long run here, or use the one that is here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tilewright-overhead-") as folder:
        samples = {"round_overhead_ms": rounds_ms(Path(folder) / "short")}
        long = options.reuse or Path(folder) / "long"
        grow(long, options.long)
        samples["log_10k_s"] = [timed([*TILEWRIGHT, "log", str(long)]) for _ in range(REPEATS)]
        samples["resume_10k_s"] = [resumed(long) for _ in range(REPEATS)]
    samples["help_s"] = [timed([*TILEWRIGHT, "--help"]) for _ in range(REPEATS)]
    values = {name: round(statistics.median(taken), 4) for name, taken in samples.items()}
    table = Table("what", "median", "worst", "target", title=f"Overhead ({options.long:,} rounds in the long run)")
    for name, taken in samples.items():
        met = "" if values[name] <= TARGETS[name] else "  MISSED"
        table.add_row(name, f"{values[name]:.3g}", f"{max(taken):.3g}", f"{TARGETS[name]:g}{met}")
    Console().print(table)
    if options.long == 10_000:
        print(record.write("overhead", dict(values), targets=TARGETS, samples=samples))
    else:
        print("not written: the figures are defined for 10,000 rounds")


def rounds_ms(path: Path) -> list[float]:
    """Milliseconds from each commit to the next, in one process, the baseline and the first round left out."""
    import synthetic

    from tilewright.harness.loop import Event, Finished

    ends: list[float] = []

    def tell(event: Event) -> None:
        if isinstance(event, Finished):
            ends.append(time.perf_counter())

    synthetic.go(path, seed=2, rounds=ROUNDS, tell=tell)
    return [round(1e3 * (b - a), 3) for a, b in itertools.pairwise(ends[1:])]


def grow(path: Path, rounds: int) -> None:
    """Make, or go on with, the long run."""
    import synthetic

    began = time.monotonic()
    synthetic.go(path, seed=1, rounds=rounds)
    print(f"{rounds:,} rounds stand after {time.monotonic() - began:.0f} s", file=sys.stderr)


def timed(command: list[str]) -> float:
    """Wall seconds of a command in a fresh process, its output thrown away by a pipe's end."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.PIPE, env=os.environ | {"TERM": "dumb"})
    return round(time.perf_counter() - began, 4)


def resumed(path: Path) -> float:
    """Wall seconds from the start of a process to its first decision about the run at `path`."""
    for stored in (path / ".git" / "tilewright" / "wip").glob("*"):
        stored.unlink()  # else the decision would be read from the journal of the time before
    began = time.perf_counter()
    command = [sys.executable, "-c", RESUME, str(path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        line = process.stdout.readline()
        seconds = time.perf_counter() - began
    if not line.startswith("decided") or process.returncode:
        sys.exit(f"the resumed process did not decide: {line!r}, status {process.returncode}")
    return round(seconds, 4)


if __name__ == "__main__":
    main()
