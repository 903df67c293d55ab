"""A branch moves while an agent works: the merge is judged again, or the next attempt solves a conflict."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, Completed, finish, repository
from msgspec.structs import replace
from tests.conftest import git, write_files
from tests.crash_kit import MARK, sleepers, wait_until, wake
from tests.integration.mission_kit import REQUEST, MissionKit

from chargehand.app.composition import App
from chargehand.app.wiring.session import Session
from chargehand.core.events import read_payload
from chargehand.core.mission_events import ApprovalGiven
from chargehand.core.state import MissionState
from chargehand.missions.missions import Missions
from chargehand.reports.story import describe

pytestmark = pytest.mark.needs_bwrap

FILES = {
    "f.txt": "one\ntwo\nthree\n",
    "g.txt": "a\nb\nc\nd\ne\nf\ng\n",
    "check.sh": "! grep -q theirs f.t* || ! grep -q G g.t*",
    "solve.py": (
        "import json, os, pathlib\n"
        "merge = json.loads(pathlib.Path(os.environ['CHARGEHAND_REPORT']).read_text())['payload']['merge']\n"
        "for each in merge['conflicts']:\n"
        "    path = pathlib.Path(each['path'])\n"
        "    for hunk in each['hunks']:\n"
        "        ours, theirs = hunk['ours']['text'], hunk['theirs']['text']\n"
        "        path.write_text(path.read_text().replace(ours, ours + theirs))\n"
    ),
}
MINE = "sed -i s/two/mine/ f.txt"
THEIRS = "sed -i s/two/theirs/ f.txt"
SOLVE = "python3 solve.py"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return repository(tmp_path / "repo", FILES)


def mission(script: str, *words: str, check: str = "sh check.sh", apply: bool = True) -> tuple[str, ...]:
    """Return the command line of a mission whose agent is a shell script."""
    agent = f'command:sh -c "{script}"'
    return ("run", "change it", "--agent", agent, "--only-check", check, *words, *(["--apply"] if apply else []))


def overtaken(cli: Cli, repo: Path, first: str, then: str, *words: str, **how: Any) -> Completed:
    """Run a mission while a person commits to the branch. `then` is the agent's script once it has a report."""
    process = cli.start(*mission(_script(first, then), *words, **how), cwd=repo)
    wait_until(sleepers)
    write_files(repo, {"f.txt": "one\ntheirs\nthree\n", "new.txt": "new\n"})
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "theirs")
    wake()
    return finish(process)


def _script(first: str, then: str) -> str:
    """Return an agent's script that waits to be woken in the middle of its first attempt."""
    return f"if test -z $CHARGEHAND_REPORT; then {first}; sleep {MARK} || true; else {then}; fi"


def order(cli: Cli, mission: str, what: str) -> None:
    """Give an order to the process that runs a mission, without the cost of starting another process."""
    with App.open(environ=cli.environ, cwd=cli.place) as app:
        assert app.order(mission, what)


def scopes(state: MissionState) -> list[tuple[str, str]]:
    """Return scope and status of each verdict except those on the base."""
    return [(each.scope, each.status) for each in state.verdicts if each.scope != "base"]


