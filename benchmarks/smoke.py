"""Smoke run on a GPU: a few examples optimised for real, with start, best and eager measured.

    python benchmarks/smoke.py [--examples rms_norm softmax matmul] [--rounds 6] [--time-limit 130] [--keep DIR]

Times are medians of single calls with a cold L2, in milliseconds: one a case, and their weighted geometric mean over
the cases for the summary. `eager` is the task's own PyTorch reference on the same inputs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record

from tilewright.harness.judge import judge_for
from tilewright.harness.judge.measured import DeviceJudge
from tilewright.harness.runs.state import Run
from tilewright.harness.types import How, Verdict

MAIN = "import sys; from tilewright.harness.cli.app import main; sys.exit(main())"


def optimise(example: str, rounds: int, directory: Path, limit: str) -> dict[str, Any]:
    """Run the command line as a user would; return the last JSON object."""
    task = record.ROOT / "examples" / f"{example}.py"
    command = [sys.executable, "-c", MAIN, "optimize", str(task), "--rounds", str(rounds), "--run", str(directory)]
    if limit:
        command += ["--time-limit", limit]
    began = time.monotonic()
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    sys.stderr.write(done.stderr)
    if done.returncode:
        raise SystemExit(f"{example}: exit status {done.returncode}\n{done.stdout[-2000:]}")
    last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**last, "wall_s": round(time.monotonic() - began, 1)}


def milliseconds(verdict: Verdict) -> dict[str, float]:
    return {t.case: round(t.time_us / 1000, 6) for t in verdict.times}


def mean_ms(verdict: Verdict) -> float | None:
    return None if verdict.time_us is None else round(verdict.time_us / 1000, 6)


async def eager(run: Run) -> dict[str, float]:
    judge = judge_for(run.target, measure=True)
    assert isinstance(judge, DeviceJudge)
    try:
        return await judge.eager_ms(run.task)
    finally:
        await judge.close()


def look(example: str, last: dict[str, Any], directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The summary of one run, and its raw samples."""
    with Run.open(directory, write=False) as run:
        start, best = run.rounds[0], run.best
        eager_ms = asyncio.run(eager(run))
        weights = {t.case: t.weight for t in best.verdict.times}
        total = sum(weights.values())
        mean = 1.0
        for case, ms in eager_ms.items():
            mean *= ms ** (weights.get(case, 1.0) / total)
        row = {
            "name": example,
            "start_ms": mean_ms(start.verdict),
            "best_ms": mean_ms(best.verdict),
            "eager_ms": round(mean, 6),
            "correct": best.verdict.correct is How.MEASURED,
            "rounds": len(run.rounds) - 1,
            "candidates": last["candidates"],
            "speedup_over_start": best.ratio,
            "best_round": best.n,
            "strategy": best.move.strategy if best.move else None,
            "label": best.label,
            "wall_s": last["wall_s"],
            "cases": {
                case: {"start_ms": ms, "best_ms": milliseconds(best.verdict)[case], "eager_ms": eager_ms.get(case)}
                for case, ms in milliseconds(start.verdict).items()
            },
        }
        trials = [
            {
                "round": r.n,
                "strategy": r.move.strategy if r.move else "start",
                "label": t.label,
                "status": t.status,
                "time_us": t.time_us,
            }
            for r in run.rounds
            for t in r.trials
        ]
        samples = {
            "start": {k: list(v) for k, v in run.proof(0).samples_us.items()},
            "best": {k: list(v) for k, v in run.proof(best.n).samples_us.items()},
            "trials": trials,
        }
        return row, samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--examples", nargs="+", default=["rms_norm", "softmax", "matmul"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--keep", type=Path, help="keep the run directories here")
    parser.add_argument("--time-limit", default="", help="begin no round of an example after this long")
    given = parser.parse_args()
    base = given.keep or Path(tempfile.mkdtemp(prefix="tilewright-smoke-"))
    rows, samples = [], {}
    card = ""
    for example in given.examples:
        directory = base / example
        last = optimise(example, given.rounds, directory, given.time_limit)
        row, samples[example] = look(example, last, directory)
        rows.append(row)
        with Run.open(directory, write=False) as run:
            card = str(run.proof(0).versions.get("device", run.target.device))
        print(
            f"{example:14} start {row['start_ms']} ms  best {row['best_ms']} ms  eager {row['eager_ms']} ms  "
            f"start/best {row['speedup_over_start']:.2f} measured  round {row['best_round']} {row['strategy']}  "
            f"{row['wall_s']} s",
            flush=True,
        )
        path = record.write(
            "smoke-h200",
            {"kernels": rows},
            targets={"kernels": "3 examples, 6 rounds, start, best and eager measured"},
            samples=samples,
            card=card,
        )
    print(f"written: {path}")


if __name__ == "__main__":
    main()
