"""OpenAI responses: conversations and replies, to and from their dialect-neutral form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from chargehand.models import conversation as neutral
from chargehand.models._json import as_limit, as_mapping, as_mappings, as_number, dump_json, parse_json
from chargehand.models.contract import StopReason, Usage
from chargehand.models.conversation import NeutralReply, NeutralRequest, UntranslatableError
from chargehand.models.dialects.base import ModelDialect, WireRequest, error_message
from chargehand.models.dialects.reasoning import takes_effort, write_effort
from chargehand.models.dialects.unread import Shape, list_unread

# The type of a group of tools, which no other dialect has: clients work well without theirs.
TOOL_GROUP = "namespace"
# Further fields, passed on to dialects that have them.
_HINTS = frozenset({"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"})
_PART: Shape = {
    **dict.fromkeys(("type", "text", "refusal", "image_url", "detail", "file_data", "file_url", "filename")),
    "prompt_cache_breakpoint": None,
}
_NAMED = {"type": None, "name": None, "description": None}
_READ: Shape = {
    "input": {
        **dict.fromkeys(("type", "role", "call_id", "name", "arguments", "input")),
        "content": _PART,
        "output": _PART,
        # An item's own id and state mean nothing outside the provider that set them.
        **dict.fromkeys(("id", "status")),
        "summary": {"type": None, "text": None},
        # Reported as `reasoning`, together with its item.
        "encrypted_content": None,
    },
    "tools": {**_NAMED, "parameters": None, "strict": None, "format": None, "tools": None},
    "text": {"format": {**_NAMED, "schema": None, "strict": None}, "verbosity": None},
    "reasoning": {"effort": None, "summary": None, "generate_summary": None},
    "stream_options": {"include_obfuscation": None},
    **dict.fromkeys(("instructions", "model", "stream", "tool_choice", "parallel_tool_calls", "store")),
    **dict.fromkeys(("max_output_tokens", "temperature", "top_p")),
    **dict.fromkeys(_HINTS),
}
_TEXT = {"type": None, "text": None, "refusal": None}
_OUTPUT: Shape = {
    **dict.fromkeys(("id", "type", "status", "role", "call_id", "name", "arguments", "input")),
    "content": _TEXT,
    "summary": _TEXT,
}
_CARRIED = _HINTS | {"verbosity", "detail", "file_detail", "file_name", "strict", "parallel"}
_REASONS: Mapping[str, StopReason] = {"max_output_tokens": "length", "content_filter": "refusal"}
_WHY: Mapping[StopReason, str] = {stop: reason for reason, stop in _REASONS.items()}
# Fields that official clients require of a response, and that replies of other dialects lack.
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


def read_responses_request(body: Mapping[str, Any]) -> NeutralRequest:
    """Read a request; encrypted reasoning is left out, since only its own provider can read it."""
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else as_mappings(given)
    system = [body["instructions"]] if isinstance(body.get("instructions"), str) else []
    turns = []
    for item in items:
        turn = _read_item(item)
        if turn is None:
            system.extend(
                part.text for part in _read_parts(item.get("content")) if isinstance(part, neutral.TextPart)
            )
        else:
            turns.append(turn)
    choice, chosen = _read_choice(body.get("tool_choice"))
    text = as_mapping(body.get("text"))
    asked = as_mapping(body.get("reasoning"))
    shape = as_mapping(text.get("format"))
    hints = {**body, "verbosity": text.get("verbosity")}
    effort = asked.get("effort")
    summary = asked.get("summary") or asked.get("generate_summary")
    parallel = body.get("parallel_tool_calls")
    offered = as_mappings(body.get("tools"))
    tools = [tool for tool in offered if tool.get("type") != TOOL_GROUP]
    left = list(list_unread(body, _READ))
    left += ["reasoning"] if any(item.get("encrypted_content") for item in items) else []
    left += [f"tools.{TOOL_GROUP}"] if len(tools) < len(offered) else []
    return NeutralRequest(
        turns=neutral.join_turns(turns),
        system=tuple(text for text in system if text),
        tools=tuple(map(_read_tool, tools)),
        choice=choice,
        chosen=chosen,
        parallel=parallel if isinstance(parallel, bool) else None,
        limit=as_limit(body.get("max_output_tokens")),
        temperature=as_number(body.get("temperature")),
        top_p=as_number(body.get("top_p")),
        schema=neutral.read_reply_schema(shape),
        json=shape.get("type") in ("json_object", "json_schema"),
        reasoning=neutral.ReasoningRequest(
            effort=effort if isinstance(effort, str) else None,
            summary=summary if isinstance(summary, str) else None,
        ),
        hints={name: hints[name] for name in sorted(_HINTS | {"verbosity"}) if hints.get(name) is not None},
        stream=body.get("stream") is True,
        left_out=tuple(left),
    )


def write_responses_request(request: NeutralRequest, model: str) -> WireRequest:
    """Write a request that is not stored; raises `UntranslatableError` for stop words, which do not exist here."""
    if request.stop:
        raise UntranslatableError("stop", "OpenAI's responses have no stop sequences")
    left = neutral.find_features(request) - _CARRIED
    items = [item for turn in neutral.spell_out_contexts(request.turns) for item in _write_items(turn)]
    body: dict[str, Any] = {"model": model, "input": items, "stream": request.stream, "store": False}
    if request.system:
        body["instructions"] = "\n\n".join(request.system)
    if request.tools:
        body["tools"] = [
            {"type": "custom", "name": tool.name, "description": tool.description}
            if tool.custom
            else {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.schema or {"type": "object", "properties": {}},
                # By default this dialect is strict, and the others are not.
                "strict": tool.strict is True,
            }
            for tool in request.tools
        ]
    if request.choice is not None and request.tools:
        kind = "custom" if request.chosen in request.custom else "function"
        chosen = {"type": kind, "name": request.chosen}
        body["tool_choice"] = chosen if request.choice == "tool" else request.choice
    text: dict[str, Any] = {"verbosity": request.hints["verbosity"]} if "verbosity" in request.hints else {}
    if request.schema is not None:
        text["format"] = {"type": "json_schema", **neutral.write_reply_schema(request.schema)}
    elif request.json:
        text["format"] = {"type": "json_object"}
    asked = request.reasoning
    effort = write_effort(asked, model, left)
    if asked.summary and not takes_effort(model):
        left.add("summary")
    reasoning = {"effort": effort, "summary": asked.summary if takes_effort(model) else None}
    hints = {
        "parallel_tool_calls": request.parallel if request.tools else None,
        "max_output_tokens": request.limit,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "text": text or None,
        "reasoning": {name: value for name, value in reasoning.items() if value is not None} or None,
        **{name: value for name, value in request.hints.items() if name in _HINTS},
    }
    return WireRequest(body | {name: value for name, value in hints.items() if value is not None}, tuple(left))


def _read_item(item: Mapping[str, Any]) -> neutral.ConversationTurn | None:
    """Return the turn of an item, or `None` if it belongs to the system's part."""
    role: neutral.ConversationRole = "user"
    parts: tuple[neutral.ConversationPart, ...] = ()
    own = str(item.get("call_id", ""))
    name = str(item.get("name", ""))
    match item.get("type", "message"):
        case "message":
            if item.get("role") in ("system", "developer"):
                return None
            role = "assistant" if item.get("role") == "assistant" else "user"
            parts = tuple(_read_parts(item.get("content")))
        case "function_call":
            role = "assistant"
            parts = (neutral.ToolCallPart(id=own, name=name, arguments=str(item.get("arguments") or "")),)
        case "custom_tool_call":
            role = "assistant"
            parts = (neutral.ToolCallPart(id=own, name=name, arguments=str(item.get("input") or ""), custom=True),)
        case "function_call_output" | "custom_tool_call_output" as kind:
            content = tuple(_read_parts(item.get("output")))
            parts = (neutral.ToolResultPart(id=own, content=content, custom=kind.startswith("custom")),)
        case "reasoning":
            role = "assistant"
            texts = (str(part.get("text", "")) for part in as_mappings(item.get("summary")))
            if not item.get("encrypted_content"):
                parts = tuple(neutral.ThoughtPart(text=text) for text in texts if text)
        case kind:
            message = f"an item of type {kind!r:.40} has no equivalent in another dialect"
            raise UntranslatableError(str(kind), message)
    return neutral.ConversationTurn(role=role, parts=parts)


