"""Replay: the same reply for the same call; a different call is refused with the place of the difference."""

from __future__ import annotations

import json
import random
import uuid
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit._model_clients import anthropic_client, call, document, openai_client, read

from chargehand.core.clock import SteppedClock
from chargehand.core.errors import UpstreamError
from chargehand.core.redaction import Redactor
from chargehand.models.contract import ModelCall, ModelUpstream, UpstreamReply
from chargehand.models.faults import Faults
from chargehand.models.faulty_upstream import FaultyUpstream
from chargehand.models.recording import Recording, RecordingUpstream, RecordingWriter
from chargehand.models.replay import ReplayUpstream, script_from_recording
from chargehand.models.request_matching import Divergence, find_difference
from chargehand.models.script_upstream import ScriptUpstream
from chargehand.models.scripted_replies import ScriptedCall, ScriptedReply
from chargehand.models.scripts import Script

TOOLS = ScriptedReply(text="hello there", tools=(ScriptedCall(name="read", arguments={"path": "/srv/work/a"}),))
NOTHING = Redactor()
Outcome = tuple[int, dict[str, str], Any]


def parsed(body: bytes) -> list[Any]:
    """The content of a body, event by event: recordings write JSON with other whitespace than providers."""
    found = []
    for line in body.splitlines():
        head, text = line[:5], line.removeprefix(b"data:")
        try:
            found.append((head, json.loads(text)))
        except ValueError:
            found.append((head, text.strip()))
    return found


async def outcome(upstream: ModelUpstream, sent: ModelCall) -> Outcome:
    try:
        reply = await upstream.send(sent)
        return reply.status, dict(reply.headers), await read(reply)
    except UpstreamError as error:
        return 0, {}, error.code


async def recorded(
    path: Path, upstream: ModelUpstream, *calls: ModelCall, redactor: Redactor = NOTHING
) -> tuple[Recording, list[Outcome]]:
    writer = RecordingWriter(path)
    outcomes = [await outcome(RecordingUpstream(upstream, writer, redactor), one) for one in calls]
    writer.close()
    return Recording.load(path), outcomes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recording.jsonl"


async def test_a_replay_reproduces_recorded_outcomes(path: Path) -> None:
    faults = Faults.parse("429/7@2,500@3,cut@4,malformed@5")
    upstream = FaultyUpstream(ScriptUpstream(Script.of(TOOLS, TOOLS, TOOLS)), faults)
    calls = [
        call(1, stream=True),
        *map(call, (2, 3, 4, 5, 6)),
        call(1, attempt="b", dialect="anthropic", stream=True),
    ]
    recording, outcomes = await recorded(path, upstream, *calls)
    replay = ReplayUpstream(recording)
    again = [await outcome(replay, one) for one in calls]
    for one, other in zip(outcomes, again, strict=True):
        assert one[:2] == other[:2]
        assert one[2] == other[2] or parsed(one[2]) == parsed(other[2])
    assert [status for status, _, _ in again] == [200, 429, 500, 0, 200, 200, 200]


@pytest.mark.parametrize("stream", [False, True])
async def test_clients_see_the_same(path: Path, stream: bool) -> None:
    async def ask(upstream: ModelUpstream) -> Any:
        question: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        async with openai_client(upstream) as openai, anthropic_client(upstream) as anthropic:
            if not stream:
                return await openai.chat.completions.create(**question)
            async with anthropic.messages.stream(**question, max_tokens=5) as events:
                return await events.get_final_message()

    writer = RecordingWriter(path)
    first = await ask(RecordingUpstream(ScriptUpstream(Script.of(TOOLS)), writer, NOTHING))
    writer.close()
    assert await ask(ReplayUpstream(Recording.load(path))) == first


async def test_volatile_request_fields_are_ignored_and_templates_are_expanded(path: Path) -> None:
    then = Redactor(templates={"workspace": "/srv/work"})
    asked = call(said="look into /srv/work/a", max_tokens=10, user="me")
    recording, _ = await recorded(path, ScriptUpstream(Script.of(TOOLS)), asked, redactor=then)
    assert "/srv/work" not in path.read_text()
    replay = ReplayUpstream(recording, redactor=Redactor(templates={"workspace": "/home/other"}))
    reply = await replay.send(call(said="look into /home/other/a", model="another", max_completion_tokens=3))
    function = (await document(reply))["choices"][0]["message"]["tool_calls"][0]["function"]
    assert function["arguments"] == '{"path": "/home/other/a"}'


