"""The hub: one MCP server that carries every skill, and the in-process client through which the loop asks.

The harness, an editor's agent and a person all reach the skills through the same tools. On the hub a tool is
called `skill_tool` (`triage_rank`), which every client's rules for tool names allow.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tilewright.harness.discovery import Broken, Skill, discover
from tilewright.harness.errors import SkillProblem
from tilewright.harness.types import Evidence, Json, Level, Standing, sha256

if TYPE_CHECKING:
    from mcp import Client
    from mcp.server import MCPServer

LONG_TEXT = 200
"""Characters: a longer text in a question is stored as its SHA-256, since the run holds the text elsewhere."""
LARGEST_ANSWER = 1 << 20
"""Bytes of JSON: a larger answer would bloat the run's history, and no planner reads it."""
TIMEOUT_S = 300.0
"""How long one question may take: deep analyses compile, but nothing sensible takes longer."""
MOST_WORDS = 1000
"""Characters of an error that are passed on."""
LOG = logging.getLogger(__name__)
INSTRUCTIONS = (
    "Skills of Tilewright, which makes GPU kernels faster and proves it. Tools are named skill_tool; they advise "
    "and change nothing. Only the harness's judge says whether a kernel is right and how fast it is."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """One server with all the skills that could be loaded, and those that could not."""

    server: MCPServer
    skills: Mapping[str, Skill]
    broken: tuple[Broken, ...]


async def hub(folders: Sequence[Path] = ()) -> Hub:
    """Build the hub from the installed skills and those in `folders`; a broken one is reported, never fatal."""
    server = _server()
    found, broken = discover(folders)
    skills: dict[str, Skill] = {}
    for skill in found:
        try:
            await _try_out(skill)
            skill.register(server)
        # As in discovery: code of other people, which may fail in any way and must not take the others down.
        except Exception as failure:
            cause = f"{type(failure).__name__}: {failure}"
            broken.append(Broken(name=skill.name, origin=skill.origin, cause=cause))
        else:
            skills[skill.name] = skill
    return Hub(server=server, skills=skills, broken=tuple(broken))


def _server() -> MCPServer:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError

    class Server(MCPServer):
        """Tells the client what broke in a tool; the SDK alone would say only that something did."""

        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            try:
                return await super().call_tool(name, arguments, context)
            except UnexpectedToolError as failure:
                cause = failure.__cause__ or failure
                LOG.error("%s broke", name, exc_info=cause)
                said = f"{name} broke ({type(cause).__name__}: {cause}); this is a bug of the skill, please report it"
                raise ToolError(said[:MOST_WORDS]) from failure

    return Server("tilewright", instructions=INSTRUCTIONS, log_level="ERROR")


async def _try_out(skill: Skill) -> None:
    """Register a skill on a server of its own first: half a skill must not stay behind on the hub."""
    from mcp.server import MCPServer

    alone = MCPServer(skill.name, log_level="ERROR")
    skill.register(alone)
    tools = await alone.list_tools()
    if not tools:
        raise SkillProblem(f"{skill.name} registers no tool", "add one with @server.tool(name=…)")
    for tool in tools:
        if not tool.name.startswith(f"{skill.name}_"):
            raise SkillProblem(f"tool {tool.name} is not named after its skill", f"call it {skill.name}_{tool.name}")
        if not tool.description:
            raise SkillProblem(f"tool {tool.name} has no description", "give its function a docstring")


class Host:
    """Plays `roles.Skills`: asks the hub's tools in process. Use as an async context manager.

    `skills` and `broken` say what was loaded and what was not; they are empty before it is entered.
    """

    def __init__(self, folders: Sequence[Path] = (), *, timeout_s: float = TIMEOUT_S) -> None:
        self._folders = tuple(folders)
        self._timeout_s = timeout_s
        self._client: Client | None = None
        self._stack = contextlib.AsyncExitStack()
        self.skills: Mapping[str, Skill] = {}
        self.broken: tuple[Broken, ...] = ()

    async def __aenter__(self) -> Self:
        from mcp import Client

        built = await hub(self._folders)
        self.skills, self.broken = built.skills, built.broken
        self._client = await self._stack.enter_async_context(Client(built.server))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client = None
        await self._stack.__aexit__(kind, value, trace)

    async def ask(self, skill: str, tool: str, arguments: dict[str, Json]) -> Evidence:
        """Put one question to one skill. A failure or a time-out is evidence too: unavailable, with the reason.

        An answer may say how the question came out by a field `standing`, and why by `note`; without one,
        an answer counts as supported. `key` covers skill, tool, the skill's version and the arguments.
        """
        question = _short(arguments)
        known = self.skills.get(skill)
        canonical = json.dumps(
            [skill, tool, known.version if known else "", arguments], sort_keys=True, separators=(",", ":")
        )
        answer: Json = None
        if known is None:
            standing, note = Standing.UNAVAILABLE, self._missing(skill)
        else:
            answer, standing, note = await self._call(f"{skill}_{tool}", arguments)
        level = answer.get("level") if isinstance(answer, dict) else None
        return Evidence(
            skill=skill,
            tool=tool,
            question=question,
            answer=answer,
            standing=standing,
            level=Level(level) if level in set(Level) else Level.TRIAGE,
            note=note,
            key=sha256(canonical),
        )

    async def _call(self, name: str, arguments: dict[str, Json]) -> tuple[Json, Standing, str]:
        from mcp import MCPError

        if self._client is None:
            raise RuntimeError("Host.ask is used outside `async with Host(...)`")
        try:
            result = await self._client.call_tool(name, arguments, read_timeout_seconds=self._timeout_s)
        except MCPError as failure:
            return None, Standing.UNAVAILABLE, f"{name}: {failure.message}"
        text = "\n".join(block.text for block in result.content if block.type == "text")
        if result.is_error:
            return None, Standing.UNAVAILABLE, text or f"{name} failed and did not say why"
        answer: Any = result.structured_content if result.structured_content is not None else text
        size = len(json.dumps(answer, separators=(",", ":")))
        if size > LARGEST_ANSWER:
            cause = f"{name} answered with {size} bytes, {LARGEST_ANSWER} are allowed; ask for less (`limit`)"
            return None, Standing.UNAVAILABLE, cause
        said = answer.get("standing") if isinstance(answer, dict) else None
        note = answer.get("note") if isinstance(answer, dict) else None
        standing = Standing(said) if said in set(Standing) else Standing.SUPPORTED
        return answer, standing, note if isinstance(note, str) else ""

    def _missing(self, skill: str) -> str:
        for bad in self.broken:
            if bad.name == skill:
                return f"skill {skill} ({bad.origin}) could not be loaded: {bad.cause}"
        return f"there is no skill {skill!r}; there are: {', '.join(self.skills) or 'none'}"


def _short(value: Json) -> Json:
    """The same value with long texts replaced by their SHA-256."""
    if isinstance(value, str):
        return value if len(value) <= LONG_TEXT else f"sha256:{sha256(value)}"
    if isinstance(value, list):
        return [_short(item) for item in value]
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return value


def serve_stdio(folders: Sequence[Path] = ()) -> None:
    """Serve the hub on stdin and stdout until the client hangs up. Broken skills are named on stderr."""
    import anyio

    async def build() -> Hub:
        # Loading a skill may print; stdout belongs to the protocol.
        with contextlib.redirect_stdout(sys.stderr):
            return await hub(folders)

    built = anyio.run(build)
    for bad in built.broken:
        print(f"tilewright: skill {bad.name} ({bad.origin}) was left out: {bad.cause}", file=sys.stderr)
    serve(built.server)


def serve(server: MCPServer) -> None:
    """Serve one server on stdin and stdout, with whatever its tools print diverted to stderr.

    The transport diverts the file descriptor, but text that Python has buffered would still reach the wire
    when the transport gives the descriptor back; so `sys.stdout` is diverted too, at the first message,
    which is after the transport has taken hold of the real one.
    """
    stdout = sys.stdout

    async def divert(ctx: Any, call_next: Any) -> Any:
        sys.stdout = sys.stderr
        return await call_next(ctx)

    server.middleware.append(divert)
    try:
        server.run("stdio")
    finally:
        sys.stdout = stdout
