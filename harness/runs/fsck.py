"""Check a run's history against itself: nothing missing, nothing edited, nothing that does not follow."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tilewright.harness.errors import Problem, RunCorrupt
from tilewright.harness.gitstore import Entry, Store
from tilewright.harness.observe import faster, observe
from tilewright.harness.runs.journal import parse
from tilewright.harness.runs.layout import (
    BEST,
    MAIN,
    Header,
    Judgement,
    evidence_name,
    folder,
    trailers,
)
from tilewright.harness.runs.reading import Tree, best_of, decode, read_header, require_run
from tilewright.harness.types import Evidence, Observation, Round, sha256

T = TypeVar("T")
Fold = Callable[[Sequence[Observation]], Sequence[str]]
"""Folds a run's observations in different orders; returns what differs, a sentence each (memory's own check)."""

RESTORE = "restore this part of the run from a copy"
UNDO = "the history was edited after the fact: `git reset` it to the last commit before that, then resume"
RESUME = "opening the run for writing puts it right: `tilewright resume`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with a run."""

    where: str
    """A file, a ref or a commit."""
    what: str
    remedy: str
    fatal: bool = True
    """False: a warning; the history is sound, only something that follows from it is not."""


def fsck(path: str | Path, fold: Fold | None = None) -> list[Finding]:
    """Everything that is wrong with the run at `path`; an empty list: it is sound.

    Reads only, and needs no lock. Damage is reported, never raised; RunProblem only where `path` is no run.
    """
    store = require_run(Path(path))
    findings = [Finding(where="git", what=line, remedy=RESTORE) for line in store.check()]
    tip = store.tip(MAIN)
    if tip is None:
        what = "there is no readable commit: it is damaged, or making the run was interrupted"
        return [*findings, Finding(where=MAIN, what=what, remedy=RESTORE)]
    try:
        check = _Check(store, Tree(store, tip), list(store.log(tip, changes=True)))
    except RunCorrupt as corrupt:
        return [*findings, Finding(where=MAIN, what=str(corrupt), remedy=RESTORE)]
    check.header()
    check.history()
    check.contents()
    check.derived(fold)
    check.journals()
    return findings + check.found


