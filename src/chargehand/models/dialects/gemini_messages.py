"""Gemini's own dialect: conversations and replies, to and from their dialect-neutral form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from chargehand.models import conversation as neutral
from chargehand.models._json import as_limit, as_mapping, as_mappings, as_number, as_texts, dump_json
from chargehand.models.contract import StopReason, Usage
from chargehand.models.conversation import NeutralReply, NeutralRequest, UntranslatableError
from chargehand.models.dialects.base import ModelDialect, WireRequest, error_message
from chargehand.models.dialects.reasoning import GEMINI_LEVELS, gemini_budget, takes_level
from chargehand.models.dialects.unread import Shape, list_unread

# Further fields of `generationConfig`, with their names in the dialects that have them.
HINTS = {
    "topK": "top_k",
    "seed": "seed",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
}
_CALL = dict.fromkeys(("id", "name", "args"))
_FILE = dict.fromkeys(("mimeType", "data", "fileUri", "displayName"))
_PART: dict[str, Any] = {
    **dict.fromkeys(("text", "thought")),
    "inlineData": _FILE,
    "fileData": _FILE,
    "functionCall": _CALL,
    "functionResponse": dict.fromkeys(("id", "name", "response", "parts")),
}
_READ: Shape = {
    "contents": {"role": None, "parts": _PART},
    "systemInstruction": {"role": None, "parts": {"text": None}},
    "tools": {
        "functionDeclarations": dict.fromkeys(("name", "description", "parameters", "parametersJsonSchema"))
    },
    "toolConfig": {"functionCallingConfig": {"mode": None, "allowedFunctionNames": None}},
    "generationConfig": {
        **dict.fromkeys(("maxOutputTokens", "temperature", "topP", "stopSequences", "candidateCount")),
        **dict.fromkeys(("responseMimeType", "responseSchema", "responseJsonSchema", "mediaResolution")),
        "thinkingConfig": dict.fromkeys(("thinkingBudget", "thinkingLevel", "includeThoughts")),
        **dict.fromkeys(HINTS),
    },
    "model": None,
    "stream": None,
}
_CARRIED = frozenset({"failed", "detail", *HINTS.values()})
_REPLY: Shape = {
    "candidates": {
        "content": {"role": None, "parts": {"text": None, "thought": None, "functionCall": _CALL}},
        **dict.fromkeys(("finishReason", "finishMessage", "index", "tokenCount")),
    },
    **dict.fromkeys(("usageMetadata", "promptFeedback", "error")),
    # The reply's own metadata, which means nothing outside its provider.
    **dict.fromkeys(("modelVersion", "responseId", "createTime", "modelStatus")),
}
_RESOLUTIONS = {"low": "MEDIA_RESOLUTION_LOW", "high": "MEDIA_RESOLUTION_HIGH"}
_DETAILS = {word: detail for detail, word in _RESOLUTIONS.items()}
_EFFORTS = {level: effort for effort, level in reversed(list(GEMINI_LEVELS.items()))} | {"XHIGH": "xhigh"}
_CHOICES: Mapping[str, neutral.ToolChoice] = {
    "AUTO": "auto",
    "NONE": "none",
    "ANY": "required",
    "VALIDATED": "auto",
}
_MODES: Mapping[neutral.ToolChoice, str] = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
# The replacement for a signature if another model made the call, by Google's page on thought signatures.
_ANY_SIGNATURE = "skip_thought_signature_validator"
_JSON = "application/json"
_STOPS: Mapping[str, StopReason] = {"STOP": "end", "MAX_TOKENS": "length"}
_FINISH_REASONS: Mapping[StopReason, str] = {
    "end": "STOP",
    "tools": "STOP",
    "length": "MAX_TOKENS",
    "refusal": "SAFETY",
}
# Ends with which Gemini says that the model wrote no usable reply.
_UNUSABLE = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"})


def read_contents_request(body: Mapping[str, Any]) -> NeutralRequest:
    """Read a request; reasoning is left out, since it is signed for its own provider."""
    config = as_mapping(body.get("generationConfig"))
    if config.get("candidateCount") not in (None, 1):
        message = "several replies at once cannot be asked of another dialect"
        raise UntranslatableError("candidateCount", message)
    system = as_mappings(as_mapping(body.get("systemInstruction")).get("parts"))
    choice, chosen = _read_choice(as_mapping(as_mapping(body.get("toolConfig")).get("functionCallingConfig")))
    schema = config.get("responseJsonSchema") or _read_schema(config.get("responseSchema"))
    contents = as_mappings(body.get("contents"))
    declared = (as_mappings(tool.get("functionDeclarations")) for tool in as_mappings(body.get("tools")))
    signed = any(
        part.get("thoughtSignature") for content in contents for part in as_mappings(content.get("parts"))
    )
    left = [name for name in list_unread(body, _READ) if name != "contents.parts.thoughtSignature"]
    left += ["reasoning"] if signed else []
    calling = as_mapping(as_mapping(body.get("toolConfig")).get("functionCallingConfig"))
    left += ["toolConfig.functionCallingConfig.mode"] if calling.get("mode") == "VALIDATED" else []
    some = bool(calling.get("allowedFunctionNames")) and choice != "tool"
    left += ["toolConfig.functionCallingConfig.allowedFunctionNames"] if some else []
    thinking = as_mapping(config.get("thinkingConfig"))
    level = thinking.get("thinkingLevel")
    budget = thinking.get("thinkingBudget")
    left += ["generationConfig.thinkingConfig.thinkingLevel"] if level and level not in _EFFORTS else []
    left += ["generationConfig.responseJsonSchema"] if schema and not isinstance(schema, dict) else []
    mime = config.get("responseMimeType")
    looks = str(config.get("mediaResolution") or "")
    left += ["generationConfig.responseMimeType"] if mime not in (None, _JSON, "text/plain") else []
    left += ["generationConfig.mediaResolution"] if looks and looks not in _DETAILS else []
    return NeutralRequest(
        turns=neutral.join_turns(_read_contents(contents, _DETAILS.get(looks, ""))),
        system=tuple(str(part["text"]) for part in system if part.get("text")),
        tools=tuple(_read_tool(one) for some in declared for one in some),
        choice=choice,
        chosen=chosen,
        limit=as_limit(config.get("maxOutputTokens")),
        temperature=as_number(config.get("temperature")),
        top_p=as_number(config.get("topP")),
        stop=as_texts(config.get("stopSequences")),
        schema=neutral.read_reply_schema({"schema": schema}),
        json=mime == _JSON,
        reasoning=neutral.ReasoningRequest(
            effort=_EFFORTS.get(str(level)),
            budget=budget if budget == neutral.DYNAMIC_BUDGET else as_limit(budget),
            summary="auto" if thinking.get("includeThoughts") is True else None,
        ),
        hints={name: config[field] for field, name in HINTS.items() if config.get(field) is not None},
        stream=body.get("stream") is True,
        left_out=tuple(left),
    )


def write_contents_request(request: NeutralRequest, model: str) -> WireRequest:
    """Write a request; this dialect has one setting for how closely to look at all pictures."""
    left = neutral.find_features(request) - _CARRIED
    contents = [
        {"role": "model" if turn.role == "assistant" else "user", "parts": parts}
        for turn in neutral.spell_out_contexts(request.turns)
        if (parts := list(_write_parts(turn, model)))
    ]
    body: dict[str, Any] = {"contents": contents, "model": model, "stream": request.stream}
    if request.system:
        body["systemInstruction"] = {"parts": [{"text": text} for text in request.system]}
    if request.tools:
        declared = [
            {
                "name": tool.name,
                **({"description": tool.description} if tool.description else {}),
                "parametersJsonSchema": tool.schema or {"type": "object", "properties": {}},
            }
            for tool in neutral.wrap_custom_tools(request.tools)
        ]
        body["tools"] = [{"functionDeclarations": declared}]
        if request.choice == "tool":
            chosen = {"mode": "ANY", "allowedFunctionNames": [request.chosen]}
            body["toolConfig"] = {"functionCallingConfig": chosen}
        elif request.choice is not None:
            body["toolConfig"] = {"functionCallingConfig": {"mode": _MODES[request.choice]}}
    files = (part for turn in request.turns for part in turn.parts if isinstance(part, neutral.FilePart))
    looks = {part.detail for part in files if part.kind == "image"}
    look = _RESOLUTIONS.get(looks.pop()) if len(looks) == 1 else None
    if "detail" in neutral.find_features(request) and look is None:
        left.add("detail")
    config: dict[str, Any] = {
        "maxOutputTokens": request.limit,
        "temperature": request.temperature,
        "topP": request.top_p,
        "stopSequences": list(request.stop) or None,
        "responseMimeType": _JSON if request.json else None,
        "responseJsonSchema": None if request.schema is None else request.schema.described,
        "mediaResolution": look,
        "thinkingConfig": _write_thinking(request.reasoning, model, left) or None,
        **{field: request.hints.get(name) for field, name in HINTS.items()},
    }
    config = {name: value for name, value in config.items() if value is not None}
    return WireRequest(body | ({"generationConfig": config} if config else {}), tuple(left))


def _write_thinking(asked: neutral.ReasoningRequest, model: str, left: set[str]) -> dict[str, Any]:
    """Return `thinkingConfig`; requested reasoning that does not fit is added to `left`."""
    shown = {"includeThoughts": True} if asked.summary else {}
    if asked.amount is None:
        return shown
    if takes_level(model) and asked.tokens != neutral.DYNAMIC_BUDGET:
        word = asked.word or ""
        # These models always reason, so the lowest level replaces "none".
        level = GEMINI_LEVELS.get("minimal" if word == "none" else word)
        if level == "MINIMAL" and "pro" in model:
            level = "LOW"
        if level is None or level.lower() != word:
            left.add(asked.amount)
        return shown | ({"thinkingLevel": level} if level else {})
    if asked.tokens is None:
        left.add(asked.amount)
        return shown
    tokens = gemini_budget(model, asked.tokens)
    if tokens != asked.tokens:
        left.add(asked.amount)
    return shown | {"thinkingBudget": tokens}


def _read_contents(contents: list[Mapping[str, Any]], detail: str) -> Iterator[neutral.ConversationTurn]:
    """Yield the turns; calls without an id get one, and their results the same by name and order.

    `detail` is how closely to look at pictures.
    """
    unanswered: dict[str, list[str]] = {}
    count = 0
    for content in contents:
        # Gemini's calls need no id; other dialects pair a result with its call by id.
        parts: list[neutral.ConversationPart] = []
        for part in as_mappings(content.get("parts")):
            call = as_mapping(part.get("functionCall"))
            if part.get("functionCall"):
                count += 1
                own = str(call.get("id") or f"call_{count}")
                name = str(call.get("name", ""))
                unanswered.setdefault(name, []).append(own)
                parts.append(neutral.ToolCallPart(id=own, name=name, arguments=json.dumps(call.get("args") or {})))
            elif part.get("functionResponse"):
                parts.append(_read_result(as_mapping(part["functionResponse"]), unanswered))
            elif part.get("thought") and not part.get("thoughtSignature") and isinstance(part.get("text"), str):
                parts.append(neutral.ThoughtPart(text=part["text"]))
            else:
                parts.extend(_read_part(part, detail))
        yield neutral.ConversationTurn(
            role="assistant" if content.get("role") == "model" else "user", parts=tuple(parts)
        )


def _read_result(given: Mapping[str, Any], unanswered: dict[str, list[str]]) -> neutral.ToolResultPart:
    name = str(given.get("name", ""))
    waiting = unanswered.get(name, [])
    own = str(given.get("id") or (waiting[0] if waiting else ""))
    if own in waiting:
        waiting.remove(own)
    if not own:
        raise UntranslatableError("functionResponse", f"a result of {name!r:.80} answers no call")
    said = as_mapping(given.get("response"))
    content: list[neutral.TextPart | neutral.FilePart] = []
    (key, value), *more = said.items() or [("output", "")]
    if not more and key in ("output", "result", "error") and isinstance(value, str):
        content = [neutral.TextPart(text=value)] if value else []
    else:
        content = [neutral.TextPart(text=json.dumps(said, ensure_ascii=False))]
    content += [file for part in as_mappings(given.get("parts")) for file in _read_part(part)]
    return neutral.ToolResultPart(id=own, name=name, content=tuple(content), failed=not more and key == "error")


def _read_part(part: Mapping[str, Any], detail: str = "") -> Iterator[neutral.TextPart | neutral.FilePart]:
    if part.get("thought"):
        return
    if isinstance(part.get("text"), str):
        if part["text"]:
            yield neutral.TextPart(text=part["text"])
    elif part.get("inlineData") or part.get("fileData"):
        data = as_mapping(part.get("inlineData") or part.get("fileData"))
        media = str(data.get("mimeType", ""))
        url = str(data.get("fileUri", ""))
        if url.startswith("https://generativelanguage.googleapis.com/"):
            raise UntranslatableError("fileData", "a file kept by Google cannot go to another provider")
        content = str(data.get("data", ""))
        is_image = media.startswith("image/")
        name = str(data.get("displayName") or "")
        yield neutral.FilePart(
            media_type=media,
            data=content,
            url=url,
            name=name,
            kind="image" if is_image else "file",
            detail=detail if is_image else "",
        )
    elif set(part) - {"thoughtSignature"}:
        names = ", ".join(sorted(part))
        raise UntranslatableError(names, f"a part with {names[:80]!r} has no equivalent in another dialect")


def _read_tool(declared: Mapping[str, Any]) -> neutral.OfferedTool:
    schema = declared.get("parametersJsonSchema") or _read_schema(declared.get("parameters"))
    return neutral.OfferedTool(
        name=str(declared.get("name", "")),
        description=str(declared.get("description") or ""),
        schema=as_mapping(schema),
    )


def _read_schema(schema: object) -> Any:
    """Return a schema with its types in lower case, as in JSON Schema."""
    if isinstance(schema, list):
        return [_read_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    plain: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "type" and isinstance(value, str):
            plain[key] = value.lower()
        elif key == "properties" and isinstance(value, dict):
            plain[key] = {name: _read_schema(inner) for name, inner in value.items()}
        elif key in ("enum", "required", "example", "default"):
            plain[key] = value
        elif key != "propertyOrdering":
            plain[key] = _read_schema(value)
    if plain.pop("nullable", False) is True and isinstance(plain.get("type"), str):
        plain["type"] = [plain["type"], "null"]
    return plain


def _read_choice(config: Mapping[str, Any]) -> tuple[neutral.ToolChoice | None, str]:
    if not config:
        return None, ""
    names = as_texts(config.get("allowedFunctionNames"))
    mode = _CHOICES.get(str(config.get("mode", "AUTO")), "auto")
    if len(names) > 1:
        message = "a choice among some of the tools has no equivalent in another dialect"
        raise UntranslatableError("toolConfig", message)
    return ("tool", names[0]) if names and mode == "required" else (mode, "")


def _write_parts(turn: neutral.ConversationTurn, model: str) -> Iterator[dict[str, Any]]:
    """Yield the parts of a turn; for a user, tool results come first, immediately after their calls."""
    behind: list[neutral.ConversationPart] = []
    signed = False
    for part in turn.parts:
        match part:
            case neutral.ToolCallPart():
                made = _write_call(neutral.as_function_call(part))
                # Models that sign require a signature on the first call of a turn.
                if model.startswith("gemini-3") and not signed:
                    made["thoughtSignature"] = _ANY_SIGNATURE
                signed = True
                yield made
            case neutral.ToolResultPart():
                if not part.name:
                    raise UntranslatableError("tool result", f"the result {part.id!r:.80} answers no call")
                said = {"error" if part.failed else "output": part.text}
                yield {"functionResponse": {"id": part.id, "name": part.name, "response": said}}
                behind += part.blob_parts
            case neutral.ThoughtPart():
                continue
            case _ if turn.role == "assistant":
                yield _write_part(part)
            case _:
                behind.append(part)
    yield from map(_write_part, behind)


def _write_part(part: neutral.ConversationPart) -> dict[str, Any]:
    match part:
        case neutral.TextPart():
            return {"text": part.text}
        case neutral.FilePart() if part.url:
            media = {"mimeType": part.media_type} if part.media_type else {}
            return {"fileData": {"fileUri": part.url, **media}}
        case neutral.FilePart():
            return {"inlineData": {"mimeType": part.media_type, "data": part.data}}
    raise UntranslatableError("part", "a tool's part is in the place of text")


def _write_call(call: neutral.ToolCallPart) -> dict[str, Any]:
    return {"functionCall": {"id": call.id, "name": call.name, "args": call.value()}}


class GeminiReader:
    """Reads one reply: candidates, whole or in chunks that each look like a whole reply."""

    def __init__(self, dialect: ModelDialect, seed: str) -> None:
        self._dialect = dialect
        self._seed = seed
        self._count = 0
        self._word = ""
        self._fault = ""
        self.left_out = set[str]()
        self._usage: Usage | None = None

    def read_event(self, data: Mapping[str, Any]) -> list[neutral.ReplyDelta]:
        """Return the deltas of a chunk."""
        if data.get("error"):
            return [neutral.ReplyError(message=error_message(data, "error"))]
        self.left_out.update(list_unread(data, _REPLY))
        if as_mapping(data.get("usageMetadata")):
            self._usage = self._dialect.read_usage(data).usage
        if as_mapping(data.get("promptFeedback")).get("blockReason"):
            self._word = "SAFETY"
        found: list[neutral.ReplyDelta] = []
        for candidate in as_mappings(data.get("candidates"))[:1]:
            for part in as_mappings(as_mapping(candidate.get("content")).get("parts")):
                found += self._read_part(part)
            self._word = str(candidate.get("finishReason") or self._word)
            if candidate.get("finishReason") in _UNUSABLE:
                # Other dialects have no such end: a text informs the client, which keeps the rest of the reply.
                self._fault = f"{self._word}: {candidate.get('finishMessage') or 'no tool call that can be read'}"
                found.append(neutral.TextDelta(text=f"[The model's tool call is malformed. {self._fault}]"))
        return found

    def read_whole(self, document: Mapping[str, Any]) -> list[neutral.ReplyDelta]:
        """Return the deltas of a body."""
        return [*self.read_event(document), *self.finish()]

    def finish(self) -> list[neutral.ReplyDelta]:
        """Return the end if the model said that it is done."""
        if not self._word:
            return []
        stop = _STOPS.get(self._word, "end" if self._word in _UNUSABLE else "refusal")
        stop = "tools" if self._count and stop == "end" else stop
        return [neutral.ReplyEnd(stop=stop, usage=self._usage, fault=self._fault)]

    def _read_part(self, part: Mapping[str, Any]) -> Iterator[neutral.ReplyDelta]:
        text = part.get("text")
        call = as_mapping(part.get("functionCall"))
        if isinstance(text, str) and text:
            yield neutral.ThinkingDelta(text=text) if part.get("thought") else neutral.TextDelta(text=text)
        elif call:
            index = self._count
            self._count = self._count + 1
            own = str(call.get("id") or f"call_{self._seed}_{self._count}")
            yield neutral.ToolCallStart(index=index, id=own, name=str(call.get("name", "")))
            yield neutral.ToolCallDelta(index=index, text=json.dumps(call.get("args") or {}))
        elif part.get("inlineData"):
            message = "a picture that a model made cannot go to a client of another dialect"
            raise UntranslatableError("image", message)


class GeminiWriter:
    """Writes one reply; a call is sent when complete, since this dialect has no partial calls."""

    def __init__(self, dialect: ModelDialect, model: str, id: str) -> None:
        self._dialect = dialect
        self._head = {"modelVersion": model, "responseId": id}
        self._calls: dict[int, neutral.ToolCallStart] = {}
        self._texts: dict[int, str] = {}

    def write_delta(self, delta: neutral.ReplyDelta) -> bytes:
        """Return the chunks for one delta; raises `UntranslatableError` if arguments are not an object."""
        match delta:
            case neutral.TextDelta():
                return self._write_chunk([{"text": delta.text}])
            case neutral.ThinkingDelta():
                return self._write_chunk([{"text": delta.text, "thought": True}])
            case neutral.ToolCallStart():
                self._calls[delta.index] = delta
                self._texts[delta.index] = ""
                return b""
            case neutral.ToolCallDelta():
                self._texts[delta.index] += delta.text
                return b""
            case neutral.ReplyEnd():
                calls = [
                    _write_call(neutral.ToolCallPart(id=call.id, name=call.name, arguments=self._texts[index]))
                    for index, call in self._calls.items()
                ]
                return self._write_chunk(calls, _FINISH_REASONS[delta.stop], delta.usage)
            case neutral.ReplyError():
                return self._dialect.write_error_event(502, "upstream_error", delta.message)

    def write_whole(self, reply: NeutralReply) -> dict[str, Any]:
        """Return a reply in one piece; raises `UntranslatableError` if arguments are not an object."""
        parts: list[dict[str, Any]] = [{"text": reply.thoughts, "thought": True}] if reply.thoughts else []
        parts += [{"text": reply.text}] if reply.text else []
        return self._write_document(
            [*parts, *map(_write_call, reply.calls)], _FINISH_REASONS[reply.stop], reply.usage
        )

    def _write_chunk(self, parts: list[dict[str, Any]], finish: str = "", usage: Usage | None = None) -> bytes:
        return b"data: " + dump_json(self._write_document(parts, finish, usage)) + b"\n\n"

    def _write_document(self, parts: list[dict[str, Any]], finish: str, usage: Usage | None) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        if finish:
            candidate["finishReason"] = finish
        document = {"candidates": [candidate], **self._head}
        if usage is None:
            return document
        read = usage.input or 0
        written = usage.output or 0
        cached = {} if usage.cached is None else {"cachedContentTokenCount": usage.cached}
        counts = {"promptTokenCount": read, "candidatesTokenCount": written, "totalTokenCount": read + written}
        return {**document, "usageMetadata": {**counts, **cached}}
