"""The ledger of call costs: reserved before, settled after, never past a limit."""

from __future__ import annotations

import math
import os
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.older_stores import as_of_version_6

from chargehand.core.clock import SteppedClock
from chargehand.core.errors import ExhaustedError, UsageError
from chargehand.core.mission_events import MissionCreated
from chargehand.core.ports import Ledger, Spent
from chargehand.core.records import MissionRequest
from chargehand.store.ledger import SpendingLimits
from chargehand.store.store import Store, open_store

DAY = 24 * 3600.0


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock(datetime(2026, 1, 31, 12, tzinfo=UTC))


def ledger(
    store: Store,
    attempt: str = "a-1",
    mission: str | None = "m-1",
    *,
    a: float | None = None,
    m: float | None = None,
    d: float | None = None,
    t: float | None = None,
    u: float | None = None,
    task: str | None = None,
    user: str | None = None,
) -> Ledger:
    limits = SpendingLimits(attempt_usd=a, task_usd=t, mission_usd=m, user_usd=u, day_usd=d)
    return store.spending.ledger(mission=mission, attempt=attempt, limits=limits, task=task, user=user)


def refusal(of: Ledger, usd: float, call: str = "c-refused") -> ExhaustedError:
    with pytest.raises(ExhaustedError) as caught:
        of.reserve(call, usd)
    assert caught.value.code in ("budget", "budget_reserved")
    return caught.value


def test_a_reserve_counts_until_the_call_is_settled(store: Store) -> None:
    one = ledger(store, a=1.0)
    one.reserve("c-1", 0.75)
    assert one.left() == 0.25
    assert store.spending.total() == (0.0, 0.75)
    one.settle("c-1", 0.1)
    assert one.left() == 0.9
    assert store.spending.total() == (0.1, 0.1)


def test_a_call_of_unknown_cost_stays_booked_at_its_reserve(store: Store) -> None:
    one = ledger(store, a=1.0)
    one.reserve("c-1", 0.75)
    one.settle("c-1", None)
    assert one.left() == 0.25
    assert store.spending.total() == (0.0, 0.75)


def test_the_first_word_on_a_call_counts(store: Store) -> None:
    one = ledger(store, a=2.0)
    for call, first, then in (("c-1", 0.1, 0.2), ("c-2", None, 0.2), ("c-3", 0.1, None)):
        one.reserve(call, 0.5)
        one.settle(call, first)
        one.settle(call, first)
        one.settle(call, then)
    assert store.spending.total() == (0.2, 0.7)


def test_a_call_that_costs_more_than_its_reserve_is_booked_in_full(store: Store) -> None:
    one = ledger(store, a=1.0)
    one.reserve("c-1", 0.5)
    one.settle("c-1", 1.5)
    assert one.left() == 0.0
    assert refusal(one, 0.000001)
    assert one.reserve("c-2", 0.0) == (Spent(limit="attempt", limit_usd=1.0, spent_usd=1.5),)


def test_without_limits_every_call_is_booked_and_allowed(store: Store) -> None:
    one = ledger(store)
    assert one.left() is None
    assert one.reserve("c-1", 1e6) == ()
    assert store.spending.total().booked_usd == 1e6


