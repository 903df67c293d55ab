"""Messages and actions of an agent's own program: events in one common form, and the log of one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from chargehand.agents.contract import MeteredUsage
from chargehand.models.contract import Usage

EventKind = Literal["session", "text", "thought", "call", "result", "usage", "error", "end"]


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One report of an agent about itself; all of it is the agent's claim.

    `text` is its message, a tool's output or an error; `tool` and `call` name a tool and one call of it, with its
    `arguments`. The `usage` of a "usage" event is of one model call, of an "end" event of the whole session. An
    "end" that `failed` has its reason in `text`. The text of a `piece` continues that of the piece before.
    """

    kind: EventKind
    text: str = ""
    tool: str = ""
    call: str = ""
    arguments: Any = None
    failed: bool = False
    usage: Usage | None = None
    piece: bool = False


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
        """The tokens that the agent claims to have used: the session total if it reports one, else the sum."""
        return self._total or self._summed

    def take(self, event: AgentEvent) -> None:
        """Keep one event; pieces of a text are kept as one, once it is complete."""
        if event.piece and event.kind == "text":
            self._piece += event.text
            if len(self._piece) < _LONGEST_TEXT:
                return
        self._record_pieces()
        if not event.piece:
            self._record_event(event)

    def _record_pieces(self) -> None:
        text, self._piece = self._piece, ""
        if text:
            self._record_event(AgentEvent(kind="text", text=text))

    def _record_event(self, event: AgentEvent) -> None:
        text = self._redact(event.text)[:_LONGEST_TEXT]
        self.counts[event.kind] = self.counts.get(event.kind, 0) + 1
        arguments = ""
        if event.arguments is not None:
            document = msgspec.json.encode(event.arguments).decode(errors="replace")
            arguments = self._redact(document)[:_LONGEST_TEXT]
        match event.kind:
            case "session":
                self.session = self.session or text[:_SHOWN]
            case "text":
                self.said = text.strip() or self.said
                self._show(f"{text}\n")
            case "call":
                self._show(f"[{event.tool}] {arguments[:_SHOWN]}\n")
            case "error":
                self.error = text
                self._show(f"error: {text}\n")
            case "usage" if event.usage is not None:
                self._summed = Usage(
                    input=_add_counts(self._summed.input, event.usage.input),
                    output=_add_counts(self._summed.output, event.usage.output),
                )
            case "end":
                self.end = event
                self.error = text if event.failed else ""
                self.said = text.strip() or self.said if not event.failed else self.said
                self._total = event.usage or self._total
        self._append_line(event, text, arguments)

    def transcript(self) -> bytes:
        """Return the events as JSON Lines, "" without events."""
        self._record_pieces()
        return b"".join(self._lines)

    def document(self, metered: MeteredUsage, *, malformed: int) -> dict[str, Any]:
        """Return the summary for the mission's log: counts, and the agent's own tokens next to the gateway's.

        `agrees` is `None` if either count is unknown.
        """
        reported = (self.usage.input, self.usage.output)
        counted = (metered.input, metered.output)
        known = None not in reported and not metered.unknown
        return {
            "session": self.session,
            "counts": self.counts,
            "malformed": malformed,
            "left_out": self.left_out,
            "reported": {"input": reported[0], "output": reported[1]},
            "metered": {"calls": metered.calls, "input": counted[0], "output": counted[1]},
            "agrees": reported == counted if known else None,
        }

    def _append_line(self, event: AgentEvent, text: str, arguments: str) -> None:
        kept = {
            "kind": event.kind,
            "text": text,
            "tool": self._redact(event.tool),
            "call": self._redact(event.call),
        }
        document: dict[str, Any] = {name: value for name, value in kept.items() if value}
        if event.arguments is not None:
            document["arguments"] = arguments
        if event.failed:
            document["failed"] = True
        if event.usage is not None:
            document["usage"] = {"input": event.usage.input, "output": event.usage.output}
        line = msgspec.json.encode(document) + b"\n"
        # The rest is counted but not kept: a program that never stops writing must not fill the store.
        if self._size + len(line) > _MOST_BYTES:
            self.left_out += 1
            return
        self._size += len(line)
        self._lines.append(line)


def _add_counts(first: int | None, second: int | None) -> int | None:
    """Add counts of which either may be unknown; the sum is unknown only while both are."""
    return first if second is None else (first or 0) + second
