"""Snippets: their specification, their results, and the parser of their process's report."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, Literal, get_args

from msgspec import Struct

from chargehand.core.errors import InfrastructureError, UsageError, nearest
from chargehand.sandbox.contract import Stream
from chargehand.sandbox.inside import snippet

Language = Literal["python", "javascript"]
Level = Literal["debug", "log", "info", "warn", "error"]
SnippetEnd = Literal["exception", "memory", "time", "output", "not_json", "ended"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
LEVELS: tuple[Level, ...] = get_args(Level)
MOST_MEMORY_MB = 1024
_MOST_SECONDS = 3600.0
_MOST_OUTPUT = 64 << 20
_MOST_SOURCE = 1 << 20
_SUFFIXES: dict[str, Language] = {".py": "python", ".js": "javascript", ".mjs": "javascript", ".cjs": "javascript"}


class SnippetSpec(Struct, frozen=True, kw_only=True):
    """One snippet and its limits.

    `input` is any JSON value; the snippet sees it as the variable `input`. `memory_mb` in MiB is in addition to
    the engine's memory at rest; `seconds` count from the moment the engine is ready; `output_limit` bounds the
    bytes of the console lines and the value together, as JSON. Raises `UsageError` for a snippet that cannot run
    at all.
    """

    language: Language
    source: str
    input: Any = None
    memory_mb: int = 16
    seconds: float = 5.0
    output_limit: int = 1_000_000

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            raise UsageError(
                f"no snippets of the language {self.language!r}", hint=nearest(self.language, LANGUAGES)
            )
        _within("memory_mb", self.memory_mb, 1, MOST_MEMORY_MB)
        _within("seconds", self.seconds, 0.001, _MOST_SECONDS)
        _within("output_limit", self.output_limit, 0, _MOST_OUTPUT)
        if "\0" in self.source:
            raise UsageError("the snippet contains a NUL character", hint="a snippet is text")
        try:
            size = len(self.source.encode())
        except UnicodeEncodeError as error:
            raise UsageError(f"the snippet is not Unicode text: {error}", hint="save it as UTF-8") from error
        if size > _MOST_SOURCE:
            raise UsageError(f"a snippet of {size} bytes; the limit is {_MOST_SOURCE}", hint="give data as input")


class ConsoleLine(Struct, frozen=True, kw_only=True):
    """One line that a snippet wrote: in Python `log` is stdout and `error` is stderr."""

    level: Level
    text: str


class SnippetError(Struct, frozen=True, kw_only=True):
    """The reason why a snippet gave no value.

    `exception`: it raised `name` with `message` at `line` of its source (`None` if unknown). `memory`, `time`,
    `output`: it exceeded that limit. `not_json`: its value cannot be encoded as JSON. `ended`: its process ended
    before it returned a value.
    """

    kind: SnippetEnd
    name: str
    message: str
    line: int | None = None


class SnippetResult(Struct, frozen=True, kw_only=True):
    """The result of one snippet: `value` if `error` is `None`.

    `console` holds the lines in order, also of a snippet that was stopped. `peak_memory` is the most memory in
    bytes that its process held above the engine at rest, `None` if it was stopped before it was measured.
    """

    value: Any
    console: tuple[ConsoleLine, ...]
    seconds: float
    peak_memory: int | None
    error: SnippetError | None


class SnippetEngineError(InfrastructureError):
    """The engine that runs snippets failed before the snippet began; the snippet itself may be fine."""

    default_code = "snippet_engine"


def language_of(name: str) -> Language:
    """Return the language of a file by its suffix; raises `UsageError` for an unknown suffix."""
    language = _SUFFIXES.get(PurePath(name).suffix)
    if language is None:
        raise UsageError(f"{name!r} does not show its language", hint="give --language python or javascript")
    return language


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UsageError(f"{name} {value!r} of a snippet", hint=f"from {low} to {high}")


_SURROGATES = re.compile(r"[\ud800-\udfff]")
_FAILURES: tuple[SnippetEnd, ...] = ("exception", "memory", "not_json")
# Bytes for the parts of a report other than console lines and value: its failure and its usage.
_ROOM = 65_536
_MOST_ERRORS = 8000


class OutputLimitExceeded(Exception):
    """The snippet wrote more than its limit."""


class SnippetReport:
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
        """Process output of the snippet's process; raises `OutputLimitExceeded`."""
        if stream == "stderr":
            self.errors = (self.errors + piece)[:_MOST_ERRORS]
            return
        self._taken += len(piece)
        self._rest += piece
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            self._take_line(bytes(line[:1]), bytes(line[1:]))
        # Counted separately from the lines' content: a compromised process may send anything but lines.
        if self._taken > self._limit + _ROOM:
            raise OutputLimitExceeded

    def _take_line(self, kind: bytes, body: bytes) -> None:
        if kind == snippet.READY and not self.ready:
            self.ready = True
            self._began = self._ended = time.monotonic()
            # Earlier output is the engine's and not the snippet's.
            self._taken = 0
            self._on_ready()
        elif kind in (snippet.LINE, snippet.VALUE):
            self._said += len(body)
            if self._said > self._limit:
                raise OutputLimitExceeded
            text = body.decode(errors="replace")
            if kind == snippet.VALUE:
                self._value = text
            else:
                level, _, written = text.partition(" ")
                line = _parse(written)
                known = next((each for each in LEVELS if each == level), None)
                if known is not None and isinstance(line, str):
                    self.console.append(ConsoleLine(level=known, text=_replace_surrogates(line)))
        elif kind == snippet.FAILED:
            self._failure = None
            match _parse(body.decode(errors="replace")):
                case [str() as given, str() as name, str() as message, int() | None as at]:
                    failure = next((each for each in _FAILURES if each == given), None)
                    if failure is not None:
                        name, message = map(_replace_surrogates, (name, message))
                        self._failure = SnippetError(kind=failure, name=name, message=message, line=at)
        # Bounded: int() raises for thousands of digits, and a hostile process may send them.
        elif kind == snippet.PEAK and body.isdigit() and len(body) < 16:
            self._peak = int(body)
        self._ended = time.monotonic()

    def stopped(self, error: SnippetError) -> SnippetResult:
        """Return the result of a snippet that was stopped now."""
        self._ended = time.monotonic()
        return self._result(None, error)

    def result(self, exit_code: int) -> SnippetResult:
        """Return the result of a snippet whose process ended by itself."""
        if self._failure is not None:
            return self._result(None, self._failure)
        if self._value is None:
            how = f"by signal {exit_code - 128}" if exit_code > 128 else f"with exit code {exit_code}"
            message = f"its process ended {how} before it returned a value"
            return self._result(None, SnippetError(kind="ended", name="", message=message))
        try:
            value = json.loads(self._value, parse_constant=_refuse_constant)
            # Python's parser accepts lone surrogates, which the next reader of the result would refuse.
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
            return self._result(value, None)
        except (ValueError, RecursionError) as error:
            return self._result(None, SnippetError(kind="not_json", name="ValueError", message=str(error)[:200]))

    def _result(self, value: Any, error: SnippetError | None) -> SnippetResult:
        seconds = self._ended - self._began
        return SnippetResult(
            value=value, console=tuple(self.console), seconds=seconds, peak_memory=self._peak, error=error
        )


def _replace_surrogates(text: str) -> str:
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)


def _parse(text: str) -> Any:
    """Return the content of a report, `None` for content that no honest process reports."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _refuse_constant(constant: str) -> None:
    """Raise `ValueError`: Python's parser accepts NaN and Infinity, which are not JSON."""
    raise ValueError(f"{constant} is not JSON")
