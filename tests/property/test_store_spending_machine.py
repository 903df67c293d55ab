"""The ledger against a model that is a list, with operations in any order."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from tests.conftest import examples

from chargehand.core.clock import SteppedClock
from chargehand.core.errors import ExhaustedError
from chargehand.store.ledger import SpendingLimits
from chargehand.store.store import Store, open_store

MICRO = 1_000_000
ATTEMPTS = {"a-1": "m-1", "a-2": "m-1", "a-3": "m-2", "a-4": None}
USERS = {"a-1": "ann", "a-2": "bob", "a-3": "ann", "a-4": None}
TASKS = {"a-1": "t-1", "a-2": "t-2", "a-3": None, "a-4": None}
KEYS = {
    "attempt": "limits.attempt_usd",
    "task": "limits.task_usd",
    "mission": "limits.budget_usd",
    "user": "limits.user_usd",
    "day": "limits.day_usd",
}
# Round amounts as well, so that limits are met to the last cent.
amounts = st.integers(0, 8).map(lambda part: part * 50_000) | st.integers(0, 400_000)
limits = st.none() | st.integers(1, 10).map(lambda part: part * 100_000) | st.integers(0, 1_000_000)
Scope = str


@dataclass
class Booked:
    """A call as the model records it, in millionths of a USD."""

    attempt: str
    day: str
    reserved: int
    settled: int | None = None
    known: bool = False

    @property
    def micro(self) -> int:
        return self.settled if self.known and self.settled is not None else self.reserved


@cache
def _empty_store() -> Path:
    """Make one store that all examples copy: most of their time would go into its tables."""
    kept = tempfile.TemporaryDirectory()
    atexit.register(kept.cleanup)
    open_store(Path(kept.name, "home")).close()
    return Path(kept.name, "home")


def counted(store: Store) -> dict[tuple[str, str, str], int]:
    """Return the totals kept for limits, without those that are zero."""
    with store.database.read() as connection:
        rows = connection.execute("SELECT scope, subject, day, booked FROM spending_totals").fetchall()
    return {(scope, subject, day): booked for scope, subject, day, booked in rows if booked}


def summed(store: Store) -> dict[tuple[str, str, str], int]:
    """Return the same totals by adding up every call."""
    sums: Counter[tuple[str, str, str]] = Counter()
    with store.database.read() as connection:
        rows = connection.execute("SELECT * FROM spending")
        names = [column[0] for column in rows.description]
        for values in rows:
            row = dict(zip(names, values, strict=True))
            micro = row["settled"] if row["known"] else row["reserved"]
            user = ("nobody", "", row["day"]) if row["user"] is None else ("user", row["user"], row["day"])
            others = [(scope, row[scope], "") for scope in ("attempt", "task", "mission", "day")]
            sums.update({each: micro for each in (user, *others) if each[1] is not None})
    return {each: micro for each, micro in sums.items() if micro}


class SpendingMachine(RuleBasedStateMachine):
    ledgers = Bundle("ledgers")
    calls = Bundle("calls")

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.clock = SteppedClock()
        shutil.copytree(_empty_store(), self.directory / "home")
        self.store = open_store(self.directory / "home", clock=self.clock)
        self.other = open_store(self.directory / "home", clock=self.clock)  # as another process opens it
        self.book: dict[str, Booked] = {}
        self.told: set[tuple[Scope, str, int]] = set()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.other.close()
            shutil.rmtree(self.directory)

    @rule(
        target=ledgers,
        attempt=st.sampled_from(sorted(ATTEMPTS)),
        a=limits,
        t=limits,
        m=limits,
        u=limits,
        d=limits,
        elsewhere=st.booleans(),
    )
    def open(
        self,
        attempt: str,
        a: int | None,
        t: int | None,
        m: int | None,
        u: int | None,
        d: int | None,
        elsewhere: bool,
    ) -> Any:
        micro = {"attempt": a, "task": t, "mission": m, "user": u, "day": d}
        usd = {f"{scope}_usd": None if each is None else each / MICRO for scope, each in micro.items()}
        store = self.other if elsewhere else self.store
        one = store.spending.ledger(
            mission=ATTEMPTS[attempt],
            attempt=attempt,
            limits=SpendingLimits(**usd),
            task=TASKS[attempt],
            user=USERS[attempt],
        )
        return attempt, {scope: limit for scope, limit in micro.items() if limit is not None}, one

    @rule(target=calls, opened=ledgers, micro=amounts)
    def reserve(self, opened: Any, micro: int) -> Any:
        attempt, most, one = opened
        before = {scope: self.booked(scope, attempt) for scope in most}
        call = f"c-{len(self.book)}"
        try:
            alerts = one.reserve(call, micro / MICRO)
        except ExhaustedError as error:
            least = min(most[scope] - before[scope] for scope in most)
            assert least < micro > 0
            named = [scope for scope in most if KEYS[scope] in error.hint]
            assert [most[scope] - before[scope] for scope in named] == [least]
            return call, one
        assert not micro or all(before[scope] + micro <= limit for scope, limit in most.items())
        self.book[call] = Booked(attempt=attempt, day=self.today, reserved=micro)
        due = []
        for scope, limit in most.items():
            spent = before[scope] + micro
            mark = (scope, self.subject(scope, attempt), limit)
            if limit and spent >= 0.8 * limit and mark not in self.told:
                self.told.add(mark)
                due.append((scope, limit / MICRO, spent / MICRO))
        assert [(each.limit, each.limit_usd, each.spent_usd) for each in alerts] == due
        return call, one

    @rule(made=calls, micro=st.none() | st.integers(0, 600_000))
    def settle(self, made: tuple[str, Any], micro: int | None) -> None:
        call, one = made
        if call not in self.book or self.attempt_of(one) != self.book[call].attempt:
            return  # it was refused, and another call may have its number
        one.settle(call, None if micro is None else micro / MICRO)
        kept = self.book[call]
        if kept.settled is None:
            kept.settled = kept.reserved if micro is None else micro
            kept.known = micro is not None

    @rule(attempt=st.sampled_from(sorted(ATTEMPTS)))
    def abandon(self, attempt: str) -> None:
        self.store.spending.abandon(attempt)
        mine = {call: kept for call, kept in self.book.items() if kept.attempt == attempt}
        for kept in mine.values():
            if kept.settled is None:
                kept.settled = kept.reserved
        booked = {(call, usd, known) for call, usd, known in self.store.spending.booked(attempt)}
        assert booked == {(call, (kept.settled or 0) / MICRO, kept.known) for call, kept in mine.items()}

    @rule(hours=st.sampled_from([1, 23]))
    def wait(self, hours: int) -> None:
        self.clock.advance(hours * 3600)

    @rule()
    def reopen(self) -> None:
        with open_store(self.directory / "home", clock=self.clock, read_only=True) as store:
            assert store.spending.total().booked_usd == sum(b.micro for b in self.book.values()) / MICRO

    @rule(opened=ledgers)
    def look(self, opened: Any) -> None:
        attempt, most, one = opened
        rest = [limit - self.booked(scope, attempt) for scope, limit in most.items()]
        assert one.left() == (max(0, min(rest)) / MICRO if rest else None)

    @invariant()
    def totals_are_as_the_model_says(self) -> None:
        if not hasattr(self, "store"):
            return
        total = self.store.spending.total
        for mission in ("m-1", "m-2"):
            assert total(mission=mission) == self.sums(lambda b, m=mission: ATTEMPTS[b.attempt] == m)
        for attempt in ATTEMPTS:
            assert total(attempt=attempt) == self.sums(lambda b, a=attempt: b.attempt == a)
            today = self.sums(lambda b, a=attempt: b.attempt == a and b.day == self.today)
            assert total(attempt=attempt, day=self.today) == today
        assert total() == self.sums(lambda b: True)

    @invariant()
    def what_limits_count_is_the_sum_of_the_calls(self) -> None:
        if hasattr(self, "store"):
            assert counted(self.store) == summed(self.store)

    @property
    def today(self) -> str:
        return self.clock.now().date().isoformat()

    def attempt_of(self, one: Any) -> str:
        return str(one._attempt)

    def subject(self, scope: Scope, attempt: str) -> str:
        mission = ATTEMPTS[attempt] or attempt
        return {
            "attempt": attempt,
            "task": TASKS[attempt] or mission,
            "mission": mission,
            "user": f"{USERS[attempt]} {self.today}",
            "day": self.today,
        }[scope]

    def booked(self, scope: Scope, attempt: str) -> int:
        mission, task = ATTEMPTS[attempt], TASKS[attempt]
        if scope == "task" and task is None:
            scope = "mission"
        counted = {
            "attempt": lambda b: b.attempt == attempt,
            "task": lambda b: TASKS[b.attempt] == task,
            "user": lambda b: USERS[b.attempt] == USERS[attempt] and b.day == self.today,
            "mission": lambda b: ATTEMPTS[b.attempt] == mission if mission else b.attempt == attempt,
            "day": lambda b: b.day == self.today,
        }[scope]
        return sum(b.micro for b in self.book.values() if counted(b))

    def sums(self, wanted: Any) -> tuple[float, float]:
        mine = [b for b in self.book.values() if wanted(b)]
        known = sum(b.micro for b in mine if b.known)
        return known / MICRO, sum(b.micro for b in mine) / MICRO


TestSpendingMachine = SpendingMachine.TestCase
TestSpendingMachine.settings = settings(max_examples=examples(15), stateful_step_count=20, deadline=None)
