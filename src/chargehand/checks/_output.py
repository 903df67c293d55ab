"""A command's output as it came, bounded: its head and its tail are kept."""

from __future__ import annotations

from collections import deque

from chargehand.core.text import printable
from chargehand.sandbox.contract import Stream

_HEAD = 256_000
_TAIL = 768_000
_SHOWN = 12_000


class HeadTail:
    """Collects both streams in the order they arrive; sizes in bytes."""

    def __init__(self, *, head: int = _HEAD, tail: int = _TAIL) -> None:
        self._room = head
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._kept = 0
        self._limit = tail
        self._dropped = 0

    def add(self, stream: Stream, piece: bytes) -> None:
        """Take one piece of either stream; the signature is the sandbox's `on_output`."""
        taken = piece[: self._room]
        self._head += taken
        self._room -= len(taken)
        rest = piece[len(taken) :]
        if rest:
            self._tail.append(bytes(rest))
            self._kept += len(rest)
        while self._kept > self._limit:
            self._shorten(self._kept - self._limit)

    def _shorten(self, excess: int) -> None:
        first = self._tail.popleft()
        if len(first) > excess:
            self._tail.appendleft(first[excess:])
        gone = min(len(first), excess)
        self._kept -= gone
        self._dropped += gone

    def content(self) -> bytes:
        """Return head and tail, with a line between them that says how much is left out."""
        between = b"\n[... %d bytes left out ...]\n" % self._dropped if self._dropped else b""
        return bytes(self._head) + between + b"".join(self._tail)


def shown_tail(content: bytes, *, limit: int = _SHOWN) -> str:
    """Return the end of an output as text that is safe to show, at most `limit` bytes of it."""
    cut = len(content) > limit
    text = printable(content[-limit:].decode("utf-8", "replace"))
    return f"[...]\n{text}" if cut else text