@pytest.mark.parametrize(
    ("limits", "scope", "key"),
    [
        ({"a": 1.0, "m": 2.0, "d": 2.0}, "attempt", "limits.attempt_usd"),
        ({"a": 2.0, "m": 1.0, "d": 2.0}, "mission", "limits.budget_usd"),
        ({"a": 2.0, "m": 2.0, "d": 1.0}, "day", "limits.day_usd"),
        ({"a": 2.0, "t": 1.0, "m": 2.0}, "task", "limits.task_usd"),
        ({"m": 2.0, "u": 1.0, "d": 2.0}, "user's day", "limits.user_usd"),
    ],
)
def test_each_limit_refuses_and_says_which_how_much_and_the_way_out(
    store: Store, limits: dict[str, float], scope: str, key: str
) -> None:
    one = ledger(store, **limits)
    one.reserve("c-1", 0.6)
    assert one.left() == 0.4
    waits = refusal(one, 0.400001)
    assert waits.code == "budget_reserved"
    assert (
        f"the budget of the {scope} is reserved for now: of 1.00 USD, 0.00 are spent and 0.60 reserved"
        in waits.message
    )
    assert one.left(settled=True) == 1.0
    one.settle("c-1", None)
    error = refusal(one, 0.400001)
    assert error.code == "budget"
    assert error.message == (
        f"the budget of the {scope} is used up: 0.60 of 1.00 USD are spent or reserved,"
        " and this call may cost 0.400001 USD"
    )
    assert f"chargehand config set {key} " in error.hint
    assert store.spending.total().booked_usd == 0.6, "a refused call reserves nothing"
    one.reserve("c-2", 0.4)
    assert one.left() == 0.0


def test_each_limit_counts_only_spending_of_its_scope(store: Store, clock: SteppedClock) -> None:
    for attempt, mission in (("a-1", "m-1"), ("a-2", "m-1"), ("a-3", "m-2")):
        ledger(store, attempt, mission).reserve(f"c-{attempt}", 1.0)
    assert ledger(store, "a-1", "m-1", a=5.0).left() == 4.0
    assert ledger(store, "a-1", "m-1", m=5.0).left() == 3.0
    assert ledger(store, "a-1", "m-1", d=5.0).left() == 2.0
    assert ledger(store, "a-1", "m-1", a=5.0, m=5.0, d=5.0).left() == 2.0
    assert ledger(store, "a-9", "m-9", a=5.0, m=5.0).left() == 5.0
    clock.advance(DAY)
    assert ledger(store, "a-1", "m-1", d=5.0).left() == 5.0
    assert ledger(store, "a-1", "m-1", m=5.0).left() == 3.0


def test_a_users_limit_counts_a_day_over_all_missions_and_a_tasks_its_attempts(
    store: Store, clock: SteppedClock
) -> None:
    ledger(store, "a-0", "m-0").reserve("c-old", 1.0)  # as in an older store: without user or task
    ledger(store, "a-1", "m-1", user="ann", task="t-1").reserve("c-1", 1.0)
    ledger(store, "a-2", "m-1", user="ann", task="t-2").reserve("c-2", 2.0)
    ledger(store, "a-3", "m-2", user="ann").reserve("c-3", 3.0)
    ledger(store, "a-4", "m-3", user="bob").reserve("c-4", 0.5)
    assert ledger(store, "a-9", "m-9", user="ann", u=10.0).left() == 4.0
    assert ledger(store, "a-9", "m-9", user="bob", u=10.0).left() == 9.5
    assert ledger(store, "a-9", "m-9", u=10.0).left() == 9.0
    assert ledger(store, "a-9", "m-1", task="t-1", t=10.0).left() == 9.0
    assert ledger(store, "a-9", "m-1", t=10.0).left() == 7.0, "a mission of one task is that task"
    assert ledger(store, "a-9", None, t=10.0).left() == 10.0
    error = refusal(ledger(store, "a-9", "m-9", user="ann", u=6.5), 0.6)
    assert (
        "the budget of the user's day is reserved for now: of 6.50 USD, 0.00 are spent and 6.00 reserved"
        in error.message
    )
    assert "limits.user_usd" in error.hint
    told = ledger(store, "a-9", "m-9", user="ann", u=6.5, t=1.0).reserve("c-5", 0.4)
    assert [(spent.limit, spent.spent_usd) for spent in told] == [("user", 6.4)]
    assert ledger(store, "a-8", "m-8", user="ann", u=6.5).reserve("c-6", 0.05) == (), "told once"
    clock.advance(DAY)
    assert [each.limit for each in ledger(store, "a-8", "m-8", user="ann", u=6.5).reserve("c-7", 6.0)] == ["user"]
    assert store.spending.total(user="ann", day="2026-01-31").booked_usd == 6.45


