"""Verification of the log: hash chain, kept heads, signed heads and keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from chargehand.core.errors import NotFoundError, StoreError, UsageError
from chargehand.core.events import GENESIS, decode
from chargehand.core.mission_events import MissionCreated
from chargehand.store.chain import (
    LINE_COLUMNS,
    AuditProblem,
    ChainLine,
    as_integer,
    as_text,
    audit_problem,
    line_problems,
)
from chargehand.store.database.connection import Database, Transaction, damage, raw_columns, typed_errors
from chargehand.store.database.keys import KeyFiles, KnownKeys
from chargehand.store.heads import Heads, LogHead, SignedFile, SignedHead
from chargehand.store.store import Store


class AuditReport(Struct, frozen=True, kw_only=True):
    """The extent of a verification, and the problems found.

    `signed_heads` counts those whose signature and line agree, `keys` are the ids of the keys that made them.
    Lines after the last of them are not proven.
    """

    missions: int
    events: int
    problems: tuple[AuditProblem, ...]
    signed_heads: int = 0
    keys: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems


class Witnesses:
    """Compares signed heads with the keys of a log, and counts the valid ones."""

    def __init__(self, known: KnownKeys) -> None:
        self._known = known
        self._held: set[SignedHead] = set()
        self._seen = False

    @property
    def held(self) -> int:
        """The number of valid heads."""
        return len(self._held)

    @property
    def keys(self) -> tuple[str, ...]:
        """The ids of the keys that signed the valid heads."""
        return tuple(sorted({head.key for head in self._held}))

    def key_problems(self) -> Iterator[AuditProblem]:
        """Yield the problems of the keys; called after all heads are verified."""
        for fault in self._known.faults:
            yield audit_problem("", None, "key_changed", fault)
        if self._seen and not self._known.keys and not self._known.faults:
            yield audit_problem(
                "", None, "key_missing", "there are signed heads, but the key to verify them is missing"
            )

    def file_problems(self, file: SignedFile, *, hashes: Mapping[int, str]) -> Iterator[AuditProblem]:
        """Yield the problems of a kept file, at the line that its name states."""
        try:
            head = SignedHead.decode(file.content)
        except UsageError as error:
            self._seen = True
            yield audit_problem(file.mission, file.seq, "head_changed", error.message)
            return
        if (head.mission, head.seq) != (file.mission, file.seq):
            told = f"its file is of line {file.seq}, its content of line {head.seq} of {head.mission!r}"
            yield audit_problem(file.mission, file.seq, "head_changed", told)
        else:
            yield from self.head_problems(head, hashes=hashes)

    def head_problems(self, head: SignedHead, *, hashes: Mapping[int, str]) -> Iterator[AuditProblem]:
        """Yield problems if a head and its mission's lines (`hashes`) disagree, or its signature is invalid."""
        self._seen = True
        key = self._known.keys.get(head.key)
        if key is None and self._known.keys:
            told = f"it is signed by key {head.key}, which is not this log's"
            yield audit_problem(head.mission, head.seq, "key_unknown", told)
        elif key is not None and not head.signed_by(key):
            # An unsigned statement says nothing about the log, so the two are not compared.
            yield audit_problem(head.mission, head.seq, "head_forged", "its signature is not its key's")
            return
        wrong = list(_compare_head(head.mission, head, hashes, how="signed", when=f" on {head.time}"))
        yield from wrong
        if key is not None and not wrong:
            self._held.add(head)


def _compare_head(
    mission: str, head: LogHead | SignedHead, hashes: Mapping[int, str], *, how: str, when: str = ""
) -> Iterator[AuditProblem]:
    last = max(hashes, default=0)
    if head.seq > last:
        told = f"the log ends at {last}, a head was {how} at {head.seq}{when}"
        yield audit_problem(mission, last + 1, "tail_missing", told)
    elif hashes.get(head.seq) != head.hash:
        told = f"the head that was {how} and the line do not agree"
        yield audit_problem(mission, head.seq, "head_changed", told)


