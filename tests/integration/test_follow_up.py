"""Missions that ended and continue with a person's addition (`mission continue`)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from command_line import PASSES, Cli, finish, repository, shell
from msgspec.structs import replace
from tests.conftest import git
from tests.crash_kit import MARK, sleepers, wait_until, wake
from tests.native_kit import FINISH, MENDS, NativeKit, call, says, scripted

from chargehand.app.requests import FollowUp, follow_up_mission
from chargehand.core.errors import UsageError
from chargehand.core.state import MissionState
from chargehand.missions.transcript import read_transcript
from chargehand.models.contract import Usage

pytestmark = pytest.mark.needs_bwrap

# Writes down its input: the request, and each message on a separate line.
LISTENS = shell(
    "echo $CHARGEHAND_REQUEST > sub/asked.txt; "
    "test -z $CHARGEHAND_REPORT || grep -o 'word[0-9]' $CHARGEHAND_REPORT > sub/told.txt; true"
)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "person")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return repository(tmp_path / "repo")


class TestCommands:
    def test_a_refused_mission_continues_from_its_last_tree(self, cli: Cli, repo: Path) -> None:
        result = cli.say(
            "run", "first", "--agent", LISTENS, "--only-check", "test $(cat sub/* | grep -c word) = 2", cwd=repo
        )
        assert (result.code, result.document["status"]) == (1, "refused")
        mission = result.document["mission"]
        again = cli.say("mission", "continue", mission, "word1", cwd=repo)
        assert (again.code, again.document["mission"], again.document["status"]) == (1, mission, "refused")
        done = cli.say("mission", "continue", mission[-6:], "word2", cwd=repo)
        assert (done.code, done.document["mission"], done.document["status"]) == (0, mission, "promoted")
        assert [attempt["status"] for attempt in done.document["attempts"]] == ["refused", "refused", "succeeded"]
        branch = done.document["branch"]
        assert git(repo, "show", f"{branch}:sub/told.txt").split() == ["word1", "word2"]
        assert git(repo, "show", f"{branch}:sub/asked.txt") == "first"
        assert cli.say("audit", "verify", cwd=repo).code == 0
        log = [json.loads(line) for line in cli.say("mission", "log", mission, cwd=repo).stdout.splitlines()]
        assert [line["payload"]["after"] for line in log if line["type"] == "mission.continued"] == [1, 2]

    def test_more_attempts_may_be_given(self, cli: Cli, repo: Path) -> None:
        """Each attempt sees the report on the previous attempt, as in one run."""
        agent = shell("echo x >> sub/tries.txt")
        check = "test $(cat sub/* | grep -c x) = 4"
        result = cli.say("run", "count", "--agent", agent, "--only-check", check, cwd=repo)
        assert result.document["status"] == "refused"
        words = ("mission", "continue", "last", "again", "--attempts", "2")
        assert cli.say(*words, cwd=repo).document["status"] == "refused"
        done = cli.say(*words, cwd=repo).document
        assert (done["status"], len(done["attempts"])) == ("promoted", 4)

    def test_continuing_a_promoted_mission_starts_a_new_mission_on_its_commit(self, cli: Cli, repo: Path) -> None:
        first = cli.say("run", "first", "--agent", LISTENS, "--only-check", "true", cwd=repo).document
        second = cli.say("mission", "continue", "last", "and second", cwd=repo).document
        assert second["mission"] != first["mission"]
        assert (second["status"], second["base"]) == ("promoted", first["commit"])
        assert second["branch"] == "chargehand/and-second"
        assert git(repo, "rev-parse", f"{second['branch']}^") == first["commit"]
        assert git(repo, "show", f"{second['branch']}:sub/asked.txt") == "and second"
        assert git(repo, "log", "-1", "--format=%s", second["branch"]) == "and second"
        shown = cli.say("mission", "show", first["mission"], cwd=repo).document
        assert (shown["status"], shown["commit"]) == ("promoted", first["commit"])
        told = cli.say("mission", "report", second["mission"], cwd=repo).document
        assert (told["forked_from"], [each["kind"] for each in told["decisions"]]) == (
            first["mission"],
            ["mission.continued"],
        )
        proved = cli.say("audit", "provenance", second["mission"], cwd=repo)
        assert (proved.code, first["commit"] in proved.stdout) == (0, True), proved
        # A third mission continues the second, with three attempts in one conversation.
        third = cli.say("mission", "continue", "last", "third", cwd=repo).document
        assert (third["status"], third["base"], len(third["attempts"])) == ("promoted", second["commit"], 3)
        assert cli.say("stats", cwd=repo).document["attempts"]["ended"] == 3  # no attempt counts twice
        assert cli.say("audit", "verify", cwd=repo).code == 0

    def test_a_follow_up_of_an_applied_mission_is_applied_too(self, cli: Cli, repo: Path) -> None:
        first = cli.say("run", "first", "--agent", LISTENS, "--only-check", "true", "--apply", cwd=repo).document
        assert git(repo, "rev-parse", "HEAD") == first["commit"]
        # The person commits in between: both changes come together.
        (repo / "mine.txt").write_text("mine\n")
        git(repo, "add", "mine.txt")
        git(repo, "commit", "-qm", "mine")
        second = cli.say("mission", "continue", "last", "second", cwd=repo).document
        assert second["status"] == "promoted"
        assert (repo / "sub" / "asked.txt").read_text() == "second\n"
        assert (repo / "mine.txt").read_text() == "mine\n"
        assert git(repo, "rev-parse", "HEAD") == second["commit"]

    def test_a_follow_up_after_a_rollback_starts_from_the_rolled_back_tree(self, cli: Cli, repo: Path) -> None:
        first = cli.say("run", "first", "--agent", shell("echo 1 > one.txt"), "--only-check", "true", cwd=repo)
        assert cli.say("mission", "rollback", "last", cwd=repo).code == 0
        again = cli.say("mission", "continue", first.document["mission"], "again", cwd=repo).document
        assert again["status"] == "promoted"
        assert git(repo, "diff", "--name-only", "HEAD", again["branch"]) == "one.txt"

    def test_a_follow_up_starts_after_a_rollback_that_was_not_exported(self, cli: Cli, repo: Path) -> None:
        result = cli.say("run", "first", "--agent", shell("echo 1 > one.txt"), "--only-check", "true", cwd=repo)
        branch = result.document["branch"]
        git(repo, "update-ref", f"refs/heads/{branch}", "HEAD")  # now the roll-back cannot be exported
        assert cli.say("mission", "rollback", "last", cwd=repo).document["export"]["state"] == "blocked"
        again = cli.say("mission", "continue", result.document["mission"], "again", cwd=repo).document
        assert (again["status"], again["reasons"]) == ("promoted", [])

    @pytest.mark.parametrize("first", ["true", "false"])
    def test_a_killed_follow_up_is_resumed_by_another_worker(self, cli: Cli, repo: Path, first: str) -> None:
        """Both ways: in the mission itself, and in a new mission on the promoted result."""
        told = "echo $CHARGEHAND_REQUEST > sub/told; cat $CHARGEHAND_REPORT >> sub/told"
        agent = shell(f"{told}; grep -q wait sub/told && sleep {MARK}; true")
        check = f"grep -qs wait sub/* || {first}"
        cli.say("run", "begin", "--agent", agent, "--only-check", check, cwd=repo)
        process = cli.start("mission", "continue", "last", "wait", cwd=repo)
        wait_until(sleepers)
        process.kill()
        finish(process)
        wait_until(lambda: not sleepers())
        working = cli.start("worker", "--until-idle", cwd=repo)
        wait_until(wake)
        assert finish(working).code == 0
        ended = cli.say("mission", "show", "last", cwd=repo).document
        assert (ended["status"], len(ended["attempts"])) == ("promoted", 2), ended
        log = [json.loads(line) for line in cli.say("mission", "log", "last", cwd=repo).stdout.splitlines()]
        assert [line["type"] for line in log].count("mission.continued") == 1

    def test_invalid_follow_ups_are_refused(self, cli: Cli, repo: Path) -> None:
        cli.refused("not_found", 2, "mission", "continue", "last", "x", cwd=repo)
        cli.say("run", "first", "--agent", "command:true", "--only-check", "true", cwd=repo)
        for words in (
            ("last", ""),
            ("last", "x", "--attempts", "0"),
            ("last", "x", "--time", "never"),
            ("last", "x", "--budget", "-1"),
            ("nobody", "x"),
        ):
            error = cli.say("mission", "continue", *words, cwd=repo)
            assert (error.code, error.stdout) == (2, ""), words
        detached = cli.say("run", "later", "--agent", shell("sleep 304"), *PASSES, "--detach", cwd=repo).document
        running = detached["mission"]
        error = cli.refused("not_continuable", 1, "mission", "continue", running, "x", cwd=repo)
        assert f"mission send {running}" in error["hint"]
        cli.say("mission", "cancel", running, cwd=repo)
        cli.say("mission", "discard", "last", cwd=repo)
        cli.refused("not_continuable", 1, "mission", "continue", "last", "x", cwd=repo)


class TestConversations:
    @pytest.fixture
    def kit(self, tmp_path: Path) -> NativeKit:
        return NativeKit(tmp_path)

    def follow_up(self, kit: NativeKit, mission: str, text: str, **limits: str) -> str:
        with kit.opened() as app:
            return follow_up_mission(app, FollowUp(mission=mission, text=text, **limits))

    def told(self, kit: NativeKit, mission: str) -> list[tuple[str, int]]:
        with kit.opened() as app:
            state = app.mission_reader.state(mission)
            return [(line.speaker, line.attempt) for line in read_transcript(app.store, state)]

    def test_a_promoted_mission_continues_in_the_same_conversation(self, kit: NativeKit) -> None:
        more = (says("also a file", call("bash", command="echo more > more.txt")), FINISH)
        kit.model("scripted", scripted(MENDS, more))
        first = kit.native()
        assert first.status == "promoted"
        second = kit.work(self.follow_up(kit, first.id, "also write more.txt"))
        assert second.status == "promoted", second.reasons
        assert second.forked_from == first.id
        assert second.base is not None
        assert second.base.commit == first.commit
        # The earlier conversation is part of the new one, and paid for once.
        assert [attempt.calls for attempt in second.attempts] == [0, 2]
        assert second.attempts[0].cost_usd == 0
        speakers = self.told(kit, second.id)
        assert {number for _, number in speakers} == {1, 2}

    def test_a_cancelled_mission_continues_without_repeated_calls(self, kit: NativeKit) -> None:
        steps = (says("", call("bash", command="echo one > one.txt")), says("", call("ask", question="Go?")))
        kit.model("scripted", scripted((*steps, *MENDS)))
        state = kit.native()
        assert state.status == "waiting"
        with kit.opened() as app:
            with pytest.raises(UsageError, match="empty"):
                follow_up_mission(app, FollowUp(mission=state.id, text=" "))
            app.steering.answer(state.id, "go")
            app.steering.cancel(state.id)
        made = self.follow_up(kit, state.id, "mind the gap", time="5m")
        assert made == state.id
        again = kit.work(made)
        assert again.status == "promoted", again.reasons
        assert [attempt.calls for attempt in again.attempts] == [4]  # no call is repeated
        with kit.opened() as app:
            lines = read_transcript(app.store, again)
            assert any("mind the gap" in line.text for line in lines if line.speaker == "person")

    def test_a_mission_that_spent_its_budget_needs_a_larger_budget_to_continue(self, kit: NativeKit) -> None:
        dear = replace(MENDS[0], usage=Usage(input=1000, output=10_000))
        kit.model("scripted", scripted((dear, FINISH), (FINISH,), (FINISH,)), price=100.0)
        kit.write("[limits]\nbudget_usd = 1.15")
        state = kit.native()
        assert state.status == "exhausted", state.reasons
        with kit.opened() as app:
            spent = app.mission_reader.state(state.id).attempts[0].cost_usd
            assert spent is not None
        with pytest.raises(UsageError, match="has spent"):
            self.follow_up(kit, state.id, "go on", budget="0.05")
        assert self.as_recorded(kit, self.follow_up(kit, state.id, "go on")).status == "exhausted"
        again = self.as_recorded(kit, self.follow_up(kit, state.id, "go on", budget="1000"))
        assert again.status == "promoted", again.reasons

    def as_recorded(self, kit: NativeKit, mission: str) -> MissionState:
        """Run a mission as a worker does: with the configuration recorded when it was created."""

        async def work() -> MissionState:
            with kit.opened() as app:
                async with app.mission_session(mission, recorded=True) as (_, session):
                    return await session.missions.run(mission)

        return asyncio.run(work())
