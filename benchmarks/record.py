"""How every benchmark keeps its figures: one JSON file in benchmarks/results/ with all that is needed to repeat it."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(os.environ.get("TILEWRIGHT_RESULTS", ROOT / "benchmarks" / "results"))


def write(name: str, values: dict[str, Any], *, targets: dict[str, Any], samples: Any, card: str | None = None) -> Path:
    """Write `<name>.json`: the values, their targets and raw samples, with commit, command, date and versions."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    content = {
        **values,
        "targets": targets,
        "commit": commit(),
        "command": "python " + shlex.join([str(Path(sys.argv[0]).name), *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "machine": card or f"{os.cpu_count()} × {cpu()}",
        "samples": samples,
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def commit() -> str:
    """The commit that was measured; `+` when the checkout differs from it. TILEWRIGHT_COMMIT where there is no git."""
    if known := os.environ.get("TILEWRIGHT_COMMIT"):
        return known
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode:
        return "unknown"
    dirty = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True)
    changed = [line for line in dirty.stdout.splitlines() if "benchmarks/results/" not in line]
    return head.stdout.strip() + ("+" if changed else "")


def versions() -> dict[str, str]:
    """Python and the packages that a figure may depend on."""
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for package in ("torch", "triton", "numpy", "gitpython", "mcp", "libcst"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    git = subprocess.run(["git", "--version"], capture_output=True, text=True)
    found["git"] = git.stdout.split()[-1] if git.stdout else "none"
    return found


def cpu() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
