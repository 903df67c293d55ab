"""Dialect-neutral requests and replies: each dialect is read into this form and written from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from chargehand.models.contract import StopReason, Usage

ConversationRole = Literal["user", "assistant"]
ToolChoice = Literal["auto", "none", "required", "tool"]
# Tokens of reasoning for each effort, by OpenAI's names.
EFFORT_BUDGETS: Mapping[str, int] = {
    "none": 0,
    "minimal": 1_024,
    "low": 4_096,
    "medium": 8_192,
    "high": 24_576,
    "xhigh": 32_768,
    "max": 65_536,
}
# The efforts chosen for a budget: every model that reasons takes these, the others only some models.
BUDGET_EFFORTS = ("low", "medium", "high")
# A budget that the model chooses, as Gemini writes it; Anthropic's word is `adaptive`.
DYNAMIC_BUDGET = -1


class UntranslatableError(ValueError):
    """A request holds something that a dialect or model cannot express; `what` names it in one or two words."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(message)
        self.what = what


class TextPart(Struct, frozen=True, kw_only=True):
    """Text; `cached`: the client wants everything up to here in its provider's cache."""

    text: str
    cached: bool = False


class ThoughtPart(Struct, frozen=True, kw_only=True):
    """Reasoning of an earlier reply that no provider signed."""

    text: str


class FilePart(Struct, frozen=True, kw_only=True):
    """A picture or another file: base64 `data` of a `media_type`, or its `url`.

    `detail` is how closely to look, `low` or `high`; `context` is a description of a document; `cached` is as in
    `TextPart`.
    """

    media_type: str = ""
    data: str = ""
    url: str = ""
    name: str = ""
    kind: Literal["image", "file"] = "image"
    detail: str = ""
    context: str = ""
    cached: bool = False


class ToolCallPart(Struct, frozen=True, kw_only=True):
    """A tool call; `arguments` is JSON text as the model wrote it, or plain text for a `custom` tool.

    `unchecked` arguments may be anything: scripts send wrong ones on purpose.
    """

    id: str
    name: str
    arguments: str
    custom: bool = False
    unchecked: bool = False

    @property
    def malformed(self) -> bool:
        """Whether the arguments are not the JSON object that a dialect-neutral call needs."""
        return not self.custom and self._read_object() is None

    def value(self) -> Mapping[str, Any] | str:
        """Return the arguments as an object; other values become text under `malformed_arguments`.

        So the reply, already paid for, is kept: the tool's caller finds the arguments missing and reports that to
        the model.
        """
        found = self._read_object()
        if found is not None:
            return found
        return self.arguments if self.unchecked else {"malformed_arguments": self.arguments}

    def _read_object(self) -> Mapping[str, Any] | None:
        try:
            found = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None


class ToolResultPart(Struct, frozen=True, kw_only=True):
    """The result of a tool call; `name` is the tool's, empty if only the call names it."""

    id: str
    content: tuple[TextPart | FilePart, ...] = ()
    failed: bool = False
    name: str = ""
    custom: bool = False

    @property
    def text(self) -> str:
        """The text of the result."""
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def blobs(self) -> tuple[FilePart, ...]:
        """The pictures and files of the result."""
        return tuple(part for part in self.content if isinstance(part, FilePart))

    @property
    def blob_parts(self) -> tuple[TextPart | FilePart, ...]:
        """The same as parts of a user's message, for dialects whose results hold only text."""
        note = TextPart(text=f"What tool call {self.id} returned beside its text:")
        return (note, *self.blobs) if self.blobs else ()


ConversationPart = TextPart | ThoughtPart | FilePart | ToolCallPart | ToolResultPart


class ConversationTurn(Struct, frozen=True, kw_only=True):
    """Consecutive parts from one side of the conversation."""

    role: ConversationRole
    parts: tuple[ConversationPart, ...]


class OfferedTool(Struct, frozen=True, kw_only=True):
    """A tool that the model may call; a `custom` tool takes plain text and has no schema.

    `strict`: the provider must hold the model to the schema; `None` if not specified.
    """

    name: str
    description: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)
    custom: bool = False
    strict: bool | None = None


