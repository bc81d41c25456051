"""The judge without a GPU, whole: real tasks in, verdicts out."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from tilewright.harness import codec
from tilewright.harness.errors import TaskProblem
from tilewright.harness.judge import judge_for
from tilewright.harness.judge.device import device_available
from tilewright.harness.judge.modelled import InterpreterJudge
from tilewright.harness.types import Candidate, Failure, How, Json, Judged, Status
from tilewright.knowledge.targets import target

T = TypeVar("T")

TASK = '''
"""Softmax of rows."""
import torch, triton, triton.language as tl

inputs = {
    "args": {"x": "T[M, N]"},
    "cases": [{"M": 4096, "N": 1000, "T": "float32"}],
    "check": [{"M": 3, "N": 257}, {"M": 5, "N": 64}, {"M": 1, "N": 31}],
}

def reference(x):
    return torch.softmax(x, -1)

@triton.jit
def kernel(x, o, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + at, mask=at < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(o + row * n + at, e / tl.sum(e, 0), mask=at < n)

def launch(x):
    o = torch.empty_like(x)
    kernel[(x.shape[0],)](x, o, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=4)
    return o
'''


def test_a_sound_start_passes_and_says_how_it_is_known(bench: Any) -> None:
    judged: Judged = bench.judged(bench.task(TASK))
    verdict, proof = judged.verdict, judged.proof
    assert verdict.status is Status.PASS, verdict.detail
    assert (verdict.correct, verdict.timed) == (How.INTERPRETER, How.MODELLED)
    (time,) = verdict.times
    assert time.time_us > time.floor_us > 0
    assert {"races between programs", "indices at full size", "time on a device"} <= set(proof.not_checked)
    (kernel,) = proof.kernels
    assert (kernel.kernel, kernel.grid, kernel.launches) == ("kernel", (4096, 1, 1), 1)
    assert kernel.facts["registers"]
    assert kernel.facts["load_bytes"] == 4096 * 1000 * 4
    assert isinstance(proof.errors, dict)
    assert len(proof.errors) == 6  # three checks, two seeds
    assert codec.load(Judged, codec.dump(judged)) == judged


STORE = "tl.store(o + row * n + at, e / tl.sum(e, 0), mask=at < n)"
WRONG = {
    "returns zeros": (STORE, STORE.replace("e / tl.sum(e, 0)", "e * 0.0"), Failure.WRONG),
    "skips the last column": (STORE, STORE.replace("at < n", "at < n - 1"), Failure.WRONG),
    "forgets a mask": (', mask=at < n, other=-float("inf"))', ")", Failure.LAUNCH),
    "has half precision inside": (
        STORE,
        STORE.replace("e / tl.sum(e, 0)", "(e / tl.sum(e, 0)).to(tl.float16).to(tl.float32)"),
        Failure.PRECISION,
    ),
    "returns the input": ("    return o\n", "    return x\n", Failure.WRONG),
    "returns another dtype": ("    return o\n", "    return o.half()\n", Failure.WRONG),
    "does not compile": ("tl.max(v, 0)", "tl.maximal(v, 0)", Failure.COMPILE),
    "raises when it is loaded": ("import torch, triton", "1 / 0\nimport torch, triton", Failure.LAUNCH),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_candidate_that_is_not_right_fails_with_its_reason(name: str, bench: Any) -> None:
    old, new, failure = WRONG[name]
    task = bench.task(TASK)
    assert old in task.start
    verdict = bench.judged(task, task.start.replace(old, new)).verdict
    assert (verdict.status, verdict.failure) == (Status.FAIL, failure), verdict.detail
    assert verdict.times == ()
    assert verdict.timed is How.NOT_CHECKED


def test_a_batch_puts_its_fastest_right_candidate_forward(bench: Any) -> None:
    task = bench.task(TASK)
    slow = task.start.replace("num_warps=4", "num_warps=32")
    lying = task.start.replace("e / tl.sum(e, 0), mask", "0.0, mask").replace("tl.exp(v - tl.max(v, 0))", "v")
    broken = task.start.replace("tl.exp", "tl.expo")
    judged = bench.judged(task, broken, slow, lying, task.start)
    assert judged.candidate is not None
    assert judged.candidate.source == task.start
    assert judged.verdict.status is Status.PASS
    trials = {trial.candidate: trial for trial in judged.trials}
    assert trials[Candidate(source=broken).digest].failure is Failure.COMPILE
    assert trials[Candidate(source=lying).digest].failure is Failure.WRONG
    unchecked = trials[Candidate(source=slow).digest]
    assert unchecked.status is None
    assert unchecked.time_us > judged.verdict.time_us


def test_the_same_machine_code_has_the_same_digest_and_other_code_another(bench: Any) -> None:
    task = bench.task(TASK)
    renamed = task.start.replace("row", "line").replace("def launch", "# nothing\n\n\ndef launch")
    digests = [
        bench.judged(task, source).proof.kernels[0].digest
        for source in (task.start, renamed, task.start.replace("num_warps=4", "num_warps=8"))
    ]
    assert digests[0] == digests[1] != digests[2]


def test_what_was_stored_is_not_done_again(bench: Any, runner: asyncio.Runner, judge: InterpreterJudge) -> None:
    stored: dict[str, bytes] = {}

    async def once(key: str, kind: type[T], do: Callable[[], Awaitable[T]]) -> T:
        if key not in stored:
            stored[key] = codec.dump(await do(), kind)
        return codec.load(kind, stored[key])

    async def never(key: str, kind: type[T], do: Callable[[], Awaitable[T]]) -> T:
        return codec.load(kind, stored[key])

    task = bench.task(TASK)
    batch = [Candidate(source=task.start), Candidate(source=task.start.replace("tl.exp", "tl.expo"))]
    first = runner.run(judge.judge(task, batch, once))
    assert runner.run(judge.judge(task, batch, never)) == first


def test_an_input_that_is_overwritten_without_leave_is_suspect(bench: Any) -> None:
    task = bench.task(TASK)
    verdict = bench.judged(task, task.start.replace("    o = torch.empty_like(x)\n", "    o = x\n")).verdict
    assert verdict.status is Status.SUSPECT
    assert "input-mutation: it overwrites x" in verdict.detail


def test_a_candidate_that_hangs_is_a_timeout(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.harness.judge.model.COMPILE_LIMIT_S", 1.0)
    task = bench.task(TASK)
    verdict = bench.judged(task, task.start.replace("    o = torch", "    while True: pass\n    o = torch")).verdict
    assert (verdict.status, verdict.failure) == (Status.FAIL, Failure.TIMEOUT)


# --- weak tasks and faulty ones ---------------------------------------------------------------------------


def test_a_task_whose_result_is_a_constant_is_weak_and_claims_no_speed_up(bench: Any) -> None:
    weak = TASK.replace("return torch.softmax(x, -1)", "return torch.softmax(x, -1) * 0 + 1")
    weak = weak.replace("e / tl.sum(e, 0), mask", "e * 0 + 1.0, mask")
    verdict = bench.judged(bench.task(weak)).verdict
    assert verdict.status is Status.TASK_WEAK
    assert "the result of other inputs" in verdict.detail


FAULTY = {
    "raises": ("return torch.softmax(x, -1)", "return torch.softmax(x, 7)", "IndexError"),
    "returns nothing": ("return torch.softmax(x, -1)", "torch.softmax(x, -1)", "nothing to compare"),
    "returns a number": ("return torch.softmax(x, -1)", "return 3", "expected a tensor"),
    "imports what is not there": ("import torch,", "import nowhere_to_be_found\nimport torch,", "ModuleNotFoundError"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_reference_is_the_tasks_problem_and_not_the_candidates(name: str, bench: Any) -> None:
    old, new, expected = FAULTY[name]
    task = bench.task(TASK)
    broken = bench.task(TASK.replace(old, new, 1))
    with pytest.raises(TaskProblem, match=expected) as raised:
        bench.judged(broken, task.start)
    assert "task.py" in str(raised.value)


def test_the_line_at_which_a_reference_raises_is_named(bench: Any) -> None:
    text = TASK.replace("return torch.softmax(x, -1)", "return torch.softmax(x, 7)")
    line = text.splitlines().index("    return torch.softmax(x, 7)") + 1
    with pytest.raises(TaskProblem) as raised:
        bench.judged(bench.task(text))
    assert raised.value.line == line


INTEGERS = """
import torch

