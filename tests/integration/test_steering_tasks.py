"""Acting on the tasks of a coordinator by its name: answers, approvals, messages, and a plan that changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from command_line import repository, shell
from test_coordinator import Crew, branch, task
from tests.conftest import git
from tests.native_kit import FINISH, call, says, scripted

from chargehand.app.composition import App
from chargehand.app.missions import addressed_mission, answer_question
from chargehand.cli.main import chargehand
from chargehand.core.errors import RefusedError
from chargehand.core.mission_events import MessageSent, QuestionAnswered
from chargehand.core.plan_events import TaskMerged

pytestmark = pytest.mark.needs_bwrap
ASKS = scripted(
    (
        says("", call("ask", question="Which way?", options=["left", "right"])),
        says("", call("bash", command="echo chosen > sub/way.txt")),
        FINISH,
    )
)
# A file of the check surface: a task that changes it waits for a person.
SURFACE = shell("touch conftest.py; echo x > sub/c.txt")


class Steered(Crew):
    """A crew whose person uses the command line, and whose model asks which way to go."""

    def __init__(self, place: Path, repo: Path) -> None:
        super().__init__(place, repo)
        config = place / "config/chargehand"
        config.mkdir(parents=True)
        script = place / "asks.jsonl"
        script.write_bytes(ASKS.dump())
        lines = ("[models.asks]", 'provider = "script"', f"script = {json.dumps(str(script))}", "price = 1.0")
        (config / "config.toml").write_text("\n".join(lines) + "\n")

    def run(self, *words: str) -> Result:
        # A worker is present already, so the command starts no other behind the test's back.
        with App.open(environ=self.environ, cwd=self.repo, role="worker") as app:
            assert app.member.id
            return CliRunner().invoke(chargehand, list(words), catch_exceptions=False)

    def say(self, *words: str, code: int = 0) -> dict[str, Any]:
        """Return the document, or the error, of a command."""
        done = self.run("--json", *words)
        assert done.exit_code == code, done.output
        found: dict[str, Any] = json.loads(done.stdout or done.stderr)
        return found

    def refused(self, code: str, *words: str) -> dict[str, str]:
        error: dict[str, str] = self.say(*words, code=2 if code in ("not_found", "plan_invalid") else 1)["error"]
        assert error["code"] == code, error
        assert error["hint"]
        return error

    def merges(self, mission: str) -> list[TaskMerged]:
        return self.events(mission, TaskMerged)

    def child(self, mission: str, name: str) -> str:
        tasks = {each["id"]: each for each in self.say("mission", "plan", mission)["tasks"]}
        found: str = tasks[name]["missions"][-1]
        return found


@pytest.fixture
def crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Steered]:
    (tmp_path / "place").mkdir()
    made = Steered(tmp_path / "place", repository(tmp_path / "repo"))
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(made.repo)
    return made


def asking(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "text": f"Find the way of {name}", "agent": "native", "models": ["asks"], **more}


def test_an_answer_to_the_coordinator_reaches_the_only_asking_task(crew: Steered) -> None:
    mission = crew.record([asking("ways"), task("a")])
    assert crew.work(mission).status == "waiting"
    child = crew.child(mission, "ways")
    shown = crew.say("mission", "show", mission)
    assert shown["waiting"] == [
        {"task": "ways", "mission": child, "needs": "answer", "message": "Which way?"}
    ]  # fmt: skip
    told = f"task ways ({child}) waits for an answer: Which way?"
    assert told in crew.run("mission", "show", mission).output.replace("\n", " ")
    assert f"{mission} waits: {told}" in crew.run("mission", "list").output
    asked = crew.say("mission", "answer", mission, code=3)
    assert (asked["mission"], asked["options"]) == (child, ["left", "right"])
    done = crew.say("mission", "answer", mission, "2")
    assert (done["mission"], done["task"], done["parent"]) == (child, "ways", mission)
    crew.refused("question_answered", "mission", "answer", child, "left")
    crew.refused("no_question", "mission", "answer", mission, "--task", "ways", "left")
    state = crew.work(mission)
    assert state.status == "promoted", (state.reasons, state.questions)
    assert [each.text for each in crew.events(child, QuestionAnswered)] == ["right"]
    assert git(crew.repo, "show", f"{branch(crew, state)}:sub/way.txt") == "chosen"


def test_an_answer_needs_a_task_name_if_several_tasks_ask(crew: Steered) -> None:
    mission = crew.record([asking("one"), asking("two", after=["fails"]), asking("three"), task("fails")])
    crew.work(mission)
    error = crew.refused("several_tasks_wait", "mission", "answer", mission, "left")
    children = {name: crew.child(mission, name) for name in ("one", "two", "three")}
    for child in children.values():
        assert f"mission answer {child} TEXT" in error["hint"]
    crew.refused("not_found", "mission", "answer", mission, "--task", "thre", "left")
    crew.refused("no_question", "mission", "answer", mission, "--task", "fails", "left")
    crew.refused("no_plan", "mission", "answer", children["one"], "--task", "one", "left")
    done = crew.say("mission", "answer", mission, "--task", "two", "left")
    assert done["mission"] == children["two"]


def test_only_the_first_of_concurrent_answers_counts(crew: Steered) -> None:
    mission = crew.record([asking("ways"), task("a")])
    crew.work(mission)
    child = crew.child(mission, "ways")
    names = [mission, child, mission, child]
    codes: list[str] = []

    def say(name: str, text: str) -> None:
        with App.open(environ=crew.environ, cwd=crew.repo) as app:
            try:
                meant = addressed_mission(app, name, "answer")
                asked = meant.question.id if meant.question else ""
                answer_question(app, meant.mission, text, question=asked)
            except RefusedError as error:
                codes.append(error.code)

    people = [threading.Thread(target=say, args=(name, f"way {at}")) for at, name in enumerate(names)]
    for person in people:
        person.start()
    for person in people:
        person.join()
    assert len(codes) == 3
    assert set(codes) <= {"question_answered", "no_question"}
    assert len(crew.events(child, QuestionAnswered)) == 1
    assert crew.work(mission).status == "promoted"


def test_coordinator_questions_come_first_unless_a_task_is_named(crew: Steered) -> None:
    mission = crew.record([task("bad", shell("exit 3")), task("worse", shell("exit 4")), asking("ways")])
    crew.work(mission)
    done = crew.say("mission", "answer", mission, "--task", "worse", "skip")
    assert done["mission"] == mission
    assert [each.question for each in crew.events(mission, QuestionAnswered)] == ["task/worse/1"]
    assert crew.say("mission", "answer", mission, "--task", "ways", "left")["task"] == "ways"
    assert crew.say("mission", "answer", mission, "skip")["mission"] == mission
    assert crew.work(mission).status == "promoted"


def test_promote_and_discard_decide_on_the_task_that_waits_for_an_approval(crew: Steered) -> None:
    mission = crew.record([task("c", SURFACE), task("a"), task("d", SURFACE.replace("sub/c", "sub/d"))])
    crew.work(mission)
    children = {name: crew.child(mission, name) for name in "cd"}
    shown = crew.say("mission", "list")["missions"]
    waiting = next(each["waiting"] for each in shown if each["mission"] == mission)
    assert {(each["task"], each["needs"]) for each in waiting} == {("c", "approval"), ("d", "approval")}
    for verb in ("promote", "discard"):
        assert children["c"] in crew.refused("several_tasks_wait", "mission", verb, mission)["hint"]
    assert crew.say("mission", "promote", mission, "--task", "c")["mission"] == children["c"]
    gone = crew.say("mission", "discard", mission)
    assert (gone["mission"], gone["status"]) == (children["d"], "discarded")
    state = crew.work(mission)
    assert state.status == "waiting"  # it asks about the task whose result was discarded
    assert crew.say("mission", "answer", mission, "skip")["mission"] == mission
    state = crew.work(mission)
    assert state.status == "promoted"
    names = git(crew.repo, "ls-tree", "--name-only", "-r", branch(crew, state)).split()
    assert {"conftest.py", "sub/c.txt", "sub/a.txt"} <= set(names)
    assert "sub/d.txt" not in names


def test_a_message_goes_to_the_coordinator_or_the_named_task(crew: Steered) -> None:
    mission = crew.record([asking("ways"), task("a")])
    crew.run("mission", "pause", mission)
    assert crew.say("mission", "send", mission, "for all")["delivery"] == "next_task"
    assert crew.say("mission", "send", mission, "--critical", "now", code=2)["error"]["hint"].endswith("--task ID")
    assert [each.text for each in crew.events(mission, MessageSent)] == ["for all"]
    crew.refused("not_sendable", "mission", "send", mission, "--task", "ways", "too early")
    crew.run("mission", "resume", mission)
    crew.work(mission)
    child = crew.child(mission, "ways")
    crew.say("mission", "answer", mission, "left")
    sent = crew.say("mission", "send", mission, "--task", "ways", "for it alone")
    assert sent["mission"] == child
    assert [each.text for each in crew.events(child, MessageSent)] == ["for it alone"]
    crew.refused("not_sendable", "mission", "send", mission, "--task", "a", "too late")
