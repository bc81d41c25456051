"""The parent of the workers: hands a job to a pool process, gets one clean answer, whatever the job does.

A `Pool` keeps one process that has imported torch and triton (see `tilewright.harness.worker.serve`) and runs at
most `width` jobs on it at a time, each in a forked child with a hard limit on wall-clock time. `run` returns the
child's reply, or a header with `failed` where the child ended, hung, wrote nonsense or ate its memory. Nothing is
read from a child but its frame. This side never imports torch or triton.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from tilewright.harness.errors import MachineProblem
from tilewright.harness.worker import wire
from tilewright.harness.worker.wire import Blob

Reply: TypeAlias = tuple[dict[str, Any], dict[str, Blob]]
OnPending: TypeAlias = Callable[[dict[str, Any], dict[str, Blob]], Awaitable[dict[str, Any]]]

GIB = 1 << 30
START_LIMIT_S = 120.0
"""Importing torch and triton takes 4 s on an idle machine, and far longer on a busy one with a cold disk."""
END_LIMIT_S = 2.0
"""After its answer a child only has to exit."""
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
    ]
)
"""What workers may see of the environment. Anything else could be a secret."""
BOOT = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); "
    "runpy.run_module('tilewright.harness.worker', run_name='__main__', alter_sys=True)"
)
"""Isolated mode ignores PYTHONPATH; the folder that holds this package is appended instead."""


class _PoolDied(Exception):
    """The pool process ended while a job was with it."""


class _NotStarted(Exception):
    """The pool process did not come up."""


@dataclass(slots=True)
class _Job:
    pid: asyncio.Future[int]
    ended: asyncio.Future[tuple[int, str]]


@dataclass(slots=True)
class _Process:
    """One live pool process."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    home: str
    log: Path
    ready: asyncio.Future[dict[str, str]]
    jobs: dict[int, _Job] = field(default_factory=dict)
    dead: bool = False


def failed(failure: str, detail: str) -> dict[str, Any]:
    """A reply header for a job that could not answer for itself."""
    return {"failed": {"failure": failure, "detail": detail, "trace": ""}}


def processors() -> int:
    """How many workers of a kind to run at a time by default: one a processor, from two to eight."""
    return min(8, max(2, len(os.sched_getaffinity(0))))


