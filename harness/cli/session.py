"""One run from its opening to its last word: the parts are put together here, and Ctrl-C is caught here."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from tilewright.harness.cli import progress, words
from tilewright.harness.cli.output import OutputProblem
from tilewright.harness.errors import Problem
from tilewright.harness.runs.state import Run

INTERRUPTED = 130


def go(run: Run, *, rounds: int, as_json: bool, limit_s: float | None) -> None:
    """Do rounds until there are `rounds` beside the baseline, and say how it went.

    Raises Problem as the loop does, and typer.Exit(130) when stopped by a signal; finished rounds are
    committed in any case.
    """
    from tilewright.harness.judge.device import present

    timed = "measured" if present(run.target) else "modelled"
    about = {"run": run.path, "task": run.task.name, "target": run.target.name, "time": timed}
    deadline = None if limit_s is None else time.monotonic() + limit_s

    def stop() -> bool:
        # Without a baseline there would be nothing to show for the time.
        return run.next > 0 and deadline is not None and time.monotonic() >= deadline

    screen = progress.screen(as_json)
    try:
        with screen, _signals():
            screen.opened(dict(about), run.rounds)
            ending = asyncio.run(_drive(run, rounds, screen, stop))
    except KeyboardInterrupt:
        _stopped(run, as_json)
        raise typer.Exit(INTERRUPTED) from None
    except OutputProblem:
        _stopped(run, as_json=False)
        raise
    except Problem as problem:
        if as_json:
            failed = {"event": "failed", "run": run.path, "cause": str(problem), "remedy": problem.remedy}
            print(json.dumps(failed), flush=True)
        raise
    best = run.best
    proof = run.proof(best.n)
    candidates = sum(done.cost.candidates for done in run.rounds)
    if ending == "stopped":
        ending = f"the time limit is reached; go on with `{_resume(run)}`"
    screen.ended(
        words.finished(run.path, len(run.rounds) - 1, candidates, best, proof),
        [ending, *words.outcome(best, run.rounds[0], proof), f"run: {run.path}"],
    )


async def _drive(run: Run, rounds: int, screen: progress.Screen, stop: Callable[[], bool]) -> str:
    from tilewright.agent.builtin import BuiltinPlanner
    from tilewright.harness.host import Host
    from tilewright.harness.judge import judge_for
    from tilewright.harness.loop import optimize

    judge = judge_for(run.target)
    problem: Problem | None = None
    ending = ""
    try:
        async with Host() as skills:
            planner = BuiltinPlanner(budget=rounds)
            try:
                ending = await optimize(run, planner, skills, judge, rounds=rounds, tell=screen.tell, stop=stop)
            except Problem as raised:
                problem = raised  # raised again outside: the skills' client would wrap it in a group
    finally:
        await judge.close()
    if problem is not None:
        raise problem
    return ending


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM asks for the same orderly end as Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _resume(run: Run) -> str:
    return f"tilewright resume {shlex.quote(str(run.path))}"


def _stopped(run: Run, as_json: bool) -> None:
    done = len(run.rounds)
    resume = _resume(run)
    if as_json:
        print(json.dumps({"event": "stopped", "run": run.path, "rounds": max(0, done - 1), "resume": resume}))
    print(f"stopped; what is finished is kept. Go on with `{resume}`", file=sys.stderr)
