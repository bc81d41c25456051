"""One writer a run: who comes second is told who is first, and the dead hold nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilewright.harness.errors import RunProblem
from tilewright.harness.runs.lock import Lock, read_owner


def test_a_second_process_is_told_who_holds_the_run_since_when_and_what_to_do(
    tmp_path: Path, in_child: Callable[..., Any]
) -> None:
    path = tmp_path / "run" / ".git" / "tilewright" / "lock"
    path.parent.mkdir(parents=True)
    lock = Lock.take(path)
    with pytest.raises(RunProblem) as caught:
        in_child(lambda: Lock.take(path))
    said = str(caught.value)
    assert f"{tmp_path / 'run'} is held by process {os.getpid()} on " in said
    assert " since 20" in said
    assert "last at work" in said
    assert "read a run while it is held" in caught.value.remedy
    lock.release()


def test_a_released_lock_can_be_taken_again_and_names_nobody_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    Lock.take(path).release()
    assert read_owner(path) is None
    lock = Lock.take(path)
    owner = read_owner(path)
    assert owner is not None
    assert (owner.pid, owner.alive) == (os.getpid(), True)
    lock.release()


def test_a_killed_owner_s_lock_is_taken_over(tmp_path: Path, in_child: Callable[..., Any]) -> None:
    path = tmp_path / "lock"

    def hold_and_die() -> None:
        Lock.take(path)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(hold_and_die) is None
    dead = read_owner(path)
    assert dead is not None
    assert not dead.alive
    lock = Lock.take(path)
    now = read_owner(path)
    assert now is not None
    assert now.pid == os.getpid()
    lock.release()


def test_a_dead_owner_s_last_child_is_waited_for(tmp_path: Path, in_child: Callable[..., Any]) -> None:
    path = tmp_path / "lock"
    go, let_go = os.pipe()

    def leave_a_child_behind() -> None:
        Lock.take(path)
        if os.fork() == 0:
            os.closerange(let_go, 256)  # whatever the test waits for is not to wait for this process
            os.read(go, 1)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(leave_a_child_behind) is None
    os.write(let_go, b"1")
    lock = Lock.take(path)
    assert lock.owner.pid == os.getpid()
    lock.release()
    os.close(go)
    os.close(let_go)


def test_a_place_that_cannot_be_written_is_a_problem(open_folder: Path, in_child: Callable[..., Any]) -> None:
    open_folder.chmod(0o555)
    with pytest.raises(RunProblem, match="could not lock the run: Permission denied"):
        in_child(lambda: Lock.take(open_folder / "lock"), nobody=True)
