"""Manual git: fetch, merge, rebase, commit, push. Nothing unjudged is pushed; nothing is lost without asking."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest
from tests.conftest import git, repository_state, write_files
from tests.integration.actions_kit import ActionsKit
from tests.integration.command_line import Cli

from chargehand.core.errors import RefusedError
from chargehand.core.records import Conflict
from chargehand.core.state import MissionState
from chargehand.missions.checkpoints import CheckpointEditor, EditStoppedError
from chargehand.store.audit import verify
from chargehand.workspace.remotes import remote_branches

pytestmark = pytest.mark.needs_bwrap


@pytest.fixture
def kit(tmp_path: Path) -> ActionsKit:
    return ActionsKit(tmp_path)


def codes(state: object) -> list[str]:
    return [reason.code for reason in getattr(state, "reasons", ())]


def promote(kit: ActionsKit, mission: str) -> MissionState:
    async def work() -> MissionState:
        with kit.opened() as app:
            async with app.mission_session(mission) as (found, session):
                return await session.missions.promote(found, identity="os:test")

    return asyncio.run(work())


def test_fetch_updates_only_the_remote_branches_of_the_depot(kit: ActionsKit) -> None:
    theirs = kit.elsewhere({"h.txt": "h\n"})
    before = repository_state(kit.repository)
    lines: list[str] = []
    state = kit.act("fetch", remote="origin", on_line=lambda line: lines.append(line.line))
    assert (state.status, state.exit_code) == ("done", 0), state
    assert state.result["branches"] == [{"branch": "main", "old": None, "new": theirs}]
    assert any("main" in line for line in lines)
    with kit.opened() as app:
        project = app.projects.find(kit.repository)
        assert remote_branches(app.projects.depot(project), "origin") == {"main": theirs}
        assert app.store.log.missions() == ()
        with pytest.raises(LookupError):
            app.store.log.find(project.id)
        assert verify(app.store, None).ok
        assert app.store.log.names() == (project.id,)
        assert app.store.log.last_seq(project.id) == 4
    assert kit.types(project.id) == ["action.created", "action.began", "action.judged", "action.finished"]
    assert repository_state(kit.repository) == before
    again = kit.act("fetch", remote="origin")
    assert again.result["moved"] == 0


def test_a_missing_or_forbidden_remote_is_refused(kit: ActionsKit) -> None:
    assert codes(kit.act("fetch", remote="nowhere")) == ["remote_not_found"]
    for url, code in (
        ("ext::sh -c 'touch fired'", "remote_protocol"),
        ("git://127.0.0.1/x", "remote_protocol"),
        ("fd::7", "remote_protocol"),
        (str(kit.repository / "inner.git"), "remote_inside"),
        (str(kit.place / "gone.git"), "git_failed"),
    ):
        git(kit.repository, "remote", "set-url", "origin", url)
        state = kit.act("fetch", remote="origin")
        assert (state.status, codes(state)) == ("failed", [code]), url


def test_push_of_an_unpromoted_result_is_refused(kit: ActionsKit) -> None:
    mission = kit.left()
    state = kit.act("push", mission.id, remote="origin")
    assert (state.status, codes(state)) == ("failed", ["not_promoted"])
    assert git(kit.origin, "for-each-ref", "--format=%(refname)") == "refs/heads/main"


def test_force_push_and_branch_deletion_each_need_approval(kit: ActionsKit) -> None:
    mission = kit.promoted()
    branch = "chargehand/mend-add"
    state = kit.act("push", mission.id, remote="origin")
    assert (state.status, kit.tip(branch)) == ("done", mission.commit), state
    assert kit.act("push", mission.id, remote="origin").result["changed"] is False

    theirs = kit.elsewhere({"f.txt": "theirs\n"}, branch)
    assert codes(kit.act("push", mission.id, remote="origin")) == ["push_rejected"]
    asked = kit.act("push", mission.id, remote="origin", force=True)
    assert (asked.status, asked.finished, kit.tip(branch)) == ("waiting", "", theirs)
    assert asked.question is not None
    assert asked.question.rule == "action-force"
    no = kit.answered(asked.id, yes=False)
    assert (no.status, codes(no), kit.tip(branch)) == ("failed", ["answered_no"], theirs)
    with pytest.raises(RefusedError, match="has no open question"):
        kit.answered(asked.id, yes=True)

    asked = kit.act("push", mission.id, remote="origin", force=True)
    later = kit.elsewhere({"f.txt": "later\n"}, branch)
    again = kit.answered(asked.id, yes=True)
    assert (again.status, kit.tip(branch)) == ("waiting", later), "the yes was for another commit"
    done = kit.answered(asked.id, yes=True)
    assert (done.status, kit.tip(branch)) == ("done", mission.commit), done

    asked = kit.act("push", mission.id, remote="origin", delete=True)
    assert (asked.status, kit.tip(branch)) == ("waiting", mission.commit)
    done = kit.answered(asked.id, yes=True)
    assert (done.status, kit.tip(branch)) == ("done", None), done
    judged = [line for line in kit.types(mission.id) if line == "action.judged"]
    assert len(judged) >= 7
    with kit.opened() as app:
        assert verify(app.store, mission.id).ok


def test_user_policy_rules_allow_or_deny_an_action_without_asking(kit: ActionsKit) -> None:
    mission = kit.promoted()
    branch = "chargehand/mend-add"
    kit.act("push", mission.id, remote="origin")
    kit.elsewhere({"f.txt": "theirs\n"}, branch)
    rules = kit.place / ".config/chargehand/policy.cedar"
    rules.parent.mkdir(parents=True)
    rules.write_text(
        '@id("mine") @overrides("action-force") @reason("my own fork")\npermit (principal, action, resource);\n'
    )
    assert kit.act("push", mission.id, remote="origin", force=True).status == "done"
    rules.write_text(
        '@id("no") @reason("not from here")\nforbid (principal, action == Action::"other", resource) '
        'when { context.kind == "action" };\n'
    )
    denied = kit.act("fetch", remote="origin")
    assert (denied.status, codes(denied)) == ("failed", ["action_denied"])


def test_a_merge_moves_the_base_and_is_pushed_only_after_new_checks(kit: ActionsKit) -> None:
    mission = kit.promoted()
    theirs = kit.elsewhere({"g.txt": "theirs\n"})
    kit.act("fetch", remote="origin")
    before = repository_state(kit.repository, without="(?!)")
    state = kit.act("merge", mission.id, tip="origin/main")
    assert (state.status, state.result["changed"]) == ("done", True), state
    assert repository_state(kit.repository, without="(?!)") == before, "only a promotion writes there"
    now = kit.mission(mission.id)
    assert now.base is not None
    assert (now.base.commit, now.commit) == (theirs, mission.commit)
    assert (now.verdicts[-1].status, now.verdicts[-1].tree) == ("missing", now.checkpoints[-1].tree)
    pushed = kit.act("push", mission.id, remote="origin")
    assert pushed.result["new"] == mission.commit, "what was not judged is not pushed"

    promoted = promote(kit, mission.id)
    assert promoted.commit is not None
    assert git(kit.repository, "show", f"{promoted.commit}:g.txt") == "theirs"
    assert git(kit.repository, "show", f"{promoted.commit}:f.txt") == "one\nmine\nthree"
    parents = git(kit.repository, "log", "-1", "--format=%P", promoted.commit).split()
    assert parents == [mission.commit, theirs]
    assert kit.act("push", mission.id, remote="origin").status == "done", "it goes on from what was pushed"
    assert kit.act("merge", mission.id, tip="origin/main").result["changed"] is False


def test_merge_defaults_to_the_base_branch_of_the_mission(kit: ActionsKit) -> None:
    mission = kit.left()
    write_files(kit.repository, {"g.txt": "mine\n"})
    git(kit.repository, "commit", "-q", "-a", "-m", "on")
    state = kit.act("merge", mission.id, tip=None)
    assert (state.status, state.result["base"]) == ("done", git(kit.repository, "rev-parse", "main")), state
    with kit.opened() as app:
        depot = app.projects.depot(app.projects.find(kit.repository))
        branching = CheckpointEditor(
            store=app.store, look=app.mission_reader, worker=app.member.id, clock=app.clock
        )
        last = app.mission_reader.state(mission.id).checkpoints[-1]
        with pytest.raises(RefusedError) as stale:
            branching.keep(depot, mission.id, last.tree, before="0" * 40, trigger="x", stop=threading.Event())
        assert stale.value.code == "plan_stale"
        stopped = threading.Event()
        stopped.set()
        with pytest.raises(EditStoppedError):
            branching.commit(depot, mission.id, "late", stop=stopped)
        assert app.mission_reader.state(mission.id).checkpoints[-1] == last


def test_a_result_with_a_failed_check_cannot_be_promoted_after_a_merge(kit: ActionsKit) -> None:
    mission = kit.left()
    kit.elsewhere({"g.txt": "theirs\n"})
    kit.act("fetch", remote="origin")
    assert kit.act("merge", mission.id, tip="origin/main").status == "done"
    with pytest.raises(RefusedError) as refused:
        promote(kit, mission.id)
    assert refused.value.code == "not_green"


@pytest.mark.parametrize("kind", ["merge", "rebase"])
def test_a_conflict_is_reported_by_hunks_and_leaves_the_mission_unchanged(kit: ActionsKit, kind: str) -> None:
    mission = kit.left()
    kit.elsewhere({"f.txt": "one\ntheirs\nthree\n"})
    kit.act("fetch", remote="origin")
    before = kit.mission(mission.id)
    assert kind in ("merge", "rebase")
    state = kit.act("merge" if kind == "merge" else "rebase", mission.id, tip="origin/main")
    assert (state.status, codes(state), state.result["conflict_count"]) == ("failed", ["merge_conflict"], 1)
    (conflict,) = msgspec.convert(state.result["conflicts"], tuple[Conflict, ...])
    (hunk,) = conflict.hunks
    assert hunk.ours is not None
    assert hunk.theirs is not None
    assert (conflict.path, hunk.ours.text, hunk.theirs.text) == ("f.txt", "theirs\n", "mine\n")
    after = kit.mission(mission.id)
    assert (after.base, after.checkpoints, after.status) == (before.base, before.checkpoints, before.status)
    assert "merge.conflicted" in kit.types(mission.id)


def test_a_rebase_replays_changes_and_keeps_the_commit_message(kit: ActionsKit) -> None:
    mission = kit.left("sed -i s/two/mine/ f.txt; echo new > n.txt")
    theirs = kit.elsewhere({"g.txt": "theirs\n"})
    kit.act("fetch", remote="origin")
    assert kit.act("commit", mission.id, message="Mend it\n\nAt length.").status == "done"
    state = kit.act("rebase", mission.id, tip="origin/main")
    assert (state.status, state.result["base"]) == ("done", theirs), state
    last = kit.mission(mission.id).checkpoints[-1]
    with kit.opened() as app:
        depot = app.projects.depot(app.projects.find(kit.repository))
        assert depot.read_commit(last.commit).message.startswith("Mend it")
        assert depot.git("merge-base", last.commit, theirs).text == theirs
        assert depot.read_blob(depot.lookup(last.tree, "n.txt").id) == b"new\n"
    assert codes(kit.act("commit", mission.id, message=" ")) == ["commit_message"]
    assert codes(kit.act("rebase", mission.id, tip="no-such")) == ["base_not_found"]


def test_a_promoted_branch_is_not_rebased(kit: ActionsKit) -> None:
    mission = kit.promoted()
    assert codes(kit.act("rebase", mission.id, tip="main")) == ["rebase_promoted"]


def test_merge_of_a_claimed_mission_is_refused(kit: ActionsKit) -> None:
    mission = kit.left()
    with kit.opened() as app:
        member = app.workers.join("worker", on_lost=lambda: None)
        try:
            app.store.log.claim(mission.id, owner=member.id, epoch=app.store.log.get(mission.id).epoch)
            assert codes(kit.act("merge", mission.id, tip="main")) in (["mission_held"], ["not_at_rest"])
        finally:
            member.leave()


def test_a_person_at_the_command_line(kit: ActionsKit) -> None:
    mission = kit.promoted()
    cli = Cli(kit.place)
    pushed = cli.say("git", "push", "--mission", mission.id, cwd=kit.repository)
    first, *_, last = pushed.stdout.splitlines()
    assert (pushed.code, msgspec.json.decode(first)["status"]) == (0, "queued"), pushed
    end = msgspec.json.decode(last)
    assert (end["status"], end["action"]) == ("done", msgspec.json.decode(first)["action"])
    asked = cli.say("git", "push", "--mission", mission.id, "--delete", "--yes", cwd=kit.repository)
    assert (asked.code, asked.error["code"]) == (3, "action_asks")
    action = msgspec.json.decode(asked.stdout.splitlines()[0])["action"]
    assert kit.tip("chargehand/mend-add") == mission.commit
    done = cli.say("action", "answer", action, "yes", cwd=kit.place)
    assert (done.code, kit.tip("chargehand/mend-add")) == (0, None), done
