"""A first model of how long kernels take on a target, from what they ask of it. Documented in docs/cost-model.md.

Pure: facts in, microseconds out. It ranks candidates where nothing can be measured; its times are never to be quoted
beside measured ones. Each part of the machine gets the time it would need alone, and a smooth maximum of those is the
kernel's. More work never makes a kernel faster here; the tests hold the model to that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.harness.types import CaseTime, Json, KernelFacts, Target

SMOOTHNESS = 4.0
"""Exponent of the smooth maximum: two equal terms cost 19 % more than one, a term half as large 1.5 %."""
REGISTER_UNIT = 256
"""Registers are handed to warps in units of so many."""
BLOCK_SHARED_BYTES = 1024
"""Shared memory that the system takes for itself in each program, since compute capability 8.0."""
L2_USEFUL_SHARE = 0.8
"""Of L2 that holds what is loaded again: stores and other programs' streams pass through it too."""
WAVE_OVERLAP = 1.5
"""Waves of programs whose data L2 must hold for one wave to find what the last one loaded: programs drift apart."""
SM_BYTES_PER_CYCLE = 64
"""What one multiprocessor can draw from L2."""
MEMORY_INSTRUCTION_CYCLES = 2.0
"""A multiprocessor accepts a memory instruction of a warp every so many cycles, however narrow."""
SECTOR_BYTES = 32
SECTORS_PER_CYCLE = 4
L1_BYTES_PER_CYCLE = 128
ADDRESS_OPERATIONS = 6
"""Integer operations that form one memory instruction's addresses and predicate; they take fp32 issue slots."""
SPECIAL_LANES_PER_CYCLE = 16
DISPATCH_CYCLES = 157
"""Between two programs that a multiprocessor accepts (0.60 ns a program on 132 of them, measured: cuda:90)."""
START_CYCLES = 300
"""From handing a program to a multiprocessor until its first load, and from its last store until its place is free."""
STEP_CYCLES = 25
"""One dependent step of a reduction: a shuffle and an operation, or a pass through shared memory."""
CONVERT_CYCLES = 80
"""One layout conversion: into shared memory, a barrier, and back."""
DEPENDENT_CYCLES = 2.0
"""Between operations of one thread that wait for one another, with the independence that tiles give."""
SPECIAL_DEPENDENT_CYCLES = 8.0
SPILL_PAST_L1 = 0.5
"""Of spilled bytes that leave L1: stack lines live long enough to be pushed out about half the time."""
ATOMIC_CYCLES = 2.0
"""Between atomic operations that one L2 slice finishes; slices are taken to be as many as multiprocessors."""
TENSOR_SHARE = {"tcgen05": 0.75, "wgmma": 0.75, "mma.v2": 0.85}
"""Of the tensor cores' rate that the best known kernels reach, by instruction, on the hardware made for it."""
OLD_TENSOR_SHARE = {90: 0.6, 100: 0.3}
"""Of the rate that `mma.v2` reaches on hardware with a faster instruction (90: 62 % at most; 100: about half)."""
FMA_DOT_SHARE = 0.6
"""Of the fp32 rate that a dot on ordinary lanes reaches: its operands come through shared memory."""
TORCH_SHARE = 0.9
"""Of the memory and tensor rates that torch's own kernels reach."""
PASSES = {"tf32x3": 3, "bf16x3": 3, "bf16x6": 6}
"""Tensor-core products that make one compensated product."""
BOUNDS = {"sfu": "fp32", "atomics": "l2"}
"""What `CaseTime.bound` calls a term that it has no word of its own for."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many programs a multiprocessor holds, what limits it, and how the launch fills the device."""

    resident: int
    limit: str
    waves: float
    """Programs over what the device holds at a time."""
    imbalance: float
    """What the busiest multiprocessor does over the mean; at least 1."""


