"""Foreign source as a module of this process, and what a caller needs from it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tilewright.harness.worker.failed import Failed, sentence
from tilewright.harness.worker.outcome import FOREIGN, foreign_lines


def load(source: str, name: str, *, blame: str = "launch") -> ModuleType:
    """Execute `source` as a module whose file lies in the current folder, so that its lines can be shown.

    A syntax error is a `compile` failure and whatever else it raises is `blame`'s, unless `blame` is `task`,
    which takes both.
    """
    path = Path.cwd() / f"{FOREIGN}{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(f"{FOREIGN}{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # before it runs: dataclasses and triton look themselves up
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        word = "task" if blame == "task" else "compile"
        detail = f"line {error.lineno}: {error.msg}"
        raise Failed(word, detail, (error.text or "").strip()) from error
    except Failed:
        raise
    except Exception as error:
        raise Failed(blame, f"loading it raised {sentence(error)}", foreign_lines(error)) from error
    return module


def entry(module: ModuleType, name: str, *, blame: str = "compile") -> Any:
    """The function or class that a source must define."""
    found = getattr(module, name, None)
    if not callable(found):
        defined = sorted(key for key, value in vars(module).items() if callable(value) and key[0] != "_")
        raise Failed(blame, f"it defines no `{name}`; it defines {', '.join(defined) or 'nothing'}")
    return found
