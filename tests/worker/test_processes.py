"""Whatever a candidate's process does, the answer is one clean failure, and nothing outlives the job."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.harness.errors import MachineProblem
from tilewright.harness.judge import process as process_module
from tilewright.harness.judge.pool import Pool

GOOD = "def launch(x):\n    return x + 1\n"
X = np.ones(4, dtype=np.float32)


def doing(statements: str) -> str:
    """A candidate that does something else first."""
    body = textwrap.indent(textwrap.dedent(statements).strip(), "    ")
    return f"import os, sys, time, signal, ctypes\ndef launch(x):\n{body}\n    return x + 1\n"


MISDEEDS = {
    "exits in silence": ("os._exit(0)", "exited with status 0"),
    "exits with a status": ("os._exit(3)", "exited with status 3"),
    "raises SystemExit": ("sys.exit('bye')", "SystemExit"),
    "raises KeyboardInterrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "raises what nobody knows": ("class Odd(BaseException): pass\nraise Odd('why')", "Odd: why"),
    "recurses for ever": ("def f(): f()\nf()", "RecursionError"),
    "follows a null pointer": ("ctypes.string_at(0)", "SIGSEGV"),
    "aborts": ("os.abort()", "SIGABRT"),
    "kills itself": ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    "kills its process group": ("os.kill(0, signal.SIGKILL)", "SIGKILL"),
    "writes garbage to every descriptor": (
        "for fd in range(3, 64):\n    try: os.write(fd, b'nonsense' * 100)\n    except OSError: pass",
        "something else than an answer",
    ),
    "closes every descriptor": ("os.closerange(0, 256)", "exited with status"),
    "becomes another program": ("os.execv('/bin/sh', ['sh', '-c', 'exit 7'])", "exited with status 7"),
    "writes a file beyond its limit": ("open('big', 'wb').write(bytes(1 << 27))", "File too large"),
    "returns nonsense": ("return 'a fast result'", "expected a tensor"),
    "returns a tensor of another class": (
        "import torch\nclass Lazy(torch.Tensor): pass\nreturn x.as_subclass(Lazy)",
        "plain tensor",
    ),
}


@pytest.mark.parametrize("name", MISDEEDS)
def test_a_candidate_that_misbehaves_fails_cleanly(name: str, interpreter: Any) -> None:
    statements, expected = MISDEEDS[name]
    failure, detail = interpreter.failure(doing(statements), x=X)
    assert failure == "launch"
    assert expected in detail


def test_the_next_job_is_unaffected(interpreter: Any) -> None:
    interpreter.failure(doing("ctypes.string_at(0)"), x=X)
    assert np.array_equal(interpreter.result(GOOD, x=X), X + 1)


@pytest.mark.parametrize("statements", ["time.sleep(1000)", "while True: pass", "signal.pause()"])
def test_a_candidate_that_never_ends_is_stopped(statements: str, interpreter: Any) -> None:
    failure, detail = interpreter.failure(doing(statements), limit_s=0.7, x=X)
    assert failure == "timeout"
    assert "0.7 s" in detail


def test_a_candidate_that_ignores_signals_is_stopped(interpreter: Any) -> None:
    statements = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(1000)"
    assert interpreter.failure(doing(statements), limit_s=0.7, x=X)[0] == "timeout"


def test_a_candidate_that_eats_memory_is_out_of_memory(interpreter: Any) -> None:
    statements = "kept = []\nwhile True:\n    kept.append(bytearray(1 << 26)); kept[-1][::4096] = bytes(1 << 14)"
    assert interpreter.failure(doing(statements), x=X)[0] == "out-of-memory"


def test_a_memory_error_is_out_of_memory(interpreter: Any) -> None:
    assert interpreter.failure(doing("bytearray(1 << 62)"), x=X)[0] == "out-of-memory"


def test_prints_reach_nobody(interpreter: Any, capfd: pytest.CaptureFixture[str]) -> None:
    noisy = doing("print('PASS' * 10000); os.write(1, b'PASS'); os.write(2, b'FAIL'); sys.stderr.write('x')")
    assert np.array_equal(interpreter.result(noisy, x=X), X + 1)
    out, err = capfd.readouterr()
    assert "PASS" not in out + err


ORPHANS = {
    "a child": "if os.fork() == 0: time.sleep(1000)",
    "a daemon": """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0: time.sleep(1000)
            os._exit(0)
    """,
    "a family of daemons": """
        for _ in range(3):
            if os.fork() == 0:
                os.setsid()
                for _ in range(3):
                    if os.fork() == 0:
                        os.setsid()
                        time.sleep(1000)
                time.sleep(1000)
    """,
    "a program": "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)",
}


@pytest.mark.parametrize("name", ORPHANS)
def test_nothing_that_a_candidate_starts_outlives_its_job(name: str, interpreter: Any) -> None:
    before = descendants(os.getpid())
    interpreter.reply(doing(textwrap.dedent(ORPHANS[name])), x=X)
    assert descendants(os.getpid()) <= before | pools(before)


def test_nothing_outlives_a_job_that_is_cancelled(interpreter: Any) -> None:
    async def cancelled() -> None:
        job = {"op": "interpret", "kind": "triton", "source": doing("time.sleep(1000)"), "entry": "launch"}
        task = asyncio.ensure_future(
            interpreter.pool.run({**job, "args": [{"name": "x", "scalar": 1}], "target": None}, limit_s=60)
        )
        while not any("tilewright" in name for name in map(command, descendants(os.getpid()) - before)):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while descendants(os.getpid()) - before:
            await asyncio.sleep(0.01)

    interpreter.result(GOOD, x=X)
    before = descendants(os.getpid())
    interpreter.runner.run(asyncio.wait_for(cancelled(), 30))


def test_a_candidate_that_kills_the_pool_process_fails_alone(runner: asyncio.Runner) -> None:
    async def both() -> list[Any]:
        pool = Pool("interpret", width=2)
        job: dict[str, Any] = {"op": "interpret", "kind": "triton", "entry": "launch"}
        job |= {"args": [{"name": "x", "scalar": 1}], "target": None, "mutates": []}
        bad = doing("time.sleep(0.1); os.kill(os.getppid(), signal.SIGKILL); time.sleep(1000)")
        good = "import time, torch\ndef launch(x):\n    time.sleep(0.5)\n    return torch.ones(3)\n"
        try:
            return list(
                await asyncio.gather(
                    pool.run({**job, "source": bad}, limit_s=60), pool.run({**job, "source": good}, limit_s=60)
                )
            )
        finally:
            await pool.close()

    (bad, _), (good, tensors) = runner.run(both())
    assert bad["failed"]["failure"] == "launch"
    assert "failed" not in good
    assert list(tensors) == ["out0"]


def test_a_job_sees_neither_the_environment_nor_the_home_of_the_judge(
    interpreter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_API_KEY", "swordfish")
    source = doing("""
        seen = [os.environ.get('SECRET_API_KEY'), os.environ.get('PYTHONPATH')]
        assert seen == [None, None], seen
        for name in ('HOME', 'TMPDIR', 'TRITON_CACHE_DIR'):
            assert 'tilewright-job-' in os.environ[name], os.environ[name]
        assert 'tilewright-job-' in os.getcwd()
        assert not os.listdir(os.environ['TRITON_CACHE_DIR'])
    """)
    assert np.array_equal(interpreter.result(source, x=X), X + 1)


def test_two_jobs_share_no_files(interpreter: Any) -> None:
    interpreter.result(doing("open(os.environ['HOME'] + '/left', 'w').write('memo')"), x=X)
    interpreter.result(doing("assert not os.path.exists(os.environ['HOME'] + '/left')"), x=X)


def test_closing_a_pool_leaves_no_process_and_no_file(runner: asyncio.Runner, tmp_path: Path) -> None:
    async def life() -> set[int]:
        pool = Pool("interpret")
        await pool.start()
        started = descendants(os.getpid())
        await pool.close()
        return started

    before = descendants(os.getpid())
    started = runner.run(life()) - before
    assert started
    assert not started & descendants(os.getpid())


JUDGE = """
import asyncio, sys
from tilewright.harness.judge.pool import Pool