def test_a_conflict_is_solved_by_the_next_attempt_on_top_of_the_branch(cli: Cli, repo: Path) -> None:
    base = git(repo, "rev-parse", "main")
    process = cli.start(*mission(_script(f"{MINE}; sed -i s/a/A/ g.txt", SOLVE), "--attempts", "2"), cwd=repo)
    wait_until(sleepers)
    second = cli.missions(repo)[0].id
    order(cli, second, "pause")
    assert cli.run(repo, "--apply", agent=f'command:sh -c "{THEIRS}; echo new > new.txt"').code == 0
    order(cli, second, "resume")
    wake()
    result = finish(process)
    assert (result.code, result.document["status"]) == (0, "promoted"), result
    state = cli.state(result)
    assert [attempt.status for attempt in state.attempts] == ["refused", "succeeded"]
    assert [reason.code for reason in state.attempts[0].reasons] == ["merge_conflict"]
    (told,) = state.conflicts
    assert (told.branch, told.count, told.attempt) == ("main", 1, state.attempts[0].id)
    (conflict,) = told.conflicts
    (hunk,) = conflict.hunks
    sides = [side.text if side else None for side in (hunk.base, hunk.ours, hunk.theirs)]
    assert (conflict.path, conflict.kind, sides) == ("f.txt", "content", ["two\n", "theirs\n", "mine\n"])
    assert state.base is not None
    assert state.first_base is not None
    assert (state.first_base.commit, state.base.commit) == (base, told.commit)
    # The branch holds the other's work and, in one commit on top, the solution with everything that merged.
    assert git(repo, "rev-parse", "main") == state.commit
    assert git(repo, "rev-parse", "main^") == told.commit
    assert (repo / "f.txt").read_text() == "one\ntheirs\nmine\nthree\n"
    assert (repo / "g.txt").read_text().startswith("A\n")
    assert (repo / "new.txt").read_text() == "new\n"
    assert git(repo, "status", "--porcelain") == ""
    assert (state.verdicts[-1].tree, state.verdicts[-1].status) == (state.tree, "green")
    shown = cli.say("mission", "show", state.id, cwd=repo).document
    assert [each["conflicts"][0]["path"] for each in shown["conflicts"]] == ["f.txt"]
    assert describe(told) == f"1 path conflicts with main @ {told.commit[:12]}: f.txt (content)"
    back = cli.say("mission", "rollback", state.id, cwd=repo).document
    assert git(repo, "rev-parse", f"{back['commit']}^{{tree}}") == git(
        repo, "rev-parse", f"{told.commit}^{{tree}}"
    )


def test_a_conflict_without_another_attempt_leaves_a_separate_branch(cli: Cli, repo: Path) -> None:
    result = overtaken(cli, repo, MINE, "true")
    assert (result.code, result.document["status"], result.document["export"]["state"]) == (3, "promoted", "done")
    state = cli.state(result)
    assert [told.count for told in state.conflicts] == [1]
    assert state.applied is not None
    assert state.applied.state == "blocked"
    assert state.base == state.first_base
    assert (repo / "f.txt").read_text() == "one\ntheirs\nthree\n"
    assert git(repo, "show", f"{result.document['branch']}:f.txt") == "one\nmine\nthree"
    assert git(repo, "status", "--porcelain") == ""


def test_a_result_without_conflict_is_merged_and_checked_again(cli: Cli, repo: Path) -> None:
    result = overtaken(cli, repo, "sed -i s/e/E/ g.txt", "true")
    assert result.code == 0, result
    state = cli.state(result)
    assert scopes(state) == [("attempt", "green"), ("merged", "green")]
    assert state.verdicts[-1].tree == state.tree == git(repo, "rev-parse", "main^{tree}")
    assert (repo / "f.txt").read_text() == "one\ntheirs\nthree\n"
    assert "E\n" in (repo / "g.txt").read_text()
    assert state.conflicts == []


def test_a_result_that_fails_after_the_merge_is_returned_to_the_agent(cli: Cli, repo: Path) -> None:
    result = overtaken(cli, repo, "sed -i s/g/G/ g.txt", "sed -i s/G/H/ g.txt", "--attempts", "2")
    assert result.code == 0, result
    assert scopes(cli.state(result)) == [("attempt", "green"), ("merged", "red"), ("attempt", "green")]
    assert (repo / "g.txt").read_text().endswith("H\n")
    assert (repo / "f.txt").read_text() == "one\ntheirs\nthree\n"


def test_a_result_is_not_merged_without_apply(cli: Cli, repo: Path) -> None:
    result = overtaken(cli, repo, MINE, "true", apply=False)
    assert (result.code, cli.state(result).conflicts) == (0, [])
    assert git(repo, "show", f"{result.document['branch']}:f.txt") == "one\nmine\nthree"