class ReasoningRequest(Struct, frozen=True, kw_only=True):
    """How much to reason: OpenAI's `effort` or a `budget` in tokens; `summary`: how to show the reasoning."""

    effort: str | None = None
    budget: int | None = None
    summary: str | None = None

    @property
    def word(self) -> str | None:
        """The effort, for dialects without budgets; `None` if nothing is asked or the model may choose."""
        if self.budget == 0:
            return "none"
        if self.effort is not None or self.budget is None or self.budget == DYNAMIC_BUDGET:
            return self.effort
        fitting = (word for word in BUDGET_EFFORTS if self.budget <= EFFORT_BUDGETS[word])
        return next(fitting, BUDGET_EFFORTS[-1])

    @property
    def tokens(self) -> int | None:
        """The budget, for dialects without efforts; `None` if nothing is asked or the effort is unknown."""
        if self.effort is None or self.budget not in (None, DYNAMIC_BUDGET):
            return self.budget
        return EFFORT_BUDGETS.get(self.effort)

    @property
    def amount(self) -> str | None:
        """The name of the field that sets the amount, `None` if neither is set."""
        return "effort" if self.effort is not None else "budget" if self.budget is not None else None


class ReplySchema(Struct, frozen=True, kw_only=True):
    """The schema that the reply must follow; OpenAI's dialects also name and describe it."""

    schema: Mapping[str, Any]
    name: str = ""
    description: str = ""
    strict: bool | None = None

    @property
    def described(self) -> Mapping[str, Any]:
        """The schema with name and description inside, for dialects without separate fields for them."""
        said = {"title": self.name, "description": self.description}
        return {**{key: text for key, text in said.items() if text}, **self.schema}


class NeutralRequest(Struct, frozen=True, kw_only=True):
    """One request; `left_out` names the client's fields that the neutral form cannot hold.

    `hints` are further fields by OpenAI's names, passed on to dialects that have them: `seed`, `user` ….
    """

    turns: tuple[ConversationTurn, ...]
    system: tuple[str, ...] = ()
    tools: tuple[OfferedTool, ...] = ()
    choice: ToolChoice | None = None
    chosen: str = ""
    parallel: bool | None = None
    limit: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    schema: ReplySchema | None = None
    json: bool = False
    reasoning: ReasoningRequest = field(default_factory=ReasoningRequest)
    hints: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def custom(self) -> frozenset[str]:
        """The names of the tools that take plain text."""
        return frozenset(tool.name for tool in self.tools if tool.custom)


class TextDelta(Struct, frozen=True, kw_only=True):
    """More text of the reply."""

    text: str


class ThinkingDelta(Struct, frozen=True, kw_only=True):
    """More of the model's reasoning."""

    text: str


class ToolCallStart(Struct, frozen=True, kw_only=True):
    """The start of a tool call; the deltas of its arguments have the same `index`."""

    index: int
    id: str
    name: str
    custom: bool = False


class ToolCallDelta(Struct, frozen=True, kw_only=True):
    """More of the arguments of a tool call."""

    index: int
    text: str


class ReplyEnd(Struct, frozen=True, kw_only=True):
    """The end of a complete reply; `fault` is a mistake that the model itself made in it."""

    stop: StopReason
    usage: Usage | None = None
    fault: str = ""


class ReplyError(Struct, frozen=True, kw_only=True):
    """An error that the provider reports inside its reply."""

    message: str


ReplyDelta = TextDelta | ThinkingDelta | ToolCallStart | ToolCallDelta | ReplyEnd | ReplyError


class NeutralReply(Struct, frozen=True, kw_only=True):
    """A whole reply."""

    text: str = ""
    thoughts: str = ""
    calls: tuple[ToolCallPart, ...] = ()
    stop: StopReason = "end"
    usage: Usage = field(default_factory=Usage)
    broken: str = ""
    ended: bool = False


class ReplyReader(Protocol):
    """Reads one reply of a provider; `left_out` collects the provider's fields that have no neutral form."""

    left_out: set[str]

    def read_event(self, data: Mapping[str, Any]) -> list[ReplyDelta]:
        """Return the deltas of one event of a stream."""
        ...

    def read_whole(self, document: Mapping[str, Any]) -> list[ReplyDelta]:
        """Return the deltas of a reply in one piece, including its end."""
        ...

    def finish(self) -> list[ReplyDelta]:
        """Return the deltas that are known only after the end of the stream."""
        ...


