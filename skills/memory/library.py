"""Observations read from run repositories, incrementally: one small git process for each new round."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tilewright.harness import codec
from tilewright.harness.errors import RunCorrupt, RunProblem
from tilewright.harness.gitstore import Store, read_many
from tilewright.harness.types import Observation
from tilewright.knowledge.memory import Statistics

MAIN = "refs/heads/main"
SUFFIX = "/observation.json"
NUMBER = re.compile(r"rounds/\d{2,}/(\d{4,})/")
T = TypeVar("T")

HOLD = "give a directory made by `tilewright optimize`"


def round_folder(n: int) -> str:
    """Where round `n` stands in a run's tree."""
    return f"rounds/{n // 100:02d}/{n:04d}"


@dataclass(slots=True)
class Shelf:
    """One run: its observations so far, and up to which commit they were read."""

    path: Path
    tip: str = ""
    following: int = 0
    """Number of the next round that may be committed."""
    generation: int = 0
    """Counts complete readings: whoever holds a part of an older one must start again."""
    observations: list[Observation] = field(default_factory=list)

    def refresh(self) -> None:
        """Read what was committed since. Raises RunProblem where there is no run, RunCorrupt for a damaged one."""
        tip = head(self.path)
        if tip == self.tip:
            return
        if not (self.tip and self._step(tip)):
            self._whole(tip)
        self.tip = tip

    def _step(self, tip: str) -> bool:
        """Read the one round that stands directly on what was read before; False where it is not that simple."""
        name = f"{round_folder(self.following)}{SUFFIX}"
        whole = f"{tip}:{round_folder(self.following)}/round.json"
        (_, commit), (_, done), (_, seen) = Store(self.path).blobs([tip, whole, f"{tip}:{name}"])
        if commit is None or done is None or f"\nparent {self.tip}\n".encode() not in commit:
            return False
        if seen is not None:
            self.observations.append(load_as(Observation, seen, f"{self.path}: {name}"))
        self.following += 1
        return True

    def _whole(self, tip: str) -> None:
        store = Store(self.path)
        listed = store.files(tip)
        wanted = {name: blob for name, blob in listed.items() if name.endswith(SUFFIX)}
        found = []
        for name, (_, data) in zip(wanted, store.blobs(wanted.values()), strict=True):
            if data is None:
                raise RunCorrupt(f"{self.path}: {name} cannot be read", "`tilewright fsck RUN` says what is damaged")
            found.append(load_as(Observation, data, f"{self.path}: {name}"))
        numbers = [number(name) for name in listed]
        self.observations = sorted(found, key=lambda o: o.round)
        self.following = max(numbers, default=-1) + 1
        self.generation += 1


@dataclass(slots=True)
class _Folded:
    statistics: Statistics
    taken: dict[Path, tuple[int, int]] = field(default_factory=dict)
    """For each shelf: its generation, and how many of its observations are folded in."""


class Library:
    """Runs that were read, and the statistics folded from them; one for each process, safe between threads."""

    def __init__(self) -> None:
        self._shelves: dict[Path, Shelf] = {}
        self._folded: dict[tuple[tuple[Path, ...], bool], _Folded] = {}
        self._lock = threading.Lock()

    def statistics(self, runs: Sequence[str], *, by_position: bool = True) -> Statistics:
        """What the observations of all these runs amount to, as committed now. Not to be changed by the caller."""
        paths = tuple(sorted({Path(run).resolve() for run in runs}))
        with self._lock:
            shelves = [self._shelf(path) for path in paths]
            folded = self._folded.get((paths, by_position))
            if folded is None or any(folded.taken[s.path][0] != s.generation for s in shelves):
                folded = _Folded(Statistics(by_position=by_position), {s.path: (s.generation, 0) for s in shelves})
                self._folded[paths, by_position] = folded
            for shelf in shelves:
                _, count = folded.taken[shelf.path]
                folded.statistics.update(shelf.observations[count:])
                folded.taken[shelf.path] = (shelf.generation, len(shelf.observations))
            return folded.statistics

    def observations(self, run: str) -> list[Observation]:
        """All observations that a run has committed, in order of rounds."""
        with self._lock:
            return list(self._shelf(Path(run).resolve()).observations)

    def _shelf(self, path: Path) -> Shelf:
        shelf = self._shelves.setdefault(path, Shelf(path))
        shelf.refresh()
        return shelf


def head(path: Path) -> str:
    """The commit that a run's history ends in. Raises RunProblem where there is none."""
    loose = path / ".git" / MAIN
    try:
        text = loose.read_text().strip()
    except OSError:
        text = ""
    if re.fullmatch(r"[0-9a-f]{40}", text):
        return text
    # Packed, or no run at all: git knows.
    tip = Store(path).tip(MAIN) if (path / ".git").is_dir() else None
    if tip is None:
        raise RunProblem(f"{path} is not a run: it has no {MAIN}", HOLD)
    return tip


def texts(run: str, suffix: str) -> dict[str, bytes]:
    """Every file of a run whose path ends in `suffix`, as committed now."""
    return dict(read_many(Path(run), MAIN, suffix))


def number(name: str) -> int:
    """The round in whose folder a file stands; -1 outside all of them."""
    return int(m[1]) if (m := NUMBER.match(name)) else -1


def load_as(kind: type[T], text: bytes, where: str) -> T:
    """A noun from a committed file. Raises RunCorrupt, naming `where`, for one that does not hold together."""
    try:
        return codec.load(kind, text)
    except ValueError as failure:
        cause = f"{where} is not what it should be: {str(failure).splitlines()[0]}"
        raise RunCorrupt(cause, "`tilewright fsck RUN` says what is damaged") from None