class Pool:
    """Workers of one mode: `interpret`, `compile` or `measure`."""

    def __init__(self, mode: str, *, width: int = 2, memory_bytes: int = 8 * GIB, file_bytes: int = GIB // 2) -> None:
        self.mode = mode
        self.versions: Mapping[str, str] = {}
        """python, torch, triton and numpy of the workers; empty until the first job."""
        self._width = asyncio.Semaphore(width)
        self._memory_bytes, self._file_bytes = memory_bytes, file_bytes
        self._process: _Process | None = None
        self.seed_cache = tempfile.mkdtemp(prefix="tilewright-seed-")
        """What every job finds in its compile cache; empty unless a trusted job fills it."""
        self._starting = asyncio.Lock()
        self._numbers = itertools.count(1)

    async def run(
        self,
        job: Mapping[str, Any],
        tensors: Mapping[str, Blob] | None = None,
        *,
        limit_s: float,
        on_pending: OnPending | None = None,
    ) -> Reply:
        """Do one job within `limit_s` seconds of wall-clock time and return its reply frame.

        Where the job fails in any way, the header holds `failed`: {failure, detail, trace}. `on_pending` answers
        what a job says half-way; the clock stands still meanwhile. Raises MachineProblem where no worker can be
        started here.
        """
        async with self._width:
            try:
                return await self._attempt(await self.start(), job, tensors or {}, limit_s, on_pending)
            except _PoolDied:
                pass
        # Perhaps this job took the pool process with it, perhaps another that ran beside it. Alone, it is plain.
        alone = Pool(self.mode, width=1, memory_bytes=self._memory_bytes, file_bytes=self._file_bytes)
        try:
            return await alone._attempt(await alone.start(), job, tensors or {}, limit_s, on_pending)
        except _PoolDied:
            return failed("launch", "it ended the process that held it, twice; the second time it ran alone"), {}
        finally:
            await alone.close()

    async def start(self) -> _Process:
        """Have a live pool process, starting one where needed."""
        async with self._starting:
            if self._process is not None and not self._process.dead:
                return self._process
            await self._discard()
            try:
                async for attempt in AsyncRetrying(
                    stop=stop_after_attempt(3),
                    wait=wait_exponential(multiplier=0.2, max=2),
                    retry=retry_if_exception_type(_NotStarted),
                    reraise=True,
                ):
                    with attempt:
                        self._process = await self._launch()
            except _NotStarted as error:
                raise MachineProblem(
                    f"no {self.mode} worker can be started: {error}", "run `tilewright doctor`"
                ) from error
            assert self._process is not None
            return self._process

    async def close(self) -> None:
        """End the pool process and everything under it. A later `run` starts another."""
        await self._discard()
        shutil.rmtree(self.seed_cache, ignore_errors=True)

    # --- the pool process --------------------------------------------------------------------------------

    async def _launch(self) -> _Process:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        home = tempfile.mkdtemp(prefix="tilewright-pool-")
        log = Path(home) / "log.txt"
        root = str(Path(__file__).absolute().parents[3])
        environment = {name: value for name, value in os.environ.items() if name in ENVIRONMENT}
        environment |= {"HOME": home, "TMPDIR": home, "TRITON_CACHE_DIR": str(Path(home) / "cache")}
        environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-I", "-c", BOOT, root]
        command += ["--mode", self.mode, "--control-fd", str(theirs.fileno()), "--seed-cache", self.seed_cache]
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
        ours.setblocking(False)
        made = _Process(process, ours, home, log, loop.create_future())
        loop.add_reader(ours, self._hear, made)
        try:
            async with asyncio.timeout(START_LIMIT_S):
                self.versions = await made.ready
        except (_PoolDied, TimeoutError) as error:
            said = log.read_text(errors="replace").strip().splitlines()
            self._bury(made)
            await asyncio.to_thread(self._reap, made)
            raise _NotStarted(said[-1] if said else f"it said nothing for {START_LIMIT_S:.0f} s") from error
        return made

    def _hear(self, process: _Process) -> None:
        """Take in what the pool process says on its control socket."""
        while True:
            try:
                text = process.control.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                text = b""
            if not text:
                self._bury(process)
                return
            message = json.loads(text)
            if "ready" in message:
                process.ready.set_result(message["ready"])
            elif "pid" in message and (job := process.jobs.get(message["job"])):
                job.pid.set_result(message["pid"])
            elif "ended" in message and (job := process.jobs.pop(message["job"], None)):
                job.ended.set_result((message["ended"], message["why"]))

    def _bury(self, process: _Process) -> None:
        """Mark a pool process as gone and tell whoever waits for it."""
        if process.dead:
            return
        process.dead = True
        asyncio.get_running_loop().remove_reader(process.control)
        process.control.close()
        waiting: list[asyncio.Future[Any]] = [process.ready]
        for job in process.jobs.values():
            waiting += [job.pid, job.ended]
        for future in waiting:
            if not future.done():
                future.set_exception(_PoolDied())
                future.exception()  # marks it as seen where nobody waits

    async def _discard(self) -> None:
        if (process := self._process) is None:
            return
        self._process = None
        self._bury(process)
        await asyncio.to_thread(self._reap, process)

    @staticmethod
    def _reap(process: _Process) -> None:
        """Wait for the end of a pool process whose control socket has closed, and clear up after it."""
        try:
            process.process.wait(5)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.process.pid, signal.SIGKILL)
            process.process.wait()
        shutil.rmtree(process.home, ignore_errors=True)

    # --- one job -----------------------------------------------------------------------------------------

    async def _attempt(
        self,
        process: _Process,
        job: Mapping[str, Any],
        tensors: Mapping[str, Blob],
        limit_s: float,
        on_pending: OnPending | None,
    ) -> Reply:
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        here = _Job(loop.create_future(), loop.create_future())
        scratch = tempfile.mkdtemp(prefix="tilewright-job-")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        try:
            self._hand_over(process, number, here, theirs, scratch)
            theirs.close()
            await here.pid
            reply: Reply | None = None
            trouble = ""
            try:
                async with asyncio.timeout(limit_s) as clock:
                    reply = await self._converse(ours, job, tensors, on_pending, clock)
            except TimeoutError:
                trouble = "timeout"
            except wire.FrameError as error:
                trouble = str(error)
            except (wire.Closed, ConnectionError, BrokenPipeError):
                trouble = "closed"
            code, why = await self._finish(process, number, here, patient=not trouble or trouble == "closed")
            return reply or (self._without_reply(trouble, code, why, limit_s), {})
        finally:
            ours.close()
            theirs.close()
            if not here.ended.done():  # cancelled, or the pool process died
                self._kill(process, number)
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)

    def _hand_over(self, process: _Process, number: int, job: _Job, theirs: socket.socket, scratch: str) -> None:
        message = {
            "job": number,
            "scratch": scratch,
            "memory_bytes": self._memory_bytes,
            "file_bytes": self._file_bytes,
        }
        process.jobs[number] = job
        try:
            socket.send_fds(process.control, [json.dumps(message).encode()], [theirs.fileno()])
        except OSError as error:
            self._bury(process)
            raise _PoolDied from error

    async def _converse(
        self,
        sock: socket.socket,
        job: Mapping[str, Any],
        tensors: Mapping[str, Blob],
        on_pending: OnPending | None,
        clock: asyncio.Timeout,
    ) -> Reply:
        loop = asyncio.get_running_loop()
        await _send(sock, job, tensors)
        while True:
            header, out = await _receive(sock)
            if not header.pop("pending", False):
                return header, out
            answer: dict[str, Any] = {}
            if on_pending is not None:
                left = (clock.when() or 0.0) - loop.time()
                clock.reschedule(None)
                answer = await on_pending(header, out)
                clock.reschedule(loop.time() + left)
            await _send(sock, answer, {})

    async def _finish(self, process: _Process, number: int, job: _Job, *, patient: bool) -> tuple[int, str]:
        """Wait until the child and all that it left behind are gone; how it ended."""
        if not patient:
            self._kill(process, number)
        try:
            async with asyncio.timeout(END_LIMIT_S):
                return await asyncio.shield(job.ended)
        except TimeoutError:
            self._kill(process, number)
            return await job.ended

    @staticmethod
    def _kill(process: _Process, number: int) -> None:
        if not process.dead:
            with contextlib.suppress(OSError):
                process.control.send(json.dumps({"kill": number}).encode())

    @staticmethod
    def _without_reply(trouble: str, code: int, why: str, limit_s: float) -> dict[str, Any]:
        if why == "memory":
            return failed("out-of-memory", "it held more memory than a job may have")
        if trouble == "timeout":
            return failed("timeout", f"it did not finish within {limit_s:g} s of wall-clock time")
        if trouble != "closed":
            return failed("launch", f"its process wrote something else than an answer: {trouble}")
        if code == -signal.SIGXFSZ:
            return failed("launch", "its process wrote a larger file than a job may have")
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
            return failed("launch", f"its process was ended by {name} before it answered")
        return failed("launch", f"its process exited with status {code} before it answered")


async def _send(sock: socket.socket, header: Mapping[str, Any], tensors: Mapping[str, Blob]) -> None:
    loop = asyncio.get_running_loop()
    for buffer in wire.encode(header, tensors):
        await loop.sock_sendall(sock, buffer)


async def _receive(sock: socket.socket) -> Reply:
    header, payload = wire.lengths(await _exactly(sock, wire.PREFIX.size))
    text = await _exactly(sock, header)
    return wire.decode(text, await _exactly(sock, payload))


async def _exactly(sock: socket.socket, size: int) -> bytearray:
    loop = asyncio.get_running_loop()
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = await loop.sock_recv_into(sock, view)
        if not got:
            raise wire.Closed(f"closed with {view.nbytes} of {size} bytes outstanding")
        view = view[got:]
    return data
