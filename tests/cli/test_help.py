"""Help: every command has it, and asking for it loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Tilewright

COMMANDS = (
    "optimize",
    "resume",
    "log",
    "show",
    "diff",
    "fsck",
    "export",
    "evaluate",
    "scaffold",
    "doctor",
    "mcp",
)
HEAVY = ("torch", "triton", "numpy", "mcp", "pydantic", "pydantic_ai", "libcst", "git", "rich.live")


def test_help_lists_every_command(tilewright: Tilewright) -> None:
    said = tilewright("--help")
    assert said.code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in said.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does(tilewright: Tilewright, name: str) -> None:
    said = tilewright(name, "--help")
    assert said.code == 0
    assert said.out.startswith(f"Usage: tilewright {name} ")


def test_the_manual_names_every_command_and_every_option(tilewright: Tilewright) -> None:
    manual = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()
    for name in COMMANDS:
        assert f"tilewright {name}" in manual
        for word in tilewright(name, "--help").out.split():
            if word.startswith("--") and word not in ("--help",):
                assert f"`{word.strip('[],.')}" in manual, f"{name} {word}"


def test_help_loads_nothing_heavy() -> None:
    code = f"import sys, tilewright.harness.cli.app; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_version_is_the_package_s(tilewright: Tilewright) -> None:
    from importlib.metadata import version

    assert tilewright("--version").out == f"tilewright {version('tilewright')}\n"


def test_no_command_at_all_shows_the_help(tilewright: Tilewright) -> None:
    said = tilewright()
    assert "Usage: " in said.out + said.err
