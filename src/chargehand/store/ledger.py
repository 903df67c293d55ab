"""The ledger of model calls: what they reserve and what they cost, counted against every limit at once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import cache
from typing import Literal, NamedTuple

import sqlalchemy as sa

from chargehand.core.clock import Clock
from chargehand.core.errors import ExhaustedError, UsageError
from chargehand.core.ports import Ledger, Spent
from chargehand.store.database.connection import Database, Prepared, Transaction, driver
from chargehand.store.database.schema import spending, spending_alerts, spending_totals

_Scope = Literal["attempt", "task", "mission", "user", "day"]
_KEYS: dict[_Scope, str] = {
    "attempt": "limits.attempt_usd",
    "task": "limits.task_usd",
    "mission": "limits.budget_usd",
    "user": "limits.user_usd",
    "day": "limits.day_usd",
}
_IN_WORDS: dict[_Scope, str] = {"user": "user's day"}
_MICRO = 1_000_000
_MOST_USD = 1e9  # what one call can be: sums of millions of them still fit into 64 bits
_BOOKED = sa.case((spending.c.known == 1, spending.c.settled), else_=spending.c.reserved)
_KNOWN = sa.case((spending.c.known == 1, spending.c.settled), else_=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingLimits:
    """What may be booked at most in USD.

    By one attempt, one task, one mission, all missions of one user in a day (UTC), and all calls of a day.
    """

    attempt_usd: float | None = None
    task_usd: float | None = None
    mission_usd: float | None = None
    user_usd: float | None = None
    day_usd: float | None = None


class SpendingTotal(NamedTuple):
    """`known_usd` is what calls are known to have cost, `booked_usd` what limits count: reserves included."""

    known_usd: float
    booked_usd: float


class BookedCall(NamedTuple):
    """A call that is over: what is booked for it in USD, and whether that is what it cost."""

    call: str
    usd: float
    known: bool


class Spending:
    """The book of all calls. Threads and processes may reserve at once and never pass a limit together."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def ledger(
        self,
        *,
        mission: str | None,
        attempt: str,
        limits: SpendingLimits,
        task: str | None = None,
        user: str | None = None,
    ) -> Ledger:
        """Return the ledger of one attempt; without a mission the mission's limit counts this attempt alone.

        `task` names one of several of the mission; without it, all of the mission is one. `user` is who pays;
        without one, the user's limit counts what else nobody is named for.

        Raises `UsageError` for a limit that is negative or no number.
        """
        given: dict[_Scope, float | None] = {
            "attempt": limits.attempt_usd,
            "task": limits.task_usd,
            "mission": limits.mission_usd,
            "user": limits.user_usd,
            "day": limits.day_usd,
        }
        most = {scope: _micro(usd, ROUND_FLOOR) for scope, usd in given.items() if usd is not None}
        whose = _Whose(mission=mission, attempt=attempt, task=task, user=user)
        return _AttemptLedger(self._database, clock=self._clock, whose=whose, most=most)

    def abandon(self, attempt: str) -> None:
        """Give up the open calls of a dead worker's attempt; their reserves stay booked. Raises `StoreError`."""
        left_open = (spending.c.attempt == attempt) & spending.c.settled.is_(None)
        with self._database.write() as connection:
            connection.execute(sa.update(spending).where(left_open).values(settled=spending.c.reserved))

    def booked(self, attempt: str) -> tuple[BookedCall, ...]:
        """Return the settled calls of an attempt, oldest first. Raises `StoreError`."""
        settled = (spending.c.attempt == attempt) & spending.c.settled.is_not(None)
        query = sa.select(spending.c.call, spending.c.settled, spending.c.known).where(settled)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(spending.c.time, spending.c.call)).all()
        return tuple(BookedCall(call, _usd(micro), bool(known)) for call, micro, known in rows)

    def total(
        self,
        mission: str | None = None,
        attempt: str | None = None,
        day: str | None = None,
        user: str | None = None,
    ) -> SpendingTotal:
        """Return what calls cost: all, or those of this mission, attempt, day (`2026-01-31`, UTC) and user.

        Raises `StoreError`.
        """
        wanted = {"mission": mission, "attempt": attempt, "day": day, "user": user}
        where = [spending.c[name] == value for name, value in wanted.items() if value is not None]
        query = sa.select(_sum(_KNOWN), _sum(_BOOKED)).where(*where)
        with self._database.read() as connection:
            known, booked = connection.execute(query).one()
        return SpendingTotal(_usd(known), _usd(booked))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whose:
    """What the calls of one ledger count for."""

    mission: str | None
    attempt: str
    task: str | None
    user: str | None

    def column(self, scope: _Scope) -> str:
        """Return the column by which a scope counts: what there is but one of counts as what holds it."""
        if scope == "task" and self.task is None:
            scope = "mission"
        return "attempt" if scope == "mission" and self.mission is None else scope

    def in_words(self, scope: _Scope) -> tuple[str, str]:
        """Return what a limit is of, and how it is raised."""
        raised = f"raise {_KEYS[scope]} with `chargehand config set {_KEYS[scope]} USD`"
        if scope == "mission" and self.mission is None:
            return "gateway", f"give it a larger --budget, {raised}"
        return _IN_WORDS.get(scope, scope), raised

    def subject(self, scope: _Scope, day: str) -> str:
        """Return what a limit is told of for; a user's is another one each day."""
        if scope == "user":
            return f"{day} {self.user or ''}"
        by = {"attempt": self.attempt, "task": self.task, "mission": self.mission, "day": day}
        return by[self.column(scope)] or ""