def _read_parts(content: object) -> Iterator[neutral.TextPart | neutral.FilePart]:
    if isinstance(content, str):
        if content:
            yield neutral.TextPart(text=content)
        return
    for part in as_mappings(content):
        cached = bool(part.get("prompt_cache_breakpoint"))
        match part.get("type"):
            case "input_text" | "output_text" | "text" | "summary_text":
                yield neutral.TextPart(text=str(part.get("text", "")), cached=cached)
            case "refusal":
                yield neutral.TextPart(text=str(part.get("refusal", "")))
            case "input_image":
                detail = neutral.read_detail(part.get("detail"))
                yield replace(neutral.file_from_url(part.get("image_url")), detail=detail, cached=cached)
            case "input_file":
                where = part.get("file_data") or part.get("file_url")
                file = neutral.file_from_url(where, kind="file", name=str(part.get("filename", "")))
                yield replace(file, detail=neutral.read_detail(part.get("detail")), cached=cached)
            case kind:
                message = f"a part of type {kind!r:.40} has no equivalent in another dialect"
                raise UntranslatableError(str(kind), message)


def _read_tool(tool: Mapping[str, Any]) -> neutral.OfferedTool:
    name = str(tool.get("name", ""))
    text = str(tool.get("description") or "")
    if tool.get("type") != "custom":
        return neutral.OfferedTool(
            name=name,
            description=text,
            schema=as_mapping(tool.get("parameters")),
            strict=neutral.read_flag(tool.get("strict")),
        )
    return neutral.offer_custom_tool(name, text, as_mapping(tool.get("format")).get("definition"))


