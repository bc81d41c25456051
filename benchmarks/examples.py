"""All examples optimised without a GPU: checked, modelled, and by which fact of the compiled kernel.

    python benchmarks/examples.py [--rounds 6] [--only NAME …]

A ratio here is start over best by the cost model: a prediction, not a speed-up.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record

from tilewright.harness.runs.state import Run
from tilewright.harness.types import Receipt, Status

MAIN = "import sys; from tilewright.harness.cli.app import main; sys.exit(main())"


def optimised(path: Path, rounds: int, directory: Path) -> dict[str, Any]:
    """One example by the command line, as a user would run it; the row of the table."""
    command = [sys.executable, "-c", MAIN, "optimize", str(path), "--rounds", str(rounds), "--run", str(directory)]
    began = time.monotonic()
    done = subprocess.run([*command, "--target", "cuda:90", "--json"], capture_output=True, text=True)
    wall_s = round(time.monotonic() - began, 1)
    if done.returncode:
        raise SystemExit(f"{path.name}: exit status {done.returncode}\n{done.stderr}")
    last = json.loads(done.stdout.splitlines()[-1])
    with Run.open(directory, write=False) as run:
        best = run.best
        return {
            "name": path.stem,
            "predicted_ratio": round(best.ratio or 1.0, 4),
            "improved": best.n > 0,
            "strategy": best.move.strategy if best.move else None,
            "label": best.label,
            "claim": f"{best.claim.fact} {best.claim.relation} {best.claim.value or ''}".strip()
            if best.claim
            else None,
            "realised": best.receipt is Receipt.REALISED,
            "correct": str(best.verdict.correct),
            "time": str(best.verdict.timed),
            "rounds": len(run.rounds) - 1,
            "rounds_with_a_checked_candidate": sum(r.verdict.status is Status.PASS for r in run.rounds[1:]),
            "candidates": last["candidates"],
            "not_checked": last["best"]["not_checked"],
            "wall_s": wall_s,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description="Optimise all examples without a GPU.")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="tilewright-examples-") as base:
        for path in sorted((record.ROOT / "examples").glob("*.py")):
            if given.only and path.stem not in given.only:
                continue
            row = optimised(path, given.rounds, Path(base) / path.stem)
            rows.append(row)
            print(
                f"{row['name']:15} predicted {row['predicted_ratio']:.2f}x  {row['strategy'] or '-':18} "
                f"{row['claim'] or '-':28} {'realised' if row['realised'] else '-':9} "
                f"{row['correct']}  {row['rounds']} rounds  {row['candidates']} candidates  {row['wall_s']} s",
                flush=True,
            )
    values = {
        "examples": len(rows),
        "checked": sum(r["correct"] == "interpreter" and r["rounds_with_a_checked_candidate"] > 0 for r in rows),
        "improved_by_a_fact": sum(r["improved"] and r["realised"] for r in rows),
        "slowest_s": max(r["wall_s"] for r in rows),
    }
    targets = {"examples": 6, "checked": 6, "improved_by_a_fact": 3, "slowest_s": 90}
    print(values)
    if not given.only:
        print(record.write("examples", values, targets=targets, samples=rows))


if __name__ == "__main__":
    main()