def test_a_call_over_midnight_counts_for_the_day_of_its_start(store: Store, clock: SteppedClock) -> None:
    one = ledger(store, d=1.0)
    one.reserve("c-1", 0.5)
    clock.advance(DAY)
    one.settle("c-1", 0.75)
    assert one.left() == 1.0
    assert store.spending.total(day="2026-01-31").known_usd == 0.75
    assert store.spending.total(day="2026-02-01") == (0.0, 0.0)


def test_calls_without_a_mission_count_for_the_attempt_and_the_day_only(store: Store) -> None:
    ledger(store, "a-0", None).reserve("c-0", 1.0)
    by_hand = ledger(store, "a-1", None, m=1.0, d=5.0)
    by_hand.reserve("c-1", 0.5)
    assert by_hand.left() == 0.5, "what the mission's limit counts is the attempt alone"
    assert ledger(store, "a-2", "m-1", m=1.0).left() == 1.0
    assert ledger(store, "a-2", "m-1", d=5.0).left() == 3.5


def test_reaching_80_percent_of_a_limit_is_reported_once(store: Store) -> None:
    one = ledger(store, a=1.0)
    assert one.reserve("c-1", 0.799999) == ()
    assert one.reserve("c-2", 0.000001) == (Spent(limit="attempt", limit_usd=1.0, spent_usd=0.8),)
    assert one.reserve("c-3", 0.1) == ()
    for call in ("c-1", "c-2", "c-3"):
        one.settle(call, 0.0)
    assert one.reserve("c-4", 0.9) == (), "it falls below and passes again"
    raised = ledger(store, a=1.1)
    assert raised.reserve("c-5", 0.1) == (Spent(limit="attempt", limit_usd=1.1, spent_usd=1.0),)


def test_several_reached_limits_are_reported_together_and_each_only_once(
    store: Store, clock: SteppedClock
) -> None:
    one, two = ledger(store, "a-1", a=1.0, m=2.0, d=2.0), ledger(store, "a-2", a=1.0, m=2.0, d=2.0)
    assert [spent.limit for spent in one.reserve("c-1", 0.9)] == ["attempt"]
    assert [spent.limit for spent in two.reserve("c-2", 0.9)] == ["attempt", "mission", "day"]
    assert one.reserve("c-3", 0.1) == ()
    clock.advance(DAY)
    assert [spent.limit for spent in ledger(store, "a-3", "m-2", d=1.0).reserve("c-4", 0.8)] == ["day"]


def test_a_limit_of_zero_allows_free_calls(store: Store) -> None:
    one = ledger(store, a=0.0)
    assert one.reserve("c-1", 0.0) == ()
    assert refusal(one, 1e-9)


def test_a_reserve_is_rounded_up_and_a_limit_down(store: Store) -> None:
    one = ledger(store, a=0.0000029)
    assert one.left() == 0.000002
    one.reserve("c-1", 0.0000011)
    assert one.left() == 0.0


@given(micro=st.integers(0, 10**15))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_an_amount_in_micro_dollars_round_trips_exactly(store: Store, micro: int) -> None:
    usd, name = micro / 1_000_000, uuid4().hex
    one = ledger(store, name, None, a=usd)
    assert one.left() == usd
    one.reserve(name, usd)
    assert one.left() == 0.0
    assert store.spending.total(attempt=name).booked_usd == usd


def test_float_rounding_errors_do_not_change_amounts(store: Store) -> None:
    one = ledger(store, a=0.3)
    one.reserve("c-1", 0.1 + 0.2)  # 0.30000000000000004
    assert one.left() == 0.0
    assert ledger(store, "a-2", a=0.1 * 3).left() == 0.3
    assert ledger(store, "a-2", a=0.7 - 0.4).left() == 0.3  # 0.29999999999999993


