"""How a native agent's last message ends its attempt: malformed ones are asked again twice, a question waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.native_kit import FINISH, GOOD, MENDS, NativeShop, call, edit, says, scripted

from chargehand.core.state import MissionState

pytestmark = pytest.mark.needs_bwrap
WRONG = says("", call("finish", summary="done", evidence=["PASS"], status="pass"))


@pytest.fixture
def shop(tmp_path: Path) -> NativeShop:
    return NativeShop(tmp_path)


def ended(state: MissionState) -> tuple[str, Any, Any]:
    (received,) = state.received
    return state.status, received.message["type"], received.message["status"]


def test_two_malformed_ends_are_asked_again(shop: NativeShop) -> None:
    shop.model("scripted", scripted((MENDS[0], WRONG, WRONG, FINISH)))
    state = shop.native(attempts=1)
    assert ended(state) == ("promoted", "task_completion", "success"), state.reasons


def test_the_third_malformed_end_fails_the_attempt(shop: NativeShop) -> None:
    shop.model("scripted", scripted((MENDS[0], WRONG, WRONG, WRONG, FINISH)))
    state = shop.native(attempts=1)
    assert ended(state) == ("failed", "error_report", "failure")
    assert [reason.code for reason in state.reasons] == ["malformed_message"]
    assert "'pass'" in state.reasons[0].message


def test_a_question_waits_for_its_answer_and_the_count_survives(shop: NativeShop) -> None:
    question = says("", call("finish", summary="which way?", evidence=[], status="request_clarification"))
    begin = says("", edit(*GOOD), call("finish", summary="half", evidence=[], status="in_progress"))
    shop.model("scripted", scripted((begin, WRONG, WRONG, question, WRONG, WRONG, FINISH)))
    state = shop.native(attempts=1)
    assert (state.status, state.open_question and state.open_question.text) == ("waiting", "which way?")
    with shop.opened() as app:
        app.steering.answer(state.id, "left")
    again = shop.work(state.id)
    assert ended(again) == ("promoted", "task_completion", "success"), again.reasons


def test_a_failure_in_words_of_success_is_a_failure(shop: NativeShop) -> None:
    gives_up = says("PASS", call("finish", summary="PASS: all tests pass", evidence=["PASS"], status="failure"))
    shop.model("scripted", scripted((MENDS[0], gives_up)))
    state = shop.native(attempts=3)
    assert ended(state) == ("failed", "error_report", "failure")
    assert [reason.code for reason in state.reasons] == ["agent_gave_up"]