async def test_the_find_difference_is_named_and_ends_the_attempt(path: Path) -> None:
    calls = [call(1), call(2, said="two"), call(3)]
    recording, _ = await recorded(path, ScriptUpstream(Script.of("1", "2", "3")), *calls)
    heard: list[Divergence] = []
    replay = ReplayUpstream(recording, on_divergence=heard.append)
    assert (await replay.send(calls[0])).status == 200
    for sent in (call(2, said="zwei " * 40), calls[2]):
        reply = await replay.send(sent)
        message = (await document(reply))["error"]["message"]
        assert reply.status == 409
        assert 'turn 2 differs from the recording at /messages/0/content: recorded "two", sent "zwei' in message
        assert len(message) < 250
    assert [(each.attempt, each.turn, each.pointer) for each in heard] == [(1, 2, "/messages/0/content")]


async def test_a_lenient_replay_answers_by_turn_and_reports_divergences(path: Path) -> None:
    recording, outcomes = await recorded(path, ScriptUpstream(Script.of("1", "2")), call(1), call(2))
    heard: list[Divergence] = []
    replay = ReplayUpstream(recording, lenient=True, on_divergence=heard.append)
    assert await outcome(replay, call(1, said="other")) == outcomes[0]
    assert await outcome(replay, call(2)) == outcomes[1]
    assert len(heard) == 1
    # A client that waits for events cannot be given a document, not even in a lenient replay.
    assert (await replay.send(call(1, stream=True, attempt="a"))).status == 409


async def test_an_unrecorded_turn_or_dialect_is_an_error(path: Path) -> None:
    recording, _ = await recorded(path, ScriptUpstream(Script.of("1")), call(1))
    reply = await ReplayUpstream(recording).send(call(2, dialect="anthropic"))
    assert reply.status == 410
    assert "no turn 2 of attempt 1" in (await document(reply))["error"]["message"]
    dialect = await ReplayUpstream(recording).send(call(1, dialect="anthropic"))
    assert dialect.status == 409


TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


def works(turn: int, said: str, *, bare: int = 0) -> ModelCall:
    return replace(call(turn, said=said, tools=[TOOL]), bare=bare)


async def test_side_requests_may_come_in_any_order(path: Path) -> None:
    """A title is requested while the work begins: the order differs from run to run."""
    then = [works(1, "mend it"), call(2, said="a title for it"), works(3, "go on", bare=1)]
    recording, outcomes = await recorded(path, ScriptUpstream(Script.of("I mend.", "Title", "Done.")), *then)
    replay = ReplayUpstream(recording)
    now = [call(1, said="a title for it"), works(2, "mend it", bare=1), works(3, "go on", bare=1)]
    assert [await outcome(replay, one) for one in now] == [outcomes[1], outcomes[0], outcomes[2]]


async def test_an_unrecorded_side_request_does_not_end_the_replay(path: Path) -> None:
    then = [works(1, "mend it"), call(2, said="a title for it"), works(3, "go on", bare=1)]
    recording, outcomes = await recorded(path, ScriptUpstream(Script.of("I mend.", "Title", "Done.")), *then)
    heard: list[Divergence] = []
    replay = ReplayUpstream(recording, on_divergence=heard.append)
    other = await replay.send(call(1, said="another title"))
    assert (other.status, other.headers["x-should-retry"]) == (409, "false")
    assert [each.pointer for each in heard] == ["/messages/0/content"]
    assert await outcome(replay, works(2, "mend it", bare=1)) == outcomes[0]
    assert (await replay.send(call(3, said="a title for it"))).status == 200
    assert (await replay.send(call(4, said="one more"))).status == 410
    assert await outcome(replay, works(5, "go on", bare=3)) == outcomes[2]
    # A different request for its own work is refused.
    assert (await replay.send(works(6, "something else", bare=3))).status == 410
    assert len(heard) == 1


async def test_a_divergent_main_request_ends_the_replay(path: Path) -> None:
    then = [works(1, "mend it"), works(2, "go on")]
    recording, _ = await recorded(path, ScriptUpstream(Script.of("I mend.", "Done.")), *then)
    replay = ReplayUpstream(recording)
    assert (await replay.send(works(1, "break it"))).status == 409
    assert (await replay.send(works(2, "go on"))).status == 409


