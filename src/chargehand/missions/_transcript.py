"""What a native agent and its model said and did, read off the recorded steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from chargehand.agents import ToolCall, read_reply
from chargehand.core import MissionState
from chargehand.missions._context import parse_act
from chargehand.missions._journal import recalled
from chargehand.store import Store

Speaker = Literal["person", "model", "call", "result"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing said or done; `reply` is the number a fork takes (`ATTEMPT.TURN`), "" for an opening.

    A `call` and its `result` carry the tool's name; `artifact` holds a result that was cut.
    """

    speaker: Speaker
    attempt: int
    reply: str
    text: str
    tool: str = ""
    model: str = ""
    failed: bool = False
    artifact: str | None = None


def transcript(store: Store, state: MissionState) -> Iterator[Line]:
    """Yield the conversation of a mission's native attempts, in order; nothing for other agents'."""
    calls: dict[tuple[str, int], ToolCall] = {}
    for done in state.steps.values():
        act = parse_act(done.step)
        if act is None:
            continue
        attempt, step = act
        number, output = f"{attempt}.{step.turn}", recalled(store, done)
        if step.kind == "opening":
            for text in output["texts"]:
                yield Line(speaker="person", attempt=attempt, reply="", text=text)
        elif step.kind == "reply":
            yield from _reply(attempt, number, output, calls)
        elif step.kind == "call":
            yield _result(attempt, number, output, calls.get((number, step.index)))


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
