"""x"""

from __future__ import annotations
import ast


def scaffold(spec: str) -> str: ...
def assemble(source: str, tree: ast.Module, start: str, args: tuple[str, ...], path: str) -> tuple[str, str]: ...
