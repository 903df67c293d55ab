"""What an ACP agent tells while it works, as events: pieces of text joined, calls remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from chargehand.agents._events import AgentEvent
from chargehand.agents._look import inner, said, text_at
from chargehand.agents._session_log import SessionLog

_MOST_CALLS = 10_000
_LONGEST_TEXT = 100_000


class Updates:
    """Makes events of `session/update` notifications and puts them into a log."""

    def __init__(self, log: SessionLog) -> None:
        self._log = log
        self._text = ""
        self._speaking: Literal["text", "thought"] = "text"
        self._calls: dict[str, dict[str, Any]] = {}
        self._told: set[str] = set()
        self._began: Callable[[], None] | None = None

    def on_turn(self, began: Callable[[], None]) -> None:
        """Call `began` once, as soon as the agent tells anything of the turn that begins now."""
        self._began = began

    def told(self, method: str, params: Mapping[str, Any]) -> None:
        """Take one notification."""
        update = inner(params, "update")
        if method != "session/update":
            return
        began, self._began = self._began, None
        if began is not None:
            began()
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                self._say("text", said(update.get("content")))
            case "agent_thought_chunk":
                self._say("thought", said(update.get("content")))
            case "tool_call" | "tool_call_update":
                self._call(update)

    def flush(self) -> None:
        """Make an event of the text that has come so far."""
        text, self._text = self._text, ""
        if text:
            self._log.take(AgentEvent(kind=self._speaking, text=text))

    def merged(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the call of a permission request with all that was told of it before."""
        call = inner(params, "toolCall")
        return self._remember(call)

    def permitted(self, call: str, refused: str) -> None:
        """Note how a permission request was answered where it was refused."""
        if refused:
            self.flush()
            self._log.take(AgentEvent(kind="result", call=call, text=refused, failed=True))

    def _say(self, kind: Literal["text", "thought"], text: str) -> None:
        if kind != self._speaking or len(self._text) > _LONGEST_TEXT:
            self.flush()
        self._speaking = kind
        self._text += text

    def _call(self, update: Mapping[str, Any]) -> None:
        call = self._remember(update)
        number, status = text_at(call, "toolCallId"), call.get("status")
        done = status in ("completed", "failed")
        if number not in self._told and (call.get("rawInput") or done):
            self._told.add(number)
            self.flush()
            tool = text_at(call, "kind", "title")
            self._log.take(AgentEvent(kind="call", tool=tool, call=number, arguments=call.get("rawInput")))
        if done and update.get("status") == status:
            text = said([each.get("content") for each in _objects(call.get("content"))]) or said(
                call.get("rawOutput")
            )
            self.flush()
            self._log.take(AgentEvent(kind="result", call=number, text=text, failed=status == "failed"))

    def _remember(self, update: Mapping[str, Any]) -> dict[str, Any]:
        number = text_at(update, "toolCallId")
        fresh = {key: value for key, value in update.items() if value not in (None, {}, [])}
        merged = {**self._calls.get(number, {}), **fresh}
        if len(self._calls) < _MOST_CALLS or number in self._calls:
            self._calls[number] = merged
        return merged


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