def test_a_checkpoint_of_before_brings_its_base_back(cli: Cli, repo: Path) -> None:
    """A tree that never held other people's work on the branch does not undo that work."""
    result = overtaken(cli, repo, MINE, "exit 1", "--attempts", "2")
    assert (result.code, result.document["status"]) == (1, "failed"), result
    state = cli.state(result)
    assert state.base != state.first_base
    with App.open(environ=cli.environ, cwd=cli.place) as app:
        before = next(point for point in state.checkpoints if point.trigger == "end")
        assert app.mission_reader.state(state.id).checkpoints[-1].trigger == "merged"
    restored = cli.say("checkpoint", "restore", state.id, before.commit, cwd=repo)
    assert restored.code == 0, restored
    assert cli.state(result).base == state.first_base
    diff = cli.say("mission", "diff", state.id, "--stat", cwd=repo).stdout
    assert "new.txt" not in diff
    promoted = cli.say("mission", "promote", state.id, cwd=repo)
    assert (promoted.code, promoted.document["status"]) == (3, "promoted"), promoted
    assert git(repo, "rev-parse", f"{promoted.document['commit']}^") == state.first_base.commit
    assert (repo / "f.txt").read_text() == "one\ntheirs\nthree\n"


def left_behind(cli: Cli, repo: Path, script: str, theirs: dict[str, str]) -> MissionState:
    """Run a mission that cannot be applied because a person works on the same files; commit that person's work."""
    write_files(repo, theirs)
    result = cli.say(*mission(script), cwd=repo)
    assert (result.code, result.document["status"]) == (3, "promoted"), result
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "theirs")
    return cli.state(result)


def test_promote_merges_checks_and_applies_an_unapplied_result(cli: Cli, repo: Path) -> None:
    state = left_behind(cli, repo, "sed -i s/e/E/ g.txt", {"g.txt": "A\nb\nc\nd\ne\nf\ng\n"})
    theirs = git(repo, "rev-parse", "main")
    result = cli.say("mission", "promote", state.id, cwd=repo)
    assert (result.code, result.document["status"]) == (0, "promoted"), result
    assert (repo / "g.txt").read_text() == "A\nb\nc\nd\nE\nf\ng\n"
    assert git(repo, "status", "--porcelain") == ""
    after = cli.state(result)
    assert (after.verdicts[-1].scope, after.verdicts[-1].tree) == ("merged", git(repo, "rev-parse", "main^{tree}"))
    assert git(repo, "rev-parse", "main") == after.commit == git(repo, "rev-parse", result.document["branch"])
    # Its parents are both sides: the earlier promoted commit, and the branch.
    assert git(repo, "rev-parse", "main^1", "main^2").split() == [state.commit, theirs]
    assert "approval.given" in cli.say("mission", "log", state.id, cwd=repo).stdout
    # A second promotion has nothing to do, and a roll-back takes back only the mission's part.
    assert cli.say("mission", "promote", state.id, cwd=repo).code == 1
    assert cli.say("mission", "rollback", state.id, cwd=repo).code == 0
    assert git(repo, "rev-parse", "main^{tree}") == git(repo, "rev-parse", f"{theirs}^{{tree}}")


def test_promote_reports_conflicts_with_a_moved_branch_by_hunks(cli: Cli, repo: Path) -> None:
    state = left_behind(cli, repo, MINE, {"f.txt": "one\ntheirs\nthree\n"})
    before = git(repo, "rev-parse", "main", state.export.ref if state.export else "")
    error = cli.refused("merge_conflict", 1, "mission", "promote", state.id, cwd=repo)
    assert "'main'" in error["message"]
    assert "f.txt" in error["message"]
    assert git(repo, "rev-parse", "main", state.export.ref if state.export else "") == before
    (told,) = cli.missions(repo)[0].conflicts
    (hunk,) = told.conflicts[0].hunks
    assert [side and side.text for side in (hunk.base, hunk.ours, hunk.theirs)] == ["two\n", "theirs\n", "mine\n"]
    assert cli.missions(repo)[0].status == "promoted"


def test_promote_does_not_apply_a_result_that_fails_after_the_merge(cli: Cli, repo: Path) -> None:
    state = left_behind(
        cli, repo, "sed -i s/g/G/ g.txt", {"f.txt": "one\ntheirs\nthree\n", "g.txt": "A\nb\nc\nd\ne\nf\ng\n"}
    )
    before = git(repo, "rev-parse", "main")
    cli.refused("not_green", 1, "mission", "promote", state.id, cwd=repo)
    assert git(repo, "rev-parse", "main") == before
    assert cli.missions(repo)[0].base == state.base


