"""Recordings: every exchange with a provider as one JSON line, without secrets.

`docs/reference/recording.md` documents the format.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import asdict

from chargehand.core.clock import Clock, SystemClock
from chargehand.core.codec import convert_to
from chargehand.core.errors import UpstreamError, UsageError
from chargehand.core.redaction import Redactor
from chargehand.models.contract import Dialect, ModelCall, ModelUpstream, Operation, UpstreamReply, close_chunks
from chargehand.models.event_stream import EVENT_STREAM, event_bytes, parse_events
from chargehand.models.registries import DIALECTS

_T = TypeVar("_T")


class AttemptOrdinals:
    """Numbers attempts from 1 in the order in which they first appear, unless `known` has their number."""

    def __init__(self, known: Mapping[str, int] | None = None, *, after: int = 0) -> None:
        self._known: Mapping[str, int] = known if known is not None else {}
        self._seen: dict[str, int] = {}
        self._last = after

    def of(self, attempt: str) -> int:
        """Return the number of an attempt."""
        if attempt in self._known:
            return self._known[attempt]
        if attempt not in self._seen:
            self._last = max(self._last, *self._known.values()) + 1 if self._known else self._last + 1
            self._seen[attempt] = self._last
        return self._seen[attempt]


class TurnAnswers(Generic[_T]):
    """The answers for each turn of each attempt; a repeated turn gets its next answer, or its last one again."""

    def __init__(self) -> None:
        self._answers: dict[tuple[int, int], list[_T]] = {}
        self._taken: dict[tuple[int, int], int] = {}

    def add(self, attempt: int, turn: int, answer: _T) -> None:
        """Append an answer to those that the turn already has."""
        self._answers.setdefault((attempt, turn), []).append(answer)

    def take(self, attempt: int, turn: int, *, like: int | None = None) -> _T | None:
        """Return the turn's next answer, or `None`; `like` names the attempt whose answers to use."""
        answers: Sequence[_T] = self._answers.get((attempt if like is None else like, turn), ())
        if not answers:
            return None
        taken = self._taken.get((attempt, turn), 0)
        self._taken[attempt, turn] = taken + 1
        return answers[min(taken, len(answers) - 1)]


FORMAT = "chargehand-recording"
VERSION = 1
_KEPT_HEADERS = ("content-type", "retry-after")


class RecordedExchange(msgspec.Struct, frozen=True, kw_only=True):
    """One call and its outcome; `docs/reference/recording.md` documents the fields.

    `status` is 0 if no reply arrived; `error` is then the upstream's error, as it is if the reply was cut.
    """

    call: str
    attempt: int
    turn: int
    dialect: Dialect
    request: dict[str, Any]
    status: int
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    reply: dict[str, Any] = msgspec.field(default_factory=dict)
    cut: bool = False
    seconds: float = 0.0
    error: dict[str, str] | None = None
    operation: Operation = "reply"
    at: str = ""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a recording's file; `torn` says where its last line was cut short, otherwise it is empty."""

    exchanges: tuple[RecordedExchange, ...]
    created: str = ""
    note: str = ""
    torn: str = ""

    @classmethod
    def load(cls, source: Path | bytes) -> Recording:
        """Read a recording; an incomplete last line is left out and reported in `torn`.

        Raises `UsageError` (`recording_invalid`).
        """
        content, name = read_source(source, "recording")
        whole, _, rest = content.rpartition(b"\n")
        lines = whole.split(b"\n") if whole else []
        if not lines:
            raise _invalid(name, 1, "it has no complete line")
        header = read_header(lines[0], FORMAT, VERSION, lambda text: _invalid(name, 1, text))
        exchanges = []
        for number, line in enumerate(lines[1:], start=2):
            if line.strip():
                try:
                    exchange = convert_to(json.loads(line), RecordedExchange)
                    if exchange.dialect not in DIALECTS:
                        raise ValueError(f"unknown dialect {exchange.dialect!r}; known: {', '.join(DIALECTS)}")
                    exchanges.append(exchange)
                except (ValueError, msgspec.ValidationError) as error:
                    raise _invalid(name, number, str(error)) from error
        torn = f"{name}, line {len(lines) + 1} was cut short and is left out" if rest.strip() else ""
        return cls(
            exchanges=tuple(exchanges),
            created=str(header.get("created", "")),
            note=str(header.get("note", "")),
            torn=torn,
        )


