"""The event log: one chain of lines per mission, one position over all, and summaries of missions."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

from chargehand.core.attempt_events import ModelCalled
from chargehand.core.clock import Clock
from chargehand.core.errors import FencedError, NotFoundError, RefusedError, StoreError, UsageError, nearest
from chargehand.core.events import GENESIS, Event, Payload, chain_hash, encode, payload_digest
from chargehand.core.mission_events import (
    MissionCreated,
    MissionFinished,
)
from chargehand.core.records import MissionStatus
from chargehand.store.chain import (
    LINE_COLUMNS,
    LINE_SHAPES,
    AuditProblem,
    ChainLine,
    PositionedEvent,
    as_event,
    is_moment,
    is_whole_chain,
    line_problems,
)
from chargehand.store.database import summaries
from chargehand.store.database.connection import Database, Transaction, raw_columns, typed_errors
from chargehand.store.heads import Heads, LogHead
from chargehand.store.rows import (
    ALL_MISSIONS,
    LIST_HINT,
    NO_TIME,
    ROW_COLUMNS,
    IsLive,
    Listings,
    MissionFilter,
    MissionListing,
    MissionRow,
    OwnerLiveness,
    next_turn,
    open_log,
    read_row,
)

_SHOWN = 8
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")  # also the name of the head's file
_LOG_HINT = "`chargehand mission log` lists them"
# Literals in SQL that must equal the text of the partial indexes, or SQLite does not use them.
_TAKEABLE = "runnable = 1 OR owner IS NOT NULL"
_QUEUE = "SELECT id, owner FROM missions WHERE runnable = 1 ORDER BY created, id"
_SLEEPING = "wakes IS NOT NULL AND runnable = 0"
_WITH_NEWS = "news = 1"
_MODEL_CALLS = "type = 'model.called'"
_ROWS = f"SELECT {ROW_COLUMNS} FROM missions"
_LINE = "mission, seq, time, type, payload, digest, prev, hash"
_RAW_LINE = raw_columns({f"events.{name}": kind for name, kind in LINE_COLUMNS.items()})


class LogMark(Struct, frozen=True, kw_only=True):
    """The hash of the line at a position, "" without such a line, and text that changes with each erasure."""

    hash: str
    erasures: str


def _update_row(connection: Transaction, last: Event, payloads: tuple[Payload, ...], *, owner: str | None) -> None:
    """Update a mission's row after appending lines: its tip, whose turn is next, and its first `owner`."""
    runnable, wakes = next_turn(payloads)
    connection.execute(
        "UPDATE missions SET last_seq = :seq, last_hash = :hash, runnable = coalesce(:runnable, runnable),"
        " owner = coalesce(:owner, owner),"
        " wakes = CASE WHEN :wakes IS NULL THEN wakes ELSE nullif(:wakes, '') END,"
        " news = CASE WHEN parent IS NOT NULL AND :news = 1 THEN 1 ELSE news END WHERE id = :mission",
        {
            "news": any(isinstance(payload, MissionFinished) for payload in payloads),
            "mission": last.mission,
            "owner": owner,
            "seq": last.seq,
            "hash": last.hash,
            "runnable": runnable,
            "wakes": wakes,
        },
    )


