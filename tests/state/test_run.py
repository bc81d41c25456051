"""A run keeps what was finished, whatever happens to the process, the lock, the disk or the work tree."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.harness.errors import RunCorrupt, RunProblem
from tilewright.harness.gitstore import Store
from tilewright.harness.runs.fsck import fsck
from tilewright.harness.runs.interrupts import uninterrupted
from tilewright.harness.runs.state import Run
from tilewright.harness.types import Decision, Record, Round, Settings, Target, Task

Create = Callable[[Path], Run]
Make = Callable[..., Record]
Fill = Callable[..., None]
MAIN, BEST = "refs/heads/main", "refs/tilewright/best"

MESSAGE = """\
round 2: kept single-pass-rows (PASS, 3.000 times the start's speed, predicted)

Round: 2
Parent-Round: 0
Direction: data-reuse
Strategy: single-pass-rows
Verdict: PASS
Decision: kept
Predicted-Ratio: 3.0000
Time: modelled
Correct: interpreter
Level: L1
Candidate-SHA256: {candidate}
Observation: {observation}
"""


def git(path: Path, *args: str) -> str:
    return subprocess.run(["git", "-C", path, *args], capture_output=True, text=True, check=True).stdout


def test_a_new_run_holds_the_task_byte_for_byte_and_what_was_decided(
    tmp_path: Path, task: Task, target: Target, settings: Settings
) -> None:
    odd = b"\xff\r\n\0 not text"
    Run.create(tmp_path / "run", task, target, settings, {"copy.py": task.source.encode(), "data/odd.bin": odd}).close()
    with Run.open(tmp_path / "run", write=False) as run:
        assert (run.task, run.target, run.settings, run.next) == (task, target, settings, 0)
    assert Store(tmp_path / "run").read(MAIN, "task/data/odd.bin") == odd
    assert (tmp_path / "run" / "task" / "data" / "odd.bin").read_bytes() == odd


def test_rounds_are_read_back_as_they_were_committed(tmp_path: Path, create: Create, make: Make) -> None:
    with create(tmp_path) as run:
        records = []
        for n in range(4):
            records.append(make(n, kept=n == 2, before=run.rounds))
            assert run.commit(records[-1]) == records[-1].round
        writer = (list(run.rounds), run.best, list(run.observations))
    with Run.open(tmp_path, write=False) as run:
        assert (list(run.rounds), run.best, list(run.observations)) == writer
        assert list(run.rounds) == [r.round for r in records]
        assert run.best.n == 2
        assert list(run.observations) == [r.observation for r in records[1:]]
        assert [run.source(n) for n in range(4)] == [r.source for r in records]
        assert [run.proof(n) for n in range(4)] == [r.proof for r in records]
        assert run.evidence(records[3].evidence[0].key) == records[3].evidence[0]
        assert run.evidence("0" * 64) is None
        with pytest.raises(KeyError):
            run.source(4)
    assert (tmp_path / "candidate.py").read_text() == records[2].source
    assert git(tmp_path, "status", "--porcelain") == ""


def test_observations_grow_with_the_run_that_is_open(tmp_path: Path, create: Create, fill: Fill) -> None:
    with create(tmp_path) as run:
        fill(run, 2)
        assert len(run.observations) == 1
        fill(run, 4)
        assert [o.round for o in run.observations] == [1, 2, 3]


def test_the_commit_says_what_the_round_did(tmp_path: Path, create: Create, fill: Fill) -> None:
    with create(tmp_path) as run:
        fill(run, 4)
        expected = MESSAGE.format(candidate=run.rounds[2].candidate, observation=run.observations[1].digest)
        assert git(tmp_path, "show", "-s", "--format=%B", BEST).rstrip("\n") + "\n" == expected
        subjects = git(tmp_path, "log", "--reverse", "--format=%s").splitlines()
    assert subjects == [
        "Start on copy rows for cuda:90",
        "round 0: the baseline (PASS, 1.000 times the start's speed, predicted)",
        "round 1: discarded single-pass-rows (PASS, 0.990 times the start's speed, predicted)",
        "round 2: kept single-pass-rows (PASS, 3.000 times the start's speed, predicted)",
        "round 3: discarded single-pass-rows (PASS, 0.990 times the start's speed, predicted)",
    ]


def test_a_strategy_cannot_forge_a_trailer(tmp_path: Path, create: Create, make: Make, fill: Fill) -> None:
    with create(tmp_path) as run:
        fill(run, 1)
        record = make(1)
        assert record.round.move is not None
        forged = replace(record.round.move, strategy="x\nVerdict: FAIL\n\nRound: 9")
        run.commit(replace(record, round=replace(record.round, move=forged), observation=None))
    trailers = git(tmp_path, "log", "-1", "--format=%(trailers:key=Round,key=Verdict)").split("\n")
    assert trailers[:2] == ["Round: 1", "Verdict: PASS"]


def test_a_large_answer_is_stored_compressed_once_and_comes_back_whole(
    tmp_path: Path, create: Create, make: Make, fill: Fill
) -> None:
    big = {"ir": "%0 = arith.addf\n" * 30_000}
    with create(tmp_path) as run:
        fill(run, 1)
        record = make(1, answer=big)
        run.commit(record)
        again = make(2)
        run.commit(replace(again, evidence=record.evidence))
        assert run.evidence(record.evidence[0].key) == record.evidence[0]
    files = Store(tmp_path).files(MAIN)
    assert len([p for p in files if p.startswith("blobs/")]) == 1
    assert len([p for p in files if p.endswith(".json.ref")]) == 2
    with Run.open(tmp_path, write=False) as run:
        assert run.evidence(record.evidence[0].key) == record.evidence[0]
    assert fsck(tmp_path) == []


@pytest.mark.parametrize("what", ["file", "other", "run", "repository"])
def test_a_run_is_not_made_over_something_else(tmp_path: Path, create: Create, what: str) -> None:
    path = tmp_path / "run"
    if what == "file":
        path.write_text("mine")
    elif what == "run":
        create(path).close()
    else:
        path.mkdir()
        (path / "notes.txt").write_text("mine") if what == "other" else git(tmp_path, "init", "-q", str(path))
    before = sorted(str(p) for p in path.rglob("*"))
    with pytest.raises(RunProblem) as caught:
        create(path)
    assert str(path) in str(caught.value)
    assert caught.value.remedy
    assert sorted(str(p) for p in path.rglob("*")) == before


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("nothing", "there is nothing"),
        ("file", "it is a file"),
        ("folder", "it has no history"),
        ("repository", "it is a git repository, but not of a run"),
    ],
)
def test_what_is_no_run_is_refused_with_the_reason(tmp_path: Path, what: str, reason: str) -> None:
    path = tmp_path / "run"
    if what == "file":
        path.write_text("mine")
    elif what != "nothing":
        path.mkdir()
        if what == "repository":
            git(tmp_path, "init", "-q", str(path))
    for write in (False, True):
        with pytest.raises(RunProblem, match=f"is no run: {reason}"):
            Run.open(path, write=write)


def test_a_creation_that_was_cut_off_is_done_again(tmp_path: Path, create: Create) -> None:
    (tmp_path / ".git" / "tilewright").mkdir(parents=True)
    (tmp_path / ".git" / "tilewright" / "lock").touch()
    with pytest.raises(RunProblem, match="no commit"):
        Run.open(tmp_path, write=True)
    create(tmp_path).close()
    assert fsck(tmp_path) == []


def test_a_task_that_holds_a_secret_is_refused_before_anything_is_written(
    tmp_path: Path, task: Task, target: Target, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-0123456789")
    with pytest.raises(RunProblem, match="environment variable MY_API_KEY"):
        Run.create(tmp_path / "run", task, target, settings, {"copy.py": b"key = 'sk-0123456789'"})
    assert not (tmp_path / "run").exists()


def test_secrets_are_taken_out_of_what_a_round_says(
    tmp_path: Path, create: Create, make: Make, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-0123456789")
    with create(tmp_path) as run:
        fill(run, 1)
        record = make(1, text="")
        said = replace(record, messages=["sk-0123456789"], round=replace(record.round, note="used sk-0123456789"))
        assert run.commit(said).note == "used [secret MY_API_KEY]"
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"sk-0123456789" not in path.read_bytes()
    assert b"[secret MY_API_KEY]" in Store(tmp_path).read(MAIN, "rounds/00/0001/messages.json")
    assert fsck(tmp_path) == []


def test_only_the_next_round_can_be_begun_or_committed(tmp_path: Path, create: Create, make: Make, fill: Fill) -> None:
    with create(tmp_path) as run:
        fill(run, 2)
        with pytest.raises(ValueError, match="not the next round, 2"):
            run.commit(make(3))
        with pytest.raises(ValueError, match="not the next round, 2"), run.journal(1):
            pass
        with pytest.raises(ValueError, match="not the candidate"):
            run.commit(replace(make(2), source="something else"))
        assert run.next == 2


def test_a_reader_needs_no_lock_and_cannot_write(tmp_path: Path, create: Create, make: Make, fill: Fill) -> None:
    with create(tmp_path) as writer:
        fill(writer, 2)
        with Run.open(tmp_path, write=False) as reader:
            assert reader.next == 2
            with pytest.raises(RunProblem, match="opened for reading"):
                reader.commit(make(2))
            with pytest.raises(RunProblem, match="opened for reading"), reader.journal(2):
                pass
        fill(writer, 3)
        assert writer.next == 3


def test_a_second_writer_is_refused(tmp_path: Path, create: Create, in_child: Callable[..., Any]) -> None:
    with create(tmp_path), pytest.raises(RunProblem, match=f"held by process {os.getpid()}"):
        in_child(lambda: Run.open(tmp_path, write=True) and None)


def test_what_must_not_be_left_half_done_is_finished_before_an_interrupt_is_heard() -> None:
    done = []

    def write() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("written")

    with pytest.raises(KeyboardInterrupt):
        write()
    assert done == ["written"]


def test_a_run_that_is_interrupted_ends_with_a_whole_round(
    tmp_path: Path, create: Create, make: Make, in_child: Callable[..., Any]
) -> None:
    def commit_until_interrupted() -> None:
        with create(tmp_path) as run:
            # Held by a name: an interrupt that comes within an object's finaliser is lost to Python.
            killer = subprocess.Popen(["sh", "-c", f"kill -INT {os.getpid()}"], start_new_session=True)
            while run.next < 500:
                run.commit(make(run.next))
            killer.wait()

    with pytest.raises(KeyboardInterrupt):
        in_child(commit_until_interrupted)
    with Run.open(tmp_path, write=True) as run:
        assert [r.n for r in run.rounds] == list(range(run.next))
    assert fsck(tmp_path) == []
    assert git(tmp_path, "status", "--porcelain") == ""


def test_a_disk_that_is_full_loses_nothing_finished_and_keeps_the_journal(
    tmp_path: Path, create: Create, make: Make, fill: Fill, in_child: Callable[..., Any]
) -> None:
    with create(tmp_path) as run:
        fill(run, 2)

    async def answer() -> str:
        return "paid for"

    def overflow() -> None:
        with Run.open(tmp_path, write=True) as run, run.journal(2) as journal:
            asyncio.run(journal.once("ask", str, answer))
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
            noise = [os.urandom(1 << 16).hex() for _ in range(2)]  # does not compress below the limit
            run.commit(make(2, answer=noise))

    with pytest.raises(RunProblem, match="could not commit") as caught:
        in_child(overflow)
    assert "tilewright resume" in caught.value.remedy
    with Run.open(tmp_path, write=True) as run:
        assert run.next == 2
        with run.journal(2) as journal:
            assert journal.keys == ("ask",)
        fill(run, 3)
    assert fsck(tmp_path) == []


def test_a_read_only_run_can_be_read_and_says_why_it_cannot_be_written(
    open_folder: Path, create: Create, fill: Fill, in_child: Callable[..., Any]
) -> None:
    path = open_folder / "run"
    with create(path) as run:
        fill(run, 3)
    for at in [path, *path.rglob("*")]:
        at.chmod(0o555 if at.is_dir() else 0o444)
    assert in_child(lambda: Run.open(path, write=False).best.n, nobody=True) == 2
    with pytest.raises(RunProblem, match="Permission denied") as caught:
        in_child(lambda: Run.open(path, write=True) and None, nobody=True)
    assert "permissions" in caught.value.remedy
    open_folder.chmod(0o555)
    with pytest.raises(RunProblem, match="could not make the run directory: Permission denied"):
        in_child(lambda: create(open_folder / "another") and None, nobody=True)


def test_a_run_that_may_not_be_looked_into_is_a_problem(
    open_folder: Path, create: Create, in_child: Callable[..., Any]
) -> None:
    create(open_folder / "shut" / "run").close()
    (open_folder / "shut").chmod(0o700 if os.geteuid() == 0 else 0)
    with pytest.raises(RunProblem, match="could not look into it: Permission denied"):
        in_child(lambda: Run.open(open_folder / "shut" / "run", write=False) and None, nobody=True)
    (open_folder / "shut").chmod(0o700)


def test_a_history_that_somebody_went_on_with_is_read_but_not_built_on(
    tmp_path: Path, create: Create, fill: Fill
) -> None:
    with create(tmp_path) as run:
        fill(run, 3)
    store = Store(tmp_path)
    store.append(MAIN, store.tip(MAIN), "a note of my own", {"notes.txt": b"mine"})
    assert Run.open(tmp_path, write=False).next == 3
    with pytest.raises(RunCorrupt, match="is not that of round 2: the history was edited") as caught:
        Run.open(tmp_path, write=True)
    assert "fsck" in caught.value.remedy
    git(tmp_path, "reset", "--hard", "HEAD~1")
    Run.open(tmp_path, write=True).close()


def test_a_round_that_is_missing_is_a_named_corruption(tmp_path: Path, create: Create, fill: Fill) -> None:
    with create(tmp_path) as run:
        fill(run, 3)
    store = Store(tmp_path)
    store.append(MAIN, store.tip(MAIN), "lost", {}, deletes=["rounds/00/0001"])
    with pytest.raises(RunCorrupt, match="round 1 is missing, though there is a round 2") as caught:
        Run.open(tmp_path, write=False)
    assert "fsck" in caught.value.remedy


steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.booleans()),
        st.tuples(st.just("reopen"), st.booleans()),
        st.tuples(st.just("kill"), st.sampled_from(["idle", "journal", "committed", "mirrored"])),
    ),
    min_size=2,
    max_size=7,
)


@given(steps)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_done_and_wherever_it_is_killed_every_finished_round_stays(
    create: Create, make: Make, in_child: Callable[..., Any], steps: list[tuple[str, Any]]
) -> None:
    """The model is a list of rounds. `kill` is a real SIGKILL of a process that holds the run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        run = create(path)
        model: list[Round] = []

        async def answer() -> int:
            return len(model)

        for what, how in steps:
            if what == "commit":
                model.append(run.commit(make(run.next, kept=how, before=run.rounds)))
                continue
            run.close()
            if what == "kill":
                n, record = len(model), make(len(model), kept=True, before=model)

                def die(how: str = how, record: Record = record, n: int = n) -> None:
                    own = Run.open(path, write=True)
                    with own.journal(n) as journal:
                        if how != "idle":
                            asyncio.run(journal.once("ask", int, answer))
                        if how in ("committed", "mirrored"):
                            wip = (path / f".git/tilewright/wip/{n}.jsonl").read_bytes()
                            stale = (path / "candidate.py").read_bytes() if n else None
                            best = Store(path).tip(BEST)
                            own.commit(record)
                            # What stood there an instant before: killed right after git's commit.
                            (path / f".git/tilewright/wip/{n}.jsonl").write_bytes(wip)
                            if how == "committed":
                                (path / f"rounds/00/{n:04d}/round.json").unlink()
                                if stale is not None and best:
                                    (path / "candidate.py").write_bytes(stale)
                                    Store(path).point(BEST, best)
                                for name in (MAIN, BEST, "HEAD"):
                                    (path / f".git/{name}.lock").touch()
                        os.kill(os.getpid(), signal.SIGKILL)

                assert in_child(die) is None
                if how in ("committed", "mirrored"):
                    model.append(record.round)
            run = Run.open(path, write=True)
            assert list(run.rounds) == model
            if what == "kill" and how == "journal":
                with run.journal(len(model)) as journal:
                    assert journal.keys == ("ask",)
        run.close()
        assert fsck(path) == []
        kept = [r.n for r in model if r.decision is Decision.KEPT]
        if model:
            assert run.best.n == (kept[-1] if kept else 0)
            assert (path / "candidate.py").read_text() == run.source(run.best.n)
        assert git(path, "status", "--porcelain") == ""
