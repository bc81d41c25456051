"""The hub and its in-process client: everything a skill may do comes back as evidence, and nothing else breaks."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from tilewright.harness.discovery import Broken, discover, header
from tilewright.harness.errors import SkillProblem
from tilewright.harness.host import LONG_TEXT, Host
from tilewright.harness.types import Evidence, Json, Level, Standing, sha256

HEADER = "---\nname: {name}\ndescription: For tests.\nmetadata:\n  version: {version}\n---\nBody.\n"
BODY = '''
import os
from mcp.server.mcpserver.exceptions import ToolError

print("loading")

def register(server):
    @server.tool(name="loud_say")
    def say(text: str, standing: str = "", note: str = "", level: str = "L1") -> dict[str, str]:
        """Say it back, and print it."""
        print("printed", text)
        os.system("echo shouted by a child")
        return {"said": text, "standing": standing, "note": note, "level": level}

    @server.tool(name="loud_fail")
    def fail(kind: str) -> str:
        """Fail in a way."""
        if kind == "told":
            raise ToolError("the disk is full; make room")
        if kind == "huge":
            return "x" * (1 << 21)
        return {}["missing"]

    @server.tool(name="loud_hang")
    async def hang() -> str:
        """Never answer."""
        import anyio

        await anyio.Event().wait()
        return "never"
'''


def skill(folder: Path, name: str = "loud", body: str = BODY, version: str = "1.2") -> Path:
    made = folder / name
    made.mkdir()
    (made / "SKILL.md").write_text(HEADER.format(name=name, version=version))
    (made / "__init__.py").write_text(body)
    return made


def ask(folder: Path, *questions: tuple[str, str, dict[str, Json]], timeout_s: float = 60.0) -> list[Evidence]:
    async def go() -> list[Evidence]:
        async with Host([folder], timeout_s=timeout_s) as host:
            return [await host.ask(*question) for question in questions]

    return asyncio.run(go())


def test_an_answer_is_evidence_with_the_standing_level_and_note_that_the_skill_gave(tmp_path: Path) -> None:
    said: dict[str, Json] = {"text": "hello", "standing": "refuted", "note": "because", "level": "L3"}
    (one,) = ask(skill(tmp_path), ("loud", "say", said))
    assert one == Evidence(
        skill="loud",
        tool="say",
        question=said,
        answer={"said": "hello", **{k: said[k] for k in ("standing", "note", "level")}},
        standing=Standing.REFUTED,
        level=Level.IR,
        note="because",
        key=one.key,
    )


def test_an_answer_that_does_not_say_how_it_stands_counts_as_supported(tmp_path: Path) -> None:
    (one,) = ask(skill(tmp_path), ("loud", "say", {"text": "hello"}))
    assert (one.standing, one.level) == (Standing.SUPPORTED, Level.TRIAGE)


def test_long_texts_in_a_question_are_stored_as_their_hash(tmp_path: Path) -> None:
    long = "x" * (LONG_TEXT + 1)
    (one,) = ask(skill(tmp_path), ("loud", "say", {"text": long}))
    assert one.question == {"text": f"sha256:{sha256(long)}"}
    assert isinstance(one.answer, dict)
    assert one.answer["said"] == long


def test_the_key_covers_skill_tool_version_and_arguments_and_not_their_order(tmp_path: Path) -> None:
    plain: dict[str, Json] = {"text": "a", "note": "b"}
    turned: dict[str, Json] = {"note": "b", "text": "a"}
    first, same, other, fail = ask(
        skill(tmp_path),
        ("loud", "say", plain),
        ("loud", "say", turned),
        ("loud", "say", {"text": "a"}),
        ("loud", "fail", plain),
    )
    assert first.key == same.key
    assert len({first.key, other.key, fail.key}) == 3
    (tmp_path / "later").mkdir()
    (later,) = ask(skill(tmp_path / "later", version="1.3"), ("loud", "say", plain))
    assert later.key != first.key


@pytest.mark.parametrize(
    ("question", "says"),
    [
        (("loud", "fail", {"kind": "told"}), "the disk is full; make room"),
        (("loud", "fail", {"kind": "bug"}), "loud_fail broke (KeyError: 'missing'); this is a bug of the skill"),
        (("loud", "fail", {"kind": "huge"}), "answered with"),
        (("loud", "fail", {}), "kind"),
        (("loud", "nothing", {}), "loud_nothing"),
        (("silent", "say", {}), "there is no skill 'silent'; there are: memory, triage, loud"),
    ],
)
def test_every_failure_of_a_skill_is_unavailable_with_its_cause(
    tmp_path: Path, question: tuple[str, str, dict[str, Json]], says: str
) -> None:
    (one,) = ask(skill(tmp_path), question)
    assert (one.standing, one.answer) == (Standing.UNAVAILABLE, None)
    assert says in one.note


def test_a_tool_that_hangs_is_unavailable_after_the_time_out_and_the_hub_lives_on(tmp_path: Path) -> None:
    hung, after = ask(skill(tmp_path), ("loud", "hang", {}), ("loud", "say", {"text": "a"}), timeout_s=0.5)
    assert hung.standing is Standing.UNAVAILABLE
    assert "loud_hang" in hung.note
    assert after.standing is Standing.SUPPORTED


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = (\n", "SyntaxError"),
        ("x = 1\n", "register(server) is missing"),
        ("def register(server):\n    raise OSError('no card')\n", "OSError: no card"),
        ("def register(server):\n    pass\n", "registers no tool"),
        (BODY.replace('"loud_say"', '"triage_rank"'), "tool triage_rank is not named after its skill"),
        (BODY.replace('"""Say it back, and print it."""', "pass"), "tool loud_say has no description"),
    ],
)
def test_a_broken_skill_is_reported_and_the_others_stay(tmp_path: Path, body: str, cause: str) -> None:
    async def go() -> tuple[tuple[Broken, ...], Evidence, Evidence]:
        async with Host([skill(tmp_path, body=body)]) as host:
            lost = await host.ask("loud", "say", {"text": "a"})
            return host.broken, lost, await host.ask("memory", "search", {"query": "vector"})

    broken, lost, found = asyncio.run(go())
    assert [b.name for b in broken] == ["loud"]
    assert cause in broken[0].cause
    assert cause in lost.note
    assert found.standing is Standing.SUPPORTED


def test_a_second_skill_of_the_same_name_does_not_replace_the_first(tmp_path: Path) -> None:
    found, broken = discover([skill(tmp_path, "triage")])
    assert next(s.origin for s in found if s.name == "triage").startswith("entry point of tilewright")
    assert "a skill named triage is already there" in broken[0].cause


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "there is no such file"),
        ("name: loud\n", "expected a header between two lines"),
        ("---\nname: loud\n---\n", "the header has no description"),
        ("---\nname: other\ndescription: d\n---\n", "name is 'other', the folder's is 'loud'"),
        ("---\nname: loud\ndescription: d\ncolour: red\n---\n", "unknown key 'colour'"),
        ("---\nname: loud\nnonsense\n---\n", "SKILL.md:3: expected `key: value`"),
    ],
)
def test_a_wrong_skill_file_is_refused_with_the_place(tmp_path: Path, text: str | None, says: str) -> None:
    folder = skill(tmp_path)
    (folder / "SKILL.md").unlink()
    if text is not None:
        (folder / "SKILL.md").write_text(text)
    with pytest.raises(SkillProblem) as caught:
        header(folder)
    assert says in str(caught.value)


def test_a_header_reads_folded_text_quotes_and_metadata(tmp_path: Path) -> None:
    folder = skill(tmp_path)
    text = "---\nname: \"loud\"\ndescription: >-\n  one\n  two\nmetadata:\n  version: '3'\n  author: me\n---\n"
    (folder / "SKILL.md").write_text(text)
    assert header(folder) == {
        "name": "loud",
        "description": "one two",
        "metadata": {"version": "3", "author": "me"},
    }


SERVE = "import sys, pathlib; from tilewright.harness.host import serve_stdio; serve_stdio([pathlib.Path(sys.argv[1])])"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_hub_serves_clients_of_both_protocol_eras_on_stdio(tmp_path: Path, mode: Literal["legacy", "auto"]) -> None:
    folder = skill(tmp_path)

    async def go() -> tuple[set[str], Mapping[str, Any]]:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client

        server = StdioServerParameters(command=sys.executable, args=["-c", SERVE, str(folder)])
        async with Client(stdio_client(server, errlog=sys.__stderr__), mode=mode) as client:  # type: ignore[arg-type]
            tools = {tool.name for tool in (await client.list_tools()).tools}
            called = await client.call_tool("memory_search", {"query": "vector", "limit": 1})
            assert called.structured_content is not None
            return tools, called.structured_content

    tools, answer = asyncio.run(go())
    assert {"triage_rank", "memory_suggest", "memory_explain", "memory_record", "memory_search", "loud_say"} <= tools
    assert len(answer["hits"]) == 1


def test_nothing_but_protocol_reaches_stdout_whatever_a_tool_or_its_children_print(tmp_path: Path) -> None:
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    messages: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "loud_say", "arguments": {"text": "a"}}},
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(skill(tmp_path))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    lines = []
    with process:
        for message in messages:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            if "id" in message:
                lines.append(process.stdout.readline())
        process.stdin.close()
        lines += process.stdout.readlines()
        assert process.stderr
        errors = process.stderr.read()
    answers = [json.loads(line) for line in lines]
    assert [a["id"] for a in answers] == [1, 2]
    assert answers[1]["result"]["structuredContent"]["said"] == "a"
    for printed in ("loading", "printed a", "shouted by a child"):
        assert printed in errors
    assert process.returncode == 0