@pytest.mark.parametrize(
    ("micro", "shown"), [(0, "0.00"), (1, "0.000001"), (500_000, "0.50"), (12_345_000, "12.345"), (10**7, "10.00")]
)
def test_an_amount_is_shown_with_all_its_digits(store: Store, micro: int, shown: str) -> None:
    refused = refusal(ledger(store, a=micro / 1_000_000), (micro + 1) / 1_000_000)
    assert f"0.00 of {shown} USD" in refused.message


@pytest.mark.parametrize("usd", [-0.01, math.nan, math.inf, -math.inf, 1.1e9])
def test_an_invalid_amount_is_rejected(store: Store, usd: float) -> None:
    one = ledger(store)
    with pytest.raises(UsageError, match="amount"):
        one.reserve("c-1", usd)
    one.reserve("c-1", 1.0)
    with pytest.raises(UsageError, match="amount"):
        one.settle("c-1", usd)
    with pytest.raises(UsageError, match="amount"):
        ledger(store, a=usd)
    assert store.spending.total() == (0.0, 1.0)


def test_settling_an_unknown_call_or_reserving_a_call_twice_raises(store: Store) -> None:
    one, two = ledger(store), ledger(store, "a-2")
    one.reserve("c-1", 1.0)
    for of, call in ((one, "c-9"), (two, "c-1")):
        with pytest.raises(UsageError, match=call):
            of.settle(call, 0.5)
    with pytest.raises(UsageError, match="'c-1' is already reserved"):
        two.reserve("c-1", 1.0)
    assert store.spending.total() == (0.0, 1.0)


def test_abandoned_calls_stay_booked_at_their_full_reserve(store: Store, clock: SteppedClock) -> None:
    one = ledger(store, a=5.0)
    for call, usd in (("c-b", 1.0), ("c-a", 0.5), ("c-c", 0.25)):
        one.reserve(call, usd)
        clock.advance(1)
    ledger(store, "a-2").reserve("c-other", 1.0)
    one.settle("c-b", 0.75)
    assert store.spending.booked("a-1") == (("c-b", 0.75, True),)
    for attempt in ("a-1", "a-1", "a-9"):
        store.spending.abandon(attempt)
    given_up = (("c-b", 0.75, True), ("c-a", 0.5, False), ("c-c", 0.25, False))
    assert store.spending.booked("a-1") == given_up
    one.settle("c-a", 0.1)
    assert store.spending.booked("a-1") == given_up
    assert store.spending.total(attempt="a-1") == (0.75, 1.5)
    assert store.spending.booked("a-2") == ()


def test_abandoned_calls_are_booked_at_known_costs_or_bounds(store: Store) -> None:
    one = ledger(store, a=5.0)
    for call in ("c-1", "c-2", "c-3", "c-4", "c-5"):
        one.reserve(call, 1.0)
    one.settle("c-5", None, most=0.3)
    costs, bounds = {"c-1": 0.125, "c-9": 3.0}, {"c-1": 0.9, "c-2": 0.25, "c-3": 7.0}
    store.spending.abandon("a-1", costs=costs, bounds=bounds)
    assert set(store.spending.booked("a-1")) == {
        ("c-1", 0.125, True),
        ("c-2", 0.25, False),
        ("c-3", 1.0, False),
        ("c-4", 1.0, False),
        ("c-5", 0.3, False),
    }
    assert store.spending.total(attempt="a-1") == (0.125, 2.675)
    assert one.left() == 2.325


def test_totals_are_filtered_by_mission_attempt_and_day(store: Store) -> None:
    for number, (attempt, mission) in enumerate((("a-1", "m-1"), ("a-2", "m-1"), ("a-3", None)), start=1):
        one = ledger(store, attempt, mission)
        one.reserve(f"c-{number}", number)
        if number != 2:
            one.settle(f"c-{number}", number / 2)
    total = store.spending.total
    assert total() == (2.0, 4.0)
    assert total(mission="m-1") == (0.5, 2.5)
    assert total(attempt="a-3") == (1.5, 1.5)
    assert total("m-1", "a-2", "2026-01-31") == (0.0, 2.0)
    assert total("m-1", "a-3") == total(day="2026-01-30") == (0.0, 0.0)