class ReplyWriter(Protocol):
    """Writes one reply for a client."""

    def write_delta(self, delta: ReplyDelta) -> bytes:
        """Return the events that express one delta; empty if more deltas must come first."""
        ...

    def write_whole(self, reply: NeutralReply) -> dict[str, Any]:
        """Return the reply as one document."""
        ...


def join_turns(turns: Iterable[ConversationTurn]) -> tuple[ConversationTurn, ...]:
    """Merge neighbouring turns of one role and drop empty turns.

    Tool results get the name and the kind of their tool from the preceding calls.
    """
    joined: list[ConversationTurn] = []
    calls: dict[str, ToolCallPart] = {}
    for turn in turns:
        parts: list[ConversationPart] = []
        for part in turn.parts:
            if isinstance(part, ToolCallPart):
                calls[part.id] = part
            elif isinstance(part, ToolResultPart) and part.id in calls:
                part = replace(part, name=calls[part.id].name, custom=calls[part.id].custom)
            parts.append(part)
        if joined and joined[-1].role == turn.role:
            parts = [*joined.pop().parts, *parts]
        if parts:
            joined.append(replace(turn, parts=tuple(parts)))
    return tuple(joined)


def find_features(request: NeutralRequest) -> set[str]:
    """Return the features of a request that not every dialect supports, by the field names used here.

    The amount of reasoning is left out, because it depends on the model.
    """
    said = [part for turn in request.turns for part in turn.parts]
    said += [inner for part in said if isinstance(part, ToolResultPart) for inner in part.content]
    files = [part for part in said if isinstance(part, FilePart)]
    held = {
        "cached": any(part.cached for part in said if isinstance(part, TextPart | FilePart)),
        "detail": any(part.detail for part in files if part.kind == "image"),
        "file_detail": any(part.detail for part in files if part.kind == "file"),
        "file_name": any(part.name for part in files if part.kind == "file"),
        "image_name": any(part.name for part in files if part.kind == "image"),
        "thoughts": any(isinstance(part, ThoughtPart) for part in said),
        "failed": any(part.failed for part in said if isinstance(part, ToolResultPart)),
        "strict": any(tool.strict for tool in request.tools),
        "parallel": request.parallel is False,
        "choice": request.choice is not None and not request.tools,
    }
    return {name for name, here in held.items() if here} | set(request.hints)


def spell_out_contexts(turns: Iterable[ConversationTurn]) -> tuple[ConversationTurn, ...]:
    """Move the descriptions of documents into text before them, for dialects without a field for them."""

    def spell_out(parts: Iterable[Any]) -> Iterator[Any]:
        for part in parts:
            if isinstance(part, ToolResultPart):
                yield replace(part, content=tuple(spell_out(part.content)))
                continue
            if isinstance(part, FilePart) and part.context:
                of = f" {part.name!r}" if part.name else ""
                yield TextPart(text=f"What the document{of} below is: {part.context}")
            yield part

    return tuple(replace(turn, parts=tuple(spell_out(turn.parts))) for turn in turns)


def fold_reply(deltas: Iterable[ReplyDelta]) -> NeutralReply:
    """Assemble a whole reply from its deltas."""
    texts = list[str]()
    thoughts = list[str]()
    starts: dict[int, ToolCallStart] = {}
    arguments: dict[int, list[str]] = {}
    end: ReplyEnd | None = None
    broken = ""
    for delta in deltas:
        match delta:
            case TextDelta():
                texts.append(delta.text)
            case ThinkingDelta():
                thoughts.append(delta.text)
            case ToolCallStart():
                starts[delta.index] = delta
                arguments[delta.index] = []
            case ToolCallDelta():
                arguments[delta.index].append(delta.text)
            case ReplyEnd():
                end = delta
            case ReplyError():
                broken = delta.message
    return NeutralReply(
        text="".join(texts),
        thoughts="".join(thoughts),
        calls=tuple(
            ToolCallPart(id=call.id, name=call.name, arguments="".join(arguments[index]), custom=call.custom)
            for index, call in starts.items()
        ),
        stop="end" if end is None else end.stop,
        usage=(end and end.usage) or Usage(),
        broken=broken,
        ended=end is not None,
    )


