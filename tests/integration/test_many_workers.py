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
from tests.postgres import Postgres, cluster
from tests.workers_kit import IN_PEACE, NOT_BEGUN, WorkersKit, sandboxes, standing_still, until

from chargehand.app.composition import App
from chargehand.core.clock import SystemClock
from chargehand.core.events import Event, Payload
from chargehand.core.state import MissionState
from chargehand.store.audit import verify
from mission_kit import CHECK, GOLD, REQUEST, MissionKit

pytestmark = pytest.mark.needs_bwrap

# The first five cover all kinds.
MIXED = ("slow", "mend", "second try", "slow", "refused", "mend", "slow", "second try")


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> WorkersKit:
    """Return workers that have probed this machine, so that no others are killed while it probes."""
    kit = WorkersKit(tmp_path_factory.mktemp("probed"))
    kit.order("mend")
    with kit.working():
        assert kit.join("--until-idle").wait(120) == 0, kit.output()
    kit.examine_all()
    return kit


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with nothing_survives():
        yield tmp_path


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with cluster() as started:
        yield started


def test_a_mission_whose_worker_died_while_cancelling_is_cancelled(place: Path, probed: WorkersKit) -> None:
    kit = WorkersKit(place, like=probed)
    with kit.working():
        (mission,) = kit.order("held")
        worker = kit.start("worker", "--until-idle", cwd=place, plan="after mission.cancel_asked#1")
        until(lambda: kit.at_work(mission), kit)
        with kit.app() as app:
            app.order(mission, "cancel")
        assert worker.wait(60) == -signal.SIGKILL
        until(lambda: kit.states()[mission].status == "cancelled", kit)
        assert kit.join("--until-idle").wait(60) == 0, kit.output()
        state = kit.states()[mission]
        assert (state.status, state.claims, len(state.attempts)) == ("cancelled", 2, 1)
        with kit.app() as app:
            assert verify(app.store).ok


def test_two_workers_share_the_missions_of_a_file(place: Path, probed: WorkersKit) -> None:
    kit = WorkersKit(place, like=probed)
    with kit.working():
        kit.join("--slots", "2")
        kit.join("--slots", "2")
        kit.order(*MIXED[:6])
        until(kit.busy, kit)
        kit.busy()[0].send_signal(signal.SIGKILL)
        kit.join("--slots", "2")
        kit.wait()
    kit.examine_all()
    assert max(state.claims for state in kit.states().values()) > 1


def test_workers_with_a_single_slot_run_one_mission_at_a_time(place: Path, probed: WorkersKit) -> None:
    kit = WorkersKit(place, like=probed)
    with kit.working():
        kit.order(*MIXED[:5])
        workers = [kit.join("--slots", "1"), kit.join("--slots", "1")]
        kit.wait()
    kit.examine_all()
    assert [kit.most_at_once(worker) for worker in workers] == [1, 1]
    assert {state.claims for state in kit.states().values()} == {1}


def test_a_worker_that_was_given_up_does_no_harm(place: Path, probed: WorkersKit, server: Postgres) -> None:
    kit = WorkersKit(place, like=probed, url=server.database(), lease=2.0)
    with kit.working():
        zombie = kit.join("--until-idle")
        (mission,) = kit.order("held")
        until(lambda: kit.at_work(mission), kit)
        other = kit.join()
        with standing_still(zombie, kit):
            until(lambda: kit.holder(mission) is other, kit)
            until(lambda: kit.at_work(mission) and sandboxes(other), kit)
            assert sandboxes(zombie)  # the stopped worker's sandbox exists next to the other's
        until(lambda: not sandboxes(zombie), kit)
        assert kit.states()[mission].status == "running"
        assert kit.holder(mission) is other
        kit.wait()
        assert kit.states()[mission].claims == 2
        assert zombie.wait(60) == 0, kit.output()
    kit.examine_all()


@pytest.mark.soak
def test_three_workers_and_a_database_that_is_restarted(place: Path, probed: WorkersKit) -> None:
    with cluster() as server:
        kit = WorkersKit(place, like=probed, url=server.database(), lease=3.0)
        with kit.working(
            ends=IN_PEACE | NOT_BEGUN
        ):  # a worker that starts while the database is away reports it and ends
            kit.order(*["held"] * 6)
            for _ in range(3):
                kit.join("--slots", "2")
            until(lambda: len({worker.pid for worker in kit.busy()}) == 3, kit)
            kit.order(*MIXED)
            restart(server)
            kit.busy()[0].send_signal(signal.SIGKILL)
            restart(server)
            newcomer = kit.join("--slots", "2")
            until(lambda: newcomer.pid in alive(kit), kit)  # a worker that cannot start ends: another test
            stopped = next(worker for worker in kit.living() if worker.pid in alive(kit))
            with standing_still(stopped, kit):
                kit.order("mend", "slow")
                until(lambda: stopped.pid not in alive(kit), kit)
                restart(server)
            kit.wait()
        kit.examine_all()


class Wayward(SystemClock):
    """The machine's clock, with a wall time that can be shifted."""

    shift = timedelta()

    def now(self) -> datetime:
        return super().now() + self.shift


def test_a_clock_that_is_set_back_does_not_change_the_outcome(tmp_path: Path) -> None:
    kit, clock, shifts = MissionKit(tmp_path), Wayward(), itertools.cycle((-5, 3, -48, 30))

    def set_the_clock(event: Event, payload: Payload) -> None:
        clock.shift = timedelta(hours=next(shifts))

    async def run(app: App) -> MissionState:
        async with app.session(watch=set_the_clock) as session:
            request = replace(REQUEST, agent=f"command:sh -c {shlex.quote(GOLD)}", only_checks=(CHECK,))
            mission = session.missions.create(
                request, repository=str(kit.repository), base=session.base, config={}
            )
            return await session.missions.run(mission)

    app = App(environ=kit.environ, cwd=kit.repository, clock=clock)
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
def test_fifty_restarts_of_the_database(place: Path, probed: WorkersKit, seed: int) -> None:
    chance = random.Random(seed)
    with cluster() as server:
        kit = WorkersKit(place, like=probed, url=server.database(), lease=3.0)
        with kit.working(ends=IN_PEACE | NOT_BEGUN):
            for _ in range(3):
                kit.join("--slots", "2")
            for _ in range(50):
                while len(kit.living()) < 3:
                    kit.join("--slots", "2")
                kit.order(chance.choice(MIXED))
                wait_until(kit.busy)
                chance.choice((kill_one, stop_for_a_while, nothing))(kit, chance)
                restart(server)
            kit.wait(seconds=600)
        kit.examine_all()


def kill_one(kit: WorkersKit, chance: random.Random) -> None:
    chance.choice(kit.living()).kill()


def stop_for_a_while(kit: WorkersKit, chance: random.Random) -> None:
    living = alive(kit)
    worker = chance.choice(kit.living())
    with standing_still(worker, kit):
        if worker.pid in living and chance.random() < 0.5:
            wait_until(lambda: worker.pid not in alive(kit))


def nothing(kit: WorkersKit, chance: random.Random) -> None:
    pass


def restart(server: Postgres) -> None:
    """Kill the server at once, and start it again."""
    server.kill()
    server.start()


def alive(kit: WorkersKit) -> set[int]:
    """Return the processes of the workers that count as alive."""
    with kit.app() as app:
        return {member.pid for member in app.workers.members() if member.role == "worker"}
