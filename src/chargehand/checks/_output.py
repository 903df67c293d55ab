"""The retained part of a check's output: its head and its tail."""

from __future__ import annotations

from collections import deque

from chargehand.core.text import printable
from chargehand.sandbox.contract import OnOutput, Stream

# The head shows the commands, the tail the end: 1 MB in total is kept per check.
_HEAD_BYTES = 256_000
_TAIL_BYTES = 768_000
_SHOWN_BYTES = 12_000
# A longer line, such as a progress bar that never ends its line, is kept in pieces.
_LINE_BYTES = 16_000


class HeadTail:
    """Collects both streams line by line in the order of arrival, sizes in bytes; `also` receives each piece.

    A program may write one line in several pieces, and a piece of the other stream may arrive between them.
    Runners recognize whole lines, so a line is kept only when it is complete, or when `content` is called.
    """

    def __init__(self, *, head: int = _HEAD_BYTES, tail: int = _TAIL_BYTES, also: OnOutput | None = None) -> None:
        self._also = also
        self._begun: dict[Stream, bytes] = {}
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
        text = self._begun.pop(stream, b"") + piece
        end = text.rfind(b"\n") + 1 or (len(text) if len(text) > _LINE_BYTES else 0)
        if text[end:]:
            self._begun[stream] = text[end:]
        self._keep(text[:end])

    def _keep(self, piece: bytes) -> None:
        taken = piece[: self._room]
        self._head += taken
        self._room -= len(taken)
        rest = piece[len(taken) :]
        if rest:
            self._tail.append(rest)
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
        """Return head and tail of the whole output, with a line between them that states the omitted size."""
        for begun in self._begun.values():
            self._keep(begun)
        self._begun.clear()
        between = b"\n[... %d bytes left out ...]\n" % self._dropped if self._dropped else b""
        return bytes(self._head) + between + b"".join(self._tail)


def shown_tail(content: bytes, *, limit: int = _SHOWN_BYTES) -> str:
    """Return the end of an output as text that is safe to show, at most `limit` bytes of it."""
    cut = len(content) > limit
    text = printable(content[-limit:].decode("utf-8", "replace"))
    return f"[...]\n{text}" if cut else text
