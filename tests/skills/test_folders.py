"""Skill folders: valid in the Agent Skills format, and each runs alone on stdio."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path

import pytest

from tilewright.harness.discovery import discover
from tilewright.skills import memory, triage


@pytest.mark.parametrize("skill", [memory, triage])
def test_the_folder_is_valid_for_the_formats_own_checker(skill: object) -> None:
    folder = Path(str(getattr(skill, "__file__", ""))).resolve().parent
    assert importlib.import_module("skills_ref").validate(folder) == []


def test_both_skills_are_found_by_their_entry_points() -> None:
    found, broken = discover()
    own = [s for s in found if s.origin.startswith("entry point of tilewright")]
    assert {s.name for s in own} >= {"memory", "triage"}
    assert not [b for b in broken if b.name in ("memory", "triage")]


@pytest.mark.parametrize(("name", "tools"), [("triage", 1), ("memory", 4)])
def test_a_skill_runs_alone_over_stdio(name: str, tools: int) -> None:
    async def go() -> list[str]:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client

        server = StdioServerParameters(command=sys.executable, args=["-m", f"tilewright.skills.{name}"])
        async with Client(stdio_client(server, errlog=sys.__stderr__)) as client:  # type: ignore[arg-type]
            return [tool.name for tool in (await client.list_tools()).tools]

    names = asyncio.run(go())
    assert len(names) == tools
    assert all(n.startswith(f"{name}_") for n in names)
