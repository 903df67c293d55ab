"""The totals for limits equal the sum of the calls, whatever process wrote them and however it died."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.property.test_store_spending_machine import counted, summed
from tests.unit.older_stores import as_of_version_6

from chargehand.core.errors import StoreError
from chargehand.core.ports import Ledger
from chargehand.store.ledger import SpendingLimits
from chargehand.store.store import Store, open_store

LIMITS = SpendingLimits(attempt_usd=9.0, task_usd=9.0, mission_usd=9.0, user_usd=9.0, day_usd=9.0)


def ledger(store: Store, *, mission: str | None = "m-1", user: str | None = "ann") -> Ledger:
    return store.spending.ledger(mission=mission, attempt="a-1", limits=LIMITS, task="t-1", user=user)


def as_of_version_5(home: Path) -> None:
    with sqlite3.connect(home / "store.db") as raw:
        as_of_version_6(raw)
        for trigger in ("added", "settled", "removed"):
            raw.execute(f"DROP TRIGGER spending_{trigger}")
        raw.execute("DROP TABLE spending_totals")
        for column in ("mission", "task", "user", "day"):
            raw.execute(f"CREATE INDEX spending_by_{column} ON spending ({column})")
        raw.execute("UPDATE alembic_version SET version_num = '0005'")
    raw.close()


def test_the_calls_of_a_store_of_the_version_before_are_counted(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with open_store(home) as store:
        one, by_hand = ledger(store), ledger(store, mission=None, user=None)
        for call, usd in (("c-1", 1.0), ("c-2", 2.0), ("c-3", 0.5)):
            one.reserve(call, usd)
        one.settle("c-1", 0.25)
        one.settle("c-2", None)
        by_hand.reserve("c-4", 0.125)
        kept = counted(store)
    as_of_version_5(home)
    with open_store(home) as store:
        assert counted(store) == summed(store) == kept
        assert ledger(store).left() == 9.0 - 0.25 - 2.0 - 0.5 - 0.125


def test_totals_include_calls_written_by_another_program(tmp_path: Path) -> None:
    """An earlier version may still run: it only writes the calls."""
    with open_store(tmp_path / "home") as store:
        ledger(store).reserve("c-1", 1.0)
        with sqlite3.connect(tmp_path / "home" / "store.db") as raw:
            row = "INSERT INTO spending SELECT ?, ?, ?, day, ?, NULL, 0, time, NULL, ? FROM spending LIMIT 1"
            raw.execute(row, ("c-2", "m-2", "a-2", 5, ""))
            raw.execute("UPDATE spending SET settled = 7, known = 1 WHERE call = 'c-2'")
            raw.execute(row, ("c-3", None, "a-3", 3, None))
            raw.execute("DELETE FROM spending WHERE call = 'c-1'")
        raw.close()
        assert counted(store) == summed(store)
        assert {subject: micro for (scope, subject, _), micro in counted(store).items() if scope == "attempt"} == {
            "a-2": 7,
            "a-3": 3,
        }


WRITER = """
import sys
from pathlib import Path
from chargehand.store.ledger import SpendingLimits
from chargehand.store.store import open_store

with open_store(Path(sys.argv[1])) as store:
    one = store.spending.ledger(mission="m", attempt="a", limits=SpendingLimits(day_usd=1e6), user="u")
    for number in range(100_000):
        call = f"c-{sys.argv[2]}-{number}"
        one.reserve(call, 0.5)
        print(call, 0.5, flush=True)
        if number % 3:
            one.settle(call, 0.125)
            print(call, 0.125, flush=True)
"""


def test_reserves_of_a_killed_process_are_kept(tmp_path: Path) -> None:
    home, told = tmp_path / "home", dict[str, float]()
    open_store(home).close()
    for life in range(3):
        argv = [sys.executable, "-c", WRITER, str(home), str(life)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(40 + 7 * life)]
            writer.send_signal(signal.SIGKILL)
            lines += writer.stdout.readlines()
        whole = [line.split() for line in lines if line.endswith("\n")]
        told |= {call: float(usd) for call, usd in whole}
    with open_store(home) as store:
        assert counted(store) == summed(store)
        with store.database.read() as connection:
            rows = connection.execute("SELECT call, reserved, settled, known FROM spending").fetchall()
    kept = {call: (settled if known else reserved) / 1e6 for call, reserved, settled, known in rows}
    # It may have died before its last report arrived: then more was reserved or settled than reported.
    assert told.keys() <= kept.keys()
    assert sum(kept[call] != usd for call, usd in told.items()) <= 3
    assert len(kept) - len(told) <= 3


def test_securing_raises_if_the_write_ahead_log_cannot_be_synced(tmp_path: Path) -> None:
    with open_store(tmp_path / "home") as store:
        ledger(store).reserve("c-1", 1.0)
        ledger(store).secure()
        log = tmp_path / "home" / "store.db-wal"
        kept = log.rename(tmp_path / "aside")
        log.symlink_to(log)
        with pytest.raises(StoreError):
            ledger(store).secure()
        log.unlink()
        kept.rename(log)
        ledger(store).secure()
