"""Missions that stop at breakpoints, go step by step, and are approved as the exact tree that a person saw."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Cli, Completed, repository
from tests.crash_kit import sleepers, wait_until, wake
from tests.integration.mission_kit import GOLD, MissionKit
from tests.integration.test_coordinator import Crew, task
from tests.integration.test_mission_holds import Branch, slow

from chargehand.app.composition import App
from chargehand.app.missions import resume_mission
from chargehand.core.errors import RefusedError
from chargehand.core.events import decode
from chargehand.core.mission_events import ApprovalGiven, MissionPaused, MissionQueued
from chargehand.core.records import Reason
from chargehand.missions.breakpoints import parse_breakpoints

pytestmark = pytest.mark.needs_bwrap


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "person")


def resumed(cli: Cli, result: Completed, *words: str, cwd: Path) -> tuple[str, str]:
    """Resume a mission and let a worker run it; return its status and first reason."""
    assert cli.say("mission", "resume", result.document["mission"], *words, cwd=cwd).code == 0
    cli.say("worker", "--until-idle", cwd=cwd)
    # The worker started by the resume may have taken the mission first.
    wait_until(lambda: cli.state(result).status not in ("planned", "running"))
    state = cli.state(result)
    return state.status, state.reasons[0].message if state.reasons else ""


def test_a_breakpoint_pauses_before_promotion_until_resumed(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    result = cli.run(repo, "--break-at", "promote")
    assert (result.code, result.document["status"], result.reasons) == (3, "paused", {"breakpoint"}), result
    assert result.document["branch"] is None
    assert [verdict.status for verdict in cli.state(result).verdicts][-1] == "green"
    assert resumed(cli, result, cwd=repo) == ("promoted", "")
    assert len(cli.state(result).attempts) == 1


def test_each_resume_takes_one_step_unless_resumed_to_the_end(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    result = cli.run(repo, "--break-at", "step")
    first = result.document["reasons"][0]["message"]
    assert first.endswith("before step verdict/base"), result
    assert resumed(cli, result, cwd=repo)[1].endswith("before step setup/detected")
    assert resumed(cli, result, "--step", cwd=repo)[1].endswith("before step agent")
    assert resumed(cli, result, "--step", cwd=repo)[1].endswith("before step attempt/1/work")
    assert resumed(cli, result, "--to-end", cwd=repo) == ("promoted", "")
    assert cli.say("mission", "resume", result.document["mission"], "--step", "--to-end", cwd=repo).code == 2


def test_a_mission_paused_at_a_breakpoint_can_be_resumed_by_step(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    result = cli.run(repo, "--break-at", "promote")
    assert resumed(cli, result, "--step", cwd=repo) == ("promoted", "")


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("lunch", "unknown breakpoint 'lunch'"),
        ("promote,,step", "unknown"),
        ("task:", "unknown"),
        ("plan", "--plan"),
    ],
)
def test_an_unknown_breakpoint_is_refused_before_anything_starts(
    cli: Cli, tmp_path: Path, where: str, told: str
) -> None:
    result = cli.run(repository(tmp_path / "repo"), "--break-at", where)
    assert (result.code, told in result.error["message"] + result.error["hint"]) == (2, True), result


def test_a_task_that_the_plan_does_not_have_is_named() -> None:
    with pytest.raises(Exception, match="no task 'c'"):
        parse_breakpoints("task:c", ("a", "b"))


def test_a_coordinator_stops_before_its_plan_and_before_a_task(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    crew = Crew(tmp_path / "place", repository(tmp_path / "repo"))
    mission = crew.record([task("a"), task("b", after=["a"])], break_at="plan,task:b,promote")
    stops = []
    for _ in range(3):
        state = crew.work(mission)
        assert (state.status, [reason.code for reason in state.reasons]) == ("paused", ["breakpoint"])
        stops.append((state.stops[-1], sorted(crew.children(mission))))
        assert state.export is None
        with crew.opened() as app:
            app.steering.resume(mission)
    assert stops == [("plan", []), ("task:b", ["a"]), ("promote", ["a", "b"])]
    assert crew.work(mission).status == "promoted"
    assert len(crew.events(mission, MissionPaused)) == 3


def test_an_approval_is_for_the_tree_that_was_seen_and_for_no_other(tmp_path: Path) -> None:
    kit = MissionKit(tmp_path)
    state = kit.run(f"{GOLD}; echo more > more.txt; chmod 644 more.txt", checks=())
    assert [question.kind for question in state.questions.values()] == ["decision"]
    seen = state.questions["promote"].tree
    app = kit.app()
    try:
        import asyncio

        async def act() -> None:
            async with app.session() as session:
                assert state.base is not None
                await session.missions.restore(state.id, "base")
                await session.missions.restore(state.id, state.checkpoints[-1].commit)
                restored = session.missions.look.state(state.id).checkpoints[-1].tree
                assert restored == seen, "the same tree by another checkpoint is the tree that was seen"
                await session.missions.restore(state.id, "base")
                with pytest.raises(RefusedError) as refused:
                    await session.missions.promote(state.id, identity="os:test", seen=seen)
                assert refused.value.code in ("tree_changed", "no_change")
                await session.missions.restore(state.id, state.checkpoints[-1].commit)
                with pytest.raises(RefusedError) as refused:
                    await session.missions.promote(state.id, identity="os:test", seen="0" * 12)
                assert (refused.value.code, bool(refused.value.hint)) == ("tree_changed", True)
                assert not app.store.log.read(state.id, types=(ApprovalGiven.type,))
                done = await session.missions.promote(state.id, identity="os:test", seen=seen[:12])
                assert (done.status, done.tree) == ("promoted", seen)
                with pytest.raises(RefusedError) as refused:
                    await session.missions.promote(state.id, identity="os:test", seen=seen)
                assert refused.value.code in ("promoted", "no_change")

        asyncio.run(act())
        given = [
            decode(line.type, line.payload or b"")
            for line in app.store.log.read(state.id, types=(ApprovalGiven.type,))
        ]
        assert [each.tree for each in given] == [seen]  # type: ignore[attr-defined]
    finally:
        app.close()


def test_a_single_step_of_a_planned_mission_is_its_first_step(tmp_path: Path) -> None:
    """One mission waits for a worker, the other for an earlier mission."""
    branch = Branch(tmp_path)
    branch.ask("echo a > f.txt", change=["f.txt"], break_at="plan")
    held = branch.ask("echo b > f.txt", change=["f.txt"])
    queued = branch.ask("echo c > c.txt", apply=False)
    with branch.opened("worker") as app:
        reason = Reason(code="collision_file", message="f.txt")
        first = app.store.log.missions()[0].id
        waits = MissionQueued(waits_for="missions", before=0, places=1, reason=reason, mission=first, seen=99)
        app.store.log.append(held, waits)
        assert app.mission_reader.state(held).held is not None
        for mission in (held, queued):
            assert resume_mission(app, mission, step=True).state.status == "planned"
    branch.work()
    for state in map(branch.state, (held, queued)):
        assert state.reasons[0].message == "breakpoint paused it: before step verdict/base"
    with branch.opened("worker") as app:
        resume_mission(app, queued, to_end=True)
    branch.work()
    assert branch.state(queued).status == "promoted"


def test_a_mission_that_works_stops_before_its_next_step(tmp_path: Path) -> None:
    branch = Branch(tmp_path)
    mission = branch.ask(slow("echo a > a.txt"), apply=False)

    def act(app: App) -> None:
        wait_until(sleepers)
        resume_mission(app, mission)
        assert app.store.log.read(mission, types=("mission.resumed",)) == ()
        resume_mission(app, mission, step=True)
        assert wake()

    branch.work_beside(act)
    assert branch.state(mission).reasons[0].message == "breakpoint paused it: before step attempt/1/verdict"
