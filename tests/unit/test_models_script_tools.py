"""One script drives clients whose tools have other names and take other arguments."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.gateway_kit import Reply, gateway, openai_whole
from tests.unit._model_clients import read

from chargehand.models.contract import Dialect, ModelCall
from chargehand.models.conversation import OfferedTool
from chargehand.models.script_upstream import ScriptUpstream, ToolUnknownError, fit_tools
from chargehand.models.scripted_replies import ScriptedCall, ScriptedReply
from chargehand.models.scripts import Script


def offer(name: str, *required: str, **properties: str) -> OfferedTool:
    """Return a tool; `properties` are types by name."""
    schema = {
        "properties": {each: {"type": kind} for each, kind in properties.items()},
        "required": list(required),
    }
    return OfferedTool(name=name, schema=schema)


CLIENTS = {
    "native": (
        offer("bash", "command", command="string"),
        offer("read", "path", path="string"),
        offer("edit", "path", "old", "new", path="string", old="string", new="string"),
        offer("finish", "summary", "evidence", summary="string", evidence="array"),
    ),
    "claude": (
        offer("Bash", "command", command="string", description="string"),
        offer("Read", "file_path", file_path="string"),
        offer("Edit", "file_path", file_path="string", old_string="string", new_string="string"),
        offer("Write", "file_path", "content", file_path="string", content="string"),
    ),
    "codex": (offer("exec_command", "cmd", cmd="string"), OfferedTool(name="apply_patch", custom=True)),
    "gemini": (
        offer("run_shell_command", "command", command="string"),
        offer("read_file", "file_path", file_path="string"),
        offer(
            "replace",
            "file_path",
            "instruction",
            file_path="string",
            instruction="string",
            old_string="string",
            new_string="string",
        ),
    ),
    "qwen": (
        offer("run_shell_command", "command", "is_background", command="string", is_background="boolean"),
        offer("edit", "file_path", file_path="string", old_string="string", new_string="string"),
    ),
    "opencode": (
        offer("bash", "command", "description", command="string", description="string"),
        offer("edit", "filePath", filePath="string", oldString="string", newString="string"),
        offer("write", "content", "filePath", filePath="string", content="string"),
    ),
}


def fit(client: str, name: str, **arguments: Any) -> ScriptedCall:
    reply = ScriptedReply(tools=(ScriptedCall(name=name, arguments=arguments),))
    (made,) = fit_tools(reply, CLIENTS[client]).tools
    return made


@pytest.mark.parametrize(
    ("client", "called", "arguments"),
    [
        ("native", "edit", {"path": "a.py", "old": "x", "new": "y"}),
        ("claude", "Edit", {"file_path": "/workspace/a.py", "old_string": "x", "new_string": "y"}),
        (
            "gemini",
            "replace",
            {
                "file_path": "/workspace/a.py",
                "old_string": "x",
                "new_string": "y",
                "instruction": "As the script says.",
            },
        ),
        ("qwen", "edit", {"file_path": "/workspace/a.py", "old_string": "x", "new_string": "y"}),
        ("opencode", "edit", {"filePath": "/workspace/a.py", "oldString": "x", "newString": "y"}),
    ],
)
def test_a_neutral_edit_is_translated_to_the_tool_of_each_client(
    client: str, called: str, arguments: dict[str, Any]
) -> None:
    made = fit(client, "edit", path="a.py", old="x", new="y")
    assert (made.name, made.arguments) == (called, arguments)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_translated_shell_call_has_all_required_arguments(client: str) -> None:
    made = fit(client, "bash", command="ls")
    assert isinstance(made.arguments, dict)
    (tool,) = (each for each in CLIENTS[client] if each.name == made.name)
    assert set(tool.schema["required"]) <= set(made.arguments)
    assert "ls" in made.arguments.values()
    assert made.arguments.get("is_background", False) is False


def test_calls_without_a_matching_tool_are_translated_to_shell_commands(tmp_path: Path) -> None:
    """And it does the same, including quotes."""

    def run(call: ScriptedCall) -> subprocess.CompletedProcess[str]:
        assert call.name == "exec_command"
        assert isinstance(call.arguments, dict)
        words = ["sh", "-c", call.arguments["cmd"]]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)

    text = 'it\'s "$HOME" \\n `x`\n'
    assert run(fit("codex", "write", path="new dir/a b", content=text)).returncode == 0
    assert run(fit("codex", "read", path="new dir/a b")).stdout == text
    assert run(fit("codex", "edit", path="new dir/a b", old='"$HOME"', new="'$(x)'")).returncode == 0
    assert (tmp_path / "new dir/a b").read_text() == text.replace('"$HOME"', "'$(x)'")
    assert run(fit("codex", "search", path=".", pattern="it.s")).returncode == 0
    refused = run(fit("codex", "edit", path="new dir/a b", old="absent", new=""))
    assert (refused.returncode, refused.stderr) == (1, "it stands there 0 times\n")


def test_finish_becomes_text_for_clients_without_a_finish_tool() -> None:
    done = ScriptedReply(text="So.", tools=(ScriptedCall(name="finish", arguments={"summary": "It is done."}),))
    reply = fit_tools(done, CLIENTS["claude"])
    assert (reply.text, reply.tools, reply.why) == ("So.\nIt is done.", (), "end")
    assert fit_tools(done, CLIENTS["native"]).tools[0].arguments == {"summary": "It is done.", "evidence": []}


def test_a_request_without_tools_gets_the_words_alone() -> None:
    asked = ScriptedReply(text="I look.", tools=(ScriptedCall(name="fly", arguments={}),))
    reply = fit_tools(asked, ())
    assert (reply.text, reply.tools, reply.why) == ("I look.", (), "end")


def test_a_call_of_a_client_tool_is_unchanged() -> None:
    own = ScriptedReply(tools=(ScriptedCall(name="Bash", arguments={"command": "ls", "description": "Look."}),))
    assert fit_tools(own, CLIENTS["claude"]) == own


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (
            ("fly", {}),
            "the tool 'fly' is unknown: the request offers Bash, Read, Edit, Write; a script's own are bash",
        ),
        (("edit", {"path": "a"}), "a call of 'edit' needs old, new"),
    ],
)
def test_an_unknown_tool_or_missing_argument_raises(call: tuple[str, dict[str, Any]], problem: str) -> None:
    reply = ScriptedReply(tools=(ScriptedCall(name=call[0], arguments=call[1]),))
    with pytest.raises(ToolUnknownError) as error:
        fit_tools(reply, CLIENTS["claude"])
    assert problem in error.value.message


TOOL = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
REQUESTS: dict[Dialect, dict[str, Any]] = {
    "openai": {
        "messages": [{"role": "user", "content": "go"}],
        "tools": [{"type": "function", "function": {"name": "shell", "parameters": TOOL}}],
    },
    "anthropic": {
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "go"}],
        "tools": [{"name": "shell", "input_schema": TOOL}],
    },
    "responses": {"input": "go", "tools": [{"type": "function", "name": "shell", "parameters": TOOL}]},
    "gemini": {
        "contents": [{"role": "user", "parts": [{"text": "go"}]}],
        "tools": [{"functionDeclarations": [{"name": "shell", "parametersJsonSchema": TOOL}]}],
    },
}


@pytest.mark.parametrize("dialect", REQUESTS)
async def test_a_script_says_in_its_head_that_its_tools_are_to_fit(dialect: Dialect) -> None:
    line = json.dumps({"tools": [{"name": "bash", "arguments": {"command": "ls"}}]})
    bad = json.dumps({"turn": 2, "tools": [{"name": "fly", "arguments": {}}]})
    head = '{"format": "chargehand-script", "version": 1, "tools": "neutral"}'
    script = Script.load("\n".join([head, line, bad]).encode())
    assert Script.load(script.dump()) == script
    upstream = ScriptUpstream(script)

    async def said(turn: int) -> tuple[int, str]:
        body = {"model": "m", **REQUESTS[dialect]}
        reply = await upstream.send(ModelCall(id=f"c-{turn}", dialect=dialect, body=body, attempt="a", turn=turn))
        return reply.status, (await read(reply)).decode()

    status, body = await said(1)
    assert (status, "shell" in body, "cmd" in body) == (200, True, True)
    status, body = await said(2)
    assert (status, "line 3" in body, "offers shell" in body) == (409, True, True)


@pytest.mark.parametrize("dialect", REQUESTS)
async def test_a_request_without_tools_consumes_no_script_line(dialect: Dialect) -> None:
    look = ScriptedReply(text="I look.", tools=(ScriptedCall(name="bash", arguments={"command": "ls"}),))
    script = replace(Script.of(look, "Done."), neutral=True)
    upstream = ScriptUpstream(script)
    bare = {key: value for key, value in REQUESTS[dialect].items() if key != "tools"}

    async def said(turn: int, request: dict[str, Any], before: int) -> str:
        body = {"model": "m", **request}
        sent = ModelCall(id=f"c-{turn}", dialect=dialect, body=body, attempt="a", turn=turn, bare=before)
        return (await read(await upstream.send(sent))).decode()

    beside = [await said(1, bare, 0), await said(3, {**bare, "tools": []}, 1)]
    assert ["As the script says." in each for each in beside] == [True, True]
    # Of calls sent at once, the first to arrive comes first.
    assert "Done." in await said(4, REQUESTS[dialect], 2)
    assert "I look." in await said(2, REQUESTS[dialect], 1)
    assert len(upstream.calls) == 2
    words = ScriptUpstream(replace(Script.of("Only words."), neutral=True))
    sent = ModelCall(id="c-1", dialect=dialect, body={"model": "m", **bare}, attempt="a", turn=1)
    assert "Only words." in (await read(await words.send(sent))).decode()


async def test_a_gateway_marks_and_counts_requests_without_tools(tmp_path: Path) -> None:
    async with gateway(tmp_path, Reply(pieces=[openai_whole()])) as running:
        bare = {key: value for key, value in REQUESTS["openai"].items() if key != "tools"}
        for request in (bare, REQUESTS["openai"], {**bare, "tools": []}, REQUESTS["openai"]):
            assert (await running.post({"model": "m", **request})).status_code == 200
        assert [(each.turn, each.bare) for each in running.upstream.calls] == [(1, 0), (2, 1), (3, 1), (4, 2)]
        assert [each.bare for each in running.records] == [True, False, True, False]
