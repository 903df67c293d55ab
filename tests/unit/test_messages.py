"""Messages of every version: parsed strictly, repaired only if the repair is certain, described truthfully."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from chargehand.agents.contract import AgentOutcome
from chargehand.agents.messages import outcome_of_message, read_document, read_finish, with_message
from chargehand.agents.tool_specs import ToolCall
from chargehand.core.errors import MessageError
from chargehand.core.messages import (
    LARGEST_MESSAGE,
    MESSAGE_CLASSES,
    Addressed,
    Delegation,
    ErrorReport,
    Message,
    MessageType,
    TaskCompletion,
    decode_message,
    encode_message,
    message_of,
    repaired_json,
    repaired_words,
)

ROOT = Path(__file__).parents[2]
OLDER = json.loads((ROOT / "tests/data/messages_v1.json").read_text())
KNOWN = Addressed(id="a-1/1", mission="m-1", attempt="a-1", sender="native")
ENVELOPE = {"version": 2, "id": "g-1", "mission": "m-1", "sender": "x", "recipient": "y"}
EXAMPLES: dict[str, dict[str, Any]] = {
    "task_completion": {
        "status": "success",
        "payload": {"summary": "done", "evidence": ["tests"], "files": ["a"]},
    },
    "information_report": {"status": "in_progress", "payload": {"text": "reading"}},
    "error_report": {"status": "failure", "payload": {"summary": "no", "code": "no_tests"}},
    "clarification_request": {"status": "request_clarification", "payload": {"question": "which?"}},
    "checkpoint_violation": {
        "status": "failure",
        "payload": {"tree": "a" * 40, "denied": [{"action": "rm", "rule": "r", "reason": "no"}]},
    },
    "progress_report": {"status": "in_progress", "payload": {"summary": "half"}},
    "acknowledgement": {"status": "success", "payload": {"messages": ["g-0"]}},
    "instruction": {"status": "in_progress", "critical": True, "payload": {"text": "stop"}},
}
DONE = AgentOutcome(claim="done", reason="exit 0", output=b"PASS PASS PASS", seconds=1.0)


def example(kind: str, **more: Any) -> dict[str, Any]:
    return ENVELOPE | {"type": kind} | EXAMPLES[kind] | more


def refused(document: object) -> MessageError:
    with pytest.raises(MessageError) as caught:
        decode_message(json.dumps(document))
    return caught.value


@pytest.mark.parametrize("kind", get_args(MessageType))
def test_every_message_type_round_trips(kind: str) -> None:
    message = decode_message(json.dumps(example(kind)))
    assert type(message) is MESSAGE_CLASSES[kind]
    assert decode_message(encode_message(message)) == message


def test_the_set_of_types_is_closed() -> None:
    assert set(MESSAGE_CLASSES) == set(get_args(MessageType)) == set(EXAMPLES)
    error = refused(example("task_completion", type="task_completed"))
    assert (error.path, error.value) == ("$.type", "'task_completed'")
    assert "task_completion" in error.message


@pytest.mark.parametrize(
    ("change", "path", "value"),
    [
        ({"status": "pass"}, "$.status", "'pass'"),
        ({"status": "in_progress"}, "$.status", "'in_progress'"),
        ({"payload": {"summary": 3}}, "$.payload.summary", "3"),
        ({"payload": {"summary": "s", "evidence": ["a", 7]}}, "$.payload.evidence[1]", "7"),
        ({"payload": {"summary": "s", "more": 1}}, "$.payload", None),
        ({"payload": {}}, "$.payload", "{}"),
        ({"critical": "yes"}, "$.critical", "'yes'"),
        ({"extra": 1}, "$", None),
        ({"id": ""}, "$.id", "''"),
        ({"version": 2.5}, "$.version", "2.5"),
        ({"version": True}, "$.version", "True"),
    ],
)
def test_an_invalid_message_error_names_the_path_and_value(
    change: dict[str, Any], path: str, value: str | None
) -> None:
    error = refused(example("task_completion") | change)
    assert (error.code, error.path) == ("malformed_message", path)
    assert value is None or error.value == value


def test_a_newer_version_is_refused_as_such() -> None:
    error = refused(example("task_completion", version=3))
    assert (error.code, error.path, error.value) == ("message_newer", "$.version", "3")


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"a": NaN}', '{"a": 1, "a": 2}', "[" * 100_000, "1" * 5000])
def test_a_message_that_is_not_a_valid_json_object_is_rejected(text: str) -> None:
    with pytest.raises(MessageError):
        decode_message(text)


def test_an_oversized_message_is_rejected_without_parsing() -> None:
    with pytest.raises(MessageError, match="longer than"):
        decode_message(b" " * (LARGEST_MESSAGE + 1))


@pytest.mark.parametrize("older", OLDER, ids=lambda older: older["name"])
@pytest.mark.parametrize("marked", [False, True])
def test_version_1_is_read(older: dict[str, Any], marked: bool) -> None:
    document = {"version": 1, **older["document"]} if marked else older["document"]
    message = decode_message(json.dumps(document), KNOWN)
    assert type(message) is MESSAGE_CLASSES[older["type"]]
    assert (message.status, message.version, message.id) == (older["status"], 2, "a-1/1")
    assert decode_message(json.dumps(document)).id == "unknown"


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"summary": "x", "status": "success"},
        {"type": "error_report", "status": "success", "payload": {"schema": 1}},
        {"schema": 1, "status": "purple"},
        {"type": "task_completion", "status": "success", "payload": {"summary": "version 1 had no such thing"}},
    ],
)
def test_an_invalid_version_1_message_is_rejected(document: dict[str, Any]) -> None:
    refused(document)


def test_known_fields_are_filled_in_and_contradictions_are_rejected() -> None:
    draft = {"version": 2, "type": "error_report", "status": "failure", "payload": {"summary": "no"}}
    message = message_of(draft, KNOWN)
    assert (message.sender, message.mission, message.recipient) == ("native", "m-1", "chargehand")
    with pytest.raises(MessageError, match=r"\$\.mission"):
        message_of({**draft, "mission": "m-2"}, KNOWN)


@pytest.mark.parametrize("name", ["command:" + "x" * 5_000, "command:\udcff", ""])
def test_an_agent_whose_name_is_a_command_line_can_speak(name: str) -> None:
    known = Addressed(id="a-1/1", mission="m-1", attempt="a-1", sender=name, recipient=name)
    ended = with_message(DONE, known, None)
    assert ended.message is not None
    assert ended.message.sender == ended.message.recipient
    assert 1 <= len(ended.message.sender) <= 200


BODY = '{"type": "error_report", "status": "failure", "payload": {"summary": "a, ] b"}}'


@pytest.mark.parametrize(
    "text",
    [
        BODY,
        f"\ufeff {BODY}\n",
        f"```json\n{BODY}\n```",
        f"~~~\n{BODY}\n~~~",
        BODY.replace("}}", ",},}"),
        BODY.replace("failure", " Failure ").replace("error_report", "Error-Report"),
    ],
)
def test_an_unambiguous_formatting_defect_is_repaired(text: str) -> None:
    message = read_document(text.encode(), KNOWN)
    assert message == message_of({"version": 2, **json.loads(BODY)}, KNOWN)


@pytest.mark.parametrize(
    "text",
    [
        f"Here it is: {BODY}",
        f"Not this one:\n```json\n{BODY}\n```",
        f"```json\n{BODY}\n```\n```json\n{BODY}\n```",
        BODY[:-1],
        BODY.replace('"', "'"),
        f"{BODY}{BODY}",
        f"[{BODY}]",
        BODY.replace(",", ""),
        BODY.replace("failure", "fail"),
    ],
)
def test_an_ambiguous_document_is_rejected_without_repair(text: str) -> None:
    with pytest.raises(MessageError):
        read_document(text.encode(), KNOWN)


def test_mending_changes_no_string() -> None:
    assert repaired_json('{"a": "x,]", "b": [1,],}') == {"a": "x,]", "b": [1]}
    assert repaired_words({"status": "SUCCESS", "note": "FAILURE"}) == {"status": "success", "note": "FAILURE"}


@pytest.mark.parametrize(
    ("kind", "status", "claim", "code"),
    [
        ("task_completion", "success", "done", ""),
        ("task_completion", "failure", "failed", "agent_gave_up"),
        ("error_report", "failure", "failed", "agent_gave_up"),
        ("clarification_request", "request_clarification", "failed", "clarification_needed"),
        ("information_report", "success", "done", ""),
        ("information_report", "in_progress", "failed", "malformed_message"),
        ("acknowledgement", "success", "failed", "malformed_message"),
        ("instruction", "in_progress", "failed", "malformed_message"),
    ],
)
def test_type_and_status_alone_make_the_claim(kind: str, status: str, claim: str, code: str) -> None:
    message: Message = decode_message(json.dumps(example(kind, status=status)))
    ended = outcome_of_message(DONE, message)
    assert (ended.claim, ended.code) == (claim, code)
    assert ended.message == message


@pytest.mark.parametrize("words", ["PASS", "success: all tests pass, done", '{"status": "success"}'])
def test_prose_never_outweighs_the_status(words: str) -> None:
    document = example("task_completion", status="failure", payload={"summary": words})
    assert outcome_of_message(DONE, decode_message(json.dumps(document))).claim == "failed"


def test_a_success_message_does_not_override_a_failed_run() -> None:
    failed = AgentOutcome(claim="failed", reason="exit 1", output=b"", seconds=1.0, code="agent_failed")
    said = decode_message(json.dumps(example("task_completion")))
    ended = with_message(failed, KNOWN, said)
    assert (ended.claim, ended.code) == ("failed", "agent_failed")
    assert ended.message is not None
    assert ended.message.status == "failure"


def test_an_outcome_with_a_message_survives_the_log() -> None:
    ended = with_message(DONE, KNOWN, None)
    again = msgspec.convert(msgspec.json.decode(msgspec.json.encode(ended)), AgentOutcome)
    assert again == ended


def test_notes_come_with_a_success_alone_and_bounded() -> None:
    def finish(**given: object) -> Message:
        arguments = {"summary": "s", "evidence": ["e"], **given}
        return read_finish([ToolCall(index=0, name="finish", arguments=arguments)], KNOWN)

    done = finish(notes={"everyone": "the port is 80", "tester": "mind the edge"})
    assert isinstance(done, TaskCompletion)
    assert done.payload.notes == {"everyone": "the port is 80", "tester": "mind the edge"}
    assert isinstance(finish(status="failure", notes={"everyone": "n"}), ErrorReport)
    for notes in ({"": "n"}, {"a": ""}, {"r" * 101: "n"}, {f"r{number}": "n" for number in range(51)}):
        with pytest.raises(MessageError):
            finish(notes=notes)


def test_parts_that_are_handed_on_come_with_a_success_alone_and_bounded() -> None:
    def finish(**given: object) -> Message:
        arguments = {"summary": "s", "evidence": ["e"], **given}
        return read_finish([ToolCall(index=0, name="finish", arguments=arguments)], KNOWN)

    part = {"id": "docs", "text": "Describe it", "role": "writer", "deadline": 60}
    done = finish(delegate=[part])
    assert isinstance(done, TaskCompletion)
    assert done.payload.delegate == (Delegation(id="docs", text="Describe it", role="writer", deadline=60.0),)
    assert isinstance(finish(status="failure", delegate=[part]), ErrorReport)
    odd: list[dict[str, object]] = [
        {"id": ""},
        {"text": ""},
        {"agent": "mine"},
        {"model": "costly"},
        {"deadline": 0},
        {"deadline": "10m"},
        {"deadline": 1e12},
    ]
    for more in odd:
        with pytest.raises(MessageError):
            finish(delegate=[part | more])
    with pytest.raises(MessageError):
        finish(delegate=[part] * 51)


@pytest.mark.parametrize("summary", [" ", "\n\t"])
def test_a_blank_summary_does_not_let_evidence_speak_as_the_reason(summary: str) -> None:
    payload = {"summary": summary, "evidence": ["ran the tests"], "open_points": []}
    message = decode_message(json.dumps(example("task_completion", payload=payload)))
    assert outcome_of_message(DONE, message).reason == "the agent says it is done: "
