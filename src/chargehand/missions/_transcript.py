"""What a native agent and its model said and did, read off the recorded steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from chargehand.core import MissionState, StepFinished
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
    calls: dict[str, dict[str, Any]] = {}
    for step in state.steps.values():
        head, _, name = step.step.partition("/work/")
        if not name or not head.startswith("attempt/"):
            continue
        attempt = int(head.removeprefix("attempt/"))
        output = _output(store, step)
        if name == "opening":
            for text in output["texts"]:
                yield Line(speaker="person", attempt=attempt, reply="", text=text)
        elif name.endswith("/reply"):
            number = f"{attempt}.{name.split('/')[1]}"
            yield from _reply(attempt, number, output, calls)
        elif "/call/" in name:
            yield _result(attempt, name, output, calls)


def _output(store: Store, step: StepFinished) -> Any:
    if step.artifact is None:
        return step.output
    return msgspec.json.decode(store.artifacts.get(step.artifact))


def _reply(attempt: int, number: str, output: Any, calls: dict[str, dict[str, Any]]) -> Iterator[Line]:
    for note in output["notes"]:
        yield Line(speaker="person", attempt=attempt, reply=number, text=note)
    parts = output["message"]["parts"]
    text = "".join(part["content"] for part in parts if part["part_kind"] == "text")
    if text:
        yield Line(speaker="model", attempt=attempt, reply=number, text=text, model=output["model"])
    for index, part in enumerate(part for part in parts if part["part_kind"] == "tool-call"):
        calls[f"{number}/{index}"] = part
        yield Line(
            speaker="call",
            attempt=attempt,
            reply=number,
            text=_arguments(part["args"]),
            tool=part["tool_name"],
            model=output["model"],
        )


def _arguments(written: Any) -> str:
    return written if isinstance(written, str) else json.dumps(written, ensure_ascii=False)


def _result(attempt: int, name: str, output: Any, calls: dict[str, dict[str, Any]]) -> Line:
    _, turn, _, index = name.split("/")
    number = f"{attempt}.{turn}"
    made = output.get("output", output)
    call = calls.get(f"{number}/{index}", {})
    return Line(
        speaker="result",
        attempt=attempt,
        reply=number,
        text=made["text"],
        tool=call.get("tool_name", ""),
        failed=made["failed"],
        artifact=made["artifact"],
    )
