"""Missions whose agent is an external program or a patch: their branches and logs, and no leaked key."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.conftest import git
from tests.native_kit import NativeKit, says, scripted

from chargehand.cli.main import chargehand
from chargehand.core.attempt_events import ActionJudged
from chargehand.core.events import decode
from chargehand.core.state import MissionState
from chargehand.missions.journal import load_step_output
from chargehand.missions.transcript import read_transcript
from chargehand.models.contract import Usage
from chargehand.testing.agents import fake_agent as _fake_agent

pytestmark = pytest.mark.needs_bwrap
CANARY = "sk-canary-0123456789abcdef0123456789"
PATCH = """--- a/calc/core.py
+++ b/calc/core.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""
SOUND = "cat calc/*"


class ProgramKit(NativeKit):
    """Missions with a fake agent, scripted models, and API keys in its environment."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.environ["OPENAI_API_KEY"] = self.environ["ANTHROPIC_API_KEY"] = CANARY
        self.model("scripted", scripted([says("go on", usage=Usage(input=200, output=300))] * 80))

    def work_as(
        self, agent: str, more: str = "", *, model: str | None = "scripted", **changes: Any
    ) -> MissionState:
        self.write(f"[agents.it]\n{agent}\n", more)
        wanted = {"agent": "it", "model": model, "only_checks": (SOUND,), "attempts": 1, **changes}
        return self.work(lambda session: self.create(session, **wanted))

    def cli(self, act: str) -> str:
        command = ["python3", "-I", "-c", inspect.getsource(_fake_agent), "claude", act]
        return f'kind = "cli"\ncli = "claude"\ncommand = {json.dumps(command)}'

    def acp(self, act: str) -> str:
        command = ["python3", "-I", "-c", inspect.getsource(_fake_agent), "acp", act]
        return f'kind = "acp"\ncommand = {json.dumps(command)}'

    def say(self, *words: str) -> str:
        """Run a command to its end as in a pipe, and return its stdout."""
        done = CliRunner(env={"XDG_CONFIG_HOME": None, "LANG": "C.UTF-8", **self.environ}).invoke(
            chargehand, words
        )
        assert done.exit_code == 0, done.stderr
        return done.stdout

    def told(self, state: MissionState) -> Any:
        with self.opened() as app:
            (step,) = [step for step in state.steps.values() if "/told/" in step.step]
            return load_step_output(app.store, step)

    def judged(self, state: MissionState) -> list[ActionJudged]:
        with self.opened() as app:
            lines = app.store.log.read(state.id)
            return [
                event
                for line in lines
                if line.payload
                for event in (decode(line.type, line.payload),)
                if isinstance(event, ActionJudged)
            ]


@pytest.fixture
def kit(tmp_path: Path) -> ProgramKit:
    return ProgramKit(tmp_path)


def test_the_token_count_of_a_cli_agent_agrees_with_the_ledger(kit: ProgramKit) -> None:
    state = kit.work_as(kit.cli("pay"))
    assert state.status == "promoted", state.reasons
    assert git(kit.repository, "show", f"{state.exported}:made.txt") == "made"
    told = kit.told(state)
    assert told["agrees"] is True
    assert told["metered"] == {"calls": 2, "input": 400, "output": 600}
    with kit.opened() as app:
        assert app.store.spending.total(mission=state.id).booked_usd == pytest.approx(1000 * 10 / 1e6)
        read_transcript = [json.loads(line) for line in app.store.artifacts.get(told["artifact"]).splitlines()]
    assert [line["kind"] for line in read_transcript] == ["session", "text", "call", "result", "text", "end"]


@pytest.mark.parametrize(("way", "tool"), [("cli", "write"), ("acp", "edit")])
def test_the_transcript_has_the_output_of_the_agent_marked_as_such(kit: ProgramKit, way: str, tool: str) -> None:
    state = kit.work_as(getattr(kit, way)("edit"))
    with kit.opened() as app:
        lines = list(read_transcript(app.store, state))
    assert all(line.own_word and line.attempt == 1 and line.reply == "" for line in lines)
    assert [line.speaker for line in lines].count("agent") >= 2
    assert [(line.speaker, line.tool) for line in lines if line.tool] == [("call", tool), ("result", tool)]
    text = kit.say("mission", "log", state.id, "--transcript")
    assert f"1  the agent says it calls {tool}" in text
    assert "made.txt" in text
    said = kit.say("--json", "mission", "log", state.id, "--transcript")
    assert {json.loads(line)["own_word"] for line in said.splitlines()} == {True}


def test_an_error_reported_by_an_agent_is_in_its_transcript(kit: ProgramKit) -> None:
    state = kit.work_as(kit.cli("fail"))
    with kit.opened() as app:
        errors = [line.text for line in read_transcript(app.store, state) if line.speaker == "error"]
    assert errors == ["the model does not answer"]
    assert "the agent reports an error" in kit.say("mission", "log", state.id, "--transcript")


def test_an_acp_agents_acts_are_judged_and_in_the_log(kit: ProgramKit) -> None:
    state = kit.work_as(kit.acp("edit"))
    assert state.status == "promoted", state.reasons
    acts = [event for event in kit.judged(state) if event.kind not in ("check", "launch")]
    assert [(event.kind, event.text, event.effect) for event in acts] == [
        ("write", "/workspace/made.txt", "allow"),
        ("write", "/workspace/made.txt", "allow"),
        ("read", "/workspace/made.txt", "allow"),
    ]


def test_an_acp_agents_question_waits_for_a_person(kit: ProgramKit) -> None:
    state = kit.work_as(kit.acp("ask"))
    assert state.status == "waiting"
    (question,) = state.questions.values()
    assert (question.text, question.options) == ("Which?\nword", ("red", "green"))


@pytest.mark.parametrize("way", ["cli", "acp"])
def test_no_budget_is_outspent_and_no_key_is_anywhere(kit: ProgramKit, way: str) -> None:
    state = kit.work_as(getattr(kit, way)("insist"), "[limits]\nbudget_usd = 0.03")
    assert (state.status, state.reasons[0].code) == ("exhausted", "budget"), state.reasons
    with kit.opened() as app:
        assert 0.02 < app.store.spending.total(mission=state.id).booked_usd <= 0.03
    state = kit.work_as(getattr(kit, way)("leak"))
    assert state.status == "promoted", state.reasons
    holders = [path for path in kit.home.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert holders == []


def test_a_patch_applies_from_file_or_request_and_fails_on_a_mismatch(kit: ProgramKit) -> None:
    (kit.place / "mend.patch").write_text(PATCH)
    named = kit.work_as(f'kind = "patch"\npatch = "{kit.place}/mend.patch"', model=None)
    inline = kit.work_as('kind = "patch"', model=None, text=PATCH)
    assert [named.status, inline.status] == ["promoted", "promoted"], (named.reasons, inline.reasons)
    trees = {git(kit.repository, "rev-parse", f"{state.exported}^{{tree}}") for state in (named, inline)}
    assert len(trees) == 1
    assert "return a + b" in git(kit.repository, "show", f"{named.exported}:calc/core.py")
    wrong = kit.work_as('kind = "patch"', model=None, text=PATCH.replace("a - b", "a * b"))
    assert (wrong.status, wrong.reasons[0].code) == ("failed", "patch_failed")
