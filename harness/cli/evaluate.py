"""`tilewright evaluate`: one verdict on one candidate, without a search."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tilewright.harness.cli import words

if TYPE_CHECKING:
    from tilewright.harness.types import Judged, Target, Task

T = TypeVar("T")

WRONG = 1


def evaluate(
    task: Annotated[str, typer.Argument(help="A Triton task file or a KernelBench file.")],
    candidate: Annotated[str, typer.Argument(help="The candidate's file.")],
    target: Annotated[str | None, typer.Option(help="What to be fast on; default: the GPU here, else cuda:90.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The verdict and its proof as one JSON object.")] = False,
) -> None:
    """Judge one candidate: is it right, how fast.

    Exit status 1 where it is not right.
    """
    from tilewright.harness.cli import machine
    from tilewright.harness.codec import plain
    from tilewright.harness.tasks import load_task
    from tilewright.harness.tasks.source import check_candidate, read
    from tilewright.harness.types import Status

    loaded = load_task(task)
    source = read(candidate, "candidate")
    check_candidate(source, loaded.entry, candidate)
    judged = asyncio.run(_judged(loaded, source, candidate, machine.wanted(target)))
    verdict, proof = judged.verdict, judged.proof
    if as_json:
        print(json.dumps({"event": "verdict", "verdict": plain(verdict), "proof": plain(proof)}, ensure_ascii=False))
    else:
        print(words.found(verdict) + (f": {verdict.detail}" if verdict.detail else ""))
        print(f"correctness: {words.CORRECT[verdict.correct]}")
        for each in verdict.times:
            time = words.microseconds(each.time_us)
            floor = words.microseconds(each.floor_us)
            print(f"{each.case}: {time} {verdict.timed}, floor {floor}, bound by {each.bound}")
        if proof.not_checked:
            print("not checked: " + "; ".join(proof.not_checked))
    if verdict.status not in (Status.PASS, Status.AMBIGUOUS, Status.TASK_WEAK):
        raise typer.Exit(WRONG)


async def _judged(task: Task, source: str, label: str, target: Target) -> Judged:
    from tilewright.harness.judge import judge_for
    from tilewright.harness.types import Candidate

    judge = judge_for(target)
    try:
        return await judge.judge(task, [Candidate(source=source, label=label)], _at_once)
    finally:
        await judge.close()


async def _at_once(key: str, kind: type[T], do: Callable[[], Awaitable[T]]) -> T:
    """Plays `roles.Once` where nothing is kept: there is no run to resume."""
    return await do()


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(evaluate)
