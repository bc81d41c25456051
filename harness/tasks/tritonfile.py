"""Triton task files: a reference in PyTorch, inputs, and a starting kernel with its launch code."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from tilewright.harness.errors import TaskProblem
from tilewright.harness.tasks import names, scaffold
from tilewright.harness.tasks.family import FAMILIES, family_of
from tilewright.harness.tasks.inputs import Inputs, read_inputs
from tilewright.harness.tasks.source import (
    Definition,
    assigned,
    check_candidate,
    check_tree,
    definitions,
    imports,
    is_allowed,
    parse,
    read,
    without,
)
from tilewright.harness.types import Task, TensorSpec

ENTRY = "launch"
PRECISIONS = ("strict", "tf32", "half")
SETTINGS = ("inputs", "family", "mutates", "precision", "tolerance", "start")
"""Names that belong to the task and never to a candidate."""


def load(path: Path, source: str, tree: ast.Module, start: str | None) -> Task:
    """The task that a Triton file sets. `start` replaces the file's own starting candidate.

    Raises TaskProblem with the line of the first mistake found.
    """
    where = str(path)
    found, values = definitions(tree), assigned(tree)
    if "inputs" not in values:
        raise TaskProblem(
            "no inputs", 'add `inputs = {"args": {…}, "cases": [{…}]}`; docs/tasks.md shows how', path=where
        )
    inputs = read_inputs(values["inputs"][1], where)
    reference = _function(found.get("reference"), "reference", inputs, where)
    _filled_in(reference, where)
    whole = ast.Module(body=_reached(tree, [reference]), type_ignores=[])
    own_start = _setting(values, "start", where)
    if start is not None:
        candidate = read(start, "start")
        check_candidate(candidate, ENTRY, start, "start")
        _function(definitions(parse(candidate, start)).get(ENTRY), ENTRY, inputs, start)
    elif own_start is not None:
        if ENTRY in found:
            _function(found[ENTRY], ENTRY, inputs, where)
        candidate = scaffold.assemble(source, tree, not_candidate(tree), str(own_start), tuple(inputs.args), where)
    else:
        _function(found.get(ENTRY), ENTRY, inputs, where)
        dropped = not_candidate(tree)
        kept = ast.Module(body=[n for n in tree.body if n not in dropped], type_ignores=[])
        check_tree(kept, ENTRY, where, "starting kernel")
        candidate = without(source, dropped)
    return Task(
        name=path.stem,
        kind="triton",
        path=where,
        source=source,
        start=candidate,
        entry=ENTRY,
        args=inputs.args,
        cases=inputs.cases,
        checks=inputs.checks,
        mutates=_mutates(values, inputs, where),
        family=_word(values, "family", FAMILIES, "", where) or family_of(whole),
        precision=_word(values, "precision", PRECISIONS, "strict", where),
        tolerance=_tolerance(values, where),
    )


def not_candidate(tree: ast.Module) -> list[ast.stmt]:
    """The top statements that no candidate may carry: the task's own, and what only the reference uses."""
    mine = {"reference", *SETTINGS}
    own = [n for n in tree.body if (binds := names.bound([n])) and binds <= mine]
    if tree.body and ast.get_docstring(tree, clean=False) is not None:
        own.append(tree.body[0])
    for_reference = _reached(tree, [n for n in own if "reference" in names.bound([n])])
    rest = _reached(tree, [n for n in tree.body if n not in for_reference and n not in own])
    return [n for n in tree.body if n in own or (n in for_reference and n not in rest) or _idle_import(n, rest)]


