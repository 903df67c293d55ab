"""Stored log lines, whatever happened to them: their problems, and their readable content."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from chargehand.core.events import GENESIS, Event, chain_hash, payload_digest

LINE_COLUMNS = {
    "mission": "text",
    "seq": "integer",
    "time": "text",
    "type": "text",
    "payload": "blob",
    "digest": "text",
    "prev": "text",
    "hash": "text",
}
# The types of a row of these columns as programs of ours write it.
LINE_SHAPES = frozenset((str, int, str, str, payload, str, str, str) for payload in (bytes, type(None)))
ProblemKind = Literal[
    "store_damaged",  # the database file itself is broken
    "line_missing",  # lines were dropped before this one
    "line_malformed",  # a column does not even have its type
    "line_changed",  # a column differs from what the line's hash covers
    "payload_changed",  # the payload differs from its digest
    "payload_missing",  # the payload is missing and no erasure was ordered
    "chain_broken",  # the line does not follow the one before it
    "tail_missing",  # the log ends before a kept head
    "head_changed",  # the kept head and the line at its place differ, or it is not a head
    "head_forged",  # a signed head with an invalid signature
    "key_unknown",  # a signed head of a key that is not this log's
    "key_missing",  # signed heads without any key to check them
    "key_changed",  # the files of the key do not hold one key
    "mission_changed",  # the mission's row differs from its first line
    "mission_missing",  # lines or a kept head without a mission's row
    "export_malformed",  # a line of an export that is not valid
    "artifact_damaged",  # content that a mission kept is lost or changed
    "depot_damaged",  # a commit of a mission, or a note on its promoted commit, cannot be read whole
    "spending_damaged",  # the row of a call contradicts the log
    "access_damaged",  # a row of accounts, sessions, codes or tokens that no program of ours wrote
    "project_missing",  # missions of a project without a row; the next command in its repository recreates it
    "provenance_missing",  # a promoted commit without a note of its provenance
    "provenance_malformed",  # a note without a signed statement
    "provenance_forged",  # a statement with an invalid signature
    "provenance_differs",  # a statement of another commit, or in conflict with the log
    "branch_moved",  # the mission's branch is not where the log says
    "engine_damaged",  # the database of the workers' queue is broken
]


class AuditProblem(Struct, frozen=True, kw_only=True):
    """A place where the log was changed or damaged; `seq` is `None` if it concerns the whole mission."""

    mission: str
    seq: int | None
    kind: ProblemKind
    message: str


class PositionedEvent(Struct, frozen=True):
    """A line of any log with its place among the lines of all logs, counted from 1 in append order."""

    position: int
    event: Event


class ChainLine(Struct, frozen=True):
    """A stored line, not verified; the columns are those of `LINE_COLUMNS`."""

    mission: bytes | None
    seq: bytes | None
    time: bytes | None
    type: bytes | None
    payload: bytes | None
    digest: bytes | None = None
    prev: bytes | None = None
    hash: bytes | None = None


def line_problems(
    mission: str, lines: Iterable[ChainLine], *, hashes: dict[int, str], erased: Collection[tuple[str, int]]
) -> Iterator[AuditProblem]:
    """Yield differences between lines and their hashes and neighbours; fills `hashes` with the claimed ones.

    `erased` holds the (mission, seq) whose payloads were ordered to be erased.
    """
    seq = 0
    accepted = {GENESIS}
    for line in lines:
        expected, found = seq + 1, as_integer(line.seq)
        if found is None:
            yield audit_problem(mission, expected, "line_malformed", f"seq is {line.seq!r}")
            continue
        seq = found
        if seq != expected:
            yield audit_problem(mission, expected, "line_missing", f"line {seq} follows line {expected - 1}")
        elif as_text(line.prev) not in accepted:
            yield audit_problem(mission, seq, "chain_broken", "it does not follow the line before it")
        if line.payload is None:
            if (mission, seq) not in erased:
                told = "its payload is gone and no erasure was ordered"
                yield audit_problem(mission, seq, "payload_missing", told)
        elif hashlib.sha256(line.payload).hexdigest() != as_text(line.digest):
            yield audit_problem(mission, seq, "payload_changed", "its payload and its digest do not agree")
        made = chain_hash(
            prev=as_text(line.prev),
            mission=mission,
            seq=seq,
            time=as_text(line.time),
            type=as_text(line.type),
            digest=as_text(line.digest),
        )
        hashes[seq] = as_text(line.hash)
        if made != hashes[seq]:
            yield audit_problem(mission, seq, "line_changed", "its columns and its hash do not agree")
        # Both the stored hash and the correct one: one changed byte is one place, not two.
        accepted = {hashes[seq], made}


def is_whole_chain(mission: str, rows: Iterable[Sequence[Any]], *, after: int = 0, before: str = GENESIS) -> bool:
    """Return whether all of a mission's rows of `LINE_COLUMNS` are unchanged, and not erased.

    They follow the line `after`, whose hash is `before`. This takes half the time of `line_problems`, which lists
    the problems.
    """
    for expected, row in enumerate(rows, start=after + 1):
        if tuple(map(type, row)) not in LINE_SHAPES:
            return False
        _, seq, time, name, payload, digest, prev, kept = row
        if seq != expected or prev != before or payload is None or payload_digest(payload) != digest:
            return False
        before = chain_hash(prev=prev, mission=mission, seq=seq, time=time, type=name, digest=digest)
        if before != kept:
            return False
    return True


def as_integer(kept: bytes | None) -> int | None:
    """Return the number in a column, or `None` if it is not a number in our format."""
    shown = as_text(kept)
    return int(shown) if shown.isascii() and shown.isdigit() and shown == str(int(shown)) else None


def as_text(kept: bytes | None) -> str:
    """Return the text in a column."""
    # Invalid UTF-8 becomes a character that no id, time, type or hash of ours has: it can only fail to match.
    return "" if kept is None else kept.decode(errors="replace")


def audit_problem(mission: str, seq: int | None, kind: ProblemKind, message: str) -> AuditProblem:
    """Return a problem at a place."""
    return AuditProblem(mission=mission, seq=seq, kind=kind, message=message)


def as_event(line: ChainLine, *, before: str) -> Event:
    """Return the readable content of a line.

    An invalid time becomes that of the line `before`: readers order lines by their times.
    """
    time = as_text(line.time)
    return Event(
        as_text(line.mission),
        as_integer(line.seq) or 0,
        time if is_moment(time) else before,
        as_text(line.type),
        line.payload,
        as_text(line.digest),
        as_text(line.prev),
        as_text(line.hash),
    )


def is_moment(time: str) -> bool:
    """Return whether a time is ISO 8601 with its UTC offset, as in every line."""
    try:
        return datetime.fromisoformat(time).tzinfo is not None
    except ValueError:
        return False
