"""Joins what the compiler said of a candidate's launches and what the census counted of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tilewright.harness.types import KernelFacts

WARP = 32


class Mismatch(ValueError):
    """Compiler and census saw different launches: the launch code hangs on values that nobody computed."""


def merged(compiled: Mapping[str, Any], counted: Mapping[str, Any] | None, case: str) -> tuple[KernelFacts, ...]:
    """Facts of one case, one a distinct launch, from the replies of `op_compile` and `op_census`.

    Launches are matched in the order in which they were made; operations of torch's own the compiler's reply has
    alone. To the facts of both come `programs`, and `load_requests` and `store_requests`: instructions of a warp that
    access memory, from each source line's bytes and the width the compiler gave that line.
    Without a census (None or an empty reply) there are the compiler's facts alone.
    Raises Mismatch where the two did not see the same launches.
    """
    kernels = compiled["kernels"]
    if not counted:
        return tuple(_facts(entry, [], case) for entry in kernels)
    launches = counted["launches"]
    order = [i for i in compiled["order"] if not kernels[i]["facts"].get("torch_op")]
    if len(order) != len(counted["order"]):
        raise Mismatch(f"{len(order)} launches were compiled and {len(counted['order'])} counted")
    seen: dict[int, list[int]] = defaultdict(list)
    for nth, (index, twin) in enumerate(zip(order, counted["order"], strict=True)):
        one, other = kernels[index], launches[twin]
        if one["kernel"] != other["kernel"] or list(one["grid"]) != list(other["grid"]):
            raise Mismatch(
                f"launch {nth} was compiled as {one['kernel']} {tuple(one['grid'])} "
                f"and counted as {other['kernel']} {tuple(other['grid'])}"
            )
        seen[index].append(twin)
    return tuple(_facts(entry, [launches[twin] for twin in seen[index]], case) for index, entry in enumerate(kernels))


def _facts(entry: Mapping[str, Any], twins: list[Mapping[str, Any]], case: str) -> KernelFacts:
    x, y, z = entry["grid"]
    facts = {**entry["facts"], "programs": x * y * z}
    if twins:
        names = sorted({name for twin in twins for name in twin["counts"]})
        for name in names:
            # Launches that compile alike may still differ, in strides say: their mean stands for each.
            mean = sum(twin["counts"].get(name, 0) for twin in twins) / len(twins)
            facts[name] = round(mean, 3) if name == "load_rounds" else round(mean)
        for kind in ("load", "store"):
            requests = sum(_requests(entry, twin, kind) for twin in twins) / len(twins)
            facts[f"{kind}_requests"] = round(requests)
    return KernelFacts(
        kernel=entry["kernel"],
        case=case,
        grid=(x, y, z),
        launches=entry["launches"],
        facts=facts,
        digest=entry["digest"],
    )


def _requests(entry: Mapping[str, Any], twin: Mapping[str, Any], kind: str) -> float:
    """Instructions of a warp: bytes over what one moves. A line without a width of its own accesses single elements."""
    widths: dict[int, int] = {int(line): bits for line, bits in entry.get("lines", {}).get(kind, {}).items()}
    sizes: dict[str, float] = twin["lines"][kind]
    return sum(8 * size / (widths.get(int(line), 32) * WARP) for line, size in sizes.items())
