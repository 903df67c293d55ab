"""Actions of a native agent judged on real missions: only the model's words are scripted."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.native_kit import FINISH, GOOD, MENDS, NativeKit, call, edit, says, scripted

from chargehand.core.attempt_events import ActionJudged
from chargehand.core.events import decode
from chargehand.missions.transcript import read_transcript

pytestmark = pytest.mark.needs_bwrap


@pytest.fixture
def kit(tmp_path: Path) -> NativeKit:
    return NativeKit(tmp_path)


def judged(kit: NativeKit, mission: str) -> list[ActionJudged]:
    with kit.opened() as app:
        found = [decode(line.type, line.payload) for line in app.store.log.read(mission) if line.payload]
    return [payload for payload in found if isinstance(payload, ActionJudged) and payload.attempt]


def results(kit: NativeKit, mission: str) -> list[str]:
    with kit.opened() as app:
        lines = read_transcript(app.store, app.mission_reader.state(mission))
        return [line.text for line in lines if line.speaker == "result"]


PUSH = says("", call("bash", command="touch pushed && git push origin main"))


def test_a_denied_command_is_not_run_and_the_mission_continues(kit: NativeKit) -> None:
    kit.model("scripted", scripted((PUSH, says("", call("bash", command="ls")), *MENDS)))
    state = kit.native()
    assert state.status == "promoted", state.reasons
    refused, listed, _ = results(kit, state.id)
    assert "git-push" in refused
    assert "pushed" not in listed
    assert [(each.kind, each.effect, each.rule) for each in judged(kit, state.id)] == [
        ("shell", "deny", "git-push"),
        ("shell", "allow", "program"),
        ("write", "allow", "write-workspace"),
    ]


def test_an_override_is_recorded_in_the_mission(kit: NativeKit) -> None:
    (kit.directory / "policy.cedar").write_text(
        '@id("mirror") @overrides("git-push") @reason("a mirror of mine") permit (principal, action, resource);'
    )
    kit.model("scripted", scripted((PUSH, *MENDS)))
    state = kit.native()
    assert state.status == "promoted", state.reasons
    first, *_ = judged(kit, state.id)
    assert (first.effect, first.rule, first.overridden) == ("allow", "user:mirror", ("git-push",))
    assert "not done" not in results(kit, state.id)[0]


@pytest.mark.parametrize(("answer", "ran"), [("yes", True), ("better not", False)])
def test_an_action_that_needs_approval_waits_for_a_person(kit: NativeKit, answer: str, ran: bool) -> None:
    drop = says("", call("bash", command="touch asked; git branch -D gone 2>/dev/null; ls"))
    kit.model("scripted", scripted((says("", edit(*GOOD)), drop, says("", call("bash", command="ls")), FINISH)))
    state = kit.native()
    assert state.status == "waiting", state.reasons
    question = state.open_question
    assert question is not None
    assert "git branch" in question.text
    assert "git-history" in question.text
    assert len(results(kit, state.id)) == 1
    with kit.opened() as app:
        app.steering.answer(state.id, answer)
    state = kit.work(state.id)
    _, asked, listed, *_ = results(kit, state.id)
    assert ("asked" in listed) is ran
    assert ran or "better not" in asked
    effects = [(each.effect, each.answer) for each in judged(kit, state.id) if each.rule == "git-history"]
    assert effects == [("ask", ""), ("allow" if ran else "deny", answer)]


def test_a_repository_can_only_restrict(tmp_path: Path) -> None:
    from tests.integration.mission_kit import FILES

    rule = (
        '@id("no-ls") forbid (principal, action == Action::"command", resource) when { context.program == "ls" };'
    )
    kit = NativeKit(tmp_path, {**FILES, "chargehand.cedar": rule})
    kit.model("scripted", scripted((says("", call("bash", command="ls")), *MENDS)))
    state = kit.native()
    assert state.status == "promoted", state.reasons
    assert judged(kit, state.id)[0].rule == "repository:no-ls"
