"""Read a run's history at one commit, in batches and without a checkout."""

from __future__ import annotations

import gc
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tilewright.harness import codec
from tilewright.harness.errors import RunCorrupt, RunProblem
from tilewright.harness.gitstore import FSCK, Store, os_problem
from tilewright.harness.runs.layout import FORMAT, OBSERVATION_JSON, ROUND_JSON, Header, Pointer, unpack
from tilewright.harness.runs.mirror import git_sha
from tilewright.harness.types import Decision, Observation, Round

T = TypeVar("T")


class Tree:
    """A commit's files: a listing read once, contents read when asked for; large files come back whole."""

    def __init__(self, store: Store, at: str) -> None:
        """`at`: a commit or ref. Raises RunCorrupt where it cannot be listed."""
        self.store = store
        self.files = store.files(at)
        """Path -> blob SHA, pointers of large files under their own names (`….ref`)."""

    def add(self, files: Mapping[str, bytes]) -> None:
        """Take in files that were committed since."""
        self.files |= {path: git_sha(data) for path, data in files.items()}

    def read(self, path: str) -> bytes:
        """One file. Raises RunCorrupt where it is missing or cannot be read."""
        ((_, data),) = self.read_all([path])
        return data

    def read_all(self, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Many files in order; a large one may be named with or without its `.ref`. Raises as `read`."""
        names = [p if p in self.files else f"{p}.ref" for p in paths]
        for name in names:
            if name not in self.files:
                raise RunCorrupt(f"{self.store.path}: {name.removesuffix('.ref')} is missing from the history", FSCK)
        blobs = self.store.blobs([self.files[name] for name in names])
        for name, (oid, data) in zip(names, blobs, strict=True):
            if data is None:
                raise RunCorrupt(f"{self.store.path}: {name} (git blob {oid[:12]}) cannot be read", FSCK)
            if name.endswith(".ref"):
                yield name.removesuffix(".ref"), self._large(name, data)
            else:
                yield name, data

    def _large(self, name: str, data: bytes) -> bytes:
        pointer = decode(Pointer, data, f"{self.store.path}: {name}")
        blob = f"blobs/{pointer.blob}.z"
        return unpack(pointer, self.read(blob), name)


def require_run(path: Path) -> Store:
    """The repository of the run at `path`. Raises RunProblem where there is no run."""
    remedy = "give a directory that `tilewright optimize` made"
    try:
        if stat.S_ISDIR((path / ".git" / "tilewright").stat().st_mode):
            return Store(path)
    except PermissionError as error:
        raise os_problem(error, f"{path}: could not look into it") from None
    except OSError:
        pass
    if not path.exists():
        raise RunProblem(f"{path} is no run: there is nothing", remedy)
    what = "it is a git repository, but not of a run" if (path / ".git").exists() else "it has no history"
    raise RunProblem(f"{path} is no run: {what if path.is_dir() else 'it is a file'}", remedy)


def read_header(tree: Tree) -> Header:
    """What the run was made from. Raises RunCorrupt, and RunProblem where a newer Tilewright made it."""
    header = decode(Header, tree.read("run.json"), f"{tree.store.path}: run.json")
    if header.format != FORMAT:
        raise RunProblem(
            f"{tree.store.path} has format {header.format}, and this Tilewright reads {FORMAT}",
            "use the version of Tilewright that made it (see run.json)",
        )
    return header


def read_rounds(tree: Tree) -> list[Round]:
    """Every round in order, in one batch. Raises RunCorrupt where one is missing or cannot be read."""
    found = _numbered(tree, ROUND_JSON)
    for expected, n in enumerate(found):
        if n != expected:
            raise RunCorrupt(f"{tree.store.path}: round {expected} is missing, though there is a round {n}", FSCK)
    rounds = _decode_all(Round, tree, found.values())
    for n, done in enumerate(rounds):
        if done.n != n:
            raise RunCorrupt(f"{tree.store.path}: {found[n]} says that it is round {done.n}", FSCK)
    return rounds


def read_observations(tree: Tree) -> list[Observation]:
    """Every observation in order of rounds, in one batch. Raises RunCorrupt where one cannot be read."""
    return _decode_all(Observation, tree, _numbered(tree, OBSERVATION_JSON).values())


def _numbered(tree: Tree, pattern: re.Pattern[str]) -> dict[int, str]:
    """The paths that match, by the round's number that is the pattern's first group, in order."""
    return dict(sorted((int(m[1]), path) for path in tree.files if (m := pattern.fullmatch(path))))


def _decode_all(kind: type[T], tree: Tree, paths: Iterable[str]) -> list[T]:
    # Ten thousand nouns are made and none is dropped: the collector would look through them again and again.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return [decode(kind, data, f"{tree.store.path}: {path}") for path, data in tree.read_all(paths)]
    finally:
        if collecting:
            gc.enable()


def best_of(rounds: Sequence[Round]) -> Round:
    """The last kept round, or the baseline. Raises LookupError where there is no round."""
    if not rounds:
        raise LookupError("there is no round yet, so there is no best one")
    return next((r for r in reversed(rounds) if r.decision is Decision.KEPT), rounds[0])


def decode(kind: type[T], data: bytes, where: str) -> T:
    """A noun from its file. Raises RunCorrupt that says which field of which file does not fit."""
    try:
        return codec.load(kind, data)
    except ValueError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise RunCorrupt(
            f"{where} does not hold a {kind.__name__}: {'; '.join(lines[1:3]) or lines[0]}", FSCK
        ) from error
