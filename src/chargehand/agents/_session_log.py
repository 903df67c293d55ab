"""What an agent of another program told in one run: a transcript, its last word, its own count of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from chargehand.agents._contract import Metered
from chargehand.agents._events import AgentEvent
from chargehand.models.contract import Usage

_LONGEST_TEXT = 100_000
_MOST_BYTES = 16 << 20
_SHOWN = 300


class SessionLog:
    """Collects events; `redact` is applied to every text before it is kept or shown.

    The transcript holds at most 16 MiB; `left_out` counts the events beyond.
    """

    def __init__(self, *, redact: Callable[[str], str], show: Callable[[str], None]) -> None:
        self.session = ""
        self.said = ""
        self.error = ""
        self.end: AgentEvent | None = None
        self.counts: dict[str, int] = {}
        self.left_out = 0
        self._redact = redact
        self._show = show
        self._lines: list[bytes] = []
        self._size = 0
        self._piece = ""
        self._summed = Usage()
        self._total: Usage | None = None

    @property
    def usage(self) -> Usage:
        """The tokens that the agent says it used: of the whole session where it says so, else summed up."""
        return self._total or self._summed

    def take(self, event: AgentEvent) -> None:
        """Keep one event; pieces of a text are kept as one, once it is whole."""
        if event.piece and event.kind == "text":
            self._piece += event.text
            if len(self._piece) < _LONGEST_TEXT:
                return
        self._join()
        if not event.piece:
            self._take(event)

    def _join(self) -> None:
        text, self._piece = self._piece, ""
        if text:
            self._take(AgentEvent(kind="text", text=text))

    def _take(self, event: AgentEvent) -> None:
        text = self._redact(event.text)[:_LONGEST_TEXT]
        self.counts[event.kind] = self.counts.get(event.kind, 0) + 1
        match event.kind:
            case "session":
                self.session = self.session or text[:_SHOWN]
            case "text":
                self.said = text.strip() or self.said
            case "error":
                self.error = text
            case "usage":
                self._add(event.usage)
            case "end":
                self.end = event
                self.error = text if event.failed else ""
                self.said = text.strip() or self.said if not event.failed else self.said
                self._total = event.usage or self._total
        if event.kind in ("text", "call", "error"):
            self._show(_line(event, text, self._arguments(event)))
        self._keep(event, text)

    def transcript(self) -> bytes:
        """Return the events as JSON Lines, "" where there are none."""
        self._join()
        return b"".join(self._lines)

    def document(self, metered: Metered, *, malformed: int) -> dict[str, Any]:
        """Return what goes into the log: counts, and the agent's own tokens beside those of the gateway.

        `agrees` is `None` where either side does not know.
        """
        mine, theirs = (self.usage.input, self.usage.output), (metered.input, metered.output)
        known = None not in mine and not metered.unknown
        return {
            "session": self.session,
            "counts": self.counts,
            "malformed": malformed,
            "left_out": self.left_out,
            "reported": {"input": mine[0], "output": mine[1]},
            "metered": {"calls": metered.calls, "input": theirs[0], "output": theirs[1]},
            "agrees": mine == theirs if known else None,
        }

    def _arguments(self, event: AgentEvent) -> str:
        if event.arguments is None:
            return ""
        return self._redact(msgspec.json.encode(event.arguments).decode(errors="replace"))[:_LONGEST_TEXT]

    def _keep(self, event: AgentEvent, text: str) -> None:
        kept = {
            "kind": event.kind,
            "text": text,
            "tool": self._redact(event.tool),
            "call": self._redact(event.call),
        }
        document: dict[str, Any] = {name: value for name, value in kept.items() if value}
        if event.arguments is not None:
            document["arguments"] = self._arguments(event)
        if event.failed:
            document["failed"] = True
        if event.usage is not None:
            document["usage"] = {"input": event.usage.input, "output": event.usage.output}
        line = msgspec.json.encode(document) + b"\n"
        if self._size + len(line) > _MOST_BYTES:
            self.left_out += 1
            return
        self._size += len(line)
        self._lines.append(line)

    def _add(self, usage: Usage | None) -> None:
        if usage is not None:
            self._summed = Usage(
                input=_sum(self._summed.input, usage.input), output=_sum(self._summed.output, usage.output)
            )


def _sum(first: int | None, second: int | None) -> int | None:
    return first if second is None else (first or 0) + second


def _line(event: AgentEvent, text: str, arguments: str) -> str:
    if event.kind == "call":
        return f"[{event.tool}] {arguments[:_SHOWN]}\n"
    return f"error: {text}\n" if event.kind == "error" else f"{text}\n"
