"""What a native attempt records: the names of its steps, and how a recorded reply reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from chargehand.agents._text_protocol import parse
from chargehand.agents._tools_specs import SPECS

OPENING = "opening"
StepKind = Literal["opening", "reply", "call", "restore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """A step of a native attempt by its name: `turn` counts replies from 1, `index` the calls of one from 0."""

    kind: StepKind
    turn: int = 0
    index: int = 0


def reply_step(turn: int) -> str:
    """Return the name of a turn's reply."""
    return f"turn/{turn}/reply"


def call_step(turn: int, index: int) -> str:
    """Return the name of a call of a turn's reply."""
    return f"turn/{turn}/call/{index}"


def restore_step(turn: int) -> str:
    """Return the name of what sets the files back before a turn's reply."""
    return f"turn/{turn}/restore"


def notes_step(turn: int) -> str:
    """Return the name of what a model is told besides, before a turn's reply."""
    return f"turn/{turn}/notes"


def parse_step(name: str) -> RecordedStep | None:
    """Return the step of a name as these functions make it, `None` for another's."""
    match name.split("/"):
        case ["opening"]:
            return RecordedStep(kind="opening")
        case ["turn", turn, "reply" | "restore" as kind]:
            return RecordedStep(kind="reply" if kind == "reply" else "restore", turn=int(turn))
        case ["turn", turn, "call", index]:
            return RecordedStep(kind="call", turn=int(turn), index=int(index))
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """What a model wants done, the `index`-th call of its reply.

    `arguments` is an object, or the text that should have been one; `written` says that it stood in the text.
    """

    index: int
    name: str
    arguments: Any
    written: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A recorded reply as it reads; `problem` tells the model what was wrong with calls written as text."""

    text: str
    calls: tuple[ToolCall, ...]
    problem: str | None = None


def read_reply(output: Mapping[str, Any]) -> Reply:
    """Return what the recorded output of a reply's step says and asks for."""
    parts = output["message"]["parts"]
    text = "".join(part["content"] for part in parts if part["part_kind"] == "text")
    asked = [part for part in parts if part["part_kind"] == "tool-call"]
    if asked or output.get("native", True):
        calls = (
            ToolCall(index=index, name=part["tool_name"], arguments=_arguments(part["args"]))
            for index, part in enumerate(asked)
        )
        return Reply(text=text, calls=tuple(calls))
    parsed = parse(text, SPECS)
    written = (
        ToolCall(index=index, name=call.name, arguments=call.arguments, written=True)
        for index, call in enumerate(parsed.calls)
    )
    return Reply(text=text, calls=tuple(written), problem=parsed.problem)


def _arguments(written: Any) -> Any:
    """Return a call's arguments; text that is no JSON, or has a key twice, comes back for the tool to refuse."""
    if written is None or written == "":
        return {}
    if not isinstance(written, str):
        return written
    try:
        return whole(json.loads(written, object_pairs_hook=_object))
    except (ValueError, RecursionError):
        return written


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("one key twice: which is meant would be a guess")
    return made


def whole(value: Any) -> Any:
    """Return JSON with halves of characters joined or replaced: nothing can keep or send them."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [whole(part) for part in value]
    if isinstance(value, dict):
        return {whole(key): whole(part) for key, part in value.items()}
    return value
