"""How well the cost model ranks kernels: modelled against measured time for some thirty configurations, on a GPU.

    PYTHONPATH=.dev python benchmarks/model_check.py [--target cuda:90] [--no-device]

Needs torch, triton and numpy alone. Each configuration is a candidate as a planner would write it. One subprocess
compiles them all without touching the device, one counts them in Triton's interpreter, the cost model times them, and
then this process measures them (median of triton.testing.do_bench). Prints both, with the rank correlation of each
family, and writes benchmarks/results/model-check.json. `--no-device` models only and writes nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from model_kernels import HEAD, PROBES, Configuration, configurations


def job(configuration: Configuration, target: dict[str, Any]) -> dict[str, Any]:
    """The configuration as a job for the workers' operations."""
    args: list[dict[str, Any]] = []
    for arg in configuration.args:
        if len(arg) == 2:
            args.append({"name": arg[0], "scalar": arg[1]})
        else:
            args.append({"name": arg[0], "tensor": {"shape": list(arg[1]), "dtype": arg[2], "strides": None}})
    return {"kind": "triton", "source": configuration.source, "entry": "launch", "args": args, "target": target}


def work(operation: str, jobs: str, replies: str) -> None:
    """In a subprocess: run one operation on every job, each in a folder of its own."""
    import importlib

    from tilewright.harness.worker.outcome import reply_for

    module = importlib.import_module(f"tilewright.harness.worker.op_{operation}")
    answers = []
    for each in json.loads(Path(jobs).read_text()):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            os.environ["TRITON_CACHE_DIR"] = folder
            began = time.monotonic()
            try:
                answer = module.handle(each, {})[0]
            except Exception as error:  # what a worker does with a candidate's failure
                answer = reply_for(error)
            answers.append({**answer, "seconds": round(time.monotonic() - began, 3)})
            os.chdir("/")
    Path(replies).write_text(json.dumps(answers))


