"""From what a person typed to a `Task`, or to a sentence that says what is wrong with it."""

from __future__ import annotations

import re
from pathlib import Path

from tilewright.harness.errors import TaskProblem
from tilewright.harness.tasks import kernelbench, tritonfile
from tilewright.harness.tasks.source import parse, read
from tilewright.harness.types import Task

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def load_task(spec: str, start: str | None = None) -> Task:
    """The task that a file sets: a KernelBench file or a Triton file. Read, never run.

    `start` is the file of a starting candidate; a Triton file has its own unless it is given. A KernelBench
    task without one has an empty `Task.start`. Raises TaskProblem, with file, line and remedy.
    """
    if _FUNCTION.fullmatch(spec) and not Path(spec).exists():
        name = spec.partition(":")[2]
        raise TaskProblem(
            f"{spec} is a function, and a task also needs a reference and inputs",
            f"run `tilewright scaffold {spec} -o {name}.py`, fill in its inputs and reference, then optimise {name}.py",
        )
    source = read(spec)
    path = Path(spec).expanduser()
    tree = parse(source, spec)
    if kernelbench.is_kernelbench(tree):
        return kernelbench.load(path, source, tree, start)
    return tritonfile.load(path, source, tree, start)
