"""The event log: one chain of lines per mission."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from chargehand.core.actions import ActionCreated
from chargehand.core.clock import Clock
from chargehand.core.errors import FencedError, NotFoundError, RefusedError, UsageError, nearest
from chargehand.core.events import GENESIS, Event, Payload, chain_hash, encode, payload_digest
from chargehand.core.mission_events import (
    PROMOTE,
    CancelAsked,
    MissionFinished,
    MissionPaused,
    MissionResumed,
    QuestionAnswered,
    QuestionAsked,
)
from chargehand.core.mission_events import MissionCreated as Created
from chargehand.store.database.connection import Database, Prepared, Transaction, corrupt, typed_errors
from chargehand.store.database.schema import SLEEPING, TAKEABLE, erasures, events, missions
from chargehand.store.heads import Head, Heads

_SHOWN = 8
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")  # it also names the head's file
_LIST_HINT = "`chargehand mission list` shows them"
_LOG_HINT = "`chargehand mission log` lists them"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissionRow:
    """A mission and where its log ends; `created` is ISO 8601 in UTC.

    `epoch` counts how often it was claimed, `owner` is the worker that holds it (or died holding it), `runnable`
    says that a worker should go on with it, `wakes` (ISO 8601, UTC) that it does so from then on: derived from the
    log with each line.
    """

    id: str
    project: str
    created: str
    last_seq: int
    last_hash: str
    epoch: int = 0
    owner: str | None = None
    runnable: bool = False
    wakes: str | None = None


class EventLog:
    """Appends and reads lines; any number of processes may do both at once."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._heads = Heads(database.home)

    def append(
        self, mission: str, *payloads: Payload, durable: bool = False, epoch: int | None = None
    ) -> tuple[Event, ...]:
        """Append all payloads or none, in order, and return their lines.

        The first line of a mission is `mission.created`, and no other is; that of a project's own log, whose name
        is the project's, is `action.created`. `durable` returns only when the lines
        survive a power cut, and keeps the new head outside the database too; when only that fails, the lines stay.
        With `epoch`, the writer's claim must be the last one. Raises `FencedError` where it is not,
        `NotFoundError` for an unknown mission, `UsageError` (`mission_exists`) for a second one, `StoreError`.
        """
        if not payloads:
            return ()
        if not _ID.fullmatch(mission):
            raise UsageError(f"{mission!r} cannot be a mission's id", hint="lower case letters, digits and dashes")
        bodies = [(payload.type, encode(payload)) for payload in payloads]
        with self._database.quick(durable=durable) as connection:
            tip = _tip.run(connection, {"mission": mission}).fetchone()
            if epoch is not None and (tip is None or tip[2] != epoch):
                raise FencedError(f"mission {mission!r} was taken over by another worker", hint=_LOG_HINT)
            lines = tuple(self._chained(_head(tip), mission, bodies))
            self._open_or_refuse(connection, payloads, line=lines[0])
            for line in lines:
                _add_line.run(connection, _columns(line))
            _move_head.run(connection, _head_values(lines[-1]))
            runnable = _runnable_after(payloads)
            if runnable is not None:
                _set_runnable.run(connection, {"mission": mission, "wanted": runnable})
            wakes = _wakes_after(payloads)
            if wakes is not None:
                _set_wakes.run(connection, {"mission": mission, "moment": wakes or None})
        if durable:
            with typed_errors(self._database.home):
                self._heads.put(mission, head=Head(seq=lines[-1].seq, hash=lines[-1].hash))
        return lines

    def read(self, mission: str, *, after: int = 0, types: Collection[str] = ()) -> tuple[Event, ...]:
        """Return the lines with `seq > after`, in order, of these `types` or of all; none for an unknown mission.

        To follow a mission, ask again with the last `seq` that came. Raises `StoreError` (`store_corrupt` for a
        line that cannot have been written).
        """
        with self._database.read() as connection:
            query = _lines.where(events.c.type.in_(tuple(types))) if types else _lines
            rows = connection.execute(query, {"mission": mission, "after": after}).all()
        return tuple(self._event(row) for row in rows)

    def last_seq(self, log: str) -> int:
        """Return the number of the last line of a mission's or project's log, 0 where there is none."""
        query = sa.select(missions.c.last_seq).where(missions.c.id == log)
        with self._database.read() as connection:
            return connection.execute(query).scalar_one_or_none() or 0

    def names(self) -> tuple[str, ...]:
        """Return the names of all logs, those of projects among them, the oldest first."""
        query = sa.select(missions.c.id).order_by(missions.c.created, missions.c.id)
        with self._database.read() as connection:
            return tuple(connection.execute(query).scalars())

    def missions(self, *, project: str | None = None) -> tuple[MissionRow, ...]:
        """Return all missions, or those of one project, oldest first. Raises `StoreError`."""
        query = sa.select(missions).where(_is_mission).order_by(missions.c.created, missions.c.id)
        if project is not None:
            query = query.where(missions.c.project == project)
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
        return tuple(map(_row, rows))

    def takeable(self) -> tuple[MissionRow, ...]:
        """Return the missions that should go on or have an owner, oldest first. Raises `StoreError`."""
        query = sa.select(missions).where(TAKEABLE).order_by(missions.c.created, missions.c.id)
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
        return tuple(map(_row, rows))

    def sleeping(self) -> tuple[MissionRow, ...]:
        """Return the missions that go on by themselves at a moment, the first one first. Raises `StoreError`."""
        query = sa.select(missions).where(SLEEPING).order_by(missions.c.wakes, missions.c.id)
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
        return tuple(map(_row, rows))

    def claim(self, mission: str, *, owner: str, epoch: int) -> int:
        """Make `owner` the holder of a mission last seen at `epoch`, and return its new epoch.

        What the holder before appends from now on raises `FencedError`. Raises `RefusedError` (`mission_held`)
        where another claim came first, `NotFoundError`, `StoreError`.
        """
        with self._database.write() as connection:
            values = {"mission": mission, "seen": epoch, "holder": owner}
            if connection.execute(_claim, values).rowcount == 1:
                return epoch + 1
        self.get(mission)
        raise RefusedError(
            f"mission {mission!r} is held by another process",
            code="mission_held",
            hint=f"chargehand mission cancel {mission} stops it",
        )

    def release(self, mission: str, *, epoch: int) -> None:
        """Let go of a mission held at `epoch`; no effect once another claimed it. Raises `StoreError`."""
        with self._database.write() as connection:
            connection.execute(_release, {"mission": mission, "seen": epoch})

    def latest(self, project: str) -> MissionRow | None:
        """Return the mission of a project that was created last, if there is one. Raises `StoreError`."""
        newest = (missions.c.created.desc(), missions.c.id.desc())
        query = sa.select(missions).where(_is_mission, missions.c.project == project).order_by(*newest).limit(1)
        with self._database.read() as connection:
            row = connection.execute(query).mappings().one_or_none()
        return None if row is None else _row(row)

    def get(self, mission: str) -> MissionRow:
        """Return the row of one mission by its whole id. Raises `NotFoundError`, `StoreError`."""
        with self._database.read() as connection:
            row = connection.execute(sa.select(missions).where(missions.c.id == mission)).mappings().one_or_none()
        if row is None:
            raise self._unknown(mission)
        return _row(row)

    def find(self, name: str) -> str:
        """Return the id that `name` is, or begins (with or without `m-`), or ends, when it is the only one.

        Raises `NotFoundError`, `UsageError` (`ambiguous`), `StoreError`.
        """
        wanted = name.strip().lower()
        if not wanted:
            raise UsageError(f"{name!r} is not a mission", hint=_LIST_HINT)
        key = missions.c.id
        begins = key.startswith(wanted, autoescape=True) | key.startswith("m-" + wanted, autoescape=True)
        query = sa.select(key).where(_is_mission, begins | key.endswith(wanted, autoescape=True)).order_by(key)
        with self._database.read() as connection:
            found = list(connection.execute(query).scalars())
        return self._only(name, found=found, exact=wanted)

    def erase(self, mission: str, seq: int, *, reason: str) -> None:
        """Remove the payload of one line for good; its digest stays, so the chain stays whole.

        Idempotent. Raises `NotFoundError` for an unknown line, `StoreError`.
        """
        line = (events.c.mission == mission) & (events.c.seq == seq)
        with self._database.write(durable=True) as connection:
            kept = connection.execute(sa.select(events.c.payload.is_(None)).where(line)).scalar_one_or_none()
            if kept is None:
                raise NotFoundError(f"mission {mission!r} has no event {seq!r}", hint=_LOG_HINT)
            if kept:
                return
            connection.execute(sa.update(events).where(line).values(payload=None))
            row = {"mission": mission, "seq": seq, "time": self._now(), "reason": reason}
            connection.execute(sa.insert(erasures), row)

    def _event(self, row: sa.Row[*tuple[Any, ...]]) -> Event:
        if tuple(map(type, row)) not in _SHAPES:
            raise corrupt(self._database.home, f"line {row[1]!r} of mission {row[0]!r} has values of wrong types")
        return Event(*row)

    def _now(self) -> str:
        return self._clock.now().isoformat(timespec="microseconds")

    def _chained(self, head: Head, mission: str, bodies: Sequence[tuple[str, bytes]]) -> Iterator[Event]:
        time, prev = self._now(), head.hash
        for seq, (name, payload) in enumerate(bodies, start=head.seq + 1):
            digest = payload_digest(payload)
            line = {"mission": mission, "seq": seq, "time": time, "type": name, "digest": digest, "prev": prev}
            event = Event(**line, payload=payload, hash=chain_hash(**line))  # type: ignore[arg-type]
            yield event
            prev = event.hash

    def _open_or_refuse(self, connection: Transaction, payloads: Sequence[Payload], *, line: Event) -> None:
        first, *others = payloads
        creates = isinstance(first, Created)
        if any(isinstance(payload, Created) for payload in others) or (creates and line.seq > 1):
            raise UsageError(
                f"mission {line.mission!r} exists", code="mission_exists", hint="make a new id for it"
            )
        if line.seq > 1:
            return
        own = isinstance(first, ActionCreated) and first.project == line.mission
        if not isinstance(first, Created | ActionCreated) or not (creates or own):
            raise NotFoundError(f"there is no mission {line.mission!r}", hint=_LIST_HINT)
        row = MissionRow(id=line.mission, project=first.project, created=line.time, last_seq=0, last_hash=GENESIS)
        _open.run(connection, {**asdict(row), "runnable": int(creates)})

    def _only(self, name: str, *, found: list[str], exact: str) -> str:
        if exact in found:
            return exact
        if not found:
            raise self._unknown(name)
        if len(found) > 1:
            shown = ", ".join(found[-_SHOWN:]) + (" …" if len(found) > _SHOWN else "")
            raise UsageError(
                f"{name!r} begins or ends {len(found)} missions",
                code="ambiguous",
                hint=f"say more: {shown}",
            )
        return found[0]

    def _unknown(self, name: str) -> NotFoundError:
        newest = sa.select(missions.c.id).where(_is_mission).order_by(missions.c.created.desc()).limit(_SHOWN)
        with self._database.read() as connection:
            known = connection.execute(newest).scalars().all()
        return NotFoundError(f"there is no mission {name!r}", hint=nearest(name, known))


