"""A worker dies after moving a branch, before recording or signing the move; the next operation does that."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from tests.conftest import git
from tests.crash_kit import SCENES, Yard, wait_until
from tests.integration.test_coordinator_crashes import PlanYard, _sh, _task

from chargehand.app.checkpoints import roll_back_task
from chargehand.app.composition import App
from chargehand.app.missions import cancel_mission, children_of, promote_mission, roll_back_mission
from chargehand.core.errors import RefusedError
from chargehand.core.events import read_payload
from chargehand.core.plan_events import TaskMerged
from chargehand.core.plans import Plan
from chargehand.missions.provenance import verify_mission

pytestmark = pytest.mark.needs_bwrap
# A change of check surface waits for a person.
TASKS = [_task("waits", _sh("touch conftest.py; echo x > sub/waits.txt")), _task("merged")]
# The worker dies after the swap, after its log line, or after the note on the commit. Swap 1 is the task's own.
POINTS = ["swapped#2", "promoted#2", "attested#1"]


def working(yard: Yard) -> App:
    """Open the store as a worker does, so that a person's command does not start a worker unseen."""
    return App.open(environ=yard.environ, cwd=yard.place, role="worker")


def verified(yard: Yard, mission: str, repository: Path) -> list[str]:
    """Assert that each commit of a branch has a valid signed statement; return the commits, oldest first."""
    with yard.app() as app:
        found = verify_mission(app.store, app.depot(app.project(repository)), mission)
    assert [each.problems for each in found] == [()] * len(found)
    return [each.commit for each in found]


@pytest.mark.parametrize("point", POINTS)
def test_what_a_dead_worker_merged_is_told_and_signed_before_another_task_is_merged(
    tmp_path: Path, point: str
) -> None:
    yard = PlanYard(tmp_path, TASKS)
    yard.environ["CHARGEHAND_ENGINE_ATTEMPTS_AT_ONCE"] = "1"  # the second task begins once the first one waits
    assert yard.worker(plan=point).wait() == -signal.SIGKILL, yard.said()
    with working(yard) as app:
        children = {each.task: each for each in children_of(app, yard.coordinator)}
        assert {name: each.status for name, each in children.items()} == {"waits": "waiting", "merged": "promoted"}
        # Its result precedes the other one in the plan, and so in the queue.
        asyncio.run(promote_mission(app, children["waits"].id, reason="read"))
    yard.go_on()
    commits = verified(yard, yard.coordinator, yard.repository)
    with yard.app() as app:
        assert app.mission_reader.state(yard.coordinator).status == "promoted"
        told = [read_payload(line) for line in app.store.log.read(yard.coordinator, types=(TaskMerged.type,))]
        assert [(each.task, each.commit) for each in told if isinstance(each, TaskMerged)] == [
            ("merged", commits[0]),
            ("waits", commits[1]),
        ]
        # Each merge is found on the branch and can be rolled back alone.
        state = asyncio.run(roll_back_task(app, yard.coordinator, "merged", with_dependents=False))
    assert state.tree is not None
    names = git(yard.repository, "ls-tree", "-r", "--name-only", state.tree).split()
    assert ("sub/merged.txt" in names, "sub/waits.txt" in names) == (False, True)
    assert len(verified(yard, yard.coordinator, yard.repository)) == 3


def test_what_a_dead_worker_merged_is_told_where_a_person_ends_the_plan_or_drops_the_task(tmp_path: Path) -> None:
    yard = PlanYard(tmp_path, TASKS)
    yard.environ["CHARGEHAND_ENGINE_ATTEMPTS_AT_ONCE"] = "1"  # the second task begins once the first one waits
    assert yard.worker(plan="promoted#2").wait() == -signal.SIGKILL, yard.said()
    with working(yard) as app:
        # The sandbox launcher of the dead worker holds its lock until it has ended every process.
        row = app.store.log.get(yard.coordinator)
        wait_until(lambda: not app.acting_reader.live(row))
        with pytest.raises(RefusedError, match="'merged' is being started or merged") as raised:
            app.steering.change_plan(yard.coordinator, Plan(tasks=()))
        assert raised.value.code == "task_busy"
        cancel_mission(app, yard.coordinator)
        told = [read_payload(line) for line in app.store.log.read(yard.coordinator, types=(TaskMerged.type,))]
        assert [each.task for each in told if isinstance(each, TaskMerged)] == ["merged"]


@pytest.mark.parametrize("point", ["swapped#1", "promoted#1", "attested#1"])
def test_what_a_dead_worker_promoted_is_signed_before_the_branch_moves_on(tmp_path: Path, point: str) -> None:
    """The result is applied to a branch that a person moved meanwhile, and then rolled back."""
    yard = Yard(tmp_path)
    site = yard.site(SCENES["applied"])
    yard.worker_dies_at(point, site)
    mission = yard.mission(site)
    (site.repository / "other.txt").write_text("b\n")
    git(site.repository, "add", "other.txt")
    git(site.repository, "commit", "-qm", "somebody else's")
    yard.go_on()
    first, second = verified(yard, mission, site.repository)
    assert git(site.repository, "rev-parse", "main") == second != first
    with working(yard) as app:
        asyncio.run(roll_back_mission(app, mission))
    assert verified(yard, mission, site.repository)[:2] == [first, second]


def test_what_a_dead_worker_promoted_is_signed_before_it_is_rolled_back(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    site = yard.site(SCENES["second try"])
    yard.worker_dies_at("promoted#1", site)
    mission = yard.mission(site)
    with working(yard) as app:
        app.steering.cancel(mission)
        asyncio.run(roll_back_mission(app, mission))
    assert len(verified(yard, mission, site.repository)) == 2
