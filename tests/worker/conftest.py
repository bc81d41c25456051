"""One pool of interpreting workers and one of plain ones for all tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import numpy as np
import pytest

from tilewright.harness.judge.numbers import Array, real, to_blob
from tilewright.harness.judge.pool import Pool, Reply
from tilewright.harness.worker.wire import Blob

T = TypeVar("T")
Awaited = Callable[[Coroutine[Any, Any, T]], T]

GIB = 1 << 30


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    """The event loop in which the pools live."""
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="session")
def interpreting(runner: asyncio.Runner) -> Iterator[Pool]:
    """Workers with Triton's interpreter."""
    pool = Pool("interpret", width=2, memory_bytes=GIB, file_bytes=GIB // 16)
    yield pool
    runner.run(pool.close())


@pytest.fixture(scope="session")
def compiling(runner: asyncio.Runner) -> Iterator[Pool]:
    """Workers without it: they run references."""
    pool = Pool("compile", width=2)
    yield pool
    runner.run(pool.close())


class Interpreter:
    """Runs candidates on numpy arrays in a worker."""

    def __init__(self, runner: asyncio.Runner, pool: Pool) -> None:
        self.runner, self.pool = runner, pool

    def reply(self, source: str, *, limit_s: float = 60.0, mutates: tuple[str, ...] = (), **args: Any) -> Reply:
        """The frame that comes back. An array is a float32 or integer tensor; a pair (array, dtype) is of that type."""
        listed: list[dict[str, Any]] = []
        tensors: dict[str, Blob] = {}
        for name, value in args.items():
            if isinstance(value, np.ndarray | tuple):
                values, dtype = value if isinstance(value, tuple) else (value, value.dtype.name)
                tensors[name] = to_blob(values, dtype)
                spec = {"shape": list(values.shape), "dtype": dtype, "strides": None}
                listed.append({"name": name, "tensor": spec})
            else:
                listed.append({"name": name, "scalar": value})
        job = {
            "op": "interpret",
            "kind": "triton",
            "source": source,
            "entry": "launch",
            "args": listed,
            "mutates": list(mutates),
            "target": None,
        }
        return self.runner.run(self.pool.run(job, tensors, limit_s=limit_s))

    def result(self, source: str, **args: Any) -> Array:
        """The first result as float64; fails the test where there is none."""
        header, tensors = self.reply(source, **args)
        assert "failed" not in header, header
        return real(tensors["out0"])

    def failure(self, source: str, *, limit_s: float = 60.0, **args: Any) -> tuple[str, str]:
        """The failure's word and its sentence; fails the test where there is none."""
        header, _ = self.reply(source, limit_s=limit_s, **args)
        assert "failed" in header, header
        return header["failed"]["failure"], header["failed"]["detail"]


@pytest.fixture(scope="session")
def interpreter(runner: asyncio.Runner, interpreting: Pool) -> Interpreter:
    """Runs candidates in Triton's interpreter."""
    return Interpreter(runner, interpreting)
