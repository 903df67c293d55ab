"""For any conversation, compaction keeps pins, keeps calls with their results, and fits or refuses."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples

from chargehand.agents.compaction import Compacted, compact, estimate
from chargehand.agents.model_messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ReplyCall,
    ReplyText,
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
)
from chargehand.core.errors import ExhaustedError

NOW = datetime(2025, 1, 1, tzinfo=UTC)
TEXTS = st.builds(lambda word, times: word * times, st.text("aé\n漢", max_size=4), st.integers(0, 400))


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[ModelMessage], set[int]]:
    """Return a conversation like those that the loop makes, and the indexes of its pinned messages."""
    messages: list[ModelMessage] = [
        ModelRequest(parts=[SystemPromptPart("rules")]),
        ModelRequest(parts=[UserPromptPart("request")]),
    ]
    for turn in range(draw(st.integers(0, 14) | st.integers(9, 14))):
        names = draw(st.lists(st.sampled_from(["read", "bash", "edit", "ask"]), max_size=3))
        # ids of an earlier turn repeat if a provider numbers calls by turn
        calls = [
            ReplyCall(name, {"path": draw(st.sampled_from("ab"))}, f"{draw(st.sampled_from([turn, 0]))}-{at}")
            for at, name in enumerate(names)
        ]
        messages.append(ModelResponse(parts=[ReplyText(draw(TEXTS)), *calls], timestamp=NOW))
        returns = [ToolReturnPart(c.tool_name, draw(TEXTS), c.tool_call_id) for c in calls]
        if draw(st.booleans()):
            messages += [ModelRequest(parts=[part]) for part in returns]
        elif returns:
            messages.append(ModelRequest(parts=returns))
        if draw(st.booleans()):
            messages.append(ModelRequest(parts=[UserPromptPart(draw(TEXTS))]))
    return messages, {0, 1, *draw(st.sets(st.integers(0, len(messages) - 1), max_size=3))}


def dumped(messages: Sequence[ModelMessage]) -> bytes:
    return msgspec.json.encode(list(messages))


def fitted(messages: list[ModelMessage], pins: set[int], limit: int) -> Compacted | None:
    with contextlib.suppress(ExhaustedError):
        return compact(messages, limit=limit, pins=pins)
    return None


def unpaired(messages: Sequence[ModelMessage]) -> int:
    """Return how many calls and results are not next to their other half."""
    waiting: list[str] = []
    wrong = 0
    for message in messages:
        if message.kind == "response":
            wrong += len(waiting)
            waiting = [part.tool_call_id for part in message.parts if part.part_kind == "tool-call"]
            continue
        for part in message.parts:
            if part.part_kind == "tool-return" and part.tool_call_id in waiting:
                waiting.remove(part.tool_call_id)
            elif part.part_kind == "tool-return" or waiting:
                wrong += 1
    return wrong + len(waiting)


@given(conversations(), st.integers(5, 105))
def test_compaction_is_deterministic_fits_or_refuses_and_keeps_pins(
    conversation: tuple[list[ModelMessage], set[int]], percent: int
) -> None:
    messages, pins = conversation
    limit = sum(map(estimate, messages)) * percent // 100
    before = dumped(messages)
    made = fitted(messages, pins, limit)
    assert dumped(messages) == before, "what is given is not changed"
    if made is None:
        assert sum(map(estimate, messages)) > limit
        return
    assert made.size == sum(map(estimate, made.messages)) <= limit
    kept = [made.messages[index] for index in sorted(made.pins)]
    assert dumped(kept) == dumped([messages[index] for index in sorted(pins)])
    assert unpaired(made.messages) == 0
    repeated = compact(made.messages, limit=limit, pins=made.pins)
    assert (repeated.tier, repeated.messages, repeated.pins) == ("none", made.messages, made.pins)
    again = fitted(messages, pins, limit)
    assert again is not None
    assert dumped(again.messages) == dumped(made.messages)


@settings(max_examples=examples(30))
@given(conversations())
def test_the_checker_of_pairs_sees_a_lost_half(conversation: tuple[list[ModelMessage], set[int]]) -> None:
    messages, _ = conversation
    assert unpaired(messages) == 0
    for index, message in enumerate(messages):
        if any(part.part_kind in ("tool-call", "tool-return") for part in message.parts):
            assert unpaired(messages[:index] + messages[index + 1 :]) > 0
