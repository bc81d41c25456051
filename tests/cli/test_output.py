"""Standard output that is closed, full, narrow, or no longer read: a status and a line, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import ROUNDS

COMMAND = f'"{sys.executable}" -m tilewright.harness.cli.app'


def shell(line: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash, in which $tilewright stands for the command."""
    line = f'tilewright() {{ {COMMAND} "$@"; }}; {line}'
    return subprocess.run(
        ["bash", "-c", line], env=os.environ | env, capture_output=True, encoding="utf-8", errors="replace", check=False
    )


def unread(*args: object) -> subprocess.CompletedProcess[str]:
    """Call the command with a standard output that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "tilewright.harness.cli.app", *map(str, args)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    return done


def test_a_reader_that_has_gone_ends_the_command_quietly(finished_run: Path) -> None:
    for command in ("log", "show", "fsck"):
        done = unread(command, finished_run)
        assert (done.returncode, done.stderr) == (141, "")


def test_a_run_whose_reader_has_gone_says_how_to_go_on(own_run: Path) -> None:
    done = unread("resume", own_run)
    assert done.returncode == 141
    assert done.stderr.startswith("stopped; ")
    assert f"tilewright resume {own_run}" in done.stderr


def test_a_full_disk_behind_standard_output_is_a_problem(finished_run: Path) -> None:
    for command in ("log", "show"):
        done = shell(f"tilewright {command} '{finished_run}' > /dev/full")
        assert done.returncode == 2
        assert done.stderr.splitlines()[0] == "error: standard output cannot be written: No space left on device"
        assert "Traceback" not in done.stderr


def test_streams_that_are_closed_are_no_reason_to_fail(finished_run: Path) -> None:
    assert shell(f"tilewright log '{finished_run}' >&-").returncode == 0
    done = shell("tilewright log nothing-here 2>&-")
    assert (done.returncode, done.stdout) == (2, "")
    assert shell(f"tilewright log '{finished_run}' <&-").stdout.count("\n") == ROUNDS + 1


def test_signs_that_the_encoding_lacks_do_not_stop_a_command(finished_run: Path) -> None:
    whole = shell(f"tilewright show '{finished_run}' 1").stdout
    done = shell(f"tilewright show '{finished_run}' 1", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == whole.encode("ascii", "replace").decode()


def test_a_git_configuration_that_is_broken_does_not_matter(finished_run: Path, tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_text("[core]\n[broken\n")
    done = shell(f"tilewright log '{finished_run}'", HOME=str(tmp_path), GIT_DIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == ROUNDS + 1