class RecordingWriter:
    """Appends exchanges to one file, each in a single write; shared by all upstreams recorded there.

    An existing recording is continued: a line that a crash cut short is removed, and attempts are numbered on
    unless `attempts` (id to number) knows them. Raises `UsageError` (`recording_invalid`) if the file is not a
    recording.
    """

    def __init__(
        self, path: Path, *, attempts: Mapping[str, int] | None = None, clock: Clock | None = None
    ) -> None:
        self.path = path
        self.clock: Clock = clock or SystemClock()
        # Each line is one write, so that a crash can only have cut the last one, which is removed.
        content = path.read_bytes() if path.exists() else None
        whole = content[: content.rfind(b"\n") + 1] if content is not None else b""
        last: int | None = None
        if whole:
            last = max((exchange.attempt for exchange in Recording.load(whole).exchanges), default=0)
        elif content is not None and FORMAT.encode() not in content and content.strip():
            raise _invalid(str(path), 1, "this file is not a recording, so it is not overwritten")
        if content is not None:
            os.truncate(path, len(whole))
        self.attempts = AttemptOrdinals(attempts, after=last or 0)
        try:
            self._file: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(
                f"the recording {str(path)!r} cannot be written: {error.strerror}",
                code="file_unwritable",
                hint="name a file in a directory that you can write",
            ) from error
        if last is None:
            created = self.clock.now().isoformat(timespec="seconds")
            self._append({"format": FORMAT, "version": VERSION, "created": created, "note": ""})

    def write(self, exchange: RecordedExchange) -> None:
        """Append one exchange, which must be free of secrets."""
        line = asdict(exchange)
        if exchange.operation == "reply":
            del line["operation"]
        self._append({key: value for key, value in line.items() if key not in ("error", "at") or value})

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, line: Mapping[str, Any]) -> None:
        if self._file is not None:
            append_line(self._file, line)


class RecordingUpstream:
    """Records the replies of another upstream; the line is written when the exchange ends, in any way."""

    def __init__(self, inner: ModelUpstream, writer: RecordingWriter, redactor: Redactor) -> None:
        self._inner = inner
        self._writer = writer
        self._redactor = redactor

    async def send(self, call: ModelCall) -> UpstreamReply:
        """Pass the call on; raises `UpstreamError` as the inner upstream does."""
        begun = self._writer.clock.monotonic()
        try:
            reply = await self._inner.send(call)
        except UpstreamError as error:
            self.write(call, begun, error=error)
            raise
        return UpstreamReply(
            status=reply.status, headers=reply.headers, chunks=_RecordedChunks(self, call, reply, begun=begun)
        )

    async def close(self) -> None:
        """Close the inner upstream; the writer belongs to its creator, who closes it."""
        await self._inner.close()

    def write(
        self,
        call: ModelCall,
        begun: float,
        *,
        reply: UpstreamReply | None = None,
        body: bytes = b"",
        cut: bool = False,
        error: UpstreamError | None = None,
    ) -> None:
        """Write one exchange that started at `begun` on the clock; without `reply` no reply arrived."""
        redact = self._redactor
        headers = {name: redact.text(value) for name, value in (reply.lower_headers if reply else {}).items()}
        problem = {"code": error.code, "message": redact.text(error.message)} if error else None
        plain = to_recorded_body(body, headers.get("content-type", ""))
        self._writer.write(
            RecordedExchange(
                call=redact.text(call.id),
                attempt=self._writer.attempts.of(call.attempt),
                turn=call.turn,
                dialect=call.dialect,
                request=redact.tree(call.body),
                status=reply.status if reply else 0,
                headers={name: headers[name] for name in _KEPT_HEADERS if name in headers},
                reply=redact_body(plain, redact, cut=cut) if reply else {},
                cut=cut,
                seconds=round(self._writer.clock.monotonic() - begun, 3),
                error=problem,
                operation=call.operation,
                at=self._writer.clock.now().isoformat(timespec="seconds"),
            )
        )


