"""An expected failure of a candidate (or of its task) inside a worker, on its way to the reply frame."""

from __future__ import annotations

from typing import Any

DETAIL_LIMIT = 2000
"""Characters of a detail that travel; a compiler's dump does not."""


class Failed(Exception):
    """The candidate cannot be judged further, and why.

    `failure` is a word of `harness.types.Failure` (or `task`), `detail` one sentence, `trace` lines of the
    candidate's own source.
    """

    def __init__(self, failure: str, detail: str, trace: str = "") -> None:
        super().__init__(detail)
        self.failure, self.detail, self.trace = failure, detail[:DETAIL_LIMIT], trace

    def reply(self) -> dict[str, Any]:
        """The header of the reply frame."""
        return {"failed": {"failure": self.failure, "detail": self.detail, "trace": self.trace}}


def innermost(error: BaseException) -> BaseException:
    """The exception at the root of a chain of `raise … from …`, which wrappers only repeat."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def sentence(error: BaseException) -> str:
    """`Type: message` on one line, with the message cut where it stops being a message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:DETAIL_LIMIT] if text else type(error).__name__
