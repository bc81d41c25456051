"""What kind of operator a kernel is, and what limits it, as far as source and facts say."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence

from tilewright.harness.types import KernelFacts, Target
from tilewright.skills.triage.answers import Bottleneck
from tilewright.skills.triage.reading import REDUCTIONS, Kernel, Module

SFU_SHARE = 1 / 16
"""Special functions (exp, log, sqrt) per second over fp32 operations per second: 16 units beside 128 FMA lanes."""
UNKNOWN = Bottleneck(word="unknown", because="nothing was compiled, so there are no numbers")


def family(module: Module) -> str:
    """The operator family, from what the kernels compute; the words are those that tasks use."""
    ops: dict[str, int] = {}
    gathers = False
    for kernel in module.kernels:
        for name in _ops(kernel):
            ops[name] = ops.get(name, 0) + 1
        gathers = gathers or any(_gathers(kernel))
    names = " ".join([k.node.name for k in module.kernels] + sorted(module.defined)).lower()
    reduces = any(r in ops for r in REDUCTIONS)
    exp = any(name in ops for name in ("exp", "exp2"))
    if ops.get("dot", 0) >= 2 and exp:
        return "attention"
    if re.search(r"cross_entropy|loss|nll|kl_div", names):
        return "loss"
    if "dot" in ops:
        return "convolution" if "conv" in names else "matmul"
    if exp and ("max" in ops or "logsumexp" in names) and reduces:
        return "softmax"
    if reduces and any(name in ops for name in ("rsqrt", "sqrt", "sqrt_rn")):
        return "normalisation"
    if any(name in ops for name in ("cumsum", "cumprod", "associative_scan")):
        return "scan"
    if gathers:
        return "gather"
    if reduces:
        return "reduction"
    return "elementwise" if ops else "unknown"


def _ops(kernel: Kernel) -> list[str]:
    return [name for node in ast.walk(kernel.node) if (name := kernel.op(node))]


def _gathers(kernel: Kernel) -> list[bool]:
    """Whether an address depends on a loaded value."""
    loaded = {n for n, values in kernel.assigned.items() if any(kernel.op(v) == "load" for v in values)}
    found = []
    for call in kernel.calls("load"):
        names = {n.id for part in call.args[:1] for n in ast.walk(part) if isinstance(n, ast.Name)}
        found.append(bool(names & loaded))
    return found


def bottleneck(kernels: Sequence[KernelFacts], target: Target) -> Bottleneck:
    """The resource whose least time is longest, in the case that takes longest.

    Least times are bounds (bytes over rate, operations over rate), not a prediction: the cost model does that.
    """
    found = UNKNOWN
    longest = 0.0
    for case in dict.fromkeys(k.case for k in kernels):
        own = [k for k in kernels if k.case == case]
        terms = {name: 1e6 * sum(least[name] for least in (least_s(k, target) for k in own)) for name in TERMS}
        word = max(terms, key=lambda name: terms[name])
        if terms[word] <= longest:
            continue
        longest = terms[word]
        hot = max(own, key=lambda k: max(least_s(k, target).values()))
        others = sorted(((t, n) for n, t in terms.items() if n != word), reverse=True)
        found = Bottleneck(
            word=word,
            kernel=hot.kernel,
            case=case,
            terms_us={name: round(t, 3) for name, t in terms.items()},
            because=f"{word} needs at least {terms[word]:.1f} µs, then {others[0][1]} with {others[0][0]:.1f} µs",
        )
    return found


TERMS = ("dram", "l2", "fp32", "tensor", "latency", "launch")


def least_s(k: KernelFacts, target: Target) -> dict[str, float]:
    """The least seconds that each resource needs for one kernel's launches; 0 where the facts do not say."""
    moved = _n(k, "unique_load_bytes", "load_bytes") + _n(k, "unique_store_bytes", "store_bytes")
    sectors = _n(k, "load_sector_bytes", "load_bytes") + _n(k, "store_sector_bytes", "store_bytes")
    on_units = k.facts.get("mma", "none") == "none"
    rate = target.fp32_flops_per_s if on_units else _tensor_rate(k, target)
    once = {
        "dram": moved / target.dram_bytes_per_s,
        "l2": sectors / target.l2_bytes_per_s,
        "fp32": _n(k, "fp32_flops") / target.fp32_flops_per_s
        + _n(k, "sfu_ops") / (target.fp32_flops_per_s * SFU_SHARE),
        "tensor": _n(k, "dot_flops") / rate,
        "latency": waves(k, target) * target.dram_latency_s,
        "launch": target.launch_s,
    }
    return {name: seconds * k.launches for name, seconds in once.items()}


def waves(k: KernelFacts, target: Target) -> int:
    """How many rounds of programs the device needs, by registers, shared memory and warps."""
    warps = max(1, int(_n(k, "num_warps") or 4))
    threads = warps * target.warp_size
    limits = [target.blocks_per_multiprocessor, target.warps_per_multiprocessor // warps]
    if registers := _n(k, "registers"):
        limits.append(int(target.registers_per_multiprocessor // (registers * threads)))
    if shared := _n(k, "shared_bytes"):
        limits.append(int(target.shared_bytes_per_multiprocessor // shared))
    resident = max(1, min(limits))
    return math.ceil(math.prod(k.grid) / (resident * target.multiprocessors))


def _tensor_rate(k: KernelFacts, target: Target) -> float:
    precision = str(k.facts.get("dot_precision", ""))
    rates = target.tensor_flops_per_s
    known = rates.get("tf32" if precision.startswith("tf32") else precision) or rates.get("fp16")
    return known or max(rates.values(), default=target.fp32_flops_per_s)


def _n(k: KernelFacts, *names: str) -> float:
    for name in names:
        value = k.facts.get(name)
        if isinstance(value, (int, float)):
            return float(value)
    return 0.0
