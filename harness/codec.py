"""Nouns to bytes and back: JSON that people can read, in the order the fields are declared.

pydantic does the work over the plain dataclasses, so no noun has serialising code of its own.
"""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


_ADAPTERS: dict[Any, Any] = {}


def _adapter(kind: Any) -> Any:
    """The adapter of a noun, made once: making one takes milliseconds."""
    if kind not in _ADAPTERS:
        from pydantic import TypeAdapter

        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def dump(thing: Any, kind: Any = None, *, indent: int | None = 1) -> bytes:
    """A noun as UTF-8 JSON, ending in a newline when indented."""
    text: bytes = _adapter(kind or type(thing)).dump_json(thing, indent=indent)
    return text + b"\n" if indent is not None else text


def plain(thing: Any) -> Any:
    """A noun as dicts, lists and scalars: what `json.dumps` takes."""
    return _adapter(type(thing)).dump_python(thing, mode="json")


def load(kind: type[T], text: bytes | str) -> T:
    """Read a noun back. Raises ValueError (pydantic's) that names the field where the text does not fit."""
    thing: T = _adapter(kind).validate_json(text)
    return thing
