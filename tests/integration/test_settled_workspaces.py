"""A mission that a person ends while no worker holds it leaves no workspace, and resumes from its checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import forked
from tests.conftest import git
from tests.crash_kit import MARK, SCENES, CrashKit, Scene, nothing_survives, sleepers, wait_until
from tests.integration.command_line import shell
from tests.integration.test_coordinator import task
from tests.integration.test_steering_tasks import Steered, asking, crew

from chargehand.app.composition import App
from chargehand.app.missions import cancel_mission, children_of, discard_mission, resume_mission
from chargehand.core.state import MissionState

__all__ = ["crew"]
pytestmark = pytest.mark.needs_bwrap
SLEEPS = Scene(name="sleeps", script=f"sed -i s/a/b/ f.txt; sleep {MARK}")


def workspaces(home: Path) -> list[Path]:
    return list(home.glob("projects/*/workspaces/*"))


def working(kit: CrashKit) -> App:
    """Open the store as a worker does, so that a person's command starts no worker behind the test's back."""
    return App.open(environ=kit.environ, cwd=kit.place, role="worker")


def test_a_mission_cancelled_without_a_worker_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    kit = CrashKit(tmp_path)
    site = kit.site(SCENES["second try"])
    with nothing_survives():
        kit.worker_dies_at("after checkpoint.made#1", site)
        mission = kit.mission(site)
        with working(kit) as app:
            kept = app.mission_reader.state(mission).checkpoints
            assert kept
            assert workspaces(kit.home)
            assert cancel_mission(app, mission).status == "cancelled"
            assert workspaces(kit.home) == []
            depot = app.projects.depot(app.projects.find(site.repository)).path
            assert all(git(depot, "rev-parse", f"{each.commit}^{{tree}}") == each.tree for each in kept)
            resume_mission(app, mission)
        kit.go_on()
        with kit.app() as app:
            state = app.mission_reader.state(mission)
    assert (state.status, state.checkpoints[: len(kept)]) == ("promoted", kept)


def test_a_cancel_is_completed_even_if_the_worker_dies_of_it(tmp_path: Path) -> None:
    kit = CrashKit(tmp_path)
    site = kit.site(SLEEPS)
    with nothing_survives():
        kit.detach(site)
        mission, worker = kit.mission(site), kit.worker(plan="after mission.cancel_asked#1")
        wait_until(sleepers)
        with working(kit) as app:
            state = cancel_mission(app, mission)
            assert worker.wait() == -signal.SIGKILL
            assert (state.status, bool(state.finished)) == ("cancelled", True)
            assert [each.status for each in state.attempts] == ["cancelled"]
            assert workspaces(kit.home) == []


@pytest.mark.parametrize("end", [cancel_mission, discard_mission])
def test_a_waiting_mission_leaves_no_workspace_once_ended(
    crew: Steered, end: Callable[[App, str], MissionState]
) -> None:
    mission = crew.record([asking("ways")])
    assert crew.work(mission).status == "waiting"
    assert workspaces(crew.place / "state"), "it would go on in the workspace that it has"
    with crew.opened() as app:
        assert end(app, mission).status in ("cancelled", "discarded")
    assert workspaces(crew.place / "state") == []


def test_a_cancelled_plan_leaves_no_workspace_of_any_of_its_tasks(crew: Steered) -> None:
    """Neither of the task that asks, nor of the task whose worker died, nor of the unstarted task."""
    mission = crew.record([asking("ways"), task("dies", shell(f"sleep {MARK}")), task("later", after=["dies"])])
    worker = forked.ForkedProcess(("worker",), cwd=crew.repo, environ=crew.environ, session=True)
    try:
        wait_until(sleepers)
        with crew.opened() as app:
            wait_until(lambda: app.mission_reader.state(crew.child(mission, "ways")).open_question is not None)
    finally:
        worker.kill()
        worker.wait()
    wait_until(lambda: not sleepers())
    assert len(workspaces(crew.place / "state")) == 2
    with crew.opened() as app:
        assert cancel_mission(app, mission).status == "cancelled"
        assert {each.status for each in children_of(app, mission)} == {"cancelled"}
    assert workspaces(crew.place / "state") == []
