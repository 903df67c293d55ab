"""Pictures and files in a request: which there are, and files whose text is at hand as text."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from chargehand.models._contract import Dialect
from chargehand.models._gateway_dialect import mapping

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
