"""Mission rows and lists of missions, read from a file that may be damaged."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from threading import Lock
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.actions import ActionCreated
from chargehand.core.errors import NotFoundError
from chargehand.core.events import GENESIS, Event, Payload
from chargehand.core.fold import mark_unheld
from chargehand.core.mission_events import (
    PROMOTE,
    CancelAsked,
    MissionAdmitted,
    MissionContinued,
    MissionCreated,
    MissionFinished,
    MissionPaused,
    MissionQueued,
    MissionResumed,
    QuestionAnswered,
    QuestionAsked,
    QuestionExpired,
)
from chargehand.core.plan_events import CoordinatorSlept, CoordinatorWoken
from chargehand.core.records import MissionStatus
from chargehand.core.state import MissionMeasures, MissionSummary, total_cost
from chargehand.store.chain import is_moment
from chargehand.store.database import summaries
from chargehand.store.database.connection import Database, Transaction, Version

NO_TIME = "1970-01-01T00:00:00+00:00"
LIST_HINT = "`chargehand mission list` shows them"
_OWN = (
    *("id", "project", "created", "last_seq", "last_hash", "epoch"),
    *("owner", "runnable", "wakes", "parent", "news"),
)
_NAMES = (*_OWN, "user")
ROW_COLUMNS = (
    ", ".join(f"missions.{name}" for name in _OWN)
    + ", (SELECT asking.user FROM mission_summaries AS asking WHERE asking.mission = missions.id)"
)
# Rows that are kept decoded, some kilobytes each.
_MOST_KNOWN = 5_000
# Lists that are kept whole: those of open pages, and of the tasks of the missions they show.
_MOST_LISTS = 32
_OWNERS = "SELECT DISTINCT owner FROM missions WHERE owner IS NOT NULL"
_TEXT, _MAYBE = (str,), (str, type(None))
# The types of the columns as programs of ours write them.
_SHAPES = frozenset(
    itertools.product(_TEXT, _TEXT, _TEXT, (int,), _TEXT, (int,), _MAYBE, (int,), _MAYBE, _MAYBE, (int,), _TEXT)
)
# Returns whether the worker with that id is currently alive.
IsLive = Callable[[str], bool]


# The fields are in the order of the columns.
class MissionRow(Struct, frozen=True):
    """A mission and the end of its log; `created` is ISO 8601 in UTC.

    `epoch` counts its claims, `owner` is the worker that holds it (or died holding it), `runnable` says that a
    worker should continue it, `wakes` (ISO 8601, UTC) that one should from then on: derived from the log with each
    line. `parent` is the coordinator of a task's mission; `news` says that the coordinator does not know yet of a
    change that it may have to act on. `user` is the user who asked for it.
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
    parent: str | None = None
    news: bool = False
    user: str = ""


class MissionListing(Struct, frozen=True, kw_only=True):
    """A mission as shown in lists: `live` says whether a living worker holds it, as `summary` assumes.

    Other lists may share the summary, so change only a copy. `measures` are present if requested.
    """

    row: MissionRow
    summary: MissionSummary
    live: bool
    measures: MissionMeasures | None = None


class MissionFilter(Struct, frozen=True, kw_only=True):
    """A filter for lists of missions; `None` and "" exclude nothing.

    `since` is an ISO 8601 moment in UTC. `before` and `after` are ids of missions to continue from: with `after`
    the first `limit` missions after it are listed, else the last `limit` of all or of those before `before`.
    `parent` is the coordinator whose tasks they do. `text` is contained in their ids or requests, ignoring case.
    """

    project: str | None = None
    user: str | None = None
    statuses: Collection[MissionStatus] | None = None
    since: str | None = None
    before: str | None = None
    after: str | None = None
    parent: str | None = None
    text: str = ""
    limit: int | None = None

    def fits(self, told: MissionSummary) -> bool:
        """Return whether a mission matches by status, user and text, which its row alone does not show."""
        named = (self.statuses is None or told.status in self.statuses) and self.user in (None, told.user)
        return named and summaries.mentions(told, self.text.casefold())


# Excludes nothing.
ALL_MISSIONS = MissionFilter()


class KnownListing(Struct, frozen=True):
    """A decoded row of `select_listings`; shared, so it must not be changed."""

    columns: Sequence[Any]
    listing: MissionListing


