"""How a native agent's last message ends its attempt: malformed ones are requested twice more, questions wait."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.native_kit import FINISH, GOOD, MENDS, NativeKit, call, edit, says, scripted

from chargehand.core.state import MissionState

pytestmark = pytest.mark.needs_bwrap
WRONG = says("", call("finish", summary="done", evidence=["PASS"], status="pass"))


@pytest.fixture
def kit(tmp_path: Path) -> NativeKit:
    return NativeKit(tmp_path)


def ended(state: MissionState) -> tuple[str, Any, Any]:
    (received,) = state.received
    return state.status, received.message["type"], received.message["status"]


def test_two_malformed_ends_are_asked_again(kit: NativeKit) -> None:
    kit.model("scripted", scripted((MENDS[0], WRONG, WRONG, FINISH)))
    state = kit.native(attempts=1)
    assert ended(state) == ("promoted", "task_completion", "success"), state.reasons


# Malformed ends that a model repeats: the reply, the reason's code, and words of the reason.
FORMLESS = {
    "a malformed finish": (WRONG, "malformed_message", "'pass'"),
    "a reply that is none": (says("```tool\n{oops\n```"), "malformed_message", "reply was malformed 3 times"),
    "a last word": (says("All done!"), "no_finish", "last 3 replies called no tool"),
}


@pytest.mark.parametrize("formless", FORMLESS)
@pytest.mark.parametrize(
    ("first", "status"),
    [("a + b", "promoted"), ("a * b", "refused"), (None, "failed")],
    ids=["good", "bad", "none"],
)
def test_work_is_judged_whatever_the_form_of_its_end(
    kit: NativeKit, formless: str, first: str | None, status: str
) -> None:
    """Without work there is nothing to judge: the attempt fails, or asks if the model only talks."""
    reply, code, words = FORMLESS[formless]
    wrote = json.dumps({"name": "edit", "arguments": {"path": "calc/core.py", "old": "a - b", "new": first}})
    begins = (says(f"```tool\n{wrote}\n```"),) if first else ()
    kit.model("scripted", scripted((*begins, *[reply] * 12)), tools=formless == "a malformed finish")
    if first and formless == "a malformed finish":
        kit.model("scripted", scripted((says("", edit("a - b", first)), *[reply] * 12)))
    state = kit.native(attempts=1)
    if first is None and code == "no_finish":
        assert state.open_question is not None
        assert state.open_question.text.startswith("The agent is going in circles")
        return
    assert state.status == status, state.reasons
    if first is None:
        (reason,) = state.reasons
        assert (reason.code, words in reason.message) == (code, True)
        return
    (found,) = (found for found in state.verdicts[-1].findings if found.rule == code)
    assert (found.severity, words in found.message) == ("warning", True)
    (received,) = state.received
    assert (received.message["type"], received.message["payload"]["code"]) == ("error_report", code)


def test_a_question_waits_for_its_answer_and_the_count_survives(kit: NativeKit) -> None:
    question = says("", call("finish", summary="which way?", evidence=[], status="request_clarification"))
    begin = says("", edit(*GOOD), call("finish", summary="half", evidence=[], status="in_progress"))
    kit.model("scripted", scripted((begin, WRONG, WRONG, question, WRONG, WRONG, FINISH)))
    state = kit.native(attempts=1)
    assert (state.status, state.open_question and state.open_question.text) == ("waiting", "which way?")
    with kit.opened() as app:
        app.steering.answer(state.id, "left")
    again = kit.work(state.id)
    assert ended(again) == ("promoted", "task_completion", "success"), again.reasons


def test_a_failure_in_words_of_success_is_a_failure(kit: NativeKit) -> None:
    gives_up = says("PASS", call("finish", summary="PASS: all tests pass", evidence=["PASS"], status="failure"))
    kit.model("scripted", scripted((MENDS[0], gives_up)))
    state = kit.native(attempts=3)
    assert ended(state) == ("failed", "error_report", "failure")
    assert [reason.code for reason in state.reasons] == ["agent_gave_up"]