def reply_deltas(reply: NeutralReply) -> list[ReplyDelta]:
    """Return the deltas that make up a whole reply."""
    found: list[ReplyDelta] = []
    if reply.thoughts:
        found.append(ThinkingDelta(text=reply.thoughts))
    if reply.text:
        found.append(TextDelta(text=reply.text))
    for index, call in enumerate(reply.calls):
        found.append(ToolCallStart(index=index, id=call.id, name=call.name, custom=call.custom))
        found.append(ToolCallDelta(index=index, text=call.arguments))
    if reply.broken:
        return [*found, ReplyError(message=reply.broken)]
    return [*found, ReplyEnd(stop=reply.stop, usage=reply.usage)]


def offer_custom_tool(name: str, description: str, grammar: object) -> OfferedTool:
    """Return a plain-text tool; its description states the grammar, because other dialects have no grammars."""
    text = f"{description}\n\nThe input follows this grammar:\n{grammar}" if grammar else description
    return OfferedTool(name=name, description=text, custom=True)


def wrap_custom_tools(tools: Iterable[OfferedTool]) -> tuple[OfferedTool, ...]:
    """Turn custom tools into functions with one text argument, for dialects that know only functions."""
    text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return tuple(replace(tool, schema=text, custom=False) if tool.custom else tool for tool in tools)


def as_function_call(call: ToolCallPart) -> ToolCallPart:
    """Turn a custom tool's call into a call of the function that `wrap_custom_tools` makes."""
    return replace(call, arguments=json.dumps({"input": call.arguments}), custom=False) if call.custom else call


def read_reply_schema(given: Mapping[str, Any]) -> ReplySchema | None:
    """Read a schema as OpenAI's dialects write it, or return `None` if it is missing."""
    schema = given.get("schema")
    if not (isinstance(schema, dict) and schema):
        return None
    return ReplySchema(
        schema=schema,
        name=str(given.get("name") or ""),
        description=str(given.get("description") or ""),
        strict=read_flag(given.get("strict")),
    )


def write_reply_schema(shape: ReplySchema) -> dict[str, Any]:
    """Write a schema for OpenAI's dialects; they require a name of letters, digits, `_` and `-`."""
    title = shape.name or shape.schema.get("title")
    name = re.sub(r"[^\w-]+", "_", title, flags=re.ASCII)[:64] if isinstance(title, str) else ""
    held = {"description": shape.description or None, "strict": shape.strict}
    return {
        "name": name or "reply",
        "schema": shape.schema,
        **{key: value for key, value in held.items() if value is not None},
    }


def read_flag(value: object) -> bool | None:
    """Return a boolean, or `None` for any other value."""
    return value if isinstance(value, bool) else None


def read_detail(value: object) -> str:
    """Return how closely to look at a picture; empty if the model decides."""
    return value if isinstance(value, str) and value != "auto" else ""


def data_url(file: FilePart) -> str:
    """Return the picture's address, or the picture itself as a `data:` address."""
    return file.url or f"data:{file.media_type};base64,{file.data}"


def file_from_url(url: object, *, kind: Literal["image", "file"] = "image", name: str = "") -> FilePart:
    """Return the file at an address or in a `data:` address; raises `UntranslatableError` without an address."""
    if not isinstance(url, str) or not url:
        what = "a picture" if kind == "image" else "a file"
        raise UntranslatableError(kind, f"{what} without data or an address cannot go to another provider")
    found = read_data_url(url)
    if found is None:
        return FilePart(url=url, kind=kind, name=name)
    return FilePart(media_type=found[0], data=found[1], kind=kind, name=name)


def read_data_url(url: str) -> tuple[str, str] | None:
    """Return media type and base64 content of a `data:` address, or `None` for other addresses."""
    head, comma, data = url.partition(",")
    if not (head.startswith("data:") and comma and head.endswith(";base64")):
        return None
    return head[5:].partition(";")[0], data
