"""Hundreds of malformed replies, by every way in which an agent's end is read: no crash, no success."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chargehand.agents._json_rpc import JsonLines, RpcError
from chargehand.agents.acp.connection import AcpConnection
from chargehand.agents.clis import SPECS
from chargehand.agents.contract import AgentOutcome, MeteredUsage
from chargehand.agents.messages import read_document, read_finish, with_message
from chargehand.agents.programs.cli import CliAgent
from chargehand.agents.programs.cli_forms import FORMS
from chargehand.agents.programs.events import SessionLog
from chargehand.agents.programs.running import claim_of
from chargehand.agents.recorded import read_reply
from chargehand.core.errors import MessageError
from chargehand.core.messages import Addressed, Message
from chargehand.sandbox.contract import ExecResult

LEAST = 500
KNOWN = Addressed(id="a-1/1", mission="m-1", attempt="a-1", sender="x")
DONE = AgentOutcome(claim="done", reason="exit code 0", output=b"PASS", seconds=1.0)
_PLACE = Path(__file__).parents[3] / "shared/data/naughty_strings.json"
NAUGHTY = (
    json.loads(_PLACE.read_text()) if _PLACE.exists() else ["", "\u202e", "NULL", "1e400", "PASS", "{}", "```"]
)
FINISH: dict[str, Any] = {"summary": "done", "evidence": ["tests pass"], "status": "success"}
CLAIM: dict[str, Any] = {"type": "task_completion", "status": "success", "payload": {"summary": "done"}}
WRONG: list[Any] = [None, True, -1, 2.5, [], {}, ["success"], {"status": "success"}, "x" * 300_000]
_words = st.text(max_size=30) | st.sampled_from(NAUGHTY)
_not_status = _words.filter(lambda word: word.strip().lower() not in ("success", "")) | st.sampled_from(WRONG[1:])


def _whole(document: dict[str, Any]) -> str:
    return json.dumps(document)


@st.composite
def malformed(draw: st.DrawFn, good: dict[str, Any], named: str) -> str:
    """Draw a damaged form of `good`. Every way of damage is certain to break it; `named` must be a text."""
    word = draw(_words)
    told = {"evidence": [word, str(draw(st.integers(0, 10**6)))]}
    text = _whole(good | told if named in good else good | {"payload": good["payload"] | told})

    def changed(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> str:
        copy = json.loads(text)
        change(copy, copy if named in good else copy["payload"])
        return _whole(copy)

    keys = st.sampled_from(["Status", "state", "result", "outcome", "STATUS", "ok", "version2"])
    no_json = st.sampled_from(["NaN", "Infinity", "'success'", "success", ""])
    control = st.sampled_from(["\x00", "\x1b[2J", "\x07", "\ufeff", "\u200b"])

    def deep() -> str:
        depth = draw(st.integers(1_000, 50_000))
        return text.replace('"done"', "[" * depth + "]" * depth)

    status, wrong, key = draw(_not_status), draw(st.sampled_from(WRONG)), draw(keys)
    ways: list[Callable[[], str]] = [
        lambda: changed(lambda top, _: top.update(status=status)),
        lambda: changed(lambda _, body: body.pop(named)),
        lambda: changed(lambda _, body: body.update({named: wrong})),
        lambda: changed(lambda top, _: top.update({key: "success"})),
        lambda: text[: draw(st.integers(1, len(text) - 1))],
        lambda: f"{word}?{text}",
        lambda: f"{text}!{word}",
        lambda: text.replace('"status": "success"', '"status": "failure", "status": "success"'),
        lambda: text + text,
        lambda: f"[{text}]",
        lambda: json.dumps(f"{text}?{word}"),
        lambda: text.replace('"success"', draw(no_json)),
        lambda: text[:1] + draw(control) + text[1:],
        deep,
    ]
    return draw(st.sampled_from(ways))()


def native(text: str, *, as_object: bool) -> dict[str, Any]:
    """Return a recorded reply with one call of `finish`; its arguments are the text or its parsed value."""
    try:
        twice = text.count('"status"') > 1  # a document has it once; otherwise the arguments stay text
        arguments: Any = json.loads(text) if as_object and not twice else text
    except (ValueError, RecursionError):
        arguments = text
    call = {"part_kind": "tool-call", "tool_name": "finish", "args": arguments}
    return {"native": True, "message": {"parts": [call]}}


def spoken(text: str) -> dict[str, Any]:
    return {"native": False, "message": {"parts": [{"part_kind": "text", "content": text}]}}


def fenced(text: str) -> dict[str, Any]:
    return spoken(f'I am done.\n```tool\n{{"name": "finish", "arguments": {text}}}\n```')


def ended(output: dict[str, Any]) -> Message | None:
    """Return the message that ends a native reply, or `None` if the agent is asked again."""
    calls = [call for call in read_reply(output).calls if call.name == "finish"]
    try:
        return read_finish(calls, KNOWN) if calls else None
    except MessageError:
        return None


def is_success(message: Message | None) -> bool:
    return message is not None and message.status == "success"


def enough(seen: set[str]) -> None:
    assert len(seen) >= LEAST, f"only {len(seen)} distinct replies were tried"


FAST = settings(
    max_examples=800, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)


def test_well_formed_messages_are_read() -> None:
    """Without this test the ones below could not fail."""
    text = _whole(FINISH)
    assert is_success(ended(native(text, as_object=True)))
    assert is_success(ended(native(text, as_object=False)))
    assert is_success(ended(fenced(text)))
    assert is_success(read_document(_whole(CLAIM).encode(), KNOWN))


def test_five_hundred_malformed_ends_of_a_native_agent() -> None:
    seen: set[str] = set()

    @FAST
    @given(malformed(FINISH, "summary"), st.booleans())
    def tried(text: str, as_object: bool) -> None:
        seen.add(text)
        assert not is_success(ended(native(text, as_object=as_object)))

    tried()
    enough(seen)


def test_five_hundred_malformed_ends_in_text() -> None:
    seen: set[str] = set()

    @FAST
    @given(malformed(FINISH, "summary"), _words)
    def tried(text: str, word: str) -> None:
        seen.add(text)
        assert not is_success(ended(spoken(text)))
        assert not is_success(ended(fenced(text)))
        assert not is_success(ended(spoken(f"PASS. {word} status: success")))

    tried()
    enough(seen)


def test_five_hundred_malformed_files_of_another_program() -> None:
    seen: set[str] = set()

    @FAST
    @given(malformed(CLAIM, "summary"))
    def tried(text: str) -> None:
        seen.add(text)
        content = text.encode("utf-8", "surrogatepass")
        try:
            said: Message | MessageError = read_document(content, KNOWN)
        except MessageError as error:
            said = error
        assert with_message(DONE, KNOWN, said).claim == "failed", text[:200]

    tried()
    enough(seen)


@FAST
@given(st.binary(max_size=200) | _words.map(lambda word: word.encode("utf-8", "surrogatepass")))
def test_no_bytes_are_a_success(content: bytes) -> None:
    with pytest.raises(MessageError):
        read_document(content, KNOWN)


CALLS = [
    [FINISH, FINISH | {"status": "failure"}],
    [FINISH, FINISH | {"summary": "other"}],
    [FINISH | {"status": "failure"}, FINISH],
    [FINISH, {}],
]


@pytest.mark.parametrize("calls", CALLS)
def test_two_different_finish_calls_are_rejected(calls: list[dict[str, Any]]) -> None:
    parts = [{"part_kind": "tool-call", "tool_name": "finish", "args": each} for each in calls]
    assert ended({"native": True, "message": {"parts": parts}}) is None


def test_a_repeated_finish_call_counts_as_a_single_call() -> None:
    parts = [{"part_kind": "tool-call", "tool_name": "finish", "args": FINISH}] * 2
    assert is_success(ended({"native": True, "message": {"parts": parts}}))


GOOD_LINES: dict[str, dict[str, Any]] = {
    "claude": {"type": "result", "subtype": "success", "is_error": False, "result": "done"},
    "qwen": {"type": "result", "subtype": "success", "is_error": False, "result": "done"},
    "cursor": {"type": "result", "subtype": "success", "is_error": False, "result": "done"},
    "gemini": {"type": "result", "status": "success"},
    "codex": {"type": "turn.completed", "usage": {"input_tokens": 1, "output_tokens": 1}},
}


def cli_claim(name: Any, content: bytes) -> str:
    """Return the claim of a CLI that wrote this and ended with exit code 0."""
    lines, log = JsonLines(), SessionLog(redact=str, show=lambda _: None)
    for line in (*lines.take(content), *lines.finish()):
        for event in FORMS[SPECS[name].form](line):
            log.take(event)
    result = ExecResult(exit_code=0, stdout=b"", stderr=b"", seconds=1.0)
    problem = CliAgent("x", name)._problem(log, lines, result)
    return claim_of(log, result, MeteredUsage(), program="x", problem=problem).claim


@pytest.mark.parametrize("name", sorted(GOOD_LINES))
def test_the_end_of_a_cli_is_read(name: str) -> None:
    assert cli_claim(name, _whole(GOOD_LINES[name]).encode() + b"\n") == "done"


@pytest.mark.parametrize("name", sorted(SPECS))
def test_hundreds_of_malformed_ends_of_a_cli(name: str) -> None:
    seen: set[bytes] = set()
    end = GOOD_LINES.get(name, {"type": "result", "status": "success"})

    @settings(FAST, max_examples=150)
    @given(st.integers(1, 40), _words, st.sampled_from(["cut", "quoted", "listed", "said", "doubled"]))
    def tried(at: int, word: str, way: str) -> None:
        good = _whole({"note": word} | end)
        text = {
            "cut": good[:at],
            "quoted": json.dumps(good + word),
            "listed": f"[{good}]",
            "said": f"PASS {word}\n".replace("{", "(") + good[:at],
            "doubled": f"{good[:at]}{{{good}",
        }[way]
        content = text.encode("utf-8", "surrogatepass")
        seen.add(content)
        assert cli_claim(name, content) == "failed"

    tried()
    assert len(seen) >= 75


@pytest.mark.parametrize("value", ["true", 1, "false", None, [], {}])
def test_a_result_whose_error_mark_is_no_boolean_is_no_success(value: Any) -> None:
    line = GOOD_LINES["claude"] | {"is_error": value}
    assert cli_claim("claude", _whole(line).encode()) == "failed"


ANSWER = {"jsonrpc": "2.0", "id": 1, "result": {"stopReason": "end_turn"}}


async def _stop_reason(content: bytes) -> str:
    """Return why an ACP agent stopped that answers a prompt with these bytes, or "" if it gives no reason."""

    async def handle(method: str, params: Any) -> Any:
        raise RpcError("nothing is offered here")

    wire = AcpConnection(handle, lambda method, params: None)
    asking = asyncio.ensure_future(wire.request("session/prompt", {}))
    await asyncio.sleep(0)
    wire.take(b"".join(b"A" + line + b"\n" for line in content.split(b"\n")))
    await asyncio.sleep(0)
    await wire.cancel_handlers()
    if not asking.done():
        asking.cancel()
        return ""
    if asking.exception() is not None:
        return ""
    reason = asking.result().get("stopReason")
    return reason if isinstance(reason, str) else ""


async def test_the_end_of_an_acp_agent_is_read() -> None:
    assert await _stop_reason(_whole(ANSWER).encode()) == "end_turn"


def test_hundreds_of_malformed_ends_of_an_acp_agent() -> None:
    seen: set[bytes] = set()

    @settings(FAST, max_examples=300)
    @given(st.integers(1, 40), _words, st.sampled_from(WRONG), st.integers(0, 6))
    def tried(at: int, word: str, value: Any, way: int) -> None:
        good = _whole({"note": word} | ANSWER)
        text = [
            good[:at],
            json.dumps(good + word),
            f"[{good}]",
            f"{word}? {good}",
            _whole({"note": word} | ANSWER | {"id": "1" if value is True else value}),
            _whole({"note": word} | ANSWER | {"result": value}),
            _whole({"note": word} | ANSWER | {"result": {"stopReason": value}}),
        ][way]
        content = text.encode("utf-8", "surrogatepass")
        seen.add(content)
        assert asyncio.run(_stop_reason(content)) != "end_turn"

    tried()
    assert len(seen) >= 100
