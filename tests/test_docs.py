"""What the documents say can be done, can be done."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.harness.decide import MODELLED_GAIN

ROOT = Path(__file__).resolve().parents[1]
TILEWRIGHT = Path(sys.executable).parent / "tilewright"
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").glob("*.md"))]


def block(page: str, heading: str) -> list[str]:
    """The lines of the first fenced block below a heading, without comments."""
    text = (ROOT / page).read_text()
    fenced = re.search(rf"^## {heading}$.*?^```\w*\n(.*?)^```$", text, re.M | re.S)
    assert fenced is not None
    return [line.split(" # ")[0].strip() for line in fenced[1].splitlines() if line.strip()]


def test_the_commands_of_the_readme_work_in_the_order_given(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = block("README.md", "Use it")
    assert len(commands) == 11
    for command in commands:
        program, *rest = shlex.split(command)
        assert program == "tilewright"
        done = subprocess.run(
            [TILEWRIGHT, *rest], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert "def launch" in (tmp_path / "softmax-best" / "softmax.py").read_text()


@pytest.mark.parametrize("page", ["README.md", "AGENTS.md"])
def test_the_make_targets_that_are_named_exist(page: str) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"^make (\w+)", (ROOT / page).read_text(), re.M))
    assert named
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_project_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    links = re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", prose)
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_by_path_exist(page: Path) -> None:
    named = re.findall(
        r"`((?:harness|knowledge|skills|agent|tests|benchmarks|docs|examples)/[\w./-]*\w)`", page.read_text()
    )
    missing = [path for path in named if not (ROOT / path).exists()]
    assert not missing


def test_agents_md_is_short_enough_to_be_read() -> None:
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) <= 120


def test_the_page_on_verdicts_gives_the_thresholds_that_hold() -> None:
    assert round(1 - 1 / MODELLED_GAIN, 4) == 0.05
    assert "at least 5 % lower time" in (ROOT / "docs" / "verdicts.md").read_text()
