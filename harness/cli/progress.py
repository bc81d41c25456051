"""A run as it happens: a live table on a terminal, plain lines elsewhere, JSON lines for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from tilewright.harness.cli import words
from tilewright.harness.loop import Event, Finished, Proposed, Started
from tilewright.harness.types import Json, Round

if TYPE_CHECKING:
    from rich.console import ConsoleRenderable


WIDE = 110
"""Columns of a terminal on which the whole table fits."""


class Screen(Protocol):
    """Where a run's events go."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def opened(self, run: dict[str, Json], rounds: Sequence[Round]) -> None:
        """A run was made or opened; `rounds` are those it has already."""

    def tell(self, event: Event) -> None:
        """Something happened in the loop."""

    def ended(self, summary: dict[str, Json], lines: Sequence[str]) -> None:
        """The run is over: for programs, and for people."""


def screen(as_json: bool) -> Screen:
    """The kind of screen that suits the output."""
    if as_json:
        return Lines(_json_opened, _json_event, lambda summary, lines: [_dumped(summary)])
    if sys.stdout.isatty():
        return Table()
    return Lines(_plain_opened, _plain_event, lambda summary, lines: list(lines))


class Lines:
    """One line an event, written at once."""

    def __init__(
        self,
        opened: Callable[[dict[str, Json], Sequence[Round]], list[str]],
        event: Callable[[Event], list[str]],
        ended: Callable[[dict[str, Json], Sequence[str]], list[str]],
    ) -> None:
        self._opened, self._event, self._ended = opened, event, ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def opened(self, run: dict[str, Json], rounds: Sequence[Round]) -> None:
        self._print(self._opened(run, rounds))

    def tell(self, event: Event) -> None:
        self._print(self._event(event))

    def ended(self, summary: dict[str, Json], lines: Sequence[str]) -> None:
        self._print(self._ended(summary, lines))

    @staticmethod
    def _print(lines: Sequence[str]) -> None:
        for line in lines:
            print(line, flush=True)


# --- JSON lines ------------------------------------------------------------------------------------------


def _dumped(thing: dict[str, Json]) -> str:
    return json.dumps(thing, ensure_ascii=False)


def _json_opened(run: dict[str, Json], rounds: Sequence[Round]) -> list[str]:
    return [_dumped({"event": "opened", **run, "finished_rounds": len(rounds)})]


def _json_event(event: Event) -> list[str]:
    match event:
        case Started(n=n):
            return [_dumped({"event": "started", "round": n})]
        case Proposed(n=n, proposal=proposal):
            move = proposal.move
            return [
                _dumped(
                    {
                        "event": "proposed",
                        "round": n,
                        "parent": proposal.parent,
                        "direction": move.direction if move else None,
                        "strategy": move.strategy if move else None,
                        "candidates": len(proposal.candidates),
                    }
                )
            ]
        case Finished(round=done):
            return [_dumped(_json_round(done))]


def _json_round(done: Round) -> dict[str, Json]:
    verdict = done.verdict
    key = "speedup" if verdict.timed == "measured" else "predicted_ratio"
    return {
        "event": "round",
        "round": done.n,
        "direction": done.move.direction if done.move else None,
        "strategy": done.move.strategy if done.move else None,
        "status": str(verdict.status),
        "failure": str(verdict.failure) if verdict.failure else None,
        "detail": verdict.detail,
        "decision": str(done.decision),
        "reason": done.reason,
        "receipt": str(done.receipt) if done.receipt else None,
        key: done.ratio,
        "time": str(verdict.timed),
        "correct": str(verdict.correct),
        "candidates": done.cost.candidates,
        "seconds": round(done.cost.planning_s + done.cost.judging_s, 3),
    }


# --- plain lines -----------------------------------------------------------------------------------------


def _plain_opened(run: dict[str, Json], rounds: Sequence[Round]) -> list[str]:
    lines = [f"run {run['run']}: {run['task']} for {run['target']}, time {run['time']}"]
    return lines + [_plain_round(done) for done in rounds]


def _plain_event(event: Event) -> list[str]:
    match event:
        case Proposed(n=n, proposal=proposal) if proposal.move:
            return [f"round {n}: trying {proposal.move.strategy}, {len(proposal.candidates)} candidates"]
        case Finished(round=done):
            return [_plain_round(done)]
    return []


def _plain_round(done: Round) -> str:
    parts = [f"round {done.n}:"]
    parts.append(f"{done.move.direction} / {done.move.strategy}:" if done.move else "start:" if done.n == 0 else "")
    parts.append(words.found(done.verdict))
    parts.append(words.ratio(done.ratio, done.verdict.timed) if done.n else _start_time(done))
    parts.append(f"{done.decision}" + (f" ({done.reason})" if done.reason else ""))
    return " ".join(part for part in parts if part)


def _start_time(done: Round) -> str:
    time_us = done.verdict.time_us
    return f"{words.microseconds(time_us)} {done.verdict.timed}" if time_us else ""


# --- the live table --------------------------------------------------------------------------------------


class Table:
    """A table that grows by a row a round, with what is being done in its last line."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console()
        self._rounds: list[Round] = []
        self._now = ""
        self._live: AbstractContextManager[object] = nullcontext()

    def __enter__(self) -> Self:
        from rich.live import Live

        self._live = Live(get_renderable=self._drawn, console=self._console, refresh_per_second=4)
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._now = ""
        self._live.__exit__(kind, error, trace)

    def opened(self, run: dict[str, Json], rounds: Sequence[Round]) -> None:
        self._console.print(
            f"run {run['run']}: {run['task']} for {run['target']}, time {run['time']}", markup=False, highlight=False
        )
        self._rounds = list(rounds)

    def tell(self, event: Event) -> None:
        match event:
            case Started(n=n):
                self._now = f"round {n}: planning" if n else "round 0: judging the start"
            case Proposed(n=n, proposal=proposal):
                what = proposal.move.strategy if proposal.move else "candidates"
                self._now = f"round {n}: judging {len(proposal.candidates)} of {what}"
            case Finished(round=done):
                self._rounds.append(done)
                self._now = ""

    def ended(self, summary: dict[str, Json], lines: Sequence[str]) -> None:
        for line in lines:
            self._console.print(line, markup=False, highlight=False)

    def _drawn(self) -> ConsoleRenderable:
        from rich.console import Group
        from rich.spinner import Spinner
        from rich.text import Text

        return Group(
            table(self._rounds, self._console.width), Spinner("dots", Text(self._now)) if self._now else Text("")
        )


def table(rounds: Sequence[Round], width: int = WIDE) -> ConsoleRenderable:
    """Rounds as a table for a terminal of `width` columns; a narrow one does without the direction."""
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(box=None, pad_edge=False, header_style="bold")
    for name in ("round", "direction", "strategy", "level", "verdict", "start / this", "decision", "cost"):
        if name != "direction" or width >= WIDE:
            drawn.add_column(name, justify="right" if name in ("round", "start / this") else "left", no_wrap=True)
    for done in rounds:
        style = "green" if done.decision == "kept" else "red" if done.verdict.status == "FAIL" else ""
        cells = [
            str(done.n),
            *([done.move.direction if done.move else ""] if width >= WIDE else []),
            done.move.strategy if done.move else done.label,
            str(done.reached),
            words.found(done.verdict),
            words.ratio(done.ratio, done.verdict.timed) if done.n else _start_time(done),
            str(done.decision),
            f"{done.cost.candidates} in {done.cost.planning_s + done.cost.judging_s:.1f} s",
        ]
        drawn.add_row(*(Text(cell, style=style) for cell in cells))
    return drawn
