"""A malformed message of the agent or a waiting one of the person is requested again, reported or delivered."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import git
from tests.crash_kit import MARK, sleepers, wait_until, wake
from tests.native_kit import NativeKit, says, scripted

from chargehand.core.state import MissionState
from chargehand.missions._messages import NEXT
from chargehand.reports.story import describe
from chargehand.testing.agents import fake_agent as _fake_agent

pytestmark = pytest.mark.needs_bwrap
GARBLES = (
    'echo x > f.txt; test -n "$CHARGEHAND_REPORT" && cp $CHARGEHAND_REPORT said.json || '
    "echo '{' > $CHARGEHAND_MESSAGE"
)
WORKS = (
    'if [ -n "$CHARGEHAND_REPORT" ]; then cp $CHARGEHAND_REPORT said.json; '
    f"else echo x > f.txt; sleep {MARK} || true; fi"
)


class MessageKit(NativeKit):
    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.model("scripted", scripted([says("go on")]))

    def agent(self, agent: str, meanwhile: Any = None, **changes: Any) -> MissionState:
        self.write(f"[agents.it]\n{agent}\n")
        wanted = {"agent": "it", "only_checks": ("true",), **changes}
        return self.work(lambda session: self.create(session, **wanted), meanwhile)

    def shell(self, script: str, meanwhile: Any = None, **changes: Any) -> MissionState:
        command = json.dumps(["sh", "-c", script])
        return self.agent(f'kind = "command"\ncommand = {command}', meanwhile, **changes)

    def said(self, state: MissionState) -> Any:
        return json.loads(git(self.repository, "show", f"{state.exported}:said.json"))


@pytest.fixture
def kit(tmp_path: Path) -> MessageKit:
    return MessageKit(tmp_path)


def test_an_agent_with_malformed_messages_only_is_judged_by_its_work(
    kit: MessageKit,
) -> None:
    command = json.dumps(["python3", "-I", "-c", inspect.getsource(_fake_agent), "claude", "garble-always"])
    agent = f'kind = "cli"\ncli = "claude"\ncommand = {command}'
    state = kit.agent(agent, attempts=1, model="scripted")
    assert state.status == "promoted", state.reasons
    (finding,) = state.verdicts[-1].findings
    assert (finding.rule, finding.severity) == ("malformed_message", "warning")
    assert "malformed 3 times in a row" in finding.message
    asked = [step for step in state.steps.values() if "/asked-again/" in step.step]
    assert [step.output["received"] for step in asked] == ['{"type": "task_completion", "status": "s'] * 2
    assert all("asked again for its message" in describe(step) for step in asked)


def test_a_malformed_message_without_repair_is_reported_to_the_next_attempt(kit: MessageKit) -> None:
    state = kit.shell(GARBLES, attempts=2, only_checks=("ls | grep -q sai",))
    assert [attempt.status for attempt in state.attempts] == ["refused", "succeeded"], state.reasons
    (finding,) = kit.said(state)["payload"]["findings"]
    assert finding["rule"] == "malformed_message"
    assert "was not asked for again" in finding["message"]


@pytest.mark.parametrize(("attempts", "told"), [(2, ["mind the f"]), (1, None)])
def test_a_message_for_the_next_attempt_starts_an_attempt_or_is_undelivered(
    kit: MessageKit, attempts: int, told: list[str] | None
) -> None:
    """Both first attempts are good: if another is left, the agent gets the message before anything is promoted."""

    async def send(app: Any, mission: str) -> None:
        async def until(kind: str) -> None:
            while not any(event.type == kind for event in app.store.log.read(mission)):
                await asyncio.sleep(0.02)

        order = {"mission": mission, "identity": "os:me"}
        await asyncio.to_thread(wait_until, sleepers)
        await app.controls.take({**order, "order": "send", "text": "mind the f", "critical": True})
        await until("question.asked")
        await app.controls.take({**order, "order": "answer", "text": NEXT})
        assert wake()

    state = kit.shell(WORKS, send, attempts=attempts)
    assert (state.status, len(state.attempts)) == ("promoted", attempts), state.reasons
    if told is not None:
        assert kit.said(state)["messages"] == told
        assert not state.undelivered
        return
    (reason,) = state.undelivered.values()
    assert (reason.code, "no further attempt" in reason.message) == ("not_delivered", True)