async def test_a_replayed_reply_contains_the_current_commit_hash(path: Path) -> None:
    """Another clone, another day: the first commit has another name, here in pieces of a stream."""
    long = "".join(random.Random(1).choices("0123456789abcdef", k=40))

    def asks(hash: str, day: date) -> ModelCall:
        words = f"Recent commits:\n{hash[:7]} first\nToday's date is {day}.\nHEAD is {hash}"
        return replace(call(said=words, stream=True), turn=1)

    upstream = ScriptUpstream(Script.of(f"I look at what the commit {long} says, and at {long[:7]}."))
    day = datetime.now(UTC).date()
    recording, _ = await recorded(path, upstream, asks(long, day))
    today = "d2da67a" + "0" * 33
    later = SteppedClock(datetime.now(UTC) + timedelta(days=40))
    replay = ReplayUpstream(recording, clock=later)
    status, _, body = await outcome(replay, asks(today, day + timedelta(days=40)))
    assert status == 200
    assert streamed(body) == f"I look at what the commit {today} says, and at d2da67a."
    # A day that is neither the recorded nor the current one is a difference.
    elsewhere = ReplayUpstream(recording, clock=later)
    assert (await elsewhere.send(asks(today, day + timedelta(days=400)))).status == 409


def streamed(body: bytes) -> str:
    events = [line.removeprefix("data: ") for line in body.decode().splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event).get("choices", [])]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def test_the_error_shows_the_differing_part_of_a_long_text(path: Path) -> None:
    long = "You are an agent. " * 90
    recording, _ = await recorded(path, ScriptUpstream(Script.of("1")), call(said=f"{long} Use a fork."))
    reply = await ReplayUpstream(recording).send(call(said=f"{long} Use a spoon."))
    message = (await document(reply))["error"]["message"]
    assert 'Use a fork."' in message
    assert 'Use a spoon."' in message
    assert len(message) < 300


async def test_a_resumed_attempt_continues_at_its_turn(path: Path) -> None:
    calls = [call(1), call(2), call(1, attempt="b")]
    recording, outcomes = await recorded(path, ScriptUpstream(Script.of("1", "2")), *calls)
    replay = ReplayUpstream(recording, attempts={"resumed": 1})
    assert await outcome(replay, call(2, attempt="resumed")) == outcomes[1]
    assert await outcome(replay, call(2, attempt="resumed")) == outcomes[1]


async def test_a_recorded_timeout_is_replayed_as_a_timeout(path: Path) -> None:
    class Slow:
        async def send(self, call: ModelCall) -> UpstreamReply:
            raise UpstreamError("slow", code="upstream_timeout")

        async def close(self) -> None: ...

    recording, _ = await recorded(path, Slow(), call())
    assert await outcome(ReplayUpstream(recording), call()) == (0, {}, "upstream_timeout")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_recording_is_a_script(path: Path, stream: bool) -> None:
    faults = Faults.parse("429/7@2,cut@3")
    upstream = FaultyUpstream(ScriptUpstream(Script.of(TOOLS, TOOLS)), faults)
    calls = [call(turn, stream=stream) for turn in (1, 2, 3)]
    recording, outcomes = await recorded(path, upstream, *calls)
    script = script_from_recording(recording)
    first, second, third = (line.reply for line in script.lines)
    assert (first.text, first.tools[0].arguments) == (TOOLS.text, TOOLS.tools[0].arguments)
    assert (second.fault, third.fault) == ("429/7", "cut")
    again = ScriptUpstream(Script.load(script.dump()))
    assert [(await outcome(again, one))[0] for one in calls] == [status for status, _, _ in outcomes]
    # A script accepts any request.
    assert (await again.send(call(1, said="something else"))).status == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab/~", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3),
)


def at(tree: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        try:
            tree = tree[int(key)] if isinstance(tree, list) else tree[key]
        except (IndexError, KeyError):
            return "absent"
    return tree


def same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other) if isinstance(one, bool) or isinstance(other, bool) else bool(one == other)


@given(one=JSON, other=JSON)
def test_find_difference_points_at_a_differing_value(one: Any, other: Any) -> None:
    found = find_difference(one, other)
    assert find_difference(one, one) is None
    if found is None:
        assert one == other
    else:
        assert not same(at(one, found[0]), at(other, found[0]))


async def test_recorded_run_ids_are_replaced_by_current_ids(tmp_path: Path) -> None:
    """A reply with an id that the program had shown gets the current id; other ids stay as recorded."""
    then, now, foreign = (str(uuid.uuid4()) for _ in range(3))

    def asks(session: str) -> ModelCall:
        return call(messages=[{"role": "user", "content": f"session {session}\nChunk ID: {session[:6]}"}])

    upstream = ScriptUpstream(Script.of(f"write to /tmp/{then} as {foreign}"))
    recording, _ = await recorded(tmp_path / "r.jsonl", upstream, asks(then))
    status, _, body = await outcome(ReplayUpstream(recording), asks(now))
    assert status == 200
    assert f"write to /tmp/{now} as {foreign}" in "".join(texts(body))


def texts(body: bytes) -> list[str]:
    return [str(json.loads(body)["choices"][0]["message"]["content"])]
