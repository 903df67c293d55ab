"""What an agent said and did, read off the recorded steps: a native one's replies and acts, others' own word."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from chargehand.agents.recorded import RecordedStep, ToolCall, read_reply
from chargehand.core.state import MissionState
from chargehand.missions._context import parse_act
from chargehand.missions._journal import recalled
from chargehand.store._store import Store

Speaker = Literal["person", "model", "call", "result", "agent", "thought", "error"]
_TOLD = "told/"
_AGENTS: Mapping[str, Speaker] = {
    "text": "agent",
    "thought": "thought",
    "call": "call",
    "result": "result",
    "error": "error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing said or done; `reply` is the number a fork takes (`ATTEMPT.TURN`), "" where none can be forked.

    A `call` and its `result` carry the tool's name; `artifact` holds a result that was cut. What an agent of
    another program told is `own_word`: nobody but itself saw it.
    """

    speaker: Speaker
    attempt: int
    reply: str
    text: str
    tool: str = ""
    model: str = ""
    failed: bool = False
    artifact: str | None = None
    own_word: bool = False


def transcript(store: Store, state: MissionState) -> Iterator[Line]:
    """Yield the conversation of a mission's attempts, in order; nothing for agents that tell nothing."""
    calls: dict[tuple[str, int], ToolCall] = {}
    for done in state.steps.values():
        if (number := _told_in(done.step)) is not None:
            yield from _told(number, store, recalled(store, done))
            continue
        act = parse_act(done.step)
        if act is None:
            continue
        yield from _act(*act, recalled(store, done), calls)


def _act(attempt: int, step: RecordedStep, output: Any, calls: dict[tuple[str, int], ToolCall]) -> Iterator[Line]:
    number = f"{attempt}.{step.turn}"
    if step.kind == "opening":
        for text in output["texts"]:
            yield Line(speaker="person", attempt=attempt, reply="", text=text)
    elif step.kind == "reply":
        yield from _reply(attempt, number, output, calls)
    elif step.kind == "call":
        yield _result(attempt, number, output, calls.get((number, step.index)))


def _told_in(step: str) -> int | None:
    """Return the attempt whose agent's own word a step keeps, `None` for another step."""
    match step.split("/", 3):
        case ["attempt", number, "work", name] if name.startswith(_TOLD):
            return int(number)
    return None


def _told(attempt: int, store: Store, told: Mapping[str, Any]) -> Iterator[Line]:
    """Yield what an agent told in one run; how its run ended stands in the log where it is not an error."""
    kept = store.artifacts.get(told["artifact"]) if told.get("artifact") else b""
    tools: dict[str, str] = {}
    for event in map(json.loads, kept.splitlines()):
        call, failed, text = event.get("call", ""), event.get("failed", False), event.get("text", "")
        speaker = "error" if event["kind"] == "end" and failed else _AGENTS.get(event["kind"])
        if speaker is None:
            continue
        if speaker == "call":
            tools[call] = event.get("tool", "")
            text = event.get("arguments", "")
        tool = tools.get(call, "") if speaker in ("call", "result") else ""
        yield Line(speaker=speaker, attempt=attempt, reply="", text=text, tool=tool, failed=failed, own_word=True)


def _reply(attempt: int, number: str, output: Any, calls: dict[tuple[str, int], ToolCall]) -> Iterator[Line]:
    for note in output["notes"]:
        yield Line(speaker="person", attempt=attempt, reply=number, text=note)
    reply, model = read_reply(output), output["model"]
    if reply.text:
        yield Line(speaker="model", attempt=attempt, reply=number, text=reply.text, model=model)
    for call in reply.calls:
        calls[number, call.index] = call
        text = json.dumps(call.arguments, ensure_ascii=False)
        yield Line(speaker="call", attempt=attempt, reply=number, text=text, tool=call.name, model=model)


def _result(attempt: int, number: str, output: Any, call: ToolCall | None) -> Line:
    made = output.get("output", output)
    return Line(
        speaker="result",
        attempt=attempt,
        reply=number,
        text=made["text"],
        tool=call.name if call is not None else "",
        failed=made["failed"],
        artifact=made["artifact"],
    )
