"""Replay cache: replies that an attempt got before a crash, returned again for free."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from chargehand.core.codec import convert_to
from chargehand.core.redaction import Redactor
from chargehand.models.contract import Dialect, Operation, Usage
from chargehand.models.recording import recorded_pieces, redact_body, to_recorded_body
from chargehand.models.request_matching import (
    Divergence,
    RunNames,
    RunPairs,
    describe_difference,
    find_difference,
    normalise_request,
    update_ids,
)

_FORMAT = "chargehand-calls"
_VERSION = 1
_TOKEN = "chargehand-token"
# Headers about the reply itself, which are the same whenever it is returned.
_KEPT_HEADERS = (
    *("content-type", "x-chargehand-left-out", "x-chargehand-converted", "x-chargehand-skipped"),
    "x-chargehand-model",
)
# More than the cost of any call.
_MOST_USD = 1e6
# A request as the names of its parts: each message and tool separately, since they recur in every call.
Parts = Mapping[str, str | list[str]]


class RequestFingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """One request to be answered."""

    turn: int
    operation: Operation
    dialect: Dialect
    parts: Parts


class WholeReply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply as its client gets it; `cost_usd` is `None` if the cost is unknown."""

    call: str
    model: str
    upstream: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    usage: Usage
    cost_usd: float | None = None


class CachedReply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply and the request it answered; `cost_usd` is `None` if the cost is unknown.

    `hidden`: it contained a possible secret, so it is incomplete here.
    """

    call: str
    turn: int
    operation: Operation
    dialect: Dialect
    parts: dict[str, str | list[str]]
    model: str
    upstream: str
    status: int
    headers: dict[str, str]
    reply: dict[str, Any]
    usage: Usage = msgspec.field(default_factory=Usage)
    hidden: bool = False
    cost_usd: float | None = None


class KeptCalls(msgspec.Struct, frozen=True):
    """Costs in a file of kept calls, by call, in USD.

    `costs` has the known costs of whole `replies`, `bounds` the highest costs of calls under way.
    """

    replies: Mapping[str, CachedReply]
    costs: Mapping[str, float]
    bounds: Mapping[str, float]


def read_kept_calls(path: Path) -> KeptCalls:
    """Read the costs of an attempt's kept calls; empty if the file is missing. Raises `OSError`."""
    replies = dict[str, CachedReply]()
    costs = dict[str, float]()
    bounds = dict[str, float]()
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    for line in _read_lines(content):
        call: object
        if isinstance(line, CachedReply):
            replies[line.call] = line
            call = line.call
            usd = line.cost_usd
            known = costs
        else:
            call = line.get("begun")
            usd = line.get("most_usd")
            known = bounds
        # A damaged line must not stop the attempt that it belongs to.
        if isinstance(call, str) and isinstance(usd, int | float) and 0 <= usd < _MOST_USD:
            known[call] = float(usd)
    return KeptCalls(replies, costs, bounds)


