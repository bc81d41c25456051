"""Tasks from functions that are installed: their kernels and helpers copied into one file, statically."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from pathlib import Path

from tilewright.harness.errors import TaskProblem
from tilewright.harness.tasks import emit
from tilewright.harness.tasks.closure import Closure, Symbol
from tilewright.harness.tasks.modules import Alias, Library, Module
from tilewright.harness.tasks.names import bound
from tilewright.harness.tasks.source import definitions, parse, read

_SPEC = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|.+\.py):(?P<function>[A-Za-z_]\w*)")
_TASK = "the task"

RESERVED = {"reference", "inputs", "launch", "start", "family", "mutates", "precision", "tolerance"}
"""Names that mean something in a task file, and which copied code must not take."""


def scaffold(spec: str) -> str:
    """The source of one function with everything it needs, from `package.module:function` or `file.py:function`.

    Helpers, kernels and constants are followed within the package (or the file's folder) and copied with
    their comments; each piece says where it came from. The result imports the standard library, torch and
    triton only. No module is run. Raises TaskProblem that names what could not be followed.
    """
    closure, module, function = _opened(spec)
    root = closure.need(module, function)
    return emit.emitted(closure, module.name, emit.settled(closure, root))


def _opened(spec: str) -> tuple[Closure, Module, str]:
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise TaskProblem(
            f"expected package.module:function, found {spec!r}",
            "for example liger_kernel.ops.rms_norm:rms_norm_forward",
        )
    name = match["module"]
    if name.endswith(".py"):
        path = Path(name).expanduser()
        source = read(path, "module's")
        library = Library((str(path.resolve().parent),))
        module = Module(path.stem, path.resolve(), source, parse(source, name)).index()
        library.add(module)
        return Closure(library, frozenset({path.stem}), local=True), module, match["function"]
    library = Library((str(Path.cwd()),))
    found = library.find(name)
    if found is None:
        top = name.partition(".")[0]
        missing = name if library.find(top) is not None else top
        raise TaskProblem(f"no module {missing!r} is installed", f"install it (`pip install …`) or correct {spec!r}")
    return Closure(library, frozenset({name.partition(".")[0]})), found, match["function"]


def skeleton(spec: str) -> str:
    """A task file for a function: its source copied in, with `inputs` and `reference` left to fill in."""
    closure, module, function = _opened(spec)
    closure.given |= RESERVED
    root = closure.need(module, function)
    node = _called(closure, root, spec)
    parameters, defaults = _parameters(node)
    closure.imports.setdefault(Symbol("torch"), Alias("torch"))
    closure.mentions.setdefault(Symbol("torch"), [])
    names = emit.settled(closure, root)
    width = max((len(p) for p in parameters), default=0)
    lines = [
        f"        {json.dumps(p)}: {repr(defaults[p]) if p in defaults else '...'},"
        + ("" if p in defaults else f'{" " * (width - len(p))}  # FILL IN: "float16[M, N]", or a value')
        for p in parameters
    ]
    call = ", ".join(parameters)
    preamble = "\n".join(
        [
            "inputs = {",
            '    "args": {',
            *lines,
            "    },",
            '    "cases": [',
            '        {"M": ..., "N": ...},  # FILL IN: the sizes at which it must be fast',
            "    ],",
            "}",
            "",
            "",
            f"def reference({call}):",
            '    raise NotImplementedError("FILL IN: the same in PyTorch; a tensor, or a tuple of tensors")',
        ]
    )
    launch = f"def launch({call}):\n    return {names[root]}({call})  # FILL IN: return what reference returns\n"
    title = f'"""{function} of {module.name}, copied by `tilewright scaffold`: fill in what is marked FILL IN."""'
    return f"{title}\n\n{emit.emitted(closure, module.name, names, preamble=preamble)}\n\n{launch}"


# --- tasks that name a function as their start ------------------------------------------------------------


def assemble(
    source: str, tree: ast.Module, skip: Sequence[ast.stmt], start: str, args: Sequence[str], path: str
) -> str:
    """The starting candidate of a task file that says `start = "package.module:function"`.

    The file's own `launch` adapts the function, by its name; without one the function is called with the
    arguments as they are. `skip` is what of the file no candidate may carry. Raises TaskProblem at the line
    of `start`.
    """
    node = next(n for n in tree.body if bound([n]) == {"start"})
    try:
        return _assembled(Module(_TASK, Path(path), source, tree).index([*skip, node]), start, args)
    except TaskProblem as problem:
        raise TaskProblem(f"start {start!r}: {problem}", problem.remedy, path=path, line=node.lineno) from None


def _assembled(task: Module, start: str, args: Sequence[str]) -> str:
    closure, module, function = _opened(start)
    closure.given |= RESERVED - {"launch"}
    adapter = definitions(task.tree).get("launch")
    if adapter is None:
        closure.given.add("launch")
        root = closure.need(module, function)
        _check_call(_called(closure, root, start), args)
        names = emit.settled(closure, root)
        call = ", ".join(args)
        return (
            emit.emitted(closure, module.name, names) + f"\n\ndef launch({call}):\n    return {names[root]}({call})\n"
        )
    if function in task.aliases or any(function in piece.binds for piece in task.pieces):
        raise TaskProblem(f"the file has a {function!r} of its own", "rename it, so that the name means one thing")
    task.aliases[function] = Alias(module.name, function)
    closure.library.add(task)
    root = closure.need(task, "launch")
    if not any(o.name == function for piece in closure.pieces[task.name] for o in piece.occurrences):
        raise TaskProblem(f"launch does not use {function!r}", "call it in launch, or leave launch out")
    return emit.emitted(closure, task.name, emit.settled(closure, root), quiet=True)


def _called(closure: Closure, symbol: Symbol, spec: str) -> ast.FunctionDef:
    """The function behind a symbol. Raises TaskProblem where it is a class or a value."""
    module = closure.library.find(symbol.module)
    node = definitions(module.tree).get(symbol.name or "") if module is not None else None
    if isinstance(node, ast.FunctionDef):
        if any("jit" in ast.unparse(d) for d in node.decorator_list):
            raise TaskProblem(
                f"{spec} is a kernel, and a kernel alone cannot be launched",
                "name the function that launches it",
            )
        return node
    kind = "a class" if isinstance(node, ast.ClassDef) else "no plain function"
    raise TaskProblem(f"{spec} is {kind}", "name the function that launches the kernel, such as its forward's helper")


def _parameters(node: ast.FunctionDef) -> tuple[list[str], dict[str, object]]:
    """Parameters by position, and the defaults that are plain values."""
    args = [*node.args.posonlyargs, *node.args.args]
    defaults: dict[str, object] = {}
    for arg, default in zip(reversed(args), reversed(node.args.defaults), strict=False):
        if isinstance(default, ast.Constant):
            defaults[arg.arg] = default.value
    return [a.arg for a in args], defaults


def _check_call(node: ast.FunctionDef, args: Sequence[str]) -> None:
    parameters = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    least = len(parameters) - len(node.args.defaults)
    keywords = [a.arg for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is None]
    if not least <= len(args) <= (len(args) if node.args.vararg else len(parameters)) or keywords:
        raise TaskProblem(
            f"{node.name}({ast.unparse(node.args)}) cannot be called with ({', '.join(args)})",
            f"define `def launch({', '.join(args)}): …` that calls {node.name} as it should be",
        )
