"""`tilewright scaffold`: a task file from a function that is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def scaffold(
    function: Annotated[str, typer.Argument(help="package.module:function, or file.py:function.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the task here; default: standard output.")
    ] = None,
    bare: Annotated[bool, typer.Option("--bare", help="Only the copied source, without a task round it.")] = False,
) -> None:
    """Make a task of an installed function.

    Its kernels and helpers are copied into one file, with inputs and reference left to fill in.
    """
    from tilewright.harness.errors import Problem
    from tilewright.harness.tasks import scaffold as scaffolding

    text = scaffolding.scaffold(function) if bare else scaffolding.skeleton(function)
    if output is None:
        print(text, end="")
        return
    try:
        file = output.open("x", encoding="utf-8")
        try:
            with file:
                file.write(text)
        except OSError:
            output.unlink()
            raise
    except FileExistsError:
        raise Problem(f"{output} exists already", "choose another name; nothing was overwritten") from None
    except OSError as error:
        raise Problem(f"{output} cannot be written: {error.strerror}", "choose another place") from None
    if not bare:
        print(f"{output}: fill in what is marked FILL IN, then `tilewright optimize {output}`")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(scaffold)
