"""Messages between agents, people and Chargehand: a closed set of types, strictly validated and versioned."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct

from chargehand.core.codec import convert_to
from chargehand.core.errors import MessageError, nearest
from chargehand.core.records import CheckStatus, Conflict, Finding, Reverted, VerdictScope, VerdictStatus
from chargehand.core.text import LONGEST_SECONDS, late_pattern

# Limit of one text from an agent, in characters.
LONGEST_TEXT = 50_000
# Limit of one list from an agent, in entries.
MOST_ENTRIES = 500
Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]
Said = Annotated[str, Meta(min_length=1, max_length=LONGEST_TEXT)]
Texts = Annotated[tuple[Text, ...], Meta(max_length=MOST_ENTRIES)]
# The reader that means every task of a plan.
EVERYONE = "everyone"
_Reader = Annotated[str, Meta(min_length=1, max_length=100)]
Notes = Annotated[dict[_Reader, Said], Meta(max_length=50)]
# The id of a delegated part, and the seconds that it may take.
_Part = Annotated[str, Meta(min_length=1, max_length=100)]
_Deadline = Annotated[float, Meta(gt=0, le=LONGEST_SECONDS)]


class Delegation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part for another agent: one in a `role`, or one with all capabilities in `needs`.

    `after` names parts of the same message that come first. `deadline` is in seconds of wall-clock time from when
    the part begins.
    """

    id: _Part
    text: Annotated[str, Meta(min_length=1, max_length=10_000)]
    role: Annotated[str, Meta(max_length=100)] = ""
    needs: Annotated[tuple[_Part, ...], Meta(max_length=20)] = ()
    after: Annotated[tuple[_Part, ...], Meta(max_length=20)] = ()
    deadline: _Deadline | None = None


class Completion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The work done, as the agent describes it.

    `evidence` lists what the agent ran and saw, `files` the paths that matter, `open_points` the work left.
    `notes` are for other tasks of the same plan, by reader: the id of a task, a role, or `everyone`. `delegate`
    lists parts for others, which become tasks of the same plan.
    """

    summary: Said
    evidence: Texts = ()
    files: Texts = ()
    open_points: Texts = ()
    notes: Notes = {}
    delegate: Annotated[tuple[Delegation, ...], Meta(max_length=50)] = ()


class Information(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Information that requests no action."""

    text: Said


class Problem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why something could not be done; `code` is stable, "" if the sender has no code."""

    summary: Said
    code: Annotated[str, Meta(max_length=100)] = ""
    evidence: Texts = ()
    files: Texts = ()
    open_points: Texts = ()


class Clarification(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question that a person has to answer; `options` are proposals, and other answers are always possible."""

    question: Said
    options: Texts = ()


