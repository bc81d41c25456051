"""The pool process: imports torch and triton once, then forks one child per job and outlives all of them.

It takes jobs on a control socket (SOCK_SEQPACKET), each with the child's end of a socket (SCM_RIGHTS):

    to here    {"job": 7, "scratch": "/tmp/…", "seeded": false, "memory_bytes": N, "file_bytes": N, …}  + one descriptor
               {"kill": 7}
    from here  {"ready": {versions}}   {"job": 7, "pid": 1234}   {"job": 7, "ended": STATUS, "why": ""|"memory"}

What holds a child: its own session, no inherited descriptor but its socket, limits on files, core dumps and
processor time, a watch on resident memory, private home, temporary and cache folders, standard streams to a
file that nobody parses. When it ends, its process group is killed, and so is every process that it left behind:
orphans fall to this process (PR_SET_CHILD_SUBREAPER). Not covered at this level: a child has the pool's user
and its file permissions; memory of its own children and of tmpfs files is bounded per file only; a child that
forks faster than it can be found can outrun the sweep. When the control socket closes, everything ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import re
import resource
import selectors
import shutil
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tilewright.harness.worker import wire
from tilewright.harness.worker.outcome import Unsupported, reply_for

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
WATCH_S = 0.1
"""How often resident memory is looked at while jobs run."""
SWEEP_S = 2.0
"""How long orphans are hunted after a job before giving up."""
OUTPUT_FILE = "output.txt"

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Running:
    job: int
    pid: int
    pidfd: int
    memory_bytes: int
    scratch: str
    why: str = ""


def serve(control: socket.socket, seed_cache: str | None) -> None:
    """Take jobs until the control socket closes; then kill what runs and return."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    gc.collect()
    gc.freeze()  # children then share these pages instead of copying them at their first collection
    running: dict[int, Running] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ, None)
        while True:
            for key, _ in selector.select(WATCH_S if running else None):
                if key.data is None:
                    if not _take(control, selector, running, seed_cache):
                        _give_up(running, seed_cache)
                        return
                elif key.data in running:
                    one = running.pop(key.data)
                    selector.unregister(one.pidfd)
                    _end(control, one, running)
            for one in running.values():
                if one.memory_bytes and not one.why and _resident_bytes(one.pid) > one.memory_bytes:
                    one.why = "memory"
                    _kill(one.pid)


def _take(
    control: socket.socket, selector: selectors.BaseSelector, running: dict[int, Running], seed: str | None
) -> bool:
    """Handle one control message; False where the other end has gone."""
    try:
        text, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 4)
    except ConnectionResetError:
        return False
    if not text:
        return False
    message = json.loads(text)
    if "kill" in message:
        if message["kill"] in running:
            _kill(running[message["kill"]].pid)
        return True
    (descriptor,) = descriptors
    pid = os.fork()
    if pid == 0:
        _child(descriptor, message, seed)
    os.close(descriptor)
    one = Running(message["job"], pid, os.pidfd_open(pid), int(message.get("memory_bytes") or 0), message["scratch"])
    running[one.job] = one
    selector.register(one.pidfd, selectors.EVENT_READ, one.job)
    _tell(control, {"job": one.job, "pid": pid})
    return True


def _give_up(running: dict[int, Running], seed_cache: str | None) -> None:
    """The judge is gone, perhaps by kill -9: end what runs, and clear up what it would have cleared up."""
    for one in running.values():
        _kill(one.pid)
    _sweep(set())
    for folder in (*(one.scratch for one in running.values()), seed_cache, os.getcwd()):
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _end(control: socket.socket, one: Running, running: dict[int, Running]) -> None:
    _kill(one.pid)  # its process group, before its id can be used again
    _, status = os.waitpid(one.pid, 0)
    os.close(one.pidfd)
    _sweep({other.pid for other in running.values()})
    _tell(control, {"job": one.job, "ended": os.waitstatus_to_exitcode(status), "why": one.why})


def _tell(control: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the next read finds the end
        control.send(json.dumps(message).encode())


def _kill(pid: int) -> None:
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, signal.SIGKILL)


def _sweep(keep: set[int]) -> None:
    """Kill every child of this process that is not a running job: what a job left behind, to the last generation."""
    deadline = time.monotonic() + SWEEP_S
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    while time.monotonic() < deadline:
        orphans = [pid for pid in map(int, children.read_text().split()) if pid not in keep]
        if not orphans:
            return
        for pid in orphans:
            _kill(pid)
        for pid in orphans:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


# --- the child -------------------------------------------------------------------------------------------


def _child(descriptor: int, message: dict[str, Any], seed: str | None) -> NoReturn:
    """Be one job, and never return to the pool's loop."""
    status = 70
    try:
        _confine(descriptor, message, seed)
        with socket.socket(fileno=3) as sock:
            _answer(sock)
        status = 0
    finally:
        os._exit(status)


def _confine(descriptor: int, message: dict[str, Any], seed: str | None) -> None:
    os.setsid()
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    scratch = Path(message["scratch"])
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(scratch / OUTPUT_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    if descriptor != 3:
        os.dup2(descriptor, 3, inheritable=False)
    os.closerange(4, 1 << 20)
    for name in ("home", "tmp", "cache", "work"):
        (scratch / name).mkdir()
    if message.get("seeded") and seed and Path(seed).is_dir():
        shutil.copytree(seed, scratch / "cache", dirs_exist_ok=True)
    os.chdir(scratch / "work")
    os.environ.update(
        HOME=str(scratch / "home"),
        TMPDIR=str(scratch / "tmp"),
        TRITON_CACHE_DIR=str(scratch / "cache"),
        TRITON_HOME=str(scratch / "home"),
        XDG_CACHE_HOME=str(scratch / "home"),
    )
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: int(message["file_bytes"])}
    if message.get("cpu_s"):
        limits[resource.RLIMIT_CPU] = int(message["cpu_s"])
    if message.get("data_bytes"):
        limits[resource.RLIMIT_DATA] = int(message["data_bytes"])
    for which, most in limits.items():
        hard = resource.getrlimit(which)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (most, most))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # where memory runs out, this goes first


def _answer(sock: socket.socket) -> None:
    """Read the job, do it, reply once. The one place that catches everything: whatever happens is an answer."""
    try:
        job, tensors = wire.receive(sock)
        op = str(job.get("op"))
        if not re.fullmatch(r"[a-z_]+", op):
            raise Unsupported(f"no operation {op!r}")
        module = importlib.import_module(f"tilewright.harness.worker.op_{op}")
        if hasattr(module, "converse"):
            reply, out = module.converse(job, tensors, _Conversation(sock))
        else:
            reply, out = module.handle(job, tensors)
        frame = wire.encode(reply, out)
    except BaseException as error:
        frame = wire.encode(reply_for(error))
    for part in frame:
        sock.sendall(part)


class _Conversation:
    """Says something in the middle of a job and waits for the answer."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def __call__(self, header: dict[str, Any], tensors: dict[str, wire.Blob]) -> dict[str, Any]:
        wire.send(self._sock, {**header, "pending": True}, tensors)
        return wire.receive(self._sock)[0]