inputs = {
    "args": {"x": "float32[M, N]", "target": "int64[M] integers[0, N]"},
    "cases": [{"M": 64, "N": 100}],
    "check": [{"M": 7, "N": 33}],
}

def reference(x, target):
    assert target.dtype is torch.int64
    return torch.nn.functional.cross_entropy(x, target, reduction="none")

def launch(x, target):
    return torch.logsumexp(x, -1) - x.gather(1, target[:, None])[:, 0]
"""


def test_integer_arguments_reach_reference_and_candidate_as_integers(bench: Any) -> None:
    verdict = bench.judged(bench.task(INTEGERS)).verdict
    assert verdict.status is Status.PASS, verdict.detail


MUTATING = """
import torch

mutates = ["x"]
inputs = {
    "args": {"x": "float32[M, N]", "scale": 3.0},
    "cases": [{"M": 64, "N": 100}],
    "check": [{"M": 7, "N": 33}],
}

def reference(x, scale):
    x.mul_(scale)

def launch(x, scale):
    x.mul_(scale)
"""


def test_a_result_that_is_written_over_an_argument_is_compared_there(bench: Any) -> None:
    task = bench.task(MUTATING)
    assert bench.judged(task).verdict.status is Status.PASS
    wrong = bench.judged(task, task.start.replace("x.mul_(scale)", "x.mul_(scale + 0.01)")).verdict
    assert wrong.failure is Failure.WRONG or wrong.failure is Failure.PRECISION


# --- KernelBench ------------------------------------------------------------------------------------------

BENCH = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, features, bias):
        super().__init__()
        self.linear = nn.Linear(features, 24, bias=bias)
        self.norm = nn.BatchNorm1d(24)

    def forward(self, x):
        return self.norm(self.linear(x))

batch_size = 64
features = 40

def get_inputs():
    return [torch.rand(batch_size, features)]

def get_init_inputs():
    return [features, True]
"""
NEW = """
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def __init__(self, features, bias):
        super().__init__()
        self.norm = nn.BatchNorm1d(24)  # drawn in another order than the reference's
        self.linear = nn.Linear(features, 24, bias=bias)

    def forward(self, x):
        return self.norm(torch.addmm(self.linear.bias, x, self.linear.weight.t()))
"""


