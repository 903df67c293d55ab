"""The native agent's handling of refusals that say more than "it failed", and of replies that were cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_native import answer
from tests.native_kit import FINISH, GOOD, MENDS, ModelServer, NativeKit, call, edit, says, scripted
from tests.unit.test_refusals import OVERFLOWS

from chargehand.core.attempt_events import ModelCalled
from chargehand.core.events import read_payload
from chargehand.core.state import MissionState
from chargehand.missions.causes import mission_cause
from chargehand.models.contract import Usage

pytestmark = pytest.mark.needs_bwrap


@pytest.fixture
def kit(tmp_path: Path) -> NativeKit:
    return NativeKit(tmp_path)


class RefusingServer(ModelServer):
    """A provider that refuses `calls` calls, after `first` answered ones."""

    def __init__(
        self, *, refusal: tuple[int, str, str], calls: int = 99, first: int = 0, replies: Any = MENDS
    ) -> None:
        super().__init__(replies)
        self.refusal, self.refused = refusal, range(first, first + calls)
        self.sizes: list[int] = []

    def _answer(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, str, bytes]:
        self.sizes.append(len(str(body["messages"])))
        if len(self.sizes) - 1 in self.refused:
            status, kind, text = self.refusal
            return status, kind, text.encode()
        return super()._answer(body, headers)


def run(kit: NativeKit, address: str, **more: Any) -> MissionState:
    kit.model("scripted", provider="openai-compatible", base_url=address, model="x")
    return kit.native(attempts=1, **more)


@pytest.mark.parametrize(
    ("refusal", "code", "remedy"),
    [
        ((401, "application/json", '{"error": {"message": "bad key"}}'), "key_refused", "secret set"),
        ((404, "application/json", '{"error": {"message": "no such model"}}'), "model_unknown", "base_url"),
        ((403, "text/html", "<html>Blocked by the proxy</html>"), "upstream_page", "HTTPS_PROXY"),
        ((200, "text/html", "<!doctype html><html>Sign in</html>"), "upstream_page", "base_url"),
    ],
)
def test_a_refusal_that_needs_a_person_is_reported_with_its_remedy(
    kit: NativeKit,
    refusal: tuple[int, str, str],
    code: str,
    remedy: str,
) -> None:
    server = RefusingServer(refusal=refusal, calls=1)
    with server.running() as address:
        state = run(kit, address)
        cause = mission_cause(state)
        assert (state.status, cause and (cause.kind, cause.code)) == ("waiting", ("provider", code)), state.reasons
        assert cause is not None
        assert remedy in cause.remedy
        assert len(server.sizes) == 1, "it is not asked again and again"
        # Once the cause is fixed, the mission resumes.
        state = answer(kit, state.id, "try anyway")
    assert state.status == "promoted", state.reasons


@pytest.mark.parametrize("body", OVERFLOWS[:6])
def test_a_full_context_is_shortened_once(kit: NativeKit, body: str) -> None:
    server = RefusingServer(refusal=(400, "application/json", body), calls=1)
    with server.running() as address:
        state = run(kit, address)
    assert state.status == "promoted", state.reasons


def test_a_conversation_over_the_context_limit_is_shortened_on_retry(kit: NativeKit) -> None:
    reads = tuple(says("", call("bash", command=f"seq {number}000 {number}900")) for number in range(1, 6))
    server = RefusingServer(
        refusal=(400, "application/json", OVERFLOWS[2]), calls=1, first=5, replies=(*reads, *MENDS)
    )
    with server.running() as address:
        run(kit, address)  # the server counts replies, so a shorter conversation gets an earlier reply
    assert server.sizes[6] < server.sizes[5] * 0.7


def test_a_context_that_stays_full_ends_the_mission(kit: NativeKit) -> None:
    server = RefusingServer(refusal=(400, "application/json", OVERFLOWS[0]))
    with server.running() as address:
        state = run(kit, address)
    cause = mission_cause(state)
    assert (state.status, cause and cause.code) == ("exhausted", "context"), state.reasons
    assert len(server.sizes) <= 2
    assert "8192" in state.reasons[0].message


def test_calls_of_a_truncated_reply_are_not_executed(kit: NativeKit, tmp_path: Path) -> None:
    cut: dict[str, Any] = {"stop": "length", "usage": Usage(input=1000, output=77)}
    replies = (
        says("I write it", call("bash", command="echo x > calc/half.py"), **cut),
        says("done", call("finish", summary="done", evidence=["cut"]), **cut),
        says("a long explanation", **cut),
        says("I mend it", edit(*GOOD)),
        FINISH,
    )
    kit.model("scripted", scripted(replies))
    state = kit.native(attempts=1)
    assert state.status == "promoted", state.reasons
    assert state.base is not None
    assert state.tree is not None
    with kit.opened() as app:
        changed = app.projects.depot(app.projects.find()).diff(state.base.tree, state.tree)
        lines = list(map(read_payload, app.store.log.read(state.id)))
    assert [each.path for each in changed] == ["calc/core.py"]
    assert sum(isinstance(each, ModelCalled) for each in lines) == 5
    from chargehand.app.missions import read_transcript

    with kit.opened() as app:
        said = [line.text for line in read_transcript(app, state.id)]
    told = [text for text in said if "was cut at 77 tokens" in text]
    assert len(told) >= 2
    assert all("Write it in parts" in text for text in told)
