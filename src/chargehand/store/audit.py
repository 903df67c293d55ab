"""Verification of the log: hash chain, kept heads, signed heads and keys."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from chargehand.core.errors import NotFoundError, StoreError, UsageError
from chargehand.core.events import GENESIS, chain_hash, decode
from chargehand.core.mission_events import MissionCreated
from chargehand.store.database import connection as _sqlite
from chargehand.store.database.connection import Database, typed_errors
from chargehand.store.database.keys import KeyFiles, KnownKeys
from chargehand.store.database.schema import erasures, events, missions
from chargehand.store.heads import Head, Heads, SignedFile, SignedHead
from chargehand.store.store import Store

ProblemKind = Literal[
    "store_damaged",  # the database file itself is broken
    "line_missing",  # lines were dropped before this one
    "line_malformed",  # a column is not even of its type
    "line_changed",  # a column differs from what the line's hash covers
    "payload_changed",  # the payload differs from its digest
    "payload_missing",  # the payload is gone and no erasure was ordered
    "chain_broken",  # the line does not follow the one before it
    "tail_missing",  # the log ends before a head that was kept
    "head_changed",  # the kept head and the line at its place differ, or it is not a head
    "head_forged",  # a signed head whose signature is not its key's
    "key_unknown",  # a signed head of a key that is not this log's
    "key_missing",  # signed heads without any key to check them
    "key_changed",  # the files of the key do not hold one key
    "mission_changed",  # the mission's row differs from its first line
    "mission_missing",  # lines or a kept head without a mission's row
    "export_malformed",  # a line of an export that is not one
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
    """How much was looked at, and what is wrong with it.

    `signed_heads` counts those whose signature and line agree, `keys` are the ids of the keys that made them: what
    comes after the last of them is not proven.
    """

    missions: int
    events: int
    problems: tuple[AuditProblem, ...]
    signed_heads: int = 0
    keys: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class Line:
    """A line as it is kept, whatever it claims to be."""

    mission: bytes | None
    seq: bytes | None
    time: bytes | None
    type: bytes | None
    payload: bytes | None
    digest: bytes | None
    prev: bytes | None
    hash: bytes | None


def line_problems(
    mission: str, lines: Iterable[Line], *, hashes: dict[int, str], erased: Collection[tuple[str, int]]
) -> Iterator[AuditProblem]:
    """Yield where lines differ from their hashes and neighbours; `hashes` is filled with what they claim.

    `erased` holds the (mission, seq) whose payloads were ordered to go.
    """
    seq, accepted = 0, {GENESIS}
    for line in lines:
        expected, found = seq + 1, integer(line.seq)
        if found is None:
            yield problem(mission, expected, "line_malformed", f"seq is {line.seq!r}")
            continue
        seq = found
        if seq != expected:
            yield problem(mission, expected, "line_missing", f"line {seq} follows line {expected - 1}")
        elif text(line.prev) not in accepted:
            yield problem(mission, seq, "chain_broken", "it does not follow the line before it")
        yield from _payload_problems(mission, seq, line, erased=erased)
        made = _recomputed(mission, seq, line)
        hashes[seq] = text(line.hash)
        if made != hashes[seq]:
            yield problem(mission, seq, "line_changed", "its columns and its hash do not agree")
        # Both the hash that is kept and the one that should be: one changed byte is one place, not two.
        accepted = {hashes[seq], made}


def _payload_problems(
    mission: str, seq: int, line: Line, *, erased: Collection[tuple[str, int]]
) -> Iterator[AuditProblem]:
    if line.payload is None:
        if (mission, seq) not in erased:
            yield problem(mission, seq, "payload_missing", "its payload is gone and no erasure was ordered")
    elif hashlib.sha256(line.payload).hexdigest() != text(line.digest):
        yield problem(mission, seq, "payload_changed", "its payload and its digest do not agree")


def _recomputed(mission: str, seq: int, line: Line) -> str:
    return chain_hash(
        prev=text(line.prev),
        mission=mission,
        seq=seq,
        time=text(line.time),
        type=text(line.type),
        digest=text(line.digest),
    )


def integer(kept: bytes | None) -> int | None:
    """Return the number that a column holds, `None` for what is no number as we write it."""
    shown = text(kept)
    return int(shown) if shown.isascii() and shown.isdigit() and shown == str(int(shown)) else None


def text(kept: bytes | None) -> str:
    """Return the text that a column holds."""
    # What is not UTF-8 becomes a character that no id, time, type or hash of ours has: it can only fail to agree.
    return "" if kept is None else kept.decode(errors="replace")


def problem(mission: str, seq: int | None, kind: ProblemKind, message: str) -> AuditProblem:
    """Return a problem at a place."""
    return AuditProblem(mission=mission, seq=seq, kind=kind, message=message)


class Witnesses:
    """Compares signed heads with the keys of a log, and counts those that hold."""

    def __init__(self, known: KnownKeys) -> None:
        self._known = known
        self._held: set[SignedHead] = set()
        self._seen = False

    @property
    def held(self) -> int:
        """How many heads hold."""
        return len(self._held)

    @property
    def keys(self) -> tuple[str, ...]:
        """The ids of the keys that signed them."""
        return tuple(sorted({head.key for head in self._held}))

    def key_problems(self) -> Iterator[AuditProblem]:
        """Yield what is wrong with the keys; asked for when all heads were looked at."""
        for fault in self._known.faults:
            yield problem("", None, "key_changed", fault)
        if self._seen and not self._known.keys and not self._known.faults:
            yield problem("", None, "key_missing", "there are signed heads and no key to check them with")

    def file_problems(self, file: SignedFile, *, hashes: Mapping[int, str]) -> Iterator[AuditProblem]:
        """Yield what is wrong with a kept file, at the place that its name tells."""
        try:
            head = SignedHead.decode(file.content)
        except UsageError as error:
            self._seen = True
            yield problem(file.mission, file.seq, "head_changed", error.message)
            return
        if (head.mission, head.seq) != (file.mission, file.seq):
            told = f"its file is of line {file.seq}, its content of line {head.seq} of {head.mission!r}"
            yield problem(file.mission, file.seq, "head_changed", told)
        else:
            yield from self.head_problems(head, hashes=hashes)

    def head_problems(self, head: SignedHead, *, hashes: Mapping[int, str]) -> Iterator[AuditProblem]:
        """Yield where a head and the lines of its mission (`hashes`) disagree, or the signature is not good."""
        self._seen = True
        key = self._known.keys.get(head.key)
        if key is None and self._known.keys:
            told = f"it is signed by key {head.key}, which is not this log's"
            yield problem(head.mission, head.seq, "key_unknown", told)
        elif key is not None and not head.signed_by(key):
            # What nobody signed says nothing of the log, so the two are not compared.
            yield problem(head.mission, head.seq, "head_forged", "its signature is not its key's")
            return
        wrong = list(_line_problems(head, hashes))
        yield from wrong
        if key is not None and not wrong:
            self._held.add(head)


def _line_problems(head: SignedHead, hashes: Mapping[int, str]) -> Iterable[AuditProblem]:
    last = max(hashes, default=0)
    if head.seq > last:
        told = f"the log ends at {last}, a head was signed at {head.seq} on {head.time}"
        yield problem(head.mission, last + 1, "tail_missing", told)
    elif hashes.get(head.seq) != head.hash:
        yield problem(head.mission, head.seq, "head_changed", "the head that was signed and the line do not agree")


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

    lines: Mapping[str, list[Line]]
    rows: Mapping[str, _Row]
    heads: Mapping[str, Head | None]
    signed: Mapping[str, list[SignedFile]]
    known: KnownKeys
    erased: frozenset[tuple[str, int]]

    def names(self) -> set[str]:
        """Return the ids of all missions that something is known of."""
        return {*self.lines, *self.rows, *self.heads, *self.signed}


_NOTHING = _Evidence(lines={}, rows={}, heads={}, signed={}, known=KnownKeys(keys={}), erased=frozenset())


def verify(store: Store, mission: str | None = None, *, witnesses: Sequence[SignedHead] = ()) -> AuditReport:
    """Compare every line, of one mission or of all, with its hash, its neighbours and the kept heads.

    `witnesses` are signed heads that were kept elsewhere, as git notes are: they must hold as those kept here do.

    Found, with the place: any changed byte of any column of a line, a changed or missing payload, dropped, swapped
    and inserted lines, a changed mission's row, and a cut tail: of any length as long as the mission's row is as
    it was, back to the last durable append when the row was changed to fit, and back to the last signed head when
    the file of the unsigned one was changed or removed too. A changed, forged or misplaced signed head, one of
    another key, and a changed key.

    Not found without a witness from elsewhere: what comes after the last signed head and was made anew by someone
    who writes the whole directory, the removal of the newest signed heads together with all that they cover and
    the unsigned one, an erasure that was written beside the payload it removes, an older copy of the whole
    directory put in its place; and anything by someone who reads the private key and signs anew.

    Reads one snapshot, beside writers; what cannot be read is a problem of the report. Raises `NotFoundError` for
    an unknown mission, `UsageError` (`head_of_other_mission`) for a witness of another one.
    """
    _check_witnesses(mission, witnesses)
    damage = _damage(store.database) if mission is None else []
    try:
        found = _evidence(store.database, mission)
    except StoreError as error:
        damage, found = [*damage, _damaged(error.message)], _NOTHING
    names = sorted(found.names() | {head.mission for head in witnesses})
    if mission is not None and not names and not damage:
        raise NotFoundError(f"there is no mission {mission!r}", hint="`chargehand mission list` shows them")
    signed = Witnesses(found.known)
    problems = [*damage]
    for name in names:
        problems += _mission_problems(name, found=found, signed=signed, witnesses=witnesses)
    problems += signed.key_problems()
    return AuditReport(
        missions=len(names),
        events=sum(len(lines) for lines in found.lines.values()),
        problems=tuple(problems),
        signed_heads=signed.held,
        keys=signed.keys,
    )


def _check_witnesses(mission: str | None, witnesses: Sequence[SignedHead]) -> None:
    for head in witnesses:
        if mission not in (None, head.mission):
            raise UsageError(
                f"the signed head is of mission {head.mission!r}, not of {mission!r}",
                code="head_of_other_mission",
                hint=f"chargehand audit verify {head.mission} --head FILE",
            )


def _damage(database: Database) -> list[AuditProblem]:
    try:
        with database.read() as connection:
            return [_damaged(found) for found in _sqlite.damage(connection)]
    except StoreError as error:
        return [_damaged(error.message)]


def _damaged(told: str) -> AuditProblem:
    return problem("", None, "store_damaged", told)


def _evidence(database: Database, mission: str | None) -> _Evidence:
    # Heads first: one that is read after the snapshot could already be ahead of it.
    # Keys last of the files: a head that was signed just now has its key by now.
    with typed_errors(database.home):
        kept = Heads(database.home)
        heads, signed = _kept_heads(kept, mission), _by_mission(kept.signed(mission))
        known = KeyFiles(database.home).known()
    lines: dict[str, list[Line]] = {}
    with database.read() as connection:
        for row in _raw_rows(connection, events.c.mission, mission):
            lines.setdefault(text(row[0]), []).append(Line(*row))
        rows = {text(row[0]): _Row(*row[1:5]) for row in _raw_rows(connection, missions.c.id, mission)}
        gone = list(_raw_rows(connection, erasures.c.mission, mission))
    erased = frozenset((text(row[0]), integer(row[1]) or 0) for row in gone)
    return _Evidence(lines=lines, rows=rows, heads=heads, signed=signed, known=known, erased=erased)


def _raw_rows(connection: sa.Connection, key: sa.Column[str], mission: str | None) -> Iterator[tuple[Any, ...]]:
    table = key.table
    query: sa.Select[*tuple[Any, ...]] = sa.select(*(_sqlite.raw(column) for column in table.columns))
    query = query.order_by(key, *(column for column in table.columns if column.name == "seq"))
    for row in connection.execute(query if mission is None else query.where(key == mission)):
        yield tuple(row)


def _by_mission(files: Iterable[SignedFile]) -> dict[str, list[SignedFile]]:
    found: dict[str, list[SignedFile]] = {}
    for file in files:
        found.setdefault(file.mission, []).append(file)
    return found


def _kept_heads(heads: Heads, mission: str | None) -> dict[str, Head | None]:
    names = heads.unsigned() if mission is None else heads.unsigned() & {mission}
    return {name: _kept_head(heads, name) for name in names}


def _kept_head(heads: Heads, mission: str) -> Head | None:
    try:
        return heads.get(mission)
    except (ValueError, IsADirectoryError):
        return None


def _mission_problems(
    mission: str, *, found: _Evidence, signed: Witnesses, witnesses: Sequence[SignedHead]
) -> Iterator[AuditProblem]:
    lines = found.lines.get(mission, [])
    hashes: dict[int, str] = {}
    yield from line_problems(mission, lines, hashes=hashes, erased=found.erased)
    row = found.rows.get(mission)
    if row is None:
        yield problem(mission, None, "mission_missing", "there is no row of this mission")
    else:
        yield from _row_problems(mission, row, lines=lines, hashes=hashes)
    if mission in found.heads:
        yield from _head_problems(mission, found.heads[mission], hashes=hashes)
    for file in found.signed.get(mission, ()):
        yield from signed.file_problems(file, hashes=hashes)
    for head in witnesses:
        if head.mission == mission:
            yield from signed.head_problems(head, hashes=hashes)


def _row_problems(
    mission: str, row: _Row, *, lines: list[Line], hashes: Mapping[int, str]
) -> Iterator[AuditProblem]:
    last, kept = max(hashes, default=0), integer(row.last_seq)
    if kept is None or kept < last:
        yield problem(mission, last, "head_changed", f"the mission's row ends at {row.last_seq!r}")
    elif kept > last:
        yield problem(mission, last + 1, "tail_missing", f"the log ends at {last}, it was written up to {kept}")
    elif hashes.get(last, GENESIS) != text(row.last_hash):
        yield problem(mission, last, "head_changed", "the mission's row and the last line do not agree")
    if lines:
        yield from _first_line_problems(mission, row, line=lines[0])


def _first_line_problems(mission: str, row: _Row, *, line: Line) -> Iterator[AuditProblem]:
    if row.created != line.time:
        yield problem(mission, 1, "mission_changed", "the mission's row and its first line tell two times")
    project = _project(line)
    if project is not None and project != text(row.project):
        yield problem(mission, 1, "mission_changed", "the mission's row and its first line tell two projects")


def _head_problems(mission: str, head: Head | None, *, hashes: Mapping[int, str]) -> Iterator[AuditProblem]:
    last = max(hashes, default=0)
    if head is None:
        yield problem(mission, None, "head_changed", "its head file is not a head")
    elif head.seq > last:
        yield problem(mission, last + 1, "tail_missing", f"the log ends at {last}, a head was kept at {head.seq}")
    elif hashes.get(head.seq) != head.hash:
        yield problem(mission, head.seq, "head_changed", "the head that was kept and the line do not agree")


def _project(line: Line) -> str | None:
    if line.payload is None:
        return None
    try:
        payload = decode(text(line.type), line.payload)
    except (KeyError, msgspec.MsgspecError):
        return None
    return payload.project if isinstance(payload, MissionCreated) else None