def test_a_module_gets_the_references_weights_by_name(bench: Any) -> None:
    verdict = bench.judged(bench.task(BENCH, NEW)).verdict
    assert verdict.status is Status.PASS, verdict.detail


def test_weights_of_other_names_are_listed_on_both_sides(bench: Any) -> None:
    verdict = bench.judged(bench.task(BENCH, NEW), NEW.replace("self.linear", "self.proj")).verdict
    assert verdict.status is Status.FAIL
    assert "only the candidate has proj.bias, proj.weight" in verdict.detail
    assert "only the reference has linear.bias, linear.weight" in verdict.detail


def test_a_weight_of_another_shape_is_named(bench: Any) -> None:
    wider = NEW.replace("nn.Linear(features, 24", "nn.Linear(features, 25")
    wider = wider.replace(
        "self.linear.bias, x, self.linear.weight.t()", "self.linear.bias[:24], x, self.linear.weight[:24].t()"
    )
    verdict = bench.judged(bench.task(BENCH, NEW), wider).verdict
    assert "weight linear." in verdict.detail
    assert "(24, 40)" in verdict.detail
    assert "(25, 40)" in verdict.detail


def test_state_that_the_reference_changes_is_part_of_the_contract(bench: Any) -> None:
    forgetful = NEW.replace(
        "return self.norm(", "return nn.functional.batch_norm(None, None, None, training=True) if 0 else self.still("
    ) + textwrap.dedent("""
        def still(self, x):
            norm = self.norm
            return nn.functional.batch_norm(x, None, None, norm.weight, norm.bias, training=True)
        ModelNew.still = still
    """)
    verdict = bench.judged(bench.task(BENCH, NEW), forgetful).verdict
    assert verdict.status is Status.FAIL
    assert "state:norm.running_mean" in verdict.detail


def test_inputs_that_raise_are_the_tasks_problem(bench: Any) -> None:
    broken = BENCH.replace("torch.rand(batch_size, features)", "torch.rand(batch_size, -features)")
    with pytest.raises(TaskProblem, match="RuntimeError"):
        bench.judged(bench.task(broken, NEW))


# --- choosing ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(device_available(), reason="there is a GPU here")
def test_without_a_device_the_judge_models_and_refuses_to_measure(runner: asyncio.Runner) -> None:
    from tilewright.harness.errors import MachineProblem

    made = judge_for(target("cuda:90"))
    assert isinstance(made, InterpreterJudge)
    runner.run(made.close())
    with pytest.raises(MachineProblem, match="no usable GPU"):
        judge_for(target("cuda:90"), measure=True)


def test_errors_in_a_proof_are_plain_numbers(bench: Any) -> None:
    def leaves(value: Json) -> list[Json]:
        if isinstance(value, dict):
            return [leaf for inner in value.values() for leaf in leaves(inner)]
        return [value]

    shares = leaves(bench.judged(bench.task(TASK)).proof.errors)
    assert shares
    assert all(isinstance(share, float) and 0 <= share <= 1 for share in shares)
