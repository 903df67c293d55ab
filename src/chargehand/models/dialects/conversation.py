"""What is said between an agent and a model, whatever dialect says it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from chargehand.models.contract import Dialect, Stop, Usage

Role = Literal["user", "assistant"]
Choice = Literal["auto", "none", "required", "tool"]


class UncarriedError(ValueError):
    """A request holds what a dialect or a model has no place for; `what` names it in one or two words."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(message)
        self.what = what


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Words."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A picture or another file: base64 `data` of a `media_type`, or a `url` that leads to it."""

    media_type: str = ""
    data: str = ""
    url: str = ""
    name: str = ""
    kind: Literal["image", "file"] = "image"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """A call of a tool; `arguments` is JSON text as the model wrote it, of a `custom` tool plain text."""

    id: str
    name: str
    arguments: str
    custom: bool = False

    def value(self) -> Mapping[str, Any]:
        """Return the arguments as an object; raises `UncarriedError` where they are none."""
        try:
            found = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise UncarriedError(
                "tool arguments", f"the arguments of tool call {self.id!r:.80} are no JSON object"
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a tool call came to; `name` is the tool's, empty where only the call says it."""

    id: str
    content: tuple[Text | Blob, ...] = ()
    failed: bool = False
    name: str = ""
    custom: bool = False

    @property
    def text(self) -> str:
        """The words of the result."""
        return "\n".join(part.text for part in self.content if isinstance(part, Text))

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """The pictures and files of the result."""
        return tuple(part for part in self.content if isinstance(part, Blob))


Part = Text | Blob | ToolUse | ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one side said in one go."""

    role: Role
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A tool that the model may call; a `custom` one takes plain text and has no schema."""

    name: str
    description: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)
    custom: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request; `left_out` names what of it means nothing to another provider: hints, reasoning."""

    turns: tuple[Turn, ...]
    system: tuple[str, ...] = ()
    tools: tuple[Offer, ...] = ()
    choice: Choice | None = None
    chosen: str = ""
    parallel: bool | None = None
    limit: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    json: bool = False
    effort: str | None = None
    stream: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def custom(self) -> frozenset[str]:
        """The names of the tools that take plain text."""
        return frozenset(tool.name for tool in self.tools if tool.custom)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPiece:
    """More words of the reply."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtPiece:
    """More of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBegun:
    """A tool call begins; what comes of its arguments has the same `index`."""

    index: int
    id: str
    name: str
    custom: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPiece:
    """More of the arguments of a tool call."""

    index: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The reply is whole."""

    stop: Stop
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The provider reports an error inside its reply."""

    message: str


Piece = TextPiece | ThoughtPiece | CallBegun | CallPiece | Ended | Broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A whole reply."""

    text: str = ""
    thoughts: str = ""
    calls: tuple[ToolUse, ...] = ()
    stop: Stop = "end"
    usage: Usage = field(default_factory=Usage)
    broken: str = ""
    ended: bool = False


class Reader(Protocol):
    """Reads one reply of a provider."""

    def event(self, data: Mapping[str, Any]) -> list[Piece]:
        """Return what one event of a stream says."""
        ...

    def whole(self, document: Mapping[str, Any]) -> list[Piece]:
        """Return what a reply in one piece says."""
        ...

    def end(self) -> list[Piece]:
        """Return what is known only now that the stream is over."""
        ...


class Writer(Protocol):
    """Writes one reply for a client."""

    def event(self, piece: Piece) -> bytes:
        """Return the events that say one piece, empty where more has to come first."""
        ...

    def whole(self, said: Said) -> dict[str, Any]:
        """Return a reply in one piece."""
        ...


class Codec(Protocol):
    """One dialect, read and written."""

    name: Dialect

    def asked(self, body: Mapping[str, Any]) -> Asked:
        """Read a request; raises `UncarriedError` for what no other dialect has a place for."""
        ...

    def body(self, asked: Asked, model: str) -> dict[str, Any]:
        """Write a request; raises `UncarriedError` for what this dialect has no place for."""
        ...

    def reader(self, seed: str) -> Reader:
        """Return the reader of one reply; `seed` goes into ids that the provider leaves out."""
        ...

    def writer(self, model: str, id: str) -> Writer:
        """Return the writer of one reply."""
        ...


