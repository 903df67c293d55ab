"""Changes that people took back are not promoted: the mission promotes its newest tree, with a new verdict."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from command_line import repository, shell
from test_coordinator import Crew, task
from tests.conftest import git

from chargehand.app.checkpoints import RestoreRequest, carry_out_restore, plan_restore
from chargehand.core.errors import RefusedError
from chargehand.core.state import MissionState
from chargehand.workspace.rollback import Drop, plan_rollback
from mission_kit import GOLD, MissionKit

pytestmark = pytest.mark.needs_bwrap

CHANGE = f"{GOLD}; echo unwanted > unwanted.txt; chmod 644 unwanted.txt"


@pytest.fixture
def kit(tmp_path: Path) -> MissionKit:
    return MissionKit(tmp_path)


def restore(kit: MissionKit, state: MissionState, *paths: str) -> str:
    """Take these files (by default all of them) back to the base, as a person; return the new tree."""

    async def act() -> str:
        app = kit.app()
        try:
            async with app.session() as session:
                assert state.base is not None
                now = session.missions.look.state(state.id).checkpoints[-1].tree
                drops = [Drop(path=path) for path in paths] or None
                plan = plan_rollback(app.projects.mission_depot(state), now, state.base.tree, drops=drops)
                return (await session.missions.restore(state.id, "base", plan=plan)).tree
        finally:
            app.close()

    return asyncio.run(act())


def resume(kit: MissionKit, state: MissionState) -> MissionState:
    """Resume the mission and run it."""

    async def act() -> MissionState:
        app = kit.app()
        try:
            app.steering.resume(state.id)
            async with app.session() as session:
                return await session.missions.run(state.id)
        finally:
            app.close()

    return asyncio.run(act())


def files(kit: MissionKit, state: MissionState) -> set[str]:
    """Return the files by which the exported branch differs from the base."""
    assert state.export is not None
    return {*git(kit.repository, "diff", "--name-only", "main", state.export.ref).split()}


@pytest.mark.parametrize("stop", ["promote", "verdict", "cancelled"])
def test_a_file_that_was_taken_back_is_not_promoted(kit: MissionKit, stop: str) -> None:
    """At every point at which the mission rests after its agent has finished."""
    state = kit.run(CHANGE, break_at=("step" if stop == "verdict" else "promote",))
    while stop == "verdict" and not state.stops[-1].endswith("attempt/1/verdict"):
        state = resume(kit, state)
    assert state.status == "paused"
    if stop == "cancelled":
        app = kit.app()
        app.steering.cancel(state.id)
        app.close()
    tree = restore(kit, state, "unwanted.txt")
    while (state := resume(kit, state)).status == "paused":
        pass
    assert (state.status, state.tree) == ("promoted", tree)
    assert files(kit, state) == {"calc/core.py"}
    # The verdict is of this very tree, and comes after the person's decision.
    assert [(each.status, each.tree) for each in state.verdicts][-1] == ("green", tree)
    assert len(state.attempts) == 1


def test_a_restored_tree_that_fails_its_checks_is_refused(kit: MissionKit) -> None:
    state = kit.run(CHANGE, break_at=("promote",), attempts=3)
    restore(kit, state, "calc/core.py")
    state = resume(kit, state)
    assert (state.status, [reason.code for reason in state.reasons]) == (
        "refused",
        ["check_failed", "still_failing"],
    )
    # The agent is not asked again: it would only repeat the change that the person took back.
    assert (len(state.attempts), state.export) == (1, None)


def test_a_fully_restored_tree_is_refused_as_unchanged(kit: MissionKit) -> None:
    state = kit.run(CHANGE, break_at=("promote",))
    restore(kit, state)
    state = resume(kit, state)
    assert (state.status, [reason.code for reason in state.reasons]) == ("refused", ["no_change"])
    assert "a person took back the whole change" in state.reasons[0].message


def test_a_restore_that_was_undone_is_promoted(kit: MissionKit) -> None:
    state = kit.run(CHANGE, break_at=("promote",))
    judged = state.checkpoints[-1]
    restore(kit, state, "unwanted.txt")

    async def undo() -> None:
        app = kit.app()
        try:
            async with app.session() as session:
                await session.missions.restore(state.id, judged.commit)
        finally:
            app.close()

    asyncio.run(undo())
    done = resume(kit, state)
    assert (done.status, done.tree) == ("promoted", judged.tree)


def test_repeating_a_rejected_change_needs_a_person(kit: MissionKit) -> None:
    state = kit.run(CHANGE, break_at=("promote",))
    restore(kit, state, "unwanted.txt")
    app = kit.app()
    app.steering.cancel(state.id)
    app.steering.follow_up(state.id, "once more", attempts=1, seconds=60.0)
    app.close()

    async def go_on() -> MissionState:
        app = kit.app()
        try:
            async with app.session() as session:
                return await session.missions.run(state.id)
        finally:
            app.close()

    state = asyncio.run(go_on())
    # The second attempt started without the file, and wrote it again.
    assert (len(state.attempts), state.status) == (2, "waiting")
    assert [reason.code for reason in state.reasons] == ["rejected_again"]
    assert "unwanted.txt" in state.reasons[0].message
    # A person may want it after all.
    assert kit.promote(state.id).status == "promoted"


def test_a_change_restored_after_a_blocked_export_is_not_exported(kit: MissionKit) -> None:
    git(kit.repository, "branch", "chargehand")  # no branch can have a name below it
    state = kit.run(CHANGE)
    assert state.export is not None
    assert (state.status, state.export.state) == ("promoted", "blocked")
    restore(kit, state, "unwanted.txt")
    git(kit.repository, "branch", "-D", "chargehand")
    with pytest.raises(RefusedError) as refused:
        kit.promote(state.id)
    assert refused.value.code == "no_change"
    assert "mission rollback" in refused.value.hint
    assert "unwanted" not in git(kit.repository, "log", "--all", "--format=", "--name-only")


def test_only_the_remaining_changes_are_applied_to_a_moved_branch(kit: MissionKit) -> None:
    state = kit.run(CHANGE, break_at=("promote",), apply=True)
    restore(kit, state, "unwanted.txt")
    (kit.repository / "README.md").write_text("moved\n")
    git(kit.repository, "commit", "-qam", "moved")
    state = resume(kit, state)
    assert state.applied is not None
    assert (state.status, state.applied.state) == ("promoted", "done")
    assert {*git(kit.repository, "diff", "--name-only", "HEAD~1", "HEAD").split()} == {"calc/core.py"}
    assert (kit.repository / "README.md").read_text() == "moved\n"


def test_a_task_is_merged_without_its_rejected_changes(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    crew = Crew(tmp_path / "place", repository(tmp_path / "repo"))
    both = shell("echo wanted > sub/a.txt; echo unwanted > sub/no.txt")
    mission = crew.record([task("a", both), task("b")], break_at="task:b")
    assert crew.work(mission).status == "paused"
    child = crew.mission_of(mission, "a")

    async def act() -> None:
        with crew.opened() as app:
            planned = await plan_restore(
                app, RestoreRequest(mission=child, checkpoint="base", files=("sub/no.txt",))
            )
            await carry_out_restore(app, planned)
            app.steering.resume(mission)

    asyncio.run(act())
    state = crew.work(mission)
    assert state.status == "promoted"
    assert state.export is not None
    assert {*git(crew.repo, "diff", "--name-only", "main", state.export.ref).split()} == {"sub/a.txt", "sub/b.txt"}
