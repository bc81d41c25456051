"""The loop, driven by a scripted planner and judge on real run directories."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tilewright.agent.scripted import EchoSkills, ScriptedPlanner
from tilewright.harness.errors import MachineProblem, TaskProblem
from tilewright.harness.judge.scripted import ScriptedJudge
from tilewright.harness.loop import Event, Finished, Proposed, Started, optimize
from tilewright.harness.roles import Ask, History, Once
from tilewright.harness.runs.state import Run
from tilewright.harness.types import (
    Candidate,
    Case,
    Claim,
    Decision,
    Failure,
    Judged,
    Move,
    Proof,
    Proposal,
    Receipt,
    Settings,
    Status,
    Target,
    Task,
    Verdict,
)


@pytest.fixture
def task() -> Task:
    return Task(
        name="scripted",
        kind="triton",
        path="scripted.py",
        source="# the task\n",
        start="# the start\n",
        entry="launch",
        cases=(Case(name="only", bindings={}),),
    )


@pytest.fixture
def target() -> Target:
    return Target(
        name="cuda:90",
        device="none",
        backend="cuda",
        arch=90,
        warp_size=32,
        multiprocessors=1,
        clock_hz=1e9,
        dram_bytes_per_s=1e12,
        dram_latency_s=5e-7,
        l2_bytes=1 << 20,
        l2_bytes_per_s=2e12,
        shared_bytes_per_multiprocessor=1 << 17,
        shared_bytes_per_block=1 << 17,
        registers_per_multiprocessor=65536,
        warps_per_multiprocessor=64,
        blocks_per_multiprocessor=32,
        fp32_flops_per_s=1e13,
        tensor_flops_per_s={},
        launch_s=1e-6,
        source="made up for tests",
    )


@pytest.fixture
def run(tmp_path: Path, task: Task, target: Target) -> Run:
    return Run.create(tmp_path / "run", task, target, Settings(target="cuda:90", seed=3, run="r"), {})


def go(run: Run, rounds: int, judge: ScriptedJudge | None = None, skills: EchoSkills | None = None) -> list[Event]:
    seen: list[Event] = []
    planner = ScriptedPlanner(ask=True, batch=3)
    asyncio.run(
        optimize(run, planner, skills or EchoSkills(), judge or ScriptedJudge(), rounds=rounds, tell=seen.append)
    )
    return seen


def decisions(run: Run) -> list[tuple[object, ...]]:
    return [(r.n, r.parent, r.candidate, r.decision, r.move, r.choice, r.trials) for r in run.rounds]


def test_round_0_is_the_baseline(run: Run) -> None:
    go(run, 0)
    base = run.rounds[0]
    assert (base.parent, base.decision, base.ratio, base.move) == (None, Decision.KEPT, 1.0, None)
    assert run.source(0) == run.task.start
    assert run.best is base


def test_every_round_is_told_when_it_begins_when_it_is_planned_and_when_it_is_committed(run: Run) -> None:
    kinds = [type(event) for event in go(run, 2)]
    assert kinds == [Started, Finished, Started, Proposed, Finished, Started, Proposed, Finished]


def test_the_same_seed_decides_the_same(run: Run, tmp_path: Path, task: Task, target: Target) -> None:
    go(run, 12)
    again = Run.create(tmp_path / "again", task, target, run.settings, {})
    go(again, 12)
    assert decisions(run) == decisions(again)
    assert any(r.decision is Decision.KEPT for r in run.rounds[1:])


def test_another_seed_decides_otherwise(run: Run, tmp_path: Path, task: Task, target: Target) -> None:
    go(run, 6)
    other = Run.create(tmp_path / "other", task, target, Settings(target="cuda:90", seed=4, run="r"), {})
    go(other, 6)
    assert decisions(run) != decisions(other)


def test_resuming_is_calling_the_loop_again(run: Run, tmp_path: Path, task: Task, target: Target) -> None:
    go(run, 8)
    stepwise = Run.create(tmp_path / "steps", task, target, run.settings, {})
    for rounds in range(9):
        go(stepwise, rounds)
        stepwise.close()
        stepwise = Run.open(tmp_path / "steps", write=True)
    assert decisions(run) == decisions(stepwise)
    assert Run.open(tmp_path / "steps", write=False).observations == stepwise.observations


class Dies(ScriptedJudge):
    """Judges as scripted until told to die."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    async def _one(self, task: Task, candidate: Candidate) -> Judged:
        if len(self.judged) >= self.after:
            raise KeyboardInterrupt
        return await super()._one(task, candidate)