_is_mission = missions.c.id != missions.c.project  # a project's own log is none
_SHAPES = {(str, int, str, str, payload, str, str, str) for payload in (bytes, type(None))}
_lines = (
    sa.select(*(sa.type_coerce(column, sa.types.NULLTYPE) for column in events.columns))
    .where(events.c.mission == sa.bindparam("mission"), events.c.seq > sa.bindparam("after"))
    .order_by(events.c.seq)
)
_tip = Prepared(
    sa.select(missions.c.last_seq, missions.c.last_hash, missions.c.epoch).where(
        missions.c.id == sa.bindparam("mission")
    )
)
_move_head = Prepared(
    sa.update(missions)
    .where(missions.c.id == sa.bindparam("mission"))
    .values(last_seq=sa.bindparam("seq"), last_hash=sa.bindparam("hash"))
)


_add_line = Prepared(sa.insert(events))
_open = Prepared(sa.insert(missions))
_set_runnable = Prepared(
    sa.update(missions).where(missions.c.id == sa.bindparam("mission")).values(runnable=sa.bindparam("wanted"))
)
_set_wakes = Prepared(
    sa.update(missions).where(missions.c.id == sa.bindparam("mission")).values(wakes=sa.bindparam("moment"))
)
_held = (missions.c.id == sa.bindparam("mission")) & (missions.c.epoch == sa.bindparam("seen"))
_claim = sa.update(missions).where(_held).values(epoch=missions.c.epoch + 1, owner=sa.bindparam("holder"))
_release = sa.update(missions).where(_held).values(owner=None)


