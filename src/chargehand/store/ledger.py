"""The ledger of model calls: their reserves and costs, counted against every limit at once."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from datetime import UTC
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from chargehand.core.clock import Clock
from chargehand.core.errors import ExhaustedError, UsageError
from chargehand.core.ports import Ledger, Spent
from chargehand.store.database.connection import Database, Transaction

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
# The most variables in one statement.
_AT_ONCE = 500
# USD: amounts are stored in whole millionths.
_ROUNDING = 2e-6
_MOST_USD = 1e9  # the most that one call can cost: sums of millions of them still fit into 64 bits


class SpendingLimits(Struct, frozen=True, kw_only=True):
    """The highest amounts that may be booked, in USD.

    By one attempt, one task, one mission, all missions of one user in a day (UTC), and all calls of a day.
    """

    attempt_usd: float | None = None
    task_usd: float | None = None
    mission_usd: float | None = None
    user_usd: float | None = None
    day_usd: float | None = None


class SpendingTotal(NamedTuple):
    """The known cost of calls in `known_usd`, and the amount that limits count in `booked_usd`, with reserves."""

    known_usd: float
    booked_usd: float


class BookedCall(NamedTuple):
    """A finished call: the USD booked for it, and whether that is its known cost."""

    call: str
    usd: float
    known: bool


class Spending:
    """The ledger of all calls. Concurrent threads and processes never exceed a limit together."""

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

        `task` names one of several tasks of the mission; without it, the whole mission is one task. `user` is the
        user who pays; without one, the user's limit counts all calls without a user. Raises `UsageError` for a
        limit that is negative or not a number.
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

    def abandon(
        self, attempt: str, *, costs: Mapping[str, float] | None = None, bounds: Mapping[str, float] | None = None
    ) -> None:
        """Give up the open calls of a dead worker's attempt. Raises `StoreError`.

        A call is booked at its known cost in `costs`, in USD, else at its reserve, or at its entry in `bounds` if
        that is less.
        """
        with self._database.write() as connection:
            rows = connection.execute(_FIND_OPEN, (attempt,)).fetchall()
            for call, reserved in rows:
                if costs and call in costs:
                    connection.execute(_SETTLE, (_micro(costs[call], ROUND_HALF_EVEN), 1, call))
                else:
                    # Unknown: no record shows whether the provider charged for a call whose end was not observed.
                    bound = _micro(bounds[call], ROUND_CEILING) if bounds and call in bounds else reserved
                    connection.execute(_SETTLE_UNKNOWN, {"most": min(reserved, bound), "call": call})

    def booked(self, attempt: str) -> tuple[BookedCall, ...]:
        """Return the settled calls of an attempt, oldest first. Raises `StoreError`."""
        query = """
            SELECT call, settled, known FROM spending WHERE attempt = ? AND settled IS NOT NULL ORDER BY time, call
        """
        with self._database.read() as connection:
            rows = connection.execute(query, (attempt,)).fetchall()
        return tuple(BookedCall(call, _usd(micro), bool(known)) for call, micro, known in rows)

    def find_damage(self, booked: Mapping[str, float]) -> dict[str, str]:
        """Return the calls whose row is missing or does not book the given USD, with the reason in words.

        Raises `StoreError`.
        """
        found = dict[str, str]()
        waiting = iter(booked)
        while some := list(itertools.islice(waiting, _AT_ONCE)):
            marks = ", ".join("?" * len(some))
            query = f"SELECT call, reserved, settled, known FROM spending WHERE call IN ({marks})"
            with self._database.read() as connection:
                rows = {row[0]: row[1:] for row in connection.execute(query, tuple(some))}
            found |= {call: wrong for call in some if (wrong := _find_fault(rows.get(call), booked[call]))}
        return found

    def total(
        self,
        mission: str | None = None,
        attempt: str | None = None,
        day: str | None = None,
        user: str | None = None,
    ) -> SpendingTotal:
        """Return the cost of calls: all, or those of this mission, attempt, day (`2026-01-31`, UTC) and user.

        Raises `StoreError`.
        """
        wanted = {"mission": mission, "attempt": attempt, "day": day, "user": user}
        given = {name: value for name, value in wanted.items() if value is not None}
        where = " AND ".join(f"{name} = :{name}" for name in given) or "1 = 1"
        query = f"""
            SELECT coalesce(sum(CASE WHEN known = 1 THEN settled ELSE 0 END), 0),
                coalesce(sum(CASE WHEN known = 1 THEN settled ELSE reserved END), 0)
            FROM spending WHERE {where}
        """
        with self._database.read() as connection:
            known, booked = connection.execute(query, given).fetchone()
        return SpendingTotal(_usd(known), _usd(booked))

    def booked_on(self, day: str) -> float:
        """Return the amount that limits count for a day (`2026-01-31`, UTC), in USD. Raises `StoreError`."""
        query = "SELECT booked FROM spending_totals WHERE scope = 'day' AND subject = ? AND day = ''"
        with self._database.read() as connection:
            row = connection.execute(query, (day,)).fetchone()
        return _usd(row[0]) if row is not None else 0.0


class _Whose(Struct, frozen=True, kw_only=True):
    """The mission, attempt, task and user that the calls of one ledger count for."""

    mission: str | None
    attempt: str
    task: str | None
    user: str | None

    def column(self, scope: _Scope) -> str:
        """Return the column by which a scope counts: the mission's if no task is set, else the attempt's."""
        if scope == "task" and self.task is None:
            scope = "mission"
        return "attempt" if scope == "mission" and self.mission is None else scope

    def in_words(self, scope: _Scope) -> tuple[str, str]:
        """Return the name of a limit's scope, and how to raise the limit."""
        raised = f"raise {_KEYS[scope]} with `chargehand config set {_KEYS[scope]} USD`"
        if scope == "mission" and self.mission is None:
            return "gateway", f"give it a larger --budget, {raised}"
        return _IN_WORDS.get(scope, scope), raised

    def subject(self, scope: _Scope, day: str) -> str:
        """Return the subject of an alert for a limit; for a user's limit it changes each day."""
        if scope == "user":
            return f"{day} {self.user or ''}"
        by = {"attempt": self.attempt, "task": self.task, "mission": self.mission, "day": day}
        return by[self.column(scope)] or ""


