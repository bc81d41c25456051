"""Reads TOML that people write, and says exactly what is wrong with it when something is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tilewright.harness.errors import KnowledgeProblem


class Table:
    """One TOML table with where it stands: every reading checks the type, and `done` that no key is left over."""

    def __init__(self, file: Path, place: str, values: Mapping[str, Any]) -> None:
        self.file, self.place, self._values = file, place, dict(values)
        self._read: set[str] = set()

    def problem(self, key: str, expected: str, found: object, remedy: str = "") -> KnowledgeProblem:
        """A problem with one key: file, key, what was expected, what was found."""
        where = f"{self.file}: {self.place}.{key}" if self.place else f"{self.file}: {key}"
        return KnowledgeProblem(f"{where}: expected {expected}, found {found}", remedy or f"mend {key} in the card")

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return key in self._values

    def text(self, key: str, default: str | None = None) -> str:
        """A text; not empty unless a default was given."""
        value = self._get(key, "a text", default)
        if not isinstance(value, str) or (default is None and not value.strip()):
            raise self.problem(key, "a text", repr(value))
        return " ".join(value.split())

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A number within [low, high]."""
        value = self._get(key, f"a number from {low:g} to {high:g}", default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self.problem(key, f"a number from {low:g} to {high:g}", repr(value))
        return float(value)

    def texts(self, key: str, default: Iterable[str] | None = None) -> tuple[str, ...]:
        """A list of texts."""
        value = self._get(key, "a list of texts", None if default is None else list(default))
        if not isinstance(value, list) or not all(isinstance(v, str) and v.strip() for v in value):
            raise self.problem(key, "a list of texts", repr(value))
        return tuple(" ".join(v.split()) for v in value)

    def words(self, key: str, known: Iterable[str], default: Iterable[str] | None = None) -> tuple[str, ...]:
        """A list of words out of `known`."""
        allowed = list(known)
        for word in (found := self.texts(key, default)):
            if word not in allowed:
                raise self.problem(key, f"words out of {', '.join(allowed)}", repr(word))
        return found

    def word(self, key: str, known: Iterable[str]) -> str:
        """One word out of `known`."""
        allowed = list(known)
        if (found := self.text(key)) not in allowed:
            raise self.problem(key, f"one of {', '.join(allowed)}", repr(found))
        return found

    def scalar(self, key: str) -> int | float | str | bool | None:
        """A number, a text, true or false; None where the key is missing."""
        self._read.add(key)
        value = self._values.get(key)
        if value is not None and not isinstance(value, (int, float, str, bool)):
            raise self.problem(key, "a number, a text, true or false", repr(value))
        return value

    def table(self, key: str) -> Table:
        """A table inside this one."""
        value = self._get(key, "a table", None)
        if not isinstance(value, dict):
            raise self.problem(key, "a table", repr(value))
        return Table(self.file, f"{self.place}.{key}" if self.place else key, value)

    def tables(self, key: str) -> list[Table]:
        """An array of tables; empty where the key is missing."""
        value = self._get(key, "an array of tables", [])
        if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
            raise self.problem(key, f"an array of tables ([[{key}]])", repr(value)[:80])
        return [Table(self.file, f"{key}[{v.get('id', n)}]", v) for n, v in enumerate(value)]

    def done(self) -> None:
        """Raise for keys that nobody has read: a misspelt key must not be ignored."""
        if left := sorted(set(self._values) - self._read):
            known = ", ".join(sorted(self._read))
            raise self.problem(left[0], f"only the keys {known}", f"{left[0]!r}", f"remove or rename {left[0]}")

    def _get(self, key: str, expected: str, default: Any) -> Any:
        self._read.add(key)
        if key in self._values:
            return self._values[key]
        if default is None:
            raise self.problem(key, expected, "nothing", f"add the key {key}")
        return default


def read(file: Path) -> Table:
    """The whole of a TOML file. Raises KnowledgeProblem for one that cannot be read or parsed."""
    import tomli

    try:
        return Table(file, "", tomli.loads(file.read_text(encoding="utf-8")))
    except tomli.TOMLDecodeError as failure:
        raise KnowledgeProblem(f"{file}: expected TOML, found {failure}", "mend the syntax there") from None
    except (OSError, UnicodeDecodeError) as failure:
        raise KnowledgeProblem(f"{file}: cannot be read: {failure}", "check the path and its permissions") from None