class _MissionColumns(Struct, frozen=True):
    """A mission's row as stored."""

    project: bytes | None
    created: bytes | None
    last_seq: bytes | None
    last_hash: bytes | None


class _Evidence(Struct, frozen=True):
    """The content of one snapshot for some missions; keys are printable ids."""

    lines: Mapping[str, list[ChainLine]]
    rows: Mapping[str, _MissionColumns]
    heads: Mapping[str, LogHead | None]
    signed: Mapping[str, list[SignedFile]]
    known: KnownKeys
    erased: frozenset[tuple[str, int]]


_MISSION_COLUMNS = {
    "id": "text",
    "project": "text",
    "created": "text",
    "last_seq": "integer",
    "last_hash": "text",
}
_ERASURE_COLUMNS = {"mission": "text", "seq": "integer"}


def verify(store: Store, mission: str | None = None, *, witnesses: Sequence[SignedHead] = ()) -> AuditReport:
    """Compare every line, of one mission or of all, with its hash, its neighbours and the kept heads.

    `witnesses` are signed heads kept elsewhere, for example as git notes; they are verified like those kept here.

    Detected, with their place: any changed byte of any column of a line, a changed or missing payload, dropped,
    swapped and inserted lines, a changed mission's row, and a cut tail. A cut tail is detected at any length as
    long as the mission's row is unchanged, back to the last durable append if the row was changed to fit, and back
    to the last signed head if the file of the unsigned head was changed or removed too. Also detected: a changed,
    forged or misplaced signed head, a head of another key, and a changed key.

    Not detected without a witness from elsewhere: lines after the last signed head that were recreated by someone
    who writes the whole directory, the removal of the newest signed heads together with all lines that they cover
    and the unsigned head, an erasure record written together with the removal of its payload, an older copy of the
    whole directory put in its place; and anything by someone who reads the private key and signs again.

    Reads one snapshot, in parallel with writers; unreadable content is a problem of the report. Raises
    `NotFoundError` for an unknown mission, `UsageError` (`head_of_other_mission`) for a witness of another
    mission.
    """
    for head in witnesses:
        if mission not in (None, head.mission):
            raise UsageError(
                f"the signed head is of mission {head.mission!r}, not of {mission!r}",
                code="head_of_other_mission",
                hint=f"chargehand audit verify {head.mission} --head FILE",
            )
    problems: list[AuditProblem] = []
    # SQLite's findings concern the whole file, so they are not blamed on the one mission that was named.
    if mission is None:
        try:
            with store.database.read() as connection:
                faults = damage(connection)
        except StoreError as error:
            faults = [error.message]
        problems += [audit_problem("", None, "store_damaged", fault) for fault in faults]
    found = _Evidence({}, {}, {}, {}, KnownKeys(keys={}), frozenset())
    try:
        found = _collect(store.database, mission)
    except StoreError as error:
        problems.append(audit_problem("", None, "store_damaged", error.message))
    names = {*found.lines, *found.rows, *found.heads, *found.signed, *(head.mission for head in witnesses)}
    if mission is not None and not names and not problems:
        raise NotFoundError(f"there is no mission {mission!r}", hint="`chargehand mission list` shows them")
    signed = Witnesses(found.known)
    for name in sorted(names):
        problems += _mission_problems(name, found=found, signed=signed, witnesses=witnesses)
    problems += signed.key_problems()
    return AuditReport(
        missions=len(names),
        events=sum(len(lines) for lines in found.lines.values()),
        problems=tuple(problems),
        signed_heads=signed.held,
        keys=signed.keys,
    )


