"""Triton's interpreter made fit to judge by: its traps mended, or turned into a clear refusal.

`prepare()` patches this process for good, so it belongs into a pool process that does nothing else. It sees to
narrow floats (`interpreter_floats`), device libraries and scalars (`interpreter_libdevice`), kernels that use
names of a closure, operations that the interpreter lacks, and accesses outside of a kernel's
arguments: a device may fault on those or return anything, the interpreter returns whatever lies there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter as _interpreter

from tilewright.harness.worker import interpreter_bounds, interpreter_floats
from tilewright.harness.worker.interpreter_libdevice import install_libdevice, install_scalars
from tilewright.harness.worker.outcome import Unsupported


def prepare() -> None:
    """Mend the interpreter of this process. Harmless when done again. Raises Unsupported where it cannot be."""
    if not triton.knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET=1 must be set before triton is imported")
    if getattr(_interpreter, "_tilewright", False):
        return
    _refuse_numpy()
    interpreter_floats.install()
    interpreter_bounds.install()
    _install_refusals()
    _install_closures()
    install_libdevice()
    install_scalars()
    _interpreter._tilewright = True


def _refuse_numpy() -> None:
    """Triton before 3.7 cannot turn a one-element array into a number under numpy 2.4; every loop bound needs it."""

    class Probe:
        handle = _interpreter.TensorHandle(np.array([3], dtype=np.int32), tl.int32)

    scope = _interpreter._LangPatchScope()
    _interpreter._patch_lang_tensor(Probe, scope)
    try:
        operator.index(Probe())  # type: ignore[arg-type]  # the patch gives it __index__
    except TypeError:
        raise Unsupported(
            f"Triton {triton.__version__}'s interpreter fails with numpy {np.__version__}: pip install 'numpy<2.4'"
        ) from None
    finally:
        scope.restore()


def expose_language(module: ModuleType) -> None:
    """Let the interpreter find the language however a module spells it.

    It patches modules called `tl` alone; `triton.language.load` and `from triton.language import load` escape it.
    """

    def given(builtin: Any) -> Any:
        def call(*args: Any, _semantic: Any = None, **kwargs: Any) -> Any:
            return builtin(*args, _semantic=_interpreter.interpreter_semantic, **kwargs)

        return call

    for name, value in list(vars(module).items()):
        if tl.core.is_builtin(value):
            module.__dict__[name] = given(value)
    if not any(value is tl or value is tl.core for value in vars(module).values()):
        module.__dict__["_tilewright_tl"] = tl


def _install_refusals() -> None:
    builder = _interpreter.InterpreterBuilder

    def refuse(what: str) -> Callable[..., Any]:
        def raising(self: Any, *args: Any, **kwargs: Any) -> Any:
            raise Unsupported(f"{what} cannot be run by Triton's interpreter")

        return raising

    builder.create_inline_asm = refuse("inline assembly")


def _install_closures() -> None:
    """Kernels defined inside a function keep the names that they close over; constexpr may be spelt in any way."""
    rewriter = _interpreter.FunctionRewriter
    plain = rewriter._compile_and_exec

    def compile_and_exec(self: Any, tree: Any) -> Any:
        scope = self.fn.__globals__
        closed = zip(self.fn.__code__.co_freevars, self.fn.__closure__ or (), strict=True)
        for name, cell in closed:
            if scope.get(name, cell.cell_contents) is not cell.cell_contents:
                raise Unsupported(f"kernel {self.fn.__name__} closes over {name!r}, which its module defines too")
            scope[name] = cell.cell_contents
        made = plain(self, tree)
        # The rewritten function's annotations are texts, of which only `tl.constexpr` would be understood.
        made.__annotations__ = {
            name: "constexpr" if "constexpr" in str(kind) else kind for name, kind in made.__annotations__.items()
        }
        return made

    rewriter._compile_and_exec = compile_and_exec
