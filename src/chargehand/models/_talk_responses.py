"""OpenAI responses, read and written; the stream of events is in `_talk_responses_stream`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chargehand.models._contract import Dialect
from chargehand.models._gateway_dialect import mapping, objects
from chargehand.models._talk import (
    Asked,
    Blob,
    Choice,
    Offer,
    Part,
    Role,
    Text,
    ToolResult,
    ToolUse,
    Turn,
    UncarriedError,
    blob_from_url,
    data_url,
    merged,
    named,
    number,
    whole_number,
)
from chargehand.models._talk_responses_stream import ResponsesReader, ResponsesWriter

_CARRIED = frozenset(
    {"input", "instructions", "model", "stream", "tools", "tool_choice", "parallel_tool_calls", "text"}
    | {"max_output_tokens", "temperature", "top_p", "reasoning", "store", "include"}
)
_NAMESPACE = "namespace"


class ResponsesCodec:
    """Responses."""

    name: Dialect = "responses"

    def asked(self, body: Mapping[str, Any]) -> Asked:
        """Read a request; reasoning items are left out: they are encrypted for their own provider."""
        given = body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else objects(given)
        system = [body["instructions"]] if isinstance(body.get("instructions"), str) else []
        turns = []
        for item in items:
            turn = _read_item(item)
            if turn is None:
                system.extend(part.text for part in _read_parts(item.get("content")) if isinstance(part, Text))
            else:
                turns.append(turn)
        choice, chosen = _read_choice(body.get("tool_choice"))
        shape = mapping(mapping(body.get("text")).get("format"))
        parallel = body.get("parallel_tool_calls")
        left = [name for name in body if name not in _CARRIED]
        left += ["reasoning"] if any(item.get("type") == "reasoning" for item in items) else []
        left += sorted({f"tools.{_NAMESPACE}" for tool in objects(body.get("tools")) if _grouped(tool)})
        return Asked(
            turns=named(merged(turns)),
            system=tuple(text for text in system if text),
            tools=tuple(_read_tools(body.get("tools"))),
            choice=choice,
            chosen=chosen,
            parallel=parallel if isinstance(parallel, bool) else None,
            limit=whole_number(body.get("max_output_tokens")),
            temperature=number(body.get("temperature")),
            top_p=number(body.get("top_p")),
            schema=mapping(shape.get("schema")) or None,
            json=shape.get("type") in ("json_object", "json_schema"),
            effort=mapping(body.get("reasoning")).get("effort"),
            stream=body.get("stream") is True,
            left_out=tuple(sorted(left)),
        )

    def body(self, asked: Asked, model: str) -> dict[str, Any]:
        """Write a request that nobody keeps; raises `UncarriedError` for stop words, which it does not know."""
        if asked.stop:
            raise UncarriedError("stop", "responses know no stop words")
        items = [item for turn in asked.turns for item in _items(turn)]
        body: dict[str, Any] = {"model": model, "input": items, "stream": asked.stream, "store": False}
        if asked.system:
            body["instructions"] = "\n\n".join(asked.system)
        if asked.tools:
            body["tools"] = [_tool(tool) for tool in asked.tools]
        if asked.choice is not None and asked.tools:
            kind = "custom" if asked.chosen in asked.custom else "function"
            chosen = {"type": kind, "name": asked.chosen}
            body["tool_choice"] = chosen if asked.choice == "tool" else asked.choice
        if asked.schema is not None:
            shape = {"type": "json_schema", "name": "reply", "schema": asked.schema}
            body["text"] = {"format": shape}
        elif asked.json:
            body["text"] = {"format": {"type": "json_object"}}
        hints = {
            "parallel_tool_calls": asked.parallel if asked.tools else None,
            "max_output_tokens": asked.limit,
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "reasoning": {"effort": asked.effort} if asked.effort else None,
        }
        return body | {name: value for name, value in hints.items() if value is not None}

    def reader(self, seed: str) -> ResponsesReader:
        """Return the reader of one reply."""
        return ResponsesReader()

    def writer(self, model: str, id: str) -> ResponsesWriter:
        """Return the writer of one reply."""
        return ResponsesWriter(model, id)


def _read_item(item: Mapping[str, Any]) -> Turn | None:
    """Return what an item says, `None` where it is for the system's part."""
    own = str(item.get("call_id", ""))
    match item.get("type", "message"):
        case "message" if item.get("role") in ("system", "developer"):
            return None
        case "message":
            role: Role = "assistant" if item.get("role") == "assistant" else "user"
            return Turn(role=role, parts=tuple(_read_parts(item.get("content"))))
        case "function_call":
            arguments = str(item.get("arguments") or "")
            return _assistant(ToolUse(id=own, name=str(item.get("name", "")), arguments=arguments))
        case "custom_tool_call":
            text = str(item.get("input") or "")
            return _assistant(ToolUse(id=own, name=str(item.get("name", "")), arguments=text, custom=True))
        case "function_call_output":
            content = tuple(_read_parts(item.get("output")))
            return Turn(role="user", parts=(ToolResult(id=own, content=content),))
        case "custom_tool_call_output":
            content = tuple(_read_parts(item.get("output")))
            return Turn(role="user", parts=(ToolResult(id=own, content=content, custom=True),))
        case "reasoning":
            return Turn(role="assistant", parts=())
        case kind:
            raise UncarriedError(str(kind), f"an item of type {kind!r:.40} means nothing to another dialect")


