"""The write-ahead file of the round in progress: what was paid for is on disk before anything follows from it.

Lines of `{"key": …, "value": …}`, each fsynced before the call that made it returns. A process killed at any
instant loses at most the call in flight: the next one reads what was stored instead of doing it again.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tilewright.harness import codec
from tilewright.harness.errors import RunCorrupt
from tilewright.harness.gitstore import os_problem
from tilewright.harness.runs.interrupts import uninterrupted
from tilewright.harness.runs.secrets import scrub_json

T = TypeVar("T")


class Journal:
    """An open write-ahead file. `once` satisfies `roles.Once`."""

    def __init__(self, path: Path, beat: Callable[[], None] = lambda: None) -> None:
        """`beat` is called at each entry. Raises RunProblem where the file cannot be made or read."""
        self.path = path
        self._beat = beat
        self._busy: dict[str, asyncio.Lock] = {}
        try:
            made = not path.exists()
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if made:
                sync_folder(path.parent)
            text = path.read_bytes()
            self._stored, self._end = parse(text, path)
            if self._end < len(text):
                os.ftruncate(self._fd, self._end)  # the line that was being written when the process was killed
        except OSError as error:
            raise os_problem(error, f"{path}: could not open the journal") from error

    async def once(self, key: str, kind: type[T], do: Callable[[], Awaitable[T]]) -> T:
        """Return what is stored under `key`, or do it, store it durably, and return it as it was stored.

        What `do` raises passes through and stores nothing. Raises RunProblem where the disk takes no more.
        """
        # Two askers of one key at a time must not both pay for it.
        async with self._busy.setdefault(key, asyncio.Lock()):
            if key not in self._stored:
                done = await do()
                with uninterrupted():  # it is paid for
                    self._append(key, scrub_json(codec.dump(done, kind, indent=None)))
        # Read back even when fresh: a resumed run must not see anything that the first one did not.
        return codec.load(kind, self._stored[key])

    @property
    def keys(self) -> tuple[str, ...]:
        """What is stored, in the order it was done."""
        return tuple(self._stored)

    def _append(self, key: str, value: bytes) -> None:
        line = b'{"key":' + json.dumps(key).encode() + b',"value":' + value + b"}\n"
        try:
            done = 0
            while done < len(line):
                done += os.pwrite(self._fd, line[done:], self._end + done)
            os.fsync(self._fd)
        except BaseException as error:
            os.ftruncate(self._fd, self._end)
            if isinstance(error, OSError):
                raise os_problem(error, f"{self.path}: could not store the result of {key}") from error
            raise
        self._end += len(line)
        self._stored[key] = value
        self._beat()

    def close(self) -> None:
        """Close the file, which stays until its round is committed."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def parse(text: bytes, path: Path) -> tuple[dict[str, bytes], int]:
    """The entries of a journal's text as key -> JSON value, and the length of the part that is whole.

    A last line that is torn is left out. Raises RunCorrupt where a line before it cannot be read.
    """
    stored: dict[str, bytes] = {}
    at = 0
    while (end := text.find(b"\n", at)) >= 0:
        entry = _entry(text[at:end])
        if entry is None:
            if text.find(b"\n", end + 1) < 0:
                break  # after a power cut the tail may hold anything
            number = text.count(b"\n", 0, at) + 1
            raise RunCorrupt(
                f"{path}:{number}: the journal of the round in progress cannot be read",
                f"delete it to do that round again (finished rounds are not in it): rm {path}",
            )
        stored.setdefault(*entry)
        at = end + 1
    return stored, at


def _entry(line: bytes) -> tuple[str, bytes] | None:
    try:
        entry: Any = json.loads(line)
        return str(entry["key"]), json.dumps(entry["value"], ensure_ascii=False).encode()
    except (ValueError, KeyError, TypeError):
        return None


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a new file's contents are of no use after a power cut without its name."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
