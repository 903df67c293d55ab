"""JSON Lines from an untrusted program: cut out of what comes, bounded, malformed ones counted and passed over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

LONGEST_LINE = 16 << 20


class JsonLines:
    """Cuts objects out of a stream of bytes.

    `malformed` counts the lines that were no JSON object, or longer than 16 MiB; the latest of them is in `odd`,
    shortened, to be shown. Empty lines count for nothing.
    """

    def __init__(self, *, longest: int = LONGEST_LINE) -> None:
        self.malformed = 0
        self.odd = ""
        self._longest = longest
        self._open = bytearray()
        self._skipping = False

    def take(self, piece: bytes) -> Iterator[dict[str, Any]]:
        """Yield the objects whose lines are whole with this piece."""
        *whole, rest = piece.split(b"\n")
        for part in whole:
            self._add(part)
            line, self._open = bytes(self._open), bytearray()
            skipped, self._skipping = self._skipping, False
            if not skipped:
                yield from self._decoded(line)
        self._add(rest)

    def finish(self) -> Iterator[dict[str, Any]]:
        """Yield the object of a last line without its end."""
        yield from self.take(b"\n")

    def _add(self, part: bytes) -> None:
        if self._skipping:
            return
        self._open += part
        if len(self._open) > self._longest:
            self._note(bytes(self._open[:200]))
            self._open = bytearray()
            self._skipping = True

    def _decoded(self, line: bytes) -> Iterator[dict[str, Any]]:
        if not line.strip():
            return
        try:
            document = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            document = None
        if isinstance(document, dict):
            yield document
        else:
            self._note(line)

    def _note(self, line: bytes) -> None:
        self.malformed += 1
        self.odd = line[:200].decode(errors="replace")