def _read_choice(choice: object) -> tuple[neutral.ToolChoice | None, str]:
    match choice:
        case "auto" | "none" | "required":
            return choice, ""
        case {"type": "function" | "custom", "name": str(name)}:
            return "tool", name
        case None:
            return None, ""
    raise UntranslatableError("tool_choice", f"tool_choice {choice!r:.80} has no equivalent in another dialect")


def _write_items(turn: neutral.ConversationTurn) -> Iterator[dict[str, Any]]:
    """Yield the items of a turn; text and pictures between calls become a separate message."""
    waiting: list[dict[str, Any]] = []
    for part in turn.parts:
        if isinstance(part, neutral.TextPart | neutral.FilePart):
            waiting.append(_write_part(part, turn.role))
            continue
        if isinstance(part, neutral.ThoughtPart):
            continue
        if waiting:
            yield {"type": "message", "role": turn.role, "content": waiting}
            waiting = []
        if isinstance(part, neutral.ToolCallPart):
            kind, field = ("custom_tool_call", "input") if part.custom else ("function_call", "arguments")
            text = part.arguments if part.custom else part.arguments or "{}"
            yield {"type": kind, "call_id": part.id, "name": part.name, field: text}
        else:
            kind = "custom_tool_call_output" if part.custom else "function_call_output"
            output: Any = [_write_part(one, "user") for one in part.content] if part.blobs else part.text
            yield {"type": kind, "call_id": part.id, "output": output}
    if waiting:
        yield {"type": "message", "role": turn.role, "content": waiting}


def _write_part(part: neutral.TextPart | neutral.FilePart, role: neutral.ConversationRole) -> dict[str, Any]:
    if isinstance(part, neutral.TextPart):
        return {"type": "output_text" if role == "assistant" else "input_text", "text": part.text}
    if role == "assistant":
        raise UntranslatableError("image", "responses take no picture that a model made")
    if part.kind == "image":
        return {"type": "input_image", "image_url": neutral.data_url(part), "detail": part.detail or "auto"}
    held = {"detail": part.detail} if part.detail else {}
    if part.url:
        named = {"filename": part.name} if part.name else {}
        return {"type": "input_file", "file_url": part.url, **named, **held}
    return {"type": "input_file", "filename": part.name or "file", "file_data": neutral.data_url(part), **held}


