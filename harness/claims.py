"""Did the edit take? Compares what a candidate claimed with what the compiler made of parent and child."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.harness.types import Claim, KernelFacts, Receipt

PSEUDO_FACTS = ("programs", "launches", "kernels")
"""Facts of a call as a whole: programs of the kernel, launches and distinct kernels of one call."""

Value = int | float | str | bool


def receipt(claim: Claim | None, parent: Sequence[KernelFacts], child: Sequence[KernelFacts]) -> tuple[Receipt, str]:
    """Whether `claim` is realised, refuted or indeterminate, and the facts that say so, in one sentence.

    A claim must hold in every case in which it can be read: one case that refutes it refutes it. Equal
    device binaries refute any claim, whatever the source says.
    """
    if claim is None:
        return Receipt.INDETERMINATE, "no fact was claimed"
    if not parent or not child:
        return Receipt.INDETERMINATE, "nothing was compiled to compare"
    if [k.digest for k in parent] == [k.digest for k in child] and _shape(parent) == _shape(child):
        return Receipt.REFUTED, "the device binary and its launches are the same as the parent's"
    said: list[str] = []
    outcome = Receipt.INDETERMINATE
    for case in dict.fromkeys(k.case for k in child):
        before = _fact(claim, [k for k in parent if k.case == case])
        after = _fact(claim, [k for k in child if k.case == case])
        holds = _holds(claim, before, after)
        if holds is None:
            said.append(f"{case}: {claim.fact} cannot be read")
            continue
        wanted = f"{claim.relation} {claim.value}" if claim.value is not None else claim.relation
        said.append(f"{case}: {claim.fact} {before} → {after} (claimed: {wanted})")
        if not holds:
            return Receipt.REFUTED, said[-1]
        outcome = Receipt.REALISED
    return outcome, "; ".join(said)


def hot(kernels: Sequence[KernelFacts]) -> KernelFacts:
    """The kernel that moves the most bytes in all its launches; the first one where that is unknown."""

    def moved(k: KernelFacts) -> float:
        return k.launches * (_number(k.facts.get("load_sector_bytes")) + _number(k.facts.get("store_sector_bytes")))

    return max(kernels, key=moved)


def _shape(kernels: Sequence[KernelFacts]) -> list[tuple[object, ...]]:
    return [(k.case, k.grid, k.launches) for k in kernels]


def _number(value: Value | None) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _fact(claim: Claim, kernels: Sequence[KernelFacts]) -> Value | None:
    if not kernels:
        return None
    if claim.fact == "launches":
        return sum(k.launches for k in kernels)
    if claim.fact == "kernels":
        return len({k.kernel for k in kernels})
    named = [k for k in kernels if k.kernel == claim.kernel] if claim.kernel else []
    kernel = hot(named or kernels)
    if claim.fact == "programs":
        x, y, z = kernel.grid
        return x * y * z
    return kernel.facts.get(claim.fact)


def _holds(claim: Claim, before: Value | None, after: Value | None) -> bool | None:
    """None where the facts do not say."""
    if after is None:
        return None
    if claim.relation in ("rises", "falls", "differs"):
        if before is None:
            return None
        if claim.relation == "differs":
            return after != before
        if isinstance(before, str) or isinstance(after, str):
            return None
        return after > before if claim.relation == "rises" else after < before
    if claim.relation == "==":
        return after == claim.value
    if isinstance(after, str) or not isinstance(claim.value, (int, float)):
        return None
    return after >= claim.value if claim.relation == ">=" else after <= claim.value
