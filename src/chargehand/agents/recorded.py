"""Records of a native attempt: the names of its steps, and the replies of models as JSON.

These names and documents are stored: a newer version must read records of an older one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import msgspec
from msgspec import Struct

from chargehand.agents.model_messages import ModelResponse, ReplyCall, ReplyPart, ReplyText, read_response
from chargehand.agents.text_protocol import ParsedReply, parse, unique_keys
from chargehand.agents.tool_specs import SPECS, ToolCall
from chargehand.core.events import encode_json

OPENING = "opening"
RecordedKind = Literal["opening", "reply", "call", "restore"]


class RecordedStep(Struct, frozen=True, kw_only=True):
    """A parsed step name of a native attempt: `turn` counts replies from 1, `index` a reply's calls from 0."""

    kind: RecordedKind
    turn: int = 0
    index: int = 0


def reply_step(turn: int) -> str:
    """Return the name of the step for a turn's model request; its output is the reply."""
    return f"turn/{turn}/reply"


def call_step(turn: int, index: int) -> str:
    """Return the name of the step for one tool call of a turn's reply."""
    return f"turn/{turn}/call/{index}"


def restore_step(turn: int) -> str:
    """Return the name of the step that sets the files back before a turn's request."""
    return f"turn/{turn}/restore"


def notes_step(turn: int) -> str:
    """Return the name of the step that records the additional texts before a turn's request."""
    return f"turn/{turn}/notes"


# Other steps of an attempt (`mcp/1`, `told/1`, `asked-again/0/1`) are not part of the conversation.
def parse_step(name: str) -> RecordedStep | None:
    """Parse one of these names; return `None` for every other name."""
    match name.split("/"):
        case ["opening"]:
            return RecordedStep(kind="opening")
        case ["turn", turn, "reply" | "restore" as kind]:
            return RecordedStep(kind="reply" if kind == "reply" else "restore", turn=int(turn))
        case ["turn", turn, "call", index]:
            return RecordedStep(kind="call", turn=int(turn), index=int(index))
    return None


def read_reply(output: Mapping[str, Any]) -> ParsedReply:
    """Return the text and the calls in the recorded output of a reply step."""
    parts = output["message"]["parts"]
    text = "".join(part["content"] for part in parts if part["part_kind"] == "text")
    requested = [part for part in parts if part["part_kind"] == "tool-call"]
    # Records of models with tools have no calls in text: a text that looks like one is an example.
    if requested or output.get("native", True):
        calls = []
        for index, part in enumerate(requested):
            given = {} if part["args"] is None or part["args"] == "" else part["args"]
            if isinstance(given, str):
                # Text that is not JSON, or has a repeated key, stays for the tool to refuse.
                with suppress(ValueError, RecursionError):
                    given = without_lone_surrogates(json.loads(given, object_pairs_hook=unique_keys))
            calls.append(ToolCall(index=index, name=part["tool_name"], arguments=given))
        return ParsedReply(text=text, calls=tuple(calls))
    return parse(text, SPECS)


def without_lone_surrogates(value: Any) -> Any:
    """Return JSON with surrogate pairs joined and lone surrogates replaced, which cannot be stored or sent."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [without_lone_surrogates(part) for part in value]
    if isinstance(value, dict):
        return {without_lone_surrogates(key): without_lone_surrogates(part) for key, part in value.items()}
    return value


def dump_reply(response: ModelResponse) -> dict[str, Any]:
    """Return a model's reply as JSON for the log."""
    message: dict[str, Any] = without_lone_surrogates(msgspec.to_builtins(response))
    return message


def require_recordable(response: ModelResponse) -> None:
    """Raise (`ValueError`, `TypeError`, `OverflowError`) unless the log can store a reply and read it again."""
    message = dump_reply(response)
    encode_json(message)
    read_response(message)


def edited_reply(text: str, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a person's edit in the form of a model's reply: `text`, and calls as `{"name", "arguments"}`."""
    calls = [ReplyCall(tool["name"], tool.get("arguments", {})) for tool in tools]
    parts: list[ReplyPart] = [*([ReplyText(text)] if text else []), *calls]
    return dump_reply(ModelResponse(parts=parts, model_name="edited"))