class ResponsesReader:
    """Reads one reply: items, whole or as a stream of named events."""

    def __init__(self, dialect: ModelDialect) -> None:
        self._dialect = dialect
        self._calls: dict[int, int] = {}
        self._filled: set[int] = set()
        self._refused = False
        self.left_out = set[str]()
        self._end: neutral.ReplyEnd | None = None

    def read_event(self, data: Mapping[str, Any]) -> list[neutral.ReplyDelta]:
        """Return the deltas of an event."""
        kind = str(data.get("type", ""))
        text = str(data.get("delta") or "")
        place = int(data.get("output_index", 0))
        match kind:
            case "response.output_text.delta":
                return [neutral.TextDelta(text=text)]
            case "response.refusal.delta":
                self._refused = True
                return [neutral.TextDelta(text=text)]
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                return [neutral.ThinkingDelta(text=text)]
            case "response.output_item.added":
                return list(self._read_call_start(place, as_mapping(data.get("item"))))
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
                self._filled.add(place)
                return [neutral.ToolCallDelta(index=self._calls[place], text=text)] if place in self._calls else []
            case "response.output_item.done":
                return list(self._read_call(place, as_mapping(data.get("item"))))
            case "error":
                return [neutral.ReplyError(message=str(data.get("message") or "error"))]
            case "response.completed" | "response.incomplete" | "response.failed":
                return self._read_end(as_mapping(data.get("response")))
        return []

    def read_whole(self, document: Mapping[str, Any]) -> list[neutral.ReplyDelta]:
        """Return the deltas of a body."""
        found: list[neutral.ReplyDelta] = []
        for place, item in enumerate(as_mappings(document.get("output"))):
            match item.get("type"):
                case "message":
                    for part in as_mappings(item.get("content")):
                        self._refused = self._refused or part.get("type") == "refusal"
                        found.append(neutral.TextDelta(text=str(part.get("text") or part.get("refusal") or "")))
                case "reasoning":
                    said = as_mappings(item.get("summary")) or as_mappings(item.get("content"))
                    texts = (str(part.get("text", "")) for part in said)
                    found += [neutral.ThinkingDelta(text=text) for text in texts if text]
                case _:
                    found += self._read_call(place, item)
        return [*found, *self._read_end(document), *self.finish()]

    def finish(self) -> list[neutral.ReplyDelta]:
        """Return the end if the model said that it is done."""
        return [self._end] if self._end is not None else []

    def _read_call_start(self, place: int, item: Mapping[str, Any]) -> Iterator[neutral.ReplyDelta]:
        if item.get("type") in ("function_call", "custom_tool_call") and place not in self._calls:
            index = self._calls[place] = len(self._calls)
            custom = item["type"] == "custom_tool_call"
            own = str(item.get("call_id") or item.get("id") or "")
            yield neutral.ToolCallStart(index=index, id=own, name=str(item.get("name", "")), custom=custom)

    def _read_call(self, place: int, item: Mapping[str, Any]) -> Iterator[neutral.ReplyDelta]:
        """Yield the parts of a whole call that did not arrive in pieces before: some providers send no pieces."""
        yield from self._read_call_start(place, item)
        text = item.get("arguments") or item.get("input")
        if place in self._calls and place not in self._filled and isinstance(text, str):
            self._filled.add(place)
            yield neutral.ToolCallDelta(index=self._calls[place], text=text)

    def _read_end(self, response: Mapping[str, Any]) -> list[neutral.ReplyDelta]:
        if response.get("status") == "failed" or response.get("error"):
            return [neutral.ReplyError(message=error_message(response, "the response failed"))]
        self.left_out.update(list_unread(response.get("output"), _OUTPUT, "output"))
        why = str(as_mapping(response.get("incomplete_details")).get("reason") or "")
        stop: StopReason = "tools" if self._calls else "refusal" if self._refused else "end"
        self._end = neutral.ReplyEnd(stop=_REASONS.get(why, stop), usage=self._dialect.read_usage(response).usage)
        return []


