"""Plans as people give them: an error names the wrong value and the fix, before anything starts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, repository, untouched
from test_coordinator import READS, Crew, branch, task
from tests.conftest import git

from chargehand.app.composition import App
from chargehand.app.missions import answer_question
from chargehand.core.errors import RefusedError
from chargehand.core.mission_events import QuestionAsked
from chargehand.core.plan_events import TaskStarted

pytestmark = pytest.mark.needs_bwrap

B = {"id": "b", "text": "y"}


def plan(*tasks: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"tasks": tasks or [B], **more}).encode()


def a(**keys: Any) -> bytes:
    return plan({"id": "a", "text": "x", **keys}, B)


BOMB = b"a: &a [x, x]\nb: &b [*a, *a]\ntasks: *b\n"
MANY = b"tasks:\n" + b"".join(b"- {id: t%d, text: x}\n" % number for number in range(10_000))
BAD: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "the plan is empty", "write tasks:"),
    "a list of texts": (b"- a\n- b\n", "got 'a'", "write {id:"),
    "a number": (b"7", "must be a table, got '7'", "write tasks:"),
    "wrong types": (
        a(attempts="often", timeout=[], areas=7.5),
        "'areas' must be a list of texts, got 7.5",
        "'often'",
    ),
    "a key twice": (b"tasks: [{id: a, text: x, text: y}]", "the key 'text' appears twice", "remove one"),
    "an id twice": (plan(B, B), "task 'b': the id appears twice", "give each task its own id"),
    "a bomb": (BOMB, "the alias *a", "write its value"),
    "binary": (bytes(range(256)) * 9, "is not UTF-8", "UTF-8"),
    "thousands": (MANY, "the plan has 10000 tasks, more than 500", "split it"),
    "a circle": (plan({**B, "after": ["a"]}, {**B, "id": "a", "after": ["b"]}), "a after b after a", "'after' of"),
    "overlap": (plan({**B, "make": ["n"]}, {**B, "id": "a", "make": ["n"]}), "to make 'n', as does", "add after:"),
    "no acceptance": (
        plan({**B, "covers": ["o"]}, obligations={"o": "it works"}),
        "covers o and has no acceptance",
        "write acceptance:",
    ),
    "unknown role": (a(role="wizard"), "task a: no role named 'wizard'", "known: architect, developer"),
    "nobody": (a(agent="nobody"), "task a: no agent named 'nobody'", "known: native"),
    "unable": (a(needs=["gpu"]), "task a: no agent offers all that it needs: gpu", "add offers = ['gpu']"),
    "made and deleted": (
        a(make=["n"], delete=["n/"]),
        "wants to make or change 'n/', and to delete it",
        "keep one",
    ),
    "outside": (a(make=["sub/n.txt"], areas=["docs/"]), "make 'sub/n.txt', which is outside", "'areas'"),
    "never": (a(when="test -e f", done_when="test -e f"), "are the same command, 'test -e f'", "remove one"),
    "reads only": (
        a(role="reviewer", change=["f.txt"]),
        "'reviewer' only reads, and it is to change 'f.txt'",
        "role",
    ),
    "not allowed": (a(change=["secret/f.txt"]), "change 'secret/f.txt', and may only change 'sub'", "--allow"),
}
WORDS = ("--agent", "command:true", "--only-check", "true", "--allow", "sub", "--yes", "--detach")


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("cli"))


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository(tmp_path_factory.mktemp("repo") / "repo")


@pytest.mark.parametrize("name", BAD)
def test_a_plan_that_cannot_be_carried_out_is_refused_whole(cli: Cli, repo: Path, name: str) -> None:
    content, result, way = BAD[name]
    file = cli.place / "plan.yaml"
    file.write_bytes(content)
    with untouched(repo):
        told = cli.say("run", "--plan", str(file), *WORDS, cwd=repo)
    assert (told.code, told.stdout) == (2, ""), told
    assert result in told.error["message"]
    assert way in told.error["hint"]
    assert "Traceback" not in told.stderr
    assert cli.missions(repo) == []


@pytest.mark.parametrize(
    "name", ["missing.yaml", ".", "", "/dev/zero", "/proc/self/mem", "x" * 5_000, "locked.yaml"]
)
def test_an_unreadable_plan_file_is_an_error(cli: Cli, repo: Path, name: str) -> None:
    locked = cli.place / "locked.yaml"
    if name == locked.name:
        if os.geteuid() == 0:
            pytest.skip("root reads every file")
        locked.write_bytes(plan())
        locked.chmod(0)
    told = cli.say("run", "--plan", str(cli.place / name) if name == locked.name else name, *WORDS, cwd=repo)
    assert (told.code, told.stdout) == (2, ""), told
    assert told.error["message"].startswith("--plan: ")
    assert "name a file of YAML or JSON" in told.error["hint"]
    assert cli.missions(repo) == []


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    (tmp_path / "place").mkdir()
    return Crew(tmp_path / "place", repository(tmp_path / "repo"))


RED = f"{READS}; test $(ls sub | wc -l) != 1"
"""Fails on the base, and passes once task a is done."""


def test_checks_that_fail_on_the_base_are_asked_about_once_before_any_task(crew: Crew) -> None:
    mission = crew.record([task("a"), task("b", after=["a"])], RED, red_base="ask")
    state = crew.work(mission)
    assert (state.status, [each.code for each in state.reasons]) == ("waiting", ["base_red"])
    assert crew.children(mission) == {}
    assert RED in state.reasons[0].message
    done = crew.answer(mission, "fix")
    assert (done.status, done.reasons) == ("promoted", ())
    assert len(crew.events(mission, QuestionAsked)) == 1
    assert git(crew.repo, "show", f"{branch(crew, done)}:sub/b.txt") == "x"
    with App.open(environ=crew.environ, cwd=crew.repo) as app, pytest.raises(RefusedError) as refused:
        answer_question(app, mission, "stop")
    assert (refused.value.code, mission in refused.value.hint) == ("question_answered", True)


def test_a_plan_stops_if_checks_fail_on_the_base_with_red_base_stop(crew: Crew) -> None:
    mission = crew.record([task("a"), task("b")], RED, red_base="stop")
    state = crew.work(mission)
    assert (state.status, [each.code for each in state.reasons]) == ("failed", ["base_red"])
    assert crew.events(mission, TaskStarted) == []
    # When resumed it checks again, as the checks' requirements may be met by now.
    with App.open(environ=crew.environ, cwd=crew.repo) as app:
        app.steering.resume(mission)
    again = crew.work(mission)
    assert (again.status, [each.code for each in again.reasons]) == ("failed", ["base_red"])
    assert crew.events(mission, TaskStarted) == []
