"""Each kind of damage to a run is found, named, and never a traceback."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tilewright.harness.errors import RunProblem
from tilewright.harness.gitstore import Store
from tilewright.harness.runs.fsck import Finding, fsck
from tilewright.harness.runs.state import Run

MAIN, BEST = "refs/heads/main", "refs/tilewright/best"
ROUND = "rounds/00/0001"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sound") / "run"


@pytest.fixture
def run(sound: Path, tmp_path: Path, create: Callable[[Path], Run], fill: Callable[..., None]) -> Path:
    """A copy of a sound run of four rounds, round 2 kept, one large answer in each."""
    if not sound.exists():
        with create(sound) as made:
            fill(made, 4, answer={"ir": "%0 = arith.addf\n" * 20_000})
    return Path(shutil.copytree(sound, tmp_path / "run"))


def edit(path: Path, name: str, change: Callable[[str], str], message: str = "mend a figure") -> None:
    """Commit another content of one file, as a person with git would."""
    store = Store(path)
    new = change(store.read(MAIN, name).decode()).encode()
    store.append(MAIN, store.tip(MAIN), message, {name: new})


def unpack(path: Path) -> None:
    """Turn every pack of a repository into loose objects."""
    for pack in list((path / ".git/objects/pack").glob("*.pack")):
        away = pack.rename(path.parent / pack.name)
        pack.with_suffix(".idx").unlink()
        with away.open("rb") as stream:
            subprocess.run(["git", "-C", path, "unpack-objects", "-q"], stdin=stream, check=True)


def about(findings: list[Finding], where: str, what: str) -> list[Finding]:
    return [f for f in findings if where in f.where and what in f.what]


def test_nothing_is_wrong_with_a_sound_run(run: Path) -> None:
    assert fsck(run) == []


def test_what_is_no_run_is_not_checked(tmp_path: Path) -> None:
    with pytest.raises(RunProblem, match="is no run"):
        fsck(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "where", "what"),
    [
        ("round.json", lambda t: t.replace('"ratio": 0.99', '"ratio": 1.99'), "commit", "trailer Predicted-Ratio"),
        ("round.json", lambda t: t.replace('"PASS"', '"FAIL"'), "verdict.json", "not the one in round.json"),
        ("round.json", lambda t: t.replace('"n": 1', '"n": 3'), "round.json", "says that it is round 3"),
        ("round.json", lambda t: t.replace('"parent": 0', '"parent": 7'), "round.json", "no earlier round"),
        ("round.json", lambda t: "{}", "round.json", "does not hold a Round"),
        ("round.json", lambda t: t[:40], "round.json", "does not hold a Round"),
        ("candidate.py", lambda t: t + "# better\n", "candidate.py", "the verdict is on"),
        ("verdict.json", lambda t: t.replace('"candidate": "', '"candidate": "0'), "verdict.json", "its proof is of 0"),
        (
            "observation.json",
            lambda t: t.replace('"slower"', '"faster"'),
            "observation.json",
            "not what the rounds say",
        ),
    ],
)
def test_an_edited_file_is_found_and_so_is_the_commit_that_edited_it(
    run: Path, name: str, change: Callable[[str], str], where: str, what: str
) -> None:
    edit(run, f"{ROUND}/{name}", change)
    findings = fsck(run)
    assert about(findings, where, what)
    assert about(findings, "commit", f"it changes {ROUND}/{name}, which is not its own")
    assert about(findings, "commit", "it says no round (`mend a figure`)")
    assert all(f.remedy for f in findings)


def test_an_edit_that_poses_as_a_round_is_found(run: Path) -> None:
    edit(run, f"{ROUND}/round.json", lambda t: t.replace("variant", "best"), "round 4: ok\n\nRound: 4\n")
    assert about(fsck(run), "commit", f"it changes {ROUND}/round.json, which is not its own")


def test_evidence_under_another_question_s_name_is_found(run: Path) -> None:
    store = Store(run)
    (name,) = [p for p in store.files(MAIN) if p.startswith(f"{ROUND}/evidence/")]
    other = name.replace(Path(name).name, "ab" * 32 + ".json.ref")
    store.append(MAIN, store.tip(MAIN), "swap", {other: store.read(MAIN, name)}, deletes=[name])
    findings = fsck(run)
    assert about(findings, other.removesuffix(".ref"), "answers another question")
    assert about(findings, other.removesuffix(".ref"), "round.json does not name it")
    assert about(findings, name.removesuffix(".ref"), "missing, though round.json names it")


def test_another_candidate_of_the_batch_that_is_not_what_was_tried_is_found(run: Path) -> None:
    (name,) = [p for p in Store(run).files(MAIN) if p.startswith(f"{ROUND}/trials/")]
    edit(run, name, lambda t: t + "#")
    assert about(fsck(run), name, "not the candidate that its name says")


def test_a_wrong_best_candidate_is_found(run: Path) -> None:
    edit(run, "candidate.py", lambda t: t + "# faster still\n")
    assert about(fsck(run), "candidate.py", "not the best candidate, that of round 2")


def test_a_large_file_that_is_damaged_or_gone_is_found(run: Path) -> None:
    store = Store(run)
    blob = next(p for p in store.files(MAIN) if p.startswith("blobs/"))
    tip = store.append(MAIN, store.tip(MAIN), "damage", {blob: b"not compressed"})
    findings = fsck(run)
    assert about(findings, blob, "cannot be unpacked")
    assert about(findings, "evidence", "cannot be unpacked")
    store.append(MAIN, tip, "remove", {}, deletes=[blob])
    assert about(fsck(run), "evidence", blob)


def test_a_round_that_is_gone_is_found(run: Path) -> None:
    store = Store(run)
    store.append(MAIN, store.tip(MAIN), "lose", {}, deletes=[ROUND])
    findings = fsck(run)
    assert about(findings, ROUND, "round 1 is missing, though there is a round 3")
    assert about(findings, "commit", f"it deletes {ROUND}/round.json")


def test_a_run_whose_history_was_cut_back_in_a_round_is_found(run: Path) -> None:
    store = Store(run)
    commits = list(store.log(MAIN))
    subprocess.run(["git", "-C", run, "update-ref", MAIN, commits[-2].sha], check=True)
    store.append(MAIN, commits[-2].sha, "round 4: skips one\n\nRound: 4\n", {"rounds/00/0004/round.json": b"{}"})
    findings = fsck(run)
    assert about(findings, "commit", "it should be round 3, it says round 4")
    assert about(findings, "rounds/00/0003", "is missing")


def test_a_damaged_run_json_is_found(run: Path) -> None:
    edit(run, "run.json", lambda t: json.dumps({"format": 1, "task": 3}))
    assert about(fsck(run), "run.json", "does not hold a Header")


@pytest.mark.parametrize("part", [f"{ROUND}/round.json", f"{ROUND}/candidate.py", f"{ROUND}/verdict.json"])
@pytest.mark.parametrize("how", ["cut", "gone", "other"])
def test_a_damaged_object_is_found_with_the_file_that_it_was(run: Path, part: str, how: str) -> None:
    oid = Store(run).files(MAIN)[part]
    unpack(run)
    loose = run / ".git/objects" / oid[:2] / oid[2:]
    loose.chmod(0o644)
    data = loose.read_bytes()
    if how == "gone":
        loose.unlink()
    else:
        loose.write_bytes(data[: len(data) // 2] if how == "cut" else b"\x00" * len(data))
    findings = fsck(run)
    assert about(findings, part, "missing or damaged")
    assert about(findings, "git", oid)


def test_a_damaged_tree_or_commit_is_found(run: Path) -> None:
    tip = Store(run).tip(MAIN)
    assert tip is not None
    unpack(run)
    tree = subprocess.run(["git", "-C", run, "rev-parse", f"{tip}^{{tree}}"], capture_output=True, text=True)
    for oid in (tree.stdout.strip(), tip):
        (run / ".git/objects" / oid[:2] / oid[2:]).unlink()
        findings = fsck(run)
        assert about(findings, "git", oid[:7])
        assert about(findings, MAIN, "")


def test_a_truncated_pack_is_found(run: Path) -> None:
    subprocess.run(["git", "-C", run, "repack", "-adq"], check=True)
    (pack,) = (run / ".git/objects/pack").glob("*.pack")
    pack.chmod(0o644)
    pack.write_bytes(pack.read_bytes()[: pack.stat().st_size // 2])
    findings = fsck(run)
    assert about(findings, "git", "")
    assert all(f.fatal for f in findings)


def test_the_best_ref_and_copies_in_the_work_tree_are_warnings(run: Path) -> None:
    store = Store(run)
    store.point(BEST, next(store.log(MAIN)).sha)
    (run / ROUND / "round.json").write_text("scribbled over")
    (run / ROUND / "verdict.json").unlink()
    findings = fsck(run)
    assert about(findings, BEST, "round 2 is")
    assert about(
        findings, "work tree", f"1 copies of files are missing, 1 differ from the history ({ROUND}/round.json)"
    )
    assert not any(f.fatal for f in findings)
    with Run.open(run, write=True):
        pass
    assert not about(fsck(run), BEST, "")


def test_a_journal_that_is_damaged_or_of_another_round_is_found(run: Path) -> None:
    wip = run / ".git/tilewright/wip"
    (wip / "4.jsonl").write_bytes(b'{"key":"a","value":1}\n{"key":"b","val')
    assert fsck(run) == []
    (wip / "4.jsonl").write_bytes(b'{"key":"a","value":1}\nxx\n{"key":"b","value":2}\n')
    (wip / "9.jsonl").write_bytes(b"")
    findings = fsck(run)
    assert about(findings, "wip/4.jsonl", "cannot be read")
    assert [f.fatal for f in about(findings, "wip/9.jsonl", "the next round is 4")] == [False]


def test_memory_s_own_check_is_asked_with_the_observations(run: Path) -> None:
    asked = []

    def fold(observations: object) -> list[str]:
        asked.append(observations)
        return ["two orders give two statistics"]

    (finding,) = fsck(run, fold)
    assert finding.what == "two orders give two statistics"
    with Run.open(run, write=False) as opened:
        assert asked == [list(opened.observations)]
