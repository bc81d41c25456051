"""Commits through git's plumbing: whole or not at all, whoever else writes and however git is configured."""

from __future__ import annotations

import os
import resource
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.harness.errors import RunCorrupt, RunProblem
from tilewright.harness.gitstore import Store, read_many

MAIN = "refs/heads/main"

names = st.text(st.characters(codec="utf-8", exclude_characters='/"\\\x7f', exclude_categories=["C"]), min_size=1)
paths = st.lists(names.filter(lambda n: n not in (".", "..") and n.lower() != ".git"), min_size=1, max_size=3)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path)


@given(st.dictionaries(paths.map("/".join), st.binary(max_size=200), min_size=1, max_size=5))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_committed_is_read_back_byte_for_byte(store: Store, files: dict[str, bytes]) -> None:
    # One path may not be both a file and a folder.
    files = {p: data for p, data in files.items() if not any(q.startswith(f"{p}/") for q in files)}
    sha = store.append("refs/heads/try", None if (tip := store.tip("refs/heads/try")) is None else tip, "try", files)
    listed = store.files(sha)
    contents = dict(zip(listed, (data for _, data in store.blobs(listed.values())), strict=True))
    assert {path: contents[path] for path in files} == files


def test_an_unchanged_file_stays_and_a_deleted_one_goes(store: Store) -> None:
    first = store.append(MAIN, None, "one", {"a": b"1", "b": b"2"})
    second = store.append(MAIN, first, "two", {"c": b"3"}, deletes=["a"])
    assert sorted(store.files(second)) == ["b", "c"]
    assert store.read(first, "a") == b"1"
    with pytest.raises(KeyError):
        store.read(second, "a")


def test_a_writer_that_is_too_late_is_told_and_changes_nothing(store: Store) -> None:
    first = store.append(MAIN, None, "one", {"a": b"1"})
    second = store.append(MAIN, first, "two", {"a": b"2"})
    with pytest.raises(RunProblem, match="another process has committed") as caught:
        store.append(MAIN, first, "two as well", {"a": b"3"})
    assert "one process" in caught.value.remedy
    assert store.tip(MAIN) == second


