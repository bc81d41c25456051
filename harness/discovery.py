"""Finds skills: folders in the Agent Skills format that are at the same time packages with a `register(server)`.

A skill comes from the entry points group `tilewright.skills` or from a folder that the user names. One that
cannot be loaded is reported and left out; it never stops the others.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.harness.errors import SkillProblem

if TYPE_CHECKING:
    from mcp.server import MCPServer

GROUP = "tilewright.skills"
OWN = "tilewright"
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
HEADER = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
"""Keys that the Agent Skills format allows in a header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill that could be loaded."""

    name: str
    description: str
    version: str
    """`metadata.version` of its SKILL.md, else its distribution's version, else a digest of its files."""
    folder: Path
    origin: str
    """Where it was found, for people: `entry point of some-package 1.2` or `folder /some/where`."""
    register: Callable[[MCPServer], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A skill that was found but cannot be used, and why."""

    name: str
    origin: str
    cause: str


def discover(folders: Sequence[Path] = ()) -> tuple[list[Skill], list[Broken]]:
    """All skills that can be loaded, the project's own first, and those that cannot, with the reason."""
    found: dict[str, Skill] = {}
    broken: list[Broken] = []
    for name, origin, load in [*_installed(), *_named(folders)]:
        if name in found:
            cause = f"a skill named {name} is already there ({found[name].origin})"
            broken.append(Broken(name=name, origin=origin, cause=cause))
            continue
        try:
            found[name] = load()
        # Code of other people runs here, and may fail in any way; one bad skill must not take the others down.
        except Exception as failure:
            broken.append(Broken(name=name, origin=origin, cause=f"{type(failure).__name__}: {failure}"))
    return list(found.values()), broken


def header(folder: Path) -> dict[str, Any]:
    """The header of a folder's SKILL.md: text values, and `metadata` as a dict.

    Reads the part of YAML that the format needs: `key: value` lines, folded (`>`) blocks and one level of
    `metadata`. Raises SkillProblem with file and line where the header does not hold together.
    """
    path = folder / "SKILL.md"
    if not path.is_file():
        raise SkillProblem(f"{path}: there is no such file", "a skill is a folder with a SKILL.md")
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or lines[0].strip() != "---" or "---" not in [line.strip() for line in lines[1:]]:
        raise SkillProblem(f"{path}:1: expected a header between two lines of ---", "add name and description")
    end = [line.strip() for line in lines].index("---", 1)
    values = _fields(path, lines[1:end])
    for key in ("name", "description"):
        if not values.get(key):
            raise SkillProblem(f"{path}: the header has no {key}", f"add a line `{key}: …`")
    if unknown := sorted(set(values) - set(HEADER)):
        raise SkillProblem(f"{path}: unknown key {unknown[0]!r}", f"the format knows {', '.join(HEADER)}")
    if values["name"] != folder.name or not NAME.fullmatch(values["name"]):
        raise SkillProblem(
            f"{path}: name is {values['name']!r}, the folder's is {folder.name!r}",
            "both must be the same lower-case words joined by hyphens",
        )
    return values


def _fields(path: Path, lines: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    open_key = ""
    for number, line in enumerate(lines, start=2):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line[0] in " \t":
            if isinstance(values.get(open_key), dict):
                key, colon, value = line.strip().partition(":")
                if not colon:
                    raise SkillProblem(
                        f"{path}:{number}: expected `key: value` under {open_key}, found {line.strip()!r}"
                    )
                values[open_key][key.strip()] = _plain(value)
            elif open_key:
                values[open_key] = f"{values[open_key]} {line.strip()}".strip()
            else:
                raise SkillProblem(f"{path}:{number}: an indented line that belongs to no key")
            continue
        key, colon, value = line.partition(":")
        if not colon:
            raise SkillProblem(f"{path}:{number}: expected `key: value`, found {line!r}")
        open_key, text = key.strip(), value.strip()
        values[open_key] = {} if open_key == "metadata" else "" if text in (">", ">-", "|", "|-") else _plain(text)
    return values


def _plain(value: str) -> str:
    text = value.strip()
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'" else text


def _installed() -> Iterator[tuple[str, str, Callable[[], Skill]]]:
    def order(point: EntryPoint) -> tuple[bool, str]:
        return (point.dist is None or point.dist.name != OWN, point.name)

    for point in sorted(entry_points(group=GROUP), key=order):
        dist = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
        origin = f"entry point{dist}"
        yield point.name, origin, partial(_from_point, point, origin)


def _from_point(point: EntryPoint, origin: str) -> Skill:
    spec = importlib.util.find_spec(point.module)
    if spec is None or not spec.origin:
        raise SkillProblem(f"module {point.module} cannot be found", "install the skill's package again")
    folder = Path(spec.origin).parent
    register = point.load()
    return _skill(point.name, folder, origin, register, point.dist.version if point.dist else "")


def _named(folders: Sequence[Path]) -> Iterator[tuple[str, str, Callable[[], Skill]]]:
    for folder in (f.resolve() for f in folders):
        origin = f"folder {folder}"
        yield folder.name, origin, partial(_from_folder, folder, origin)


def _from_folder(folder: Path, origin: str) -> Skill:
    header(folder)
    start = folder / "__init__.py"
    if not start.is_file():
        raise SkillProblem(f"{start}: there is no such file", "the skill's package must define register(server)")
    # A name of its own, so that a folder called like an installed module cannot shadow it.
    name = "tilewright_skill_" + folder.name.replace("-", "_")
    spec = importlib.util.spec_from_file_location(name, start, submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None:
        raise SkillProblem(f"{start}: Python cannot load it")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return _skill(folder.name, folder, origin, getattr(module, "register", None), "")


def _skill(name: str, folder: Path, origin: str, register: Any, version: str) -> Skill:
    fields = header(folder)
    if fields["name"] != name:
        raise SkillProblem(f"{folder}/SKILL.md: name is {fields['name']!r}, the entry point's {name!r}", "use one name")
    if not callable(register):
        raise SkillProblem(f"{folder}: register(server) is missing", "define `def register(server): …` in it")
    declared = str(fields.get("metadata", {}).get("version", ""))
    return Skill(
        name=name,
        description=fields["description"],
        version=declared or version or _digest(folder),
        folder=folder,
        origin=origin,
        register=register,
    )


def _digest(folder: Path) -> str:
    whole = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        whole.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return whole.hexdigest()[:16]
