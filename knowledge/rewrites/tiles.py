"""What a kernel's constexpr sizes are for: which may be changed without changing what is computed.

A tile size is free where the kernel covers its range in tiles of that size, whatever the size: it steps a loop,
or multiplies the program's index (and the grid is made with it). A size that only makes an `arange` covers its
range in one piece and must stay. Where an access is not masked in the tile's direction, the range is known to be
a multiple of the present size alone, so only divisors of it are safe.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst

from tilewright.knowledge.rewrites.kernels import Language
from tilewright.knowledge.rewrites.launches import Kernel
from tilewright.knowledge.rewrites.source import Source, dotted, names, walk


@dataclass(frozen=True, slots=True)
class Tile:
    """One constexpr size."""

    name: str
    program: bool
    """Multiplies a program's index: the grid must be made with it."""
    masked: bool
    """Every access is masked along it, or wrapped; False: only divisors of the present size are safe."""
    partial: bool
    """Something is stored once a program: the host knows how many programs there are."""


@functools.lru_cache(maxsize=256)
def tiles(source: Source, language: Language, kernel: Kernel) -> Mapping[str, Tile]:
    """The kernel's free tile sizes by name."""
    found = {}
    index = tainted(kernel.node, _program_ids(kernel.node, language))
    loops = {
        n.target.value for n in walk(kernel.node.body) if isinstance(n, cst.For) and isinstance(n.target, cst.Name)
    }
    for parameter in kernel.parameters:
        if parameter.constexpr:
            roles = _roles(source, language, kernel.node, parameter.name, index, loops)
            if roles is not None and roles & {"program", "step"}:
                found[parameter.name] = Tile(
                    parameter.name,
                    program="program" in roles,
                    masked=_masked(language, kernel.node, parameter.name),
                    partial="program" in roles and _partial(language, kernel.node, parameter.name),
                )
    return found


def _program_ids(function: cst.FunctionDef, language: Language) -> set[str]:
    found = set()
    for node in walk(function.body):
        if isinstance(node, cst.Assign) and any(
            isinstance(n, cst.Call) and language.op(n.func) == "program_id" for n in walk(node.value)
        ):
            found |= {t.value for target in node.targets for t in walk(target.target) if isinstance(t, cst.Name)}
    return found


def tainted(function: cst.FunctionDef, seeds: set[str], wraps: bool = False) -> set[str]:
    """The names whose values are made from the seeds, by assignment; `wraps`: `x % n` frees a value."""
    found = set(seeds)
    while True:
        before = len(found)
        for node in walk(function.body):
            if not isinstance(node, cst.Assign | cst.AugAssign | cst.AnnAssign) or node.value is None:
                continue
            if _reads(node.value, found, wraps):
                targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
                found |= {n.value for t in targets for n in walk(t) if isinstance(n, cst.Name)}
        if len(found) == before:
            return found


def _reads(node: cst.CSTNode, wanted: set[str], wraps: bool) -> bool:
    if wraps and isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Modulo):
        return False
    if isinstance(node, cst.Name):
        return node.value in wanted
    if isinstance(node, cst.Attribute):
        return _reads(node.value, wanted, wraps)
    if isinstance(node, cst.Arg):
        return _reads(node.value, wanted, wraps)
    return any(_reads(child, wanted, wraps) for child in node.children)


def _roles(
    source: Source, language: Language, function: cst.FunctionDef, name: str, index: set[str], loops: set[str]
) -> set[str] | None:
    """What every use of a size is for; None where one of them is something else."""
    roles: set[str] = set()
    for node in walk(function.body):
        if not isinstance(node, cst.Name) or node.value != name:
            continue
        role = _role(source, language, node, index, loops)
        if role is None:
            return None
        roles |= role
    return roles


