"""From a request's path to what it asks, and who may answer it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote

import msgspec

from chargehand.core.errors import nearest
from chargehand.models.contract import PATHS, Dialect, GatewayFault, Operation, ServedModel
from chargehand.models.dialects.base import mapping
from chargehand.models.dialects.conversation import UncarriedError
from chargehand.models.dialects.translation import carried

_LISTS = ("messages", "input", "contents", "content", "parts", "output")
"""Where parts stand, if there is a list: arguments of tools are objects and never looked into."""
_SEEN = ("image/", "audio/", "video/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A picture or file as one dialect writes it; `data` is base64, empty where the part only points to it."""

    kind: Literal["image", "file"]
    media_type: str = ""
    data: str = ""
    name: str = ""

    @property
    def text(self) -> str | None:
        """Its text, by what is in it and not by its name; `None` where it is no text."""
        if self.kind == "image" or not self.data or self.media_type.startswith(_SEEN):
            return None
        try:
            content = base64.b64decode(self.data, validate=True)
            text = content.decode()
        except (binascii.Error, ValueError):
            return None
        return None if "\0" in text or content.startswith(b"%PDF") else text


def kinds_in(dialect: Dialect, body: Mapping[str, Any]) -> set[str]:
    """Return which of pictures (`image`) and files (`file`) a request holds, results of tools included."""
    return {piece.kind for piece in _pieces(_READERS[dialect], body)}


def as_text(dialect: Dialect, body: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return a request with the files whose text is at hand as text under a line that names them, and which ones.

    All else stays as it is; PDFs have no text at hand.
    """
    read, done = _READERS[dialect], list[str]()
    if not any(piece.text is not None for piece in _pieces(read, body)):
        return body, ()

    def changed(part: Mapping[str, Any]) -> Mapping[str, Any] | None:
        piece = read(part)
        text = None if piece is None else piece.text
        if piece is None or text is None:
            return None
        told = f"file {piece.name!r:.80}" if piece.name else "a file without a name"
        done.append(f"{told} ({piece.media_type or 'no type'}, {len(text)} characters) as text")
        return _WRITERS[dialect](f"[{told}]\n{text}")

    return _rewritten(body, changed), tuple(done)


def _pieces(read: Callable[[Mapping[str, Any]], Piece | None], value: object) -> Iterator[Piece]:
    if isinstance(value, list):
        for one in value:
            yield from _pieces(read, one)
    if not isinstance(value, dict):
        return
    piece = read(value)
    if piece is not None:
        yield piece
    for inner in _inside(value).values():
        yield from _pieces(read, inner)


def _inside(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of an object may hold parts: lists of known names, an answer of Gemini's, a document's pages."""
    found = {name: value[name] for name in _LISTS if isinstance(value.get(name), list)}
    answer, source = value.get("functionResponse"), value.get("source")
    if isinstance(answer, dict):
        found["functionResponse"] = answer
    if isinstance(source, dict) and isinstance(source.get("content"), list):
        found["source"] = source
    return found


def _rewritten(value: Any, changed: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]) -> Any:
    if isinstance(value, list):
        return [_rewritten(one, changed) for one in value]
    if not isinstance(value, dict):
        return value
    other = changed(value)
    if other is not None:
        return other
    return {**value, **{name: _rewritten(inner, changed) for name, inner in _inside(value).items()}}


def _split(url: object, kind: Literal["image", "file"], name: object = "") -> Piece:
    """Return what a `data:` address holds; any other one only points to it."""
    head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if head.startswith("data:") and comma and head.endswith(";base64"):
        return Piece(kind=kind, media_type=head[5:].partition(";")[0], data=data, name=str(name or ""))
    return Piece(kind=kind, name=str(name or ""))


def _openai(part: Mapping[str, Any]) -> Piece | None:
    if part.get("type") == "image_url":
        return _split(mapping(part.get("image_url")).get("url"), "image")
    file = mapping(part.get("file"))
    return _split(file.get("file_data"), "file", file.get("filename")) if part.get("type") == "file" else None


def _responses(part: Mapping[str, Any]) -> Piece | None:
    match part.get("type"):
        case "input_image" | "computer_screenshot":
            return _split(part.get("image_url"), "image")
        case "input_file":
            return _split(part.get("file_data"), "file", part.get("filename"))
    return None


def _anthropic(part: Mapping[str, Any]) -> Piece | None:
    source = mapping(part.get("source"))
    kind = part.get("type")
    if kind not in ("image", "document") or source.get("type") in ("text", "content"):
        return None  # words, or pages that are looked at one by one
    data = str(source.get("data") or "") if source.get("type") == "base64" else ""
    media, name = str(source.get("media_type") or ""), str(part.get("title") or "")
    return Piece(kind="image" if kind == "image" else "file", media_type=media, data=data, name=name)


def _gemini(part: Mapping[str, Any]) -> Piece | None:
    given = mapping(part.get("inlineData") or part.get("fileData"))
    if not given:
        return None
    media = str(given.get("mimeType") or "")
    name, data = str(given.get("displayName") or ""), str(given.get("data") or "")
    return Piece(kind="image" if media.startswith("image/") else "file", media_type=media, data=data, name=name)


_READERS: Mapping[Dialect, Callable[[Mapping[str, Any]], Piece | None]] = {
    "openai": _openai,
    "responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
}
_WRITERS: Mapping[Dialect, Callable[[str], Mapping[str, Any]]] = {
    "openai": lambda text: {"type": "text", "text": text},
    "responses": lambda text: {"type": "input_text", "text": text},
    "anthropic": lambda text: {"type": "text", "text": text},
    "gemini": lambda text: {"text": text},
}


