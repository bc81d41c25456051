"""The triage skill's tool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from tilewright.harness.errors import Problem
from tilewright.harness.types import Case, KernelFacts, Target
from tilewright.knowledge import targets
from tilewright.knowledge.cards import load
from tilewright.knowledge.rewrites import Situation, rewrites
from tilewright.skills.triage.answers import Attempt, Ranking
from tilewright.skills.triage.rank import rank as ranked
from tilewright.skills.triage.reading import read

READS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
LARGEST_SOURCE = 1 << 20
"""Characters. Longer sources are not written by people, and take long to parse."""


def rank(
    source: Annotated[str, Field(description="The candidate's module.", max_length=LARGEST_SOURCE)],
    entry: Annotated[str, Field(description="What callers use: `launch`, or `ModelNew`.")],
    target: Annotated[Target | str, Field(description="A target's name (`cuda:90`), or all of its ceilings.")],
    kernels: Annotated[Sequence[KernelFacts], Field(description="Compiler's facts by kernel and case, if any.")] = (),
    history: Annotated[Sequence[Attempt], Field(description="What was tried before, and on which source.")] = (),
    limit: Annotated[int, Field(ge=1, le=64)] = 32,
    cases: Annotated[Sequence[Case], Field(description="The task's full-size cases.")] = (),
    tried: Annotated[Sequence[str], Field(description="SHA-256 of candidates judged before.")] = (),
    folders: Annotated[Sequence[str], Field(description="Folders with more cards.")] = (),
) -> Ranking:
    """Rank what is worth trying on a Triton kernel: strategies with reason, lines, gain, risk and the fact to verify.

    The source is parsed and never run. Without `kernels` only what the syntax shows is used.
    """
    try:
        cards = load(folders)
        where = targets.target(target) if isinstance(target, str) else target
    except Problem as problem:
        raise ToolError(f"{problem}; {problem.remedy}" if problem.remedy else str(problem)) from problem
    try:
        module = read(source)
    except SyntaxError as failure:
        raise ToolError(
            f"line {failure.lineno} of the source is not Python: {failure.msg}; mend the source"
        ) from failure
    if entry not in module.defined:
        names = ", ".join(sorted(module.defined)) or "nothing"
        raise ToolError(f"the source does not define {entry}; it defines {names}")
    situation = Situation(target=where, kernels=tuple(kernels), cases=tuple(cases))
    return ranked(source, module, situation, history, frozenset(tried), limit, cards, rewrites())


def add(server: MCPServer) -> None:
    """Register the tool."""
    server.tool(name="triage_rank", title="Triage: rank", annotations=READS)(rank)
