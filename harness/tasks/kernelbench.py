"""KernelBench files: `Model`, `get_inputs`, `get_init_inputs`, and whole numbers at the top that set the sizes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewright.harness.errors import TaskProblem
from tilewright.harness.tasks.checks import reduced_constants
from tilewright.harness.tasks.family import family_of
from tilewright.harness.tasks.source import assigned, check_candidate, definitions, parse, read
from tilewright.harness.types import Case, Scalar, Task

ENTRY = "ModelNew"


@dataclass(frozen=True, slots=True)
class Constant:
    """A whole number at the top of a file, and where it stands, in bytes of its lines."""

    name: str
    """The variable's name, or `name[i]` for an element of a tuple or list."""
    value: int
    node: ast.expr


def constants(tree: ast.Module) -> Iterator[Constant]:
    """Whole numbers assigned once at the top of a module: `batch_size = 128`, `M = 1024 * 2`, `shape = (32, 64)`.

    A name assigned twice is left alone: a substitution would not say which one counts.
    """
    times: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            times[node.id] = times.get(node.id, 0) + 1
    for name, (_, value) in assigned(tree).items():
        if times[name] > 1:
            continue
        if (number := _whole(value)) is not None:
            yield Constant(name, number, value)
        elif isinstance(value, ast.Tuple | ast.List):
            for index, element in enumerate(value.elts):
                if (part := _whole(element)) is not None:
                    yield Constant(f"{name}[{index}]", part, element)


def _whole(node: ast.expr) -> int | None:
    """The value of an expression of whole numbers alone, or None."""
    match node:
        case ast.Constant(value=int(n)) if not isinstance(n, bool):
            return n
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return None if (negated := _whole(inner)) is None else -negated
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _whole(left), _whole(right)
            if a is None or b is None:
                return None
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv() if b:
                    return a // b
                case ast.Pow() if 0 <= b <= 64 and abs(a) <= 1 << 20:
                    return int(a**b)
    return None


def substitute(source: str, bindings: Mapping[str, Scalar]) -> str:
    """A KernelBench file with its constants set to a case's values; all else byte for byte.

    Raises TaskProblem where a binding is not a constant of the file.
    """
    found = {c.name: c for c in constants(parse(source, "task"))}
    if missing := sorted(set(bindings) - set(found)):
        raise TaskProblem(
            f"no whole number named {', '.join(missing)} at the top of the file; there are {', '.join(found) or 'none'}"
        )
    lines = source.encode().splitlines(keepends=True)
    edits = [(found[name].node, str(value).encode()) for name, value in bindings.items()]
    for node, text in sorted(edits, key=lambda e: (e[0].lineno, e[0].col_offset), reverse=True):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        tail = lines[last][node.end_col_offset :]
        lines[first : last + 1] = [lines[first][: node.col_offset] + text + tail]
    return b"".join(lines).decode()


def is_kernelbench(tree: ast.Module) -> bool:
    """Whether a file is meant as a KernelBench task."""
    found = definitions(tree)
    return "Model" in found or ("get_inputs" in found and "reference" not in found)


def load(path: Path, source: str, tree: ast.Module, start: str | None) -> Task:
    """The task that a KernelBench file sets. `start` is the starting candidate's file, or None.

    Raises TaskProblem for a file that is not one, and for a start that could not be a candidate.
    """
    found = definitions(tree)
    if not isinstance(found.get("Model"), ast.ClassDef):
        raise TaskProblem(
            f"no class Model; the file defines {', '.join(found) or 'nothing'}",
            "a KernelBench task defines Model, get_inputs and get_init_inputs",
            path=str(path),
        )
    model = found["Model"]
    if not any(isinstance(n, ast.FunctionDef) and n.name == "forward" for n in ast.walk(model)):
        raise TaskProblem("class Model has no forward()", "define it", path=str(path), line=model.lineno)
    for name in ("get_inputs", "get_init_inputs"):
        node = found.get(name)
        if not isinstance(node, ast.FunctionDef):
            raise TaskProblem(
                f"no function {name}()",
                "define it; it returns a list of "
                + ("forward's arguments" if name == "get_inputs" else "Model's arguments, perhaps empty"),
                path=str(path),
            )
        if node.args.args or node.args.kwonlyargs:
            raise TaskProblem(f"{name}() must take no arguments", path=str(path), line=node.lineno)
    sizes = {c.name: c.value for c in constants(tree) if c.value > 0}  # a negative one is an axis or an index
    title = " ".join(f"{name}={value}" for name, value in sizes.items()) or "as given"
    start_source = ""
    if start is not None:
        start_source = read(start, "start")
        check_candidate(start_source, ENTRY, start, "start")
    return Task(
        name=path.stem,
        kind="kernelbench",
        path=str(path),
        source=source,
        start=start_source,
        entry=ENTRY,
        cases=(Case(name=title, bindings=dict(sizes)),),
        checks=reduced_constants(sizes),
        family=family_of(model),
    )
