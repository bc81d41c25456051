"""Failures that have a name. Each message says what was expected, what was found, where, and what to do.

`Problem` is anything that a person can mend: the command line prints its one line and exits with 2.
Anything else is a bug and stays loud.
"""

from __future__ import annotations


class Problem(Exception):
    """Something a person can mend. `str()` is one line: the cause; `remedy` is what to do about it."""

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause)
        self.remedy = remedy


class TaskProblem(Problem):
    """The task is at fault, never the candidate. Carries the file and line where that is known."""

    def __init__(self, cause: str, remedy: str = "", *, path: str = "", line: int | None = None) -> None:
        where = f"{path}:{line}: " if path and line else f"{path}: " if path else ""
        super().__init__(where + cause, remedy)
        self.path, self.line = path, line


class TargetProblem(Problem):
    """A target that is unknown, or that this machine cannot compile for."""


class RunProblem(Problem):
    """A run directory that is not one, is held by another process, or cannot be written."""


class RunCorrupt(RunProblem):
    """A run whose history does not say what it should; `tilewright fsck` lists where."""


class KnowledgeProblem(Problem):
    """A card in knowledge/ that does not hold together: file, key, what was expected, what was found."""


class SkillProblem(Problem):
    """A skill that cannot be loaded or reached."""


class MachineProblem(Problem):
    """This machine let the judge down (a worker died by itself, no memory, no disk); says nothing of the kernel."""


class NothingLeft(Exception):
    """The planner has nothing more to try; the run ends here, well."""
