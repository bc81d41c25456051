"""One writer a run. The kernel holds the lock and frees it when its owner dies, however it dies."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import socket
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tilewright.harness.errors import RunProblem
from tilewright.harness.gitstore import os_problem
from tilewright.harness.runs.secrets import scrub

ORPHAN_S = 10.0
"""How long a dead owner's last git process, which still holds the lock, may take to finish its commit."""
BEAT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who holds a run; times are seconds since the epoch."""

    pid: int
    host: str
    command: str
    started_s: float
    beat_s: float
    """When the owner last showed that it is at work: a journal entry or a commit."""

    @property
    def alive(self) -> bool:
        """False only where the owner is known to be dead: of another host nothing is known."""
        if self.host != socket.gethostname():
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


class Lock:
    """A held lock. `fd` may be inherited by child processes, which then hold it too."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self.fd = path, fd
        now = time.time()
        command = scrub(shlex.join(sys.argv))[:200]
        self.owner = Owner(pid=os.getpid(), host=socket.gethostname(), command=command, started_s=now, beat_s=now)
        self._write(json.dumps(asdict(self.owner)).encode())

    @classmethod
    def take(cls, path: Path) -> Lock:
        """Lock the file at `path`. Raises RunProblem that names the owner where another process holds it."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise os_problem(error, f"{path}: could not lock the run") from error
        try:
            give_up = time.monotonic() + ORPHAN_S
            while not _flock(fd, path):
                owner = read_owner(path)
                if owner is None or owner.alive or time.monotonic() > give_up:
                    raise _held(path, owner)
                time.sleep(0.01)
            return cls(path, fd)
        except BaseException:
            os.close(fd)
            raise

    def beat(self) -> None:
        """Note that the owner is at work; at most once a second touches the disk."""
        now = time.time()
        if now - self.owner.beat_s >= BEAT_S:
            self.owner = replace(self.owner, beat_s=now)
            self._write(json.dumps(asdict(self.owner)).encode())

    def release(self) -> None:
        """Free the lock. The file stays: deleting it would let two processes lock two files of one name."""
        if self.fd >= 0:
            os.ftruncate(self.fd, 0)
            os.close(self.fd)
            self.fd = -1

    def _write(self, text: bytes) -> None:
        try:
            os.pwrite(self.fd, text, 0)
            os.ftruncate(self.fd, len(text))
        except OSError as error:
            raise os_problem(error, f"{self.path}: could not note the owner of the run") from error


def read_owner(path: Path) -> Owner | None:
    """Who noted themselves as the owner; None where nobody did, or the note is half written."""
    try:
        return Owner(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _flock(fd: int, path: Path) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
            return False
        if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):
            raise RunProblem(
                f"{path}: this file system cannot lock files ({error.strerror}), so two processes could write one run",
                "keep runs on a local file system, or on NFS version 4",
            ) from error
        raise os_problem(error, f"{path}: could not lock the run") from error
    return True


def _held(path: Path, owner: Owner | None) -> RunProblem:
    run = path.parent.parent.parent
    remedy = "wait for it to end, or stop it; log, show, diff, export and fsck read a run while it is held"
    if owner is None:
        return RunProblem(f"{run} is held by another process", remedy)
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(owner.started_s))
    ago = max(0.0, time.time() - owner.beat_s)
    return RunProblem(
        f"{run} is held by process {owner.pid} on {owner.host} (`{owner.command}`) since {since}, "
        f"last at work {ago:.0f} s ago",
        remedy,
    )