class _Check:
    """One pass over a history that can be followed; `found` is what is wrong."""

    def __init__(self, store: Store, tree: Tree, commits: list[Entry]) -> None:
        self.store, self.tree, self.commits = store, tree, commits
        self.found: list[Finding] = []
        self.head: Header | None = None
        self.rounds: dict[int, Round] = {}
        self.observations: dict[int, Observation] = {}
        self.differing: list[str] = []
        self.missing = 0

    def bad(self, where: str, what: str, remedy: str = UNDO, *, fatal: bool = True) -> None:
        self.found.append(Finding(where=where, what=what, remedy=remedy, fatal=fatal))

    def noun(self, kind: type[T], held: dict[str, bytes], path: str) -> T | None:
        """The noun in a file, None where there is none to be read, which is then among the findings."""
        if path not in held:
            if f"{path}.ref" not in self.tree.files and path not in self.tree.files:
                self.bad(path, "it is missing", RESTORE)
            return None  # a file that is there but cannot be read has been reported already
        try:
            return decode(kind, held[path], path)
        except RunCorrupt as corrupt:
            self.bad(path, str(corrupt))
            return None

    # --- the history -----------------------------------------------------------------------------------

    def header(self) -> None:
        """run.json says what the run is."""
        try:
            self.head = read_header(self.tree)
        except Problem as problem:
            self.bad("run.json", str(problem), problem.remedy or RESTORE)

    def history(self) -> None:
        """One commit a round, counting up from 0; none touches another's files."""
        for expected, entry in enumerate(self.commits, start=-1):
            name, number = f"commit {entry.sha[:12]}", entry.trailers.get("Round")
            if expected < 0:
                if number is not None:
                    self.bad(name, f"the first commit should start the run, it says round {number}")
                continue
            if number != str(expected):
                said = f"round {number}" if number else f"no round (`{entry.subject}`)"
                self.bad(name, f"it should be round {expected}, it says {said}")
            own = f"{folder(int(number))}/" if number and number.isdecimal() else "-"
            for status, path in entry.changed:
                if path != "candidate.py" and not (status == "A" and path.startswith((own, "blobs/"))):
                    word = {"A": "adds", "M": "changes", "D": "deletes"}.get(status, "touches")
                    self.bad(name, f"it {word} {path}, which is not its own")

    # --- the files -------------------------------------------------------------------------------------

    def contents(self) -> None:
        """Every file can be read, and says what the others say."""
        paths = sorted(self.tree.files, key=lambda p: (p.startswith("rounds/"), p))
        blobs = self.store.blobs([self.tree.files[p] for p in paths])
        pairs = ((path, oid, data) for path, (oid, data) in zip(paths, blobs, strict=True))
        shared: dict[str, bytes] = {}
        seen: set[int] = set()
        for at, group in itertools.groupby(pairs, key=lambda pair: _folder_of(pair[0])):
            held = self.held(group)
            n = int(at.rpartition("/")[2]) if at[-4:].isdecimal() else -1
            if not at:
                shared = held
            elif n < 0 or at != folder(n):
                self.bad(at, "a folder of this name belongs to no round")
            else:
                seen.add(n)
                self.round(n, held)
        for path, data in shared.items():
            if path.startswith("blobs/"):
                self.blob(path, data)
        for n in sorted(set(range(max(seen, default=-1))) - seen):
            self.bad(folder(n), f"round {n} is missing, though there is a round {max(seen)}", RESTORE)
        best = best_of([self.rounds[n] for n in sorted(self.rounds)]) if self.rounds else None
        if best and best.candidate and sha256(shared.get("candidate.py", b"")) != best.candidate:
            self.bad("candidate.py", f"it is not the best candidate, that of round {best.n}")
        if self.missing or self.differing:
            some = f" ({', '.join(self.differing[:3])})" if self.differing else ""
            what = f"{self.missing} copies of files are missing, {len(self.differing)} differ from the history{some}"
            self.bad("the work tree", what, "`git checkout -- .` in the run makes them anew", fatal=False)

    def held(self, group: Iterable[tuple[str, str, bytes | None]]) -> dict[str, bytes]:
        """The contents of (path, blob, data) by path without `.ref`; what cannot be read is reported and left out."""
        held = {}
        for path, oid, data in group:
            if data is None:
                self.bad(path, f"git blob {oid[:12]} is missing or damaged", RESTORE)
                continue
            self.mirrored(path, data)
            if path.endswith(".ref"):
                try:
                    held[path.removesuffix(".ref")] = self.tree.read(path)
                except RunCorrupt as corrupt:
                    self.bad(path, str(corrupt), RESTORE)
            else:
                held[path] = data
        return held

    def mirrored(self, path: str, data: bytes) -> None:
        try:
            if (self.store.path / path).read_bytes() != data:
                self.differing.append(path)
        except OSError:
            self.missing += 1

    def blob(self, path: str, data: bytes) -> None:
        try:
            if sha256(zlib.decompress(data)) == path.removeprefix("blobs/").removesuffix(".z"):
                return
            self.bad(path, "its content is not what its name says")
        except zlib.error as error:
            self.bad(path, f"it cannot be unpacked: {error}")

    def round(self, n: int, held: dict[str, bytes]) -> None:
        """A round's files agree with its round.json."""
        at = folder(n)
        done = self.noun(Round, held, f"{at}/round.json")
        if done is None:
            return
        if done.n != n:
            self.bad(f"{at}/round.json", f"it says that it is round {done.n}")
            return
        self.rounds[n] = done
        if (done.parent is None) != (n == 0) or (done.parent is not None and not 0 <= done.parent < n):
            self.bad(f"{at}/round.json", f"its parent, {done.parent}, is no earlier round")
        source = held.get(f"{at}/candidate.py")
        found = sha256(source) if source is not None else None
        if found != done.candidate and f"{at}/candidate.py" not in {f.where for f in self.found}:
            self.bad(f"{at}/candidate.py", f"its SHA-256 is {found}, and the verdict is on {done.candidate}")
        judged = self.noun(Judgement, held, f"{at}/verdict.json")
        if judged and judged.verdict != done.verdict:
            self.bad(f"{at}/verdict.json", "its verdict is not the one in round.json")
        if judged and judged.proof and judged.proof.candidate != done.candidate:
            self.bad(f"{at}/verdict.json", f"its proof is of {judged.proof.candidate}, not of {done.candidate}")
        self.batch(done, held)
        if f"{at}/observation.json" in held:
            seen = self.noun(Observation, held, f"{at}/observation.json")
            if seen:
                self.observations[n] = seen

    def batch(self, done: Round, held: dict[str, bytes]) -> None:
        """Evidence and the batch's other candidates are what their names say, and the round names them."""
        at = folder(done.n)
        names = {p.rpartition("/")[2].removesuffix(".json"): p for p in held if p.startswith(f"{at}/evidence/")}
        for name, path in names.items():
            answer = self.noun(Evidence, held, path)
            if answer and evidence_name(answer) != name:
                self.bad(path, "it answers another question than its name says")
        for name in dict.fromkeys((*names, *done.evidence)):
            path = f"{at}/evidence/{name}.json"
            if name not in done.evidence:
                self.bad(path, "round.json does not name it")
            elif not {path, f"{path}.ref"} & self.tree.files.keys():
                self.bad(path, "it is missing, though round.json names it", RESTORE)
        trials = {t.candidate[:12] for t in done.trials}
        for path in held:
            if path.startswith(f"{at}/trials/"):
                name = path.rpartition("/")[2].removesuffix(".py")
                if sha256(held[path])[:12] != name or (trials and name not in trials):
                    self.bad(path, "it is not the candidate that its name says, or none that was tried")

    # --- what follows from the rounds ------------------------------------------------------------------

    def derived(self, fold: Fold | None) -> None:
        """Trailers, observations, memory and the best ref follow from the rounds."""
        by_number = {entry.trailers.get("Round"): entry for entry in self.commits}
        whole = list(range(len(self.rounds))) == sorted(self.rounds)
        rounds = [self.rounds[n] for n in sorted(self.rounds)]
        fastest_us: float | None = None
        for done in rounds:
            entry = by_number.get(str(done.n))
            if entry is None:
                self.bad(folder(done.n), f"no commit says that it is round {done.n}")
            else:
                self.told(done, entry)
            if whole and self.head:
                self.observed(done, rounds, self.head, fastest_us)
            fastest_us = faster(fastest_us, done)
        if fold and whole:
            for what in fold([self.observations[n] for n in sorted(self.observations)]):
                self.bad("memory", what, "report it: the fold must not depend on the order of its input")
        if whole and rounds:
            best, at = best_of(rounds), self.store.tip(BEST)
            entry = by_number.get(str(best.n))
            if entry and at != entry.sha:
                stands = f"stands at {at[:12]}" if at else "is missing"
                self.bad(BEST, f"it {stands}, round {best.n} is {entry.sha[:12]}", RESUME, fatal=False)

    def told(self, done: Round, entry: Entry) -> None:
        expected = trailers(done, self.observations.get(done.n))
        for name in dict.fromkeys((*expected, *entry.trailers)):
            want, have = expected.get(name), entry.trailers.get(name)
            if want != have:
                self.bad(f"commit {entry.sha[:12]}", f"its trailer {name} is {have}, the round's files say {want}")

    def observed(self, done: Round, rounds: list[Round], head: Header, fastest_us: float | None) -> None:
        try:
            want = observe(head.task, head.target, head.settings, rounds, done, fastest_us)
        except (ValueError, ArithmeticError, LookupError) as error:
            self.bad(f"{folder(done.n)}/round.json", f"no observation can be derived from it: {error}")
            return
        if want != self.observations.get(done.n):
            self.bad(f"{folder(done.n)}/observation.json", "it is not what the rounds say")

    def journals(self) -> None:
        """The write-ahead file belongs to the next round and can be read."""
        for path in sorted((self.store.gitdir / "tilewright" / "wip").glob("*")):
            where = f".git/tilewright/wip/{path.name}"
            try:
                parse(path.read_bytes(), path)
            except (RunCorrupt, OSError) as error:
                self.bad(where, str(error), f"delete it to do the round in progress again: rm {path}")
                continue
            if path.name != f"{len(self.rounds)}.jsonl":
                self.bad(where, f"the next round is {len(self.rounds)}, not this one", RESUME, fatal=False)


def _folder_of(path: str) -> str:
    """The round's folder that a file is in, or nothing for a file of the whole run."""
    parts = path.split("/")
    return "/".join(parts[:3]) if parts[0] == "rounds" else ""