class _AttemptLedger:
    """The `Ledger` of one attempt; `most` holds the configured limits, in millionths of a USD."""

    def __init__(self, database: Database, *, clock: Clock, whose: _Whose, most: dict[_Scope, int]) -> None:
        self._database = database
        self._clock = clock
        self._whose = whose
        self._attempt = whose.attempt
        self._most = most

    def left(self, *, settled: bool = False) -> float | None:
        if not self._most:
            return None
        with self._database.read() as connection:
            booked = self._sum_booked(connection, self._today())
            if settled:
                booked = {scope: usd - self._sum_open(connection, scope) for scope, usd in booked.items()}
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
            "time": self._time(),
        }
        # Not durable: `secure` waits for the disk, before the client gets any of the reply. One transaction reads
        # and books: of two concurrent calls, only one may get the last of the budget.
        with self._database.write() as connection:
            if connection.execute(_FIND, (call,)).fetchone() is not None:
                raise UsageError(f"call {call!r} is already reserved", hint="give each call its own id")
            booked = self._sum_booked(connection, day)
            self._refuse_beyond(connection, booked, micro)
            connection.execute(_RESERVE, row)
            return self._alerts(connection, {scope: spent + micro for scope, spent in booked.items()}, day)

    def secure(self) -> None:
        self._database.sync()

    def settle(self, call: str, usd: float | None, *, most: float | None = None) -> None:
        # To the nearest: always rounding up adds a cent to the invoice after ten thousand calls.
        micro = None if usd is None else _micro(usd, ROUND_HALF_EVEN)
        bound = None if most is None else _micro(most, ROUND_CEILING)
        # Not durable: a power cut restores the reserve, which is the more careful figure.
        with self._database.write() as connection:
            row = connection.execute(_FIND, (call,)).fetchone()
            if row is None or row[0] != self._attempt:
                raise UsageError(
                    f"attempt {self._attempt!r} has no reserve for call {call!r}", hint="reserve before the call"
                )
            _, reserved, settled = row
            if settled is not None:
                return
            if micro is not None:
                connection.execute(_SETTLE, (micro, 1, call))
            else:
                most_micro = reserved if bound is None else min(reserved, bound)
                connection.execute(_SETTLE_UNKNOWN, {"most": most_micro, "call": call})

    def _refuse_beyond(self, connection: Transaction, booked: dict[_Scope, int], micro: int) -> None:
        rest = {scope: limit - booked[scope] for scope, limit in self._most.items()}
        # Free calls are allowed even after everything is spent, for example to a fallback model on this machine.
        if not rest or not micro or min(rest.values()) >= micro:
            return
        # The tightest limit is named: raising any other would not help.
        scope = min(rest, key=lambda each: rest[each])
        whose, way_out = self._whose.in_words(scope)
        opened = self._sum_open(connection, scope)
        if micro <= rest[scope] + opened:
            raise ExhaustedError(
                f"the budget of the {whose} is reserved for now: of {_format_usd(self._most[scope])} USD,"
                f" {_format_usd(booked[scope] - opened)} are spent and {_format_usd(opened)} reserved by calls"
                f" under way, and this call may cost {_format_usd(micro)} USD",
                code="budget_reserved",
                hint=f"ask again once they are answered, {way_out}, or ask for less at once",
            )
        raise ExhaustedError(
            f"the budget of the {whose} is used up: {_format_usd(booked[scope])} of"
            f" {_format_usd(self._most[scope])} USD are spent or reserved, and this call may cost"
            f" {_format_usd(micro)} USD",
            code="budget",
            hint=f"{way_out}, or ask for less at once",
        )

    def _alerts(self, connection: Transaction, booked: dict[_Scope, int], day: str) -> tuple[Spent, ...]:
        """Note and return the limits of which four fifths are booked and which were not reported yet."""
        alerts = []
        for scope, limit in self._most.items():
            subject = self._whose.subject(scope, day)
            row = (scope, subject, limit, self._time())
            # A raised limit counts as another limit, which was not reported yet.
            if 0 < limit * 4 <= booked[scope] * 5 and connection.execute(_TELL, row).rowcount:
                alerts.append(Spent(limit=scope, limit_usd=_usd(limit), spent_usd=_usd(booked[scope])))
        return tuple(alerts)

    def _sum_booked(self, connection: Transaction, day: str) -> dict[_Scope, int]:
        """Return the amount booked under each configured limit, in one transaction's view."""
        if not self._most:
            return {}
        # One statement: all are counted in the same snapshot, at the cost of one row each.
        whose = self._whose
        totals = []
        for column in map(whose.column, self._most):
            # Calls without a user have a separate scope: an empty name could be a user.
            scope = "nobody" if whose.user is None and column == "user" else column
            day_value = ":day" if column == "user" else "''"
            rows = f"spending_totals WHERE scope = '{scope}' AND subject = :{scope} AND day = {day_value}"
            totals.append(f"coalesce((SELECT booked FROM {rows}), 0)")
        values = {"attempt": whose.attempt, "task": whose.task, "mission": whose.mission, "user": whose.user}
        row = connection.execute(f"SELECT {', '.join(totals)}", {**values, "day": day, "nobody": ""}).fetchone()
        return dict(zip(self._most, row, strict=True))

    def _sum_open(self, connection: Transaction, scope: _Scope) -> int:
        """Return the sum reserved of a limit by calls that are not settled yet."""
        column = self._whose.column(scope)
        values = {"attempt": self._whose.attempt, "task": self._whose.task, "mission": self._whose.mission}
        values |= {"user": self._whose.user, "day": self._today()}
        nobody = column == "user" and self._whose.user is None
        counted = f"{column} IS NULL" if nobody else f"{column} = :{column}"
        today = " AND day = :day" if column == "user" else ""
        query = f"SELECT coalesce(sum(reserved), 0) FROM spending WHERE settled IS NULL AND {counted}{today}"
        return int(connection.execute(query, values).fetchone()[0])

    def _today(self) -> str:
        return self._clock.now().astimezone(UTC).date().isoformat()

    def _time(self) -> str:
        return self._clock.now().isoformat(timespec="microseconds")


