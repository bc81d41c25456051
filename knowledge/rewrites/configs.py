"""The autotuner's list of configurations: reading it where it is literal, and pinning one of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst

from tilewright.knowledge.rewrites.bindings import definition
from tilewright.knowledge.rewrites.launches import Kernel
from tilewright.knowledge.rewrites.source import Patch, Source, dotted, integer, walk


@dataclass(frozen=True, slots=True)
class Config:
    """One entry: sizes of constexprs, and the compiler's options."""

    sizes: Mapping[str, int]
    options: Mapping[str, int]
    """`num_warps`, `num_stages` as given; absent ones have Triton's defaults (4 and 3)."""
    constructor: str = "triton.Config"
    extra: str = ""
    """Other arguments as written, with a leading comma (`, pre_hook=f`)."""

    def text(self) -> str:
        """The entry as source."""
        sizes = ", ".join(f'"{k}": {v}' for k, v in self.sizes.items())
        options = "".join(f", {k}={v}" for k, v in self.options.items())
        return f"{self.constructor}({{{sizes}}}{options}{self.extra})"


def argument(kernel: Kernel) -> cst.BaseExpression | None:
    """The `configs` argument of the kernel's autotuner."""
    if kernel.autotune is None:
        return None
    for position, arg in enumerate(kernel.autotune.args):
        if (arg.keyword.value if arg.keyword else "") == "configs" or (position == 0 and arg.keyword is None):
            return arg.value
    return None


def configs(source: Source, kernel: Kernel) -> list[Config]:
    """Every entry that can be read, comprehensions over literal lists spelled out; empty when none can."""
    listed = argument(kernel)
    if isinstance(listed, cst.Name):
        made = definition(source, listed.value, kernel.node)
        listed = made.value if made is not None and made.index is None else None
    if isinstance(listed, cst.List | cst.Tuple):
        entries = [_entry(source, e.value, {}) for e in listed.elements]
        return [e for e in entries if e is not None] if all(entries) else []
    if isinstance(listed, cst.ListComp):
        return _spelled(source, listed)
    return []


def pinned(source: Source, kernel: Kernel, config: Config) -> Patch:
    """The patch that leaves the autotuner one configuration."""
    listed = argument(kernel)
    if listed is None:
        raise ValueError(f"{kernel.name} is not autotuned")
    return Patch(*source.outer(listed), f"[{config.text()}]")


def _entry(source: Source, node: cst.BaseExpression, values: Mapping[str, int]) -> Config | None:
    if not isinstance(node, cst.Call) or not dotted(node.func).endswith("Config") or not node.args:
        return None
    first = node.args[0].value
    if not isinstance(first, cst.Dict):
        return None
    sizes = {}
    for element in first.elements:
        if not isinstance(element, cst.DictElement) or not isinstance(element.key, cst.SimpleString):
            return None
        value = _value(element.value, values)
        if value is None:
            return None
        sizes[str(element.key.evaluated_value)] = value
    options, extra = {}, ""
    for position, arg in enumerate(node.args[1:]):
        key = arg.keyword.value if arg.keyword else ("num_warps", "num_stages")[position] if position < 2 else ""
        value = _value(arg.value, values)
        if key in ("num_warps", "num_stages"):
            if value is None:
                return None
            options[key] = value
        elif arg.keyword and not any(isinstance(n, cst.Name) and n.value in values for n in walk(arg.value)):
            extra += f", {key}={source.code(arg.value)}"
        else:
            return None
    return Config(sizes, options, dotted(node.func), extra)


def _value(node: cst.BaseExpression, values: Mapping[str, int]) -> int | None:
    return values.get(node.value) if isinstance(node, cst.Name) else integer(node)


def _spelled(source: Source, node: cst.ListComp) -> list[Config]:
    axes: list[tuple[str, list[int]]] = []
    clause: cst.CompFor | None = node.for_in
    while clause is not None:
        literal = clause.iter.elements if isinstance(clause.iter, cst.List | cst.Tuple) else ()
        numbers = [integer(e.value) for e in literal]
        if not isinstance(clause.target, cst.Name) or not numbers or None in numbers or clause.ifs:
            return []
        axes.append((clause.target.value, [n for n in numbers if n is not None]))
        clause = clause.inner_for_in
    found = []
    for values in itertools.product(*(numbers for _, numbers in axes)):
        entry = _entry(source, node.elt, dict(zip((name for name, _ in axes), values, strict=True)))
        if entry is None:
            return []
        found.append(entry)
    return found