_FIXED: Mapping[str, tuple[Dialect, Operation]] = {
    "/chat/completions": ("openai", "reply"),
    "/messages": ("anthropic", "reply"),
    "/messages/count_tokens": ("anthropic", "count"),
    "/responses": ("responses", "reply"),
    "/embeddings": ("openai", "embed"),
}
_GEMINI: Mapping[str, tuple[Operation, bool]] = {
    "generateContent": ("reply", False),
    "streamGenerateContent": ("reply", True),
    "countTokens": ("count", False),
    "embedContent": ("embed", False),
    "batchEmbedContents": ("embed", False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a path asks for; `named` holds what Gemini's path says beside it: model and stream."""

    dialect: Dialect
    operation: Operation
    named: Mapping[str, Any]


def short(path: str) -> str:
    """Return a path without its version and query."""
    path = path.partition("?")[0]
    for version in ("/v1beta", "/v1alpha", "/v1"):
        if path == version or path.startswith(f"{version}/"):
            return path.removeprefix(version).rstrip("/") or "/"
    return path.rstrip("/") or "/"


def route_of(path: str) -> Route | None:
    """Return what a path asks for, `None` where it is no endpoint."""
    place = short(path)
    if place in _FIXED:
        dialect, operation = _FIXED[place]
        return Route(dialect=dialect, operation=operation, named={})
    model, colon, verb = unquote(place).removeprefix("/models/").rpartition(":")
    if place.startswith("/models/") and colon and verb in _GEMINI:
        operation, stream = _GEMINI[verb]
        return Route(dialect="gemini", operation=operation, named={"model": model, "stream": stream})
    return None


def dialect_at(path: str) -> Dialect:
    """Return the dialect in which an error at a path is said."""
    route = route_of(path)
    if route is not None:
        return route.dialect
    if path.startswith(("/v1beta/", "/v1alpha/")):
        return "gemini"
    return "anthropic" if short(path).startswith("/messages") else "openai"


def no_endpoint(path: str) -> GatewayFault:
    """Return the refusal of a path that is none."""
    known = ", ".join([*PATHS.values(), "/v1/messages/count_tokens", "/v1/embeddings", "/v1/models"])
    return GatewayFault("not_found", f"no endpoint {path!r}; known: {known}")


def chain_of(models: Sequence[ServedModel], dialect: Dialect, name: object) -> tuple[ServedModel, ...]:
    """Return who may answer for a name, in order; raises `GatewayFault` where there is no such model."""
    if not isinstance(name, str):
        raise GatewayFault("bad_request", f"`model` must be a name, not {name!r:.100}")
    served = [model for model in models if model.name == name]
    if not served:
        known = sorted({model.name for model in models})
        raise GatewayFault(
            "model_not_found",
            f"no model {name[:100]!r} here, {nearest(name, known)} (known: {', '.join(known) or 'none'})",
        )
    first = next((model for model in served if model.dialect == dialect), served[0])
    return tuple(_flat(first, set()))


def _flat(model: ServedModel, seen: set[int]) -> Iterator[ServedModel]:
    if id(model) not in seen:
        seen.add(id(model))
        yield model
        for other in model.fallback:
            yield from _flat(other, seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taker:
    """A model that takes all of a request, with the body for it.

    `converted` tells what of that has another form than the client gave it, `skipped` who before it does not take
    the request, and why.
    """

    served: ServedModel
    body: Mapping[str, Any]
    converted: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


def able(chain: Sequence[ServedModel], dialect: Dialect, body: Mapping[str, Any]) -> tuple[Taker, ...]:
    """Return who of a chain takes all of a request; raises `GatewayFault` (`uncarried`) where nobody does."""
    good, skipped = list[Taker](), list[str]()
    for served in chain:
        plain = served.files and served.dialect == dialect
        fitting, converted = (body, ()) if plain else as_text(dialect, body)
        reason = _unable(served, dialect, fitting)
        if reason:
            skipped.append(f"{served.name} ({served.model}): {reason}")
        else:
            good.append(Taker(served=served, body=fitting, converted=converted, skipped=tuple(skipped)))
    if not good:
        raise GatewayFault("uncarried", f"no model takes this request: {'; '.join(skipped)}")
    return tuple(good)


def _unable(served: ServedModel, dialect: Dialect, body: Mapping[str, Any]) -> str:
    if served.dialect == dialect and served.images and served.files:
        return ""
    try:
        held = set() if served.images and served.files else kinds_in(dialect, body)
        if "image" in held and not served.images:
            return "it takes no images"
        if "file" in held and not served.files:
            return "it takes no files"
        if served.dialect != dialect:
            carried(dialect, body, served.dialect, served.model)
    except UncarriedError as error:
        return str(error)
    return ""


def listed(models: Sequence[ServedModel]) -> bytes:
    """Return the list of models, as clients of both older dialects read it."""
    entries = [
        {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "chargehand",
            "type": "model",
            "display_name": name,
            "created_at": "1970-01-01T00:00:00Z",
        }
        for name in dict.fromkeys(served.name for served in models)
    ]
    ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]} if entries else {}
    return msgspec.json.encode({"object": "list", "data": entries, "has_more": False, **ends})


def listed_gemini(models: Sequence[ServedModel]) -> bytes:
    """Return the list of models as Gemini's clients read it."""
    verbs = list(_GEMINI)
    names = dict.fromkeys(served.name for served in models)
    entries = [
        {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": verbs} for name in names
    ]
    return msgspec.json.encode({"models": entries})