class OwnerLiveness:
    """Whether the holders of missions are alive: each is asked about once, outside any transaction."""

    def __init__(self, is_live: IsLive | None) -> None:
        self._is_live = is_live or (lambda worker: False)
        self._known: dict[str | None, bool] = {None: False}
        self._unknown: set[str] = set()

    def learn(self, owners: Collection[str]) -> bool:
        """Note unknown owners to ask about; return whether there are any."""
        self._unknown = {owner for owner in owners if owner not in self._known}
        return bool(self._unknown)

    def ask(self) -> None:
        """Ask about all noted owners."""
        self._known |= {owner: self._is_live(owner) for owner in self._unknown}

    def of(self, owners: Collection[str]) -> dict[str, bool]:
        """Return which of these owners are alive, asking about unknown ones."""
        self.learn(owners)
        self.ask()
        return {owner: self[owner] for owner in owners}

    def __getitem__(self, owner: str | None) -> bool:
        return self._known[owner]


def select_listings(*, measures: bool) -> str:
    """Return the query for rows that `read_listing` takes, up to its `WHERE`."""
    measured = "measures" if measures else "NULL"
    columns = ", ".join(("form", "summary", measured, *(f"missions.{name}" for name in _OWN), "user"))
    return f"SELECT {columns} FROM mission_summaries JOIN missions ON missions.id = mission"


def read_listing(
    connection: Transaction, row: Sequence[Any], *, alive: OwnerLiveness, known: dict[object, KnownListing]
) -> MissionListing:
    """Read a listed mission from its projected row or, if that is stale or damaged, from its lines.

    `known` is a cache for repeated lists: of a thousand rows hardly any changes between two lists.
    """
    form, content, measured, *columns = row
    key = (columns[0], measured is None)
    found = known.get(key)
    # The whole row at once: of thousands hardly any has changed, and decoding each one takes time.
    if found is not None and found.columns == row and alive[found.listing.row.owner] == found.listing.live:
        return found.listing
    mission = read_row(columns)
    live = alive[mission.owner]
    summary = summaries.decode_summary(content)
    measures = None if measured is None else summaries.decode_measures(measured)
    is_stale = form != summaries.FORM or summary is None or (measures is None) != (measured is None)
    if is_stale or summary is None:
        summary, folded = summaries.fold_lines(connection, mission.id)
        measures = None if measured is None else folded
    if not live:
        mark_unheld(summary)
    listing = MissionListing(row=mission, summary=summary, live=live, measures=measures)
    if not is_stale:
        if len(known) >= _MOST_KNOWN:
            known.clear()
        known[key] = KnownListing(row, listing)
    return listing


def read_row(row: Sequence[Any]) -> MissionRow:
    """Return a row of `ROW_COLUMNS`; values that no program of ours wrote become empty ones."""
    # Thousands of rows are read at once, and hardly any is damaged.
    if tuple(map(type, row)) in _SHAPES and (row[8] is None or is_moment(row[8])):
        kept = list(row)
        kept[7], kept[10] = bool(kept[7]), bool(kept[10])
        return MissionRow(*kept)
    values = dict(zip(_NAMES, row, strict=True))
    for name in ("last_seq", "epoch"):  # a damaged file can hold values of any type
        values[name] = values[name] if isinstance(values[name], int) else 0
    for name in ("id", "project", "created", "last_hash", "user"):
        values[name] = values[name] if isinstance(values[name], str) else ""
    for name in ("owner", "wakes", "parent"):
        values[name] = values[name] if isinstance(values[name], str) else None
    values["wakes"] = values["wakes"] if values["wakes"] and is_moment(values["wakes"]) else None
    return MissionRow(**{**values, "runnable": bool(values["runnable"]), "news": bool(values["news"])})


class _KeptList(Struct, frozen=True, kw_only=True):
    """A list as of one version of the database (`None` for the first of all), and the owners alive then."""

    version: Version | None
    alive: Mapping[str, bool]
    listings: tuple[MissionListing, ...]


_ASKED_ONCE = _KeptList(version=None, alive={}, listings=())


