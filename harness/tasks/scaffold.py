"""Tasks from functions that are installed: their kernels and helpers copied into one file, statically."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tilewright.harness.errors import TaskProblem
from tilewright.harness.tasks import emit
from tilewright.harness.tasks.closure import Closure, Symbol
from tilewright.harness.tasks.modules import Alias, Library, Module
from tilewright.harness.tasks.names import bound
from tilewright.harness.tasks.source import definitions, parse, read

_SPEC = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|.+\.py):(?P<function>[A-Za-z_]\w*)")



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
            f"expected package.module:function, found {spec!r}", "for example liger_kernel.ops.rms_norm:rms_norm_forward"
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


# --- tasks that name a function as their start ------------------------------------------------------------


def assemble(source: str, tree: ast.Module, start: str, args: tuple[str, ...], path: str) -> tuple[str, str]:
    """A task file with its `start` copied in, and the starting candidate.

    The file's own `launch` adapts the function, by its name; without one it is called with the arguments as
    they are. The lines of the file keep their numbers. Raises TaskProblem at the line of `start`.
    """
    line = next(n.lineno for n in tree.body if "start" in bound([n]) and isinstance(n, ast.Assign | ast.AnnAssign))
    try:
        closure, module, function = _opened(start)
        root = _task_module(source, tree, path)
        if function in definitions(tree):
            raise TaskProblem(f"the file defines {function!r} itself", "rename it, so that start means one thing")
        root.aliases[function] = Alias(module.name, function)
        adapted = "launch" in definitions(tree)
        if not adapted:
            _check_call(module, function, args)
        closure.library.add(root)
        closure.edges[root.name] = [module.name]
        if adapted:
            entry = closure.need(root, "launch")
            closure.need(module, function)
        else:
            entry = closure.need(module, function)
        names = emit.settled(closure, entry)
        candidate = emit.emitted(closure, root.name, names, origins=False)
        if not adapted:
            called = names[Symbol(module.name, function)]
            candidate += f"\n\ndef launch({', '.join(args)}):\n    return {called}({', '.join(args)})\n"
    except TaskProblem as problem:
        raise TaskProblem(f"start {start!r}: {problem}", problem.remedy, path=path, line=line) from None
    return source, candidate
