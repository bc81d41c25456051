"""The `tilewright` command: what it can be asked to do, and how it ends.

Exit status: 0 done; 1 the answer is no (`fsck` found damage, `evaluate` found the candidate wrong); 2 a
problem that a person can mend, said in one line with its remedy; 130 stopped by Ctrl-C or SIGTERM; 141 the
reader of standard output has gone, as a shell reports it of any program.
Commands import what they need when they run, so that `--help` is quick.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import cast

import typer

from tilewright.harness.cli import doctor, evaluate, history, optimize, output, scaffold, serve
from tilewright.harness.errors import Problem

PROBLEM, INTERRUPTED, READER_GONE = 2, 130, 141

# What typer raises for a mistake in the arguments: its own copy of click's class, or click's, by version.
_USAGE = cast("type[Exception]", next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"))

app = typer.Typer(
    name="tilewright",
    help="Make Triton kernels and PyTorch operators faster, and prove it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (optimize, history, evaluate, scaffold, doctor, serve):
    group.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"tilewright {version('tilewright')}")
        raise typer.Exit()


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Make Triton kernels and PyTorch operators faster, and prove it."""


def run(args: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. A `Problem` becomes two lines on stderr, never a traceback."""
    try:
        code = app(args=args, prog_name="tilewright", standalone_mode=False)
        sys.stdout.flush()
    except output.ReaderGone:
        return READER_GONE
    except Problem as problem:
        return report(problem)
    except typer.Abort:
        return INTERRUPTED
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except _USAGE as error:
        error.show()  # type: ignore[attr-defined]  # click's classes are only known by name here
        return PROBLEM
    return code if isinstance(code, int) else 0


def report(problem: Problem) -> int:
    """Say on stderr what is wrong and what to do about it; returns the exit status for it."""
    print("error: " + " ".join(str(problem).split()), file=sys.stderr)
    if problem.remedy:
        print("remedy: " + " ".join(problem.remedy.split()), file=sys.stderr)
    return PROBLEM


def main() -> None:
    """The console script."""
    output.prepare()
    code = run()
    output.finish()
    sys.exit(code)


if __name__ == "__main__":
    main()
