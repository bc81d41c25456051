"""A run: a git repository whose commits are the rounds. `Run` is what a planner reads and the loop commits to.

The history is the truth; everything else here (the list of rounds, the best ref, the copies in the work tree)
follows from it and is put right when a run is opened for writing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from tilewright.harness.errors import RunCorrupt, RunProblem
from tilewright.harness.gitstore import FSCK, Store, os_problem
from tilewright.harness.observe import context, faster, prefix
from tilewright.harness.runs import mirror
from tilewright.harness.runs.interrupts import uninterrupted
from tilewright.harness.runs.journal import Journal, sync_folder
from tilewright.harness.runs.layout import (
    BEST,
    EVIDENCE_JSON,
    MAIN,
    Header,
    Judgement,
    first_files,
    first_message,
    folder,
    round_files,
    round_message,
)
from tilewright.harness.runs.lock import Lock
from tilewright.harness.runs.reading import (
    Tree,
    best_of,
    decode,
    read_header,
    read_observations,
    read_rounds,
    require_run,
)
from tilewright.harness.types import Context, Evidence, Observation, Proof, Record, Round, Settings, Target, Task

TIDY_EVERY = 32
"""Commits between two roll-ups of small packs: about 30 ms each, so 1 ms a round."""
CACHED = 64
"""Sources and proofs held in memory."""

T = TypeVar("T")


class Run:
    """An open run directory. Satisfies `roles.History`; as a context manager it closes itself."""

    def __init__(self, store: Store, header: Header, tree: Tree, rounds: list[Round], tip: str, lock: Lock | None):
        """Use `create` or `open`."""
        self._store, self._header, self._tree, self._tip, self._lock = store, header, tree, tip, lock
        self._rounds = rounds
        self.fastest_us = functools.reduce(faster, rounds, None)
        """The lowest time of a round that passed: the floor of what memory calls headroom."""
        self._observations: list[Observation] | None = None
        self._evidence = {m[2]: path for path in tree.files if (m := EVIDENCE_JSON.fullmatch(path))}
        self._sources: dict[int, str] = {}
        self._proofs: dict[int, Proof] = {}

    # --- making and opening ----------------------------------------------------------------------------

    @classmethod
    def create(
        cls, path: str | Path, task: Task, target: Target, settings: Settings, files: Mapping[str, bytes]
    ) -> Run:
        """Make a run at `path` and open it for writing; `files` are the task's own, kept byte for byte.

        Raises RunProblem where `path` is in use, cannot be written, or the task holds a secret. A creation
        that was killed before its first commit left nothing, and is done again.
        """
        path = Path(path)
        header = Header(task=task, target=target, settings=settings)
        first = first_files(header, files)
        _require_unused(path)
        own = path / ".git" / "tilewright"
        try:
            (own / "wip").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise os_problem(error, f"{path}: could not make the run directory") from error
        lock = Lock.take(own / "lock")
        try:
            _require_unused(path)  # again, now that nobody else can be making it
            store = Store.init(path)
            store.inherit = (lock.fd,)
            tip = store.append(MAIN, None, first_message(header), first)
            sync_folder(path.parent)
            mirror.write(path, first)
            return cls(store, header, Tree(store, tip), [], tip, lock)
        except OSError as error:
            lock.release()
            raise os_problem(error, f"{path}: could not make the run") from error
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: str | Path, *, write: bool) -> Run:
        """Open the run at `path`; with `write`, lock it and put right what a killed process left.

        Raises RunProblem where `path` is no run or another process writes it, RunCorrupt where its history
        cannot be read.
        """
        path = Path(path)
        store = require_run(path)
        lock = Lock.take(path / ".git" / "tilewright" / "lock") if write else None
        try:
            if lock:
                store.inherit = (lock.fd,)
                store.clear(MAIN, BEST)
            tip = store.tip(MAIN)
            if tip is None:
                raise RunProblem(
                    f"{path}: the run has no commit: making it was interrupted, or its repository is damaged",
                    f"if it was new, start again (it is reused); else {FSCK}",
                )
            tree = Tree(store, tip)
            run = cls(store, read_header(tree), tree, read_rounds(tree), tip, lock)
            if lock:
                run._require_own_tip()
                run._repair()
            return run
        except OSError as error:
            if lock:
                lock.release()
            raise os_problem(error, f"{path}: could not open the run") from error
        except BaseException:
            if lock:
                lock.release()
            raise

    def close(self) -> None:
        """Free the lock; git's index is brought up to date, so that `git status` is clean."""
        if self._lock:
            self._store.refresh_index(MAIN)
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # --- reading ---------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The run directory."""
        return str(self._store.path)

    @property
    def task(self) -> Task:
        return self._header.task

    @property
    def target(self) -> Target:
        return self._header.target

    @property
    def settings(self) -> Settings:
        return self._header.settings

    @property
    def rounds(self) -> Sequence[Round]:
        """All finished rounds in order; round 0 is the baseline."""
        return self._rounds

    @property
    def next(self) -> int:
        """The number of the round to do next."""
        return len(self._rounds)

    @property
    def best(self) -> Round:
        """The last kept round, or the baseline. Raises LookupError before there is one."""
        return best_of(self._rounds)

    @property
    def observations(self) -> Sequence[Observation]:
        """What memory may learn from this run so far, in order of rounds: as committed; `fsck` derives it again."""
        if self._observations is None:
            self._observations = read_observations(self._tree)
        return self._observations

    def context(self, n: int) -> Context:
        """What memory is asked about when round `n`'s candidate is to be changed."""
        return context(self.task, self.target, self.settings, self._rounds[n].verdict)

    def prefix(self, n: int) -> tuple[str, ...]:
        """Directions of the accepted moves on the lineage that ends at round `n`, oldest first."""
        return prefix(self._rounds, n)

    def source(self, n: int) -> str:
        """The candidate of round `n`. Raises KeyError where it had none, RunCorrupt where it cannot be read."""
        if n not in self._sources:
            if not 0 <= n < len(self._rounds) or self._rounds[n].candidate is None:
                raise KeyError(f"round {n} of {self.path} has no candidate")
            _remember(self._sources, n, self._tree.read(f"{folder(n)}/candidate.py").decode())
        return self._sources[n]

    def proof(self, n: int) -> Proof:
        """What stands behind the verdict of round `n`. Raises KeyError where nothing was judged."""
        if n not in self._proofs:
            if not 0 <= n < len(self._rounds):
                raise KeyError(f"{self.path} has no round {n}")
            proof = decode(Judgement, self._tree.read(f"{folder(n)}/verdict.json"), f"{folder(n)}/verdict.json").proof
            if proof is None:
                raise KeyError(f"round {n} of {self.path} has no proof: nothing was judged")
            _remember(self._proofs, n, proof)
        return self._proofs[n]

    def evidence(self, key: str) -> Evidence | None:
        """The answer that a skill gave in any round of this run to the question with this key, or None."""
        path = self._evidence.get(key)
        return None if path is None else decode(Evidence, self._tree.read(path), path)

    # --- writing ---------------------------------------------------------------------------------------

    @contextmanager
    def journal(self, n: int) -> Iterator[Journal]:
        """The write-ahead file of round `n`, which must be the next one; it goes when the round is committed."""
        lock = self._writer()
        if n != self.next:
            raise ValueError(f"round {n} is not the next round, {self.next}")
        with Journal(self._wip(n), lock.beat) as journal:
            yield journal

    def commit(self, record: Record) -> Round:
        """Commit a finished round; return it as it was stored. When this returns the round survives anything.

        Raises RunProblem where it cannot be written: then the journal stays, and a resumed run commits it
        without doing anything again.
        """
        lock, n = self._writer(), record.round.n
        if n != self.next:
            raise ValueError(f"round {n} is not the next round, {self.next}")
        with uninterrupted():
            record, files = round_files(record, self._tree.files)
            done = record.round
            tip = self._store.append(MAIN, self._tip, round_message(done, record.observation), files)
            self._took(tip, done, record, files)
            if "candidate.py" in files:
                self._store.point(BEST, tip)
            lock.beat()
            try:
                self._wip(n).unlink(missing_ok=True)
                mirror.write(self._store.path, files)
            except OSError as error:
                raise os_problem(error, f"{self.path}: round {n} is committed, but could not be copied out") from error
            if n % TIDY_EVERY == TIDY_EVERY - 1:
                self._store.tidy()
        return done

    def _took(self, tip: str, done: Round, record: Record, files: Mapping[str, bytes]) -> None:
        """Bring what is held in memory up to the commit that was just made."""
        self._tip = tip
        self._rounds.append(done)
        self.fastest_us = faster(self.fastest_us, done)
        self._tree.add(files)
        if record.observation is not None and self._observations is not None:
            self._observations.append(record.observation)
        self._evidence |= {m[2]: path for path in files if (m := EVIDENCE_JSON.fullmatch(path))}
        if record.source is not None:
            _remember(self._sources, done.n, record.source)
        if record.proof is not None:
            _remember(self._proofs, done.n, record.proof)

    def _require_own_tip(self) -> None:
        """Raise RunCorrupt unless the newest commit is the newest round's: on an edited history nothing is built."""
        newest = next(self._store.log(MAIN, limit=1))
        said, expected = newest.trailers.get("Round"), str(self.next - 1) if self._rounds else None
        if said != expected:
            raise RunCorrupt(
                f"{self.path}: the newest commit, {newest.sha[:12]}, is not that of "
                + (f"round {expected}" if expected else "the start")
                + ": the history was edited after the fact",
                FSCK,
            )

    def _repair(self) -> None:
        """Finish what a killed process had begun after its last commit."""
        for wip in sorted((self._store.gitdir / "tilewright" / "wip").glob("*.jsonl")):
            if wip.stem.isdecimal() and int(wip.stem) < self.next:
                wip.unlink()
        if self._rounds:
            best = self._store.tip(BEST)
            at = next(iter(self._store.log(BEST, limit=1)), None) if best else None
            if at is None or at.trailers.get("Round") != str(self.best.n):
                self._store.point(BEST, self._commit_of(self.best.n))
        missing = mirror.missing(self._store.path, self._tree.files, self.next)
        if missing:
            mirror.write(self._store.path, self._raw(missing))

    def _commit_of(self, n: int) -> str:
        for entry in self._store.log(MAIN):
            if entry.trailers.get("Round") == str(n):
                return entry.sha
        raise RunCorrupt(f"{self.path}: no commit says that it is round {n}", FSCK)

    def _raw(self, paths: Sequence[str]) -> dict[str, bytes]:
        blobs = self._store.blobs([self._tree.files[path] for path in paths])
        return {path: data for path, (_, data) in zip(paths, blobs, strict=True) if data is not None}

    def _wip(self, n: int) -> Path:
        return self._store.gitdir / "tilewright" / "wip" / f"{n}.jsonl"

    def _writer(self) -> Lock:
        if self._lock is None:
            raise RunProblem(f"{self.path} was opened for reading, or is closed", "open it with write=True")
        return self._lock


def _remember(cache: dict[int, T], n: int, thing: T) -> None:
    """Keep `thing`, and forget the oldest where there are too many."""
    cache[n] = thing
    if len(cache) > CACHED:
        del cache[next(iter(cache))]


def _require_unused(path: Path) -> None:
    """Raise RunProblem unless a run can be made at `path`: nothing is there, or a creation that was cut off."""
    remedy = "choose another directory, or go on with it: `tilewright resume`"
    try:
        there = sorted(p.name for p in path.iterdir())
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise RunProblem(f"{path} is a file", "choose another directory") from None
    except OSError as error:
        raise os_problem(error, f"{path}: could not look into it") from error
    if there == [".git"] and (path / ".git" / "tilewright").is_dir():
        if not any((path / ".git" / name).exists() for name in (MAIN, "packed-refs")):
            return
        raise RunProblem(f"{path} holds a run already", remedy)
    if there:
        some = ", ".join(there[:3]) + ("…" if len(there) > 3 else "")
        run = (path / ".git" / "tilewright").is_dir()
        raise RunProblem(
            f"{path} holds a run already" if run else f"{path} is not empty ({some})",
            remedy if run else "choose a directory that is empty or does not exist",
        )
