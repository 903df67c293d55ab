"""Missions in roles: their permissions, their limits, and the agents that work in them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from tests.integration.mission_kit import FILES
from tests.native_kit import FINISH, NativeKit, call, edit, says, scripted

from chargehand.agents.roles import shipped_roles
from chargehand.core.attempt_events import ActionJudged, RoleChosen
from chargehand.core.events import decode
from chargehand.core.state import MissionState

pytestmark = pytest.mark.needs_bwrap
REPORT = "calc/core.py:2: add() subtracts"


@pytest.fixture
def kit(tmp_path: Path) -> NativeKit:
    return NativeKit(tmp_path)


def role_of(name: str, *, kit: NativeKit, text: str | None = None) -> dict[str, Any]:
    """Return the fields of a request that describe a role, and keep the role's file as an artifact."""
    content = (text or shipped_roles()[name]).encode()
    with kit.opened() as app:
        kept = app.store.artifacts.put(content, kind="role")
    return {"role": name, "role_text": kept, "role_from": f"shipped {name}.toml"}


def run(kit: NativeKit, name: str, *attempts: Any, text: str | None = None, **wanted: Any) -> MissionState:
    kit.model("scripted", scripted(*attempts))
    return kit.native(**role_of(name, kit=kit, text=text), **wanted)


def new(path: str, text: str) -> Any:
    return call("edit", path=path, old="", new=text)


def payloads(kit: NativeKit, mission: str, kind: type[Any]) -> list[Any]:
    with kit.opened() as app:
        lines = app.store.log.read(mission)
    return [decode(line.type, line.payload) for line in lines if line.type == kind.type and line.payload]


def test_a_reviewer_reports_and_cannot_write(kit: NativeKit) -> None:
    tries = says(
        "",
        call("bash", command="echo x >> calc/core.py; touch new.py; git commit -m x --allow-empty; echo done"),
        edit("a - b", "a + b"),
        call("bash", command="echo x > /tmp/scratch && cat /tmp/scratch"),
    )
    ended = run(kit, "reviewer", [tries, says("", call("finish", summary=REPORT, evidence=[]))], attempts=1)
    assert (ended.status, [reason.code for reason in ended.reasons]) == ("promoted", ["report"])
    assert (ended.commit, ended.export, ended.checkpoints) == (None, None, [])
    assert [made.text for made in ended.reports] == [REPORT]
    (attempt,) = ended.attempts
    assert attempt.status == "succeeded"
    results = [str(kit_call) for kit_call in _results(kit, ended.id)]
    assert "Read-only file system" in results[0]
    assert "the role reviewer has no tool 'edit'" in results[1]
    assert "x" in results[2]
    assert "exit code 0" in results[2]
    refused = [each for each in payloads(kit, ended.id, ActionJudged) if each.kind == "tool"]
    assert [(each.text, each.effect, each.rule) for each in refused] == [("edit", "deny", "role_tool")]
    (chosen,) = payloads(kit, ended.id, RoleChosen)
    assert (chosen.role, chosen.digest, chosen.writes) == (
        "reviewer",
        hashlib.sha256(shipped_roles()["reviewer"].encode()).hexdigest(),
        False,
    )
    with kit.opened() as app:
        assert app.store.artifacts.get(chosen.artifact).decode() == shipped_roles()["reviewer"]
        assert app.store.artifacts.get(ended.reports[0].artifact).decode() == REPORT


def _results(kit: NativeKit, mission: str) -> list[str]:
    with kit.opened() as app:
        state = app.mission_reader.state(mission)
    return [
        step.output.get("output", step.output)["text"]
        for name, step in state.steps.items()
        if "/call/" in name and step.output is not None
    ]


def test_an_empty_report_is_requested_again_and_then_refused(kit: NativeKit) -> None:
    empty = [says("", call("finish", summary=" ", evidence=[]))]
    ended = run(kit, "reviewer", empty, empty, attempts=2)
    assert (ended.status, [reason.code for reason in ended.reasons]) == ("refused", ["report_empty"])
    assert len(ended.attempts) == 2
    assert ended.reports == []