def modelled_time(
    target: Target,
    kernels: Sequence[KernelFacts],
    *,
    case: str,
    weight: float = 1.0,
    compulsory_bytes: int | None = None,
) -> tuple[CaseTime, dict[str, Json]]:
    """How long one call of the entry takes for one case, and each term behind it.

    `kernels`: the case's launches, with facts of the compiler and of the census (docs/facts.md). `compulsory_bytes`:
    inputs and outputs once each; the floor never counts more than the launches touch.
    Raises ValueError for a Triton kernel that nobody counted.
    """
    parts = [(kernel, *_kernel(target, kernel)) for kernel in kernels]
    launches = sum(kernel.launches for kernel in kernels)
    totals: dict[str, float] = {"launch": launches * target.launch_s}
    for kernel, _, terms, _ in parts:
        for name, seconds in terms.items():
            totals[name] = totals.get(name, 0.0) + kernel.launches * seconds
    time_s = totals["launch"] + sum(kernel.launches * seconds for kernel, seconds, _, _ in parts)
    largest = max(totals, key=lambda name: totals[name])
    touched = sum(kernel.launches * _touched_bytes(kernel.facts) for kernel in kernels)
    floor_bytes = touched if compulsory_bytes is None else min(compulsory_bytes, touched)
    timed = CaseTime(
        case=case,
        weight=weight,
        time_us=time_s * 1e6,
        floor_us=floor_bytes / target.dram_bytes_per_s * 1e6,
        bound=BOUNDS.get(largest, largest) if launches else "unknown",
    )
    breakdown: dict[str, Json] = {
        "time_us": _us(time_s),
        "launch_us": _us(totals["launch"]),
        "kernels": [
            {
                "kernel": kernel.kernel,
                "launches": kernel.launches,
                "time_us": _us(seconds),
                "terms_us": {name: _us(value) for name, value in terms.items()},
                **said,
            }
            for kernel, seconds, terms, said in parts
        ],
    }
    return timed, breakdown


def occupancy(target: Target, facts: Mapping[str, Any], programs: int) -> Occupancy:
    """Programs resident on a multiprocessor, by registers, shared memory, warps and blocks."""
    warps = max(1, int(facts.get("num_warps", 4)))
    per_warp = math.ceil(max(1, int(facts.get("registers", 32))) * target.warp_size / REGISTER_UNIT) * REGISTER_UNIT
    limits = {
        "blocks": target.blocks_per_multiprocessor,
        "warps": target.warps_per_multiprocessor // warps,
        "registers": target.registers_per_multiprocessor // per_warp // warps,
        "shared": target.shared_bytes_per_multiprocessor // (int(facts.get("shared_bytes", 0)) + BLOCK_SHARED_BYTES),
    }
    limit = min(limits, key=lambda name: limits[name])
    resident = max(1, limits[limit])
    busiest = math.ceil(programs / target.multiprocessors)
    return Occupancy(
        resident=resident,
        limit=limit,
        waves=programs / (resident * target.multiprocessors),
        imbalance=max(1.0, busiest * target.multiprocessors / programs) if programs else 1.0,
    )


def _kernel(target: Target, kernel: KernelFacts) -> tuple[float, dict[str, float], dict[str, Json]]:
    """Seconds of one launch without its launch cost, the terms, and what else is worth saying."""
    facts = kernel.facts
    if facts.get("torch_op"):
        return _torch(target, facts)
    if math.prod(kernel.grid) == 0:
        return 0.0, {}, {}
    if "load_bytes" not in facts and "store_bytes" not in facts:
        raise ValueError(f"{kernel.kernel} was compiled but not counted: there is nothing to model it from")
    programs = math.prod(kernel.grid)
    held = occupancy(target, facts, programs)
    traffic = _traffic(target, facts, held, programs)
    cycles = target.clock_hz * target.multiprocessors / held.imbalance
    requests = traffic["requests"]
    arithmetic = _number(facts, "fp32_flops") + target.warp_size * ADDRESS_OPERATIONS * requests
    terms = {
        "dram": traffic["dram_bytes"] / target.dram_bytes_per_s,
        "l2": max(traffic["l2_bytes"] / target.l2_bytes_per_s, traffic["l2_bytes"] / (SM_BYTES_PER_CYCLE * cycles)),
        "lsu": max(_lsu_cycles(target, facts, traffic["spilled_bytes"]), traffic["l1_bytes"] / L1_BYTES_PER_CYCLE)
        / cycles,
        # The peak counts a multiply-add as two; our operations are single ones.
        "fp32": held.imbalance
        * (2 * arithmetic / target.fp32_flops_per_s + _number(facts, "fp64_flops") / _fp64_rate(target)),
        "sfu": _number(facts, "sfu_ops") / (SPECIAL_LANES_PER_CYCLE * cycles),
        "tensor": _tensor_s(target, facts) * held.imbalance,
        "atomics": _number(facts, "atomic_ops") * ATOMIC_CYCLES / (target.multiprocessors * target.clock_hz),
        "latency": max(
            _latency_s(target, facts, held, programs, requests),
            math.ceil(programs / target.multiprocessors) * DISPATCH_CYCLES / target.clock_hz,
        ),
    }
    seconds = sum(term**SMOOTHNESS for term in terms.values()) ** (1 / SMOOTHNESS)
    said: dict[str, Json] = {
        "programs": programs,
        "resident": held.resident,
        "limited_by": held.limit,
        "waves": round(held.waves, 3),
        "imbalance": round(held.imbalance, 3),
        **{name: round(value) for name, value in traffic.items()},
    }
    return seconds, terms, said


