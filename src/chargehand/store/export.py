"""The log as a self-verifying file: lines, signed heads and public key, one JSON document per line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import asdict

from chargehand.core.codec import decode_as
from chargehand.core.errors import UsageError
from chargehand.store.audit import AuditReport, Witnesses
from chargehand.store.chain import AuditProblem, ChainLine, audit_problem, line_problems
from chargehand.store.database.connection import corrupt, typed_errors
from chargehand.store.database.keys import KeyFiles, KnownKeys, PublicKey
from chargehand.store.heads import Heads, SignedHead
from chargehand.store.store import Store

_FORMAT = 1


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", forbid_unknown_fields=True):
    pass


class _Header(_Record, frozen=True, kw_only=True, tag="export"):
    format: int
    missions: tuple[str, ...]


class _Erasure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    time: str
    reason: str


class _EventLine(_Record, frozen=True, kw_only=True, tag="event"):
    mission: str
    seq: int
    time: str
    type: str
    payload: str | None  # the very text that the digest covers, so that no reader has to write JSON as we do
    digest: str
    prev: str
    hash: str
    erased: _Erasure | None = None


class _HeadLine(_Record, frozen=True, kw_only=True, tag="head"):
    head: msgspec.Raw


class _KeyLine(_Record, frozen=True, kw_only=True, tag="key"):
    id: str
    public: str


class _End(_Record, frozen=True, kw_only=True, tag="end"):
    events: int
    heads: int
    sha256: str


_Line = _Header | _EventLine | _HeadLine | _KeyLine | _End


def export_log(store: Store, missions: Sequence[str]) -> Iterator[bytes]:
    """Yield lines, each with its newline, with which a third party can verify these missions on their own.

    The last one holds the SHA-256 of all lines before it. Raises `StoreError`, also for a log or a head too
    damaged to export.
    """
    digest = hashlib.sha256()
    counts = {_EventLine: 0, _HeadLine: 0}
    for record in _records(store, missions):
        if type(record) in counts:
            counts[type(record)] += 1
        line = msgspec.json.encode(record) + b"\n"
        digest.update(line)
        yield line
    end = _End(events=counts[_EventLine], heads=counts[_HeadLine], sha256=digest.hexdigest())
    yield msgspec.json.encode(end) + b"\n"


def _records(store: Store, missions: Sequence[str]) -> Iterator[_Record]:
    yield _Header(format=_FORMAT, missions=tuple(missions))
    # Heads first: a head that is read after the log could be ahead of the lines read.
    with typed_errors(store.home):
        heads = [file for mission in missions for file in Heads(store.home).signed(mission)]
        known = KeyFiles(store.home).known()
    for mission in missions:
        query = "SELECT seq, time, reason FROM erasures WHERE mission = ?"
        with store.database.read() as connection:
            rows = connection.execute(query, (mission,))
            erased = {seq: _Erasure(time=time, reason=reason) for seq, time, reason in rows}
        for event in store.log.read(mission):
            # Bytes that are not text were not written by us; after replacement they still fail to match their
            # digest.
            payload = None if event.payload is None else event.payload.decode(errors="replace")
            yield _EventLine(
                **{**asdict(event), "payload": payload}, erased=erased.get(event.seq) if payload is None else None
            )
    for file in heads:
        try:
            yield _HeadLine(head=msgspec.Raw(SignedHead.decode(file.content).encode()))
        except UsageError as error:
            raise corrupt(store.home, error.message) from error
    for key in known.keys.values():
        yield _KeyLine(id=key.id, public=key.pem)


def verify_export(lines: Iterable[bytes], *, witnesses: Sequence[SignedHead] = ()) -> AuditReport:
    """Verify an export of `export_log` by itself and by `witnesses`: signed heads kept elsewhere.

    An export by itself proves that it is complete and which key signed it; the reader must know whether the key is
    the right one, from `AuditReport.keys` or a witness. An invalid line is a problem of the report, not an error.
    """
    read = _read(lines)
    signed = Witnesses(KnownKeys(keys=read.keys))
    heads: dict[str, list[SignedHead]] = {}
    for head in (*read.heads, *witnesses):
        heads.setdefault(head.mission, []).append(head)
    names = dict.fromkeys([*read.missions, *read.lines, *heads])
    problems = list(read.problems)
    for name in names:
        hashes: dict[int, str] = {}
        lines_of_it = read.lines.get(name, [])
        if not lines_of_it:
            problems.append(audit_problem(name, 1, "tail_missing", "the export has no line of this mission"))
        elif name not in read.missions:
            told = "the export does not name this mission"
            problems.append(audit_problem(name, None, "mission_missing", told))
        problems += line_problems(name, lines_of_it, hashes=hashes, erased=read.erased)
        for head in heads.get(name, ()):
            problems += signed.head_problems(head, hashes=hashes)
    problems += signed.key_problems()
    end = read.end
    if end is None:
        problems.append(audit_problem("", None, "tail_missing", "the export has no end"))
    elif (end.events, end.heads) != (read.events, len(read.heads)):
        now, then = f"{read.events} events and {len(read.heads)} heads", f"{end.events} and {end.heads}"
        problems.append(audit_problem("", None, "tail_missing", f"it ends after {now}, it had {then}"))
    # Only if nothing else was found: otherwise the place is named already, and this would hide it.
    elif not problems and end.sha256 != read.sha256:
        told = "its content and its digest do not agree"
        problems.append(audit_problem("", None, "export_malformed", told))
    return AuditReport(
        missions=len(names),
        events=read.events,
        problems=tuple(problems),
        signed_heads=signed.held,
        keys=signed.keys,
    )


class _Reading(msgspec.Struct):
    """The content read from an export so far."""

    missions: tuple[str, ...] = ()
    events: int = 0
    lines: dict[str, list[ChainLine]] = {}
    erased: set[tuple[str, int]] = set()
    heads: list[SignedHead] = []
    keys: dict[str, PublicKey] = {}
    end: _End | None = None
    sha256: str = ""
    problems: list[AuditProblem] = []

    def take(self, record: object) -> None:
        """Take one record; raises `ValueError` if it contradicts itself or is in the wrong place."""
        if self.end is not None:
            raise ValueError("it comes after the end")
        match record:
            case _EventLine():
                self.events += 1
                self.lines.setdefault(record.mission, []).append(
                    ChainLine(
                        mission=record.mission.encode(),
                        seq=str(record.seq).encode(),
                        time=record.time.encode(),
                        type=record.type.encode(),
                        payload=None if record.payload is None else record.payload.encode(),
                        digest=record.digest.encode(),
                        prev=record.prev.encode(),
                        hash=record.hash.encode(),
                    )
                )
                if record.erased is not None:
                    self.erased.add((record.mission, record.seq))
            case _HeadLine():
                self.heads.append(SignedHead.decode(bytes(record.head)))
            case _KeyLine():
                key = PublicKey.parse(record.public.encode())
                if (key.id, key.pem) != (record.id, record.public):
                    raise ValueError("the key and its id do not agree")
                self.keys[key.id] = key
            case _End():
                self.end = record
            case _Header():
                raise ValueError("it is a second beginning")


def _read(lines: Iterable[bytes]) -> _Reading:
    read = _Reading()
    digest = hashlib.sha256()
    number = 0
    for number, line in enumerate(lines, start=1):
        try:
            record = decode_as(line, _Line)
            if number > 1:
                read.take(record)
            elif isinstance(record, _Header) and record.format == _FORMAT:
                read.missions = record.missions
            else:
                raise ValueError(f"it is not the beginning of an export of format {_FORMAT}")
        except ValueError as error:  # msgspec's own errors and UsageError are ValueErrors too
            read.problems.append(
                audit_problem("", None, "export_malformed", f"line {number} of the file: {error}")
            )
        if read.end is None:  # the end holds the digest of all before it
            digest.update(line)
    read.sha256 = digest.hexdigest()
    if number == 0:
        read.problems.append(audit_problem("", None, "export_malformed", "the file is empty"))
    return read