class EventLog:
    """Appends and reads lines; any number of processes may do both at once."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._heads = Heads(database.home)
        self._listings = Listings(database)

    def append(
        self,
        mission: str,
        *payloads: Payload,
        durable: bool = False,
        epoch: int | None = None,
        owner: str | None = None,
    ) -> tuple[Event, ...]:
        """Append all payloads or none, in order, and return their lines.

        The first line of a mission is `mission.created`, and no other line is; a project's own log, whose name is
        the project's, starts with `action.created`. `durable` returns only after the lines survive a power cut,
        and also stores the new head outside the database; if only that fails, the lines stay. With `epoch`, the
        writer's claim must be the last one; with `owner`, that worker holds the mission at once. Raises
        `FencedError` if the claim is not the last one, `NotFoundError` for an unknown mission, `UsageError`
        (`mission_exists`) for a second one, `StoreError`.
        """
        if not payloads:
            return ()
        if not _ID.fullmatch(mission):
            raise UsageError(f"{mission!r} cannot be a mission's id", hint="lower case letters, digits and dashes")
        bodies = [(payload.type, encode(payload)) for payload in payloads]
        with self._database.write(durable=durable) as connection:
            query = "SELECT last_seq, last_hash, epoch, project FROM missions WHERE id = ?"
            tip = connection.execute(query, (mission,)).fetchone()
            # Compared under the write lock, so that no claim can come between this and the append.
            if epoch is not None and (tip is None or tip[2] != epoch):
                raise FencedError(f"mission {mission!r} was taken over by another worker", hint=_LOG_HINT)
            head = LogHead(seq=0, hash=GENESIS) if tip is None else LogHead(seq=tip[0], hash=tip[1])
            # Numbered and hashed under the write lock: no other writer can get between the tip and these lines.
            lines = self._chain(head, mission, bodies)
            created = [isinstance(payload, MissionCreated) for payload in payloads]
            if any(created[1:]) or (created[0] and tip is not None):
                raise UsageError(f"mission {mission!r} exists", code="mission_exists", hint="use a new id")
            project = tip[3] if tip is not None else open_log(connection, payloads[0], line=lines[0])
            # Each position is computed in the statement that takes it, and the write lock keeps it until the end.
            connection.executemany(
                f"INSERT INTO events ({_LINE}, position)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, (SELECT coalesce(max(position), 0) + 1 FROM events))",
                [astuple(line) for line in lines],
            )
            _update_row(connection, lines[-1], payloads, owner=owner)
            if project != mission:  # a project's own log is not a mission
                summaries.project(connection, mission, lines)
        # After the transaction: a head that is ahead of the log would look like a cut tail.
        if durable:
            with typed_errors(self._database.home):
                # Two writers may arrive here in reverse order: an older head proves less, but nothing wrong.
                self._heads.put(mission, head=LogHead(seq=lines[-1].seq, hash=lines[-1].hash))
        return lines

    def read(
        self, mission: str, *, after: int = 0, types: Collection[str] = (), limit: int = -1
    ) -> tuple[Event, ...]:
        """Return the lines with `seq > after`, in order, of these `types` or of all; empty for an unknown mission.

        The first `limit` of them, or all. To follow a mission, call again with the last `seq` returned. A damaged
        line is returned with its readable content; `check` detects it. Raises `StoreError`.
        """
        query = (
            f"SELECT {_LINE} FROM events WHERE mission = ? AND seq > ? AND typeof(seq) = 'integer'"
            f"{_only_types(types)} ORDER BY seq LIMIT ?"
        )
        with self._database.read() as connection:
            rows = connection.execute(query, (mission, after, *types, limit)).fetchall()
            # SQLite stores a value of any type in any column, so a damaged file can hold values that no append
            # wrote.
            if all(tuple(map(type, row)) in LINE_SHAPES and is_moment(row[2]) for row in rows):
                return tuple(Event(*row) for row in rows)
            lines = []
            before = NO_TIME
            for line in _read_lines(connection, mission):
                event = as_event(line, before=before)
                before = event.time
                if event.seq > after and (not types or event.type in types):
                    lines.append(event)
        return tuple(lines[:limit] if limit >= 0 else lines)

    def problems(self, mission: str) -> tuple[AuditProblem, ...]:
        """Return the damage in a mission's lines, as far as their own hashes show; see `audit.verify`.

        Raises `StoreError`.
        """
        with self._database.read() as connection:
            query = f"SELECT {_LINE} FROM events WHERE mission = ? ORDER BY seq"
            if is_whole_chain(mission, connection.execute(query, (mission,))):
                return ()
            lines = list(_read_lines(connection, mission))
            erasures = connection.execute("SELECT mission, seq FROM erasures WHERE mission = ?", (mission,))
            erased = {(name, seq) for name, seq in erasures}
        return tuple(line_problems(mission, lines, hashes={}, erased=erased))

    def lines_behind(self, mission: str, head: LogHead, *, limit: int) -> tuple[Event, ...] | None:
        """Return the lines after a known one, or `None` if they cannot be trusted to continue from it.

        That is if this line no longer exists, if a line after it was changed, or if anything of the mission was
        erased: then earlier results computed from the log no longer match it. At most `limit` lines; from `seq` 0
        they start at the first one. Raises `StoreError`.
        """
        query = f"SELECT {_LINE} FROM events WHERE mission = ? AND seq >= ? ORDER BY seq LIMIT ?"
        with self._database.read() as connection:
            if connection.execute("SELECT 1 FROM erasures WHERE mission = ? LIMIT 1", (mission,)).fetchone():
                return None
            rows = connection.execute(query, (mission, head.seq, limit + bool(head.seq))).fetchall()
        if head.seq:
            # Each hash covers the one before: an equal hash ends equal lines.
            if not rows or (rows[0][1], rows[0][-1]) != (head.seq, head.hash):
                return None
            del rows[0]
        is_whole = is_whole_chain(mission, rows, after=head.seq, before=head.hash)
        return tuple(Event(*row) for row in rows) if is_whole else None

    def check(self, mission: str) -> None:
        """Raise `StoreError` (`mission_damaged`) if `problems` finds any: no work continues from such a log."""
        found = self.problems(mission)
        if found:
            first = found[0]
            where = f"line {first.seq}" if first.seq is not None else "the log"
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            raise StoreError(
                f"{where} of mission {mission!r} is damaged: {first.message}{more}",
                code="mission_damaged",
                hint=f"`chargehand audit verify {mission}` names the damaged lines, `chargehand store restore`"
                " restores a backup; other missions are not affected",
            )

    def set_aside(self, mission: str) -> None:
        """Stop workers from taking a mission; only a person's `resume` continues it. Raises `StoreError`."""
        with self._database.write() as connection:
            connection.execute(
                "UPDATE missions SET runnable = 0, wakes = NULL, owner = NULL WHERE id = ?", (mission,)
            )

    def after(
        self,
        position: int = 0,
        *,
        limit: int = 1000,
        mission: str | None = None,
        project: str | None = None,
        types: Collection[str] = (),
    ) -> tuple[PositionedEvent, ...]:
        """Return the lines of all logs after a position, at most `limit`, in append order.

        To follow everything, in any process and across restarts, call again with the last position returned: no
        line is skipped or repeated, and the lines of one mission come in their order. A filter only leaves lines
        out. A damaged line is returned with its readable content: `audit verify` names it, and followers of other
        missions need not stop for it. Raises `StoreError`.
        """
        wheres = {"events.mission = ?": mission, "missions.project = ?": project}
        given = {where: value for where, value in wheres.items() if value is not None}
        # A cross join keeps this loop order: otherwise all lines of the project are read, and sorted, for one
        # page.
        join = " CROSS JOIN missions ON missions.id = events.mission" if project is not None else ""
        where = "".join(f" AND {each}" for each in given)
        # Within a mission lines are in the order of their positions: a page must not sort all of a long one.
        order, start = ("position", "") if mission is None else ("seq", " AND seq > ?")
        query = (
            f"SELECT position, {_RAW_LINE} FROM events{join}"
            f" WHERE position > ?{where}{start}{_only_types(types)} ORDER BY {order} LIMIT ?"
        )
        with self._database.read() as connection:
            behind = [] if mission is None else [_seq_at(connection, mission, position)]
            rows = connection.execute(query, (position, *given.values(), *behind, *types, limit)).fetchall()
        found = []
        before = NO_TIME
        for place, *columns in rows:
            event = as_event(ChainLine(*columns), before=before)
            before = event.time
            found.append(PositionedEvent(place, event))
        return tuple(found)

    def last_position(self) -> int:
        """Return the position of the last line of all, 0 if there are no lines. Raises `StoreError`."""
        with self._database.read() as connection:
            found = connection.execute("SELECT coalesce(max(position), 0) FROM events").fetchone()
        return int(found[0])

    def mark(self, position: int) -> LogMark:
        """Return marks that differ if the log up to a position is another or was erased. Raises `StoreError`."""
        with self._database.read() as connection:
            row = connection.execute("SELECT hash FROM events WHERE position = ?", (position,)).fetchone()
            erased = connection.execute("SELECT count(*), coalesce(max(time), '') FROM erasures").fetchone()
        return LogMark(hash=str(row[0]) if row else "", erasures=f"{erased[0]} {erased[1]}")

    def last_seq(self, log: str) -> int:
        """Return the number of the last line of a mission's or project's log, 0 if there are no lines."""
        with self._database.read() as connection:
            row = connection.execute("SELECT last_seq FROM missions WHERE id = ?", (log,)).fetchone()
        return 0 if row is None else int(row[0])

    def names(self) -> tuple[str, ...]:
        """Return the names of all logs, including those of projects, oldest first."""
        with self._database.read() as connection:
            return tuple(name for (name,) in connection.execute("SELECT id FROM missions ORDER BY created, id"))

    def missions(self, *, project: str | None = None, limit: int = -1) -> tuple[MissionRow, ...]:
        """Return all missions, or those of one project, oldest first; the last `limit`. Raises `StoreError`."""
        where = "id <> project" if project is None else "id <> project AND project = :project"
        newest = f"{where} ORDER BY created DESC, id DESC LIMIT :limit"
        return self._rows(newest, project=project, limit=limit)[::-1]

    def mission_counts(self) -> dict[str, int]:
        """Return the number of missions of each project that has missions. Raises `StoreError`."""
        with self._database.read() as connection:
            query = "SELECT project, count(*) FROM missions WHERE id <> project GROUP BY project"
            return dict(connection.execute(query))

    def takeable(self) -> tuple[MissionRow, ...]:
        """Return the missions that are runnable or have an owner, oldest first. Raises `StoreError`."""
        return self._rows(f"{_TAKEABLE} ORDER BY created, id")

    def queue(self) -> tuple[tuple[str, str | None], ...]:
        """Return the runnable missions and their owners, oldest first. Raises `StoreError`."""
        with self._database.read() as connection:  # not as rows: every list queries it, and it may be long
            return tuple(connection.execute(_QUEUE))

    def owners(self) -> dict[str, int]:
        """Return the number of missions per holder. Raises `StoreError`."""
        with self._database.read() as connection:
            query = "SELECT owner, count(*) FROM missions WHERE owner IS NOT NULL GROUP BY owner"
            return dict(connection.execute(query))

    def sleeping(self) -> tuple[MissionRow, ...]:
        """Return the missions that resume by themselves at a set time, earliest first. Raises `StoreError`."""
        return self._rows(f"{_SLEEPING} ORDER BY wakes, id")

    def children(self, mission: str) -> tuple[MissionRow, ...]:
        """Return the missions that do the tasks of a coordinator, oldest first. Raises `StoreError`."""
        return self._rows("parent = :mission ORDER BY created, id", mission=mission)

    def with_news(self) -> tuple[MissionRow, ...]:
        """Return the missions of tasks with news for their coordinator. Raises `StoreError`."""
        return self._rows(f"{_WITH_NEWS} ORDER BY created, id")

    def note_told(self, *missions: str) -> None:
        """Note that the coordinator knows the state of these missions. Raises `StoreError`."""
        with self._database.write() as connection:
            connection.executemany("UPDATE missions SET news = 0 WHERE id = ?", [(each,) for each in missions])

    def latest(self, project: str) -> MissionRow | None:
        """Return the newest mission of a project, or `None`. Raises `StoreError`."""
        newest = "id <> project AND project = :project ORDER BY created DESC, id DESC LIMIT 1"
        return next(iter(self._rows(newest, project=project)), None)

    def get(self, mission: str) -> MissionRow:
        """Return the row of one mission by its whole id. Raises `NotFoundError`, `StoreError`."""
        found = self._rows("id = :mission", mission=mission)
        if not found:
            raise self._unknown(mission)
        return found[0]

    def summary(self, mission: str, is_live: IsLive | None = None) -> MissionListing:
        """Return one mission as shown in lists. Raises `NotFoundError`, `StoreError`."""
        found = self._listings.select(is_live, "missions.id = :mission", {"mission": mission})
        if not found:
            raise self._unknown(mission)
        return found[0]

    def find_summaries(self, missions: Collection[str]) -> dict[str, MissionListing]:
        """Return missions by their whole ids, in one query; unknown ones are left out. Raises `StoreError`."""
        return {each.row.id: each for each in self._listings.find(missions)}

    def summaries(
        self, is_live: IsLive | None = None, wanted: MissionFilter = ALL_MISSIONS, *, measures: bool = False
    ) -> tuple[MissionListing, ...]:
        """Return missions as shown in lists, oldest first, without folding their logs.

        Without `is_live` no mission counts as held. Raises `NotFoundError` for an unknown cursor, `StoreError`.
        """
        for cursor in (wanted.before, wanted.after):
            if cursor is not None:
                self.get(cursor)
        names = ("project", "user", "since", "before", "after", "parent")
        values: dict[str, Any] = {name: getattr(wanted, name) for name in names}
        values = {name: value for name, value in values.items() if value is not None}
        if wanted.text:
            values["text"] = wanted.text.casefold()
        statuses = wanted.statuses
        where = summaries.conditions(values, statuses=None if statuses is None else len(statuses))
        values |= {f"status{number}": status for number, status in enumerate(statuses or ())}
        backwards = wanted.limit is not None and wanted.after is None
        order = " DESC" if backwards else ""
        query = f"{' AND '.join(where)} ORDER BY mission_summaries.created{order}, mission{order}"
        chosen = wanted.fits if statuses is not None or wanted.user is not None or wanted.text else None
        found = self._listings.select(is_live, query, values, fits=chosen, limit=wanted.limit, measures=measures)
        return tuple(reversed(found)) if backwards else tuple(found)

    def counts(
        self, is_live: IsLive | None = None, *, project: str | None = None, user: str | None = None
    ) -> dict[MissionStatus, int]:
        """Return the number of missions per status, without reading any of them. Raises `StoreError`."""
        if self._listings.refresh():
            listed = self.summaries(is_live, MissionFilter(project=project, user=user))
            return dict(Counter(listing.summary.status for listing in listed))
        query = """
            SELECT status, status_unheld, owner, count(*) FROM mission_summaries
            JOIN missions ON missions.id = mission AND missions.project <> mission
            WHERE (:project IS NULL OR mission_summaries.project = :project) AND (:user IS NULL OR user = :user)
            GROUP BY 1, 2, 3
        """
        alive = OwnerLiveness(is_live)
        while True:
            with self._database.read() as connection:
                groups = connection.execute(query, {"project": project, "user": user}).fetchall()
            if not alive.learn([owner for _, _, owner, _ in groups if owner is not None]):
                break
            alive.ask()
        counted: dict[MissionStatus, int] = {}
        for held, unheld, owner, count in groups:
            status = held if alive[owner] else unheld
            counted[status] = counted.get(status, 0) + count
        return counted

    def claim(self, mission: str, *, owner: str, epoch: int) -> int:
        """Make `owner` the holder of a mission last seen at `epoch`, and return its new epoch.

        Later appends of the previous holder raise `FencedError`. Raises `RefusedError` (`mission_held`) if another
        claim came first, `NotFoundError`, `StoreError`.
        """
        # The epoch last seen is compared in the same statement: of two concurrent claims, one finds another epoch.
        claim = "UPDATE missions SET epoch = epoch + 1, owner = ? WHERE id = ? AND epoch = ?"
        with self._database.write() as connection:
            if connection.execute(claim, (owner, mission, epoch)).rowcount == 1:
                return epoch + 1
        self.get(mission)
        raise RefusedError(
            f"mission {mission!r} is held by another process",
            code="mission_held",
            hint=f"chargehand mission cancel {mission} stops it",
        )

    def release(self, mission: str, *, epoch: int) -> None:
        """Release a mission held at `epoch`; no effect after another claim. Raises `StoreError`."""
        with self._database.write() as connection:
            connection.execute("UPDATE missions SET owner = NULL WHERE id = ? AND epoch = ?", (mission, epoch))

    def find(self, name: str) -> str:
        """Return the only id that equals, begins with (with or without `m-`), or ends with `name`.

        Raises `NotFoundError`, `UsageError` (`ambiguous`), `StoreError`.
        """
        wanted = name.strip().lower()
        if not wanted:
            raise UsageError(f"{name!r} is not a mission", hint=LIST_HINT)
        # Bytes of a command line that are not UTF-8 arrive as surrogates, which SQLite does not accept.
        if not wanted.isascii():
            raise self._unknown(name)
        if any(row.id != row.project for row in self._rows("id = :name", name=wanted)):
            return wanted  # without reading every id
        # Not LIKE: a name may contain its wildcards.
        begins = "substr(id, 1, length(:name)) = :name OR substr(id, 1, length(:name) + 2) = 'm-' || :name"
        query = f"id <> project AND ({begins} OR substr(id, -length(:name)) = :name) ORDER BY id"
        found = [row.id for row in self._rows(query, name=wanted)]
        if not found:
            raise self._unknown(name)
        if len(found) > 1:
            shown = ", ".join(found[-_SHOWN:]) + (" …" if len(found) > _SHOWN else "")
            raise UsageError(
                f"{name!r} matches {len(found)} missions",
                code="ambiguous",
                hint=f"type more of the id: {shown}",
            )
        return found[0]

    def erase(self, mission: str, seq: int, *, reason: str) -> None:
        """Remove the payload of one line for good; its digest stays, so the chain stays whole.

        Idempotent. Raises `NotFoundError` for an unknown line, `StoreError`.
        """
        with self._database.write(durable=True) as connection:
            query = "SELECT payload IS NULL FROM events WHERE mission = ? AND seq = ?"
            row = connection.execute(query, (mission, seq)).fetchone()
            if row is None:
                raise NotFoundError(f"mission {mission!r} has no event {seq!r}", hint=_LOG_HINT)
            if row[0]:
                return
            # The summary row may hold the erased content, so it is rebuilt in the same transaction.
            connection.execute("UPDATE events SET payload = NULL WHERE mission = ? AND seq = ?", (mission, seq))
            connection.execute(
                "INSERT OR IGNORE INTO erasures VALUES (?, ?, ?, ?)", (mission, seq, self._now(), reason)
            )
            own = connection.execute("SELECT 1 FROM missions WHERE id = ? AND id <> project", (mission,))
            if own.fetchone():
                summaries.refold(connection, mission)

    def _rows(self, where: str, **values: object) -> tuple[MissionRow, ...]:
        with self._database.read() as connection:
            return tuple(read_row(row) for row in connection.execute(f"{_ROWS} WHERE {where}", values))

    def _unknown(self, name: str) -> NotFoundError:
        newest = self._rows("id <> project ORDER BY created DESC LIMIT :shown", shown=_SHOWN)
        near = nearest(name, (row.id for row in newest))
        hint = LIST_HINT if newest else 'there are no missions yet: chargehand run "TEXT" starts one'
        hint = near if near.startswith("did you mean") else hint
        return NotFoundError(f"there is no mission {name!r}", hint=hint)

    def _now(self) -> str:
        return self._clock.now().isoformat(timespec="microseconds")

    def _chain(self, head: LogHead, mission: str, bodies: Sequence[tuple[str, bytes]]) -> tuple[Event, ...]:
        time = self._now()
        prev = head.hash
        lines = []
        for seq, (name, payload) in enumerate(bodies, start=head.seq + 1):
            digest = payload_digest(payload)
            own = chain_hash(prev=prev, mission=mission, seq=seq, time=time, type=name, digest=digest)
            lines.append(Event(mission, seq, time, name, payload, digest, prev, own))
            prev = own
        return tuple(lines)