def _traffic(target: Target, facts: Mapping[str, Any], held: Occupancy, programs: int) -> dict[str, float]:
    """Bytes that pass each level of memory, and memory instructions of warps."""
    loaded, stored = _number(facts, "load_sector_bytes"), _number(facts, "store_sector_bytes")
    share = min(1.0, _number(facts, "reread_bytes") / max(_number(facts, "load_bytes"), 1.0))
    again = loaded * share
    afresh = loaded - again
    unique = min(_number(facts, "unique_load_bytes"), afresh)
    # What a program loads again comes from L1 where that holds the programs' share of data, else from L2, and where
    # the programs running at a time need more than L2, from memory.
    footprint = afresh / programs
    l1_bytes = max(target.shared_bytes_per_multiprocessor - held.resident * int(facts.get("shared_bytes", 0)), 0)
    past_l1 = again * _miss(held.resident * footprint, l1_bytes)
    running = min(programs, held.resident * target.multiprocessors)
    l2_useful = target.l2_bytes * L2_USEFUL_SHARE
    past_l2 = past_l1 * _miss(running * footprint, l2_useful)
    # What other programs on the same multiprocessor have loaded comes from L1 likewise.
    from_others = (afresh - unique) * _miss(held.resident * footprint, l1_bytes)
    # What others have loaded anywhere comes from L2 if all that is loaded fits; else within a wave of programs, and
    # from the wave before where both waves fit.
    shared = 0.0
    wave = _number(facts, "wave_programs")
    if unique > l2_useful and wave:
        waves = max(1.0, programs / wave)
        a_wave = _number(facts, "wave_load_bytes")
        shared = max(0.0, min(afresh, waves * a_wave) - unique) * _miss(WAVE_OVERLAP * a_wave, l2_useful)
    spilled = _spilled_bytes(target, facts, programs)
    written = max(_number(facts, "unique_store_bytes"), min(stored, _number(facts, "store_bytes")))
    return {
        "dram_bytes": unique + shared + past_l2 + written,
        "l2_bytes": unique + from_others + past_l1 + stored + spilled * SPILL_PAST_L1,
        "l1_bytes": loaded + stored + spilled,
        "spilled_bytes": spilled,
        "requests": _requests(facts, "load") + _requests(facts, "store") + spilled / 4 / target.warp_size,
    }


def _miss(needed: float, held: float) -> float:
    """Share of re-uses that find their data gone, when `needed` bytes share room for `held`."""
    return 0.0 if needed <= held else 1.0 - held / needed


def _requests(facts: Mapping[str, Any], kind: str) -> float:
    """Memory instructions of warps; where the source lines are unknown, from the narrowest access."""
    if f"{kind}_requests" in facts:
        return _number(facts, f"{kind}_requests")
    bits = _number(facts, f"{kind}_bits_min") or 32.0
    return 8 * _number(facts, f"{kind}_bytes") / (bits * 32)


def _lsu_cycles(target: Target, facts: Mapping[str, Any], spilled_bytes: float) -> float:
    """Cycles in which memory instructions are accepted: two each, and one for every four sectors that one spans.

    A thread holds up to 16 neighbouring bytes. Where the access is narrower, one instruction of a warp takes a piece
    of each thread's share, and spans as many sectors as the whole would: that is what makes narrow access dear.
    Accesses of less than 32 bits take twice as long for it. Measured on H200s: 16 bits at 8 and 16 sectors 6 and 10
    cycles, 32 bits at 16 sectors 6.
    """
    threads = _number(facts, "num_warps", 4.0) * target.warp_size
    each = max(1.0, _number(facts, "tile_elements", threads) / threads)
    cycles = spilled_bytes / 4 / target.warp_size * (MEMORY_INSTRUCTION_CYCLES + 4 / SECTORS_PER_CYCLE)
    for kind in ("load", "store"):
        bits = _number(facts, f"{kind}_bits_min") or 32.0
        sectors = max(bits, min(128.0, bits * each)) / 8 * target.warp_size / SECTOR_BYTES
        rate = SECTORS_PER_CYCLE if bits >= 32 else SECTORS_PER_CYCLE / 2
        cycles += _requests(facts, kind) * (MEMORY_INSTRUCTION_CYCLES + sectors / rate)
    return cycles


