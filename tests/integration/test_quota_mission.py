"""A provider without quota for hours: the mission waits, and goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.native_kit import MENDS, ModelServer, NativeShop

pytestmark = pytest.mark.needs_bwrap


class Tired(ModelServer):
    """Has no quota from its second reply on, until it is told otherwise."""

    tired = True

    def _answer(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, str, bytes]:
        if self.tired and sum(message["role"] == "assistant" for message in body["messages"]) >= 1:
            self.asked.append(0)
            error = {"message": "five hours", "details": [{"retryDelay": "18000s"}]}
            return 429, "application/json", json.dumps({"error": error}).encode()
        return super()._answer(body, headers)


@pytest.fixture
def shop(tmp_path: Path) -> NativeShop:
    return NativeShop(tmp_path)


def test_a_mission_without_quota_waits_and_goes_on_with_the_reply_it_did_not_get(shop: NativeShop) -> None:
    server = Tired(MENDS)
    with server.running() as address:
        shop.model("house", base_url=address, model="tiny")
        state = shop.native(model="house")
        assert state.status == "waiting"
        (question,) = state.questions.values()
        assert "no quota left for" in question.text
        assert question.options == ("go on",)
        # Answered too early, it waits again, and asks the provider once.
        for _ in range(2):
            with shop.opened() as app:
                app.steering.answer(state.id, "go on")
            state = shop.work(state.id)
            if server.tired:
                assert state.status == "waiting"
                assert server.asked == [1, 0, 0]
            server.tired = False
    assert (state.status, state.reasons) == ("promoted", ())
    assert server.asked == [1, 0, 0, 2]
