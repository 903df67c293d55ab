"""Crews: testers hand their tests on, reviewers object and vote, and a failing test decides."""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from pathlib import Path
from typing import Any

import pytest
from test_coordinator import Crew, branch, task
from tests.conftest import git, make_repository

from chargehand.app.composition import App
from chargehand.app.requests import plan_request, record_mission
from chargehand.configuration.run_options import RunRequest
from chargehand.core.errors import ChargehandError
from chargehand.core.mission_events import QuestionAsked
from chargehand.core.plan_events import TaskEnded, TaskMerged, TaskReturned, TaskReviewed, TaskStarted
from chargehand.reports.story import show_plan

pytestmark = pytest.mark.needs_bwrap

CALC = "def double(x):\n    return x + x\n"
TESTS = """import unittest
from calc import double


class T(unittest.TestCase):
    def test_two(self):
        self.assertEqual(double(2), 4)
"""
TRIPLE = """import unittest


class U(unittest.TestCase):
    def test_triple(self):
        from calc import triple
        self.assertEqual(triple(2), 6)
        self.assertEqual(triple(0), 0)
"""
CHECK = "python3 -m unittest discover -s tests -t ."


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    place = tmp_path / "place"
    place.mkdir()
    files = {"calc.py": CALC, "tests/__init__.py": "", "tests/test_calc.py": TESTS}
    return Crew(place, make_repository(tmp_path / "repo", files))


def script(body: str) -> str:
    """Return the agent that runs a Python program, packed into one line as a plan needs it."""
    program = f"import os, pathlib\nrequest = os.environ['CHARGEHAND_REQUEST']\n{body}"
    packed = base64.b64encode(zlib.compress(program.encode(), 9)).decode()
    run = f"import base64, zlib; exec(zlib.decompress(base64.b64decode('{packed}')))"
    return f"command:python3 -c {shlex.quote(run)}"


def writes(path: str, content: str) -> str:
    return script(f"pathlib.Path({path!r}).write_text({content!r})\n")


def review(*points: str, evidence: tuple[str, ...] = ("read it",)) -> str:
    """Return the program of a reviewer that ends with these points."""
    payload = {"summary": "looked", "evidence": evidence, "open_points": points}
    message = json.dumps({"type": "task_completion", "status": "success", "payload": payload})
    return f"pathlib.Path(os.environ['CHARGEHAND_MESSAGE']).write_text({message!r})\nprint('looked')\n"


def leaves(notes: dict[str, str]) -> str:
    """Return the program of an agent that ends with these notes for others."""
    payload = {"summary": "done", "evidence": ["saw it"], "notes": notes}
    message = json.dumps({"type": "task_completion", "status": "success", "payload": payload})
    return f"pathlib.Path(os.environ['CHARGEHAND_MESSAGE']).write_text({message!r})\n"


def record(crew: Crew, tasks: list[dict[str, Any]], **reviewers: str) -> str:
    """Record a plan whose reviewers are these agents, by role."""
    team = [{"role": role, "agent": agent} for role, agent in reviewers.items()]
    return crew.record(tasks, CHECK, team=team)


GOOD = CALC + "\n\ndef triple(x):\n    return 3 * x\n"
WRONG = CALC + "\n\ndef triple(x):\n    return 6\n"


def test_a_developer_makes_the_test_of_a_tester_pass(crew: Crew) -> None:
    tester = writes("tests/test_triple.py", TRIPLE)
    mission = record(
        crew,
        [
            task("test", tester, role="tester"),
            task("code", writes("calc.py", GOOD), after=["test"]),
        ],
    )
    state = crew.work(mission)
    assert (state.status, state.reasons) == ("promoted", ())
    assert set(crew.children(mission).values()) == {"promoted"}
    made = branch(crew, state)
    # One commit: the developer's change, with the test that it was made for.
    assert len(git(crew.repo, "log", "--format=%s", f"main..{made}").splitlines()) == 1
    assert git(crew.repo, "show", f"{made}:tests/test_triple.py") == TRIPLE.strip()
    ends = {event.task: event.outcome for event in crew.events(mission, TaskEnded)}
    assert ends == {"test": "done", "code": "merged"}


