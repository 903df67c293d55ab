"""What an MCP server answers with, as text for a model: other contents are described and kept."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from chargehand.agents._look import inner, objects_at, text_at
from chargehand.core.text import printable

_MOST_PARTS = 200


def read_content(result: Mapping[str, Any], *, keep: Callable[[bytes], str]) -> str:
    """Return all that a result of `tools/call` says, as text; `keep` stores bytes and returns their artifact id.

    Structured content is shown where there is no other.
    """
    parts = [_part(part, keep) for part in list(objects_at(result, "content"))[:_MOST_PARTS]]
    if not parts and result.get("structuredContent") is not None:
        parts = [msgspec.json.encode(result["structuredContent"]).decode()]
    return printable("\n".join(parts)) or "(the server answered with nothing)"


def _part(part: Mapping[str, Any], keep: Callable[[bytes], str]) -> str:
    match part.get("type"):
        case "text":
            return text_at(part, "text")
        case "image" | "audio" as kind:
            return _kept(str(kind), part, text_at(part, "data"), keep)
        case "resource":
            resource = inner(part, "resource")
            where = _line(text_at(resource, "uri"))
            if isinstance(resource.get("text"), str):
                return f"[resource {where}]\n{resource['text']}"
            return _kept(f"resource {where}", resource, text_at(resource, "blob"), keep)
        case "resource_link":
            return f"[link to resource {_line(text_at(part, 'uri'))}: {_line(text_at(part, 'name', 'title'))}]"
        case other:
            return f"[content of the unknown type {_line(str(other))}]"


def _kept(what: str, part: Mapping[str, Any], data: str, keep: Callable[[bytes], str]) -> str:
    kind = _line(text_at(part, "mimeType")) or "of unknown type"
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return f"[{what} ({kind}) that is no base64]"
    return f"[{what} ({kind}), {len(content)} bytes, not shown; kept as artifact {keep(content)}]"


def _line(text: str) -> str:
    return " ".join(printable(text).split())[:200]