def merged(turns: Iterable[Turn]) -> tuple[Turn, ...]:
    """Return turns with neighbours of one role made one, and empty ones left out."""
    kept: list[Turn] = []
    for turn in turns:
        if not turn.parts:
            continue
        if kept and kept[-1].role == turn.role:
            kept[-1] = replace(kept[-1], parts=kept[-1].parts + turn.parts)
        else:
            kept.append(turn)
    return tuple(kept)


def named(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Return turns whose tool results know the name and kind of their tool, from the calls before them."""
    calls: dict[str, ToolUse] = {}
    found = []
    for turn in turns:
        parts: list[Part] = []
        for part in turn.parts:
            if isinstance(part, ToolUse):
                calls[part.id] = part
            elif isinstance(part, ToolResult) and part.id in calls:
                part = replace(part, name=calls[part.id].name, custom=calls[part.id].custom)
            parts.append(part)
        found.append(replace(turn, parts=tuple(parts)))
    return tuple(found)


def folded(pieces: Iterable[Piece]) -> Said:
    """Return the whole reply that pieces make."""
    said = Said()
    calls: dict[int, ToolUse] = {}
    for piece in pieces:
        match piece:
            case TextPiece():
                said = replace(said, text=said.text + piece.text)
            case ThoughtPiece():
                said = replace(said, thoughts=said.thoughts + piece.text)
            case CallBegun():
                calls[piece.index] = ToolUse(id=piece.id, name=piece.name, arguments="", custom=piece.custom)
            case CallPiece():
                known = calls[piece.index]
                calls[piece.index] = replace(known, arguments=known.arguments + piece.text)
            case Ended():
                said = replace(said, stop=piece.stop, usage=piece.usage or Usage(), ended=True)
            case Broken():
                said = replace(said, broken=piece.message)
    return replace(said, calls=tuple(calls.values()))


def pieces_of(said: Said) -> list[Piece]:
    """Return a whole reply as the pieces that make it."""
    found: list[Piece] = []
    if said.thoughts:
        found.append(ThoughtPiece(text=said.thoughts))
    if said.text:
        found.append(TextPiece(text=said.text))
    for index, call in enumerate(said.calls):
        found.append(CallBegun(index=index, id=call.id, name=call.name, custom=call.custom))
        found.append(CallPiece(index=index, text=call.arguments))
    if said.broken:
        return [*found, Broken(message=said.broken)]
    return [*found, Ended(stop=said.stop, usage=said.usage)]


def wrapped(tools: Iterable[Offer]) -> tuple[Offer, ...]:
    """Return tools with custom ones as functions of one text, for dialects that know no others."""
    text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return tuple(replace(tool, schema=text, custom=False) if tool.custom else tool for tool in tools)


def as_function(call: ToolUse) -> ToolUse:
    """Return a custom tool's call as that of the function `wrapped` makes of it."""
    return replace(call, arguments=json.dumps({"input": call.arguments}), custom=False) if call.custom else call


def whole_number(value: object) -> int | None:
    """Return a limit of tokens, `None` for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def number(value: object) -> float | None:
    """Return a number, `None` for anything else."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def words(value: object) -> tuple[str, ...]:
    """Return a text or a list of texts as texts."""
    if isinstance(value, str):
        return (value,)
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


def data_url(blob: Blob) -> str:
    """Return where a picture is, or itself as a `data:` address."""
    return blob.url or f"data:{blob.media_type};base64,{blob.data}"


def blob_from_url(url: object, *, kind: Literal["image", "file"] = "image", name: str = "") -> Blob:
    """Return the picture behind an address, which may hold it itself; raises `UncarriedError` where it is none."""
    if not isinstance(url, str) or not url:
        raise UncarriedError(kind, f"an {kind} without data or an address cannot go to another provider")
    head, comma, data = url.partition(",")
    if url.startswith("data:") and comma and head.endswith(";base64"):
        return Blob(media_type=head[5:].partition(";")[0], data=data, kind=kind, name=name)
    return Blob(url=url, kind=kind, name=name)