def _spilled_bytes(target: Target, facts: Mapping[str, Any], programs: int) -> float:
    """Bytes spilled and refilled: what stands in the code, once for each turn of a loop if there is one."""
    turns = max(1.0, _number(facts, "load_rounds")) if _number(facts, "loops") else 1.0
    threads = programs * _number(facts, "num_warps", 4.0) * target.warp_size
    return _number(facts, "spill_bytes") * threads * turns


def _latency_s(target: Target, facts: Mapping[str, Any], held: Occupancy, programs: int, requests: float) -> float:
    """Time that dependent steps take, with as many programs side by side as the device holds."""
    threads = programs * _number(facts, "num_warps", 4.0) * target.warp_size
    rounds = _number(facts, "load_rounds")
    if _number(facts, "async_copies") and rounds > 1:
        # Copies run ahead by so many stages: a turn of the loop waits for its share of a round trip only.
        rounds = 1 + (rounds - 1) / max(1.0, _number(facts, "num_stages", 1.0) - 1)
    turns = max(1.0, _number(facts, "load_rounds"))
    cycles = (
        START_CYCLES
        + STEP_CYCLES * _number(facts, "reduce_steps") / programs
        + CONVERT_CYCLES * _number(facts, "converts_in_loop") * turns
        + MEMORY_INSTRUCTION_CYCLES * requests / programs
        + DEPENDENT_CYCLES * _number(facts, "fp32_flops") / threads
        + SPECIAL_DEPENDENT_CYCLES * _number(facts, "sfu_ops") / threads
    )
    chain = cycles / target.clock_hz + rounds * target.dram_latency_s
    # A last wave that is not full costs between its share and a whole one: programs drift apart as they run.
    waves = max(1.0, (held.waves + math.ceil(held.waves)) / 2)
    return waves * chain


def _tensor_s(target: Target, facts: Mapping[str, Any]) -> float:
    """Time of the dots at the rate of what carries them out, the slowest kind where there are several."""
    flops = _number(facts, "dot_flops")
    if not flops:
        return 0.0
    mma = str(facts.get("mma", "none"))
    slowest = 0.0
    for kind in str(facts.get("dot_precision", "")).split("+"):
        operand = "tf32" if kind == "tf32x3" else kind.removesuffix("x3").removesuffix("x6")
        rate = target.tensor_flops_per_s.get(operand)
        if mma == "none" or rate is None:
            seconds = flops / (target.fp32_flops_per_s * FMA_DOT_SHARE)
        else:
            share = TENSOR_SHARE.get(mma, 0.5)
            if mma == "mma.v2":
                share = OLD_TENSOR_SHARE.get(target.arch, share)
            seconds = PASSES.get(kind, 1) * flops / (rate * share)
        slowest = max(slowest, seconds)
    return slowest


def _torch(target: Target, facts: Mapping[str, Any]) -> tuple[float, dict[str, float], dict[str, Json]]:
    """One of torch's own kernels: a well-made one, bound by memory or by its matrix product."""
    operands = {"float32": "", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
    operand = operands.get(str(facts.get("dot_operand", "")), "")
    rate = target.tensor_flops_per_s.get(operand, target.fp32_flops_per_s)
    moved = _number(facts, "load_bytes") + _number(facts, "store_bytes")
    terms = {
        "dram": moved / (target.dram_bytes_per_s * TORCH_SHARE),
        "tensor": _number(facts, "dot_flops") / (rate * TORCH_SHARE),
        "latency": target.dram_latency_s + START_CYCLES / target.clock_hz,
    }
    seconds = sum(term**SMOOTHNESS for term in terms.values()) ** (1 / SMOOTHNESS)
    return seconds, terms, {"torch_op": True, "dram_bytes": round(moved)}


def _fp64_rate(target: Target) -> float:
    return target.tensor_flops_per_s.get("fp64", target.fp32_flops_per_s / 32) / 2


def _touched_bytes(facts: Mapping[str, Any]) -> float:
    return _number(facts, "unique_load_bytes") + _number(facts, "unique_store_bytes")


def _number(facts: Mapping[str, Any], name: str, otherwise: float = 0.0) -> float:
    value = facts.get(name, otherwise)
    return float(value) if isinstance(value, int | float) else otherwise


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 4)
