"""The retained part of a check's output: its head and its tail."""

from __future__ import annotations

from collections import deque

from chargehand.core.text import printable
from chargehand.sandbox.contract import OnOutput, Stream

# The head shows the commands, the tail the end: 1 MB in total is kept per check.
_HEAD_BYTES = 256_000
_TAIL_BYTES = 768_000
_SHOWN_BYTES = 12_000


class HeadTail:
    """Collects both streams in the order of arrival, sizes in bytes; `also` receives each piece."""

    def __init__(self, *, head: int = _HEAD_BYTES, tail: int = _TAIL_BYTES, also: OnOutput | None = None) -> None:
        self._also = also
        self._room = head
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._kept = 0
        self._limit = tail
        self._dropped = 0

    def add(self, stream: Stream, piece: bytes) -> None:
        """Add one piece of either stream; the signature is the sandbox's `on_output`."""
        if self._also is not None:
            self._also(stream, piece)
        taken = piece[: self._room]
        self._head += taken
        self._room -= len(taken)
        rest = piece[len(taken) :]
        if rest:
            self._tail.append(bytes(rest))
            self._kept += len(rest)
        while self._kept > self._limit:
            first, excess = self._tail.popleft(), self._kept - self._limit
            if len(first) > excess:
                self._tail.appendleft(first[excess:])
            gone = min(len(first), excess)
            self._kept -= gone
            self._dropped += gone

    @property
    def cut(self) -> bool:
        """Whether any output is left out."""
        return self._dropped > 0

    def content(self) -> bytes:
        """Return head and tail, with a line between them that states the omitted size."""
        between = b"\n[... %d bytes left out ...]\n" % self._dropped if self._dropped else b""
        return bytes(self._head) + between + b"".join(self._tail)


def shown_tail(content: bytes, *, limit: int = _SHOWN_BYTES) -> str:
    """Return the end of an output as text that is safe to show, at most `limit` bytes of it."""
    cut = len(content) > limit
    text = printable(content[-limit:].decode("utf-8", "replace"))
    return f"[...]\n{text}" if cut else text