def test_notes_reach_only_their_recipients(crew: Crew) -> None:
    first = "pathlib.Path('a').touch()\n" + leaves({"everyone": "to-all", "c": "to-c", "security": "to-security"})
    keeps = "pathlib.Path({!r}).write_text(request)\n"
    mission = record(
        crew,
        [
            task("a", script(first)),
            task("b", script(keeps.format("b.txt")), after=["a"], reviewers=["security"]),
            task("c", script(keeps.format("c.txt")), after=["b"]),
        ],
        security=script(leaves({"c": "of-the-reviewer"})),
    )
    state = crew.work(mission)
    assert (state.status, state.reasons) == ("promoted", ())
    made = branch(crew, state)
    words = {"to-all", "to-c", "to-security", "of-the-reviewer"}

    def told(text: str) -> set[str]:
        return {word for word in words if word in text}

    assert told(git(crew.repo, "show", f"{made}:b.txt")) == {"to-all"}
    assert told(git(crew.repo, "show", f"{made}:c.txt")) == {"to-all", "to-c", "of-the-reviewer"}
    assert state.plan is not None
    (reviewed,) = state.plan.tasks["b"].reviews
    with App.open(environ=crew.environ, cwd=crew.place) as app:
        request = app.mission_reader.at_rest(reviewed.mission).request
        shown = show_plan(app, mission)
    assert request is not None
    assert told(request.text) == {"to-all", "to-security"}
    notes = {task.id: {(each.reader, each.text) for each in task.notes} for task in shown.tasks}
    assert notes["a"] == {("everyone", "to-all"), ("c", "to-c"), ("security", "to-security")}
    assert notes["b"] == {("c", "of-the-reviewer")}


def test_a_developer_cannot_weaken_the_test_of_the_tester(crew: Crew) -> None:
    tester = writes("tests/test_triple.py", TRIPLE)
    weakens = f"pathlib.Path('calc.py').write_text({WRONG!r})\np = pathlib.Path('tests/test_triple.py')\n"
    weakens += "p.write_text(p.read_text().replace('        self.assertEqual(triple(0), 0)\\n', ''))\n"
    mission = record(
        crew,
        [task("test", tester, role="tester"), task("code", script(weakens), after=["test"])],
    )
    state = crew.work(mission)
    assert state.status == "waiting"
    assert not crew.events(mission, TaskMerged)


def test_a_failing_test_without_a_developer_task_asks_a_person(crew: Crew) -> None:
    mission = record(
        crew,
        [task("test", writes("tests/test_triple.py", TRIPLE), role="tester"), task("other", writes("x.txt", "x"))],
    )
    state = crew.work(mission)
    assert state.status == "waiting"
    (asked,) = crew.events(mission, QuestionAsked)
    assert asked.reasons[0].code == "failing_test_added"


@pytest.mark.parametrize("answer", ["retry", "skip"])
def test_tests_that_conflict_are_never_dropped_unasked(crew: Crew, answer: str) -> None:
    """Two testers add the same file; no developer can be given both."""
    other = TRIPLE.replace("triple(0), 0", "triple(1), 3")
    mission = record(
        crew,
        [
            task("one", writes("tests/test_triple.py", TRIPLE), role="tester"),
            task("two", writes("tests/test_triple.py", other), role="tester"),
            task("code", writes("calc.py", GOOD), after=["one", "two"]),
        ],
    )
    state = crew.work(mission)
    assert state.status == "waiting"
    (asked,) = crew.events(mission, QuestionAsked)
    assert asked.reasons[0].code == "tests_conflict"
    assert "tests/test_triple.py" in asked.text
    assert "code" not in {event.task for event in crew.events(mission, TaskStarted)}
    done = crew.answer(mission, answer)
    assert done.status == "promoted", done.reasons
    ends = {event.task: event.outcome for event in crew.events(mission, TaskEnded)}
    assert ends["code"] == ("merged" if answer == "retry" else "left_out")
    if answer == "retry":  # with the first one's test, which conflicts with nothing
        assert git(crew.repo, "show", f"{branch(crew, done)}:tests/test_triple.py") == TRIPLE.strip()