def _assistant(part: Part) -> Turn:
    return Turn(role="assistant", parts=(part,))


def _read_parts(content: object) -> Iterator[Text | Blob]:
    if isinstance(content, str):
        if content:
            yield Text(text=content)
        return
    for part in objects(content):
        match part.get("type"):
            case "input_text" | "output_text" | "text" | "summary_text":
                yield Text(text=str(part.get("text", "")))
            case "refusal":
                yield Text(text=str(part.get("refusal", "")))
            case "input_image":
                yield blob_from_url(part.get("image_url"))
            case "input_file":
                where = part.get("file_data") or part.get("file_url")
                yield blob_from_url(where, kind="file", name=str(part.get("filename", "")))
            case kind:
                raise UncarriedError(str(kind), f"a part of type {kind!r:.40} means nothing to another dialect")


def _read_tools(tools: object) -> Iterator[Offer]:
    for tool in objects(tools):
        if _grouped(tool):
            continue
        name, text = str(tool.get("name", "")), str(tool.get("description") or "")
        if tool.get("type") == "custom":
            grammar = mapping(tool.get("format")).get("definition")
            told = f"{text}\n\nThe input follows this grammar:\n{grammar}" if grammar else text
            yield Offer(name=name, description=told, custom=True)
        else:
            yield Offer(name=name, description=text, schema=mapping(tool.get("parameters")))


def _grouped(tool: Mapping[str, Any]) -> bool:
    """Tell whether this is a group of tools, which no other dialect has: clients do well without theirs."""
    return tool.get("type") == _NAMESPACE


def _read_choice(choice: object) -> tuple[Choice | None, str]:
    match choice:
        case "auto" | "none" | "required":
            return choice, ""
        case {"type": "function" | "custom", "name": str(name)}:
            return "tool", name
        case None:
            return None, ""
    raise UncarriedError("tool_choice", f"tool_choice {choice!r:.80} means nothing to another dialect")


def _tool(tool: Offer) -> dict[str, Any]:
    if tool.custom:
        return {"type": "custom", "name": tool.name, "description": tool.description}
    shape = tool.schema or {"type": "object", "properties": {}}
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": shape,
        "strict": False,
    }


def _items(turn: Turn) -> Iterator[dict[str, Any]]:
    """Yield the items of a turn; words and pictures between calls become a message of their own."""
    waiting: list[Text | Blob] = []
    for part in turn.parts:
        if isinstance(part, Text | Blob):
            waiting.append(part)
            continue
        if waiting:
            yield _message(turn, waiting)
            waiting = []
        yield _call(part) if isinstance(part, ToolUse) else _result(part)
    if waiting:
        yield _message(turn, waiting)


def _message(turn: Turn, parts: list[Text | Blob]) -> dict[str, Any]:
    return {"type": "message", "role": turn.role, "content": [_part(part, turn.role) for part in parts]}


def _part(part: Text | Blob, role: str) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "output_text" if role == "assistant" else "input_text", "text": part.text}
    if role == "assistant":
        raise UncarriedError("image", "responses take no picture that a model made")
    if part.kind == "image":
        return {"type": "input_image", "image_url": data_url(part), "detail": "auto"}
    if part.url:
        return {"type": "input_file", "file_url": part.url}
    return {"type": "input_file", "filename": part.name or "file", "file_data": data_url(part)}


def _call(call: ToolUse) -> dict[str, Any]:
    if call.custom:
        return {"type": "custom_tool_call", "call_id": call.id, "name": call.name, "input": call.arguments}
    return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments or "{}"}


def _result(result: ToolResult) -> dict[str, Any]:
    kind = "custom_tool_call_output" if result.custom else "function_call_output"
    output: Any = result.text
    if result.blobs:
        output = [_part(part, "user") for part in result.content]
    return {"type": kind, "call_id": result.id, "output": output}
