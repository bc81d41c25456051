"""One live pool process: started, listened to, and laid to rest."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.harness.judge import scratch

START_LIMIT_S = 120.0
"""Importing torch and triton takes 4 s on an idle machine, and far longer on a busy one with a cold disk."""
ENVIRONMENT = frozenset(
    [
        "PATH",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "TZ",
        "LD_LIBRARY_PATH",
        "CUDA_HOME",
        "CUDA_PATH",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "CC",
        "CXX",
        "TRITON_PTXAS_PATH",
        "TRITON_PTXAS_BLACKWELL_PATH",
        "TRITON_LIBCUDA_PATH",
    ]
)
"""What workers may see of the environment. Anything else could be a secret."""
BOOT = (
    "import runpy, sys; root = sys.argv.pop(1); "
    "at = [i for i, each in enumerate(sys.path) if each.endswith('-packages')] or [len(sys.path)]; "
    "sys.path.insert(at[0], root); "
    "runpy.run_module('tilewright.harness.worker', run_name='__main__', alter_sys=True)"
)
"""Isolated mode ignores PYTHONPATH; the folder that holds this package comes before others that are installed, so that
workers are of the judge's own version, and after the standard library."""


class PoolDied(Exception):
    """The pool process ended while a job was with it."""


class NotStarted(Exception):
    """The pool process did not come up, and what it said last."""


@dataclass(slots=True)
class Handed:
    """A job that the pool process has."""

    pid: asyncio.Future[int]
    ended: asyncio.Future[tuple[int, str]]
    """Exit code (negative: the signal), and `memory` where that was why."""


class PoolProcess:
    """A process that serves jobs of one mode. `launch` makes one; it lives until `bury`."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, home: str) -> None:
        self.dead = False
        self.versions: Mapping[str, str] = {}
        """python, torch, triton and numpy there."""
        self._process, self._control, self._home = process, control, home
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[dict[str, str]] = self._loop.create_future()
        self._jobs: dict[int, Handed] = {}
        control.setblocking(False)
        self._loop.add_reader(control, self._hear)

    @classmethod
    async def launch(cls, mode: str, seed_cache: str) -> PoolProcess:
        """Start one and wait until it can take jobs. Raises NotStarted."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        scratch.swept()
        home = scratch.made("pool")
        log = Path(home) / "log.txt"
        root = str(Path(__file__).absolute().parents[3])
        environment = {name: value for name, value in os.environ.items() if name in ENVIRONMENT}
        environment |= {"HOME": home, "TMPDIR": home, "TRITON_CACHE_DIR": str(Path(home) / "cache")}
        environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-I", "-c", BOOT, root]
        command += ["--mode", mode, "--control-fd", str(theirs.fileno()), "--seed-cache", seed_cache]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=home,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        theirs.close()
        made = cls(process, ours, home)
        try:
            async with asyncio.timeout(START_LIMIT_S):
                made.versions = await made._ready
        except BaseException as error:
            said = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
            await made.bury()
            if isinstance(error, PoolDied | TimeoutError):
                raise NotStarted(said[-1] if said else f"it said nothing for {START_LIMIT_S:.0f} s") from error
            raise
        return made

    def hand_over(self, number: int, descriptor: int, message: Mapping[str, Any]) -> Handed:
        """Give it a job, with the child's end of the job's socket. Raises PoolDied."""
        job = self._jobs[number] = Handed(self._loop.create_future(), self._loop.create_future())
        try:
            socket.send_fds(self._control, [json.dumps({"job": number, **message}).encode()], [descriptor])
        except OSError as error:
            self._die()
            raise PoolDied from error
        return job

    def kill(self, number: int) -> None:
        """End a job, and all that it started."""
        if not self.dead:
            with contextlib.suppress(OSError):
                self._control.send(json.dumps({"kill": number}).encode())

    async def bury(self, *, patient: bool = True) -> None:
        """Have it end with everything under it, and clear up after it. Without patience it is killed at once."""
        self._die()
        await asyncio.to_thread(self._reap, 5.0 if patient else 0.0)

    def _hear(self) -> None:
        """Take in what the pool process says on its control socket."""
        while True:
            try:
                text = self._control.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                text = b""
            if not text:
                self._die()
                return
            message = json.loads(text)
            if "ready" in message:
                self._ready.set_result(message["ready"])
            elif "pid" in message and (job := self._jobs.get(message["job"])):
                job.pid.set_result(message["pid"])
            elif "ended" in message and (job := self._jobs.pop(message["job"], None)):
                job.ended.set_result((message["ended"], message["why"]))

    def _die(self) -> None:
        """Close its control socket, at which it ends if it has not yet, and tell whoever waits for it."""
        if self.dead:
            return
        self.dead = True
        self._loop.remove_reader(self._control)
        self._control.close()
        waiting: list[asyncio.Future[Any]] = [self._ready]
        for job in self._jobs.values():
            waiting += [job.pid, job.ended]
        for future in waiting:
            if not future.done():
                future.set_exception(PoolDied())
                future.exception()  # marks it as seen where nobody waits

    def _reap(self, limit_s: float) -> None:
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)
