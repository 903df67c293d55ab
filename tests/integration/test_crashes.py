"""P2, P3, P5, P7, P8 under `kill -9`: however often a mission is killed, it ends as if undisturbed.

The suite kills at a fixed sample of all points; `scripts/soak` kills at every point, and at random moments:
`CHARGEHAND_SOAK_SEED` and `CHARGEHAND_SOAK_KILLS` set which and how many.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import git, repository_state
from tests.crash_kit import (
    SCENES,
    CrashKit,
    Outcome,
    Scene,
    descendants,
    kill_some,
    nothing_survives,
    sample,
    survivors,
    undisturbed_run,
    wait_until,
)

__all__ = ["descendants", "survivors", "wait_until"]

pytestmark = pytest.mark.needs_bwrap
soak = [pytest.mark.soak, pytest.mark.timeout(4 * 3600)]

_SIDE_BY_SIDE = 6
_MOST_KILLS = 4
"""One less than what makes a mission that comes no step further be given up."""


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[CrashKit]:
    with nothing_survives():
        yield CrashKit(tmp_path)


class TestEveryPoint:
    """Kills before or after a write to the log, at a claim, or at any named fault point."""

    @pytest.mark.parametrize(
        ("name", "points"),
        [("second try", 4), ("applied", 2), *(pytest.param(name, 10_000, marks=soak) for name in SCENES)],
    )
    def test_of_a_command(self, tmp_path: Path, name: str, points: int) -> None:
        """One worker takes over the missions of several dead commands."""
        scene = SCENES[name]
        with nothing_survives():
            expected, passed, like = undisturbed_run(tmp_path / "like", scene, by="command")
        chosen = sample(passed, points)
        for first in range(0, len(chosen), _SIDE_BY_SIDE):
            with nothing_survives():
                kit = CrashKit(tmp_path / f"crashes-{first}", like=like)
                sites = [kit.site(scene) for _ in chosen[first : first + _SIDE_BY_SIDE]]
                for site, point in zip(sites, chosen[first:], strict=False):
                    kit.die_at(point, site)
                kit.go_on()
                for site in sites:
                    kit.examine(site, expected)
                kit.at_rest()

    @pytest.mark.parametrize(
        ("name", "points"),
        [("second try", 2), *(pytest.param(name, 10_000, marks=soak) for name in SCENES)],
    )
    def test_of_a_worker(self, tmp_path: Path, name: str, points: int) -> None:
        scene = SCENES[name]
        with nothing_survives():
            expected, passed, like = undisturbed_run(tmp_path / "like", scene, by="worker")
        for number, point in enumerate(sample(passed, points)):
            with nothing_survives():
                kit = CrashKit(tmp_path / f"crashes-{number}", like=like)
                site = kit.site(scene)
                kit.worker_dies_at(point, site)
                kit.go_on()
                kit.examine(site, expected)
                kit.at_rest()

    def test_the_sample_is_spread_over_the_run(self) -> None:
        passed = [f"before {number}#1" for number in range(86)]
        assert sample(passed, 100) == passed
        assert len(sample(passed, 6)) == 6
        assert sample(passed, 6)[0] == passed[0]


class TestAnyMoment:
    """Repeated kills at random moments, alone or with launcher, bubblewrap and exec server."""

    @pytest.mark.parametrize("soaked", [False, pytest.param(True, marks=soak)])
    def test_ends_as_if_undisturbed(self, tmp_path: Path, soaked: bool) -> None:
        seed = int(os.environ.get("CHARGEHAND_SOAK_SEED", time.time_ns() if soaked else 1))
        kills = int(os.environ.get("CHARGEHAND_SOAK_KILLS", "500")) if soaked else 1
        print(f"CHARGEHAND_SOAK_SEED={seed}")
        chance = random.Random(seed)
        known: dict[str, tuple[Outcome, float, CrashKit]] = {}
        done = life = 0
        while done < kills:
            life += 1
            scene = SCENES[
                chance.choice(["slow", "second try", "applied", "partly", "refused"] if soaked else ["slow"])
            ]
            if scene.name not in known:
                known[scene.name] = self.known(tmp_path / f"like-{len(known)}", scene)
            expected, seconds, like = known[scene.name]
            with nothing_survives():
                kit = CrashKit(tmp_path / f"crashes-{life}", like=like)
                done += self.one_life(kit, scene, expected, chance, seconds)

    @staticmethod
    def known(place: Path, scene: Scene) -> tuple[Outcome, float, CrashKit]:
        begun = time.monotonic()
        with nothing_survives():
            expected, _, like = undisturbed_run(place, scene, by="command")
        return expected, time.monotonic() - begun, like

    @staticmethod
    def one_life(kit: CrashKit, scene: Scene, expected: Outcome, chance: random.Random, seconds: float) -> int:
        """Kill one mission up to four times, let it end, and examine it; return the number of kills."""
        site = kit.site(scene)
        by_command = chance.random() < 0.5
        if not by_command:
            kit.detach(site)
        fates = []
        for number in range(chance.randint(1, _MOST_KILLS)):
            process = kit.run(site) if by_command and number == 0 else kit.worker()
            try:
                process.wait(chance.uniform(0.1, 1.2) * seconds)
            except subprocess.TimeoutExpired:
                spared = chance.random() < 0.4
                fate = kill_some(process.pid, chance, spared=spared)
                if spared:
                    # It continues by itself, with another sandbox and another launcher.
                    assert process.wait(120) in (0, 1), kit.output()
                    fates += [fate] if fate else []
                    continue
                if process.wait(60) == 0:
                    continue  # it ended just before the kill
                assert process.returncode == -signal.SIGKILL
                fates.append(fate)
                if scene.name != "applied":  # git may be applying it at this moment
                    kit.undisturbed(site)
        print(scene.name, "by command" if by_command else "by worker", fates)
        kit.go_on()
        kit.examine(site, expected)
        kit.at_rest()
        return len(fates)


def runs(pid: int, *words: bytes) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == b"".join(word + b"\0" for word in words)
    except OSError:  # it ended
        return False


def test_a_killed_mission_leaves_no_process_and_is_shown_as_paused(kit: CrashKit) -> None:
    hung = "setsid sh -c 'while :; do sleep 1; done' >/dev/null 2>&1 & sleep 300"
    site = kit.site(Scene(name="hung", script=hung))
    process = kit.run(site)
    wait_until(lambda: [state for state in kit.missions(site) if state.attempts])
    assert kit.missions(site)[0].status == "running"
    wait_until(lambda: any(runs(pid, b"sleep", b"300") for pid in descendants(process.pid)))
    started = descendants(process.pid)
    process.kill()
    process.wait()
    wait_until(lambda: not survivors(started))
    (state,) = kit.missions(site)
    assert (state.status, state.reasons[0].code) == ("paused", "worker_lost")
    assert state.attempts[0].status == "lost"
    assert repository_state(site.repository) == site.before


@pytest.mark.parametrize("point", ["rollback_prepared#1", "rolled_back#1"])
def test_a_roll_back_that_died_can_be_done_again(kit: CrashKit, point: str) -> None:
    site = kit.site(SCENES["slow"])
    assert kit.run(site).wait() == 0, kit.output()
    mission, branch = kit.mission(site), "chargehand/mend-it"
    back = ("mission", "rollback", mission)
    assert kit.start(*back, cwd=site.repository, plan=point).wait() == -signal.SIGKILL, kit.output()
    assert git(site.repository, "show", f"{branch}:f.txt") != "aaa"
    assert kit.start(*back, cwd=site.repository).wait() == 0, kit.output()
    assert git(site.repository, "rev-parse", f"{branch}^{{tree}}") == git(
        site.repository, "rev-parse", "main^{tree}"
    )
    assert git(site.repository, "rev-list", "--count", f"main..{branch}") == "2"
    assert repository_state(site.repository) == site.before
    kit.at_rest()