def test_another_program_in_a_reading_role_cannot_write_either(kit: NativeKit) -> None:
    command = ["sh", "-c", 'echo y >> calc/core.py; echo "$CHARGEHAND_ROLE: ${CHARGEHAND_ROLE_PROMPT%%.*}"']
    words = f"command:{command[0]} {command[1]} '{command[2]}'"
    ended = kit.native(agent=words, model=None, attempts=1, **role_of("reviewer", kit=kit))
    assert (ended.status, ended.reasons[0].code) == ("promoted", "report")
    assert ended.reports[0].text.strip() == "reviewer: You review"


GREEN = FILES | {"calc/core.py": FILES["calc/core.py"].replace("a - b", "a + b")}
HEAD = "import unittest\n\n\nclass MoreTest(unittest.TestCase):\n"
FAILS = f"""{HEAD}    def test_triple(self):
        from calc.core import triple

        self.assertEqual(triple(2), 6)
"""
PASSES = HEAD + "    def test_nothing(self):\n        self.assertTrue(True)\n"
UNLOADED = "from calc.core import triple\n" + FAILS


def test_a_tester_gets_feedback_until_its_test_fails_on_the_base(tmp_path: Path) -> None:
    kit = NativeKit(tmp_path, GREEN)
    path = "tests/test_more.py"
    away = call("bash", command=f"rm {path}")
    ended = run(
        kit,
        "tester",
        [says("", new(path, PASSES)), FINISH],
        [says("", away, new(path, UNLOADED)), FINISH],
        [says("", away, new(path, FAILS)), FINISH],
    )
    codes = [[reason.code for reason in attempt.reasons] for attempt in ended.attempts]
    assert codes[0] == ["no_failing_test"]
    assert "no_failing_test" in codes[1]
    assert codes[2] == ["failing_test_added"]
    assert (ended.status, ended.commit, ended.questions) == ("waiting", None, {})
    assert [verdict.status for verdict in ended.verdicts if verdict.scope == "attempt"] == ["red", "red", "red"]
    heard = [step.output["texts"][0] for name, step in ended.steps.items() if name.endswith("/opening")]
    assert "every test passes" in heard[1]
    assert "cannot be collected" in heard[2]


def test_new_tests_on_a_failing_base_are_refused_as_inconclusive(kit: NativeKit) -> None:
    ended = run(kit, "tester", [says("", new("tests/test_more.py", FAILS)), FINISH], attempts=1)
    assert (ended.status, ended.reasons[-1].code) == ("refused", "tests_untold")


def test_an_architect_leaves_a_decision_record_and_no_code(tmp_path: Path) -> None:
    kit = NativeKit(tmp_path, GREEN)
    record = "# 0001: triple\n\n" + "We decided to add triple beside double, for the same callers. " * 5
    ended = run(
        kit,
        "architect",
        [says("", new("calc/new.py", "x = 1\n"), new("docs/decisions/0001-triple.md", record)), FINISH],
        [says("", call("bash", command="rm -r docs"), new("docs/triple.md", record)), FINISH],
        [says("", new("docs/decisions/0001-triple.md", record)), FINISH],
        allow=("docs/**", "*.md"),
    )
    codes = [[reason.code for reason in attempt.reasons] for attempt in ended.attempts]
    assert codes == [["area_outside"], ["no_decision_record"], []]
    assert ended.status == "promoted"


def test_a_role_file_that_was_changed_counts_for_the_next_mission_alone(kit: NativeKit) -> None:
    """A mission keeps the role text that it was requested with, even if the file changes."""
    text = shipped_roles()["developer"].replace('"bash", ', "")
    tries = [says("", call("bash", command="touch new.py"), edit("a - b", "a + b")), FINISH]
    ended = run(kit, "developer", tries, attempts=1, text=text)
    assert ended.status == "promoted"
    (refused,) = [each for each in payloads(kit, ended.id, ActionJudged) if each.kind == "tool"]
    assert refused.text == "bash"
    assert "its tools are read, edit" in refused.reason