def test_a_rejected_result_is_returned_and_merged_once_approved(crew: Crew) -> None:
    """The reviewer wants a docstring; the developer adds it only on request."""
    wants = "Triple the number."
    told = GOOD.replace("    return 3", f'    """{wants}"""\n    return 3')
    body = f"text = {told!r} if 'wants a docstring' in request else {GOOD!r}\n"
    developer = script(body + "pathlib.Path('calc.py').write_text(text)\n")
    looks = f"if {wants!r} in pathlib.Path('calc.py').read_text():\n"
    said = "".join("    " + line + "\n" for line in review().splitlines())
    objects = "".join("    " + line + "\n" for line in review("calc.py wants a docstring").splitlines())
    reviewer = script(f"{looks}{said}else:\n{objects}")
    mission = record(crew, [task("code", developer, reviewers=["reviewer"])], reviewer=reviewer)
    state = crew.work(mission)
    assert (state.status, state.reasons) == ("promoted", ())
    first, second = crew.events(mission, TaskReviewed)
    assert (first.decision, second.decision) == ("revise", "accepted")
    assert first.votes[0].points == ("calc.py wants a docstring",)
    assert [event.rung for event in crew.events(mission, TaskStarted)] == ["first", "returned"]
    assert wants in git(crew.repo, "show", f"{branch(crew, state)}:calc.py")


@pytest.mark.parametrize(("others", "decision"), [(2, "accepted"), (1, "disputed")])
def test_after_two_revisions_the_votes_are_counted(crew: Crew, others: int, decision: str) -> None:
    developer = writes("calc.py", GOOD)
    never = script(review("I do not like it"))
    happy = script(review())
    roles = ["security", "reviewer", "architect"][: others + 1]
    # An architect writes; here it is one more reader, in another role.
    roles = [role if role != "architect" else "planner" for role in roles]
    agents = {role: never if role == "security" else happy for role in roles}
    mission = record(crew, [task("code", developer, reviewers=roles)], **agents)
    state = crew.work(mission)
    reviews = crew.events(mission, TaskReviewed)
    assert [each.decision for each in reviews] == ["revise", "revise", decision]
    assert len(crew.events(mission, TaskReturned)) == 2
    if decision == "accepted":
        assert state.status == "promoted"
        return
    asked = state.open_question
    assert asked is not None
    assert asked.options == ("accept", "retry", "skip", "stop")
    assert crew.answer(mission, "accept").status == "promoted"
    assert [event.task for event in crew.events(mission, TaskMerged)] == ["code"]


def test_an_approval_without_evidence_does_not_count(crew: Crew) -> None:
    silent = script(review(evidence=()))
    prints = script("print('All good, I approve.')\n")
    developer = writes("calc.py", GOOD)
    for agent in (silent, prints):
        mission = record(crew, [task("code", developer, reviewers=["reviewer"])], reviewer=agent)
        state = crew.work(mission)
        (reviewed,) = crew.events(mission, TaskReviewed)
        assert (state.status, reviewed.decision, reviewed.votes[0].vote) == ("waiting", "disputed", "abstained")


def test_a_test_beats_the_votes(crew: Crew) -> None:
    """Two reviewers approve wrong code that the checks pass; the tester among the reviewers exposes it."""
    developer = script(
        "there = pathlib.Path('tests/test_triple.py').exists()\n"
        f"pathlib.Path('calc.py').write_text({GOOD!r} if there else {WRONG!r})\n",
    )
    happy = script(review())
    tester = writes("tests/test_triple.py", TRIPLE)
    roles = ["reviewer", "security", "tester"]
    agents = {"reviewer": happy, "security": happy, "tester": tester}
    mission = record(crew, [task("code", developer, reviewers=roles)], **agents)
    state = crew.work(mission)
    assert (state.status, state.reasons) == ("promoted", ())
    first, second = crew.events(mission, TaskReviewed)
    assert (first.decision, second.decision) == ("revise", "accepted")
    assert [vote.proven for vote in first.votes] == [False, False, True]
    made = branch(crew, state)
    assert git(crew.repo, "show", f"{made}:calc.py") == GOOD.strip()
    assert git(crew.repo, "show", f"{made}:tests/test_triple.py") == TRIPLE.strip()


