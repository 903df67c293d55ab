"""JSON from untrusted programs: bounded lines, lookups that never fail, and the requests of a JSON-RPC connection.

ACP agents and MCP servers both speak line-based JSON-RPC, through a relay inside the sandbox. This module holds
the host's common part; there are two relays, for reasons in docs/decisions/0038-one-json-rpc-channel.md.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import msgspec

METHOD_NOT_FOUND, INVALID_PARAMS, REFUSED = -32601, -32602, -32000
# Characters of an error that are shown.
LONGEST_ERROR = 500
_LONGEST_LINE = 16 << 20


class JsonLines:
    """Splits a stream of bytes into JSON objects, one per line.

    `malformed` counts the lines that were not a JSON object, or were longer than `longest` bytes; `odd` is the
    latest of them, shortened for display. Empty lines are ignored.
    """

    def __init__(self, *, longest: int = _LONGEST_LINE) -> None:
        self.malformed = 0
        self.odd = ""
        self._longest = longest
        self._open = bytearray()
        self._skipping = False

    def take(self, piece: bytes) -> Iterator[dict[str, Any]]:
        """Yield the objects whose lines are complete with this piece."""
        *complete, rest = piece.split(b"\n")
        for part in complete:
            self._append(part)
            line, self._open = bytes(self._open), bytearray()
            skipped, self._skipping = self._skipping, False
            if skipped or not line.strip():
                continue
            try:
                document = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                document = None
            if isinstance(document, dict):
                yield document
            else:
                self._count_malformed(line)
        self._append(rest)

    def finish(self) -> Iterator[dict[str, Any]]:
        """Yield the object of a last line without a line end."""
        yield from self.take(b"\n")

    def _append(self, part: bytes) -> None:
        if self._skipping:
            return
        self._open += part
        if len(self._open) > self._longest:  # counted at once: the end of such a line may never come
            self._count_malformed(bytes(self._open[:200]))
            self._open = bytearray()
            self._skipping = True

    def _count_malformed(self, line: bytes) -> None:
        self.malformed += 1
        self.odd = line[:200].decode(errors="replace")


class RpcError(Exception):
    """An error answer: the peer's to us, or ours to the peer. `number` is the code of JSON-RPC."""

    def __init__(self, message: str, *, number: int = REFUSED) -> None:
        super().__init__(message)
        self.message = message
        self.number = number


class RpcChannel:
    """The outgoing lines of a connection, and its pending requests.

    `side` is the prefix of a line, by which a relay distinguishes its own orders from the program's messages;
    answers settle only requests of their side, so that a program cannot answer for its relay.
    """

    def __init__(self, ids: itertools.count[int] | None = None) -> None:
        self.waiting: dict[tuple[bytes, int], asyncio.Future[Any]] = {}
        self._ids = itertools.count(1) if ids is None else ids
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def outgoing(self) -> AsyncIterator[bytes]:
        """Yield the lines to send, until `close`."""
        while (line := await self._lines.get()) is not None:
            yield line

    def close(self) -> None:
        """End the outgoing lines."""
        self._lines.put_nowait(None)

    def send(self, message: Mapping[str, Any], side: bytes = b"") -> None:
        """Send one message."""
        self._lines.put_nowait(side + msgspec.json.encode(message) + b"\n")

    def notify(self, method: str, params: Mapping[str, Any], side: bytes = b"") -> None:
        """Send a notification, which has no answer."""
        self.send({"jsonrpc": "2.0", "method": method, "params": params}, side)

    async def request(self, method: str, params: Mapping[str, Any], side: bytes = b"") -> dict[str, Any]:
        """Send a request and return its result; raises `RpcError`."""
        return await self.order({"jsonrpc": "2.0", "method": method, "params": params}, side)

    async def order(self, message: Mapping[str, Any], side: bytes = b"") -> dict[str, Any]:
        """Send a message under a new id and return the answer's object; raises `RpcError`."""
        number = next(self._ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting[side, number] = future
        self.send({"id": number, **message}, side)
        answer = await future
        return answer if isinstance(answer, dict) else {}

    def answer(self, number: Any, result: Any, side: bytes = b"") -> None:
        """Answer a request of the peer with its result, or with an `RpcError`."""
        content = {"result": result}
        if isinstance(result, RpcError):
            content = {"error": {"code": result.number, "message": result.message}}
        self.send({"jsonrpc": "2.0", "id": number, **content}, side)

    def settle(self, answer: Mapping[str, Any], side: bytes = b"") -> None:
        """Pass an answer to its pending request; ignore an answer without a request."""
        number = answer.get("id")
        # `True` is an int in Python, and would answer request 1.
        future = self.waiting.pop((side, number), None) if type(number) is int else None
        if future is None or future.done():
            return
        error = answer.get("error")
        if error is None:
            future.set_result(answer.get("result"))
            return
        detail = object_at(answer, "error")
        message = error if isinstance(error, str) else text_at(detail, "message") or "an error without a message"
        more = text_at(object_at(detail, "data"), "details", "message")
        code = detail.get("code")
        shown = (f"{message}: {more}" if more else message)[:LONGEST_ERROR]
        future.set_exception(RpcError(shown, number=code if isinstance(code, int) else REFUSED))


# Lookups: a value of an unexpected shape counts as missing.


def object_at(document: Mapping[str, Any], *path: str) -> dict[str, Any]:
    """Return the object at a path of keys, or an empty one if missing."""
    found: Any = document
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return dict(found) if isinstance(found, Mapping) else {}


def text_at(document: Mapping[str, Any], *names: str) -> str:
    """Return the first non-empty text under one of these keys."""
    return next((value for name in names if isinstance(value := document.get(name), str) and value), "")


def count_at(document: Mapping[str, Any], *names: str) -> int | None:
    """Return the first non-negative integer under one of these keys."""
    for name in names:
        value = document.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def objects_at(document: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of the list under a key."""
    value = document.get(name)
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, dict))


def content_text(value: Any) -> str:
    """Return the text of a content: a text, an object that has one, or a list of them."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return text_at(value, "text", "content", "output")
    if isinstance(value, list):
        return "\n".join(filter(None, map(content_text, value)))
    return ""
