"""The memory skill on run directories, through MCP, as the loop and an editor's agent use it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.harness import codec
from tilewright.harness.gitstore import Store
from tilewright.harness.host import Host
from tilewright.harness.observe import context, observe
from tilewright.harness.runs.state import Run
from tilewright.harness.types import (
    Candidate,
    Case,
    CaseTime,
    Choice,
    Decision,
    Evidence,
    Failure,
    How,
    Move,
    Record,
    Round,
    Settings,
    Standing,
    Status,
    Task,
    Verdict,
)
from tilewright.knowledge.cards import load
from tilewright.knowledge.targets import target
from tilewright.skills.memory.library import Library

CARDS = load()
TASK = Task(
    name="t", kind="triton", path="t.py", source="# t\n", start="# s\n", entry="launch", family="softmax",
    cases=(Case(name="only", bindings={}),),
)  # fmt: skip
OFFERED = [{"direction": s.direction, "strategy": s.id, "support": 0.5} for s in CARDS.strategies.values()]


def verdict(time_us: float | None) -> Verdict:
    if time_us is None:
        return Verdict(status=Status.FAIL, failure=Failure.WRONG, detail="off by one")
    times = (CaseTime(case="only", weight=1.0, time_us=time_us, floor_us=10.0, bound="dram"),)
    return Verdict(status=Status.PASS, correct=How.INTERPRETER, timed=How.MODELLED, times=times)


def add(run: Run, strategy: str, time_us: float | None, choice: Choice | None = None) -> Record:
    """Commit one more round on the best candidate so far."""
    candidate = Candidate(source=f"# round {run.next}\n")
    first = not run.rounds
    best = None if first else run.best
    faster = time_us is not None and (best is None or time_us < (best.verdict.time_us or 0))
    done = Round(
        n=run.next,
        parent=best.n if best else None,
        verdict=verdict(time_us),
        decision=Decision.KEPT if faster else Decision.DISCARDED,
        reason="because",
        candidate=candidate.digest,
        move=None if first else Move(direction=CARDS.strategies[strategy].direction, strategy=strategy),
        choice=choice,
    )
    seen = observe(run.task, run.target, run.settings, run.rounds, done, run.fastest_us)
    record = Record(round=done, source=candidate.source, observation=seen)
    run.commit(record)
    return record


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    settings = Settings(target="cuda:90", run="run-1", versions={"triton": "3.9.0"})
    with Run.create(tmp_path / "run", TASK, target("cuda:90"), settings, {"t.py": b"# t\n"}) as made:
        add(made, "one-pass", 100.0)
        yield made


Asking = Callable[[str, dict[str, Any]], Awaitable[Evidence]]


def asked(script: Callable[[Asking], Awaitable[None]]) -> None:
    """Run `script` with a way to ask the memory skill over MCP."""

    async def go() -> None:
        async with Host() as host:
            await script(lambda tool, arguments: host.ask("memory", tool, arguments))

    asyncio.run(go())


def question(run: Run, **changed: Any) -> dict[str, Any]:
    where = context(run.task, run.target, run.settings, run.best.verdict)
    return {
        "run": run.path,
        "context": codec.plain(where),
        "prefix": [],
        "offered": OFFERED,
        "seed": 7,
        "round": run.next,
        "budget": 10,
        **changed,
    }


def answer(evidence: Evidence) -> dict[str, Any]:
    assert evidence.standing is not Standing.UNAVAILABLE, evidence.note
    assert isinstance(evidence.answer, dict)
    return evidence.answer


def test_a_suggestion_learns_from_each_round_as_it_is_committed(run: Run) -> None:
    async def script(ask: Asking) -> None:
        before = answer(await ask("suggest", question(run)))
        assert before["observations"] == 0
        share = before["choice"]["distribution"]["memory-access"]
        for n, time_us in enumerate((50.0, None, 25.0)):
            add(run, "coalesce-accesses", time_us)
            after = answer(await ask("suggest", question(run)))
            assert after["observations"] == n + 1
        assert after["choice"]["distribution"]["memory-access"] > share
        assert after == answer(await ask("suggest", question(run)))
        terms: Any = codec.load(Choice, json.dumps(after["choice"])).terms
        assert terms["directions"]["memory-access"]["nearest"] == 1

    asked(script)


def test_switches_reach_the_choice_and_an_unknown_one_is_refused_with_the_known_ones(run: Run) -> None:
    async def script(ask: Asking) -> None:
        add(run, "coalesce-accesses", 50.0)
        none = answer(await ask("suggest", question(run, memory="none", switches=["no-prefix"])))
        assert set(none["choice"]["distribution"].values()) == {round(1 / 9, 9)}
        thompson = answer(await ask("suggest", question(run, policy="thompson")))
        assert thompson["choice"]["policy"] == "thompson"
        bad = await ask("suggest", question(run, switches=["no-luck"]))
        assert bad.standing is Standing.UNAVAILABLE
        assert "no-prefix" in bad.note
        assert "'no-luck'" in bad.note

    asked(script)


def test_other_runs_teach_too_and_the_same_observation_only_once(run: Run, tmp_path: Path) -> None:
    async def script(ask: Asking) -> None:
        add(run, "coalesce-accesses", 50.0)
        shutil.copytree(run.path, tmp_path / "copy")
        both = answer(await ask("suggest", question(run, others=[str(tmp_path / "copy")])))
        assert both["observations"] == 1
        missing = await ask("suggest", question(run, others=[str(tmp_path / "nowhere")]))
        assert missing.standing is Standing.UNAVAILABLE
        assert "is not a run" in missing.note

    asked(script)


def test_a_round_is_explained_by_its_terms_and_the_rounds_behind_them(run: Run) -> None:
    async def script(ask: Asking) -> None:
        add(run, "coalesce-accesses", 50.0)
        said = answer(await ask("suggest", question(run)))
        add(run, "vector-access", None, codec.load(Choice, json.dumps(said["choice"])))
        told = answer(await ask("explain", {"run": run.path, "round": 2}))
        assert told["move"] == {"direction": "memory-access", "strategy": "vector-access"}
        assert told["outcome"] == "discarded: because"
        assert [b["round"] for b in told["behind"]] == [1]
        assert any(line.startswith("memory-access: probability 0.") and "utility" in line for line in told["why"])
        baseline = await ask("explain", {"run": run.path, "round": 0})
        assert baseline.standing is Standing.UNAVAILABLE
        assert "made no choice" in baseline.note
        assert "has no round 99" in (await ask("explain", {"run": run.path, "round": 99})).note

    asked(script)


def test_recording_accepts_what_the_judge_found_and_refuses_what_was_made_up(run: Run) -> None:
    async def script(ask: Asking) -> None:
        real = add(run, "coalesce-accesses", 50.0).observation
        add(run, "vector-access", None)
        assert real is not None
        told = answer(await ask("record", {"run": run.path, "observations": [real.digest]}))
        assert (told["learned"], told["outcomes"], told["refused"]) == (2, {"faster": 1, "wrong": 1}, [])
        invented = replace(real, reward_ppm=1_000_000).digest
        refused = await ask("record", {"run": run.path, "observations": [invented]})
        assert refused.standing is Standing.UNAVAILABLE
        assert "no commit" in refused.note

    asked(script)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"outcome": "faster", "reward_ppm": 900_000}, "the verdict FAIL allows wrong"),
        ({"strategy": "one-pass"}, "its strategy is not the round's"),
        ({"candidate": "0" * 64}, "its candidate is not the one"),
        ({"run": "run-2"}, "it speaks of run 'run-2'"),
        ({"round": 7}, "it speaks of round 7"),
        ({"reward_ppm": 5}, "does not go with wrong"),
        ({"prefix": ("precision",)}, "its prefix is not"),
    ],
)
def test_an_observation_that_was_committed_by_hand_is_refused_with_the_reason(
    run: Run, changed: dict[str, Any], why: str
) -> None:
    async def script(ask: Asking) -> None:
        record = add(run, "vector-access", None)
        assert record.observation is not None
        forged = codec.dump(replace(record.observation, **changed))
        store = Store(Path(run.path))
        tip = store.tip("refs/heads/main")
        store.append("refs/heads/main", tip, "by hand", {"rounds/00/0001/observation.json": forged})
        told = await ask("record", {"run": run.path})
        assert told.standing is Standing.REFUTED
        assert answer(told)["learned"] == 0
        assert why in answer(told)["refused"][0]["why"]

    asked(script)


def test_reading_goes_on_where_it_stopped_and_starts_again_when_history_was_rewritten(run: Run) -> None:
    library = Library()
    assert len(library.statistics([run.path])) == 0
    for n in range(1, 4):
        add(run, "coalesce-accesses", 100.0 - n)
        known = library.statistics([run.path])
        assert [o.round for o in known] == list(range(1, n + 1))
    add(run, "coalesce-accesses", 20.0)
    add(run, "coalesce-accesses", 10.0)  # two commits at once
    assert len(library.statistics([run.path])) == 5
    store = Store(Path(run.path))
    first = next(iter(store.log("refs/heads/main"))).sha
    store.point("refs/heads/main", first)
    assert len(library.statistics([run.path])) == 0
    assert library.observations(run.path) == []


def test_a_damaged_observation_is_named_and_nothing_is_learned_from_the_run(run: Run) -> None:
    async def script(ask: Asking) -> None:
        add(run, "coalesce-accesses", 50.0)
        store = Store(Path(run.path))
        tip = store.tip("refs/heads/main")
        store.append("refs/heads/main", tip, "by hand", {"rounds/00/0001/observation.json": b"{"})
        told = await ask("suggest", question(run))
        assert told.standing is Standing.UNAVAILABLE
        assert "rounds/00/0001/observation.json is not what it should be" in told.note
        assert "fsck" in told.note

    asked(script)


def test_searching_finds_the_card_that_is_meant() -> None:
    async def script(ask: Asking) -> None:
        for query, wanted in (
            ("vectorised loads", "vector-access"),
            ("split a long reduction", "split-reduction"),
            ("fewer atomics", "combine-before-atomic"),
        ):
            assert wanted in [h["id"] for h in answer(await ask("search", {"query": query, "limit": 3}))["hits"]]
        nothing = await ask("search", {"query": "zebra"})
        assert nothing.standing is Standing.INCONCLUSIVE
        assert len(answer(await ask("search", {"query": "memory", "limit": 2}))["hits"]) == 2

    asked(script)
