"""A worker dies after moving a branch, before recording or signing the move; the next operation does that."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from tests.conftest import git
from tests.crash_kit import SCENES, CrashKit, wait_until
from tests.integration.test_coordinator_crashes import PlanKit, _sh, _task

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


def working(kit: CrashKit) -> App:
    """Open the store as a worker does, so that a person's command does not start a worker unseen."""
    return App.open(environ=kit.environ, cwd=kit.place, role="worker")


def verified(kit: CrashKit, mission: str, repository: Path) -> list[str]:
    """Assert that each commit of a branch has a valid signed statement; return the commits, oldest first."""
    with kit.app() as app:
        found = verify_mission(app.store, app.projects.depot(app.projects.find(repository)), mission)
    assert [each.problems for each in found] == [()] * len(found)
    return [each.commit for each in found]


@pytest.mark.parametrize("point", POINTS)
def test_the_merge_of_a_dead_worker_is_recorded_before_the_next_merge(tmp_path: Path, point: str) -> None:
    kit = PlanKit(tmp_path, TASKS)
    kit.environ["CHARGEHAND_ENGINE_ATTEMPTS_AT_ONCE"] = "1"  # the second task begins once the first one waits
    assert kit.worker(plan=point).wait() == -signal.SIGKILL, kit.output()
    with working(kit) as app:
        children = {each.task: each for each in children_of(app, kit.coordinator)}
        assert {name: each.status for name, each in children.items()} == {"waits": "waiting", "merged": "promoted"}
        # Its result precedes the other one in the plan, and so in the queue.
        asyncio.run(promote_mission(app, children["waits"].id, reason="read"))
    kit.go_on()
    commits = verified(kit, kit.coordinator, kit.repository)
    with kit.app() as app:
        assert app.mission_reader.state(kit.coordinator).status == "promoted"
        told = [read_payload(line) for line in app.store.log.read(kit.coordinator, types=(TaskMerged.type,))]
        assert [(each.task, each.commit) for each in told if isinstance(each, TaskMerged)] == [
            ("merged", commits[0]),
            ("waits", commits[1]),
        ]
        # Each merge is found on the branch and can be rolled back alone.
        state = asyncio.run(roll_back_task(app, kit.coordinator, "merged", with_dependents=False))
    assert state.tree is not None
    names = git(kit.repository, "ls-tree", "-r", "--name-only", state.tree).split()
    assert ("sub/merged.txt" in names, "sub/waits.txt" in names) == (False, True)
    assert len(verified(kit, kit.coordinator, kit.repository)) == 3


def test_the_merge_of_a_dead_worker_is_recorded_when_the_plan_is_cancelled(tmp_path: Path) -> None:
    kit = PlanKit(tmp_path, TASKS)
    kit.environ["CHARGEHAND_ENGINE_ATTEMPTS_AT_ONCE"] = "1"  # the second task begins once the first one waits
    assert kit.worker(plan="promoted#2").wait() == -signal.SIGKILL, kit.output()
    with working(kit) as app:
        # The sandbox launcher of the dead worker holds its lock until it has ended every process.
        row = app.store.log.get(kit.coordinator)
        wait_until(lambda: not app.acting_reader.live(row))
        with pytest.raises(RefusedError, match="'merged' is being started or merged") as raised:
            app.steering.change_plan(kit.coordinator, Plan(tasks=()))
        assert raised.value.code == "task_busy"
        cancel_mission(app, kit.coordinator)
        told = [read_payload(line) for line in app.store.log.read(kit.coordinator, types=(TaskMerged.type,))]
        assert [each.task for each in told if isinstance(each, TaskMerged)] == ["merged"]


@pytest.mark.parametrize("point", ["swapped#1", "promoted#1", "attested#1"])
def test_the_promotion_of_a_dead_worker_is_signed_before_the_branch_moves(tmp_path: Path, point: str) -> None:
    """The result is applied to a branch that a person moved meanwhile, and then rolled back."""
    kit = CrashKit(tmp_path)
    site = kit.site(SCENES["applied"])
    kit.worker_dies_at(point, site)
    mission = kit.mission(site)
    (site.repository / "other.txt").write_text("b\n")
    git(site.repository, "add", "other.txt")
    git(site.repository, "commit", "-qm", "somebody else's")
    kit.go_on()
    first, second = verified(kit, mission, site.repository)
    assert git(site.repository, "rev-parse", "main") == second != first
    with working(kit) as app:
        asyncio.run(roll_back_mission(app, mission))
    assert verified(kit, mission, site.repository)[:2] == [first, second]


def test_the_promotion_of_a_dead_worker_is_signed_before_a_rollback(tmp_path: Path) -> None:
    kit = CrashKit(tmp_path)
    site = kit.site(SCENES["second try"])
    kit.worker_dies_at("promoted#1", site)
    kit.let_go(site)
    mission = kit.mission(site)
    with working(kit) as app:
        app.steering.cancel(mission)
        asyncio.run(roll_back_mission(app, mission))
    assert len(verified(kit, mission, site.repository)) == 2
