"""Long output made short enough for a model: its head and its tail, and where the rest lies."""

from __future__ import annotations

from dataclasses import dataclass

LIMIT = 10_000
"""Characters of one tool result that a model sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortened:
    """The kept parts of a text and how much between them was left out (both 0 when it is whole)."""

    head: str
    tail: str
    characters_left_out: int
    lines_left_out: int

    @property
    def whole(self) -> bool:
        """Say whether nothing was left out."""
        return self.characters_left_out == 0

    def render(self, where: str) -> str:
        """Return the text to show; `where` says how to get at all of it."""
        if self.whole:
            return self.head
        middle = f"[... {self.characters_left_out} characters ({self.lines_left_out} lines) left out; {where} ...]"
        return f"{_ended(self.head)}{middle}\n{self.tail}"


def shorten(text: str, *, limit: int = LIMIT) -> Shortened:
    """Return head and tail of `text`, at most `limit` characters in all, cut at line ends where possible."""
    if len(text) <= limit:
        return Shortened(head=text, tail="", characters_left_out=0, lines_left_out=0)
    head_end = _head_end(text, limit // 2)
    tail_start = _tail_start(text, len(text) - (limit - limit // 2))
    dropped = text[head_end:tail_start]
    lines = dropped.count("\n") + (not dropped.endswith("\n"))
    return Shortened(
        head=text[:head_end], tail=text[tail_start:], characters_left_out=len(dropped), lines_left_out=lines
    )


def _head_end(text: str, budget: int) -> int:
    cut = text.rfind("\n", 0, budget) + 1
    return cut if cut > budget // 2 else budget


def _tail_start(text: str, start: int) -> int:
    """A line break counts only in the first half of the tail: one long last line is cut rather than lost."""
    if text[start - 1] == "\n":
        return start
    cut = text.find("\n", start, start + (len(text) - start) // 2) + 1
    return cut or start


def _ended(head: str) -> str:
    return head if not head or head.endswith("\n") else head + "\n"
