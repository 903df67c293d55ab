"""OpenAI responses, read and written; the stream of events is in `_talk_responses_stream`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from chargehand.models.contract import Dialect, Stop, Usage
from chargehand.models.dialects.base import mapping, objects
from chargehand.models.dialects.conversation import (
    Asked,
    Blob,
    Broken,
    CallBegun,
    CallPiece,
    Choice,
    Ended,
    Offer,
    Part,
    Piece,
    Role,
    Said,
    Text,
    TextPiece,
    ThoughtPiece,
    ToolResult,
    ToolUse,
    Turn,
    UncarriedError,
    blob_from_url,
    data_url,
    merged,
    named,
    number,
    pieces_of,
    whole_number,
)
from chargehand.models.dialects.openai_responses import ResponsesRules

_RULES = ResponsesRules()
_REASONS: Mapping[str, Stop] = {"max_output_tokens": "length", "content_filter": "refusal"}
_WHY = {"length": "max_output_tokens", "refusal": "content_filter"}
_ENDS = ("response.completed", "response.incomplete", "response.failed")


class ResponsesReader:
    """Reads one reply."""

    def __init__(self) -> None:
        self._calls: dict[int, int] = {}
        self._told: set[int] = set()
        self._refused = False
        self._end: Ended | None = None

    def event(self, data: Mapping[str, Any]) -> list[Piece]:
        """Return what an event says."""
        kind, text = str(data.get("type", "")), str(data.get("delta") or "")
        place = int(data.get("output_index", 0))
        match kind:
            case "response.output_text.delta":
                return [TextPiece(text=text)]
            case "response.refusal.delta":
                self._refused = True
                return [TextPiece(text=text)]
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                return [ThoughtPiece(text=text)]
            case "response.output_item.added":
                return list(self._begun(place, mapping(data.get("item"))))
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
                self._told.add(place)
                return [CallPiece(index=self._calls[place], text=text)] if place in self._calls else []
            case "response.output_item.done":
                return list(self._done(place, mapping(data.get("item"))))
            case "error":
                return [Broken(message=str(data.get("message") or "error"))]
        return self._last(mapping(data.get("response"))) if kind in _ENDS else []

    def whole(self, document: Mapping[str, Any]) -> list[Piece]:
        """Return what a body says."""
        found: list[Piece] = []
        for place, item in enumerate(objects(document.get("output"))):
            match item.get("type"):
                case "message":
                    found += self._message(item)
                case "reasoning":
                    found += [ThoughtPiece(text=text) for text in _texts(item.get("summary")) if text]
                case _:
                    found += [*self._begun(place, item), *self._done(place, item)]
        return [*found, *self._last(document), *self.end()]

    def end(self) -> list[Piece]:
        """Return the end, where the model said that it is done."""
        return [self._end] if self._end is not None else []

    def _message(self, item: Mapping[str, Any]) -> Iterator[Piece]:
        for part in objects(item.get("content")):
            self._refused = self._refused or part.get("type") == "refusal"
            yield TextPiece(text=str(part.get("text") or part.get("refusal") or ""))

    def _begun(self, place: int, item: Mapping[str, Any]) -> Iterator[Piece]:
        if item.get("type") in ("function_call", "custom_tool_call") and place not in self._calls:
            index = self._calls[place] = len(self._calls)
            custom = item["type"] == "custom_tool_call"
            own = str(item.get("call_id") or item.get("id") or "")
            yield CallBegun(index=index, id=own, name=str(item.get("name", "")), custom=custom)

    def _done(self, place: int, item: Mapping[str, Any]) -> Iterator[Piece]:
        yield from self._begun(place, item)
        text = item.get("arguments") or item.get("input")
        if place in self._calls and place not in self._told and isinstance(text, str):
            self._told.add(place)
            yield CallPiece(index=self._calls[place], text=text)

    def _last(self, response: Mapping[str, Any]) -> list[Piece]:
        if response.get("status") == "failed" or response.get("error"):
            return [Broken(message=str(mapping(response.get("error")).get("message") or "the response failed"))]
        why = str(mapping(response.get("incomplete_details")).get("reason") or "")
        stop: Stop = "tools" if self._calls else "refusal" if self._refused else "end"
        self._end = Ended(stop=_REASONS.get(why, stop), usage=_RULES.metered(response).usage)
        return []


def _texts(parts: object) -> list[str]:
    return [str(part.get("text", "")) for part in objects(parts)]


class ResponsesWriter:
    """Writes one reply: each item is announced, filled and ended before the next one."""

    def __init__(self, model: str, id: str) -> None:
        self._id = id
        self._head = {"id": f"resp_{id}", "object": "response", "created_at": 0, "model": model}
        self._number = 0
        self._done: list[dict[str, Any]] = []
        self._item: dict[str, Any] | None = None
        self._open: object = None
        self._text = ""

    def event(self, piece: Piece) -> bytes:
        """Return the events of one piece."""
        match piece:
            case TextPiece():
                return self._begin("text") + self._more(piece.text)
            case ThoughtPiece():
                return self._begin("thought") + self._more(piece.text)
            case CallBegun():
                return self._begin(piece)
            case CallPiece():
                return self._more(piece.text)
            case Ended():
                return self._started() + self._finish() + self._last(piece)
            case Broken():
                return self._started() + self._failed(piece.message)

    def whole(self, said: Said) -> dict[str, Any]:
        """Return a reply in one piece."""
        writer = ResponsesWriter(str(self._head["model"]), self._id)
        for piece in pieces_of(said)[:-1]:
            writer.event(piece)
        writer._finish()
        return writer._document(said.stop, said.usage)

    def _say(self, kind: str, **fields: object) -> bytes:
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return f"event: {kind}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"

    def _started(self) -> bytes:
        if self._number:
            return b""
        blank = {**self._head, **_BLANK, "status": "in_progress", "output": [], "usage": None}
        return self._say("response.created", response=blank) + self._say("response.in_progress", response=blank)

    def _begin(self, what: CallBegun | str) -> bytes:
        if what == self._open:
            return b""
        out = self._started() + self._finish()
        place, own = len(self._done), f"{self._id}_{len(self._done) + 1}"
        self._open, self._text = what, ""
        if isinstance(what, CallBegun):
            kind = "custom_tool_call" if what.custom else "function_call"
            field = "input" if what.custom else "arguments"
            self._item = {"id": f"fc_{own}", "type": kind, "call_id": what.id, "name": what.name, field: ""}
        elif what == "text":
            self._item = {"id": f"msg_{own}", "type": "message", "role": "assistant", "content": []}
        else:
            self._item = {"id": f"rs_{own}", "type": "reasoning", "summary": []}
        self._item["status"] = "in_progress"
        out += self._say("response.output_item.added", output_index=place, item=self._item)
        if what == "text":
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            out += self._say("response.content_part.added", **self._where(), part=part)
        elif what == "thought":
            part = {"type": "summary_text", "text": ""}
            out += self._say("response.reasoning_summary_part.added", **self._where(), part=part)
        return out

    def _where(self) -> dict[str, Any]:
        assert self._item is not None
        where: dict[str, Any] = {"item_id": self._item["id"], "output_index": len(self._done)}
        if self._open == "text":
            where["content_index"] = 0
        elif self._open == "thought":
            where["summary_index"] = 0
        return where

    def _kind(self) -> str:
        if isinstance(self._open, CallBegun):
            return "custom_tool_call_input" if self._open.custom else "function_call_arguments"
        return "output_text" if self._open == "text" else "reasoning_summary_text"

    def _more(self, text: str) -> bytes:
        self._text += text
        listed: dict[str, Any] = {"logprobs": []} if self._open == "text" else {}
        return self._say(f"response.{self._kind()}.delta", **self._where(), delta=text, **listed)

    def _finish(self) -> bytes:
        if self._item is None:
            return b""
        item, text, where = self._item, self._text, self._where()
        if isinstance(self._open, CallBegun):
            field = "input" if self._open.custom else "arguments"
            item[field] = text if self._open.custom else text or "{}"
            out = self._say(f"response.{self._kind()}.done", **where, **{field: item[field], "name": item["name"]})
        elif self._open == "text":
            part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            item["content"] = [part]
            out = self._say("response.output_text.done", **where, text=text, logprobs=[])
            out += self._say("response.content_part.done", **where, part=part)
        else:
            part = {"type": "summary_text", "text": text}
            item["summary"] = [part]
            out = self._say("response.reasoning_summary_text.done", **where, text=text)
            out += self._say("response.reasoning_summary_part.done", **where, part=part)
        item["status"] = "completed"
        out += self._say("response.output_item.done", output_index=len(self._done), item=item)
        self._done.append(item)
        self._item = self._open = None
        return out

    def _last(self, piece: Ended) -> bytes:
        document = self._document(piece.stop, piece.usage or Usage())
        return self._say(f"response.{document['status']}", response=document)

    def _failed(self, message: str) -> bytes:
        error = msgspec.json.decode(_RULES.error(502, "upstream_error", message))["error"]
        document = {**self._document("end", Usage()), "status": "failed", "error": error}
        return self._say("response.failed", response=document)

    def _document(self, stop: Stop, usage: Usage) -> dict[str, Any]:
        why = _WHY.get(stop)
        short = {"status": "incomplete", "incomplete_details": {"reason": why}} if why else {"status": "completed"}
        return {**self._head, **_BLANK, **short, "output": self._done, "usage": _usage(usage)}


_BLANK: Mapping[str, Any] = {
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": None,
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
}


def _usage(usage: Usage) -> dict[str, Any]:
    read, written = usage.input or 0, usage.output or 0
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": usage.cached or 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + written,
    }


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
