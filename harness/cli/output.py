"""Standard output as users leave it: closed, full, in a narrow encoding, or with a reader that has gone."""

from __future__ import annotations

import io
import os
import sys

from tilewright.harness.errors import Problem


class OutputProblem(Problem):
    """Standard output cannot be written."""


class ReaderGone(OutputProblem):
    """Whoever read standard output has stopped: `| head -1`."""


class _Output(io.TextIOWrapper):
    """A stream whose failures have a name, so that nobody takes them for failures of a run's files."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise _named(error) from None

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise _named(error) from None


def _named(error: OSError) -> OutputProblem:
    if isinstance(error, BrokenPipeError):
        return ReaderGone("the reader of standard output has gone")
    return OutputProblem(
        f"standard output cannot be written: {error.strerror}", "make room there, or write it elsewhere"
    )


def prepare() -> None:
    """Make the standard streams fit to be written to, whatever they are; once, before anything is opened.

    What was closed leads nowhere: else the next file opened would take its place, and be written to. A sign
    that the encoding lacks becomes a question mark.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, mode, encoding="utf-8", closefd=False))
    was = sys.stdout
    if isinstance(was, io.TextIOWrapper):
        interactive, encoding = was.isatty(), was.encoding
        sys.stdout = _Output(was.detach(), encoding=encoding, errors="replace", line_buffering=interactive)


def finish() -> None:
    """Let go of what cannot be written, so that Python does not try, and complain, once more as it ends."""
    try:
        sys.stdout.flush()
    except OutputProblem:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