def approved(cli: Cli, repo: Path, theirs: dict[str, str]) -> tuple[Completed, MissionState]:
    """Let a person approve a changed check surface after another commit to the branch; return the result."""
    script, check = "sed -i s/a/A/ g.txt; echo x = 1 > conftest.py", "cat *.txt *.py; sh check.sh"
    waits = cli.say(*mission(script, check=check), cwd=repo)
    assert (waits.code, waits.reasons) == (3, {"check_surface"}), waits
    write_files(repo, theirs)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "theirs")
    result = cli.say("mission", "promote", waits.document["mission"], "--reason", "read", cwd=repo)
    return result, cli.state(result)


def approvals(cli: Cli, state: MissionState) -> list[str]:
    with App.open(environ=cli.environ, cwd=cli.place) as app:
        return [describe(line) for line in map(read_payload, app.store.log.read(state.id)) if is_approval(line)]


def is_approval(payload: object) -> bool:
    return isinstance(payload, ApprovalGiven)


def test_an_approval_still_holds_if_the_branch_changed_other_files(cli: Cli, repo: Path) -> None:
    result, state = approved(cli, repo, {"new.txt": "new\n"})
    assert (result.code, state.applied and state.applied.state) == (0, "done"), result
    assert git(repo, "ls-files").split() == sorted([*FILES, "conftest.py", "new.txt"])
    assert state.verdicts[-1].tree == git(repo, "rev-parse", "main^{tree}") == state.tree
    first, second = approvals(cli, state)
    assert second.startswith(f"{first} (approved as ")


@pytest.mark.parametrize(
    ("theirs", "differs"),
    [
        ({"g.txt": "a\nb\nc\nd\ne\nf\nF\n"}, "main has changed g.txt since the approval"),
        ({"check.sh": "! test -e conftest.py"}, "together with the present main it fails a check"),
    ],
)
def test_an_approval_covers_no_other_change(cli: Cli, repo: Path, theirs: dict[str, str], differs: str) -> None:
    result, state = approved(cli, repo, theirs)
    assert (result.code, result.document["status"]) == (3, "promoted"), result
    assert state.applied is not None
    assert state.applied.state == "blocked"
    assert f"the approval is for another change: {differs}" in state.applied.reason
    assert not (repo / "conftest.py").exists()
    assert len(approvals(cli, state)) == 1
    again = cli.say("mission", "promote", state.id, "--reason", "read again", cwd=repo)
    if "g.txt" in theirs:
        assert again.code == 0, again
        assert (repo / "conftest.py").exists()
    else:
        assert again.error["code"] == "not_green"


class DiedError(BaseException):
    """Simulates the end of a process at a named point."""


@pytest.mark.parametrize("point", ["met", "moved"])
async def test_a_merge_is_found_again_after_a_crash(tmp_path: Path, point: str) -> None:
    """Even if the branch moves once more: the merge is a recorded step."""
    kit = MissionKit(tmp_path, FILES)
    app = kit.app()
    script = f"if test -z $CHARGEHAND_REPORT; then {MINE}; else {SOLVE}; fi"
    wanted = replace(
        REQUEST,
        agent=f"command:sh -c {shlex.quote(script)}",
        only_checks=("sh check.sh",),
        apply=True,
        attempts=2,
    )

    def die(name: str) -> None:
        if name == point:
            raise DiedError(name)

    try:
        async with app.session() as session:
            dying = Missions(session.missions._services, controls=session.missions._controls, fault=die)
            mission = dying.create(wanted, repository=str(kit.repository), base=session.base, config={})
            first = commit(kit.repository, "f.txt", "one\ntheirs\nthree\n")
            with pytest.raises(DiedError):
                await dying.run(mission)
            second = commit(kit.repository, "later.txt", "later\n")
            state = await session.missions.run(mission)
    finally:
        app.close()
    assert (state.status, [attempt.status for attempt in state.attempts]) == ("promoted", ["refused", "succeeded"])
    # The mission resumes after the crash; the second attempt then meets the later commit.
    assert [told.commit for told in state.conflicts] == [first]
    assert state.base is not None
    assert state.base.commit == second == git(kit.repository, "rev-parse", f"{state.commit}^")
    assert git(kit.repository, "show", f"{state.commit}:f.txt") == "one\ntheirs\nmine\nthree"
    assert git(kit.repository, "rev-parse", "main") == state.commit
    assert [point.trigger for point in state.checkpoints] == ["end", "merged", "end", "merged"]