def test_of_racing_writers_exactly_one_wins(store: Store) -> None:
    first = store.append(MAIN, None, "one", {"a": b"1"})
    results: list[str | RunProblem] = []
    gate = threading.Barrier(4)

    def write(text: bytes) -> None:
        rival = Store(store.path)
        gate.wait()
        try:
            results.append(rival.append(MAIN, first, "two", {"a": text}))
        except RunProblem as problem:
            results.append(problem)

    threads = [threading.Thread(target=write, args=(b"%d" % n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [r for r in results if isinstance(r, str)]
    assert len(winners) == 1
    assert store.tip(MAIN) == winners[0]


@pytest.mark.parametrize("name", [MAIN, "HEAD"])
def test_a_lock_file_that_was_left_behind_is_reported_with_its_age_and_how_to_mend_it(store: Store, name: str) -> None:
    first = store.append(MAIN, None, "one", {"a": b"1"})
    lock = store.gitdir / f"{name}.lock"
    lock.touch()
    os.utime(lock, (0, 0))
    with pytest.raises(RunProblem, match=r"\.lock was left \d{6,} s ago") as caught:
        store.append(MAIN, first, "two", {"a": b"2"})
    assert caught.value.remedy.endswith(f"rm {lock}")
    store.clear(MAIN)
    assert store.append(MAIN, first, "two", {"a": b"2"}) == store.tip(MAIN)


def test_a_left_over_index_lock_is_no_hindrance(store: Store) -> None:
    (store.gitdir / "index.lock").touch()
    sha = store.append(MAIN, None, "one", {"a": b"1"})
    (store.path / "a").write_bytes(b"1")
    store.refresh_index(MAIN)
    (store.gitdir / "index.lock").unlink()
    status = subprocess.run(["git", "-C", store.path, "status", "--porcelain"], capture_output=True, text=True)
    assert (status.stdout, store.tip(MAIN)) == ("", sha)


def test_nothing_in_the_users_git_configuration_or_environment_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, hooks, template = tmp_path / "home", tmp_path / "hooks", tmp_path / "template"
    for folder in (home, hooks, template / "hooks"):
        folder.mkdir(parents=True)
    ran = tmp_path / "ran"
    for hook in ("reference-transaction", "post-commit", "pre-commit", "post-index-change"):
        for place in (hooks, template / "hooks"):
            (place / hook).write_text(f"#!/bin/sh\necho {hook} >> {ran}\nexit 1\n")
            (place / hook).chmod(0o755)
    (home / ".gitconfig").write_text(
        f"[core]\nhooksPath = {hooks}\nfsmonitor = {hooks}/post-commit\nautocrlf = true\n"
        f"[init]\ntemplateDir = {template}\ndefaultBranch = trunk\n[commit]\ngpgsign = true\n"
        f"[gpg]\nprogram = /nowhere\n[user]\nuseConfigOnly = true\n[log]\nshowSignature = true\nfollow = true\n"
        "[format]\npretty = oneline\n[i18n]\ncommitEncoding = latin1\n[alias]\nlog = !false\n"
    )
    monkeypatch.setenv("HOME", str(home))
    for name, value in {
        "GIT_DIR": str(tmp_path / "elsewhere"),
        "GIT_WORK_TREE": str(tmp_path),
        "GIT_INDEX_FILE": str(tmp_path / "elsewhere.index"),
        "GIT_OBJECT_DIRECTORY": str(tmp_path / "elsewhere.objects"),
        "GIT_TEMPLATE_DIR": str(template),
        "GIT_NAMESPACE": "elsewhere",
        "GIT_CONFIG_PARAMETERS": f"'core.hooksPath={hooks}'",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.hooksPath",
        "GIT_CONFIG_VALUE_0": str(hooks),
        "GIT_DEFAULT_HASH": "sha256",
        "GIT_QUARANTINE_PATH": "x",
        "GIT_TRACE": "1",
        "GIT_AUTHOR_DATE": "yesterday",
        "LC_ALL": "de_DE.UTF-8",
    }.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "run"
    path.mkdir()
    store = Store.init(path)
    sha = store.append(MAIN, None, "ünïcode\n\nRound: 0\n", {"a": b"1\r\n"}, when_s=1)
    store.point("refs/tilewright/best", sha)
    (path / "a").write_bytes(b"1\r\n")
    store.refresh_index(MAIN)
    (entry,) = store.log(MAIN)
    assert (entry.subject, entry.trailers, entry.when_s) == ("ünïcode", {"Round": "0"}, 1)
    assert store.read(MAIN, "a") == b"1\r\n"
    assert store.check() == []
    assert not ran.exists()
    assert not list(tmp_path.glob("elsewhere*"))


def test_a_full_disk_is_a_problem_with_a_remedy_and_leaves_the_history_as_it_was(
    store: Store, in_child: Callable[..., Any]
) -> None:
    first = store.append(MAIN, None, "one", {"a": b"1"})

    def write() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        store.append(MAIN, first, "two", {"big": os.urandom(1 << 20)})

    with pytest.raises(RunProblem, match="could not commit to refs/heads/main") as caught:
        in_child(write)
    assert "resume" in caught.value.remedy
    assert store.tip(MAIN) == first
    assert store.check() == []
    assert not list(store.gitdir.glob("fast_import_crash_*"))


def test_a_read_only_repository_is_a_problem_with_a_remedy(open_folder: Path, in_child: Callable[..., Any]) -> None:
    store = Store.init(open_folder)
    first = store.append(MAIN, None, "one", {"a": b"1"})
    folders = [open_folder, *(p for p in open_folder.rglob("*") if p.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        with pytest.raises(RunProblem, match="Permission denied") as caught:
            in_child(lambda: store.append(MAIN, first, "two", {"a": b"2"}), nobody=True)
        assert "permissions" in caught.value.remedy
        assert in_child(lambda: store.read(MAIN, "a"), nobody=True) == b"1"
    finally:
        for folder in folders:
            folder.chmod(0o755)


@pytest.mark.parametrize(
    "path", ["", "/a", "a//b", "../a", "a/../b", "./a", ".git/config", "x/.GIT/hooks", "a\nb", '"a']
)
def test_a_path_that_would_leave_the_tree_is_refused(store: Store, path: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        store.append(MAIN, None, "one", {path: b"1"})
    assert store.tip(MAIN) is None


def test_a_damaged_blob_is_none_and_those_after_it_are_read_all_the_same(store: Store) -> None:
    store.append(MAIN, None, "one", {f"f{n}": b"%d" % n * 50 for n in range(5)})
    pack = next(store.gitdir.glob("objects/pack/*.pack"))
    loose = pack.rename(store.path / "all.pack")
    for rest in store.gitdir.glob("objects/pack/*"):
        rest.unlink()
    with loose.open("rb") as stream:
        subprocess.run(["git", "-C", store.path, "unpack-objects", "-q"], stdin=stream, check=True)
    listed = store.files(MAIN)
    victim = store.gitdir / "objects" / listed["f2"][:2] / listed["f2"][2:]
    victim.chmod(0o644)
    victim.write_bytes(victim.read_bytes()[:10])
    found = [data for _, data in store.blobs(listed.values())]
    assert found == [b"0" * 50, b"1" * 50, None, b"3" * 50, b"4" * 50]
    assert any(listed["f2"] in line for line in store.check())
    with pytest.raises(RunCorrupt, match="f2 cannot be read"):
        list(read_many(store.path, MAIN, "f2"))


def test_many_files_are_read_from_another_repository_by_their_ending(store: Store) -> None:
    store.append(MAIN, None, "one", {"x/1/observation.json": b"1", "x/2/observation.json": b"2", "x/2/round.json": b""})
    found = dict(read_many(store.path, MAIN, "observation.json"))
    assert found == {"x/1/observation.json": b"1", "x/2/observation.json": b"2"}


def test_reading_from_what_is_no_repository_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunProblem, match="is not a run") as caught:
        list(read_many(tmp_path, MAIN, ".json"))
    assert "tilewright optimize" in caught.value.remedy


def test_rolling_packs_up_keeps_everything_and_leaves_few(store: Store) -> None:
    tip = None
    for n in range(12):
        tip = store.append(MAIN, tip, f"commit {n}", {f"f{n}": b"%d" % n})
    store.tidy()
    assert len(list(store.gitdir.glob("objects/pack/*.pack"))) <= 4
    assert [e.subject for e in store.log(MAIN)] == [f"commit {n}" for n in range(12)]
    assert store.check() == []


def test_thousands_of_blobs_come_back_in_the_order_asked(store: Store) -> None:
    sha = store.append(MAIN, None, "many", {f"{n:04d}": b"%d" % n for n in range(4500)})
    listed = store.files(sha)
    names = sorted(listed, reverse=True)
    assert [data for _, data in store.blobs(listed[name] for name in names)] == [b"%d" % int(name) for name in names]
