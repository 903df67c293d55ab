"""A native agent delegates parts of its task in its `finish`, and the agents of the parts are native too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.conftest import git
from tests.integration.command_line import repository
from tests.integration.test_coordinator import Crew, branch, task
from tests.native_kit import FINISH, call, says, scripted

from chargehand.app.missions import children_of
from chargehand.core.errors import ChargehandError
from chargehand.core.mission_events import QuestionAsked
from chargehand.core.plan_events import PlanMade, TaskDelegated, TaskEnded, TaskMerged
from chargehand.missions.transcript import read_transcript
from chargehand.models.scripts import Script
from chargehand.reports.plan_graph import plan_tree
from chargehand.reports.story import show_plan

pytestmark = pytest.mark.needs_bwrap
PARTS = [
    {"id": "docs", "text": "Describe the flag", "role": "developer"},
    {"id": "tests", "text": "Test the flag", "role": "developer", "after": ["docs"], "deadline": 600},
]
DONE = {"summary": "the flag is there", "evidence": ["ran it"]}
# The part in the first finish is invalid: the model hears so, and finishes again.
HANDS_ON = (
    says("", call("bash", command="echo flag > sub/flag.txt")),
    says("", call("finish", **DONE, delegate=[{"id": "docs", "role": "developer"}])),
    says("", call("finish", **DONE, delegate=PARTS)),
)
# It writes a list of the files it finds: those of the delegating task, and of the part before it.
WRITES = (says("", call("bash", command="mkdir -p made && ls sub made > made/$(ls made | wc -l).txt")), FINISH)


class NativeCrew(Crew):
    """A crew whose agents are native, on models that are scripts behind the gateway."""

    def __init__(self, place: Path, repo: Path) -> None:
        super().__init__(place, repo)
        self.directory = place / "config/chargehand"
        self.directory.mkdir(parents=True)
        self.models: dict[str, str] = {}

    def model(self, name: str, script: Script, **keys: object) -> None:
        path = self.place / f"{name}.jsonl"
        path.write_bytes(script.dump())
        values = {"provider": "script", "script": str(path), "price": 1.0, **keys}
        lines = (f"{key} = {json.dumps(value)}" for key, value in values.items())
        self.models[name] = "\n".join([f"[models.{name}]", *lines])
        (self.directory / "config.toml").write_text("\n\n".join(self.models.values()) + "\n")


@pytest.fixture
def crew(tmp_path: Path) -> NativeCrew:
    (tmp_path / "place").mkdir()
    return NativeCrew(tmp_path / "place", repository(tmp_path / "repo"))


def native(name: str, model: str, **more: object) -> dict[str, object]:
    return task(name, "native", models=[model], **more)


LATE = PARTS[0] | {"deadline": 4.0}
TEAM = [{"role": "developer", "agent": "native", "models": ["writes"]}]


def test_parts_of_a_native_agent_are_done_by_native_agents(crew: NativeCrew) -> None:
    script = scripted(HANDS_ON)
    told = [replace(line, expect=("field `text`",) if line.turn == 3 else ()) for line in script.lines]
    crew.model("hands", replace(script, lines=tuple(told)))
    crew.model("writes", scripted(WRITES))
    mission = crew.record([native("flag", "hands"), task("last", after=["flag"])], team=TEAM)
    state = crew.work(mission)
    assert (state.status, state.reasons) == ("promoted", ())
    assert [each.task for each in crew.events(mission, TaskMerged)] == ["flag", "flag.docs", "flag.tests", "last"]
    (handed,) = crew.events(mission, TaskDelegated)
    assert (handed.task, handed.tasks, handed.refused) == ("flag", ("flag.docs", "flag.tests"), None)
    assert [event.identity for event in crew.events(mission, PlanMade)][1:] == ["task flag"]
    made = branch(crew, state)
    assert "flag.txt" in git(crew.repo, "show", f"{made}:made/0.txt")
    assert "0.txt" in git(crew.repo, "show", f"{made}:made/1.txt")
    with crew.opened() as app:
        children = {each.task: each for each in children_of(app, mission)}
        attempts = {name: each.attempts[0] for name, each in children.items() if name != "last"}
        result = [line.text for line in read_transcript(app.store, app.mission_reader.state(children["flag"].id))]
    assert {name: each.calls for name, each in attempts.items()} == {"flag": 3, "flag.docs": 2, "flag.tests": 2}
    assert all(each.cost_known for each in attempts.values())
    assert any("finish was not understood" in text for text in result)


def test_a_model_without_tools_hands_on_in_words_and_a_bad_part_is_refused_and_shown(crew: NativeCrew) -> None:
    """The result is merged all the same, and `mission plan` says why no agent does the part."""
    finish = {"name": "finish", "arguments": DONE | {"delegate": [PARTS[0] | {"role": "nobody"}]}}
    acts = {"name": "bash", "arguments": {"command": "echo flag > sub/flag.txt"}}
    written = [says(f"```tool\n{json.dumps(each)}\n```") for each in (acts, finish)]
    crew.model("plain", scripted(written), tools=False)
    mission = crew.record([native("flag", "plain"), task("last", after=["flag"])], team=[])
    assert crew.work(mission).status == "promoted"
    (handed,) = crew.events(mission, TaskDelegated)
    assert handed.refused is not None
    assert "no role named 'nobody'" in handed.refused.message
    with crew.opened() as app:
        rows = [(row.name.strip(), row.status, row.why) for row in plan_tree(show_plan(app, mission))]
    assert ("handed on", "refused", handed.refused.message) in rows


def test_the_deadline_of_a_part_stops_a_native_agent_and_a_person_decides(crew: NativeCrew) -> None:
    crew.model("hands", scripted((HANDS_ON[0], says("", call("finish", **DONE, delegate=[LATE])))))
    slow = (says("", call("bash", command="sleep 600", timeout=600)), FINISH)
    crew.model("writes", scripted(slow))
    mission = crew.record([native("flag", "hands"), task("last", after=["flag"])], team=TEAM)
    assert crew.work(mission).status == "waiting"
    (asked,) = crew.events(mission, QuestionAsked)
    assert (asked.question, asked.reasons[0].code) == ("task/flag.docs/1", "deadline")
    assert crew.answer(mission, "skip").status == "promoted"
    ends = {event.task: event.outcome for event in crew.events(mission, TaskEnded)}
    assert ends == {"flag": "merged", "flag.docs": "left_out", "last": "merged"}


def test_a_team_with_an_unknown_role_is_refused_before_recording(crew: NativeCrew) -> None:
    """Agents would be offered the role for delegation."""
    with pytest.raises(ChargehandError, match="team: no role named 'writer'") as raised:
        crew.record([task("a"), task("b")], team=[{"role": "writer", "agent": "command:true"}])
    assert raised.value.hint