class _AttemptLedger:
    """The `Ledger` of one attempt; `most` holds the limits that are set, in millionths of a USD."""

    def __init__(self, database: Database, *, clock: Clock, whose: _Whose, most: dict[_Scope, int]) -> None:
        self._database = database
        self._clock = clock
        self._whose = whose
        self._attempt = whose.attempt
        self._most = most

    def left(self) -> float | None:
        if not self._most:
            return None
        with self._database.read() as connection:
            booked = self._booked(driver(connection), self._today())
        return _usd(max(0, min(limit - booked[scope] for scope, limit in self._most.items())))

    def reserve(self, call: str, usd: float) -> tuple[Spent, ...]:
        micro = _micro(usd, ROUND_CEILING)
        day = self._today()
        row = {
            "call": call,
            "mission": self._whose.mission,
            "attempt": self._attempt,
            "task": self._whose.task,
            "user": self._whose.user,
            "day": day,
            "reserved": micro,
            "settled": None,
            "known": 0,
            "time": self._time(),
        }
        with self._database.quick() as connection:
            if _FIND.run(connection, {"called": call}).fetchone() is not None:
                raise UsageError(f"call {call!r} has its reserve already", hint="give each call an id of its own")
            booked = self._booked(connection, day)
            self._refuse_beyond(booked, micro)
            _RESERVE.run(connection, row)
            return self._alerts(connection, {scope: spent + micro for scope, spent in booked.items()}, day)

    def secure(self) -> None:
        self._database.sync()

    def settle(self, call: str, usd: float | None) -> None:
        micro = None if usd is None else _micro(usd, ROUND_CEILING)
        # Not durable: what a power cut takes back is the reserve again, which is the more careful figure.
        with self._database.quick() as connection:
            row = _FIND.run(connection, {"called": call}).fetchone()
            if row is None or row[0] != self._attempt:
                raise UsageError(
                    f"attempt {self._attempt!r} reserved nothing for call {call!r}", hint="reserve before the call"
                )
            _, reserved, settled = row
            if settled is None:
                cost = reserved if micro is None else micro
                _SETTLE.run(connection, {"called": call, "cost": cost, "is_known": int(micro is not None)})

    def _refuse_beyond(self, booked: dict[_Scope, int], micro: int) -> None:
        rest = {scope: limit - booked[scope] for scope, limit in self._most.items()}
        # What is free may still be called once all is spent, such as a model on this machine to fall back to.
        if not rest or not micro or min(rest.values()) >= micro:
            return
        scope = min(rest, key=lambda each: rest[each])
        whose, way_out = self._whose.in_words(scope)
        raise ExhaustedError(
            f"the budget of the {whose} is used up: {_shown(booked[scope])} of {_shown(self._most[scope])} USD are"
            f" spent or reserved, and this call may cost {_shown(micro)} USD",
            code="budget",
            hint=f"{way_out}, or ask for less at once",
        )

    def _alerts(self, connection: Transaction, booked: dict[_Scope, int], day: str) -> tuple[Spent, ...]:
        """Note and return the limits of which four fifths are booked and nobody was told yet."""
        alerts = []
        for scope, limit in self._most.items():
            if 0 < limit * 4 <= booked[scope] * 5 and self._tell(connection, scope, day):
                alerts.append(Spent(limit=scope, limit_usd=_usd(limit), spent_usd=_usd(booked[scope])))
        return tuple(alerts)

    def _tell(self, connection: Transaction, scope: _Scope, day: str) -> bool:
        """Note that this very limit is told of; `False` where it was. Once raised it is a limit not told of."""
        limit: dict[str, object] = {"scope": scope, "subject": self._whose.subject(scope, day)}
        limit["limit_micro"] = self._most[scope]
        if _TOLD.run(connection, limit).fetchone() is not None:
            return False
        _TELL.run(connection, {**limit, "time": self._time()})
        return True

    def _booked(self, connection: Transaction, day: str) -> dict[_Scope, int]:
        """Return what each limit that is set counts, by one transaction's view."""
        if not self._most:
            return {}
        columns = tuple((scope, self._whose.column(scope)) for scope in self._most)
        whose = self._whose
        values = {"attempt": whose.attempt, "task": whose.task, "mission": whose.mission, "user": whose.user}
        row = _count(columns, whose.user is None).run(connection, {**values, "day": day, "nobody": ""}).fetchone()
        return dict(zip(self._most, row, strict=True))

    def _today(self) -> str:
        return self._clock.now().astimezone(UTC).date().isoformat()

    def _time(self) -> str:
        return self._clock.now().isoformat(timespec="microseconds")