class Listings:
    """Lists missions; thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[object, KnownListing] = {}
        self._kept: dict[object, _KeptList] = {}
        self._lock = Lock()

    def refresh(self) -> bool:
        """Rebuild stale rows; return whether some are left, for example if this program may not write."""
        with self._database.read() as connection:
            stale = summaries.stale(connection)
        if stale and not self._database.read_only:
            with self._database.write() as connection:
                summaries.refresh(connection)
            return False
        return bool(stale)

    def select(
        self,
        is_live: IsLive | None,
        where: str,
        values: dict[str, Any],
        *,
        fits: Callable[[MissionSummary], bool] | None = None,
        limit: int | None = None,
        measures: bool = False,
    ) -> tuple[MissionListing, ...]:
        """Return the missions that match a condition with these values, and `fits`, at most `limit`.

        `fits` depends only on the condition and its values. Raises `StoreError`.
        """
        key = (where, tuple(sorted(values.items())), limit, measures)
        kept = self._kept.get(key)
        alive = OwnerLiveness(is_live)
        # Before anything is read: a list is of this version or of a later one, and then it is read once more.
        version = self._database.version() if self._kept else None
        if kept is None or version is None or version != kept.version or alive.of(kept.alive) != kept.alive:
            kept = self._read(key, version, alive, fits)
        with self._lock:
            self._kept.pop(key, None)  # the list that was requested last moves to the end
            if len(kept.listings) <= _MOST_KNOWN:
                # Many lists are requested once, for example since a moment: for those only the request is
                # remembered.
                self._kept[key] = kept if version is not None else _ASKED_ONCE
            while len(self._kept) > _MOST_LISTS:
                del self._kept[next(iter(self._kept))]
        return kept.listings

    def find(self, missions: Collection[str]) -> tuple[MissionListing, ...]:
        """Return these missions, unheld, and keep no list of them. Raises `StoreError`."""
        wanted = (("missions", json.dumps(sorted(missions))),)
        where = "missions.id IN (SELECT value FROM json_each(:missions))"
        return self._read((where, wanted, None, False), None, OwnerLiveness(None), None).listings

    def _read(
        self,
        key: Any,
        version: Version | None,
        alive: OwnerLiveness,
        fits: Callable[[MissionSummary], bool] | None,
    ) -> _KeptList:
        where, values, limit, measures = key
        self.refresh()
        query = f"{select_listings(measures=measures)} WHERE {where}"
        while True:
            # Owners are read before the snapshot: one that ends in between has left all its lines in it. If a
            # mission got its owner only since then, that owner is unknown, and everything is read once more.
            with self._database.read() as connection:
                owners = [owner for (owner,) in connection.execute(_OWNERS)]
                if not alive.learn(owners):
                    rows = connection.execute(query, dict(values) | {"form": summaries.FORM})
                    made = (read_listing(connection, row, alive=alive, known=self._known) for row in rows)
                    fitting = (each for each in made if fits is None or fits(each.summary))
                    listed = itertools.islice(fitting, limit)
                    found = tuple(self._with_task_costs(connection, each, alive) for each in listed)
                    return _KeptList(version=version, alive=alive.of(owners), listings=found)
            alive.ask()

    def _with_task_costs(
        self, connection: Transaction, listing: MissionListing, alive: OwnerLiveness
    ) -> MissionListing:
        """Return a coordinator's listing with the cost of all its child missions, and any other one unchanged."""
        if listing.summary.tasks is None:
            return listing
        query = f"{select_listings(measures=False)} WHERE missions.parent = ?"
        rows = connection.execute(query, (listing.row.id,)).fetchall()
        tasks = [read_listing(connection, row, alive=alive, known=self._known).summary for row in rows]
        summary = copy(listing.summary)
        summary.tasks = replace(listing.summary.tasks, cost_usd=total_cost(tasks))
        return replace(listing, summary=summary)


def open_log(connection: Transaction, first: Payload, *, line: Event) -> str:
    """Create the row of a mission, or of a project's own log, and return the project."""
    own = isinstance(first, ActionCreated) and first.project == line.mission
    if not isinstance(first, MissionCreated | ActionCreated) or not (isinstance(first, MissionCreated) or own):
        raise NotFoundError(f"there is no mission {line.mission!r}", hint=LIST_HINT)
    connection.execute(
        "INSERT INTO missions (id, project, created, last_seq, last_hash, runnable, parent)"
        " VALUES (?, ?, ?, 0, ?, ?, ?)",
        (line.mission, first.project, line.time, GENESIS, int(not own), getattr(first, "parent", "") or None),
    )
    return first.project


def next_turn(payloads: Sequence[Payload]) -> tuple[int | None, str | None]:
    """Return whether a worker should continue after these lines, and when ("" for never); `None`: unchanged."""
    runnable: int | None = None
    wakes: str | None = None
    for payload in payloads:
        match payload:
            case CancelAsked() | MissionPaused():
                runnable, wakes = 0, ""
            case MissionFinished():
                runnable, wakes = 0, (payload.wakes or wakes) if payload.status == "waiting" else ""
            case CoordinatorSlept():
                runnable, wakes = 0, payload.wakes
            case MissionQueued(waits_for="missions"):
                runnable, wakes = 0, NO_TIME  # a worker polls it repeatedly
            case (
                MissionResumed() | MissionContinued() | CoordinatorWoken() | MissionAdmitted(waits_for="missions")
            ):
                runnable, wakes = 1, ""
            case QuestionAnswered() | QuestionExpired():
                # A promotion is carried out by the process of the answer: no worker has anything to do.
                runnable, wakes = runnable if payload.question == PROMOTE else 1, ""
            case QuestionAsked() if payload.until:
                wakes = payload.until
    return runnable, wakes
