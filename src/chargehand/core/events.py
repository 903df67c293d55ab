"""Events of the log: one frozen payload class per event type, and the line that stores it.

A payload class is registered under its type name; the log stores payloads as JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import Struct

from chargehand.core.codec import decode_as
from chargehand.core.text import shown_path

# The `prev` hash of a chain's first line.
GENESIS = "0" * 64


class Event(Struct, frozen=True):
    """One line of the log: `hash` covers the line before it and the digest of the payload.

    The chain is over payload digests, not payloads, so that it stays valid after an ordered erasure of a payload.
    `seq` counts from 1 in each mission; `time` is ISO 8601 in UTC; `payload` is JSON, `None` once erased.
    """

    mission: str
    seq: int
    time: str
    type: str
    payload: bytes | None
    digest: str
    prev: str
    hash: str


def payload_digest(payload: bytes) -> str:
    """Return the hex SHA-256 of an encoded payload."""
    return hashlib.sha256(payload).hexdigest()


def chain_hash(*, prev: str, mission: str, seq: int, time: str, type: str, digest: str) -> str:
    """Return the hex SHA-256 that links one event to the one before it."""
    # A newline separates the fields: no field can contain one, so no two lines give the same text.
    line = "\n".join((prev, mission, str(seq), time, type, digest))
    return hashlib.sha256(line.encode()).hexdigest()


# Logs of all versions stay readable: a new payload field needs a default, and no field changes its name or
# meaning. Unknown fields are skipped, so an older program reads a newer log.
class Payload(Struct, frozen=True, kw_only=True):
    """The base of all payload classes; `type` is the event's stable name."""

    type: ClassVar[str]


# Called with every event as it is written, for example by a terminal's progress, a stream or a test.
OnEvent = Callable[[Event, Payload], None]


def ignore_event(event: Event, payload: Payload) -> None:
    """Do nothing: the `OnEvent` of a mission without a listener."""


_REGISTRY: dict[str, type[Payload]] = {}
_P = TypeVar("_P", bound=type[Payload])


def event(name: str) -> Callable[[_P], _P]:
    """Register a payload class under its stable type name."""

    def register(cls: _P) -> _P:
        cls.type = name
        _REGISTRY[name] = cls
        return cls

    return register


def encode(payload: Payload) -> bytes:
    """Return the payload as JSON with sorted keys: equal payloads give equal bytes; see `encode_json`."""
    return encode_json(payload)


def encode_json(value: object) -> bytes:
    """Encode records and plain values as JSON with sorted keys.

    JSON cannot hold names that are not UTF-8: they are stored as `shown_path` shows them.
    """
    try:
        # Sorted, because digests are over these bytes: moving a field in a class must not change them.
        return msgspec.json.encode(value, order="sorted")
    except UnicodeEncodeError:
        return msgspec.json.encode(_without_surrogates(msgspec.to_builtins(value)), order="sorted")


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else shown_path(value)
    if isinstance(value, dict):
        return {key: _without_surrogates(part) for key, part in value.items()}
    return [_without_surrogates(part) for part in value] if isinstance(value, list | tuple) else value


def decode(type: str, payload: bytes) -> Payload:
    """Return the payload of a registered type; unknown fields are skipped.

    Raises `KeyError` for a type unknown to this version, `msgspec.ValidationError` for a malformed payload and
    `msgspec.DecodeError` for invalid JSON.
    """
    kind = _REGISTRY[type]  # a KeyError before anything is read: a newer version's payload need not be JSON
    try:
        return decode_as(payload, kind)
    except (UnicodeDecodeError, RecursionError) as error:
        # msgspec lets these through for invalid UTF-8 and for damage that nests deeply.
        raise msgspec.DecodeError(str(error)) from error


def is_known(type: str) -> bool:
    """Return whether this version knows an event type."""
    return type in _REGISTRY


def event_types() -> Mapping[str, type[Payload]]:
    """Return the payload classes by event type."""
    return dict(_REGISTRY)


def read_payload(line: Event) -> Payload | None:
    """Return an event's payload, or `None` if it was erased, is damaged or a newer version wrote it."""
    if line.payload is None:
        return None
    try:
        return decode(line.type, line.payload)
    except (KeyError, msgspec.DecodeError):
        return None


def is_damaged(line: Event) -> bool:
    """Return whether a line's payload is unreadable although this version knows its type."""
    if line.payload is None or not is_known(line.type):
        return "\N{REPLACEMENT CHARACTER}" in line.type
    return read_payload(line) is None
