"""Ask for software pipelining where the compiler does not start it by itself.

A loop with a matrix product is pipelined; one that only loads and accumulates is not, unless its range says so:
with `tl.range(…, num_stages=n)` the loads of the next rounds are asynchronous copies while this one computes.
"""

from __future__ import annotations

import libcst as cst

from tilewright.harness.types import Claim
from tilewright.knowledge.rewrites import Edit, Look, Situation
from tilewright.knowledge.rewrites.kernels import calls, flow, language
from tilewright.knowledge.rewrites.launches import Kernel, kernels
from tilewright.knowledge.rewrites.source import Patch, Source, patched, read
from tilewright.knowledge.rewrites.values import Flow, Loop

_STAGES = (3, 2, 4)


class PipelineLoop:
    """Pipeline the loads of a loop without a matrix product."""

    name = "pipeline-loop"
    precondition = "An innermost loop over a range loads tiles, has no matrix product, and names no number of stages."
    risk = "Stages take shared memory; narrow or indirect loads are not made asynchronous."

    def look(self, source: str, situation: Situation) -> Look:
        """One edit for each kernel and number of stages, covering all of its loops."""
        parsed = read(source)
        if parsed is None:
            return Look(refused=("the source does not parse",))
        if situation.target.backend != "cuda" or situation.target.arch < 80:
            return Look(refused=(f"{situation.target.name} has no asynchronous copies to pipeline with",))
        edits: list[Edit] = []
        said: list[str] = []
        for kernel in kernels(parsed).values():
            found = flow(parsed, kernel)
            loops = []
            for loop in found.loops:
                why = _unfit(parsed, kernel, found, loop)
                if why:
                    said.append(f"{kernel.name}: the loop over `{loop.var}` {why}")
                else:
                    loops.append(loop)
            if not found.loops:
                said.append(f"{kernel.name}: it has no loop")
            for stages in _STAGES if loops else ():
                edits.append(
                    Edit(
                        source=patched(parsed, [p for lp in loops for p in _asked(parsed, lp, stages)]),
                        label=f"{kernel.name}: {stages} stages in its loops",
                        claim=Claim(fact="async_copies", relation="rises", kernel=kernel.name),
                        lines=(parsed.lines(loops[0].node)[0], parsed.lines(loops[-1].node)[1]),
                        risk=self.risk,
                        params={"num_stages": stages},
                    )
                )
        return Look(edits=tuple(edits), refused=tuple(said))


REWRITE = PipelineLoop()


def _unfit(source: Source, kernel: Kernel, found: Flow, loop: Loop) -> str:
    """Why a loop is not pipelined; empty when it can be."""
    spoken, call = language(source), loop.node.iter
    if loop.kind != "range" or not isinstance(call, cst.Call):
        return "is unrolled at compile time"
    if any(loop in other.outer for other in found.loops):
        return "holds another loop"
    if any(a.keyword is not None and a.keyword.value in ("num_stages", "warp_specialize") for a in call.args):
        return "names its stages already"
    if any(spoken.op(c.func) in ("dot", "dot_scaled") for c in calls(loop.node)):
        return "has a matrix product, which is pipelined already"
    inside = [a for a in found.accesses if loop in a.loops]
    if not any(a.kind == "load" and a.pointer.shape for a in inside):
        return "loads no tile"
    written = {a.root for a in inside if a.kind != "load"}
    if any(a.kind in ("call", "barrier", "atomic") for a in inside) or None in written:
        return "has effects that are not followed"
    if written & {a.root for a in inside if a.kind == "load"}:
        return "writes to what it reads, so that a load must not be moved before a store"
    return ""


def _asked(source: Source, loop: Loop, stages: int) -> list[Patch]:
    call = loop.node.iter
    assert isinstance(call, cst.Call)
    end = source.outer(call.args[-1].value)[1]
    return [
        Patch(*source.span(call.func), f"{language(source).prefix}.range"),
        Patch(end, end, f", num_stages={stages}"),
    ]
