"""The walls of the house: who may import whom, what is packaged, how long a file may get."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("agent", "harness", "knowledge", "skills")
FLOOR = ("types", "roles", "errors", "codec", "gitstore")
LONGEST_FILE = 400
GLOSSARY = "harness/types.py"
"""The nouns stand together in one file, however many lines their meanings take."""

WORKER_MAY_IMPORT = {"numpy", "torch", "triton", *sys.stdlib_module_names}
"""A worker runs on a machine that has Python, torch and triton, and nothing else."""

SLOW = ("torch", "triton", "pydantic_ai", "mcp", "libcst", "git", "pydantic")
"""Imported where they are used, never at the top of a module that `tilewright --help` reaches."""


def modules() -> Iterator[tuple[str, Path]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every dotted name that a file imports, anywhere in it, with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def allowed(importer: str, imported: str) -> bool:
    """`importer` and `imported` are dotted names below `tilewright`."""
    if importer.startswith("harness.cli"):
        return True
    if importer.startswith("harness.worker"):
        return imported.startswith("harness.worker")
    if any(imported.startswith(f"harness.{name}") for name in FLOOR):
        return True
    layer = importer.split(".")[0]
    if layer == "harness":
        return imported.startswith("harness") and not imported.startswith("harness.cli")
    if layer == "knowledge":
        return imported.startswith("knowledge")
    if layer == "skills":
        return imported.startswith(("knowledge", "skills"))
    return imported.startswith(("agent", "knowledge"))


def test_every_import_goes_down_a_layer() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports tilewright.{name.removeprefix('tilewright.')}"
        for module, path in modules()
        for name, line in imports(path)
        if name.startswith("tilewright.") and not allowed(module, name.removeprefix("tilewright."))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("importer", "imported", "fine"),
    [
        ("agent.builtin", "harness.loop", False),
        ("agent.builtin", "harness.types.Task", True),
        ("agent.builtin", "skills.triage", False),
        ("skills.triage.server", "knowledge.cards", True),
        ("skills.triage.server", "agent.builtin", False),
        ("harness.loop", "knowledge.cards", False),
        ("harness.judge.pool", "harness.worker.wire", True),
        ("harness.worker.serve", "harness.types", False),
        ("knowledge.cards", "harness.errors.KnowledgeProblem", True),
        ("knowledge.cards", "harness.loop", False),
    ],
)
def test_the_layer_rule_tells_right_from_wrong(importer: str, imported: str, fine: bool) -> None:
    assert allowed(importer, imported) is fine


def test_workers_import_only_the_standard_library_numpy_torch_and_triton() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for module, path in modules()
        if module.startswith("harness.worker")
        for name, line in imports(path)
        if not name.startswith("tilewright.") and name.split(".")[0] not in WORKER_MAY_IMPORT
    ]
    assert not wrong, "\n".join(wrong)


def test_the_floor_imports_nothing_but_the_standard_library_at_the_top() -> None:
    for name in FLOOR:
        tree = ast.parse((ROOT / "harness" / f"{name}.py").read_text())
        for node in tree.body:
            found = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                found = [node.module or ""]
            for module in found:
                top = module.split(".")[0]
                assert top in sys.stdlib_module_names or module.startswith("tilewright.harness."), f"{name}: {module}"


def test_the_command_line_loads_nothing_slow_at_the_top_of_a_module() -> None:
    wrong = []
    for path in sorted((ROOT / "harness" / "cli").glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            wrong += [f"{path.name}:{node.lineno} {n}" for n in names if n.split(".")[0] in SLOW]
    assert not wrong, "\n".join(wrong)


def test_no_file_of_the_product_is_longer_than_one_thing_needs() -> None:
    lines = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for _, p in modules()}
    assert not {path: n for path, n in lines.items() if n > LONGEST_FILE and path != GLOSSARY}


def test_the_links_for_editable_installs_match_what_the_wheel_maps() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    sources = config["tool"]["hatch"]["build"]["targets"]["wheel"]["sources"]
    assert sources == {folder: f"tilewright/{folder}" for folder in FOLDERS}
    for folder in FOLDERS:
        link = ROOT / ".dev" / "tilewright" / folder
        assert link.is_symlink()
        assert link.resolve() == ROOT / folder


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(p.relative_to(ROOT)) for _, p in modules() if not (ast.get_docstring(ast.parse(p.read_text())) or "")]
    assert not silent
