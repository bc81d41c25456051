"""Facts about one compiled kernel, read from the texts of its TTIR, TTGIR and PTX. Vocabulary: docs/facts.md.

Text, not bindings: it is the same in every version of Triton that we support, and needs no compiler to read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

Fact: TypeAlias = int | float | str | bool
Place: TypeAlias = tuple[int, int]
"""Line and column in the source that a piece of code was made from."""

_OP = re.compile(r'^\s*(?:%[^=]*= )?"?((?:tt|ttg|ttng|scf|arith|math)\.[a-z_0-9.]+)"?')
_LOC_DEF = re.compile(r"^(#loc\d*) = loc\((.*)\)\s*$")
_LOC_USE = re.compile(r"loc\((#loc\d*)\)\s*$")
_PLACE = re.compile(r'^"[^"]*":(\d+):(\d+)')
_TENSOR = re.compile(r"tensor<((?:\d+x)+)([^<>,]*(?:<[^<>]*>)?)")
_DOT = re.compile(r"tensor<[\dx]*x(\w+)(?:, [^>]*)?> \* tensor<[\dx]*x(\w+)")
_PRECISION = re.compile(r"inputPrecision = (\w+)")
_LOADS = ("tt.load", "tt.descriptor_load", "tt.descriptor_gather", "tt.experimental_descriptor_load")
_STORES = ("tt.store", "tt.descriptor_store", "tt.descriptor_scatter", "tt.experimental_descriptor_store")
_ATOMICS = ("tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_reduce")
_DOTS = ("tt.dot", "tt.dot_scaled")
_REDUCES = ("tt.reduce", "tt.scan")
_COPIES = ("ttg.async_copy_global_to_local", "ttng.async_tma_copy_global_to_local")
_OPERANDS = {"f16": "fp16", "bf16": "bf16", "i8": "int8", "f64": "fp64"}


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of an IR text."""

    name: str
    line: str
    in_loop: bool
    """Lexically inside `scf.for` or `scf.while`."""
    place: Place | None
    """The innermost source position that it stands for."""


def ops(text: str) -> Iterator[Op]:
    """The operations of a TTIR or TTGIR text, in order."""
    places = _places(text)
    depth, loops = 0, list[int]()
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        found = _OP.match(line)
        use = _LOC_USE.search(line)
        bare = re.sub(r"loc\(.*", "", line)
        after = depth + bare.count("{") - bare.count("}")
        while loops and after <= loops[-1]:
            loops.pop()
        if found:
            name = found.group(1)
            yield Op(name, line, bool(loops), places.get(use.group(1)) if use else None)
            if name in ("scf.for", "scf.while") and after > depth:
                loops.append(depth)
        depth = after


def _places(text: str) -> dict[str, Place]:
    """Where each location alias lies: of a name, where it was given; of a call, where the callee stands."""
    said = {m.group(1): m.group(2) for m in map(_LOC_DEF.match, text.splitlines()) if m}

    def resolve(what: str, left: int = 32) -> Place | None:
        if left == 0:
            return None
        if at := _PLACE.match(what):
            return int(at.group(1)), int(at.group(2))
        if inner := re.match(r'^(?:callsite\(|"[^"]*"\()?(#loc\d*)', what):
            return resolve(said.get(inner.group(1), ""), left - 1)
        return None

    return {name: place for name, what in said.items() if (place := resolve(what))}


def _elements(line: str) -> tuple[int, int] | None:
    """Elements and rank of the largest tensor named on a line; None where it names none."""
    shapes = [[int(n) for n in m.group(1)[:-1].split("x")] for m in _TENSOR.finditer(line)]
    return max(((math.prod(shape), len(shape)) for shape in shapes), default=None)


def ttir_facts(text: str) -> dict[str, Fact]:
    """Counts of operations in TTIR, of which `…_in_loop` are inside a loop, and the largest tile."""
    counted = {"loads": 0, "stores": 0, "atomics": 0, "dots": 0, "reduces": 0, "loops": 0, "index64_ops": 0}
    in_loop = {"loads_in_loop": 0, "stores_in_loop": 0, "dots_in_loop": 0, "reduces_in_loop": 0}
    tile, precisions = (0, 0), set[str]()
    kinds = {
        **dict.fromkeys(_LOADS, "loads"),
        **dict.fromkeys(_STORES, "stores"),
        **dict.fromkeys(_ATOMICS, "atomics"),
        **dict.fromkeys(_DOTS, "dots"),
        **dict.fromkeys(_REDUCES, "reduces"),
        "scf.for": "loops",
        "scf.while": "loops",
    }
    for op in ops(text):
        if (kind := kinds.get(op.name)) is not None:
            counted[kind] += 1
            if op.in_loop and f"{kind}_in_loop" in in_loop:
                in_loop[f"{kind}_in_loop"] += 1
            if kind in ("loads", "stores"):
                tile = max(tile, _elements(op.line) or (1, 0))
            if op.name == "tt.dot":
                precisions.add(_dot_precision(op.line))
        elif op.name.startswith("arith.") and op.name != "arith.constant" and re.search(r"tensor<[\dx]*xi64", op.line):
            counted["index64_ops"] += 1
    return {
        **counted,
        **in_loop,
        "tile_elements": tile[0],
        "tile_rank": tile[1],
        "dot_precision": "+".join(sorted(precisions)),
    }