def _sum(each: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    return sa.func.coalesce(sa.func.sum(each), 0)


_FIND = Prepared(
    sa.select(spending.c.attempt, spending.c.reserved, spending.c.settled).where(
        spending.c.call == sa.bindparam("called")
    )
)
_TOLD = Prepared(
    sa.select(spending_alerts.c.scope).where(
        *(spending_alerts.c[name] == sa.bindparam(name) for name in ("scope", "subject", "limit_micro"))
    )
)
_TELL = Prepared(sa.insert(spending_alerts))
_RESERVE = Prepared(sa.insert(spending))
_SETTLE = Prepared(
    sa.update(spending)
    .where(spending.c.call == sa.bindparam("called"))
    .values(settled=sa.bindparam("cost"), known=sa.bindparam("is_known"))
)


@cache
def _count(columns: tuple[tuple[_Scope, str], ...], nobody: bool) -> Prepared:
    """Return the query for what limits count, each by its column; `nobody`: the user is one that is not named."""
    totals = (_total(column, nobody and column == "user").label(scope) for scope, column in columns)
    return Prepared(sa.select(*totals))


def _total(column: str, nobody: bool) -> sa.ColumnElement[int]:
    scope = "nobody" if nobody else column
    kept = spending_totals.c
    booked = sa.select(kept.booked).where(
        kept.scope == sa.literal_column(f"'{scope}'"),
        kept.subject == sa.bindparam(scope),
        kept.day == (sa.bindparam("day") if column == "user" else sa.literal_column("''")),
    )
    return sa.func.coalesce(booked.scalar_subquery(), sa.literal_column("0"))


def _micro(usd: float, rounding: str) -> int:
    """Return millionths of a USD, rounded after the ninth digit, where sums of floats have only noise."""
    if not 0 <= usd <= _MOST_USD:  # false for what is no number as well
        raise UsageError(f"{usd!r} is no amount of money", hint=f"give USD from 0 to {_MOST_USD:.0f}")
    return int((round(Decimal(repr(usd)), 9) * _MICRO).to_integral_value(rounding=rounding))


def _usd(micro: int) -> float:
    return int(micro) / _MICRO


def _shown(micro: int) -> str:
    """Return an amount with two digits behind the point, or all that it has."""
    whole, part = divmod(micro, _MICRO)
    digits = f"{part:06d}".rstrip("0")
    return f"{whole}.{digits:0<2}"
