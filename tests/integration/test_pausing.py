"""A paused mission does nothing, resumes at the same point, and waits for its person even if its worker dies."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash_kit import Scene, Site, Yard, nothing_survives, wait_until

from chargehand.core.state import MissionState

pytestmark = pytest.mark.needs_bwrap

WRITER = (
    "import os, time\n"
    "number = 0\n"
    "while number < 4000:\n"  # some 4 s, longer on a busy machine
    "    open('ignored', 'a').write(f'{os.getpid()} {number}\\n')\n"
    "    os.makedirs('many', exist_ok=True)\n"
    "    open(f'many/{number % 2000}', 'w').write(str(number))\n"
    "    number += 1\n"
    "    time.sleep(0.0007)\n"
    "import shutil; shutil.rmtree('many')\n"
    "open('f.txt', 'w').write('bbb\\n')\n"
)
BUSY = Scene(name="busy", script=f'exec python3 -c "{WRITER}"')


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    with nothing_survives():
        yield Yard(tmp_path)


@pytest.fixture
def site(yard: Yard) -> Site:
    site = yard.site(BUSY)
    yard.detach(site)
    return site


def began(yard: Yard) -> subprocess.Popen[bytes]:
    """Start a worker and wait until its agent writes."""
    worker = yard.worker()
    wait_until(lambda: len(written(yard)) > 50)
    return worker


def written(yard: Yard) -> dict[str, tuple[int, int]]:
    """Return every file that the agent's workspace shows in its upper layer, with size and time stamp."""
    found = {}
    for root in yard.home.glob("projects/*/workspaces/w-*-attempt-1-*/generations/*/upper"):
        for place, _, files in os.walk(root):
            for name in files:
                info = os.lstat(os.path.join(place, name))
                found[os.path.join(place, name)] = (info.st_size, info.st_mtime_ns)
    return found


def order(yard: Yard, verb: str, site: Site) -> float:
    """Give the mission an order as a person does, and check that it succeeds; return the seconds it took."""
    begun = time.monotonic()
    assert yard.start("mission", verb, yard.mission(site), cwd=site.repository).wait(60) == 0, yard.said()
    return time.monotonic() - begun


def pause(yard: Yard, site: Site) -> None:
    """Pause before the agent ends by itself: on a busy machine it may end before a program for it starts."""
    with yard.app() as app:
        assert app.order(yard.mission(site), "pause")


def state_of(yard: Yard, site: Site) -> MissionState:
    (state,) = yard.missions(site)
    return state


def test_nothing_is_written_between_pause_and_resume(yard: Yard, site: Site) -> None:
    worker = began(yard)
    with yard.app() as app:
        assert app.order(yard.mission(site), "pause")
    before = written(yard)
    assert state_of(yard, site).status == "paused"
    time.sleep(1.0)  # the time in which nothing may happen
    assert written(yard) == before
    order(yard, "resume", site)
    wait_until(lambda: written(yard) != before)
    assert len({line.split()[0] for line in ignored(yard).splitlines()}) == 1, "the same process goes on"
    assert worker.wait(60) == 0, yard.said()
    outcome = yard.examine(site)
    assert outcome is not None
    assert outcome.status == "promoted", yard.said()
    assert state_of(yard, site).claims == 1
    yard.at_rest()


def ignored(yard: Yard) -> str:
    (found,) = yard.home.glob("projects/*/workspaces/w-*-attempt-1-*/generations/*/upper/ignored")
    return found.read_text()


def test_a_paused_mission_stays_a_persons_when_its_worker_dies(yard: Yard, site: Site) -> None:
    worker = began(yard)
    pause(yard, site)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert [reason.code for reason in state_of(yard, site).reasons] == ["paused"]
    assert yard.worker().wait(60) == 0, yard.said()
    state = state_of(yard, site)
    assert [reason.code for reason in state.reasons] == ["paused"]
    assert [attempt.status for attempt in state.attempts] == ["lost"]
    order(yard, "resume", site)  # starts a worker, in the background
    wait_until(lambda: state_of(yard, site).status == "promoted", seconds=60)
    wait_until(lambda: not list(yard.home.glob("workers/*.lock")), seconds=60)
    yard.examine(site)
    yard.at_rest()


def test_a_paused_mission_can_be_cancelled(yard: Yard, site: Site) -> None:
    worker = began(yard)
    pause(yard, site)
    order(yard, "cancel", site)
    assert worker.wait(60) == 0, yard.said()
    state = state_of(yard, site)
    assert (state.status, [attempt.status for attempt in state.attempts]) == ("cancelled", ["cancelled"])
    yard.examine(site)
    yard.at_rest()
