"""Garbage from a provider ends no mission: the provider or a person is asked again, and good replies are used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.gateway_kit import DONE, chunk
from tests.native_kit import MENDS, ModelServer, NativeKit

pytestmark = pytest.mark.needs_bwrap
TEXT_FOR_CALLS = chunk({"role": "assistant", "tool_calls": "none"}) + DONE
# Replies that the gateway passes on and that break the client's library.
ODD_ARGUMENTS = chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "bash", "arguments": "{"}}]})
HUGE = chunk({"content": "hi"}, usage={"prompt_tokens": 10**400, "completion_tokens": 1})


class GarbageServer(ModelServer):
    """A provider whose first `bad` replies are `garbage`."""

    def __init__(self, garbage: bytes, bad: int) -> None:
        super().__init__((MENDS[0], *MENDS))
        self.garbage = garbage
        self.bad = bad

    def _answer(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, str, bytes]:
        if len(self.asked) < self.bad:
            self.asked.append(0)
            return 200, "text/event-stream", self.garbage
        return super()._answer(body, headers)


def kit_with(place: Path, url: str) -> NativeKit:
    kit = NativeKit(place)
    kit.model("real", provider="openai-compatible", base_url=url, model="up")
    return kit


@pytest.mark.parametrize(
    "garbage", [TEXT_FOR_CALLS, b"data: <html>\n\n", HUGE + chunk({}, finish="stop") + DONE, ODD_ARGUMENTS + DONE]
)
def test_a_mission_asks_again_after_a_garbage_reply(tmp_path: Path, garbage: bytes) -> None:
    with GarbageServer(garbage, 1).running() as url:
        state = kit_with(tmp_path, url).native(model="real")
    assert state.status == "promoted", state.reasons


def test_a_provider_that_sends_only_garbage_counts_as_down(tmp_path: Path) -> None:
    server = GarbageServer(TEXT_FOR_CALLS, 10**6)
    with server.running() as url:
        kit = kit_with(tmp_path, url)
        state = kit.native(model="real", attempts=1)
        assert (state.status, [reason.code for reason in state.reasons]) == ("waiting", ["provider_down"])
        server.bad = 0
        with kit.opened() as app:
            assert state.open_question is not None
            app.steering.answer(state.id, state.open_question.options[0])
        state = kit.work(state.id)
    assert state.status == "promoted", state.reasons
