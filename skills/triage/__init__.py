"""The triage skill: ranks what is worth trying on a kernel, from its source, its facts and the cards."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp.server import MCPServer


def register(server: MCPServer) -> None:
    """Add this skill's tools to `server`."""
    from tilewright.skills.triage.server import add

    add(server)