_FIND = "SELECT attempt, reserved, settled FROM spending WHERE call = ?"
_RESERVE = """
    INSERT INTO spending (call, mission, attempt, task, user, day, reserved, settled, known, time)
    VALUES (:call, :mission, :attempt, :task, :user, :day, :reserved, NULL, 0, :time)
"""
_FIND_OPEN = "SELECT call, reserved FROM spending WHERE attempt = ? AND settled IS NULL"
_SETTLE = "UPDATE spending SET settled = ?, known = ? WHERE call = ?"
# The reserve too: if the cost is unknown, limits count the reserve.
_SETTLE_UNKNOWN = "UPDATE spending SET settled = :most, reserved = :most WHERE call = :call"
_TELL = "INSERT OR IGNORE INTO spending_alerts (scope, subject, limit_micro, time) VALUES (?, ?, ?, ?)"


def _micro(usd: float, rounding: str) -> int:
    """Return millionths of a USD, rounded after the ninth digit, where sums of floats have only noise."""
    if not 0 <= usd <= _MOST_USD:  # also false for NaN
        raise UsageError(f"not an amount of money: {usd!r}", hint=f"use USD from 0 to {_MOST_USD:.0f}")
    return int((round(Decimal(repr(usd)), 9) * _MICRO).to_integral_value(rounding=rounding))


def _usd(micro: int) -> float:
    return int(micro) / _MICRO


def _format_usd(micro: int) -> str:
    """Return an amount with at least two digits after the point, and all that it has."""
    whole, part = divmod(micro, _MICRO)
    digits = f"{part:06d}".rstrip("0")
    return f"{whole}.{digits:0<2}"


def _find_fault(row: tuple[Any, ...] | None, booked: float) -> str:
    """Return why a call's row differs from the written one, or ""; a call that booked nothing needs no row."""
    if row is None:
        return "its row is missing" if booked else ""
    reserved, settled, known = row
    if not isinstance(reserved, int) or not isinstance(settled, int | None) or known not in (0, 1):
        return "its row cannot be read"
    # A call that a dead worker left open is booked by its reserve.
    held = reserved if settled is None else settled
    if abs(_usd(held) - booked) > _ROUNDING:
        return f"its row books {_usd(held):.6f} USD, and the log {booked:.6f} USD"
    return ""