def replies(operation: str, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every job's reply to one operation, from a subprocess with the environment that it needs."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "jobs.json", Path(folder) / "replies.json"
        asked.write_text(json.dumps(jobs))
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        if operation == "census":
            environment["TRITON_INTERPRET"] = "1"
        command = [sys.executable, __file__, "--work", operation, str(asked), str(answered)]
        subprocess.run(command, check=True, env=environment)
        found: list[dict[str, Any]] = json.loads(answered.read_text())
    return found


def modelled(target_name: str) -> list[dict[str, Any]]:
    """A row for every configuration with what the model says of it."""
    from tilewright.harness.judge.cost import modelled_time
    from tilewright.harness.judge.merge import merged
    from tilewright.knowledge.targets import target

    ceilings = target(target_name)
    jobs = [job(each, dataclasses.asdict(ceilings)) for each in configurations()]
    rows: list[dict[str, Any]] = []
    for each, compiled, counted in zip(
        configurations(), replies("compile", jobs), replies("census", jobs), strict=True
    ):
        row: dict[str, Any] = {"family": each.family, "label": each.label}
        rows.append(row)
        failed = compiled.get("failed") or counted.get("failed")
        if failed:
            row["failed"] = f"{failed['failure']}: {failed['detail']}"
            continue
        kernels = merged(compiled, counted, each.label)
        timed, terms = modelled_time(ceilings, kernels, case=each.label, compulsory_bytes=compiled["compulsory_bytes"])
        row |= {
            "modelled_us": timed.time_us,
            "floor_us": timed.floor_us,
            "bound": timed.bound,
            "terms": terms,
            "facts": [dict(kernel.facts) for kernel in kernels],
            "compile_s": compiled["seconds"],
            "census_s": counted["seconds"],
        }
    return rows


def remodelled(target_name: str, row: dict[str, Any]) -> dict[str, Any]:
    """A recorded row with its time modelled anew, from the facts of the binaries that were measured."""
    from tilewright.harness.judge.cost import modelled_time
    from tilewright.harness.types import KernelFacts
    from tilewright.knowledge.targets import target

    if "facts" not in row:
        return row
    kernels = [
        KernelFacts(
            kernel=said["kernel"],
            case=row["label"],
            grid=(said.get("programs", 1), 1, 1),
            launches=said["launches"],
            facts=facts,
            digest="",
        )
        for said, facts in zip(row["terms"]["kernels"], row["facts"], strict=True)
    ]
    timed, terms = modelled_time(target(target_name), kernels, case=row["label"])
    return {**row, "modelled_us": timed.time_us, "bound": timed.bound, "terms": terms}


def measure(rows: list[dict[str, Any]]) -> None:
    """Add `measured_us` to each row that can run: the median of do_bench, caches flushed between runs."""
    import torch
    import triton.testing

    for each, row in zip(configurations(), rows, strict=True):
        with tempfile.TemporaryDirectory() as folder:
            module = loaded(each.source, folder)
            args = [
                arg[1]
                if len(arg) == 2
                else torch.randn(arg[1], device="cuda", dtype=torch.float32).to(getattr(torch, arg[2]))
                for arg in each.args
            ]
            call = functools.partial(module.launch, *args)
            try:
                call()
                milliseconds = triton.testing.do_bench(call, warmup=20, rep=80, return_mode="median")
            except Exception as error:  # a configuration that the device refuses is a row, not the end
                row["not_measured"] = f"{type(error).__name__}: {error}"[:300]
                continue
            row["measured_us"] = milliseconds * 1e3


def probed() -> dict[str, float]:
    """Ceilings of this device as the model understands them, for comparison with the target's file."""
    import torch
    import triton.testing

    with tempfile.TemporaryDirectory() as folder:
        module = loaded(HEAD + PROBES, folder)
        bench = functools.partial(triton.testing.do_bench, warmup=20, rep=80, return_mode="median")
        x = torch.zeros(64 << 20, device="cuda")
        o = torch.zeros_like(x)
        one = torch.zeros(1, device="cuda", dtype=torch.int64)
        launch_ms = bench(lambda: module.nothing[(1,)](one))
        many, few = 1 << 20, 1 << 18
        start_ms = bench(lambda: module.nothing[(many,)](one)) - bench(lambda: module.nothing[(few,)](one))
        # A cycle through 1 GiB, every step a cache line that nothing has touched.
        line, lines, steps = 16, 8 << 20, 4000
        order = torch.randperm(lines, device="cuda") * line
        table = torch.zeros(lines * line, device="cuda", dtype=torch.int64)
        table[order] = order.roll(-1)
        chase_ms = bench(lambda: module.chase[(1,)](table, one, steps, num_warps=1))
        blocks, turns, programs = 4096, 64, 132 * 8
        again_ms = bench(lambda: module.again[(programs,)](x, o, blocks, turns, BLOCK=2048))
        copy_ms = bench(lambda: module.copy[(x.numel() // 2048,)](x, o, BLOCK=2048))
        return {
            "launch_us": launch_ms * 1e3,
            "program_start_ns": start_ms * 1e6 / (many - few),
            "dram_latency_us": (chase_ms - launch_ms) * 1e3 / steps,
            "l2_bytes_per_s": programs * turns * 2048 * 4 / (again_ms * 1e-3),
            "dram_bytes_per_s": 2 * 4 * x.numel() / (copy_ms * 1e-3),
        }


def loaded(source: str, folder: str) -> Any:
    """A source as a module."""
    import importlib.util

    path = Path(folder) / "candidate.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("candidate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def spearman(xs: list[float], ys: list[float]) -> float:
    """Rank correlation, ties given their mean rank."""

    def ranks(values: list[float]) -> list[float]:
        return [sum(v < w for v in values) + (sum(v == w for v in values) + 1) / 2 for w in values]

    return statistics.correlation(ranks(xs), ranks(ys))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rank correlation by family, and how modelled times compare with measured ones over all."""
    both = [row for row in rows if "measured_us" in row and "modelled_us" in row]
    families: dict[str, Any] = {}
    for family in dict.fromkeys(row["family"] for row in both):
        mine = [row for row in both if row["family"] == family]
        ratios = [row["modelled_us"] / row["measured_us"] for row in mine]
        rho = spearman([r["modelled_us"] for r in mine], [r["measured_us"] for r in mine]) if len(mine) > 2 else None
        fastest = min(mine, key=lambda r: r["modelled_us"])
        best = min(row["measured_us"] for row in mine if row["label"].split()[1] == fastest["label"].split()[1])
        families[family] = {
            "configurations": len(mine),
            "spearman": None if rho is None else round(rho, 3),
            "median_ratio": round(statistics.median(ratios), 3),
            "chosen_over_best": round(fastest["measured_us"] / best, 3),
        }
    ratios = [row["modelled_us"] / row["measured_us"] for row in both]
    return {
        "families": families,
        "median_ratio": round(statistics.median(ratios), 3) if ratios else None,
        "worst_ratios": [round(min(ratios), 3), round(max(ratios), 3)] if ratios else None,
        "measured": len(both),
        "configurations": len(rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda:90", help="whose ceilings the model takes")
    parser.add_argument("--no-device", action="store_true", help="model only; measure and write nothing")
    parser.add_argument("--recorded", type=Path, help="model this result file's facts anew, beside its times")
    parser.add_argument("--work", nargs=3, metavar=("OPERATION", "JOBS", "REPLIES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*options.work)
        return
    rows = [] if options.recorded else modelled(options.target)
    card, ceilings = None, dict[str, float]()
    before: dict[str, Any] = {}
    if options.recorded:
        before = json.loads(options.recorded.read_text())
        card, ceilings = before["machine"], before["probed"]
        rows = [remodelled(options.target, row) for row in before["samples"]]
    elif not options.no_device:
        import torch

        card = torch.cuda.get_device_name(0)
        measure(rows)
        ceilings = probed()
    print(f"{'family':12} {'configuration':58} {'modelled':>10} {'measured':>10} {'ratio':>6}  bound")
    for row in rows:
        m, d = row.get("modelled_us"), row.get("measured_us")
        numbers = f"{m:10.1f} " if m else f"{'-':>10} "
        numbers += f"{d:10.1f} " if d else f"{'-':>10} "
        numbers += f"{m / d:6.2f}" if m and d else f"{'-':>6}"
        print(f"{row['family']:12} {row['label']:58} {numbers}  {row.get('bound', row.get('failed', ''))}")
    found = summary(rows)
    if ceilings:
        found["probed"] = {name: float(f"{value:.4g}") for name, value in ceilings.items()}
    print(json.dumps(found, indent=1))
    if options.no_device:
        return
    import record

    if before:
        kept = ("commit", "date", "command", "versions")
        found["measured_at"] = before.get("measured_at") or {name: before[name] for name in kept}
    targets = {"spearman of each family": "at least 0.8", "median_ratio": "between 0.7 and 1.4"}
    print(record.write("model-check", {**found, "target": options.target}, targets=targets, samples=rows, card=card))


if __name__ == "__main__":
    main()