def _reached(tree: ast.Module, start: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Statements at the top of a module with those that bind what they use, and so on."""
    seen: list[ast.stmt] = []
    queue = list(start)
    while queue:
        node = queue.pop()
        if node not in seen:
            seen.append(node)
            used = {o.name for o in names.occurrences(node)}
            queue += [n for n in tree.body if names.bound([n]) & used]
    return seen


def _idle_import(node: ast.stmt, kept: Sequence[ast.stmt]) -> bool:
    """Whether an import of what a candidate may not have is used by nothing that is kept."""
    if not isinstance(node, ast.Import | ast.ImportFrom) or all(is_allowed(package) for _, package in imports(node)):
        return False
    used = {o.name for n in kept if n is not node for o in names.occurrences(n)}
    return not names.bound([node]) & used


# --- the parts of a file ---------------------------------------------------------------------------------


def _function(node: Definition | None, name: str, inputs: Inputs, path: str) -> ast.FunctionDef:
    """The function of a name, with the arguments of `inputs` as its parameters, in order."""
    if not isinstance(node, ast.FunctionDef):
        expected = ", ".join(inputs.args)
        raise TaskProblem(
            f"no function {name}" if node is None else f"{name} must be a plain function",
            f"define `def {name}({expected}): …`"
            + (' or `start = "package.module:function"`' if name == ENTRY else ""),
            path=path,
            line=None if node is None else node.lineno,
        )
    args = node.args
    parameters = [a.arg for a in (*args.posonlyargs, *args.args)]
    if args.vararg or args.kwarg or args.kwonlyargs or parameters != list(inputs.args):
        raise TaskProblem(
            f"{name}({ast.unparse(args)}) does not take the arguments of inputs, which are ({', '.join(inputs.args)})",
            "give both the same names in the same order",
            path=path,
            line=node.lineno,
        )
    return node


def _filled_in(reference: ast.FunctionDef, path: str) -> None:
    """Refuse a reference that still stands as `tilewright scaffold` wrote it."""
    body = reference.body[1:] if ast.get_docstring(reference) is not None else reference.body
    match body:
        case [] | [ast.Pass()] | [ast.Expr(value=ast.Constant())]:
            pass
        case [ast.Raise(exc=ast.expr() as raised)] if "NotImplementedError" in ast.unparse(raised):
            pass
        case _:
            return
    raise TaskProblem(
        "reference is not filled in", "write what the kernel must compute, in PyTorch", path=path, line=reference.lineno
    )


def _setting(values: dict[str, tuple[ast.stmt, ast.expr]], name: str, path: str) -> object:
    """The literal value of one of the task's settings, or None where there is none."""
    if name not in values:
        return None
    statement, node = values[name]
    try:
        value: object = ast.literal_eval(node)
    except (ValueError, TypeError):
        raise TaskProblem(
            f"{name} must be a plain value, found {ast.unparse(node)!r}",
            "write it out; the file is read, not run",
            path=path,
            line=statement.lineno,
        ) from None
    return value


def _mutates(values: dict[str, tuple[ast.stmt, ast.expr]], inputs: Inputs, path: str) -> tuple[str, ...]:
    value = _setting(values, "mutates", path)
    if value is None:
        return ()
    line = values["mutates"][0].lineno
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
        raise TaskProblem(f"mutates must be a list of arguments' names, found {value!r}", path=path, line=line)
    tensors = [name for name, spec in inputs.args.items() if isinstance(spec, TensorSpec)]
    for name in value:
        if name not in tensors:
            raise TaskProblem(
                f"mutates names {name!r}, which is no tensor argument; those are {', '.join(tensors)}",
                "correct the name",
                path=path,
                line=line,
            )
    return tuple(dict.fromkeys(value))


def _word(
    values: dict[str, tuple[ast.stmt, ast.expr]], name: str, words: tuple[str, ...], default: str, path: str
) -> str:
    value = _setting(values, name, path)
    if value is None:
        return default
    if not isinstance(value, str) or value not in words:
        raise TaskProblem(
            f"{name} must be one of {', '.join(words)}, found {value!r}", path=path, line=values[name][0].lineno
        )
    return value


def _tolerance(values: dict[str, tuple[ast.stmt, ast.expr]], path: str) -> float | None:
    value = _setting(values, "tolerance", path)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise TaskProblem(
            f"tolerance must be a number between 0 and 1, found {value!r}",
            path=path,
            line=values["tolerance"][0].lineno,
        )
    return float(value)
