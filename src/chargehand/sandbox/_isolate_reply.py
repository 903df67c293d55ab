"""What the process of a snippet reports, read line by line as text of an untrusted author."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

from chargehand.sandbox import _isolate_child
from chargehand.sandbox._contract import Stream
from chargehand.sandbox._isolate import LEVELS, ConsoleLine, SnippetEnd, SnippetError, SnippetResult

_SURROGATES = re.compile(r"[\ud800-\udfff]")
_FAILURES: tuple[SnippetEnd, ...] = ("exception", "memory", "not_json")
_ROOM = 65_536
"""Bytes of reports besides console lines and value: how it failed, and what it took."""
_MOST_ERRORS = 8000


class TooMuchOutput(Exception):
    """The snippet said more than its limit."""


class Report:
    """Collects one snippet's report; `on_ready` is called when the engine is ready to begin."""

    def __init__(self, *, output_limit: int, on_ready: Callable[[], None]) -> None:
        self.console: list[ConsoleLine] = []
        self.ready = False
        self.errors = b""
        self._value: str | None = None
        self._failure: SnippetError | None = None
        self._peak: int | None = None
        self._on_ready = on_ready
        self._limit = output_limit
        self._said = 0
        self._taken = 0
        self._rest = bytearray()
        self._began = self._ended = 0.0

    def take(self, stream: Stream, piece: bytes) -> None:
        """Take what the process wrote; raises `TooMuchOutput`."""
        if stream == "stderr":
            self.errors = (self.errors + piece)[:_MOST_ERRORS]
            return
        self._taken += len(piece)
        self._rest += piece
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            self._line(bytes(line[:1]), bytes(line[1:]))
        if self._taken > self._limit + _ROOM:
            raise TooMuchOutput

    def _line(self, kind: bytes, body: bytes) -> None:
        if kind == _isolate_child.READY and not self.ready:
            self.ready = True
            self._began = self._ended = time.monotonic()
            self._taken = 0
            self._on_ready()
        elif kind in (_isolate_child.LINE, _isolate_child.VALUE):
            self._said += len(body)
            if self._said > self._limit:
                raise TooMuchOutput
            self._say(kind, body)
        elif kind == _isolate_child.FAILED:
            self._failure = _failure(body)
        elif kind == _isolate_child.PEAK and body.isdigit() and len(body) < 16:
            self._peak = int(body)
        self._ended = time.monotonic()

    def _say(self, kind: bytes, body: bytes) -> None:
        text = body.decode(errors="replace")
        if kind == _isolate_child.VALUE:
            self._value = text
            return
        level, _, written = text.partition(" ")
        parsed = _parsed(written)
        known = next((each for each in LEVELS if each == level), None)
        if known is not None and isinstance(parsed, str):
            self.console.append(ConsoleLine(level=known, text=_shown(parsed)))

    def stopped(self, error: SnippetError) -> SnippetResult:
        """Return the result of a snippet that was stopped now."""
        self._ended = time.monotonic()
        return self._result(None, error)

    def result(self, exit_code: int) -> SnippetResult:
        """Return the result of a snippet whose process ended by itself."""
        if self._failure is not None:
            return self._result(None, self._failure)
        if self._value is None:
            return self._result(None, _ended(exit_code))
        try:
            return self._result(_strict(self._value), None)
        except (ValueError, RecursionError) as error:
            return self._result(None, SnippetError(kind="not_json", name="ValueError", message=str(error)[:200]))

    def _result(self, value: Any, error: SnippetError | None) -> SnippetResult:
        seconds = self._ended - self._began
        return SnippetResult(
            value=value, console=tuple(self.console), seconds=seconds, peak_memory=self._peak, error=error
        )


def _shown(text: str) -> str:
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)


def _failure(body: bytes) -> SnippetError | None:
    parsed = _parsed(body.decode(errors="replace"))
    match parsed:
        case [str() as kind, str() as name, str() as message, int() | None as line]:
            known = next((each for each in _FAILURES if each == kind), None)
            if known is not None:
                name, message = map(_shown, (name, message))
                return SnippetError(kind=known, name=name, message=message, line=line)
    return None


def _parsed(text: str) -> Any:
    """Return what a report says, `None` for what no honest process reports."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _strict(text: str) -> Any:
    """Return a value; raises `ValueError` or `RecursionError` for what is not JSON of Unicode text."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    value = json.loads(text, parse_constant=refuse)
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value


def _ended(exit_code: int) -> SnippetError:
    how = f"by signal {exit_code - 128}" if exit_code > 128 else f"with exit code {exit_code}"
    return SnippetError(kind="ended", name="", message=f"its process ended {how} before it gave a value")
