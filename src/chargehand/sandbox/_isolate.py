"""What a snippet is and how it ends: the contract of the `isolate` tier."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal, get_args

from chargehand.core.errors import InfrastructureError, UsageError, nearest

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SnippetSpec:
    """One snippet and what it may take.

    `input` is any JSON value; the snippet sees it as the variable `input`. `memory_mb` in MiB is on top of what
    the engine takes at rest; `seconds` run from the moment the engine is ready; `output_limit` bounds the bytes of
    the console lines and the value together, as JSON. Raises `UsageError` for what cannot be run at all.
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
            raise UsageError("the snippet holds a NUL character", hint="a snippet is text")
        try:
            size = len(self.source.encode())
        except UnicodeEncodeError as error:
            raise UsageError(f"the snippet is no Unicode text: {error}", hint="save it as UTF-8") from error
        if size > _MOST_SOURCE:
            raise UsageError(f"a snippet of {size} bytes; the limit is {_MOST_SOURCE}", hint="give data as input")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleLine:
    """One line that a snippet wrote: in Python `log` is stdout and `error` is stderr."""

    level: Level
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnippetError:
    """Why a snippet gave no value.

    `exception`: it raised `name` with `message` at `line` of its source (`None` where that is unknown). `memory`,
    `time`, `output`: it went over that limit. `not_json`: its value is none that JSON has. `ended`: its process
    ended before it gave a value.
    """

    kind: SnippetEnd
    name: str
    message: str
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnippetResult:
    """How one snippet ended: with `value` where `error` is `None`.

    `console` holds the lines in order, also of a snippet that was stopped. `peak_memory` in bytes is what its
    process held at most above the engine at rest, `None` where it was stopped before anybody could look.
    """

    value: Any
    console: tuple[ConsoleLine, ...]
    seconds: float
    peak_memory: int | None
    error: SnippetError | None


class SnippetEngineError(InfrastructureError):
    """The engine that runs snippets failed before the snippet began; nothing is said of the snippet."""

    default_code = "snippet_engine"


def language_of(name: str) -> Language:
    """Return the language of a file by its suffix; raises `UsageError` where it tells none."""
    language = _SUFFIXES.get(PurePath(name).suffix)
    if language is None:
        raise UsageError(f"{name!r} does not tell its language", hint="give --language python or javascript")
    return language


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UsageError(f"{name} {value!r} of a snippet", hint=f"from {low} to {high}")