class Progress(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The progress of unfinished work."""

    summary: Said
    open_points: Texts = ()


class Receipt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ids of messages that were taken into the work."""

    messages: Annotated[tuple[Said, ...], Meta(min_length=1, max_length=MOST_ENTRIES)]


class Instruction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An instruction for the recipient."""

    text: Annotated[str, Meta(min_length=1, max_length=200_000)]


class FailedTest(Struct, frozen=True, kw_only=True):
    """A test that did not pass, as its runner named it."""

    name: str
    message: str = ""
    file: str | None = None
    line: int | None = None


class FailedCheck(Struct, frozen=True, kw_only=True):
    """A check that did not pass, with the end of its output."""

    name: str
    status: CheckStatus
    reason: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    tests: int | None = None
    output: str = ""
    failing_tests: tuple[FailedTest, ...] = ()


class MergeTrouble(Struct, frozen=True, kw_only=True):
    """A tree that could not be merged with the current commit of a branch; `count` paths are in conflict."""

    told: str
    commit: str
    count: int
    branch: str | None = None
    conflicts: tuple[Conflict, ...] = ()


class Denied(Struct, frozen=True, kw_only=True):
    """An action that a rule denied before it happened."""

    action: str
    rule: str
    reason: str


class Violation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Work that is not accepted: failed checks, findings, reverted paths, a merge conflict, denied actions.

    `tree` is the judged tree, "" for a denied action; `scope` and `verdict` come from the verdict.
    """

    tree: str = ""
    scope: VerdictScope = "attempt"
    verdict: VerdictStatus = "red"
    passed: tuple[str, ...] = ()
    failing: tuple[FailedCheck, ...] = ()
    findings: tuple[Finding, ...] = ()
    reverted: tuple[Reverted, ...] = ()
    merge: MergeTrouble | None = None
    denied: tuple[Denied, ...] = ()


# All keys of a version 1 completion, which had no type.
_FINISH = {"summary", "evidence", "version"}

_T = TypeVar("_T")
MESSAGE_VERSION = 2
# Bytes of a message as JSON; a longer one is refused unread.
LARGEST_MESSAGE = 4 << 20
MessageStatus = Literal["success", "failure", "in_progress", "request_clarification"]
# Limit of an id or a sender's name, in characters; see `_fit_name` for agents named by a command line.
_LONGEST_NAME = 200
_Name = Annotated[str, Meta(min_length=1, max_length=_LONGEST_NAME)]
# msgspec gives the place of an error only in its message: "... - at `$.payload.files[0]`".
_PLACE = late_pattern(r" - at `(?:key in )?(\$[^`]*)`$")
_STEP = late_pattern(r"\.([^.\[\]]+)|\[(\d+)\]")
_SHOWN = 120


# Unknown keys are refused here, while events skip them: an agent's message must be unambiguous.
class _Envelope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """The fields of every message except its payload; ids are unique within a mission."""

    version: Literal[2] = 2
    id: _Name
    mission: _Name
    sender: _Name
    recipient: _Name
    status: MessageStatus
    attempt: _Name | None = None
    in_reply_to: _Name | None = None
    critical: bool = False


# Each type fixes its statuses: an error report with the status success cannot be expressed.
class TaskCompletion(_Envelope, frozen=True, kw_only=True, tag="task_completion"):
    """An agent's final message: `success` claims that the work is done, `failure` that it is not."""

    status: Literal["success", "failure"]
    payload: Completion


class InformationReport(_Envelope, frozen=True, kw_only=True, tag="information_report"):
    """Information that requests no action."""

    status: Literal["success", "in_progress"]
    payload: Information


class ErrorReport(_Envelope, frozen=True, kw_only=True, tag="error_report"):
    """An agent's final message without success: why it could not do the work."""

    status: Literal["failure"]
    payload: Problem


class ClarificationRequest(_Envelope, frozen=True, kw_only=True, tag="clarification_request"):
    """An agent cannot continue without an answer."""

    status: Literal["request_clarification"]
    payload: Clarification


class CheckpointViolation(_Envelope, frozen=True, kw_only=True, tag="checkpoint_violation"):
    """An agent's changes, or an action that it was about to take, are not accepted."""

    status: Literal["failure"]
    payload: Violation


class ProgressReport(_Envelope, frozen=True, kw_only=True, tag="progress_report"):
    """Progress of unfinished work; never a final message."""

    status: Literal["in_progress"]
    payload: Progress


class Acknowledgement(_Envelope, frozen=True, kw_only=True, tag="acknowledgement"):
    """Messages reached their recipient's work (`success`), or could not (`failure`)."""

    status: Literal["success", "failure"]
    payload: Receipt


class InstructionMessage(_Envelope, frozen=True, kw_only=True, tag="instruction"):
    """An instruction of a person, or of Chargehand, to an agent."""

    status: Literal["in_progress"] = "in_progress"
    payload: Instruction


Message = (
    TaskCompletion
    | InformationReport
    | ErrorReport
    | ClarificationRequest
    | CheckpointViolation
    | ProgressReport
    | Acknowledgement
    | InstructionMessage
)
MessageType = Literal[
    "task_completion",
    "information_report",
    "error_report",
    "clarification_request",
    "checkpoint_violation",
    "progress_report",
    "acknowledgement",
    "instruction",
]
# The class of each type.
MESSAGE_CLASSES: Mapping[str, type[Message]] = {each.__struct_config__.tag: each for each in get_args(Message)}


_FENCE = late_pattern(r"(`{3,}|~{3,})[ \t]*\w*[ \t]*\n(?P<inner>.*)\n[ \t]*\1", re.DOTALL)
_STRING = late_pattern(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_COMMA = late_pattern(r",(?=\s*[\]}])")
_WORDS = {"status": get_args(MessageStatus), "type": get_args(MessageType)}


class Addressed(Struct, frozen=True, kw_only=True):
    """The known fields of a message: defaults for missing ones; a contradicting value is an error.

    `id` is only a default: a message may have another one.
    """

    id: str
    mission: str
    attempt: str | None
    sender: str
    recipient: str = "chargehand"

    def fill(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return a document with its missing fields added; raise `MessageError` if it contradicts a known one."""
        known = {"mission": self.mission, "attempt": self.attempt, "sender": _fit_name(self.sender)}
        for name, value in known.items():
            # No agent may speak for another mission, attempt or sender.
            if document.get(name, value) != value:
                raise MessageError(f"expected {value!r}", path=f"$.{name}", value=document[name])
        return {"id": self.id, "recipient": _fit_name(self.recipient), **known, **document}


def _fit_name(name: str) -> str:
    """Return a name that fits: an agent's name may be its whole command line, with bytes that are not UTF-8."""
    clean = name.encode("utf-8", "replace").decode() or "unknown"
    return clean if len(clean) <= _LONGEST_NAME else f"{clean[: _LONGEST_NAME - 1]}…"


_UNKNOWN = Addressed(id="unknown", mission="unknown", attempt=None, sender="unknown", recipient="unknown")


def decode_message(data: bytes | str, addressed: Addressed | None = None) -> Message:
    """Decode a JSON message of this version or an older one; raise `MessageError`.

    `addressed` supplies fields that it may omit.
    """
    if len(data) > LARGEST_MESSAGE:
        raise MessageError(f"longer than {LARGEST_MESSAGE} bytes", value=data[:_SHOWN])
    try:
        text = data.decode() if isinstance(data, bytes) else data
    except UnicodeDecodeError as error:
        raise MessageError(f"not UTF-8: {error.reason} at byte {error.start + 1}", value=data) from None
    return message_of(read_json(text), addressed)


def message_of(document: object, addressed: Addressed | None = None) -> Message:
    """Return a decoded document as a message; see `decode_message`."""
    if not isinstance(document, Mapping):
        raise MessageError("a message must be a JSON object", value=document)
    # The first messages had no version.
    version = document.get("version", 1)
    # `True` is an int to Python.
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise MessageError("version must be a whole number from 1", path="$.version", value=version)
    if version > MESSAGE_VERSION:
        raise MessageError(
            f"this program reads versions up to {MESSAGE_VERSION}; a newer one wrote this",
            path="$.version",
            value=version,
            code="message_newer",
        )
    current = dict(document)
    for older in range(version, MESSAGE_VERSION):
        current = UPGRADES[older](current)
    if addressed is not None or version == 1:  # version 1 had no addresses
        current = (addressed or _UNKNOWN).fill(current)
    kind = current.get("type")
    if not isinstance(kind, str) or kind not in MESSAGE_CLASSES:
        found = nearest(str(kind)[:_SHOWN], MESSAGE_CLASSES)
        raise MessageError(f"unknown message type: {found}", path="$.type", value=kind)
    return read_record(current, MESSAGE_CLASSES[kind])


def read_json(text: str) -> Any:
    """Parse strict JSON; raise `MessageError` for anything else, duplicate keys and NaN included."""

    def refuse_number(word: str) -> NoReturn:
        raise MessageError("not a JSON number", value=word)

    try:
        # Not msgspec: it takes the last of two equal keys, and the intended one would be a guess.
        return json.loads(text, object_pairs_hook=_object, parse_constant=refuse_number)
    except json.JSONDecodeError as error:
        raise MessageError(f"not valid JSON: {error.msg} at character {error.pos + 1}", value=text) from None
    except RecursionError:
        raise MessageError("not valid JSON: nested too deeply", value=text) from None
    except MessageError:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise MessageError(f"not valid JSON: {error}", value=text) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise MessageError("the same key twice in one object", value=twice)
    return made


def read_record(document: object, kind: type[_T]) -> _T:
    """Convert a decoded document to a record; raise `MessageError` with the place of the error."""
    try:
        made = convert_to(document, kind)
        msgspec.json.encode(made)  # lone surrogates pass the conversion, but cannot be encoded
    except (UnicodeEncodeError, RecursionError):
        raise MessageError("text that is not Unicode, or nested too deeply", value=document) from None
    except msgspec.ValidationError as error:
        said = str(error)
        place = _PLACE.search(said)
        path = place[1] if place else "$"
        found: Any = document
        for name, index in _STEP.findall(path):
            try:
                found = found[name] if name else found[int(index)]
            except (KeyError, IndexError, TypeError):
                found = None
                break
        raise MessageError(_PLACE.sub("", said), path=path, value=found) from None
    return made


def encode_message(message: Message) -> bytes:
    """Return a message as JSON with sorted keys."""
    return msgspec.json.encode(message, order="sorted")


def message_document(message: Message) -> dict[str, Any]:
    """Return a message as a document for the log."""
    document: dict[str, Any] = msgspec.json.decode(encode_message(message))
    return document


def repaired_json(text: str) -> Any:
    """Parse JSON, also within one code fence and with commas before a closing bracket.

    Only lossless and certain repairs are made: no other text may surround the JSON, and nothing is guessed. Raises
    `MessageError` as `read_json` does.
    """
    plain = text.removeprefix("\ufeff").strip()
    # All or nothing: prose around a fence may say the opposite of its content.
    fenced = _FENCE.fullmatch(plain)
    inner = fenced["inner"] if fenced and fenced[1] not in fenced["inner"] else plain
    try:
        return read_json(inner)
    except MessageError as error:
        pieces = []
        end = 0
        for found in _STRING.finditer(inner):  # a comma inside a string is part of its text
            pieces += [_COMMA.sub("", inner[end : found.start()]), found[0]]
            end = found.end()
        without_commas = "".join([*pieces, _COMMA.sub("", inner[end:])])
        if without_commas == inner:
            raise
        try:
            return read_json(without_commas)
        except MessageError:
            raise error from None  # the place in the original text, not in the repaired one


def repaired_words(document: Mapping[str, Any]) -> dict[str, Any]:
    """Correct the spelling of status and type if it differs only in case or spaces."""
    made = dict(document)
    for name, known in _WORDS.items():
        given = made.get(name)
        if isinstance(given, str):
            plain = re.sub(r"[\s-]+", "_", given.strip().lower())
            made[name] = plain if plain in known else given
    return made


def _upgrade_1(document: Mapping[str, Any]) -> dict[str, Any]:
    if "schema" in document:
        body = _upgrade_violation(document)
    elif document.get("type") in ("checkpoint_violation", "error_report") and "payload" in document:
        payload = document["payload"]
        if document.get("status") != "failure" or not isinstance(payload, Mapping):
            raise MessageError("version 1 reports have the status failure", path="$.status", value=document)
        body = _upgrade_violation(payload)
    elif "summary" in document and set(document) <= _FINISH:
        given = {name: value for name, value in document.items() if name != "version" and value is not None}
        body = {"type": "task_completion", "status": "success", "payload": given}
    else:
        raise MessageError("not a version 1 message, and it names no other", path="$.version", value=document)
    return {"version": 2, **body}


def _upgrade_violation(report: Mapping[str, Any]) -> dict[str, Any]:
    if "text" in report:  # unreadable text was quoted in the report
        body: dict[str, Any] = {"summary": report["text"]}
        return {"type": "error_report", "status": "failure", "payload": body}
    body = {name: value for name, value in report.items() if name not in ("schema", "status", "version")}
    return {
        "type": "checkpoint_violation",
        "status": "failure",
        "payload": {**body, "verdict": report.get("status", "red")},
    }


# The upgrade from each version to the next one.
UPGRADES: Mapping[int, Callable[[Mapping[str, Any]], dict[str, Any]]] = {1: _upgrade_1}
