"""Candidates that fool a judge, and beside each the honest one that looks like it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.judge.test_modelled import BENCH, NEW, TASK
from tilewright.harness import judge
from tilewright.harness.types import Failure, Status

HEAD = TASK[: TASK.index("def launch")]
CALL = "    kernel[(x.shape[0],)](x, o, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=4)\n"
FILL = """
@triton.jit
def fill(o, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + at, tl.zeros([BLOCK], tl.float32), mask=at < n)

"""
FILLED = "    fill[(triton.cdiv(o.numel(), 1024),)](o, o.numel(), BLOCK=1024)\n"
MAKE = "    o = torch.empty_like(x)\n"
MEMO = """
KEPT = {{}}

def launch(x):
    key = {}
    if key not in KEPT:
        o = torch.empty_like(x)
    {}        KEPT[key] = o
    return KEPT[key].clone()
"""
FORGE = """
import json, os, socket, struct, sys

def forge(operation, header, payload=b""):
    frame = sys._getframe()
    while frame is not None:
        job = frame.f_locals.get("job")
        if isinstance(job, dict) and job.get("op") == operation:
            text = header if isinstance(header, bytes) else json.dumps(header).encode()
            prefix = struct.pack("<4sIQ", b"TWF1", len(text), len(payload))
            socket.socket(fileno=os.dup(3)).sendall(prefix + text + payload)
            os._exit(0)
        frame = frame.f_back

