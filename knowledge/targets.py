"""The devices that kernels are made fast for: one file of ceilings each, in `knowledge/targets/`.

A file is named after its target (`cuda:90` is `cuda-90.toml`) and holds exactly the fields of
`harness.types.Target` but the name; units are in the field names. `source` says where each ceiling comes from.
"""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from tilewright.harness.errors import KnowledgeProblem, TargetProblem
from tilewright.harness.types import Target

TENSOR_TYPES = ("tf32", "fp16", "bf16", "fp8", "int8", "fp64")
"""Operand types that `tensor_flops_per_s` may name."""

_WORDS = {"device", "backend", "source"}
_RATES = {
    "clock_hz",
    "dram_bytes_per_s",
    "dram_latency_s",
    "l2_bytes_per_s",
    "fp32_flops_per_s",
    "launch_s",
}
_FIELDS = {field.name for field in dataclasses.fields(Target)} - {"name"}


def target_names() -> tuple[str, ...]:
    """The names of all known targets, sorted."""
    return tuple(sorted(_name(file) for file in _folder().iterdir() if file.name.endswith(".toml")))


@functools.cache
def target(name: str) -> Target:
    """The ceilings of one target.

    Raises TargetProblem, naming what exists, where nothing is known by this name, and KnowledgeProblem where
    its file does not hold together.
    """
    if name not in target_names():
        raise TargetProblem(f"no target is called {name!r}", f"choose one of {', '.join(target_names())}")
    file = _folder() / f"{name.replace(':', '-')}.toml"
    return read(name, file.read_text(encoding="utf-8"), f"knowledge/targets/{file.name}")


def read(name: str, text: str, where: str) -> Target:
    """A target from the text of its file; `where` names the file in messages.

    Raises KnowledgeProblem with the key at fault, what was expected and what was found.
    """
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise KnowledgeProblem(f"{where}: not TOML: {error}") from None
    if missing := sorted(_FIELDS - found.keys()):
        raise KnowledgeProblem(f"{where}: missing {', '.join(missing)}", "every field of Target must be given")
    if unknown := sorted(found.keys() - _FIELDS):
        raise KnowledgeProblem(f"{where}: unknown key {', '.join(unknown)}", f"known: {', '.join(sorted(_FIELDS))}")
    values: dict[str, Any] = {key: _checked(where, key, value) for key, value in found.items()}
    if values["shared_bytes_per_block"] > values["shared_bytes_per_multiprocessor"]:
        raise KnowledgeProblem(f"{where}: shared_bytes_per_block exceeds shared_bytes_per_multiprocessor")
    return Target(name=name, **values)


def _checked(where: str, key: str, value: Any) -> Any:
    if key in _WORDS:
        if not isinstance(value, str) or not value.strip():
            raise KnowledgeProblem(f"{where}: {key}: expected words, found {value!r}")
        return value.strip()
    if key == "tensor_flops_per_s":
        if not isinstance(value, dict) or not value or value.keys() - set(TENSOR_TYPES):
            raise KnowledgeProblem(f"{where}: {key}: expected a table of {', '.join(TENSOR_TYPES)}, found {value!r}")
        return {word: float(_positive(where, f"{key}.{word}", rate)) for word, rate in value.items()}
    if key in _RATES:
        return float(_positive(where, key, value))
    if isinstance(value, bool) or not isinstance(value, int):
        raise KnowledgeProblem(f"{where}: {key}: expected a whole number, found {value!r}")
    return _positive(where, key, value)


def _positive(where: str, key: str, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise KnowledgeProblem(f"{where}: {key}: expected a positive number, found {value!r}")
    return value


def _folder() -> Traversable:
    return files("tilewright.knowledge") / "targets"


def _name(file: Traversable) -> str:
    return file.name.removesuffix(".toml").replace("-", ":", 1)
