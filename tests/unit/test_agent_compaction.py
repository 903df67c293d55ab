"""A conversation is shortened to its model's context; pinned parts stay unchanged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from chargehand.agents.compaction import Compacted, compact, estimate
from chargehand.agents.conversation import ASK, ConversationEntry, to_messages
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
from chargehand.agents.prompts import person_message
from chargehand.agents.tool_specs import ToolCall
from chargehand.core.errors import ExhaustedError

NOW = datetime(2025, 1, 1, tzinfo=UTC)
PINS = {0, 1}


def opening() -> list[ModelMessage]:
    return [
        ModelRequest(parts=[SystemPromptPart("Work with tools.")]),
        ModelRequest(parts=[UserPromptPart("The request:\n\nMend the leap year.")]),
    ]


def turn(number: int, name: str, arguments: dict[str, Any], result: str, *, text: str = "", **more: Any) -> Any:
    call_id = f"call-{number}"
    said = [ReplyText(text)] if text else []
    return [
        ModelResponse(parts=[*said, ReplyCall(name, arguments, call_id)], timestamp=NOW),
        ModelRequest(parts=[ToolReturnPart(name, result, call_id, more)]),
    ]


def results(messages: Sequence[ModelMessage]) -> list[str]:
    return [str(part.content) for message in messages for part in message.parts if part.part_kind == "tool-return"]


def total(messages: Sequence[ModelMessage]) -> int:
    return sum(map(estimate, messages))


def work(turns: int, size: int = 3000) -> list[ModelMessage]:
    """Return a conversation in which every turn reads another file of that size."""
    messages = opening()
    for number in range(turns):
        path = f"src/file{number}.py"
        messages += turn(number, "read", {"path": path}, "x" * size, text=f"Now {path}. It may be there.")
    return messages


def summary_of(made: Compacted) -> str:
    (text,) = [
        str(part.content)
        for index, message in enumerate(made.messages)
        if index not in made.pins and message.kind == "request"
        for part in message.parts
        if part.part_kind == "user-prompt"
    ]
    return text


def test_a_conversation_within_the_limit_is_unchanged() -> None:
    messages = work(3)
    made = compact(messages, limit=total(messages), pins=PINS)
    assert (made.messages, made.tier, made.pins) == (messages, "none", frozenset(PINS))
    assert made.size == total(messages)


def test_older_twins_of_reads_go_first() -> None:
    messages = opening()
    for number in range(3):
        messages += turn(number, "read", {"path": "a.py"}, f"version {number}\n" + "x" * 900)
    messages += turn(3, "read", {"path": "a.py", "offset": 5}, "y" * 900)
    made = compact(messages, limit=total(messages) - 500, pins=PINS)
    assert made.tier == "duplicates"
    first, second, newest, elsewhere = results(made.messages)
    assert first == second
    assert "newer result" in first
    assert newest.startswith("version 2")
    assert elsewhere == "y" * 900
    assert made.size == total(made.messages) < total(messages)


def test_a_failed_newer_read_does_not_replace_an_older_result() -> None:
    messages = opening()
    messages += turn(0, "read", {"path": "a.py"}, "x" * 900)
    messages += turn(1, "read", {"path": "a.py"}, "it is gone", failed=True)
    for number in range(2, 12):
        messages += turn(number, "bash", {"command": "make"}, "z" * 900 + "\n[exit code 0]")
    made = compact(messages, limit=total(messages) - 300, pins=PINS)
    assert made.tier == "results"
    assert results(made.messages)[0] == "[cleared: 900 bytes of output of read]"


def test_repeated_equal_commands_are_not_deduplicated() -> None:
    messages = opening()
    for number in range(3):
        messages += turn(number, "bash", {"command": "make"}, f"{number}" * 900)
    made = compact(messages, limit=total(messages) - 100, pins=PINS)
    assert made.tier == "summary"  # no result is old enough to be cleared
    assert results(made.messages) == ["1" * 900, "2" * 900]


def test_old_results_go_but_for_the_last_eight_turns() -> None:
    messages = work(12)
    made = compact(messages, limit=total(messages) - 3000, pins=PINS)
    assert made.tier == "results"
    assert [len(text) for text in results(made.messages)] == [39] * 4 + [3000] * 8
    assert made.pins == PINS


def test_a_cleared_result_names_its_artifact() -> None:
    messages = opening()
    messages += turn(0, "bash", {"command": "make"}, "é" * 900, artifact="ab12")
    messages += work(8)[2:]
    made = compact(messages, limit=total(messages) - 300, pins=PINS)
    assert results(made.messages)[0] == "[cleared: 1800 bytes of output of bash, kept as artifact ab12]"


def test_results_in_text_are_cleared_for_models_without_tools() -> None:
    messages = opening()
    for number in range(10):
        messages.append(ModelResponse(parts=[ReplyText(f"```tool\n{number}\n```")], timestamp=NOW))
        messages.append(ModelRequest(parts=[UserPromptPart("x" * 3000)]))
    made = compact(messages, limit=total(messages) - 1500, pins=PINS)
    assert made.tier == "results"
    assert [len(str(message.parts[0].content)) for message in made.messages[3::2]] == [31] * 2 + [3000] * 8


def test_a_summary_lists_changed_files_commands_and_errors() -> None:
    messages = opening()
    messages += turn(
        0, "bash", {"command": "pytest -q"}, "x" * 3000 + "\nE  boom\n[exit code 1]", text="I test. Then."
    )
    messages += turn(1, "edit", {"path": "date.py", "old": "a" * 3000, "new": "b"}, "changed")
    messages += turn(2, "edit", {"path": "other.py", "old": "a", "new": "b"}, "no such text", failed=True)
    messages += turn(
        3,
        "apply_patch",
        {"patch": "*** Begin Patch\n*** Add File: new.py\n+1\n*** End Patch"},
        "done",
        text="So be it",
    )
    messages += turn(4, "bash", {"command": "pytest -q"}, "9 passed\n[exit code 0]")
    tail = work(4, 200)[2:]
    made = compact([*messages, *tail], limit=1600, pins=PINS)
    assert made.tier == "summary"
    assert made.messages[:2] == messages[:2]
    assert made.messages[3:] == tail
    text = summary_of(made)
    assert "- date.py\n- new.py\n" in text
    assert "other.py\n" not in text
    assert "- pytest -q (exit code 1)\n- pytest -q (exit code 0)" in text
    assert "- I test.\n- So be it\n" in text
    assert "| E  boom" in text
    assert "| edit: no such text" in text


def test_a_summary_is_carried_over_to_the_next_summary() -> None:
    first = compact(work(30, 600), limit=2600, pins=PINS)
    assert first.tier == "summary"
    again = compact([*first.messages, *work(20, 600)[2:]], limit=2600, pins=first.pins)
    assert again.tier == "summary"
    assert "- Now src/file25.py." in summary_of(again)
    assert len(again.messages) == len(first.messages)


def test_a_summary_of_text_calls_names_files_and_commands() -> None:
    messages = opening()
    for number in range(12):
        call = json.dumps({"name": "edit", "arguments": {"path": f"a{number}.py"}})
        messages.append(
            ModelResponse(parts=[ReplyText(f"Next.\n```tool\n{call}\n```" + "y" * 900)], timestamp=NOW)
        )
        messages.append(ModelResponse(parts=[ReplyText("")], timestamp=NOW))
    made = compact(messages, limit=2200, pins=PINS)
    assert "- a0.py\n- a1.py" in summary_of(made)


def test_at_last_the_last_turn_is_cut() -> None:
    messages = [*work(9), *turn(90, "bash", {"command": "make"}, "head " + "x" * 50_000 + " tail")]
    made = compact(messages, limit=2000, pins=PINS)
    assert made.tier == "last_turn"
    (text,) = results(made.messages)
    assert text.startswith("head x")
    assert text.endswith("x tail")
    assert "characters left out" in text


def test_pinned_results_keep_their_calls_in_place() -> None:
    messages = opening()
    messages += turn(0, "ask", {"question": "Which calendar?"}, "The person says: Gregorian. " + "g" * 300)
    messages += work(20)[2:]
    messages.insert(21, ModelRequest(parts=[UserPromptPart("Message from the person: hurry")]))
    pins = {*PINS, 3, 21}
    made = compact(messages, limit=4500, pins=pins)
    assert made.tier == "summary"
    assert [made.messages[index] for index in sorted(made.pins)] == [messages[index] for index in sorted(pins)]
    assert made.messages[2] == messages[2]


def test_a_conversation_that_cannot_fit_is_refused() -> None:
    with pytest.raises(ExhaustedError) as refused:
        compact(work(3), limit=20, pins=PINS)
    assert refused.value.code == "context"
    assert "20 tokens" in refused.value.message
    messages = work(3)
    with pytest.raises(ExhaustedError):
        compact(messages, limit=total(messages) - 1, pins=range(len(messages)))


def test_compaction_is_calibrated_by_the_token_count_of_the_provider() -> None:
    messages = work(12)
    size = total(messages)
    assert compact(messages, limit=size, pins=PINS, calibration=(size, size)).tier == "none"
    assert compact(messages, limit=size, pins=PINS, calibration=(2 * size, size)).tier != "none"
    assert compact(messages, limit=size // 2, pins=PINS, calibration=(1, size)).tier == "none"
    assert compact(messages, limit=size, pins=PINS, calibration=(0, 0)).tier == "none"


def test_arguments_in_json_and_as_an_object_are_the_same_call() -> None:
    messages = opening()
    messages += turn(0, "read", {"path": "a.py", "offset": 1}, "x" * 900)
    messages += turn(1, "read", {}, "x" * 900)
    messages[-2].parts[0] = ReplyCall("read", '{"offset": 1, "path": "a.py"}', "call-1")
    assert compact(messages, limit=total(messages) - 100, pins=PINS).tier == "duplicates"


def test_compacted_messages_can_be_stored_and_loaded() -> None:
    made = compact(work(30), limit=6000, pins=PINS)
    stored = msgspec.json.encode(made.messages)
    assert msgspec.json.decode(stored, type=list[ModelMessage]) == made.messages


@pytest.mark.parametrize("native", [True, False])
def test_request_messages_and_answers_of_a_person_are_never_left_out(native: bool) -> None:
    kept = ["The request: mend the leap year", person_message("not in 1900"), person_message("yes, both")]
    entries = [ConversationEntry(kind="user", text=kept[0], pinned=True)]
    for number in range(60):
        name = ASK if number == 30 else "mcp_shed_show"
        asked = ToolCall(index=0, name=name, arguments={"n": number})
        part = {"part_kind": "tool-call", "tool_name": name, "args": {"n": number}}
        message = {
            "kind": "response",
            "parts": [part],
            "usage": {},
            "model_name": "m",
            "timestamp": NOW.isoformat(),
        }
        text = kept[2] if name == ASK else f"{number} " * 500
        entries += [
            ConversationEntry(kind="reply", message=message, calls=(asked,)),
            ConversationEntry(kind="result", call=asked, text=text, pinned=name == ASK),
            *([ConversationEntry(kind="user", text=kept[1], pinned=True)] if number == 10 else []),
        ]
    messages, pins = to_messages("rules", entries, native=native)
    whole = sum(estimate(message) for message in messages)
    tiers = set()
    for share in (1, 2, 4, 8, 12):
        made = compact(messages, limit=whole // share, pins=pins)
        tiers.add(made.tier)
        said = "\n".join(str(part.content) for index in sorted(made.pins) for part in made.messages[index].parts
                         if hasattr(part, "content"))  # fmt: skip
        assert all(text in said for text in kept)
    assert {"none", "results", "summary"} <= tiers
