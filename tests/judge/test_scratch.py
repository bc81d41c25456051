"""Folders of workers whose process was killed do not stay for ever."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tilewright.harness.judge import scratch


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def dead() -> int:
    """The number of a process that is gone."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    return child.pid


def test_a_folder_names_its_process_and_outlives_a_sweep(temporary: Path) -> None:
    mine = Path(scratch.made("job"))
    assert mine.name.startswith(f"tilewright-job-{os.getpid()}-")
    assert scratch.swept(older_than_s=0) == 0
    assert mine.is_dir()


def test_what_a_dead_process_left_is_deleted_when_it_is_old_enough(temporary: Path) -> None:
    left = temporary / f"tilewright-pool-{dead()}-abc_1"
    (left / "cache").mkdir(parents=True)
    assert scratch.swept() == 0
    assert left.is_dir()
    assert scratch.swept(older_than_s=0) == 1
    assert not left.exists()


def test_other_names_and_links_are_left_alone(temporary: Path) -> None:
    number = dead()
    for name in (f"other-pool-{number}-a", f"tilewright-{number}-a", "tilewright-pool-x-a"):
        (temporary / name).mkdir()
    kept = temporary / "kept"
    kept.mkdir()
    (temporary / f"tilewright-job-{number}-a").symlink_to(kept)
    assert scratch.swept(older_than_s=0) == 0
    assert len(list(temporary.iterdir())) == 5