def _collect(database: Database, mission: str | None) -> _Evidence:
    # Heads first: a head that is read after the snapshot could already be ahead of it. Keys last of the files: a
    # head that was signed just now has its key by now.
    with typed_errors(database.home):
        kept = Heads(database.home)
        names = kept.unsigned() if mission is None else kept.unsigned() & {mission}
        heads: dict[str, LogHead | None] = dict.fromkeys(names)
        for name in names:
            with suppress(ValueError, IsADirectoryError):
                heads[name] = kept.get(name)
        signed: dict[str, list[SignedFile]] = {}
        for file in kept.signed(mission):
            signed.setdefault(file.mission, []).append(file)
        known = KeyFiles(database.home).known()
    lines: dict[str, list[ChainLine]] = {}
    with database.read() as connection:
        for row in _raw_rows(connection, "events", LINE_COLUMNS, mission, order=", seq"):
            lines.setdefault(as_text(row[0]), []).append(ChainLine(*row))
        rows = {
            as_text(name): _MissionColumns(*columns)
            for name, *columns in _raw_rows(connection, "missions", _MISSION_COLUMNS, mission)
        }
        erased = frozenset(
            (as_text(name), as_integer(seq) or 0)
            for name, seq in _raw_rows(connection, "erasures", _ERASURE_COLUMNS, mission)
        )
    return _Evidence(lines, rows, heads, signed, known, erased)


def _raw_rows(
    connection: Transaction, table: str, columns: Mapping[str, str], mission: str | None, *, order: str = ""
) -> Iterator[tuple[Any, ...]]:
    key = next(iter(columns))
    where = "" if mission is None else f" WHERE {key} = :mission"
    query = f"SELECT {raw_columns(dict(columns))} FROM {table}{where} ORDER BY {key}{order}"
    return iter(connection.execute(query, {"mission": mission}))


def _mission_problems(
    mission: str, *, found: _Evidence, signed: Witnesses, witnesses: Sequence[SignedHead]
) -> Iterator[AuditProblem]:
    lines = found.lines.get(mission, [])
    hashes: dict[int, str] = {}
    yield from line_problems(mission, lines, hashes=hashes, erased=found.erased)
    row = found.rows.get(mission)
    if row is None:
        yield audit_problem(mission, None, "mission_missing", "the mission's row is missing")
    else:
        yield from _row_problems(mission, row, lines=lines, hashes=hashes)
    if mission in found.heads:
        kept = found.heads[mission]
        if kept is None:
            yield audit_problem(mission, None, "head_changed", "its head file is not a head")
        else:
            yield from _compare_head(mission, kept, hashes, how="kept")
    for file in found.signed.get(mission, ()):
        yield from signed.file_problems(file, hashes=hashes)
    for head in witnesses:
        if head.mission == mission:
            yield from signed.head_problems(head, hashes=hashes)


def _row_problems(
    mission: str, row: _MissionColumns, *, lines: list[ChainLine], hashes: Mapping[int, str]
) -> Iterator[AuditProblem]:
    last = max(hashes, default=0)
    kept = as_integer(row.last_seq)
    if kept is None or kept < last:
        yield audit_problem(mission, last, "head_changed", f"the mission's row ends at {row.last_seq!r}")
    elif kept > last:
        told = f"the log ends at {last}, it was written up to {kept}"
        yield audit_problem(mission, last + 1, "tail_missing", told)
    elif hashes.get(last, GENESIS) != as_text(row.last_hash):
        yield audit_problem(mission, last, "head_changed", "the mission's row and the last line do not agree")
    if not lines:
        return
    first = lines[0]
    if row.created != first.time:
        told = "the mission's row and its first line differ in time"
        yield audit_problem(mission, 1, "mission_changed", told)
    created = None
    if first.payload is not None:
        with suppress(KeyError, msgspec.DecodeError):
            created = decode(as_text(first.type), first.payload)
    if isinstance(created, MissionCreated) and created.project != as_text(row.project):
        told = "the mission's row and its first line differ in project"
        yield audit_problem(mission, 1, "mission_changed", told)