def test_a_round_that_died_half_way_repeats_no_question_and_no_verdict(
    run: Run, tmp_path: Path, task: Task, target: Target
) -> None:
    go(run, 5)
    whole = ScriptedJudge()
    undisturbed = Run.create(tmp_path / "undisturbed", task, target, run.settings, {})
    go(undisturbed, 5, whole)

    path = tmp_path / "cut"
    cut = Run.create(path, task, target, run.settings, {})
    judged: list[str] = []
    asked: list[str] = []
    for _life in range(40):
        judge, skills = Dies(1), EchoSkills()
        try:
            go(cut, 5, judge, skills)
        except KeyboardInterrupt:
            cut.close()
            cut = Run.open(path, write=True)
        else:
            break
        finally:
            judged += judge.judged
            asked += skills.asked
    assert decisions(cut) == decisions(undisturbed)
    assert judged == whole.judged
    assert len(asked) == 5


def test_a_start_that_does_not_pass_is_the_tasks_fault_and_is_on_record(run: Run) -> None:
    class Wrong(ScriptedJudge):
        async def judge(self, task: Task, candidates: Sequence[Candidate], once: Once) -> Judged:
            verdict = Verdict(status=Status.FAIL, failure=Failure.WRONG, detail="row 3 is off")
            proof = Proof(candidate=candidates[0].digest, task=task.digest, target="t")
            return Judged(candidate=candidates[0], verdict=verdict, proof=proof)

    with pytest.raises(TaskProblem, match=r"scripted\.py: the starting kernel does not pass .*row 3 is off"):
        go(run, 3, Wrong())
    assert run.rounds[0].verdict.failure is Failure.WRONG
    with pytest.raises(TaskProblem, match="starting kernel"):
        go(run, 3, Wrong())


def test_a_failing_machine_commits_nothing_about_the_kernel(run: Run) -> None:
    class Broken(ScriptedJudge):
        async def judge(self, task: Task, candidates: Sequence[Candidate], once: Once) -> Judged:
            raise MachineProblem("the worker died", "try again")

    go(run, 1)
    with pytest.raises(MachineProblem):
        go(run, 3, Broken())
    assert len(run.rounds) == 2
    go(run, 3)
    assert len(run.rounds) == 4


def test_a_planner_with_nothing_left_ends_the_run_well(run: Run) -> None:
    ending = asyncio.run(optimize(run, ScriptedPlanner(last=2), EchoSkills(), ScriptedJudge(), rounds=9))
    assert ending == "the script ends here"
    assert len(run.rounds) == 3


def test_a_run_can_be_stopped_between_rounds(run: Run) -> None:
    ending = asyncio.run(
        optimize(run, ScriptedPlanner(), EchoSkills(), ScriptedJudge(), rounds=9, stop=lambda: len(run.rounds) == 2)
    )
    assert ending == "stopped"
    assert len(run.rounds) == 2


def test_a_round_without_a_candidate_is_a_round(run: Run) -> None:
    class Empty:
        async def propose(self, history: History, ask: Ask) -> Proposal:
            return Proposal(parent=0, hypothesis="nothing fits", move=Move(direction="d", strategy="s"))

    go(run, 0)
    asyncio.run(optimize(run, Empty(), EchoSkills(), ScriptedJudge(), rounds=1))
    assert (run.rounds[1].decision, run.rounds[1].candidate) == (Decision.NONE, None)
    assert run.observations == []


def test_a_claim_that_did_not_come_true_is_not_kept_however_low_the_modelled_time(run: Run) -> None:
    class Claims:
        async def propose(self, history: History, ask: Ask) -> Proposal:
            source = history.task.start + "# " * 400
            return Proposal(
                parent=0,
                candidates=(Candidate(source=source, claim=Claim(fact="num_warps", relation="==", value=-1)),),
                move=Move(direction="d", strategy="s"),
            )

    go(run, 0)
    asyncio.run(optimize(run, Claims(), EchoSkills(), ScriptedJudge(), rounds=1))
    done = run.rounds[1]
    assert done.verdict.status is Status.PASS
    assert done.ratio is not None
    assert done.ratio > 2
    assert (done.receipt, done.decision) == (Receipt.REFUTED, Decision.DISCARDED)