class _RecordedChunks:
    """The pieces of a reply, kept as they pass. A generator would write nothing when closed unread."""

    def __init__(
        self, upstream: RecordingUpstream, call: ModelCall, reply: UpstreamReply, *, begun: float
    ) -> None:
        self._upstream = upstream
        self._call = call
        self._reply = reply
        self._begun = begun
        self._inner = reply.chunks.__aiter__()
        self._body = bytearray()
        self._ended = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            piece = await self._inner.__anext__()
        except StopAsyncIteration:
            self._end(cut=False)
            raise
        except UpstreamError as error:
            self._end(cut=True, error=error)
            raise
        except BaseException:
            self._end(cut=True)
            raise
        self._body += piece
        return piece

    async def aclose(self) -> None:
        """Close the reply; an unread rest counts as cut."""
        self._end(cut=True)
        await close_chunks(self._inner)

    def _end(self, *, cut: bool, error: UpstreamError | None = None) -> None:
        if not self._ended:
            self._ended = True
            self._upstream.write(
                self._call, self._begun, reply=self._reply, body=bytes(self._body), cut=cut, error=error
            )


def to_recorded_body(body: bytes, content_type: str) -> dict[str, Any]:
    """Return a reply's body in recorded form, secrets included; `recorded_pieces` converts it back to bytes."""
    if content_type.lower().startswith(EVENT_STREAM):
        events = []
        for event in parse_events(body):
            data: Any = event.data
            # Only objects and lists are kept as JSON: `[DONE]` and a bare number must come back unchanged.
            with contextlib.suppress(ValueError):
                found = json.loads(event.data)
                data = found if isinstance(found, dict | list) else event.data
            events.append(({"event": event.event} if event.event else {}) | {"data": data})
        return {"sse": events}
    text = body.decode(errors="replace")
    try:
        return {"json": json.loads(text)}
    except ValueError:
        return {"text": text}


def redact_body(plain: Mapping[str, Any], redactor: Redactor, *, cut: bool = False) -> dict[str, Any]:
    """Return a recorded body without secrets; `cut`: it broke off, maybe in the middle of a secret."""
    if "sse" in plain:
        # All events at once, since a secret may be split over several events.
        data = redactor.stream([event["data"] for event in plain["sse"]], cut=cut)
        return {
            "sse": [
                ({"event": redactor.text(event["event"])} if "event" in event else {}) | {"data": clean}
                for event, clean in zip(plain["sse"], data, strict=True)
            ]
        }
    if "json" in plain:
        return {"json": redactor.tree(plain["json"])}
    return {"text": redactor.text(plain["text"], cut=cut)}


def recorded_pieces(reply: Mapping[str, Any]) -> list[bytes]:
    """Return the pieces of a recorded body, one per event."""
    if "sse" in reply:
        events = ((one.get("data", ""), one.get("event", "")) for one in reply["sse"])
        return [event_bytes(data if isinstance(data, str) else json.dumps(data), name) for data, name in events]
    if "json" in reply:
        return [json.dumps(reply["json"]).encode()]
    return [str(reply.get("text", "")).encode(errors="replace")]


def append_line(file: int, line: Mapping[str, Any]) -> None:
    """Append one JSON line in a single write, so that lines of several writers never mix."""
    os.write(file, json.dumps(line).encode() + b"\n")


def read_source(source: Path | str | bytes, what: str) -> tuple[bytes, str]:
    """Return the bytes of a file, or the given bytes, with a name for messages.

    Raises `UsageError` (`file_unreadable`).
    """
    if isinstance(source, bytes):
        return source, what
    try:
        return Path(source).read_bytes(), str(source)
    except OSError as error:
        message = f"the {what} {str(source)!r} cannot be read: {error.strerror}"
        raise UsageError(message, code="file_unreadable", hint="name an existing file") from error


def read_header(line: bytes, format: str, version: int, wrong: Callable[[str], Exception]) -> dict[str, Any]:
    """Return the first line of a file in that format; raises the error made by `wrong(message)`."""
    try:
        header = json.loads(line)
    except ValueError as error:
        raise wrong(f"this is not JSON: {error}") from error
    if not isinstance(header, dict) or header.get("format") != format:
        raise wrong(f'the first line must say {{"format": "{format}", "version": {version}}}')
    if header.get("version") != version:
        raise wrong(f"version {header.get('version')!r} is not supported, only {version}")
    return header


def _invalid(name: str, line: int, problem: str) -> UsageError:
    return UsageError(
        f"{name}, line {line}: {problem}",
        code="recording_invalid",
        hint="`chargehand gateway record FILE` writes a recording in the right format",
    )
