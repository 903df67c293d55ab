"""P3, P8: taking over a mission whose worker ended, hung, lost its disk or its last writes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.crash_kit import (
    MARK,
    SCENES,
    CrashKit,
    Scene,
    Site,
    nothing_survives,
    sleepers,
    undisturbed_run,
    wait_until,
    wake,
)

from chargehand.core.events import decode
from chargehand.core.mission_events import MissionClaimed, MissionWorked
from chargehand.core.state import MissionState
from chargehand.missions.control import GRACE_SECONDS
from chargehand.store.audit import verify

pytestmark = pytest.mark.needs_bwrap

HELD = Scene(name="held", script=f"touch begun; sleep {MARK}; rm begun; sed -i s/a/b/ f.txt")


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[CrashKit]:
    with nothing_survives():
        yield CrashKit(tmp_path)


def agent_began(kit: CrashKit) -> bool:
    return any(kit.home.glob("projects/*/workspaces/w-*-attempt-1-*/generations/*/upper/begun"))


def begun(kit: CrashKit, site: Site) -> subprocess.Popen[bytes]:
    """Start a worker on a mission and wait until its agent works."""
    kit.detach(site)
    worker = kit.worker()
    wait_until(lambda: agent_began(kit) and sleepers())
    return worker


def state_of(kit: CrashKit, site: Site) -> MissionState:
    (state,) = kit.missions(site)
    return state


def has_worked(kit: CrashKit, site: Site, seconds: float) -> bool:
    return state_of(kit, site).worked_seconds >= seconds


def promoted_once(kit: CrashKit, site: Site) -> MissionState:
    """Check that the mission is promoted with everything that this promises; return its state."""
    outcome = kit.examine(site)
    assert outcome is not None
    assert (outcome.status, outcome.reasons) == ("promoted", ()), kit.output()
    assert outcome.attempts == ((1, "succeeded", "green"),)
    kit.at_rest()
    return state_of(kit, site)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_terminated_worker_releases_its_mission(kit: CrashKit, number: int) -> None:
    site = kit.site(HELD)
    worker = begun(kit, site)
    worker.send_signal(number)
    assert worker.wait(60) == 0, kit.output()
    left = state_of(kit, site)
    assert (left.status, left.reasons, left.attempts[0].status) == ("planned", (), "lost")
    with kit.app() as app:
        row = app.store.log.get(left.id)
        assert (row.owner, row.runnable) == (None, True)
    second = kit.worker()
    wait_until(lambda: state_of(kit, site).status == "running" and agent_began(kit))
    wait_until(wake)
    assert second.wait(60) == 0, kit.output()
    assert promoted_once(kit, site).claims == 2


def test_a_time_limit_does_not_start_again_with_another_worker(kit: CrashKit) -> None:
    """An agent without output or steps: only the recorded time shows how long it has worked."""
    site = kit.site(Scene(name="silent", script=f"sleep {MARK}", words=("--time", "12s", "--attempts", "1")))
    kit.detach(site)
    for number, seconds in ((signal.SIGKILL, 2.0), (signal.SIGTERM, 4.0), (signal.SIGKILL, 6.0)):
        worker = kit.worker()
        wait_until(partial(has_worked, kit, site, seconds))
        worker.send_signal(number)
        worker.wait(60)
    assert kit.worker().wait(60) == 0, kit.output()
    state = state_of(kit, site)
    assert (state.status, state.claims, sleepers()) == ("exhausted", 4, [])
    noted: list[tuple[int, float]] = []
    with kit.app() as app:
        for line in app.store.log.read(state.id):
            match decode(line.type, line.payload or b""):
                case MissionClaimed(epoch=epoch):
                    claim = epoch
                case MissionWorked(seconds=used):
                    noted.append((claim, used))
    assert [used for _, used in noted] == sorted(used for _, used in noted)
    assert {claim for claim, _ in noted} == {1, 2, 3, 4}
    assert min(used for claim, used in noted if claim == 4) >= 6.0
    assert noted[-1][1] <= 12.0 + GRACE_SECONDS


def test_a_stopped_worker_keeps_its_mission(kit: CrashKit) -> None:
    site = kit.site(HELD)
    worker = begun(kit, site)
    worker.send_signal(signal.SIGSTOP)
    try:
        assert kit.worker().wait(60) == 0, kit.output()
        assert state_of(kit, site).claims == 1
        assert state_of(kit, site).status == "running"
    finally:
        worker.send_signal(signal.SIGCONT)
    assert wake()
    assert worker.wait(60) == 0, kit.output()
    assert promoted_once(kit, site).claims == 1


def test_a_mission_that_kills_its_workers_is_given_up(kit: CrashKit) -> None:
    site = kit.site(SCENES["second try"])
    kit.detach(site)
    deaths = 0
    while kit.worker(plan="environment#1").wait(60) == -signal.SIGKILL:
        deaths += 1
        assert deaths < 7
    state = state_of(kit, site)
    assert (state.status, [reason.code for reason in state.reasons]) == ("failed", ["worker_lost"]), kit.output()
    assert deaths in (5, 6)
    assert kit.examine(site) is not None
    kit.at_rest()


@pytest.mark.soak
def test_deaths_between_steps_that_are_done_do_not_count(kit: CrashKit) -> None:
    site = kit.site(SCENES["second try"])
    kit.detach(site)
    for point in (*["after mission.claimed#1"] * 3, "verdict#1", *["after mission.claimed#1"] * 4):
        assert kit.worker(plan=point).wait(60) == -signal.SIGKILL, kit.output()
    kit.go_on()
    assert state_of(kit, site).status == "promoted"
    assert kit.examine(site) is not None
    kit.at_rest()


TORN = ("after sandbox.opened#3", "after verdict.given+step.finished#2", "after checkpoint.made#2", "prepared#1")


@pytest.mark.parametrize("points", [TORN[:2], pytest.param((*TORN, "before release#1"), marks=pytest.mark.soak)])
def test_a_torn_last_write(tmp_path: Path, points: tuple[str, ...]) -> None:
    """A power cut may lose the writes since the last durable one, which costs only time."""
    chance = random.Random(7)
    scene = SCENES["second try"]
    with nothing_survives():
        expected, _, like = undisturbed_run(tmp_path / "like", scene, by="command")
        kit = CrashKit(tmp_path / "torn", like=like)
        for point in points:
            site = kit.site(scene)
            kit.die_at(point, site)
            kept = tear(kit, chance)
            with kit.app() as app:
                found = verify(app.store)
                assert found.ok, (point, kept, found)
            kit.go_on()
            kit.examine(site, expected)
        kit.at_rest()


def test_a_torn_last_write_of_a_refusal(kit: CrashKit) -> None:
    """The end of a refused mission is not a durable write: if it is lost, the mission ends again."""
    site = kit.site(SCENES["refused"])
    kit.worker_dies_at("before release#1", site)
    tear(kit, None)
    assert state_of(kit, site).status == "planned"
    kit.go_on()
    assert state_of(kit, site).status == "refused"
    kit.examine(site)
    kit.at_rest()


def tear(kit: CrashKit, chance: random.Random | None) -> int:
    """Cut the write-ahead log somewhere after the last durable write (right there without `chance`)."""
    wal = kit.home / "store.db-wal"
    durable, size = int((kit.home / "durable").read_text()), wal.stat().st_size
    kept = durable if chance is None else chance.randint(durable, size)
    os.truncate(wal, kept)
    return kept


STORY = """
import sys
from pathlib import Path
from test_takeover import disk_fills_up
disk_fills_up(Path(sys.argv[1]), int(sys.argv[2]))
"""


@pytest.mark.needs_root
@pytest.mark.parametrize("spare_kib", [60, *(pytest.param(spare, marks=pytest.mark.soak) for spare in (0, 300))])
def test_a_disk_that_is_full_while_a_worker_works(tmp_path: Path, spare_kib: int) -> None:
    """Runs in a separate mount namespace, in which the state directory is a small disk."""
    argv = ["unshare", "-m", sys.executable, "-c", STORY, str(tmp_path), str(spare_kib)]
    places = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def disk_fills_up(place: Path, spare_kib: int) -> None:
    """Let a worker run into a full disk, free it again, and check the mission's promises."""
    kit = CrashKit(place)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m,mode=700", "none", str(kit.home)], check=True)
    site = kit.site(SCENES["second try"])
    kit.detach(site)
    ballast = kit.home / "ballast"
    free = os.statvfs(kit.home)
    ballast.write_bytes(bytes(max(0, free.f_bavail * free.f_bsize - spare_kib * 1024)))
    worker = kit.worker()
    try:
        worker.wait(15)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
    kit.undisturbed(site)
    ballast.unlink()
    kit.go_on()
    state = state_of(kit, site)
    assert state.status == "promoted" or {reason.code for reason in state.reasons} <= NO_SPACE, kit.output()
    kit.examine(site)
    kit.at_rest()


NO_SPACE = {"no_space", "store_full"}