def _columns(line: Event) -> dict[str, object]:
    return {column.name: getattr(line, column.name) for column in events.columns}


def _row(row: sa.RowMapping) -> MissionRow:
    return MissionRow(**{**row, "runnable": bool(row["runnable"])})


def _runnable_after(payloads: Sequence[Payload]) -> int | None:
    """Return whether a worker should go on after these lines, `None` where they change nothing about that."""
    for payload in reversed(payloads):
        if isinstance(payload, CancelAsked | MissionFinished | MissionPaused):
            return 0
        if isinstance(payload, MissionResumed):
            return 1
        if isinstance(payload, QuestionAnswered) and payload.question != PROMOTE:
            return 1
    return None


def _wakes_after(payloads: Sequence[Payload]) -> str | None:
    """Return until when a mission sleeps after these lines, "" for not at all, `None` where it is as before."""
    for payload in reversed(payloads):
        if isinstance(payload, QuestionAsked) and payload.until:
            return payload.until
        if isinstance(payload, QuestionAnswered | CancelAsked | MissionPaused | MissionResumed):
            return ""
        if isinstance(payload, MissionFinished) and payload.status != "waiting":
            return ""
    return None


def _head(tip: tuple[int, str, int] | None) -> Head:
    return Head(seq=0, hash=GENESIS) if tip is None else Head(seq=tip[0], hash=tip[1])


def _head_values(line: Event) -> dict[str, Any]:
    return {"mission": line.mission, "seq": line.seq, "hash": line.hash}