def test_spending_persists_after_reopening_and_in_a_backup(tmp_path: Path) -> None:
    with open_store(tmp_path / "home") as store:
        ledger(store).reserve("c-1", 0.5)
        store.backup(tmp_path / "copy")
    for place in ("home", "copy"):
        with open_store(tmp_path / place) as store:
            assert store.spending.total("m-1") == (0.0, 0.5)


def test_a_store_of_the_schema_before_gets_its_book(tmp_path: Path) -> None:
    home = tmp_path / "home"
    created = MissionCreated(
        project="p", repository="/r", request=MissionRequest(text="x", agent="a", command=(), slug="x")
    )
    with open_store(home) as store:
        lines = store.log.append("m-1", created)
    with sqlite3.connect(home / "store.db") as raw:
        as_of_version_6(raw)
        for table in ("spending", "spending_alerts", "spending_totals", "inspections"):
            raw.execute(f"DROP TABLE {table}")
        raw.execute("DROP INDEX missions_to_wake")
        raw.execute("ALTER TABLE missions DROP COLUMN wakes")
        raw.execute("UPDATE alembic_version SET version_num = '0002'")
    raw.close()
    with open_store(home) as store:
        assert store.log.read("m-1") == lines
        ledger(store, m=1.0).reserve("c-1", 0.5)
        assert ledger(store, m=1.0).left() == 0.5


RACE = """
import os, sys
from pathlib import Path
from chargehand.core.errors import ExhaustedError
from chargehand.store.ledger import SpendingLimits
from chargehand.store.store import open_store

home = Path(sys.argv[1])
limits = SpendingLimits(attempt_usd=0.3, mission_usd=0.5, user_usd=0.45, day_usd=0.7)
gate, opener = os.pipe()

def worker(number):
    child = os.fork()
    if child:
        return child
    try:
        os.read(gate, 1)
        with open_store(home) as store:
            whose = {"mission": f"m-{number // 2}", "attempt": f"a-{number}", "user": f"u-{number % 2}"}
            one = store.spending.ledger(**whose, limits=limits)
            taken = alerts = 0
            for turn in range(10):
                try:
                    alerts += len(one.reserve(f"c-{number}-{turn}", 0.05))
                    taken += 1
                except ExhaustedError:
                    pass
            os.write(1, f"{taken} {alerts}\\n".encode())  # at once: the others write there too
        os._exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)

open_store(home).close()
children = [worker(number) for number in range(4)]
os.write(opener, b"1234")
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
"""


def test_processes_that_reserve_at_once_pass_no_limit(tmp_path: Path) -> None:
    home = tmp_path / "home"
    ran = subprocess.run(
        [sys.executable, "-c", RACE, home], capture_output=True, text=True, env=os.environ, check=False
    )
    assert ran.returncode == 0, ran.stderr
    told = [tuple(map(int, line.split())) for line in ran.stdout.splitlines()]
    with open_store(home) as store:
        total = store.spending.total
        # In any order, the day's limit is used up to the cent: the attempts together could take more.
        assert total().booked_usd == 0.7 == pytest.approx(sum(taken for taken, _ in told) * 0.05)
        assert all(total(attempt=f"a-{number}").booked_usd <= 0.3 for number in range(4))
        missions = [total(mission=f"m-{number}").booked_usd for number in range(2)]
        assert max(missions) <= 0.5
        attempts = [total(attempt=f"a-{number}").booked_usd for number in range(4)]
        users = [total(user=f"u-{number}").booked_usd for number in range(2)]
        assert max(users) <= 0.45
        passed = [*(usd >= 0.24 for usd in attempts), *(usd >= 0.4 for usd in missions), True]
        passed += [usd >= 0.36 for usd in users]
        assert sum(alerts for _, alerts in told) == sum(passed)
