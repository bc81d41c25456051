"""Whether what was checked is what would be timed: the kernels of full-size calls must have run in a check.

A candidate may choose by size, mode or mood between the code that is looked at and the code that counts. So every
kernel that is launched at full size must be launched in some check whose result was not made by operations of
torch's that full-size calls do without; moving and filling memory aside, which odd sizes need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.harness.types import KernelFacts

FILLS = frozenset(
    ["zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"]
)
MOVES = FILLS | frozenset(["zero_", "fill_", "copy_", "clone", "_to_copy", "cat", "stack", "constant_pad_nd"])
"""Operations of torch's own that only fill or move memory."""
TORCH = "torch:"
"""Before the names of torch's own operations among kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What one check ran."""

    kernels: tuple[str, ...]
    operations: tuple[str, ...]
    """Of torch's own, without views."""


def unchecked(kernels: Sequence[KernelFacts], checks: Sequence[Ran]) -> str:
    """What full-size calls run that no check did, as a sentence; empty where there is nothing."""
    names = dict.fromkeys(kernel.kernel for kernel in kernels)
    own = [name for name in names if not name.startswith(TORCH)]
    allowed = {name.removeprefix(TORCH) for name in names if name.startswith(TORCH)} | MOVES
    plain = [check for check in checks if allowed.issuperset(check.operations)]
    more = sorted({name for check in checks for name in check.operations} - allowed)
    beside = f" without operations that full size does without ({', '.join(more)})" if more else ""
    if not own and not any(not check.kernels for check in plain):
        return f"not-executed: at full size no kernel is launched, and no check ran like that{beside}"
    for name in own:
        if not any(name in check.kernels for check in plain):
            return f"not-executed: {name} is launched at full size, and no check ran it{beside}"
    return ""