def _dot_precision(line: str) -> str:
    """For fp32 operands the way they are multiplied; for others their type: `inputPrecision` means nothing there."""
    operands = _DOT.search(line)
    kind = operands.group(1) if operands else "f32"
    if kind != "f32":
        return _OPERANDS.get(kind, "fp8" if kind.startswith("f8") else kind)
    said = _PRECISION.search(line)
    return said.group(1) if said else "ieee"


def ttgir_facts(text: str) -> dict[str, Fact]:
    """Layout conversions inside loops and asynchronous copies, from TTGIR."""
    converts = copies = 0
    for op in ops(text):
        converts += op.name == "ttg.convert_layout" and op.in_loop
        copies += op.name in _COPIES
    return {"converts_in_loop": converts, "async_copies": copies}


# --- PTX -------------------------------------------------------------------------------------------------

_LINE = re.compile(r"^\s*\.loc\s+\d+\s+(\d+)\s+(\d+)")
_ACCESS = re.compile(r"\b(ld|st)(?:\.[a-z_0-9]+)*?\.global(?:\.[\w:]+?)*?(?:\.v(\d))?\.[busf](\d+)\b")
_CP_ASYNC = re.compile(r"\bcp\.async\.c[ag]\.shared\.global[\w.:]* .*?, (0x[0-9a-f]+|\d+)")
_BULK = re.compile(r"\bcp\.async\.bulk\.tensor[\w.:]*\.(shared|global)")
_BULK_BITS = 128
"""A bulk copy is made by the copy engine, in pieces never narrower than this."""


@dataclass(frozen=True, slots=True)
class Access:
    """One instruction that reads or writes global memory."""

    store: bool
    bits: int
    """Per thread."""
    place: Place | None


def accesses(ptx: str) -> Iterator[Access]:
    """The global loads, stores and asynchronous copies of a PTX text; atomics are not among them."""
    place: Place | None = None
    for line in ptx.splitlines():
        if at := _LINE.match(line):
            place = (int(at.group(1)), int(at.group(2)))
        elif found := _ACCESS.search(line):
            kind, lanes, bits = found.groups()
            yield Access(kind == "st", int(lanes or 1) * int(bits), place)
        elif copied := _CP_ASYNC.search(line):
            yield Access(False, int(copied.group(1), 0) * 8, place)
        elif bulk := _BULK.search(line):
            yield Access(bulk.group(1) == "global", _BULK_BITS, place)


def scalar_places(ttir: str) -> frozenset[Place]:
    """Source positions at which TTIR accesses memory by single elements only."""
    scalar, tensor = set[Place](), set[Place]()
    for op in ops(ttir):
        if op.name in (*_LOADS, *_STORES) and op.place:
            (scalar if _elements(op.line) is None else tensor).add(op.place)
    return frozenset(scalar - tensor)


def ptx_facts(ptx: str, scalars: frozenset[Place] = frozenset()) -> dict[str, Fact]:
    """Widths of the accesses to tensors, barriers, and the tensor-core instruction, from PTX.

    `scalars`: positions whose accesses are of single elements, which have no width to speak of.
    """
    widths: dict[bool, list[int]] = {False: [], True: []}
    for access in accesses(ptx):
        if access.place not in scalars:
            widths[access.store].append(access.bits)
    facts: dict[str, Fact] = {}
    for name, bits in (("load", widths[False]), ("store", widths[True])):
        facts[f"{name}_bits_min"] = min(bits, default=0)
        facts[f"{name}_bits_max"] = max(bits, default=0)
        facts[f"narrow_{name}s"] = sum(each < 128 for each in bits)
    facts["barriers"] = len(re.findall(r"\b(?:bar|barrier(?:\.cta)?)\.sync\b", ptx))
    facts["mma"] = (
        "tcgen05"
        if "tcgen05.mma" in ptx
        else "wgmma"
        if "wgmma.mma_async" in ptx
        else "mma.v2"
        if re.search(r"\bmma\.sync\b", ptx)
        else "none"
    )
    return facts


def line_bits(ptx: str, ttir: str) -> dict[str, dict[int, int]]:
    """By source line, the mean width in bits of its loads and of its stores: `{"load": {12: 128}, "store": …}`.

    Only tensors; by which the accesses that a census counted can be turned into instructions.
    """
    scalars = scalar_places(ttir)
    found: dict[str, dict[int, list[int]]] = {"load": {}, "store": {}}
    for access in accesses(ptx):
        if access.place is not None and access.place not in scalars:
            found["store" if access.store else "load"].setdefault(access.place[0], []).append(access.bits)
    # Harmonic: bytes over instructions, when each instruction moves its own width.
    return {
        kind: {line: round(len(bits) / sum(1 / each for each in bits)) for line, bits in lines.items()}
        for kind, lines in found.items()
    }
