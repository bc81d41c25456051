"""`tilewright optimize` and `tilewright resume`: the search itself."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated

import typer

from tilewright.harness.errors import Problem, RunProblem, TaskProblem

ROUNDS = 10


def optimize(
    task: Annotated[str, typer.Argument(help="A Triton task file or a KernelBench file; docs/tasks.md.")],
    start: Annotated[str | None, typer.Option(help="File of the starting candidate.")] = None,
    target: Annotated[str | None, typer.Option(help="What to be fast on; default: the GPU here, else cuda:90.")] = None,
    rounds: Annotated[int, typer.Option(min=0, help="Rounds after the baseline.")] = ROUNDS,
    model: Annotated[str, typer.Option(help="Who plans: builtin.")] = "builtin",
    memory: Annotated[str, typer.Option(help="htg | flat | none | shuffled.")] = "htg",
    policy: Annotated[str, typer.Option(help="softmax | thompson.")] = "softmax",
    seed: Annotated[int, typer.Option(help="Of memory's draws.")] = 0,
    run: Annotated[Path | None, typer.Option(help="Run directory; default: runs/TASK-TIME.")] = None,
    time_limit: Annotated[str | None, typer.Option(help="Begin no round after this long: 90, 10m, 2h.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines; the last one is the result.")] = False,
) -> None:
    """Look for a faster kernel, and prove it.

    Each round tries one strategy: candidates are written, judged, kept or discarded, and committed to the
    run directory, a git repository.
    """
    from uuid import uuid4

    from tilewright.harness.cli import machine, session
    from tilewright.harness.runs.state import Run
    from tilewright.harness.tasks import load_task
    from tilewright.harness.types import Settings
    from tilewright.knowledge.memory.switches import Switches

    if model != "builtin":
        raise Problem(f"there is no planner {model!r}", "use --model builtin")
    Switches.of(memory=memory, policy=policy)
    limit_s = None if time_limit is None else seconds(time_limit)
    loaded = load_task(task, start)
    if not loaded.start:
        raise TaskProblem(
            "the task has no starting candidate, and the builtin planner improves one",
            f"give --start FILE, a file that defines {loaded.entry}",
            path=task,
        )
    chosen = machine.wanted(target)
    path = run if run is not None else unused(loaded.name)
    settings = Settings(
        target=chosen.name,
        run=uuid4().hex,
        planner=model,
        memory=memory,
        policy=policy,
        seed=seed,
        versions=machine.versions(),
        rounds=rounds,
    )
    files = {Path(task).name: loaded.source.encode()}
    if start is not None:
        files[f"start/{Path(start).name}"] = loaded.start.encode()
    with Run.create(path, loaded, chosen, settings, files) as made:
        session.go(made, rounds=rounds, as_json=as_json, limit_s=limit_s)


def resume(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    rounds: Annotated[int | None, typer.Option(min=0, help="Rounds in all; default: as asked at first.")] = None,
    time_limit: Annotated[str | None, typer.Option(help="Begin no round after this long: 90, 10m, 2h.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines; the last one is the result.")] = False,
) -> None:
    """Go on with a run.

    Nothing that was finished, judged or answered before is done again.
    """
    from tilewright.harness.cli import session
    from tilewright.harness.runs.state import Run

    limit_s = None if time_limit is None else seconds(time_limit)
    with Run.open(run, write=True) as opened:
        if not opened.task.start:
            raise RunProblem(f"{run}: the task has no starting candidate", "begin a new run with --start FILE")
        total = opened.settings.rounds if rounds is None else rounds
        session.go(opened, rounds=total, as_json=as_json, limit_s=limit_s)


def unused(name: str) -> Path:
    """A run directory that does not exist yet: runs/NAME-TIME."""
    base = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = base, 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path


def seconds(text: str) -> float:
    """A duration: `90`, `90s`, `10m`, `2h`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None:
        raise Problem(f"expected a duration such as 90, 10m or 2h, found {text!r}", "correct --time-limit")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(optimize)
    app.command()(resume)