def _read_lines(connection: Transaction, mission: str) -> Iterator[ChainLine]:
    rows = connection.execute(f"SELECT {_RAW_LINE} FROM events WHERE mission = ? ORDER BY seq", (mission,))
    return (ChainLine(*row) for row in rows)


def _seq_at(connection: Transaction, mission: str, position: int) -> int:
    """Return a mission's last line up to a position, or 0, by bisection: no index covers both."""
    known = "mission = ? AND seq >= ? AND typeof(position) = 'integer'"
    query = f"SELECT position FROM events WHERE {known} ORDER BY seq LIMIT 1"

    def position_from(seq: int) -> int:
        row = connection.execute(query, (mission, seq)).fetchone()
        return int(row[0]) if row else position + 1  # the lines end with damaged ones

    last = "SELECT seq FROM events WHERE mission = ? AND typeof(seq) = 'integer' ORDER BY seq DESC LIMIT 1"
    row = connection.execute(last, (mission,)).fetchone()
    return bisect_right(range(1, row[0] + 1), position, key=position_from) if row else 0


def _only_types(types: Collection[str]) -> str:
    indexed = f" AND {_MODEL_CALLS}" if set(types) == {ModelCalled.type} else ""
    return f"{indexed} AND type IN ({', '.join('?' * len(types))})" if types else ""
