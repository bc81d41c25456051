"""What people ask of a run: its log, one round, the difference of two. Data only; the command line draws it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tilewright.harness.errors import RunProblem
from tilewright.harness.gitstore import Entry
from tilewright.harness.runs.layout import MAIN, Judgement, folder
from tilewright.harness.runs.reading import Tree, best_of, decode, read_header, read_rounds, require_run
from tilewright.harness.types import Evidence, Observation, Proof, Round, Settings, Target, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """One round, from its commit's trailers alone. Empty where the round has nothing to say."""

    n: int
    parent: int | None
    direction: str
    strategy: str
    verdict: str
    """A `Status`, as text."""
    failure: str
    decision: str
    ratio: float | None
    """Start over candidate, by the kind of time that `time` names: a ratio of modelled times is a prediction."""
    time: str
    """A `How`: measured, modelled, not-checked."""
    correct: str
    """A `How`: measured, interpreter, not-checked."""
    level: str
    candidate: str
    """SHA-256, or empty."""
    commit: str
    when_s: int
    """Seconds since the epoch."""
    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run as a whole."""

    path: str
    task: Task
    target: Target
    settings: Settings
    rounds: int
    """Finished rounds, the baseline included."""
    kept: tuple[int, ...]
    """Numbers of the rounds that were kept, the baseline among them when it passed."""
    best: Round | None
    in_progress: bool
    """A round was begun and its answers so far are in the journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """One round with all that was written about it."""

    round: Round
    commit: str
    source: str | None
    parent_source: str | None
    proof: Proof | None
    evidence: tuple[Evidence, ...]
    observation: Observation | None


def log(path: str | Path) -> Iterator[LogRow]:
    """The rounds of the run at `path`, oldest first. Raises RunProblem where it is no run, RunCorrupt where damaged."""
    store = require_run(Path(path))
    if store.tip(MAIN) is None:
        raise RunProblem(f"{path}: the run has no readable commit", "`tilewright fsck` says what is damaged")
    return (_row(entry) for entry in store.log(MAIN) if entry.trailers.get("Round", "").isdecimal())


def _row(entry: Entry) -> LogRow:
    said = entry.trailers
    parent, ratio = said.get("Parent-Round"), said.get("Speedup") or said.get("Predicted-Ratio")
    return LogRow(
        n=int(said["Round"]),
        parent=int(parent) if parent else None,
        direction=said.get("Direction", ""),
        strategy=said.get("Strategy", ""),
        verdict=said.get("Verdict", ""),
        failure=said.get("Failure", ""),
        decision=said.get("Decision", ""),
        ratio=float(ratio) if ratio else None,
        time=said.get("Time", ""),
        correct=said.get("Correct", ""),
        level=said.get("Level", ""),
        candidate=said.get("Candidate-SHA256", ""),
        commit=entry.sha,
        when_s=entry.when_s,
        subject=entry.subject,
    )


def summary(path: str | Path) -> Summary:
    """The run at `path` as a whole. Raises as `log`."""
    reader = Reader(path)
    rounds = reader.rounds
    wip = reader.tree.store.gitdir / "tilewright" / "wip" / f"{len(rounds)}.jsonl"
    return Summary(
        path=str(path),
        task=reader.header.task,
        target=reader.header.target,
        settings=reader.header.settings,
        rounds=len(rounds),
        kept=tuple(r.n for r in rounds if r.decision == "kept"),
        best=best_of(rounds) if rounds else None,
        in_progress=wip.exists() and wip.stat().st_size > 0,
    )


def show(path: str | Path, n: int) -> Detail:
    """Round `n` of the run at `path`. Raises as `log`, and RunProblem where there is no such round."""
    reader = Reader(path)
    done, at, tree = reader.round(n), folder(n), reader.tree
    parent = reader.rounds[done.parent] if done.parent is not None else None
    names = [f"{at}/evidence/{key}.json" for key in done.evidence]
    seen = f"{at}/observation.json"
    commits = (e.sha for e in tree.store.log(MAIN) if e.trailers.get("Round") == str(n))
    return Detail(
        round=done,
        commit=next(commits, ""),
        source=reader.source(done),
        parent_source=reader.source(parent) if parent else None,
        proof=reader.proof(n),
        evidence=tuple(decode(Evidence, data, name) for name, data in tree.read_all(names)),
        observation=decode(Observation, tree.read(seen), seen) if seen in tree.files else None,
    )


def diff(path: str | Path, a: int, b: int) -> str:
    """The unified diff from round `a`'s candidate to round `b`'s; empty where they are equal. Raises as `show`."""
    reader = Reader(path)
    before, after = _lines(reader, a), _lines(reader, b)
    lines = difflib.unified_diff(before, after, f"round {a}/candidate.py", f"round {b}/candidate.py")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


class Reader:
    """A run read at its tip, without a lock. Raises as `log` when made."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        store = require_run(Path(path))
        tip = store.tip(MAIN)
        if tip is None:
            raise RunProblem(f"{path}: the run has no readable commit", "`tilewright fsck` says what is damaged")
        self.tree = Tree(store, tip)
        self.header = read_header(self.tree)
        self.rounds = read_rounds(self.tree)

    def round(self, n: int) -> Round:
        """Round `n`. Raises RunProblem where there is none."""
        if not 0 <= n < len(self.rounds):
            have = f"0 to {len(self.rounds) - 1}" if self.rounds else "no rounds yet"
            raise RunProblem(f"{self.path} has no round {n}", f"it has {have}")
        return self.rounds[n]

    def source(self, done: Round) -> str | None:
        """A round's candidate, or None where it has none."""
        return None if done.candidate is None else self.tree.read(f"{folder(done.n)}/candidate.py").decode()

    def proof(self, n: int) -> Proof | None:
        """What stands behind round `n`'s verdict, or None where nothing was judged."""
        path = f"{folder(n)}/verdict.json"
        return decode(Judgement, self.tree.read(path), path).proof


def _lines(reader: Reader, n: int) -> list[str]:
    source = reader.source(reader.round(n))
    if source is None:
        raise RunProblem(
            f"{reader.path}: round {n} has no candidate", "`tilewright log` lists the rounds that have one"
        )
    return source.splitlines(keepends=True)
