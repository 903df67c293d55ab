"""DBOS behaviour that we rely on although DBOS does not promise it: an upgrade that changes it must fail here."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.engine_kit import WAIT, worker

from chargehand.core.ids import new_id
from chargehand.durable.backend.scheduler import RUNNING, WAITING, Scheduler, TurnRow
from chargehand.durable.engine import Engine


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'engine.db'}"
    return str(request.getfixturevalue("postgres_url"))


class Opened:
    """An engine, its database, and its workflow bodies, which run until the test releases them."""

    def __init__(self) -> None:
        self.engine: Engine
        self.started: asyncio.Queue[str] = asyncio.Queue()
        self.go = asyncio.Event()
        self.begun: list[tuple[str, asyncio.AbstractEventLoop]] = []

    async def run(self, mission: str) -> None:
        self.begun.append((mission, asyncio.get_running_loop()))
        self.started.put_nowait(mission)
        await self.go.wait()

    async def next(self) -> str:
        return await asyncio.wait_for(self.started.get(), WAIT)

    @property
    def scheduler(self) -> Scheduler:
        return self.engine._scheduler

    async def rows(self, *statuses: str) -> tuple[TurnRow, ...]:
        return await asyncio.to_thread(self.scheduler.rows, *statuses)

    async def requeue(self, *rows: TurnRow) -> tuple[TurnRow, ...]:
        return await asyncio.to_thread(self.scheduler.requeue, rows)


@asynccontextmanager
async def opened(url: str, *, slots: int = 1) -> AsyncIterator[Opened]:
    here = Opened()
    async with Engine.open(
        url, worker=new_id("worker"), slots=slots, run=here.run, is_live=lambda _: False
    ) as here.engine:
        try:
            yield here
        finally:
            here.go.set()


async def left_behind(url: str, home: Path, *missions: str) -> str:
    """Let a worker die in the middle of these missions; return its id."""
    async with worker(url, home, slots=len(missions)) as victim:
        await victim.ask(f"trigger {' '.join(missions)}")
        for _ in missions:
            assert (await victim.line()).startswith("start ")
        await victim.kill()
        return victim.id


async def test_a_second_rescue_does_not_requeue_a_turn_that_runs_again(url: str, tmp_path: Path) -> None:
    dead = await left_behind(url, tmp_path, "hang-1")
    async with opened(url) as here:
        (seen,) = await here.rows(RUNNING)
        assert seen == TurnRow("hang-1/1", RUNNING, dead)
        assert await here.requeue(seen) == (seen,)
        assert await here.next() == "hang-1"
        assert await here.requeue(seen) == ()
        assert [row.status for row in await here.rows(RUNNING, WAITING)] == [RUNNING]
    assert len(here.begun) == 1


async def test_rescuers_at_the_same_moment_give_back_once(url: str, tmp_path: Path) -> None:
    await left_behind(url, tmp_path, "hang-1", "hang-2", "hang-3")
    async with opened(url, slots=3) as here:
        seen = await here.rows(RUNNING)
        given = await asyncio.gather(*(here.requeue(*seen) for _ in range(6)))
        assert sorted(row.id for rows in given for row in rows) == sorted(row.id for row in seen)
        assert sorted([await here.next() for _ in seen]) == ["hang-1", "hang-2", "hang-3"]
    assert len(here.begun) == 3


async def test_rescued_turns_wait_for_a_slot_in_the_queue(url: str, tmp_path: Path) -> None:
    await left_behind(url, tmp_path, "hang-1", "hang-2", "hang-3")
    async with opened(url, slots=1) as here:
        assert len(await here.engine.rescue()) == 3
        first = await here.next()
        assert here.engine.active() == {first}
        assert len(await here.rows(WAITING)) == 2
        here.go.set()
        assert {first, await here.next(), await here.next()} == {"hang-1", "hang-2", "hang-3"}


async def test_a_turn_that_ended_meanwhile_is_not_requeued(url: str) -> None:
    async with opened(url) as here:
        await here.engine.trigger("m-1", 1)
        await here.next()
        (seen,) = await here.rows(RUNNING)
        here.go.set()
        async with asyncio.timeout(WAIT):
            while await here.rows(RUNNING):
                await asyncio.sleep(0.02)
        assert await here.requeue(seen) == ()
        assert await here.rows(RUNNING, WAITING) == ()
    assert len(here.begun) == 1


async def test_an_empty_queue_is_polled_without_dequeues_by_dbos(url: str) -> None:
    from dbos import _workflow_commands

    looked: list[str] = []
    taken: list[str] = []
    enough = threading.Event()
    async with opened(url) as here:
        system = here.scheduler._dbos._sys_db
        look, take = system.dequeue_scopes, system.start_queued_workflows

        def looks(queue: str) -> Any:
            looked.append(queue)
            if len(looked) == 3:
                enough.set()
            return look(queue)

        def takes(queue: Any, *words: Any, **named: Any) -> Any:
            taken.append(queue.name)
            return take(queue, *words, **named)

        system.dequeue_scopes, system.start_queued_workflows = looks, takes
        assert await asyncio.to_thread(enough.wait, WAIT)
        assert (set(looked), taken) == ({"missions"}, [])
        await here.engine.trigger("m-1", 1)
        await here.next()
        assert set(taken) == {"missions"}
    assert "_BACKGROUND_JOBS_INTERVAL_SEC" in _workflow_commands.background_jobs_thread.__code__.co_names


async def test_the_public_way_would_take_a_turn_from_a_living_worker(tmp_path: Path) -> None:
    """The reason for the private way: if this test fails, DBOS.resume_workflow may have become safe to use."""
    from dbos import DBOS

    async with opened(f"sqlite:///{tmp_path / 'engine.db'}", slots=2) as here:
        await here.engine.trigger("m-1", 1)
        await here.next()
        await asyncio.to_thread(DBOS.resume_workflow, "m-1/1", queue_name="missions")
        assert await here.next() == "m-1"
    assert len(here.begun) == 2


async def test_each_worker_has_separate_slots(url: str, tmp_path: Path) -> None:
    async with opened(url, slots=1) as here, worker(url, tmp_path, slots=3) as other:
        names = [f"hang-{number}" for number in range(4)]
        for name in names:
            await here.engine.trigger(name, 1)
        mine = await here.next()
        others = {(await other.line()).removeprefix("start ") for _ in range(3)}
        assert {mine} | others == set(names)
        await other.kill()


async def test_turns_run_in_the_loop_that_opened_the_engine(url: str) -> None:
    async with opened(url) as here:
        await asyncio.to_thread(lambda: None)
        await here.engine.trigger("m-1", 1)
        await here.next()
        assert here.begun == [("m-1", asyncio.get_running_loop())]
        name = await asyncio.to_thread(lambda: threading.current_thread().name)
        assert name.startswith("asyncio_")


async def test_the_engine_can_be_used_from_within_a_turn(url: str) -> None:
    done = asyncio.Event()
    told: list[object] = []

    async def run(mission: str) -> None:
        if mission == "parent":
            told.append(await opened_engine.trigger("child", 1))
            told.append(await opened_engine.waiting())
        else:
            done.set()

    async with Engine.open(url, worker="k", slots=2, run=run, is_live=lambda _: True) as opened_engine:
        await opened_engine.trigger("parent", 1)
        await asyncio.wait_for(done.wait(), WAIT)
    assert told[0] is True
    assert "parent" in told[1]


async def test_a_turn_is_never_given_up_however_often_its_workers_died(tmp_path: Path) -> None:
    """DBOS itself gives a workflow up after 100 recoveries."""
    path = tmp_path / "engine.db"
    await left_behind(f"sqlite:///{path}", tmp_path, "hang-1")
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE workflow_status SET recovery_attempts = 1000")
    async with opened(f"sqlite:///{path}") as here:
        assert await here.engine.rescue() == ("hang-1",)
        assert await here.next() == "hang-1"
