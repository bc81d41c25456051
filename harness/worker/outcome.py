"""Makes an answer of whatever a job raised: a failure's word, one sentence, and the foreign source's own lines."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

from tilewright.harness.worker.failed import Failed, sentence

FOREIGN = "tilewright_foreign_"
"""Modules made of foreign source have file names that start so: see `load.py`."""

TRACE_LIMIT = 4000


class Unsupported(Failed):
    """An instrument here would lie about this kernel, so it refuses."""

    def __init__(self, detail: str) -> None:
        super().__init__("unsupported", detail)


def chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, then what it was raised from, to the root."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def foreign_lines(error: BaseException) -> str:
    """The lines of the candidate's or the task's own source in a traceback, innermost last."""
    lines: list[str] = []
    for link in chain(error):
        for frame in traceback.extract_tb(link.__traceback__):
            if f"/{FOREIGN}" in frame.filename:
                where = frame.filename.rsplit(FOREIGN, 1)[-1].removesuffix(".py")
                line = f"{where} line {frame.lineno}, in {frame.name}: {(frame.line or '').strip()}"
                if line not in lines:
                    lines.append(line)
    return "\n".join(lines)[-TRACE_LIMIT:]


def foreign_line_number(error: BaseException) -> int | None:
    """The innermost line number in foreign source, where there is one."""
    found: int | None = None
    for link in chain(error):
        for frame in traceback.extract_tb(link.__traceback__):
            if f"/{FOREIGN}" in frame.filename:
                found = frame.lineno
    return found


def reply_for(error: BaseException, otherwise: str = "launch") -> dict[str, Any]:
    """The reply header that reports `error`. A `Failed` anywhere in its chain speaks for it."""
    failure = _failure(error, otherwise)
    failure.trace = failure.trace or foreign_lines(error)
    reply = failure.reply()
    reply["failed"]["line"] = foreign_line_number(error)
    return reply


def _failure(error: BaseException, otherwise: str) -> Failed:
    links = list(chain(error))
    for link in links:
        if isinstance(link, Failed):
            return link
    if any(isinstance(link, MemoryError) for link in links):
        return Failed("out-of-memory", "it asked for more memory than a job may have")
    # Triton's interpreter repeats what a kernel raised as `InterpreterError(repr(e))`.
    return Failed(otherwise, sentence(links[-1] if type(error).__name__ == "InterpreterError" else error))
