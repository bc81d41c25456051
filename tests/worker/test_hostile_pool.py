"""What a child does to the process that it was forked from is its own failure, and the next job is served."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.worker.test_processes import GOOD, X, doing
from tilewright.harness.judge import pool as pool_module

STOPPED = "os.kill(os.getppid(), signal.SIGSTOP)"
FLOOD = """
import socket, struct
sock = socket.socket(fileno=os.dup(3))
sock.sendall(struct.pack('<4sIQ', b'TWF1', 2, 3 << 30) + b'{}')
time.sleep(600)
"""


def test_a_pool_process_that_is_stopped_is_given_up(interpreter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "FORK_LIMIT_S", 1.0)
    failure, detail = interpreter.failure(doing(STOPPED), x=X)
    assert failure == "launch"
    assert "ended the process that held it" in detail
    monkeypatch.undo()
    assert np.array_equal(interpreter.result(GOOD, x=X), X + 1)


def test_a_reply_that_is_larger_than_can_be_right_is_not_taken(interpreter: Any, runner: asyncio.Runner) -> None:
    job: dict[str, Any] = {
        "op": "interpret",
        "kind": "triton",
        "entry": "launch",
        "args": [],
        "mutates": [],
        "target": None,
    }
    source = doing(FLOOD).replace("launch(x)", "launch()")
    reply, _ = runner.run(interpreter.pool.run({**job, "source": source}, limit_s=60, most_bytes=1 << 20))
    assert "at most 1048576 can be right" in reply["failed"]["detail"]


def test_a_seed_that_no_trusted_job_fills_reaches_no_other_job(interpreter: Any) -> None:
    seed = interpreter.pool.seed_cache
    interpreter.result(doing(f"open({seed!r} + '/binary', 'w').write('not yours')"), x=X)
    interpreter.result(doing("assert not os.listdir(os.environ['TRITON_CACHE_DIR'])"), x=X)
