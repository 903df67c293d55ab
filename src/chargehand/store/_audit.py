"""Whether the log is what was written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from chargehand.core import GENESIS, MissionCreated, NotFoundError, StoreError, chain_hash, decode
from chargehand.store import _sqlite
from chargehand.store._database import Database
from chargehand.store._heads import Head, Heads
from chargehand.store._schema import erasures, events, missions
from chargehand.store._store import Store

ProblemKind = Literal[
    "store_damaged",  # the database file itself is broken
    "line_missing",  # lines were dropped before this one
    "line_malformed",  # a column is not even of its type
    "line_changed",  # a column differs from what the line's hash covers
    "payload_changed",  # the payload differs from its digest
    "payload_missing",  # the payload is gone and no erasure was ordered
    "chain_broken",  # the line does not follow the one before it
    "tail_missing",  # the log ends before a head that was kept
    "head_changed",  # the kept head and the line at its place differ
    "mission_changed",  # the mission's row differs from its first line
    "mission_missing",  # lines or a kept head without a mission's row
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditProblem:
    """A place where the log is not what was written; `seq` is `None` where it concerns the whole mission."""

    mission: str
    seq: int | None
    kind: ProblemKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """How much was looked at, and what is wrong with it."""

    missions: int
    events: int
    problems: tuple[AuditProblem, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class _Line:
    """A line as it is kept, whatever it claims to be."""

    mission: bytes | None
    seq: bytes | None
    time: bytes | None
    type: bytes | None
    payload: bytes | None
    digest: bytes | None
    prev: bytes | None
    hash: bytes | None


@dataclass(frozen=True, slots=True)
class _Row:
    """A mission's row as it is kept."""

    project: bytes | None
    created: bytes | None
    last_seq: bytes | None
    last_hash: bytes | None


@dataclass(frozen=True, slots=True)
class _Evidence:
    """All that one snapshot holds on some missions; keys are printable ids."""

    lines: Mapping[str, list[_Line]]
    rows: Mapping[str, _Row]
    heads: Mapping[str, Head | None]
    erased: frozenset[tuple[str, int]]


def verify(store: Store, mission: str | None = None) -> AuditReport:
    """Compare every line, of one mission or of all, with its hash, its neighbours and the kept heads.

    Found, with the place: any changed byte of any column of a line, a changed or missing payload, dropped, swapped
    and inserted lines, a changed mission's row, and a cut tail: of any length as long as the mission's row is as
    it was, and back to the last durable append (each promotion makes one) when the row was changed to fit.

    Not found, until heads are signed by a key that the author of the change does not hold: a chain recomputed from
    some line to its end by someone who also writes the mission's row and the head file (for lines after the last
    durable append: who writes the database alone), the removal of a mission with all three, an erasure that was
    written beside the payload it removes, and an older copy of the whole directory put in its place.

    Reads one snapshot, beside writers; what cannot be read is a problem of the report. Raises `NotFoundError` for
    an unknown mission.
    """
    damage = _damage(store.database) if mission is None else []
    try:
        found = _evidence(store.database, mission)
    except StoreError as error:
        damage, found = [*damage, _damaged(error.message)], _Evidence({}, {}, {}, frozenset())
    names = sorted({*found.lines, *found.rows, *found.heads})
    if mission is not None and not names and not damage:
        raise NotFoundError(f"there is no mission {mission!r}", hint="`chargehand mission list` shows them")
    problems = [*damage, *(problem for name in names for problem in _mission_problems(name, found=found))]
    return AuditReport(
        missions=len(names), events=sum(len(lines) for lines in found.lines.values()), problems=tuple(problems)
    )


def _damage(database: Database) -> list[AuditProblem]:
    try:
        with database.read() as connection:
            return [_damaged(text) for text in _sqlite.damage(connection)]
    except StoreError as error:
        return [_damaged(error.message)]


def _damaged(text: str) -> AuditProblem:
    return _problem("", None, "store_damaged", text)


def _evidence(database: Database, mission: str | None) -> _Evidence:
    # Heads first: one that is read after the snapshot could already be ahead of it.
    heads = _kept_heads(Heads(database.home), mission)
    lines: dict[str, list[_Line]] = {}
    with database.read() as connection:
        for row in _raw_rows(connection, events.c.mission, mission):
            lines.setdefault(_text(row[0]), []).append(_Line(*row))
        rows = {_text(row[0]): _Row(*row[1:]) for row in _raw_rows(connection, missions.c.id, mission)}
        gone = list(_raw_rows(connection, erasures.c.mission, mission))
    erased = frozenset((_text(row[0]), _integer(row[1]) or 0) for row in gone)
    return _Evidence(lines=lines, rows=rows, heads=heads, erased=erased)


def _raw_rows(connection: sa.Connection, key: sa.Column[str], mission: str | None) -> Iterator[tuple[Any, ...]]:
    table = key.table
    query: sa.Select[*tuple[Any, ...]] = sa.select(*(_sqlite.raw(column) for column in table.columns))
    query = query.order_by(key, *(column for column in table.columns if column.name == "seq"))
    for row in connection.execute(query if mission is None else query.where(key == mission)):
        yield tuple(row)