def _role(source: Source, language: Language, node: cst.Name, index: set[str], loops: set[str]) -> set[str] | None:
    parent = source.parents[node]
    if isinstance(parent, cst.Element):
        return {"shape"}
    if isinstance(parent, cst.BinaryOperation) and isinstance(parent.operator, cst.Multiply):
        other = parent.right if parent.left is node else parent.left
        read = names(other)
        if read & index or any(isinstance(c, cst.Call) and language.op(c.func) == "program_id" for c in walk(other)):
            return {"program"}
        if read & loops:
            return {"step"}
        return {"advance"} if _inside_loop(source, node) else None
    if isinstance(parent, cst.AugAssign) and isinstance(parent.operator, cst.AddAssign) and _inside_loop(source, node):
        return {"advance"}
    if isinstance(parent, cst.Arg):
        call = source.parents[parent]
        if isinstance(call, cst.Call):
            return _call_role(source, language, node, parent, call)
    return None


def _call_role(source: Source, language: Language, node: cst.Name, arg: cst.Arg, call: cst.Call) -> set[str] | None:
    op = language.op(call.func)
    called = dotted(call.func)
    position = list(call.args).index(arg)
    if op == "arange":
        return {"extent"} if position == 1 else None
    if (called == "range" or op in ("range", "static_range")) and (position == 2 or arg.keyword):
        return {"step"}
    if op == "cdiv" or called.endswith("cdiv"):
        loop = next((a for a in source.ancestors(call) if isinstance(a, cst.For)), None)
        inside = loop is not None and any(n is node for n in walk(loop.iter))
        return {"step"} if inside or position == 1 else None
    if op in ("multiple_of", "max_contiguous"):
        return {"hint"}
    return None


def _inside_loop(source: Source, node: cst.CSTNode) -> bool:
    return any(isinstance(a, cst.For | cst.While) for a in source.ancestors(node))


def _masked(language: Language, function: cst.FunctionDef, name: str) -> bool:
    """Whether every access whose address depends on the tile's extent has a mask that depends on it as well."""
    extents = _extents(language, function, name)
    address = tainted(function, extents, wraps=True)
    for node in walk(function.body):
        if not isinstance(node, cst.Call):
            continue
        op = language.op(node.func)
        if op is None or not (op in ("load", "store") or op.startswith("atomic")):
            continue
        given = {a.keyword.value: a.value for a in node.args if a.keyword}
        plain = [a.value for a in node.args if not a.keyword]
        place = 1 if op == "load" else 2
        mask = given.get("mask", plain[place] if len(plain) > place else None)
        pointer = plain[0] if plain else given.get("pointer")
        if pointer is None:
            return False
        direct = {name} if any(isinstance(n, cst.Name) and n.value == name for n in walk(pointer)) else set()
        if _reads(pointer, address | direct, True):
            inline = mask is not None and any(isinstance(n, cst.Name) and n.value == name for n in walk(mask))
            if mask is None or not (inline or _reads(mask, address, False)):
                return False
    return True


def _partial(language: Language, function: cst.FunctionDef, name: str) -> bool:
    """Whether a store's address does not depend on the tile's extent."""
    address = tainted(function, _extents(language, function, name))
    for node in walk(function.body):
        op = language.op(node.func) if isinstance(node, cst.Call) else None
        if isinstance(node, cst.Call) and op is not None and (op == "store" or op.startswith("atomic")):
            pointer = node.args[0].value
            if not _reads(pointer, address | {name}, False):
                return True
    return False


def _extents(language: Language, function: cst.FunctionDef, name: str) -> set[str]:
    """Names assigned from an expression with `arange(0, name)` in it."""
    found = set()
    for node in walk(function.body):
        if isinstance(node, cst.Assign) and any(
            isinstance(c, cst.Call) and language.op(c.func) == "arange" and _reads(c, {name}, False)
            for c in walk(node.value)
            if not _wrapped(node.value)
        ):
            found |= {t.value for target in node.targets for t in walk(target.target) if isinstance(t, cst.Name)}
    return found


def _wrapped(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Modulo)
