"""Kill runs with SIGKILL at random instants, resume them, and compare with runs that nobody disturbed.

    python benchmarks/kill.py [--scripted 180] [--real 20] [--seed 0] [--task examples/softmax.py]

A scripted kill hits a child process that runs the real loop with a scripted planner and judge; a real one hits a
whole `tilewright optimize` process group. Instants are drawn uniformly over the run, or aimed: at a journal entry
just written, at a git that is committing, at a ref just moved. Every other scripted kill takes git down with its
parent, as a power cut would. After each kill the history must hold every round that was reported finished,
unchanged, and fsck must find nothing; in the end the decisions must be those of the undisturbed run, and nothing
that the journal held may have been judged again. Writes benchmarks/results/kill.json.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import record
import synthetic
from rich.console import Console
from rich.table import Table

from tilewright.harness import codec
from tilewright.harness.gitstore import Store
from tilewright.harness.judge.scripted import ScriptedJudge
from tilewright.harness.loop import Event, Finished
from tilewright.harness.runs.fsck import fsck
from tilewright.harness.runs.journal import parse
from tilewright.harness.runs.layout import MAIN
from tilewright.harness.runs.lock import Lock
from tilewright.harness.runs.state import Run
from tilewright.harness.types import Candidate, Judged, Task

ROUNDS, KILLS_A_RUN = 14, 6
REAL_ROUNDS, REAL_KILLS_A_RUN = 3, 5
AIMS = ("uniform", "journal", "git", "ref")
TARGETS = {"kills": 200, "lost_rounds": 0, "fsck_failures": 0, "decision_mismatches": 0, "repeated_verdicts": 0}
PATIENCE_S = 60.0


class LoggedJudge(ScriptedJudge):
    """Notes each verdict that is really made in a file, before it is made."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def _one(self, task: Task, candidate: Candidate) -> Judged:
        os.write(self.fd, f"{candidate.digest}\n".encode())
        return await super()._one(task, candidate)


# --- scripted ------------------------------------------------------------------------------------------


def start(path: Path, seed: int, log: Path) -> tuple[int, int]:
    """Fork a child that makes or resumes a run; return its pid and a pipe on which it names finished rounds."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        os.set_blocking(reader, False)
        return pid, reader
    status = 1
    try:
        os.close(reader)

        def tell(event: Event) -> None:
            if isinstance(event, Finished):
                os.write(writer, f"{event.round.n}\n".encode())

        synthetic.go(path, seed=seed, rounds=ROUNDS, judge=LoggedJudge(log), tell=tell)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still run."""
    with contextlib.suppress(OSError):
        return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def wait_for(pid: int, seen: Callable[[], Any], times: int, until: float) -> None:
    """Return when what `seen` sees has changed `times` times, when `until` has come, or when `pid` has ended."""
    before = seen()
    while times and time.monotonic() < until:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        now = seen()
        if now != before:
            before, times = now, times - 1


