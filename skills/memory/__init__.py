"""The memory skill: what earlier rounds teach about the next move."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp.server import MCPServer


def register(server: MCPServer) -> None:
    """Add this skill's tools to `server`."""
    from tilewright.skills.memory.server import add

    add(server)
