"""`tilewright mcp`: the skills as one MCP server on standard input and output."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def mcp(
    skills: Annotated[
        list[Path] | None, typer.Option("--skills", help="A folder of further skills; may be given again.")
    ] = None,
) -> None:
    """Serve the skills over MCP on stdin, stdout.

    For an editor or an agent that speaks the Model Context Protocol.
    """
    from tilewright.harness.host import serve_stdio

    serve_stdio(tuple(skills or ()))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("mcp")(mcp)