def _kept_heads(heads: Heads, mission: str | None) -> dict[str, Head | None]:
    names = heads.missions() if mission is None else heads.missions() & {mission}
    return {name: _kept_head(heads, name) for name in names}


def _kept_head(heads: Heads, mission: str) -> Head | None:
    try:
        return heads.get(mission)
    except ValueError:
        return None


def _mission_problems(mission: str, *, found: _Evidence) -> Iterator[AuditProblem]:
    lines = found.lines.get(mission, [])
    hashes: dict[int, str] = {}
    yield from _line_problems(mission, lines, hashes=hashes, erased=found.erased)
    row = found.rows.get(mission)
    if row is None:
        yield _problem(mission, None, "mission_missing", "there is no row of this mission")
    else:
        yield from _row_problems(mission, row, lines=lines, hashes=hashes)
    if mission in found.heads:
        yield from _head_problems(mission, found.heads[mission], hashes=hashes)


def _line_problems(
    mission: str, lines: Iterable[_Line], *, hashes: dict[int, str], erased: frozenset[tuple[str, int]]
) -> Iterator[AuditProblem]:
    seq, accepted = 0, {GENESIS}
    for line in lines:
        expected, found = seq + 1, _integer(line.seq)
        if found is None:
            yield _problem(mission, expected, "line_malformed", f"seq is {line.seq!r}")
            continue
        seq = found
        if seq != expected:
            yield _problem(mission, expected, "line_missing", f"line {seq} follows line {expected - 1}")
        elif _text(line.prev) not in accepted:
            yield _problem(mission, seq, "chain_broken", "it does not follow the line before it")
        yield from _payload_problems(mission, seq, line, erased=erased)
        made = _recomputed(mission, seq, line)
        hashes[seq] = _text(line.hash)
        if made != hashes[seq]:
            yield _problem(mission, seq, "line_changed", "its columns and its hash do not agree")
        # Both the hash that is kept and the one that should be: one changed byte is one place, not two.
        accepted = {hashes[seq], made}


def _payload_problems(
    mission: str, seq: int, line: _Line, *, erased: frozenset[tuple[str, int]]
) -> Iterator[AuditProblem]:
    if line.payload is None:
        if (mission, seq) not in erased:
            yield _problem(mission, seq, "payload_missing", "its payload is gone and no erasure was ordered")
    elif hashlib.sha256(line.payload).hexdigest() != _text(line.digest):
        yield _problem(mission, seq, "payload_changed", "its payload and its digest do not agree")


def _recomputed(mission: str, seq: int, line: _Line) -> str:
    return chain_hash(
        prev=_text(line.prev),
        mission=mission,
        seq=seq,
        time=_text(line.time),
        type=_text(line.type),
        digest=_text(line.digest),
    )


def _row_problems(
    mission: str, row: _Row, *, lines: list[_Line], hashes: Mapping[int, str]
) -> Iterator[AuditProblem]:
    last, kept = max(hashes, default=0), _integer(row.last_seq)
    if kept is None or kept < last:
        yield _problem(mission, last, "head_changed", f"the mission's row ends at {row.last_seq!r}")
    elif kept > last:
        yield _problem(mission, last + 1, "tail_missing", f"the log ends at {last}, it was written up to {kept}")
    elif hashes.get(last, GENESIS) != _text(row.last_hash):
        yield _problem(mission, last, "head_changed", "the mission's row and the last line do not agree")
    if lines:
        yield from _first_line_problems(mission, row, line=lines[0])


def _first_line_problems(mission: str, row: _Row, *, line: _Line) -> Iterator[AuditProblem]:
    if row.created != line.time:
        yield _problem(mission, 1, "mission_changed", "the mission's row and its first line tell two times")
    project = _project(line)
    if project is not None and project != _text(row.project):
        yield _problem(mission, 1, "mission_changed", "the mission's row and its first line tell two projects")


def _head_problems(mission: str, head: Head | None, *, hashes: Mapping[int, str]) -> Iterator[AuditProblem]:
    last = max(hashes, default=0)
    if head is None:
        yield _problem(mission, None, "head_changed", "its head file is not a head")
    elif head.seq > last:
        yield _problem(mission, last + 1, "tail_missing", f"the log ends at {last}, a head was kept at {head.seq}")
    elif hashes.get(head.seq) != head.hash:
        yield _problem(mission, head.seq, "head_changed", "the head that was kept and the line do not agree")


def _project(line: _Line) -> str | None:
    if line.payload is None:
        return None
    try:
        payload = decode(_text(line.type), line.payload)
    except (KeyError, msgspec.MsgspecError):
        return None
    return payload.project if isinstance(payload, MissionCreated) else None


def _integer(kept: bytes | None) -> int | None:
    text = _text(kept)
    return int(text) if text.isascii() and text.isdigit() and text == str(int(text)) else None


def _text(kept: bytes | None) -> str:
    # What is not UTF-8 becomes a character that no id, time, type or hash of ours has: it can only fail to agree.
    return "" if kept is None else kept.decode(errors="replace")


def _problem(mission: str, seq: int | None, kind: ProblemKind, message: str) -> AuditProblem:
    return AuditProblem(mission=mission, seq=seq, kind=kind, message=message)
