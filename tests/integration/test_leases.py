"""Worker leases on PostgreSQL: which workers are alive across machines; dead workers stay dead."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.postgres import Postgres, cluster

from chargehand.core.errors import ConfigError, InfrastructureError, UsageError
from chargehand.durable.leases import LeasedMembership, LeasedWorkers
from chargehand.durable.workers import LocalWorkers

ROOT = Path(__file__).parents[2]
WAIT = 120.0


class Lost:
    """A callback that counts how often a worker learns that its lease is lost."""

    def __init__(self) -> None:
        self.times = 0
        self.told = threading.Event()

    def __call__(self) -> None:
        self.times += 1
        self.told.set()


def workers(url: str, home: Path, *, ttl: float = 20.0, beat: float = 5.0) -> LeasedWorkers:
    return LeasedWorkers(url, LocalWorkers(home, version="1"), ttl=ttl, beat=beat)


@contextlib.contextmanager
def joined(asked: LeasedWorkers, lost: Callable[[], None] | None = None) -> Iterator[LeasedMembership]:
    membership = asked.join("worker", on_lost=lost or Lost())
    try:
        yield membership
    finally:
        membership.leave()


@contextlib.contextmanager
def process(url: str, home: Path, *, ttl: float, beat: float) -> Iterator[tuple[subprocess.Popen[str], str]]:
    program = [sys.executable, "-m", "tests.lease_kit", url, str(home), str(ttl), str(beat)]
    with subprocess.Popen(program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started, said(started).removeprefix("joined ")
        finally:
            started.send_signal(signal.SIGCONT)
            started.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def execute(url: str, statement: str) -> Any:
    """Execute a statement; return its only value, if it returns any."""
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool)
    with engine.begin() as connection:
        done = connection.execute(sa.text(statement))
        return done.scalar_one() if done.returns_rows else None


def let_lapse(url: str) -> None:
    """Make all leases expire now."""
    execute(url, "UPDATE chargehand.workers SET until = clock_timestamp()")


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def stop_between_renewals(worker: subprocess.Popen[str], url: str) -> None:
    """Stop a worker while it does not lock its row: no other process could write a locked row."""
    row_is_free = "SELECT count(*) FROM (SELECT id FROM chargehand.workers FOR UPDATE SKIP LOCKED) AS free"
    while True:
        worker.send_signal(signal.SIGSTOP)
        until(lambda: Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        if execute(url, row_is_free):
            return
        worker.send_signal(signal.SIGCONT)


def test_a_worker_is_live_on_other_machines_until_it_leaves(postgres_url: str, tmp_path: Path) -> None:
    here, there = (workers(postgres_url, tmp_path / name) for name in ("a", "b"))
    lost = Lost()
    with joined(here, lost) as one, joined(there) as two:
        for asked in (here, there):
            assert asked.live(one.id)
            assert asked.live(two.id)
            assert {member.id for member in asked.members()} == {one.id, two.id}
        assert {(member.role, member.pid) for member in there.members()} == {("worker", os.getpid())}
        assert there.sweep() == ()
    one.leave()
    assert not there.live(one.id)
    assert there.members() == ()
    assert lost.times == 0
    assert not [path for path in (tmp_path / "a" / "workers").iterdir() if path.suffix == ".lock"]


def test_an_unknown_worker_is_not_live(postgres_url: str, tmp_path: Path) -> None:
    assert not workers(postgres_url, tmp_path).live("k-nobody")


def test_a_lease_outlives_its_ttl_by_being_renewed(postgres_url: str, tmp_path: Path) -> None:
    def lapses() -> datetime:
        found: datetime = execute(postgres_url, "SELECT until FROM chargehand.workers")
        return found

    lost = Lost()
    other = workers(postgres_url, tmp_path / "b")
    with joined(workers(postgres_url, tmp_path / "a", ttl=60, beat=0.3), lost) as one:
        for _ in range(2):
            # As if only half a minute of the lease were left: each beat restores all of it.
            moved = "UPDATE chargehand.workers SET until = until - interval '30 s' RETURNING until"
            before = execute(postgres_url, moved)
            until(lambda before=before: lapses() - before > timedelta(seconds=25))
            assert other.live(one.id)
    assert lost.times == 0


def test_a_killed_worker_of_this_directory_is_dead_at_once_and_elsewhere_after_its_ttl(
    postgres_url: str, tmp_path: Path
) -> None:
    here, there = workers(postgres_url, tmp_path / "a"), workers(postgres_url, tmp_path / "b")
    with process(postgres_url, tmp_path / "a", ttl=600, beat=1) as (victim, name):
        assert here.live(name)
        assert there.live(name)
        victim.kill()
        victim.wait()
        assert not here.live(name)
        assert here.members() == ()
        assert there.live(name), "to another machine it may only be slow"
        let_lapse(postgres_url)
        assert not there.live(name)


def test_dead_workers_are_swept_once(postgres_url: str, tmp_path: Path) -> None:
    here = workers(postgres_url, tmp_path / "a")
    with process(postgres_url, tmp_path / "a", ttl=60, beat=5) as (victim, name), joined(here) as living:
        victim.kill()
        victim.wait()
        assert here.sweep() == (name,)
        assert here.sweep() == ()
        assert [member.id for member in workers(postgres_url, tmp_path / "b").members()] == [living.id]


def test_a_stopped_worker_with_a_lapsed_lease_never_becomes_live_again(postgres_url: str, tmp_path: Path) -> None:
    there = workers(postgres_url, tmp_path / "b")
    with process(postgres_url, tmp_path / "a", ttl=600, beat=0.5) as (zombie, name):
        assert there.live(name)
        stop_between_renewals(zombie, postgres_url)
        let_lapse(postgres_url)
        assert not there.live(name)
        zombie.send_signal(signal.SIGCONT)
        assert said(zombie) == "lost"
        assert zombie.stdin
        zombie.stdin.write("renew\n")
        zombie.stdin.flush()
        assert said(zombie) == "renewed False"
        assert not there.live(name)


def test_no_renewal_succeeds_after_a_worker_was_found_dead(postgres_url: str, tmp_path: Path) -> None:
    """A caller that gets the answer "dead" may act on it: no renewal may succeed after the answer."""
    here, there = (workers(postgres_url, tmp_path / name, ttl=60) for name in ("a", "b"))
    for _ in range(10):
        with joined(here) as one, ThreadPoolExecutor(1) as threads:
            execute(postgres_url, "UPDATE chargehand.workers SET until = clock_timestamp() + interval '20 ms'")
            renewing = threads.map(here.renew, [one.id] * 8)
            answers = [there.live(one.id) for _ in range(8)]
            renewals = list(renewing)
            after = here.renew(one.id)
        assert answers == sorted(answers, reverse=True), "nobody rises again"
        assert renewals == sorted(renewals, reverse=True)
        assert after == renewals[-1] == answers[-1]


def test_a_deleted_lease_is_reported_lost_once(postgres_url: str, tmp_path: Path) -> None:
    lost = Lost()
    with joined(workers(postgres_url, tmp_path, ttl=60, beat=0.2), lost):
        execute(postgres_url, "DELETE FROM chargehand.workers")
        assert lost.told.wait(WAIT)
    assert lost.times == 1


def test_a_member_can_leave_in_its_lost_callback(postgres_url: str, tmp_path: Path) -> None:
    left = threading.Event()
    member: list[LeasedMembership] = []

    def leave() -> None:
        member[0].leave()
        left.set()

    member.append(workers(postgres_url, tmp_path, ttl=60, beat=0.2).join("worker", on_lost=leave))
    execute(postgres_url, "DELETE FROM chargehand.workers")
    assert left.wait(WAIT)


def test_the_clock_of_the_host_does_not_matter(postgres_url: str, tmp_path: Path) -> None:
    """A lease holds only times of the database: another wall clock does not affect it."""
    with joined(workers(postgres_url, tmp_path / "a", ttl=600, beat=5)) as one:
        engine = sa.create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
        with engine.connect() as connection:
            left = connection.execute(
                sa.text("SELECT extract(epoch FROM until - clock_timestamp()) FROM chargehand.workers")
            ).scalar_one()
        engine.dispose()
        assert 300 < left <= 600
        source = (ROOT / "src/chargehand/durable/leases.py").read_text()
        assert "time.time" not in source
        assert "datetime" not in source
        assert workers(postgres_url, tmp_path / "b").live(one.id)


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    with cluster() as server:
        yield server


def test_a_database_that_is_away_for_longer_than_the_ttl_loses_the_lease(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    url, lost = own_postgres.database(), Lost()
    asked = workers(url, tmp_path, ttl=2, beat=0.5)
    with joined(asked, lost) as one:
        own_postgres.stop()
        assert lost.told.wait(WAIT)
        for ask in (lambda: asked.live(one.id), asked.members, asked.sweep):
            with pytest.raises(InfrastructureError) as failed:
                ask()
            assert failed.value.code == "engine_database"
    own_postgres.start()
    assert not asked.live(one.id)
    assert lost.times == 1


def test_a_database_outage_shorter_than_the_ttl_keeps_the_lease(own_postgres: Postgres, tmp_path: Path) -> None:
    url, lost = own_postgres.database(), Lost()
    asked = workers(url, tmp_path, ttl=120, beat=0.3)
    with joined(asked, lost) as one:
        for _ in range(3):
            own_postgres.restart()
        own_postgres.kill()
        own_postgres.start()
        assert asked.renew(one.id)
        assert asked.live(one.id)
    assert lost.times == 0


def test_many_join_a_new_database_at_once(postgres_url: str, tmp_path: Path) -> None:
    def join(number: int) -> LeasedMembership:
        return workers(postgres_url, tmp_path / str(number)).join("worker", on_lost=Lost())

    with ThreadPoolExecutor(6) as threads:
        members = list(threads.map(join, range(6)))
    assert len(workers(postgres_url, tmp_path / "x").members()) == 6
    for member in members:
        member.leave()


def test_leaving_ends_threads_and_closes_files(postgres_url: str, tmp_path: Path) -> None:
    with joined(workers(postgres_url, tmp_path)):
        pass
    # Threads of earlier tests may end meanwhile.
    before, files = {*threading.enumerate()}, len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with joined(workers(postgres_url, tmp_path)):
            assert len({*threading.enumerate()} - before) == 2
    assert not {*threading.enumerate()} - before
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_failed_join_holds_no_lock(tmp_path: Path) -> None:
    asked = workers("postgresql://ada:hunter2@127.0.0.1:1/none", tmp_path)
    with pytest.raises(InfrastructureError) as failed:
        asked.join("worker", on_lost=Lost())
    assert "hunter2" not in str(failed.value)
    assert list((tmp_path / "workers").iterdir()) == []


def test_a_database_without_an_encoding_is_refused(postgres: Postgres, tmp_path: Path) -> None:
    asked = workers(postgres.database("SQL_ASCII"), tmp_path)
    with pytest.raises(ConfigError, match="SQL_ASCII") as refused:
        asked.join("worker", on_lost=Lost())
    assert "--encoding UTF8" in refused.value.hint


def test_impossible_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        workers("sqlite:///x", tmp_path)
    with pytest.raises(UsageError, match="every 3 s"):
        workers("postgresql://h/d", tmp_path, ttl=4, beat=3)
