"""What was paid for is read back, never paid for twice, wherever the process was cut off."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.harness.errors import RunCorrupt, RunProblem
from tilewright.harness.runs.journal import Journal
from tilewright.harness.types import Evidence, Standing

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def store(path: Path, key: str, value: Any) -> Any:
    """Store `value` under `key` in the journal at `path`, or read what is there."""
    with Journal(path) as journal:
        return asyncio.run(journal.once(key, object, answering(value)))


def answering(value: Any) -> Callable[[], Awaitable[Any]]:
    async def do() -> Any:
        return value

    return do


async def never() -> Any:
    raise AssertionError("this was done a second time")


@given(st.dictionaries(st.text(max_size=8), values, min_size=1, max_size=6), st.data())
@settings(max_examples=40, deadline=None)
def test_a_journal_that_is_cut_off_anywhere_keeps_every_whole_line_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, entries: dict[str, Any], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("journal") / "1.jsonl"
    ends = [0]
    for key, value in entries.items():
        store(path, key, value)
        ends.append(path.stat().st_size)
    cut = data.draw(st.integers(0, ends[-1]))
    path.write_bytes(path.read_bytes()[:cut])
    whole = sum(end <= cut for end in ends[1:])
    keys = list(entries)
    with Journal(path) as journal:
        assert list(journal.keys) == keys[:whole]
        for key in keys[:whole]:
            assert asyncio.run(journal.once(key, object, never)) == entries[key]
    for key in keys[whole:]:
        assert store(path, key, entries[key]) == entries[key]
    with Journal(path) as journal:
        assert list(journal.keys) == keys


def test_a_noun_comes_back_as_the_noun_that_it_was(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    evidence = Evidence(skill="s", tool="t", question={"x": [1, 2.5]}, answer=None, standing=Standing.REFUTED)
    for do in (answering(evidence), never):
        with Journal(path) as journal:
            assert asyncio.run(journal.once("ask", Evidence, do)) == evidence


def test_an_entry_is_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    with Journal(path) as journal:
        asyncio.run(journal.once("a", int, answering(7)))
        assert json.loads(path.read_bytes()) == {"key": "a", "value": 7}


def test_what_fails_is_not_stored_and_may_be_tried_again(tmp_path: Path) -> None:
    async def fail() -> int:
        raise LookupError("not today")

    with Journal(tmp_path / "1.jsonl") as journal:
        with pytest.raises(LookupError, match="not today"):
            asyncio.run(journal.once("a", int, fail))
        assert asyncio.run(journal.once("a", int, answering(1))) == 1


def test_two_askers_of_one_thing_at_a_time_pay_once(tmp_path: Path) -> None:
    paid: list[int] = []

    async def pay() -> int:
        paid.append(1)
        await asyncio.sleep(0)
        return len(paid)

    async def both() -> list[int]:
        with Journal(tmp_path / "1.jsonl") as journal:
            return list(await asyncio.gather(*(journal.once("a", int, pay) for _ in range(3))))

    assert asyncio.run(both()) == [1, 1, 1]
    assert paid == [1]


def test_a_secret_of_the_environment_is_not_written_and_not_seen_by_the_one_who_stored_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_API_KEY", 'sk-"quoted"-123')
    path = tmp_path / "1.jsonl"
    assert store(path, "answer", {"text": 'use sk-"quoted"-123 now'}) == {"text": "use [secret MODEL_API_KEY] now"}
    assert b"quoted" not in path.read_bytes()


def test_a_line_that_was_damaged_later_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    for n in range(3):
        store(path, str(n), n)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"{broken\n" + lines[2])
    with pytest.raises(RunCorrupt, match=r"1\.jsonl:2: the journal") as caught:
        Journal(path)
    assert caught.value.remedy.endswith(f"rm {path}")


def test_garbage_at_the_end_after_a_power_cut_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    store(path, "a", 1)
    good = path.read_bytes()
    path.write_bytes(good + b"\0" * 40 + b"\n")
    with Journal(path) as journal:
        assert journal.keys == ("a",)
    assert path.read_bytes() == good


def test_a_full_disk_is_a_problem_and_what_was_stored_before_stays(
    tmp_path: Path, in_child: Callable[..., Any]
) -> None:
    path = tmp_path / "1.jsonl"
    store(path, "small", 1)
    good = path.read_bytes()

    def overflow() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        store(path, "large", "x" * 10_000)

    with pytest.raises(RunProblem, match="could not store the result of large: File too large") as caught:
        in_child(overflow)
    assert "resume" in caught.value.remedy
    assert path.read_bytes() == good


def test_a_folder_that_cannot_be_written_is_a_problem(open_folder: Path, in_child: Callable[..., Any]) -> None:
    open_folder.chmod(0o555)
    with pytest.raises(RunProblem, match="could not open the journal: Permission denied"):
        in_child(lambda: Journal(open_folder / "1.jsonl"), nobody=True)
