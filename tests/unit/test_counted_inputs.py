"""The bound of a request's input: by counted tokens for its beginning, by bytes for the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway_kit import Reply, gateway, openai_whole

from chargehand.models.contract import ModelCall
from chargehand.models.metering import MemoryLedger, bound_input
from chargehand.models.serving.counted_inputs import CountedInputs

LONG = "word " * 2_000
MARK = {"cache_control": {"type": "ephemeral"}}


def ask(*said: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": each} for each in said], **more}


def bound(inputs: CountedInputs, body: dict[str, Any], model: object = "up") -> Any:
    return inputs.bound(model, json.dumps(body).encode(), body)


def by_bytes(body: dict[str, Any]) -> int:
    return bound_input(json.dumps(body).encode(), body)


def test_a_continued_request_is_bounded_by_its_count_and_added_text() -> None:
    inputs = CountedInputs()
    first = bound(inputs, ask(LONG, max_tokens=5))
    assert first.tokens == by_bytes(ask(LONG, max_tokens=5))
    first.note_count(2_003)
    assert 2_003 < bound(inputs, ask(LONG, "more", max_tokens=7, stream=True)).tokens < 2_400
    assert bound(inputs, ask(LONG)).tokens < 2_300, "the same once more, as after a lost reply"


@pytest.mark.parametrize("other", ["another model", "system", "tools", "first message", "order", "shorter"])
def test_another_conversation_is_bounded_by_its_bytes(other: str) -> None:
    inputs = CountedInputs()
    bound(inputs, ask(LONG, "b")).note_count(10)
    body, model = ask(LONG, "b", "c"), "up"
    if other == "another model":
        model = "other"
    elif other in ("system", "tools"):
        body[other] = [{"name": "x"}]
    elif other == "first message":
        body = ask(f"{LONG}!", "b", "c")
    elif other == "order":
        body = ask("b", LONG, "c")
    else:
        body = ask(LONG)
    assert bound(inputs, body, model).tokens == by_bytes(body)


def test_moved_cache_marks_do_not_change_the_bound() -> None:
    inputs = CountedInputs()
    marked = [{"type": "text", "text": "b", **MARK}]
    bound(inputs, ask(LONG, marked)).note_count(2_000)
    assert bound(inputs, ask(LONG, "b", marked)).tokens < 2_500


def test_the_lowest_bound_of_several_prefixes_counts_until_forgotten() -> None:
    inputs = CountedInputs()
    bound(inputs, ask(LONG)).note_count(2_000)
    bound(inputs, ask(LONG, LONG)).note_count(4_000)
    assert bound(inputs, ask(LONG, LONG, "c")).tokens < 4_500
    for number in range(40):
        bound(inputs, ask(f"{number} {LONG}")).note_count(1)
    body = ask(LONG, LONG, "c")
    assert bound(inputs, body).tokens == by_bytes(body)


def test_pictures_that_were_added_count_as_pictures() -> None:
    inputs = CountedInputs()
    bound(inputs, ask(LONG)).note_count(2_000)
    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]
    assert bound(inputs, ask(LONG, picture)).tokens > 42_000


@pytest.mark.parametrize("body", [{"input": [LONG]}, {"messages": [LONG, {}]}, {"messages": LONG}, {"x": LONG}])
def test_a_body_of_another_form_is_bounded_by_its_bytes(body: dict[str, Any]) -> None:
    inputs = CountedInputs()
    assert bound(inputs, body) == (by_bytes(body), None)


TEXTS = st.lists(st.text(max_size=3_000), min_size=1, max_size=6)


@given(texts=TEXTS, split=st.integers(1, 5))
def test_the_bound_holds_for_a_provider_that_takes_a_token_for_each_byte(texts: list[str], split: int) -> None:
    """The densest possible tokeniser: a token for each byte of text, and some for each message."""

    def count(body: dict[str, Any]) -> int:
        return sum(len(one["content"].encode()) + 8 for one in body["messages"])

    inputs = CountedInputs()
    before, after = ask(*texts[:split]), ask(*texts)
    if (note_count := bound(inputs, before).note_count) is not None:  # a short one is bounded by its bytes alone
        note_count(count(before))
    assert bound(inputs, after).tokens >= count(after)


async def test_a_long_conversation_fits_into_a_budget_that_its_bytes_would_not(tmp_path: Path) -> None:
    """Six calls of 10,000 bytes and more: from the second on, the reserve is close to the cost."""
    reserved = list[float]()

    class Watching(MemoryLedger):
        def reserve(self, call: str, usd: float) -> Any:
            given = super().reserve(call, usd)
            reserved.append(usd)
            return given

    def answer(call: ModelCall) -> Reply:
        words = sum(len(one["content"].split()) for one in call.body["messages"])
        usage = {"prompt_tokens": words, "completion_tokens": 3}
        return Reply(pieces=[openai_whole(usage=usage)])

    async with gateway(tmp_path, answer, ledger=Watching(0.05)) as running:
        said = [LONG]
        for number in range(6):
            reply = await running.post(ask(*said, max_tokens=20))
            assert reply.status_code == 200
            said.append(f"and {number}")
    assert reserved[0] > 0.01
    assert max(reserved[1:]) < 0.004
