"""Reading a file of Python without running it: its text, its tree, its definitions, its imports."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tilewright.harness.errors import TaskProblem

ALLOWED = ("torch", "triton")
"""What a candidate may import beside the standard library: all that a worker has."""

DEEPEST = 200
"""Levels of a source's tree: what walks it here takes a few frames of Python's stack for each."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def read(path: str | Path, what: str = "task") -> str:
    """The text of a file that a person named. Raises TaskProblem where there is none to read."""
    try:
        file = Path(path).expanduser()
    except RuntimeError:
        raise TaskProblem(f"the {what} file does not exist", "check the path", path=str(path)) from None
    try:
        return file.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
    except FileNotFoundError:
        raise TaskProblem(f"the {what} file does not exist", "check the path", path=str(path)) from None
    except IsADirectoryError:
        raise TaskProblem(f"the {what} is a folder", "name a file of Python in it", path=str(path)) from None
    except PermissionError:
        raise TaskProblem(f"the {what} file cannot be read", "change its permissions", path=str(path)) from None
    except UnicodeDecodeError as error:
        line = file.read_bytes()[: error.start].count(b"\n") + 1
        raise TaskProblem(
            f"the {what} file is not UTF-8 (byte {error.start})", "save it as UTF-8", path=str(path), line=line
        ) from None
    except OSError as error:
        raise TaskProblem(f"the {what} file cannot be read: {error.strerror}", path=str(path)) from None


def parse(source: str, path: str) -> ast.Module:
    """The tree of a source. Raises TaskProblem with the line where it is not Python."""
    too_deep = TaskProblem("code is nested too deeply to be read", "write it in steps", path=path)
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        shown = (error.text or "").strip()
        raise TaskProblem(
            f"syntax error: {error.msg}" + (f", in {shown!r}" if shown else ""),
            "mend the file; nothing was run",
            path=path,
            line=error.lineno,
        ) from None
    except ValueError as error:  # a NUL byte
        raise TaskProblem(f"not a file of Python: {error}", "mend the file", path=path) from None
    except (RecursionError, MemoryError):  # the parser's own words for depth
        raise too_deep from None
    if _depth(tree) > DEEPEST:
        raise too_deep
    return tree


def _depth(tree: ast.AST) -> int:
    level: list[ast.AST] = [tree]
    depth = 0
    while level and depth <= DEEPEST:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
    return depth


def definitions(tree: ast.Module) -> dict[str, Definition]:
    """Functions and classes at the top of a module by name; of several, the last."""
    return {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}


def assigned(tree: ast.Module) -> dict[str, tuple[ast.stmt, ast.expr]]:
    """Plain assignments of one name at the top of a module: the statement and the value; of several, the last."""
    found: dict[str, tuple[ast.stmt, ast.expr]] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = (node, value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found[name] = (node, value)
    return found


def first_line(node: ast.stmt) -> int:
    """The line a statement starts on, decorators included."""
    decorators = node.decorator_list if isinstance(node, Definition) else []
    return min([node.lineno, *(d.lineno for d in decorators)])


def last_line(node: ast.stmt) -> int:
    """The line a statement ends on."""
    return node.end_lineno or node.lineno


def without(source: str, nodes: Sequence[ast.stmt]) -> str:
    """A source less some of its top statements and the comments right above them, neatly spaced."""
    lines = source.split("\n")
    gone: set[int] = set()
    for node in nodes:
        first = first_line(node)
        while first > 1 and lines[first - 2].startswith("#") and first - 1 not in gone:
            first -= 1
        gone.update(range(first, last_line(node) + 1))
    kept: list[str] = []
    blanks = 0
    for number, line in enumerate(lines, 1):
        if number in gone:
            continue
        blanks = blanks + 1 if not line.strip() else 0
        if blanks <= 2 and (kept or line.strip()):
            kept.append(line)
    return "\n".join(kept).rstrip("\n") + "\n"


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every import statement in a tree: its line and the top-level package; '.' for a relative one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." if node.level else (node.module or "").partition(".")[0]


def is_allowed(package: str) -> bool:
    """Whether a candidate may import a top-level package."""
    return package in ALLOWED or package in sys.stdlib_module_names


def check_candidate(source: str, entry: str, path: str, what: str = "candidate") -> None:
    """Refuse a candidate that no worker could load. Nothing is run.

    Raises TaskProblem, with the line, where the source is not Python, imports more than the standard
    library, torch and triton, or does not define the entry.
    """
    check_tree(parse(source, path), entry, path, what)


def check_tree(tree: ast.Module, entry: str, path: str, what: str = "candidate") -> None:
    """As `check_candidate`, for a tree."""
    for line, package in imports(tree):
        if not is_allowed(package):
            found = "a relative import" if package == "." else f"import of {package!r}"
            raise TaskProblem(
                f"{found}: a {what} may import only the standard library, torch and triton",
                "copy what it needs into the file, or let `tilewright scaffold PACKAGE.MODULE:FUNCTION` do so",
                path=path,
                line=line,
            )
    if entry not in {*definitions(tree), *assigned(tree)}:
        raise TaskProblem(
            f"the {what} does not define {entry!r}; it defines {', '.join(sorted(definitions(tree))) or 'nothing'}",
            f"name its entry {entry!r}",
            path=path,
        )