async def main():
    pool = Pool("interpret")
    await pool.start()
    print(pool.seed_cache, flush=True)
    job = {"op": "interpret", "kind": "triton", "entry": "launch", "args": [{"name": "x", "scalar": 1}]}
    job |= {"target": None, "mutates": [], "source": sys.argv[1]}
    await pool.run(job, limit_s=600)

asyncio.run(main())
"""


def test_a_judge_that_is_killed_leaves_neither_process_nor_file(tmp_path: Path) -> None:
    started = tmp_path / "started"
    source = doing(f"open({str(started)!r}, 'w').write(os.getcwd())\ntime.sleep(1000)")
    judge = subprocess.Popen([sys.executable, "-c", JUDGE, source], stdout=subprocess.PIPE)
    assert judge.stdout is not None
    seed = Path(judge.stdout.readline().decode().strip())
    until(lambda: started.exists() and bool(started.read_text()))
    below = descendants(judge.pid)
    assert len(below) == 2  # the pool process and its child
    judge.kill()
    judge.communicate()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))
    assert not seed.exists()
    assert not Path(started.read_text()).exists()


def test_a_pool_that_cannot_start_is_the_machines_problem(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "BOOT", "import sys; sys.exit('no such module: torch')")

    async def started() -> None:
        pool = Pool("interpret")
        try:
            await pool.start()
        finally:
            await pool.close()

    with pytest.raises(MachineProblem, match="no such module: torch"):
        runner.run(started())


# --- looking at processes ---------------------------------------------------------------------------------


def until(holds: Callable[[], bool]) -> None:
    """Wait for something that must come about, and fail the test where it does not within a minute."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = {int(each) for each in (thread / "children").read_text().split()}
        except FileNotFoundError:
            continue
        for child in children:
            found.add(child)
            try:
                found |= descendants(child)
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return ""


def pools(before: set[int]) -> set[int]:
    """A pool process that a test was the first to need."""
    return {pid for pid in descendants(os.getpid()) if pid not in before and "runpy" in command(pid)}