class ReplayCache:
    """The kept calls of one attempt, in a file that only its owner can read.

    A request that was answered in an earlier life of the attempt gets that reply again, each reply once. With
    `strict`, the first request that differs from those asked then is reported to `on_diverged`, and the remaining
    replies are dropped: an agent on another path asks for other things. Without it nothing is reported, since an
    agent that remembers its replies does not repeat its requests. Thread-safe.
    """

    def __init__(
        self,
        path: Path,
        *,
        secrets: Mapping[str, str],
        token: str,
        strict: bool = True,
        on_diverged: Callable[[Divergence], None] | None = None,
    ) -> None:
        self._redactor = Redactor(secrets, {_TOKEN: token})
        self._strict = strict
        self._on_diverged = on_diverged
        self._lock = threading.Lock()
        self._names = RunNames()
        self._pairs = RunPairs(then=None, now=datetime.now(UTC))
        self._known: dict[bytes, str] = {}
        self._values: dict[str, Any] = {}
        self._written: set[str] = set()
        self._waiting: list[CachedReply] = []
        try:
            content: bytes | None = path.read_bytes()
        except FileNotFoundError:
            content = None
        for line in _read_lines(content or b""):
            if isinstance(line, CachedReply):
                self._waiting.append(line)
            elif isinstance(name := line.get("part"), str) and "value" in line:
                self._values[name] = line["value"]
                self._written.add(name)
            elif isinstance(gone := line.get("gone"), list):
                self._waiting = [kept for kept in self._waiting if kept.call not in gone]
        # Calls before the last kept one that were not kept themselves: they were under way.
        turns = {each.turn for each in self._waiting if each.operation == "reply"}
        self._missing = max(turns, default=0) - len(turns)
        # It contains prompts and replies: no other user of this machine may read it.
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if content is None:
            self._append([{"format": _FORMAT, "version": _VERSION}])
        elif content and not content.endswith(b"\n"):
            os.write(self._file, b"\n")  # so that a line cut short by a crash spoils no other line

    @property
    def waiting(self) -> int:
        """The number of replies of earlier lives that were not asked for again yet."""
        return len(self._waiting)

    def fingerprint(
        self, dialect: Dialect, operation: Operation, body: Mapping[str, Any], *, turn: int
    ) -> RequestFingerprint:
        """Split a request into named parts; call it in the order in which requests arrive."""
        kept = {**normalise_request(body), "model": body.get("model")}
        with self._lock:
            parts: dict[str, str | list[str]] = {
                key: [self._name_part(each) for each in value]
                if isinstance(value, list)
                else self._name_part(value)
                for key, value in kept.items()
            }
        return RequestFingerprint(turn=turn, operation=operation, dialect=dialect, parts=parts)

    def find(self, asked: RequestFingerprint) -> CachedReply | None:
        """Return the earlier reply to this request, or `None` if the request must be sent."""
        with self._lock:
            wanted = (asked.operation, asked.dialect, asked.parts)
            equal = (kept for kept in self._waiting if (kept.operation, kept.dialect, kept.parts) == wanted)
            found = next(equal, None) or self._find_alike(asked)
            if found is not None and not found.hidden:
                self._waiting.remove(found)
                return found
            if not (self._strict and self._waiting):
                return None
            if found is None and self._missing:
                self._missing -= 1  # it was under way when its worker died
                return None
            first = self._waiting[0]
            where = ""
            was = "a reply not stored: it seemed to contain a secret"
            now = "the same request"
            if found is None:
                was_asked = {**self._restore(first.parts), "dialect": first.dialect}
                now_asked = {**self._restore(asked.parts), "dialect": asked.dialect}
                where, was, now = describe_difference(was_asked, now_asked, alike=self._pairs.is_alike)
                self._pairs.forget()
            divergence = Divergence(attempt=1, turn=asked.turn, pointer=where, recorded=was, sent=now)
            gone = [kept.call for kept in self._waiting]
            self._waiting.clear()
            self._append([{"diverged": asdict(divergence), "gone": gone}])
        self.sync()
        if self._on_diverged is not None:
            self._on_diverged(divergence)
        return None

    def body(self, kept: CachedReply) -> bytes:
        """Return the body of a kept reply with the token and the ids of this life."""
        reply = self._names.expand(self._redactor.expand(kept.reply))
        return b"".join(recorded_pieces(update_ids(reply, self._pairs.todays)))

    def keep(self, asked: RequestFingerprint, reply: WholeReply) -> None:
        """Write a whole reply, which survives this process, and a power cut after `sync`; raises `OSError`."""
        plain = to_recorded_body(reply.body, reply.headers.get("content-type", ""))
        with self._lock:
            clean = self._names.name_reply(redact_body(plain, self._redactor))
            # Mostly redaction changes nothing; only otherwise is the reply reassembled and compared.
            hidden = False
            if clean != plain or "{{" in json.dumps(clean):
                back = self._names.expand(self._redactor.expand(clean))
                hidden = b"".join(recorded_pieces(back)) != b"".join(recorded_pieces(plain))
            parts = dict(asked.parts)
            kept = CachedReply(
                call=reply.call,
                turn=asked.turn,
                operation=asked.operation,
                dialect=asked.dialect,
                parts=parts,
                model=reply.model,
                upstream=reply.upstream,
                status=reply.status,
                headers={name: reply.headers[name] for name in _KEPT_HEADERS if name in reply.headers},
                reply=clean,
                usage=reply.usage,
                hidden=hidden,
                cost_usd=reply.cost_usd,
            )
            # Each message recurs in every later call: written once, a long conversation stays small.
            names = [each for name in parts.values() for each in (name if isinstance(name, list) else [name])]
            new = [name for name in dict.fromkeys(names) if name not in self._written]
            lines = [{"part": name, "value": self._values[name]} for name in new]
            self._append([*lines, msgspec.to_builtins(kept)])
            self._written.update(new)

    def note_bound(self, call: str, usd: float) -> None:
        """Write the highest cost of a call under way, in USD; the latest value counts. Raises `OSError`."""
        with self._lock:
            self._append([{"begun": call, "most_usd": usd}])

    def sync(self) -> None:
        """Wait until earlier writes are on disk, without blocking other writers. Raises `OSError`."""
        with self._lock:
            if self._file is None:
                return
            descriptor = os.dup(self._file)  # `close` may be called meanwhile
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _find_alike(self, asked: RequestFingerprint) -> CachedReply | None:
        """Return the first kept call that differs from a request only by values that change between lives."""
        now = self._restore(asked.parts)
        shape = (asked.operation, asked.dialect, _shape(asked.parts))
        for kept in self._waiting:
            if (kept.operation, kept.dialect, _shape(kept.parts)) != shape:
                continue
            if find_difference(self._restore(kept.parts), now, alike=self._pairs.is_alike) is None:
                self._pairs.confirm()
                return kept
            self._pairs.forget()
        return None

    def _name_part(self, value: Any) -> str:
        # By the raw value first: the messages of a conversation recur in each call, and are redacted once.
        raw = hashlib.blake2b(msgspec.json.encode(value), digest_size=16).digest()
        name = self._known.get(raw)
        if name is None:
            clean = self._names.name_request(self._redactor.tree(value))
            text = json.dumps(clean, sort_keys=True)
            name = self._known[raw] = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
            self._values.setdefault(name, clean)
        return name

    def _append(self, lines: list[dict[str, Any]]) -> None:
        if self._file is None:
            return
        # `write` may take only a part if the disk is nearly full.
        left = memoryview(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        while left:
            left = left[os.write(self._file, left) :]

    def _restore(self, parts: Parts) -> dict[str, Any]:
        values = self._values
        return {
            key: [values.get(each) for each in name] if isinstance(name, list) else values.get(name)
            for key, name in parts.items()
        }


def _read_lines(content: bytes) -> Iterator[CachedReply | Mapping[str, Any]]:
    for text in content.split(b"\n"):
        try:
            line = json.loads(text)
            if isinstance(line, dict):
                yield convert_to(line, CachedReply) if "call" in line else line
        except (ValueError, msgspec.ValidationError):
            continue  # cut short by a crash: that call is sent again


def _shape(parts: Parts) -> dict[str, int]:
    return {key: len(name) if isinstance(name, list) else -1 for key, name in parts.items()}
