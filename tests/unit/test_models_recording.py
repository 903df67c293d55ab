"""Recordings: every exchange is one complete line without secrets, however it ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.conftest import examples
from tests.unit._model_clients import call, read

from chargehand.core.clock import SteppedClock
from chargehand.core.errors import UpstreamError, UsageError
from chargehand.core.redaction import Redactor
from chargehand.models.contract import Dialect, ModelCall, ModelUpstream, UpstreamReply, reply_from_pieces
from chargehand.models.faults import Faults
from chargehand.models.faulty_upstream import FaultyUpstream
from chargehand.models.recording import Recording, RecordingUpstream, RecordingWriter
from chargehand.models.replay import script_from_recording
from chargehand.models.script_upstream import ScriptUpstream
from chargehand.models.scripted_replies import ScriptedCall, ScriptedReply
from chargehand.models.scripts import Script

TOOLS = ScriptedReply(
    text="hello there, this is long", tools=(ScriptedCall(name="read", arguments={"path": "a"}),)
)
NOTHING = Redactor()


class Unreachable:
    async def send(self, call: ModelCall) -> UpstreamReply:
        raise UpstreamError("nobody at /srv/work answers")

    async def close(self) -> None: ...


class Says:
    """An upstream that replies with given bytes and a content type."""

    def __init__(self, pieces: Sequence[bytes], content_type: str) -> None:
        self._pieces, self._type = pieces, content_type

    async def send(self, call: ModelCall) -> UpstreamReply:
        return reply_from_pieces(200, self._pieces, content_type=self._type)

    async def close(self) -> None: ...


async def record(
    path: Path,
    upstream: ModelUpstream,
    *calls: ModelCall,
    redactor: Redactor = NOTHING,
    attempts: dict[str, int] | None = None,
) -> list[bytes]:
    writer = RecordingWriter(path, clock=SteppedClock(), attempts=attempts)
    try:
        recorded = RecordingUpstream(upstream, writer, redactor)
        return [await read(await recorded.send(one)) for one in calls]
    finally:
        writer.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recording.jsonl"


async def test_exchanges_are_recorded_completely(path: Path) -> None:
    upstream = ScriptUpstream(Script.of(TOOLS, "two"))
    (first, _) = await record(path, upstream, call(1), call(2, stream=True))
    recording = Recording.load(path)
    assert (recording.created, recording.torn) == ("2026-01-01T00:00:00+00:00", "")
    one, two = recording.exchanges
    assert (one.call, one.attempt, one.turn, one.dialect, one.status, one.cut) == (
        "c-1",
        1,
        1,
        "openai",
        200,
        False,
    )
    assert one.request == call(1).body
    assert one.headers == {"content-type": "application/json"}
    assert one.reply == {"json": json.loads(first)}
    assert two.reply["sse"][-1] == {"data": "[DONE]"}
    assert path.stat().st_mode & 0o777 == 0o600


async def test_events_keep_their_names(path: Path) -> None:
    await record(path, ScriptUpstream(Script.of(TOOLS)), call(1, dialect="anthropic", stream=True))
    events = Recording.load(path).exchanges[0].reply["sse"]
    assert [event["event"] for event in events] == [event["data"]["type"] for event in events]


@pytest.mark.parametrize(
    ("body", "kept"), [(b"<html>busy</html>", "<html>busy</html>"), (b"\xff\xfe", "\ufffd\ufffd"), (b"", "")]
)
async def test_a_body_that_is_no_json_is_kept_as_text(path: Path, body: bytes, kept: str) -> None:
    await record(path, Says([body], "text/html"), call())
    assert Recording.load(path).exchanges[0].reply == {"text": kept}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_that_broke_off_is_kept_with_its_error(path: Path, stream: bool) -> None:
    upstream = FaultyUpstream(ScriptUpstream(Script.of(TOOLS)), Faults.parse("cut@1"))
    with pytest.raises(UpstreamError):
        await record(path, upstream, call(stream=stream))
    (exchange,) = Recording.load(path).exchanges
    assert exchange.cut
    assert exchange.error is not None
    assert exchange.error["code"] == "upstream_cut"
    assert exchange.reply["sse" if stream else "text"]


async def test_a_reply_that_was_left_early_is_kept_as_cut(path: Path) -> None:
    writer = RecordingWriter(path)
    upstream = RecordingUpstream(ScriptUpstream(Script.of("one", "two")), writer, NOTHING)
    for turn, pieces in ((1, 0), (2, 2)):
        reply = await upstream.send(call(turn, stream=True))
        for _ in range(pieces):
            await reply.chunks.__anext__()
        for _ in range(2):
            await reply.chunks.aclose()
    writer.close()
    assert [(e.cut, len(e.reply["sse"])) for e in Recording.load(path).exchanges] == [(True, 0), (True, 2)]


async def test_a_call_that_was_cancelled_is_kept_as_cut(path: Path) -> None:
    writer = RecordingWriter(path)
    inner = FaultyUpstream(ScriptUpstream(Script.of("one")), Faults.parse("stall@1"))
    reply = await RecordingUpstream(inner, writer, NOTHING).send(call())
    reading = asyncio.create_task(read(reply))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    writer.close()
    assert Recording.load(path).exchanges[0].cut


async def test_an_unanswered_call_is_recorded_with_its_error(path: Path) -> None:
    with pytest.raises(UpstreamError):
        await record(path, Unreachable(), call(), redactor=Redactor(templates={"workspace": "/srv/work"}))
    (exchange,) = Recording.load(path).exchanges
    assert (exchange.status, exchange.reply) == (0, {})
    assert exchange.error == {"code": "upstream_unreachable", "message": "nobody at {{workspace}} answers"}


async def test_attempts_are_numbered_on_in_a_recording_that_is_gone_on_with(path: Path) -> None:
    for _ in range(2):
        await record(path, ScriptUpstream(Script.of("one")), call(attempt="a"), call(attempt="b"))
    await record(path, ScriptUpstream(Script.of("one", "two")), call(2, attempt="b"), attempts={"b": 2})
    assert [exchange.attempt for exchange in Recording.load(path).exchanges] == [1, 2, 3, 4, 2]


async def test_a_truncated_last_line_is_skipped_reported_and_repaired(path: Path) -> None:
    await record(path, ScriptUpstream(Script.of("one", "two")), call(1), call(2))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    recording = Recording.load(path)
    assert len(recording.exchanges) == 1
    assert "line 3 was cut short" in recording.torn
    await record(path, ScriptUpstream(Script.of("one")), call(1))
    again = Recording.load(path)
    assert (len(again.exchanges), again.torn) == (2, "")


async def test_a_truncated_header_is_rewritten(path: Path) -> None:
    path.write_text('{"format": "chargehand-recording", "ver')
    await record(path, ScriptUpstream(Script.of("one")), call(1))
    assert len(Recording.load(path).exchanges) == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "line 1"),
        ("{}\n", "line 1"),
        ('{"format": "chargehand-recording", "version": 9}\n', "version 9 is not supported"),
        ('{"format": "chargehand-recording", "version": 1}\n{}\n', "line 2: .*missing"),
        ('{"format": "chargehand-recording", "version": 1}\nnonsense\n', "line 2"),
    ],
)
def test_loading_an_invalid_recording_raises(path: Path, content: str, problem: str) -> None:
    path.write_text(content)
    with pytest.raises(UsageError, match=problem) as caught:
        Recording.load(path)
    assert caught.value.code == "recording_invalid"


@pytest.mark.parametrize("content", ["my notes", "my notes\n", "{}\n"])
def test_another_file_is_never_written_over(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(UsageError, match="line 1"):
        RecordingWriter(path)
    assert path.read_text() == content


def test_an_unwritable_recording_path_raises(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written") as caught:
        RecordingWriter(tmp_path / "no" / "recording.jsonl")
    assert caught.value.code == "file_unwritable"


CANARIES = st.text("abcdefXYZ0189+/=\"\\'é🦀 \n%&", min_size=4, max_size=20).map(lambda text: f"Q7{text}zX")


@settings(max_examples=examples(60), deadline=None)
@given(
    canary=CANARIES,
    dialect=st.sampled_from(["openai", "anthropic"]),
    stream=st.booleans(),
    where=st.sampled_from(["text", "tool", "key", "request", "system", "html", "fault"]),
)
def test_a_canary_never_gets_into_the_file(
    canary: str, dialect: Dialect, stream: bool, where: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("r") / "recording.jsonl"
    said = f"the key is {canary}, keep it"
    reply = ScriptedReply(
        text=said if where == "text" else "fine",
        tools=(
            ScriptedCall(
                name="write",
                arguments={canary if where == "key" else "x": said if where == "tool" else "y", "n": {"z": [1]}},
            ),
        ),
    )
    upstream: ModelUpstream = ScriptUpstream(Script.of(reply))
    if where == "html":
        upstream = Says([said.encode()[:9], said.encode()[9:]], "text/html")
    if where == "fault":
        upstream = FaultyUpstream(ScriptUpstream(Script.of(replace(reply, text=said))), Faults.parse("drip@1"))
    asked = call(
        dialect=dialect, stream=stream, said=said if where == "request" else "hello", system=[{"text": said}]
    )
    asyncio.run(record(path, upstream, asked, redactor=Redactor({"KEY": canary})))
    content = path.read_text()
    for form in (canary, json.dumps(canary)[1:-1], json.dumps(json.dumps(canary)[1:-1])[1:-1]):
        assert form not in content
    recording = Recording.load(path)
    assert canary not in "".join(texts(recording.exchanges[0].reply))
    # A stream spreads its text over pieces: the text that a client assembles must not contain it either.
    said_then = script_from_recording(recording).lines[0].reply
    assert canary not in said_then.text
    assert not [call for call in said_then.tools if canary in "".join(texts(call.arguments))]
    assert "[redacted:KEY]" in content


def texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in texts(item)]