class ResponsesWriter:
    """Writes one reply: each item is announced, filled and ended before the next one."""

    def __init__(self, dialect: ModelDialect, model: str, id: str) -> None:
        self._dialect = dialect
        self._id = id
        self._head = {"id": f"resp_{id}", "object": "response", "created_at": 0, "model": model}
        self._number = 0
        self._done: list[dict[str, Any]] = []
        self._item: dict[str, Any] | None = None
        self._open: neutral.ToolCallStart | str | None = None
        self._text = ""

    def write_delta(self, delta: neutral.ReplyDelta) -> bytes:
        """Return the events for one delta."""
        match delta:
            case neutral.TextDelta():
                return self._begin_item("text") + self._write_more(delta.text)
            case neutral.ThinkingDelta():
                return self._begin_item("thought") + self._write_more(delta.text)
            case neutral.ToolCallStart():
                return self._begin_item(delta)
            case neutral.ToolCallDelta():
                return self._write_more(delta.text)
            case neutral.ReplyEnd():
                out = self._begin_reply() + self._finish_item()
                document = self._write_document(delta.stop, delta.usage or Usage())
                return out + self._write_event(f"response.{document['status']}", response=document)
            case neutral.ReplyError():
                out = self._begin_reply()
                error = parse_json(self._dialect.write_error(502, "upstream_error", delta.message))["error"]
                document = {**self._write_document("end", Usage()), "status": "failed", "error": error}
                return out + self._write_event("response.failed", response=document)

    def write_whole(self, reply: NeutralReply) -> dict[str, Any]:
        """Return a reply in one piece."""
        writer = ResponsesWriter(self._dialect, str(self._head["model"]), self._id)
        for delta in neutral.reply_deltas(reply)[:-1]:
            writer.write_delta(delta)
        writer._finish_item()
        return writer._write_document(reply.stop, reply.usage)

    def _write_event(self, kind: str, **fields: object) -> bytes:
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return f"event: {kind}\ndata: ".encode() + dump_json(data) + b"\n\n"

    def _begin_reply(self) -> bytes:
        if self._number:
            return b""
        blank = {**self._head, **_BLANK, "status": "in_progress", "output": [], "usage": None}
        created = self._write_event("response.created", response=blank)
        return created + self._write_event("response.in_progress", response=blank)

    def _begin_item(self, what: neutral.ToolCallStart | str) -> bytes:
        if what == self._open:
            return b""
        out = self._begin_reply() + self._finish_item()
        place = len(self._done)
        own = f"{self._id}_{len(self._done) + 1}"
        self._open = what
        self._text = ""
        if isinstance(what, neutral.ToolCallStart):
            kind = "custom_tool_call" if what.custom else "function_call"
            field = "input" if what.custom else "arguments"
            self._item = {"id": f"fc_{own}", "type": kind, "call_id": what.id, "name": what.name, field: ""}
        elif what == "text":
            self._item = {"id": f"msg_{own}", "type": "message", "role": "assistant", "content": []}
        else:
            self._item = {"id": f"rs_{own}", "type": "reasoning", "summary": []}
        self._item["status"] = "in_progress"
        out += self._write_event("response.output_item.added", output_index=place, item=self._item)
        if what == "text":
            part = _text_part("")
            out += self._write_event("response.content_part.added", **self._locate_part(), part=part)
        elif what == "thought":
            part = {"type": "summary_text", "text": ""}
            out += self._write_event("response.reasoning_summary_part.added", **self._locate_part(), part=part)
        return out

    def _locate_part(self) -> dict[str, Any]:
        assert self._item is not None
        where: dict[str, Any] = {"item_id": self._item["id"], "output_index": len(self._done)}
        if self._open == "text":
            where["content_index"] = 0
        elif self._open == "thought":
            where["summary_index"] = 0
        return where

    def _name_part(self) -> str:
        if isinstance(self._open, neutral.ToolCallStart):
            return "custom_tool_call_input" if self._open.custom else "function_call_arguments"
        return "output_text" if self._open == "text" else "reasoning_summary_text"

    def _write_more(self, text: str) -> bytes:
        self._text += text
        listed: dict[str, Any] = {"logprobs": []} if self._open == "text" else {}
        return self._write_event(
            f"response.{self._name_part()}.delta", **self._locate_part(), delta=text, **listed
        )

    def _finish_item(self) -> bytes:
        if self._item is None:
            return b""
        item = self._item
        text = self._text
        where = self._locate_part()
        done = f"response.{self._name_part()}.done"
        if isinstance(self._open, neutral.ToolCallStart):
            field = "input" if self._open.custom else "arguments"
            item[field] = text if self._open.custom else text or "{}"
            out = self._write_event(done, **where, **{field: item[field], "name": item["name"]})
        elif self._open == "text":
            part = _text_part(text)
            item["content"] = [part]
            out = self._write_event(done, **where, text=text, logprobs=[])
            out += self._write_event("response.content_part.done", **where, part=part)
        else:
            part = {"type": "summary_text", "text": text}
            item["summary"] = [part]
            out = self._write_event(done, **where, text=text)
            out += self._write_event("response.reasoning_summary_part.done", **where, part=part)
        item["status"] = "completed"
        out += self._write_event("response.output_item.done", output_index=len(self._done), item=item)
        self._done.append(item)
        self._item = self._open = None
        return out

    def _write_document(self, stop: StopReason, usage: Usage) -> dict[str, Any]:
        why = _WHY.get(stop)
        short = {"status": "incomplete", "incomplete_details": {"reason": why}} if why else {"status": "completed"}
        read = usage.input or 0
        written = usage.output or 0
        counts = {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": usage.cached or 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        }
        return {**self._head, **_BLANK, **short, "output": self._done, "usage": counts}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
