"""A paused mission does nothing, resumes at the same point, and waits for its person even if its worker dies."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash_kit import CrashKit, Scene, Site, nothing_survives, wait_until

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
def kit(tmp_path: Path) -> Iterator[CrashKit]:
    with nothing_survives():
        yield CrashKit(tmp_path)


@pytest.fixture
def site(kit: CrashKit) -> Site:
    site = kit.site(BUSY)
    kit.detach(site)
    return site


def began(kit: CrashKit) -> subprocess.Popen[bytes]:
    """Start a worker and wait until its agent writes."""
    worker = kit.worker()
    wait_until(lambda: len(written(kit)) > 50)
    return worker


def written(kit: CrashKit) -> dict[str, tuple[int, int]]:
    """Return every file that the agent's workspace shows in its upper layer, with size and time stamp."""
    found = {}
    for root in kit.home.glob("projects/*/workspaces/w-*-attempt-1-*/generations/*/upper"):
        for place, _, files in os.walk(root):
            for name in files:
                info = os.lstat(os.path.join(place, name))
                found[os.path.join(place, name)] = (info.st_size, info.st_mtime_ns)
    return found


def order(kit: CrashKit, verb: str, site: Site) -> float:
    """Give the mission an order as a person does, and check that it succeeds; return the seconds it took."""
    begun = time.monotonic()
    assert kit.start("mission", verb, kit.mission(site), cwd=site.repository).wait(60) == 0, kit.output()
    return time.monotonic() - begun


def pause(kit: CrashKit, site: Site) -> None:
    """Pause before the agent ends by itself: on a busy machine it may end before a program for it starts."""
    with kit.app() as app:
        assert app.order(kit.mission(site), "pause")


def state_of(kit: CrashKit, site: Site) -> MissionState:
    (state,) = kit.missions(site)
    return state


def test_no_file_is_written_between_pause_and_resume(kit: CrashKit, site: Site) -> None:
    worker = began(kit)
    with kit.app() as app:
        assert app.order(kit.mission(site), "pause")
    before = written(kit)
    assert state_of(kit, site).status == "paused"
    time.sleep(1.0)  # the time in which nothing may happen
    assert written(kit) == before
    order(kit, "resume", site)
    wait_until(lambda: written(kit) != before)
    assert len({line.split()[0] for line in ignored(kit).splitlines()}) == 1, "the same process goes on"
    assert worker.wait(60) == 0, kit.output()
    outcome = kit.examine(site)
    assert outcome is not None
    assert outcome.status == "promoted", kit.output()
    assert state_of(kit, site).claims == 1
    kit.at_rest()


def ignored(kit: CrashKit) -> str:
    (found,) = kit.home.glob("projects/*/workspaces/w-*-attempt-1-*/generations/*/upper/ignored")
    return found.read_text()


def test_a_paused_mission_stays_paused_if_its_worker_dies(kit: CrashKit, site: Site) -> None:
    worker = began(kit)
    pause(kit, site)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert [reason.code for reason in state_of(kit, site).reasons] == ["paused"]
    assert kit.worker().wait(60) == 0, kit.output()
    state = state_of(kit, site)
    assert [reason.code for reason in state.reasons] == ["paused"]
    assert [attempt.status for attempt in state.attempts] == ["lost"]
    order(kit, "resume", site)  # starts a worker, in the background
    wait_until(lambda: state_of(kit, site).status == "promoted", seconds=60)
    wait_until(lambda: not list(kit.home.glob("workers/*.lock")), seconds=60)
    kit.examine(site)
    kit.at_rest()


def test_a_paused_mission_can_be_cancelled(kit: CrashKit, site: Site) -> None:
    worker = began(kit)
    pause(kit, site)
    order(kit, "cancel", site)
    assert worker.wait(60) == 0, kit.output()
    state = state_of(kit, site)
    assert (state.status, [attempt.status for attempt in state.attempts]) == ("cancelled", ["cancelled"])
    kit.examine(site)
    kit.at_rest()