def commit(repository: Path, name: str, content: str) -> str:
    """Commit one file as a person; return the commit."""
    write_files(repository, {name: content})
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", name)
    return git(repository, "rev-parse", "HEAD")


async def _merged_together(app: App, session: Session, missions: list[str]) -> list[MissionState]:
    """Run missions at once; the first merge starts once all of them have been judged and wait for it."""
    assert session.base.branch is not None
    turns = session.missions._services.merges(
        app.mission_reader.state(missions[0]).repository, session.base.branch
    )

    def all_wait() -> bool:
        return all(app.mission_reader.state(mission).queued for mission in missions)

    async with turns.place():
        going = [asyncio.create_task(session.missions.run(mission)) for mission in missions]
        await asyncio.to_thread(wait_until, all_wait)
    return [await each for each in going]


async def test_concurrent_missions_are_all_applied_in_turn(tmp_path: Path) -> None:
    kit = MissionKit(tmp_path, FILES)
    names = ["a", "b", "c", "d"]
    app = kit.app()
    try:
        async with app.session() as session:

            def made(name: str) -> str:
                agent = f'command:sh -c "echo {name} > made-{name}.txt"'
                wanted = replace(REQUEST, text=name, agent=agent, only_checks=("true",), apply=True)
                return session.missions.create(
                    wanted, repository=str(kit.repository), base=session.base, config={}
                )

            states = await _merged_together(app, session, [made(name) for name in names])
    finally:
        app.close()
    assert {state.status for state in states} == {"promoted"}
    assert [state.applied.state if state.applied else None for state in states] == ["done"] * len(names)
    assert sorted(git(kit.repository, "log", "--format=%s", "-4").splitlines()) == names
    assert git(kit.repository, "status", "--porcelain") == ""
    assert all((kit.repository / f"made-{name}.txt").exists() for name in names)
    # Three of them met a moved branch, and were judged as merged with it.
    judged = [any(verdict.scope == "merged" for verdict in state.verdicts) for state in states]
    assert judged.count(True) == len(names) - 1


async def test_the_later_of_two_conflicting_missions_is_returned_to_its_agent(tmp_path: Path) -> None:
    kit = MissionKit(tmp_path, FILES)
    app = kit.app()
    try:
        async with app.session() as session:

            def made(script: str) -> str:
                told = f"if test -z $CHARGEHAND_REPORT; then {script}; else {SOLVE}; fi"
                agent = f"command:sh -c {shlex.quote(told)}"
                wanted = replace(REQUEST, agent=agent, only_checks=("true",), apply=True, attempts=2)
                return session.missions.create(
                    wanted, repository=str(kit.repository), base=session.base, config={}
                )

            states = await _merged_together(app, session, [made(MINE), made(THEIRS)])
    finally:
        app.close()
    assert [state.applied.state if state.applied else None for state in states] == ["done", "done"]
    assert sorted(len(state.attempts) for state in states) == [1, 2], "one had a conflict, and solved it"
    assert sorted((kit.repository / "f.txt").read_text().split()) == ["mine", "one", "theirs", "three"]


async def test_a_mission_waiting_for_a_merge_turn_is_queued_with_a_reason(tmp_path: Path) -> None:
    kit = MissionKit(tmp_path, FILES)
    app = kit.app()
    try:
        async with app.session() as session:
            assert session.base.branch is not None
            turns = session.missions._services.merges(str(kit.repository), session.base.branch)
            wanted = replace(REQUEST, agent=f'command:sh -c "{MINE}"', only_checks=("true",), apply=True)
            known = session.missions.create(wanted, repository=str(kit.repository), base=session.base, config={})
            async with turns.place():
                going = asyncio.create_task(session.missions.run(known))
                await asyncio.to_thread(wait_until, lambda: app.mission_reader.state(known).queued)
                queued = app.mission_reader.state(known).queued
                assert queued is not None
                assert (queued.waits_for, f"merged into {session.base.branch}" in queued.reason.message) == (
                    "merges",
                    True,
                )
                assert (kit.repository / "f.txt").read_text() == FILES["f.txt"], "nothing is applied meanwhile"
            state = await going
    finally:
        app.close()
    assert (state.status, state.queued) == ("promoted", None)
    assert (kit.repository / "f.txt").read_text() == "one\nmine\nthree\n"