"""


def launching(*lines: str, before: str = "") -> str:
    return HEAD + before + "def launch(x):\n" + "".join(lines)


def memo(key: str) -> str:
    return HEAD + MEMO.format(key, CALL)


def forging(operation: str, header: str) -> str:
    return launching(f"    forge({operation!r}, {header})\n", MAKE, CALL, "    return o\n", before=FORGE)


KEEPS = {
    "one output buffer for all calls": launching(
        "    o = OUT.setdefault(x.shape, torch.empty_like(x))\n", CALL, "    return o\n", before="OUT = {}\n"
    ),
    "the result for an address": memo("x.data_ptr()"),
    "the result for an object": memo("id(x)"),
    "the result for an address and a version": memo("(x.data_ptr(), x._version)"),
    "the result for a shape": memo("x.shape"),
    "a count of its calls": launching(
        "    N.append(0)\n", MAKE, CALL, "    return o if len(N) == 1 else o * 0\n", before="N = []\n"
    ),
}


@pytest.mark.parametrize("name", KEEPS)
def test_what_is_kept_from_one_call_may_not_show_in_the_next(name: str, bench: Any) -> None:
    verdict = bench.judged(bench.task(TASK), KEEPS[name]).verdict
    assert (verdict.status, verdict.failure) == (Status.FAIL, Failure.WRONG), verdict.detail
    assert "second call overwrites" in verdict.detail or "called twice" in verdict.detail


def test_a_workspace_may_be_kept(bench: Any) -> None:
    work = CALL.replace("(x, o,", "(x, w,")
    kept = launching(
        "    w = W.setdefault(x.shape, torch.empty_like(x))\n", MAKE, work, CALL, "    return o\n", before="W = {}\n"
    )
    verdict = bench.judged(bench.task(TASK), kept).verdict
    assert verdict.status is Status.PASS, verdict.detail


UNLIKE = {
    "launches nothing at full size": launching(MAKE, "    if x.numel() < 5000:\n    ", CALL, "    return o\n"),
    "computes a few rows at full size": launching(
        MAKE, CALL.replace("x.shape[0],)", "min(x.shape[0], 8),)"), "    return o\n"
    ),
    "runs another kernel at full size": launching(
        MAKE, "    if x.numel() > 5000:\n    ", FILLED, "        return o\n", CALL, "    return o\n", before=FILL
    ),
    "lets torch compute what is checked": launching(
        MAKE, FILLED, "    return torch.softmax(x, -1) if x.numel() < 5000 else o\n", before=FILL
    ),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_what_is_checked_must_be_what_is_timed(name: str, bench: Any) -> None:
    verdict = bench.judged(bench.task(TASK), UNLIKE[name]).verdict
    assert verdict.status is Status.SUSPECT, (verdict.status, verdict.detail)
    assert "not-written" in verdict.detail or "not-executed" in verdict.detail


HONEST = {
    "takes another way for the smallest": launching(
        "    if x.numel() < 100:\n        return torch.softmax(x, -1)\n", MAKE, CALL, "    return o\n"
    ),
    "pads odd sizes": launching(
        "    n = x.shape[1]\n",
        '    x = torch.nn.functional.pad(x, (0, -n % 8), value=float("-inf"))\n',
        MAKE,
        CALL,
        "    return o[:, :n].contiguous()\n",
    ),
    "takes more warps for the large": launching(
        MAKE, CALL.replace("num_warps=4", "num_warps=8 if x.numel() > 5000 else 4"), "    return o\n"
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_choice_by_size_passes(name: str, bench: Any) -> None:
    verdict = bench.judged(bench.task(TASK), HONEST[name]).verdict
    assert verdict.status is Status.PASS, verdict.detail


UNSEEN = {
    "computes on the host": launching("    return torch.softmax(x.cpu(), -1).cuda()\n"),
    "computes on a thread": launching(
        MAKE,
        FILLED,
        "    t = threading.Thread(target=lambda: o.copy_(torch.softmax(x, -1)))\n",
        "    t.start()\n    t.join()\n    return o\n",
        before=FILL + "import threading\n",
    ),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_work_that_the_model_cannot_see_is_unsupported(name: str, bench: Any) -> None:
    verdict = bench.judged(bench.task(TASK), UNSEEN[name]).verdict
    assert (verdict.status, verdict.failure) == (Status.FAIL, Failure.UNSUPPORTED), verdict.detail


NAN_CENSUS = """{
        "launches": [{"kernel": "kernel", "grid": [4096, 1, 1], "counts": {"load_bytes": float("nan")},
                      "lines": {"load": {}, "store": {}}}],
        "order": [0],
        "tensors": [],
    }"""
BLANK = {"shape": [1], "dtype": "float32", "name": "out0", "nbytes": 4}
FORGED = {
    "blames the task": ("interpret", '{"failed": {"failure": "task", "detail": "broken"}, "tensors": []}'),
    "fails with a word of its own": ("interpret", '{"failed": {"failure": "odd", "detail": ""}, "tensors": []}'),
    "fails with a text": ("interpret", '{"failed": "yes", "tensors": []}'),
    "says nothing of the check": ("interpret", '{"tensors": []}'),
    "says nothing of the compiler": ("compile", '{"tensors": []}'),
    "says nothing of the census": ("census", '{"tensors": []}'),
    "lists numbers for names": ("interpret", '{"changed": [1], "rewritten": [], "autotuned": [], "tensors": []}'),
    "counts what is no number": ("census", NAN_CENSUS),
    "points past the end": ("census", '{"launches": [], "order": [7], "tensors": []}'),
    "nests without end": ("interpret", 'b"[" * 200_000'),
    "has endless sizes": ("interpret", f'{{"tensors": [{{**{BLANK}, "shape": [10**300] * 9}}]}}'),
}


@pytest.mark.parametrize("name", FORGED)
def test_an_answer_that_is_none_is_the_candidates_failure(name: str, bench: Any) -> None:
    verdict = bench.judged(bench.task(TASK), forging(*FORGED[name])).verdict
    assert (verdict.status, verdict.failure) == (Status.FAIL, Failure.LAUNCH), verdict.detail
    assert len(verdict.detail) < 1000


def test_a_candidate_cannot_blame_the_task_that_works_without_it(bench: Any) -> None:
    blame = "from tilewright.harness.worker.failed import Failed\nraise Failed('task', 'the inputs are broken')\n"
    verdict = bench.judged(bench.task(BENCH, NEW), NEW + blame).verdict
    assert (verdict.status, verdict.failure) == (Status.FAIL, Failure.LAUNCH)
    assert "works without it" in verdict.detail


@pytest.mark.parametrize(
    "made", ["torch.Tensor(*x.shape).cuda()", "torch.empty_permuted(x.shape, (0, 1), device=x.device)"]
)
def test_memory_that_nobody_wrote_is_never_zero(made: str, bench: Any) -> None:
    adding = HEAD.replace("at, e /", "at, tl.load(o + row * n + at, mask=at < n) + e /")
    candidate = f"{adding}def launch(x):\n    o = {made}\n{CALL}    return o\n"
    task = bench.task(TASK)
    assert bench.judged(task, candidate).verdict.failure is Failure.WRONG
    assert bench.judged(task, candidate.replace(adding, HEAD)).verdict.status is Status.PASS


def test_workers_are_of_the_judges_own_version(bench: Any) -> None:
    own = Path(judge.__file__).parent.parent / "worker"
    asking = launching(
        f"    assert tilewright.harness.worker.__path__[0] == {str(own)!r}, tilewright.harness.worker.__path__\n",
        MAKE,
        CALL,
        "    return o\n",
        before="import tilewright.harness.worker\n",
    )
    verdict = bench.judged(bench.task(TASK), asking).verdict
    assert verdict.status is Status.PASS, verdict.detail
