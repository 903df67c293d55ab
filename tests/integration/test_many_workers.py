"""P2, P3, P8 with many workers: killed, stopped, late, their database restarted; each mission is done once."""

from __future__ import annotations

import asyncio
import itertools
import random
import shlex
import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.crash_kit import nothing_survives, wait_until
from tests.fleet_kit import IN_PEACE, NOT_BEGUN, Fleet, sandboxes, standing_still, until
from tests.postgres import Postgres, cluster
from workshop import CHECK, GOLD, REQUEST, Workshop

from chargehand.app.composition import App
from chargehand.core.clock import SystemClock
from chargehand.core.events import Event, Payload
from chargehand.core.state import MissionState
from chargehand.store.audit import verify

pytestmark = pytest.mark.needs_bwrap

# The first five cover all kinds.
MIXED = ("slow", "mend", "second try", "slow", "refused", "mend", "slow", "second try")


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """Return a fleet that has probed this machine, so that no other fleet is killed while it probes."""
    fleet = Fleet(tmp_path_factory.mktemp("probed"))
    fleet.order("mend")
    with fleet.working():
        assert fleet.join("--until-idle").wait(120) == 0, fleet.said()
    fleet.examine_all()
    return fleet


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with nothing_survives():
        yield tmp_path


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with cluster() as started:
        yield started


def test_a_cancelled_mission_whose_worker_died_of_it_stays_cancelled(place: Path, probed: Fleet) -> None:
    fleet = Fleet(place, like=probed)
    with fleet.working():
        (mission,) = fleet.order("held")
        worker = fleet.start("worker", "--until-idle", cwd=place, plan="after mission.cancel_asked#1")
        until(lambda: fleet.at_work(mission), fleet)
        with fleet.app() as app:
            app.order(mission, "cancel")
        assert worker.wait(60) == -signal.SIGKILL
        until(lambda: fleet.states()[mission].status == "cancelled", fleet)
        assert fleet.join("--until-idle").wait(60) == 0, fleet.said()
        state = fleet.states()[mission]
        assert (state.status, state.claims, len(state.attempts)) == ("cancelled", 2, 1)
        with fleet.app() as app:
            assert verify(app.store).ok


def test_two_workers_share_the_missions_of_a_file(place: Path, probed: Fleet) -> None:
    fleet = Fleet(place, like=probed)
    with fleet.working():
        fleet.join("--slots", "2")
        fleet.join("--slots", "2")
        fleet.order(*MIXED[:6])
        until(fleet.busy, fleet)
        fleet.busy()[0].send_signal(signal.SIGKILL)
        fleet.join("--slots", "2")
        fleet.wait()
    fleet.examine_all()
    assert max(state.claims for state in fleet.states().values()) > 1


def test_a_full_queue_with_one_slot_each(place: Path, probed: Fleet) -> None:
    fleet = Fleet(place, like=probed)
    with fleet.working():
        fleet.order(*MIXED[:5])
        workers = [fleet.join("--slots", "1"), fleet.join("--slots", "1")]
        fleet.wait()
    fleet.examine_all()
    assert [fleet.most_at_once(worker) for worker in workers] == [1, 1]
    assert {state.claims for state in fleet.states().values()} == {1}


def test_a_worker_that_was_given_up_does_no_harm(place: Path, probed: Fleet, server: Postgres) -> None:
    fleet = Fleet(place, like=probed, url=server.database(), lease=2.0)
    with fleet.working():
        zombie = fleet.join("--until-idle")
        (mission,) = fleet.order("held")
        until(lambda: fleet.at_work(mission), fleet)
        other = fleet.join()
        with standing_still(zombie, fleet):
            until(lambda: fleet.holder(mission) is other, fleet)
            until(lambda: fleet.at_work(mission) and sandboxes(other), fleet)
            assert sandboxes(zombie)  # the stopped worker's sandbox exists next to the other's
        until(lambda: not sandboxes(zombie), fleet)
        assert fleet.states()[mission].status == "running"
        assert fleet.holder(mission) is other
        fleet.wait()
        assert fleet.states()[mission].claims == 2
        assert zombie.wait(60) == 0, fleet.said()
    fleet.examine_all()