def kill_at(pid: int, path: Path, aim: str, whole_s: float, draw: random.Random, git_too: bool) -> bool:
    """Kill a scripted child at the instant that `aim` says; False where it had ended by itself."""
    wip, ref = path / ".git" / "tilewright" / "wip", path / ".git" / MAIN
    until = time.monotonic() + PATIENCE_S

    def journal() -> Any:
        with contextlib.suppress(OSError):
            return [(e.name, e.stat().st_size) for e in os.scandir(wip)]
        return None

    def moved() -> Any:
        with contextlib.suppress(OSError):
            return ref.stat().st_mtime_ns
        return None

    match aim:
        case "uniform":
            wait_for(pid, lambda: None, 1, time.monotonic() + draw.uniform(0, whole_s))
        case "journal":
            wait_for(pid, journal, draw.randint(1, 30), until)
        case "git":
            wait_for(pid, lambda: bool(children(pid)), 2 * draw.randint(1, 8) - 1, until)
            time.sleep(draw.uniform(0, 0.008))
        case "ref":
            wait_for(pid, moved, draw.randint(1, 6), until)
            time.sleep(draw.choice([0, 0, draw.uniform(0, 0.003)]))
    if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        return False
    if git_too:
        os.kill(pid, signal.SIGSTOP)  # so that it starts no other one meanwhile
        for child in children(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    return True


def scripted(kills: int, seed: int, folder: Path, count: Counter[str], samples: list[dict[str, Any]]) -> None:
    """Kill scripted runs until there are `kills`."""
    draw, number = random.Random(seed), 0
    while count["scripted"] < kills:
        number += 1
        calm, path, log = folder / f"calm-{number}", folder / f"run-{number}", folder / f"log-{number}"
        began = time.monotonic()
        require_end(*start(calm, number, folder / "log-calm"))
        whole_s = time.monotonic() - began
        seen: list[Seen] = []
        for nth in range(min(KILLS_A_RUN, kills - count["scripted"])):
            aim, git_too = draw.choice(AIMS), bool(draw.getrandbits(1))
            pid, reader = start(path, number, log)
            if not kill_at(pid, path, aim, whole_s / (1 + nth), draw, git_too):
                require_end(pid, reader)
                break
            os.waitpid(pid, 0)
            seen.append(look(path, {int(n) for n in drained(reader).split()}, log))
            count.update(scripted=1, fsck_failures=bool(seen[-1].wrong), lost_rounds=len(seen[-1].lost))
            samples.append({"kind": "scripted", "run": number, "aim": aim, "git_too": git_too, **seen[-1].told()})
        require_end(*start(path, number, log))
        count.update(compare(path, calm, seen, log))


def require_end(pid: int, reader: int) -> None:
    """Wait for a child that nobody kills; end this program where it failed."""
    _, status = os.waitpid(pid, 0)
    drained(reader)
    if status:
        sys.exit(f"a run that nobody disturbed ended with status {status}")


def drained(reader: int) -> str:
    """What a child that has ended wrote."""
    with os.fdopen(reader, "rb") as pipe:
        return (pipe.read() or b"").decode()


# --- what a kill left ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """A run as it stood after a kill."""

    shas: list[str]
    lost: list[int]
    """Rounds that had been reported finished, and are not there."""
    wrong: list[str]
    """What fsck found, warnings left out."""
    left: str
    stored: set[str]
    """Candidates whose verdicts stood in the journal."""
    mark: int
    """Verdicts that had been made by then."""

    def told(self) -> dict[str, Any]:
        faults = {name: value for name, value in (("lost", self.lost), ("fsck", self.wrong)) if value}
        return {"left": self.left, "rounds": max(0, len(self.shas) - 1), **faults}


def look(path: Path, told: set[int], log: Path) -> Seen:
    """Look at a run that was just killed, when the last git of its own is through."""
    lock, store = path / ".git" / "tilewright" / "lock", Store(path)
    if lock.exists():
        Lock.take(lock).release()  # waits while the killed process's git still holds it
    shas = [e.sha for e in store.log(MAIN)] if (path / ".git").is_dir() and store.tip(MAIN) else []
    finished = len(shas) - 1
    wip = path / ".git" / "tilewright" / "wip" / f"{max(finished, 0)}.jsonl"
    stored, _ = parse(wip.read_bytes(), wip) if wip.exists() else ({}, 0)
    return Seen(
        shas=shas,
        lost=sorted(n for n in told if n >= finished),
        wrong=[f"{f.where}: {f.what}" for f in fsck(path) if f.fatal] if shas else [],
        left=left_behind(path, finished),
        stored={key.removeprefix("judge/") for key in stored if key.startswith("judge/")},
        mark=len(log.read_text().split()) if log.exists() else 0,
    )


def left_behind(path: Path, finished: int) -> str:
    """Where the kill hit, for the table: to see that kills do hit the places that matter."""
    if finished < 0:
        return "before the first commit"
    wips = sorted(int(w.stem) for w in (path / ".git" / "tilewright" / "wip").glob("*.jsonl"))
    if (path / ".git" / f"{MAIN}.lock").exists() or list((path / ".git/objects/pack").glob("tmp_*")):
        return "git cut off"
    if wips and wips[0] < finished:
        return "committed, journal not removed"
    if finished and not (path / f"rounds/00/{finished - 1:04d}/round.json").exists():
        return "committed, not copied out"
    return "round in progress" if wips else "between rounds"


def compare(path: Path, calm: Path, seen: list[Seen], log: Path | None = None) -> Counter[str]:
    """Count what the finished run has lost, decided otherwise, or done again; `calm` is the undisturbed run."""
    wrong = [f"{f.where}: {f.what}" for f in fsck(path)]
    unsound = bool(wrong)
    final = [e.sha for e in Store(path).log(MAIN)]
    rewritten = sum(final[: len(kill.shas)] != kill.shas for kill in seen)
    ours, theirs = (decisions(at, own_path=log is None) for at in (path, calm))
    nothing: dict[str, object] = {}
    pairs = list(itertools.zip_longest(ours, theirs, fillvalue=nothing))
    differing = sum(a != b for a, b in pairs)
    wrong += [f"round {n} differs in {', '.join(differ(a, b))}" for n, (a, b) in enumerate(pairs) if a != b]
    made = log.read_text().split() if log else []
    repeated = sum(len(kill.stored & set(made[kill.mark :])) for kill in seen)
    for what in wrong:
        print(f"{path.name}: {what}", file=sys.stderr)
    return Counter(
        runs=1,
        lost_rounds=rewritten,
        fsck_failures=unsound,
        decision_mismatches=differing,
        repeated_verdicts=repeated,
    )


def decisions(path: Path, *, own_path: bool) -> list[dict[str, Any]]:
    """What was decided in each round, without what the clock had a say in.

    `own_path`: also without what names the run itself (hashes of questions and of sets of observations): two real
    runs differ in these by where they are and when they began.
    """
    with Run.open(path, write=False) as run:
        rounds = [codec.plain(done) for done in run.rounds]
    for done in rounds:
        del done["cost"]
        if own_path:
            del done["evidence"]
            if done["choice"]:
                del done["choice"]["terms"]
    return rounds


def differ(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """The names under which two rounds differ, with the shorter of the values."""
    return [f"{k} ({a.get(k)!r:.80} / {b.get(k)!r:.80})" for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k)]


# --- real ----------------------------------------------------------------------------------------------


def real(kills: int, seed: int, task: Path, folder: Path, count: Counter[str], samples: list[dict[str, Any]]) -> None:
    """Kill real `tilewright optimize` and `resume` processes until there are `kills`."""
    draw, number = random.Random(seed), 0
    calm = folder / "real-calm"
    began = time.monotonic()
    launched(calm, task).communicate()
    whole_s = time.monotonic() - began
    print(f"an undisturbed run of {task.name} takes {whole_s:.0f} s", file=sys.stderr)
    while count["real"] < kills:
        number += 1
        path, seen = folder / f"real-{number}", list[Seen]()
        for nth in range(min(REAL_KILLS_A_RUN, kills - count["real"])):
            process = launched(path, task)
            after_s = draw.uniform(0, whole_s / (1 + nth / 2))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(after_s)
            if process.poll() is not None:
                break
            os.killpg(process.pid, signal.SIGKILL)
            out, _ = process.communicate()
            told = {e["round"] for e in events(out) if e.get("event") == "round"}
            seen.append(look(path, told, folder / "no-log"))
            count.update(real=1, fsck_failures=bool(seen[-1].wrong), lost_rounds=len(seen[-1].lost))
            samples.append({"kind": "real", "run": number, "after_s": round(after_s, 2), **seen[-1].told()})
            print(f"real kill {count['real']}: {samples[-1]}", file=sys.stderr)
        process = launched(path, task)
        process.communicate()
        if process.returncode:
            sys.exit(f"the resumed run ended with status {process.returncode}: {path}")
        count.update(compare(path, calm, seen))


def launched(path: Path, task: Path) -> subprocess.Popen[str]:
    """`tilewright optimize`, or `resume` where the run at `path` has begun, in a process group of its own."""
    begun = (path / ".git" / MAIN).exists()
    some = ["resume", str(path)] if begun else ["optimize", str(task), "--run", str(path), "--rounds", str(REAL_ROUNDS)]
    command = [sys.executable, "-m", "tilewright.harness.cli.app", *some, "--json"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )


def events(out: str) -> list[dict[str, Any]]:
    """The JSON lines of a process's output; a last one that was cut off is left out."""
    found = []
    for line in out.splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scripted", type=int, default=180)
    parser.add_argument("--real", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--task", type=Path, default=record.ROOT / "examples" / "softmax.py")
    options = parser.parse_args()
    count: Counter[str] = Counter()
    samples: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="tilewright-kill-") as folder:
        scripted(options.scripted, options.seed, Path(folder), count, samples)
        if options.real:
            real(options.real, options.seed, options.task, Path(folder), count, samples)
    names = ("lost_rounds", "fsck_failures", "decision_mismatches", "repeated_verdicts")
    values = {"kills": count["scripted"] + count["real"], **{name: count[name] for name in names}}
    values |= {"scripted": count["scripted"], "real": count["real"], "runs": count["runs"]}
    left = Counter(sample["left"] for sample in samples)
    table = Table("what", "count", title="Kills with SIGKILL")
    for name, value in (*values.items(), *((f"hit: {where}", n) for where, n in left.most_common())):
        table.add_row(name, str(value))
    Console().print(table)
    print(record.write("kill", values, targets=TARGETS, samples=samples))
    if any(values[name] for name in names):
        sys.exit(1)


if __name__ == "__main__":
    main()
