"""The parent of the workers: hands a job to a pool process, gets one clean answer, whatever the job does.

A `Pool` keeps one process that has imported torch and triton (see `tilewright.harness.worker.serve`) and runs at
most `width` jobs on it at a time, each in a forked child with a hard limit on wall-clock time. `run` returns the
child's reply, or a header with `failed` where the child ended, hung, wrote nonsense or ate its memory. Nothing is
read from a child but its frame. This side never imports torch or triton.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from tilewright.harness.errors import MachineProblem
from tilewright.harness.judge import scratch
from tilewright.harness.judge.process import Handed, NotStarted, PoolDied, PoolProcess
from tilewright.harness.judge.replies import demand
from tilewright.harness.worker import wire
from tilewright.harness.worker.wire import Blob

Reply: TypeAlias = tuple[dict[str, Any], dict[str, Blob]]
OnPending: TypeAlias = Callable[[dict[str, Any], dict[str, Blob]], Awaitable[dict[str, Any]]]

T = TypeVar("T")

GIB = 1 << 30
END_LIMIT_S = 2.0
"""After its answer a child only has to exit."""
FORK_LIMIT_S = 30.0
"""For a pool process to fork a child, or to say that a killed one has ended; one that was stopped never does."""


def failed(failure: str, detail: str) -> dict[str, Any]:
    """A reply header for a job that could not answer for itself."""
    return {"failed": {"failure": failure, "detail": detail, "trace": ""}}


def processors() -> int:
    """How many workers of a kind to run at a time by default: one a processor, from two to eight."""
    return min(8, max(2, len(os.sched_getaffinity(0))))


class Pool:
    """Workers of one mode: `interpret`, `compile` or `measure`."""

    def __init__(self, mode: str, *, width: int = 2, memory_bytes: int = 8 * GIB, file_bytes: int = GIB // 2) -> None:
        """`width` jobs at a time, each with so much resident memory and files no larger than so much."""
        self.mode = mode
        self.versions: Mapping[str, str] = {}
        """python, torch, triton and numpy of the workers; empty until the first job."""
        self.seed_cache = scratch.made("seed")
        """What every job finds in its compile cache; empty unless a trusted job fills it."""
        self._width = asyncio.Semaphore(width)
        self._memory_bytes, self._file_bytes = memory_bytes, file_bytes
        self._process: PoolProcess | None = None
        self._starting = asyncio.Lock()
        self._numbers = itertools.count(1)

    async def run(
        self,
        job: Mapping[str, Any],
        tensors: Mapping[str, Blob] | None = None,
        *,
        limit_s: float,
        on_pending: OnPending | None = None,
        most_bytes: int = wire.PAYLOAD_LIMIT_BYTES,
    ) -> Reply:
        """Do one job within `limit_s` seconds of wall-clock time and return its reply frame.

        Where the job fails in any way, the header holds `failed`: {failure, detail, trace}. `on_pending` answers
        what a job says half-way; the clock stands still meanwhile. A reply with more than `most_bytes` of tensors is
        none. Raises MachineProblem where no worker can be started here.
        """
        async with self._width:
            try:
                return await self._attempt(await self._live(), job, tensors or {}, limit_s, on_pending, most_bytes)
            except PoolDied:
                pass
        # Perhaps this job took the pool process with it, perhaps another that ran beside it. Alone, it is plain.
        alone = Pool(self.mode, width=1, memory_bytes=self._memory_bytes, file_bytes=self._file_bytes)
        try:
            return await alone._attempt(await alone._live(), job, tensors or {}, limit_s, on_pending, most_bytes)
        except PoolDied:
            return failed("launch", "it ended the process that held it, twice; the second time it ran alone"), {}
        finally:
            await alone.close()

    async def start(self) -> None:
        """Have a live pool process, so that the first job need not wait for one. Raises MachineProblem."""
        await self._live()

    async def close(self) -> None:
        """End the pool process and everything under it. A later `run` starts another."""
        if self._process is not None:
            process, self._process = self._process, None
            await process.bury()
        shutil.rmtree(self.seed_cache, ignore_errors=True)

    async def _live(self) -> PoolProcess:
        async with self._starting:
            if self._process is not None and self._process.dead:
                process, self._process = self._process, None
                await process.bury()
            if self._process is None:
                try:
                    async for attempt in AsyncRetrying(
                        stop=stop_after_attempt(3),
                        wait=wait_exponential(multiplier=0.2, max=2),
                        retry=retry_if_exception_type(NotStarted),
                        reraise=True,
                    ):
                        with attempt:
                            self._process = await PoolProcess.launch(self.mode, self.seed_cache)
                except NotStarted as error:
                    raise MachineProblem(
                        f"no {self.mode} worker can be started: {error}", "run `tilewright doctor`"
                    ) from error
            assert self._process is not None
            self.versions = self._process.versions
            return self._process

    # --- one job -----------------------------------------------------------------------------------------

    async def _attempt(
        self,
        process: PoolProcess,
        job: Mapping[str, Any],
        tensors: Mapping[str, Blob],
        limit_s: float,
        on_pending: OnPending | None,
        most_bytes: int,
    ) -> Reply:
        number = next(self._numbers)
        folder = scratch.made("job")
        limits = {"seeded": self.mode == "measure", "memory_bytes": self._memory_bytes, "file_bytes": self._file_bytes}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        handed: Handed | None = None
        try:
            handed = process.hand_over(number, theirs.fileno(), {"scratch": folder, **limits})
            theirs.close()
            await _within(FORK_LIMIT_S, handed.pid, process)
            reply: Reply | None = None
            trouble = ""
            try:
                async with asyncio.timeout(limit_s) as clock:
                    reply = await self._converse(ours, job, tensors, on_pending, clock, most_bytes)
            except TimeoutError:
                trouble = "timeout"
            except wire.FrameError as error:
                trouble = str(error)
            except (wire.Closed, ConnectionError, BrokenPipeError):
                trouble = "closed"
            code, why = await self._finish(process, number, handed, patient=trouble in ("", "closed"))
            return reply or (self._without_reply(trouble, code, why, limit_s), {})
        finally:
            ours.close()
            theirs.close()
            if handed is not None and not handed.ended.done():  # cancelled, or the pool process died
                process.kill(number)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _converse(
        self,
        sock: socket.socket,
        job: Mapping[str, Any],
        tensors: Mapping[str, Blob],
        on_pending: OnPending | None,
        clock: asyncio.Timeout,
        most_bytes: int,
    ) -> Reply:
        loop = asyncio.get_running_loop()
        await _send(sock, job, tensors)
        while True:
            header, out = await _receive(sock, most_bytes)
            if not header.pop("pending", False):
                halfway = job.get("time") or job.get("eager") or job.get("warm")  # these end on less than they found
                demand("" if halfway else str(job.get("op")), header)
                return header, out
            answer: dict[str, Any] = {}
            if on_pending is not None:
                left = (clock.when() or 0.0) - loop.time()
                clock.reschedule(None)
                answer = await on_pending(header, out)
                clock.reschedule(loop.time() + left)
            await _send(sock, answer, {})

    @staticmethod
    async def _finish(process: PoolProcess, number: int, job: Handed, *, patient: bool) -> tuple[int, str]:
        """Wait until the child and all that it left behind are gone; how it ended."""
        if not patient:
            process.kill(number)
        try:
            async with asyncio.timeout(END_LIMIT_S):
                return await asyncio.shield(job.ended)
        except TimeoutError:
            process.kill(number)
            return await _within(FORK_LIMIT_S, job.ended, process)

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


async def _within(limit_s: float, said: asyncio.Future[T], process: PoolProcess) -> T:
    """What the pool process must say. Raises PoolDied where it does not: it is then given up."""
    try:
        async with asyncio.timeout(limit_s):
            return await asyncio.shield(said)
    except TimeoutError:
        await process.bury(patient=False)
        return await said


async def _send(sock: socket.socket, header: Mapping[str, Any], tensors: Mapping[str, Blob]) -> None:
    loop = asyncio.get_running_loop()
    for buffer in wire.encode(header, tensors):
        await loop.sock_sendall(sock, buffer)


async def _receive(sock: socket.socket, most_bytes: int) -> Reply:
    header, payload = wire.lengths(await _exactly(sock, wire.PREFIX.size))
    if payload > most_bytes:
        raise wire.FrameError(f"a payload of {payload} bytes, where at most {most_bytes} can be right")
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
