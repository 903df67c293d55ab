"""The engine on SQLite and on PostgreSQL: one suite for both."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.engine_kit import WAIT, worker
from tests.postgres import Postgres, cluster

from chargehand.core.errors import ConfigError, InfrastructureError, UsageError
from chargehand.core.ids import new_id
from chargehand.durable.engine import Engine
from chargehand.durable.engine_file import make_ready

Run = Callable[[str], Awaitable[None]]


@pytest.fixture(scope="module")
def used_database(postgres: Postgres) -> str:
    """Return the URL of a database that already has its tables: creating them takes longer than most tests."""
    url = postgres.database()

    async def use() -> None:
        async with held_bodies(url):
            pass

    asyncio.run(use())
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'engine.db'}"
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.database(like=request.getfixturevalue("used_database"))


class HeldBodies:
    """Bodies of turns that a test holds and releases."""

    def __init__(self) -> None:
        self.started: asyncio.Queue[str] = asyncio.Queue()
        self.go = asyncio.Event()
        self.order: list[str] = []

    async def __call__(self, mission: str) -> None:
        self.order.append(mission)
        self.started.put_nowait(mission)
        await self.go.wait()

    async def next(self) -> str:
        return await asyncio.wait_for(self.started.get(), WAIT)


def opened(
    url: str, run: Run, *, slots: int = 2, worker: str | None = None, live: bool = True
) -> AbstractAsyncContextManager[Engine]:
    return Engine.open(url, worker=worker or new_id("worker"), slots=slots, run=run, is_live=lambda _: live)


@asynccontextmanager
async def held_bodies(url: str, *, slots: int = 2) -> AsyncIterator[tuple[Engine, HeldBodies]]:
    bodies = HeldBodies()
    async with opened(url, bodies, slots=slots) as engine:
        try:
            yield engine, bodies
        finally:
            bodies.go.set()


async def until_idle(engine: Engine) -> None:
    async with asyncio.timeout(WAIT):
        while await engine.waiting():
            await asyncio.sleep(0.02)


def rows(url: str, table: str = "workflow_status") -> list[Any]:
    schema = "" if url.startswith("sqlite") else "chargehand_engine."
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool)
    with engine.connect() as connection:
        return list(connection.execute(sa.text(f"SELECT * FROM {schema}{table} ORDER BY workflow_uuid")))


async def test_concurrent_triggers_of_a_turn_run_it_once(url: str) -> None:
    async with held_bodies(url) as (engine, bodies):
        told = await asyncio.gather(*(engine.trigger("m-1", 1) for _ in range(20)))
        assert sorted(told) == [False] * 19 + [True]
        assert await bodies.next() == "m-1"
        bodies.go.set()
        await until_idle(engine)
        assert not await engine.trigger("m-1", 1), "a turn that ended is not run again"
        assert await engine.trigger("m-1", 2)
        await until_idle(engine)
    assert bodies.order == ["m-1", "m-1"]


async def test_the_number_of_concurrent_turns_is_limited_by_the_slots(url: str) -> None:
    async with held_bodies(url, slots=3) as (engine, bodies):
        names = {f"m-{number}" for number in range(7)}
        for name in names:
            await engine.trigger(name, 1)
        first = {await bodies.next() for _ in range(3)}
        assert engine.active() == first
        assert await engine.waiting() == names
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bodies.started.get(), 0.5)
        bodies.go.set()
        await until_idle(engine)
        assert sorted(bodies.order) == sorted(names)
        assert not engine.active()


async def test_the_most_urgent_is_taken_first(url: str) -> None:
    async with held_bodies(url, slots=1) as (engine, bodies):
        await engine.trigger("first", 1)
        await bodies.next()
        for number in (3, 1, 2, 0):
            await engine.trigger(f"m-{number}", 1, priority=number)
        bodies.go.set()
        await until_idle(engine)
        assert bodies.order == ["first", "m-0", "m-1", "m-2", "m-3"]


@pytest.mark.parametrize("priority", [-1, 2**31])
async def test_a_priority_that_cannot_be_is_refused(priority: int, tmp_path: Path) -> None:
    async with held_bodies(f"sqlite:///{tmp_path / 'engine.db'}") as (engine, _):
        with pytest.raises(UsageError, match=str(priority)):
            await engine.trigger("m-1", 1, priority=priority)
        assert not await engine.waiting()


async def test_a_failed_turn_is_logged_and_does_not_stop_the_engine(
    url: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    class Odd(Exception):
        def __init__(self) -> None:
            super().__init__(object(), "odd words")

    async def run(mission: str) -> None:
        if mission == "bad":
            raise Odd

    async with opened(url, run) as engine:
        await engine.trigger("bad", 1)
        await engine.trigger("good", 1)
        await until_idle(engine)
    found = {row.workflow_uuid: row for row in rows(url)}
    assert (found["bad/1"].status, found["good/1"].status) == ("ERROR", "SUCCESS")
    (failed,) = (row for row in rows(url, "workflow_output") if row.workflow_uuid == "bad/1")
    assert "odd words" in json.loads(failed.error)["message"]
    assert "odd words" in caplog.text
    assert "turn 1 of mission 'bad'" in caplog.text
    assert {record.levelno for record in caplog.records if "odd words" in record.getMessage()} <= {logging.ERROR}
    assert capfd.readouterr() == ("", "")


async def test_the_rows_are_json_and_carry_our_version(url: str) -> None:
    async with held_bodies(url) as (engine, bodies):
        await engine.trigger("m-1", 7)
        await bodies.next()
        bodies.go.set()
        await until_idle(engine)
    (row,) = rows(url)
    (given,) = rows(url, "workflow_input")
    assert json.loads(given.inputs)["positionalArgs"] == ["m-1", 7]
    assert (row.serialization, row.application_version) == ("portable_json", "chargehand-engine-1")


async def test_closing_waits_for_running_turns_and_starts_no_others(url: str) -> None:
    closing, closed = asyncio.Event(), asyncio.Event()
    bodies = HeldBodies()

    async def hold() -> None:
        async with opened(url, bodies, slots=1) as engine:
            await engine.trigger("m-1", 1)
            await bodies.next()
            await engine.trigger("m-2", 1)
            closing.set()
        closed.set()

    holder = asyncio.create_task(hold())
    await asyncio.wait_for(closing.wait(), WAIT)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(closed.wait(), 1)
    bodies.go.set()
    await asyncio.wait_for(holder, WAIT)
    assert bodies.order == ["m-1"]
    assert [row.status for row in rows(url)] == ["SUCCESS", "ENQUEUED"]


async def test_a_turn_that_was_interrupted_is_run_by_the_next(url: str) -> None:
    async def interrupted(mission: str) -> None:
        begun.set()
        raise asyncio.CancelledError

    begun = asyncio.Event()
    async with opened(url, interrupted) as engine:
        await engine.trigger("m-1", 1)
        await asyncio.wait_for(begun.wait(), WAIT)
    assert [row.status for row in rows(url)] == ["ENQUEUED"]
    async with held_bodies(url) as (_, bodies):
        assert await bodies.next() == "m-1"


async def test_cancelling_the_close_cancels_running_turns(url: str) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def stubborn(mission: str) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def hold() -> None:
        async with opened(url, stubborn) as engine:
            await engine.trigger("m-1", 1)
            await started.wait()

    holder = asyncio.create_task(hold())
    await asyncio.wait_for(started.wait(), WAIT)
    await asyncio.wait([holder], timeout=1)
    assert not holder.done(), "it waits for what runs"
    holder.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(holder, WAIT)
    assert cancelled.is_set()
    async with held_bodies(url):
        pass


async def test_a_stalled_turn_is_rescued_at_the_second_check(url: str) -> None:
    begun: list[str] = []
    twice = asyncio.Event()

    async def run(mission: str) -> None:
        begun.append(mission)
        if len(begun) == 1:
            raise asyncio.CancelledError  # the row stays this engine's, but nothing runs
        twice.set()

    async with opened(url, run) as engine:
        await engine.trigger("m-1", 1)
        async with asyncio.timeout(WAIT):
            while not begun or engine.active():
                await asyncio.sleep(0.02)
            assert await engine.rescue() == ()
            while not (rescued := await engine.rescue()):
                await asyncio.sleep(0.1)
        assert rescued == ("m-1",)
        await asyncio.wait_for(twice.wait(), WAIT)


async def test_a_running_turn_is_never_rescued(url: str) -> None:
    async with held_bodies(url) as (engine, bodies):
        await engine.trigger("m-1", 1)
        await bodies.next()
        for _ in range(8):
            assert await engine.rescue() == ()
            await asyncio.sleep(0.2)
    assert bodies.order == ["m-1"]


async def test_only_turns_that_ended_long_ago_are_forgotten(url: str) -> None:
    async with held_bodies(url, slots=1) as (engine, bodies):
        await engine.trigger("done", 1)
        await bodies.next()
        bodies.go.set()
        await until_idle(engine)
        bodies.go.clear()
        await engine.trigger("runs", 1)
        await bodies.next()
        await engine.trigger("waits", 1)
        assert await engine.forget_finished(older_than=3600) == 0
        assert await engine.forget_finished(older_than=-60) == 1
        assert [row.workflow_uuid for row in rows(url)] == ["runs/1", "waits/1"]


async def test_a_closed_engine_leaves_no_threads_or_open_files(url: str) -> None:
    async def once() -> None:
        async with held_bodies(url) as (engine, bodies):
            await engine.trigger(new_id("mission"), 1)
            await bodies.next()
            bodies.go.set()
            await until_idle(engine)

    def held() -> tuple[set[str], int]:
        threads = {thread.name for thread in threading.enumerate() if not thread.name.startswith("asyncio_")}
        return threads, len(os.listdir("/proc/self/fd"))

    earlier, _ = held()  # threads of the test runner, and of earlier tests until they are collected
    await once()
    before = held()
    for _ in range(3):
        await once()
    threads, files = held()
    assert (threads - before[0], files) == (set(), before[1])
    assert {name for name in threads - earlier if not name.startswith("timeout")} == set()
    assert await asyncio.to_thread(lambda: 1) == 1, "the loop's own threads still work"


async def test_a_second_engine_in_a_process_is_refused(tmp_path: Path) -> None:
    first, second = (f"sqlite:///{tmp_path / name}" for name in ("a.db", "b.db"))
    async with held_bodies(first):
        with pytest.raises(UsageError) as refused:
            async with held_bodies(second):
                pass
        assert refused.value.code == "engine_open"
    async with held_bodies(second):
        pass


async def test_a_sqlite_file_has_a_write_ahead_log_and_belongs_to_its_user(tmp_path: Path) -> None:
    path = tmp_path / "odd ?#%20 name" / "engine.db"
    path.parent.mkdir()
    async with held_bodies(f"sqlite:///{path}") as (engine, bodies):
        await engine.trigger("m-1", 1)
        await bodies.next()
        assert path.with_name("engine.db-wal").exists()
        assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(found.name for found in path.parent.iterdir()) == ["engine.db", "engine.lock"]


def test_two_that_make_a_sqlite_file_at_once_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "engine.db"
    with sqlite3.connect(path, check_same_thread=False) as first, path.with_name("engine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        first.execute("CREATE TABLE half_made (id)")
        first.execute("INSERT INTO half_made VALUES (1)")
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(make_ready, path)
            with pytest.raises(TimeoutError):
                second.result(0.3)
            first.commit()
            fcntl.flock(lock, fcntl.LOCK_UN)
            second.result(30)
        assert first.execute("SELECT * FROM half_made").fetchall() == [(1,)]
        assert first.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("bad", ["mysql://h/d", "postgresql://host", "nonsense", ""])
async def test_a_url_of_something_else_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError) as refused:
        async with held_bodies(bad):
            pass
    assert refused.value.code == "engine_url"


@pytest.mark.parametrize(("slots", "poll"), [(0, 0.1), (1, 0)])
async def test_impossible_numbers_are_refused(slots: int, poll: float, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'engine.db'}"
    with pytest.raises(UsageError):
        async with Engine.open(
            url, worker="k", slots=slots, run=HeldBodies(), is_live=lambda _: True, poll_seconds=poll
        ):
            pass


async def test_an_unreachable_database_is_a_typed_error_without_the_password(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InfrastructureError) as failed:
        async with held_bodies("postgresql://ada:hunter2@127.0.0.1:1/nowhere"):
            pass
    assert failed.value.code == "engine_database"
    assert "hunter2" not in str(failed.value)
    with pytest.raises(InfrastructureError):
        async with held_bodies(f"sqlite:///{tmp_path / 'missing' / 'engine.db'}"):
            pass
    assert capfd.readouterr() == ("", "")
    assert {thread.name for thread in threading.enumerate() if "dbos" in thread.name} == set()
    async with held_bodies(f"sqlite:///{tmp_path / 'engine.db'}"):
        pass


async def test_two_processes_run_each_turn_once(url: str, tmp_path: Path) -> None:
    async with worker(url, tmp_path) as one, worker(url, tmp_path) as two, held_bodies(url) as (engine, bodies):
        bodies.go.set()
        names = [f"m-{number}" for number in range(40)]
        await asyncio.gather(*(engine.trigger(name, 1) for name in names))
        await until_idle(engine)
        said = [line for other in (one, two) for line in (await other.end()).splitlines()]
    ran = [line.removeprefix("end ") for line in said if line.startswith("end ")] + bodies.order
    assert sorted(ran) == sorted(names)


async def test_a_killed_worker_leaves_its_turn_to_the_others(url: str, tmp_path: Path) -> None:
    async with worker(url, tmp_path) as victim, worker(url, tmp_path) as heir:
        assert await victim.ask("rescue") == "rescued"
        assert await victim.ask("trigger hang-1") == "triggered hang-1"
        holder, other = (victim, heir) if await _says(victim, heir) is victim else (heir, victim)
        assert await other.ask("rescue") == "rescued", "its holder lives"
        await holder.kill()
        assert await other.ask("rescue") == "rescued hang-1"
        assert await other.line() == "start hang-1"


async def _says(*workers: object) -> object:
    lines = {asyncio.ensure_future(each.line()): each for each in workers}
    done, waiting = await asyncio.wait(lines, return_when=asyncio.FIRST_COMPLETED, timeout=WAIT)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return lines[done.pop()]


async def test_a_turn_of_a_dead_worker_does_not_count_as_waiting(url: str, tmp_path: Path) -> None:
    async with worker(url, tmp_path) as victim:
        await victim.ask("trigger hang-1")
        assert await victim.line() == "start hang-1"
        await victim.kill()
    bodies = HeldBodies()
    async with opened(url, bodies, live=False) as engine:
        assert await engine.waiting() == frozenset()
        assert await engine.rescue() == ("hang-1",)
        assert await engine.waiting() == {"hang-1"}
        bodies.go.set()


async def test_dbos_environment_variables_are_ignored_and_the_output_is_empty(url: str, tmp_path: Path) -> None:
    odd = {
        "DBOS__CLOUD": "true",
        "DBOS__APPVERSION": "other",
        "DBOS__VMID": "other",
        "DBOS__CONDUCTOR_KEY": "key",
        "DBOS__CONDUCTOR_URL": "wss://127.0.0.1:1",
        "DBOS__CONDUCTOR_APP_NAME": "other",
        "DBOS_SYSTEM_DATABASE_URL": "sqlite:////nowhere/x",
        "DBOS_APP_NAME": "other",
    }
    async with worker(url, tmp_path, environment=odd) as only:
        await only.ask("trigger bad-1 good-1")
        assert sorted([await only.line() for _ in range(3)]) == ["end good-1", "start bad-1", "start good-1"]
        assert await only.end() == ""
    found = rows(url)
    assert {row.executor_id for row in found} == {only.id}
    assert {row.application_name for row in found} == {"chargehand"}
    assert [row.status for row in found] == ["ERROR", "SUCCESS"]


def test_naming_the_package_imports_neither_the_engine_nor_a_driver() -> None:
    script = "import sys, chargehand.durable; print({'dbos', 'psycopg', 'sqlalchemy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.fixture
def own_postgres() -> AsyncIterator[Postgres]:
    with cluster(quick=False) as server:
        yield server


@pytest.mark.parametrize("how", ["restart", "kill"])
async def test_the_engine_outlives_its_database(own_postgres: Postgres, how: str) -> None:
    url = own_postgres.database()
    done: set[str] = set()

    async def run(mission: str) -> None:
        done.add(mission)

    async with opened(url, run, slots=2) as engine:
        for turn in range(2):
            names = {f"m-{turn}-{number}" for number in range(6)}
            for name in names:
                assert await engine.trigger(name, 1)
            await asyncio.to_thread(own_postgres.kill if how == "kill" else own_postgres.stop)
            with pytest.raises(InfrastructureError):
                await engine.trigger("away", turn)
            await asyncio.to_thread(own_postgres.start)
            async with asyncio.timeout(WAIT):
                while not names <= done or await engine.waiting():
                    await engine.rescue()
                    await asyncio.sleep(0.1)
    assert {row.status for row in rows(url)} == {"SUCCESS"}


async def test_an_engine_closes_while_its_database_is_away(own_postgres: Postgres) -> None:
    bodies = HeldBodies()
    async with opened(own_postgres.database(), bodies) as engine:
        await engine.trigger("m-1", 1)
        await bodies.next()
        await asyncio.to_thread(own_postgres.stop)
        bodies.go.set()
        start = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - start < 60