@pytest.mark.soak
def test_three_workers_and_a_database_that_is_restarted(place: Path, probed: Fleet) -> None:
    with cluster() as server:
        fleet = Fleet(place, like=probed, url=server.database(), lease=3.0)
        with fleet.working(
            ends=IN_PEACE | NOT_BEGUN
        ):  # a worker that starts while the database is away reports it and ends
            fleet.order(*["held"] * 6)
            for _ in range(3):
                fleet.join("--slots", "2")
            until(lambda: len({worker.pid for worker in fleet.busy()}) == 3, fleet)
            fleet.order(*MIXED)
            restart(server)
            fleet.busy()[0].send_signal(signal.SIGKILL)
            restart(server)
            newcomer = fleet.join("--slots", "2")
            until(lambda: newcomer.pid in alive(fleet), fleet)  # a worker that cannot start ends: another test
            stopped = next(worker for worker in fleet.living() if worker.pid in alive(fleet))
            with standing_still(stopped, fleet):
                fleet.order("mend", "slow")
                until(lambda: stopped.pid not in alive(fleet), fleet)
                restart(server)
            fleet.wait()
        fleet.examine_all()


class Wayward(SystemClock):
    """The machine's clock, with a wall time that can be shifted."""

    shift = timedelta()

    def now(self) -> datetime:
        return super().now() + self.shift


def test_a_clock_that_is_set_back_changes_nothing(tmp_path: Path) -> None:
    shop, clock, shifts = Workshop(tmp_path), Wayward(), itertools.cycle((-5, 3, -48, 30))

    def set_the_clock(event: Event, payload: Payload) -> None:
        clock.shift = timedelta(hours=next(shifts))

    async def run(app: App) -> MissionState:
        async with app.session(watch=set_the_clock) as session:
            request = replace(REQUEST, agent=f"command:sh -c {shlex.quote(GOLD)}", only_checks=(CHECK,))
            mission = session.missions.create(
                request, repository=str(shop.repository), base=session.base, config={}
            )
            return await session.missions.run(mission)

    app = App(environ=shop.environ, cwd=shop.repository, clock=clock)
    try:
        state = asyncio.run(run(app))
        lines = app.store.log.read(state.id)
        assert verify(app.store).ok
    finally:
        app.close()
    assert (state.status, state.reasons) == ("promoted", ())
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
    assert [line.time for line in lines] != sorted(line.time for line in lines)  # it really was set back
    assert all(0 <= step.seconds < REQUEST.seconds for step in state.steps.values())
    (attempt,) = state.attempts
    assert attempt.seconds is not None
    assert 0 <= attempt.seconds < REQUEST.seconds


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1])
def test_fifty_restarts_of_the_database(place: Path, probed: Fleet, seed: int) -> None:
    chance = random.Random(seed)
    with cluster() as server:
        fleet = Fleet(place, like=probed, url=server.database(), lease=3.0)
        with fleet.working(ends=IN_PEACE | NOT_BEGUN):
            for _ in range(3):
                fleet.join("--slots", "2")
            for _ in range(50):
                while len(fleet.living()) < 3:
                    fleet.join("--slots", "2")
                fleet.order(chance.choice(MIXED))
                wait_until(fleet.busy)
                chance.choice((kill_one, stop_for_a_while, nothing))(fleet, chance)
                restart(server)
            fleet.wait(seconds=600)
        fleet.examine_all()


def kill_one(fleet: Fleet, chance: random.Random) -> None:
    chance.choice(fleet.living()).kill()


def stop_for_a_while(fleet: Fleet, chance: random.Random) -> None:
    living = alive(fleet)
    worker = chance.choice(fleet.living())
    with standing_still(worker, fleet):
        if worker.pid in living and chance.random() < 0.5:
            wait_until(lambda: worker.pid not in alive(fleet))


def nothing(fleet: Fleet, chance: random.Random) -> None:
    pass


def restart(server: Postgres) -> None:
    """Kill the server at once, and start it again."""
    server.kill()
    server.start()


def alive(fleet: Fleet) -> set[int]:
    """Return the processes of the workers that count as alive."""
    with fleet.app() as app:
        return {member.pid for member in app.workers.members() if member.role == "worker"}
