"""Did the edit take?"""

from __future__ import annotations

import pytest

from tilewright.harness.claims import receipt
from tilewright.harness.types import Claim, KernelFacts, Receipt


def kernel(
    name: str = "k",
    *,
    case: str = "a",
    programs: int = 8,
    launches: int = 1,
    digest: str = "1",
    **facts: int | float | str | bool,
) -> KernelFacts:
    return KernelFacts(kernel=name, case=case, grid=(programs, 1, 1), launches=launches, facts=facts, digest=digest)


def test_equal_binaries_refute_any_claim() -> None:
    same = [kernel(num_warps=4)]
    assert receipt(Claim(fact="num_warps", relation="==", value=4), same, same)[0] is Receipt.REFUTED


def test_the_same_binary_on_another_grid_is_a_change() -> None:
    claim = Claim(fact="programs", relation="falls")
    assert receipt(claim, [kernel(programs=8)], [kernel(programs=4)])[0] is Receipt.REALISED


@pytest.mark.parametrize(
    ("relation", "value", "before", "after", "outcome"),
    [
        ("==", 8, 4, 8, Receipt.REALISED),
        ("==", 8, 4, 16, Receipt.REFUTED),
        (">=", 128, 32, 128, Receipt.REALISED),
        (">=", 128, 32, 64, Receipt.REFUTED),
        ("<=", 0, 3, 0, Receipt.REALISED),
        ("<=", 0, 3, 1, Receipt.REFUTED),
        ("rises", None, 1, 2, Receipt.REALISED),
        ("rises", None, 2, 2, Receipt.REFUTED),
        ("falls", None, 2, 1, Receipt.REALISED),
        ("falls", None, 1, 2, Receipt.REFUTED),
        ("differs", None, 1, 2, Receipt.REALISED),
        ("differs", None, 1, 1, Receipt.REFUTED),
    ],
)
def test_a_relation_is_read_from_the_facts(
    relation: str, value: int | None, before: int, after: int, outcome: Receipt
) -> None:
    claim = Claim(fact="load_bits_min", relation=relation, value=value)
    parent, child = [kernel(load_bits_min=before)], [kernel(load_bits_min=after, digest="2")]
    found, said = receipt(claim, parent, child)
    assert found is outcome
    assert f"load_bits_min {before} → {after}" in said


def test_one_case_that_refutes_a_claim_refutes_it() -> None:
    claim = Claim(fact="reduces_in_loop", relation="falls")
    parent = [kernel(case="a", reduces_in_loop=2), kernel(case="b", reduces_in_loop=2)]
    child = [kernel(case="a", reduces_in_loop=0, digest="2"), kernel(case="b", reduces_in_loop=2, digest="3")]
    assert receipt(claim, parent, child)[0] is Receipt.REFUTED


def test_a_fact_that_nobody_recorded_leaves_it_open() -> None:
    claim = Claim(fact="async_copies", relation="rises")
    assert receipt(claim, [kernel()], [kernel(digest="2")])[0] is Receipt.INDETERMINATE
    assert receipt(None, [kernel()], [kernel(digest="2")])[0] is Receipt.INDETERMINATE
    assert receipt(claim, [], [])[0] is Receipt.INDETERMINATE


def test_a_claim_about_a_word_cannot_rise() -> None:
    claim = Claim(fact="mma", relation="rises")
    assert receipt(claim, [kernel(mma="none")], [kernel(mma="wgmma", digest="2")])[0] is Receipt.INDETERMINATE


def test_a_claim_is_read_from_the_kernel_that_moves_the_most() -> None:
    claim = Claim(fact="num_warps", relation="==", value=8)
    child = [
        kernel("small", num_warps=1, load_sector_bytes=10, digest="2"),
        kernel("large", num_warps=8, load_sector_bytes=1000, digest="3"),
    ]
    assert receipt(claim, [kernel("large", num_warps=4)], child)[0] is Receipt.REALISED


def test_a_named_kernel_is_looked_at_whatever_it_moves() -> None:
    claim = Claim(fact="num_warps", relation="==", value=1, kernel="small")
    child = [
        kernel("small", num_warps=1, load_sector_bytes=10, digest="2"),
        kernel("large", num_warps=8, load_sector_bytes=1000, digest="3"),
    ]
    assert receipt(claim, [kernel("large", num_warps=4)], child)[0] is Receipt.REALISED


def test_launches_and_kernels_are_counted_over_the_call() -> None:
    parent = [kernel("one")]
    child = [kernel("one", digest="2"), kernel("two", digest="3", launches=2)]
    assert receipt(Claim(fact="launches", relation="==", value=3), parent, child)[0] is Receipt.REALISED
    assert receipt(Claim(fact="kernels", relation="rises"), parent, child)[0] is Receipt.REALISED