def test_a_team_tests_first_and_reviews_before_the_merge(crew: Crew) -> None:
    """The shipped team, with agents of the user's own in its roles."""
    teams = crew.place / "config/chargehand/teams"
    teams.mkdir(parents=True)
    agents = {
        "tester": writes("tests/test_triple.py", TRIPLE),
        "developer": writes("calc.py", GOOD),
        "reviewer": script(review()),
    }
    members = "".join(
        f"[[members]]\nrole = {role!r}\nagent = {json.dumps(agent)}\n"
        + ('reviewers = ["reviewer"]\n' if role == "developer" else "")
        for role, agent in agents.items()
    )
    (teams / "ours.toml").write_text(f'summary = "ours"\nsteps = ["tester", "developer"]\n{members}')
    asked = RunRequest(text="Add triple", team="ours", agent="command:true", only_checks=(CHECK,), yes=True)
    with App.open(environ=crew.environ, cwd=crew.repo) as app:
        request, plan = plan_request(app, asked)
        mission = record_mission(app, request, plan=plan)
    state = crew.work(mission)
    assert (state.status, state.reasons) == ("promoted", ())
    assert [event.decision for event in crew.events(mission, TaskReviewed)] == ["accepted"]
    names = git(crew.repo, "diff", "--name-only", f"main..{branch(crew, state)}").split()
    assert names == ["calc.py", "tests/test_triple.py"]
    with crew.opened() as app:
        tested, developed = show_plan(app, mission).tasks
    (seen,) = developed.reviews
    assert (seen.role, seen.of, seen.status, seen.vote) == (
        "reviewer",
        developed.missions[-1],
        "promoted",
        "approves",
    )
    assert not tested.reviews


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no team named"),
        ("steps = [", "ours.toml"),
        ('summary = "x"\nsteps = []', "steps must name"),
        ('summary = "x"\nsteps = ["No"]', "not a role name"),
        ('summary = "x"\nsteps = ["nobody"]', "no role named 'nobody'"),
        ('summary = "x"\nsteps = ["developer"]\nboss = 1', "boss"),
        (
            'summary = "x"\nsteps = ["developer"]\n[[members]]\nrole = "developer"\nreviewers = ["architect"]',
            "cannot review",
        ),
    ],
)
def test_an_invalid_team_is_an_error_before_any_work(crew: Crew, content: str | None, message: str) -> None:
    teams = crew.place / "config/chargehand/teams"
    teams.mkdir(parents=True)
    if content is not None:
        (teams / "ours.toml").write_text(content)
    asked = RunRequest(text="x", team="ours", agent="command:true", only_checks=(CHECK,), yes=True)
    with App.open(environ=crew.environ, cwd=crew.repo) as app:

        def ask() -> None:
            request, plan = plan_request(app, asked)
            record_mission(app, request, plan=plan)

        with pytest.raises(ChargehandError) as error:
            ask()
        assert message in error.value.message
        assert error.value.hint
        assert not list(app.mission_reader.all())


def test_the_reviewer_is_the_agent_configured_for_the_role(crew: Crew) -> None:
    """The agent of the whole run must not review its own work."""
    file = crew.place / "config/chargehand/config.toml"
    file.parent.mkdir(parents=True)
    words = shlex.split(script(review()).removeprefix("command:"))
    file.write_text(f"[agents.critic]\ncommand = {json.dumps(words)}\n[roles.reviewer]\nagent = 'critic'\n")
    mission = crew.record([task("code", writes("calc.py", GOOD), reviewers=["reviewer"])], CHECK)
    state = crew.work(mission)
    assert (state.status, state.reasons) == ("promoted", ())
    (reviewed,) = crew.events(mission, TaskReviewed)
    assert [vote.vote for vote in reviewed.votes] == ["approves"]
    with crew.opened() as app:
        reviewer = app.mission_reader.state(reviewed.votes[0].mission).request
    assert reviewer is not None
    assert (reviewer.agent, reviewer.why) == ("critic", "[roles.reviewer]")
