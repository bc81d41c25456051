"""Notes what is launched on a real device while foreign code runs: kernels, grids, and how often."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from tilewright.harness.worker.facts import line_bits


@dataclass(slots=True)
class Launched:
    """What was launched, in order."""

    launches: list[tuple[Any, tuple[int, int, int]]] = field(default_factory=list)
    """Compiled kernel and grid."""
    autotuned: list[dict[str, Any]] = field(default_factory=list)

    def reply(self, facts_of: Callable[[Any], tuple[dict[str, Any], str]]) -> tuple[list[dict[str, Any]], list[int]]:
        """Distinct launches with facts and digest, and the order of all, as op_compile reports them."""
        kernels: list[dict[str, Any]] = []
        index: dict[Any, int] = {}
        order: list[int] = []
        for kernel, grid in self.launches:
            key = (id(kernel), grid)
            if key not in index:
                index[key] = len(kernels)
                facts, digest = facts_of(kernel)
                name = kernel.src.fn.__name__
                entry = {"kernel": name, "grid": list(grid), "launches": 0, "facts": facts, "digest": digest}
                kernels.append({**entry, "lines": line_bits(kernel.asm["ptx"], kernel.asm["ttir"])})
            kernels[index[key]]["launches"] += 1
            order.append(index[key])
        return kernels, order


@contextlib.contextmanager
def recording() -> Iterator[Launched]:
    """Note every launch of a Triton kernel while inside."""
    seen = Launched()
    plain_run, plain_tuned = JITFunction.run, Autotuner.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        actual: list[Any] = []

        def spied(meta: Any) -> Any:
            actual.append(grid(meta) if callable(grid) else grid)
            return actual[-1]

        kernel = plain_run(self, *args, grid=spied, warmup=warmup, **kwargs)
        if actual and kernel is not None and not warmup:
            sizes = (*(int(n) for n in actual[-1]), 1, 1)
            seen.launches.append((kernel, (sizes[0], sizes[1], sizes[2])))
        return kernel

    def tuned(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain_tuned(self, *args, **kwargs)
        configs = list(self.configs)
        entry = {
            "kernel": self.base_fn.__name__,
            "index": configs.index(self.best_config),
            "configs": len(configs),
            "config": str(self.best_config),
        }
        if entry not in seen.autotuned:
            seen.autotuned.append(entry)
        return result

    JITFunction.run, Autotuner.run = run, tuned
    try:
        yield seen
    finally:
        JITFunction.run, Autotuner.run = plain_run, plain_tuned
