"""Messages between agents, people and Chargehand: one closed set of types, read strictly and versioned."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct

from chargehand.core.amounts import LONGEST_SECONDS
from chargehand.core.codec import convert_to
from chargehand.core.errors import MessageError, nearest
from chargehand.core.records import CheckStatus, Conflict, Finding, Reverted, VerdictScope, VerdictStatus
from chargehand.core.text import late_pattern

# Characters of one text that an agent gives.
LONGEST_TEXT = 50_000
# Entries of one list that an agent gives.
MOST_ENTRIES = 500
Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]
Said = Annotated[str, Meta(min_length=1, max_length=LONGEST_TEXT)]
Texts = Annotated[tuple[Text, ...], Meta(max_length=MOST_ENTRIES)]
# The reader of a note whom every task of a plan is.
EVERYONE = "everyone"
_Reader = Annotated[str, Meta(min_length=1, max_length=100)]
Notes = Annotated[dict[_Reader, Said], Meta(max_length=50)]
# What a part that is handed on goes by, and the seconds that it may take.
_Part = Annotated[str, Meta(min_length=1, max_length=100)]
_Deadline = Annotated[float, Meta(gt=0, le=LONGEST_SECONDS)]


class Delegation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part that another agent is to do: one in a `role`, or one that has all that it `needs`.

    `after` names other parts of the same message that come first. `deadline` is in seconds by the clock, from when
    it begins.
    """

    id: _Part
    text: Annotated[str, Meta(min_length=1, max_length=10_000)]
    role: Annotated[str, Meta(max_length=100)] = ""
    needs: Annotated[tuple[_Part, ...], Meta(max_length=20)] = ()
    after: Annotated[tuple[_Part, ...], Meta(max_length=20)] = ()
    deadline: _Deadline | None = None


class Completion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was done, in the words of who did it.

    `evidence` is what was run and seen, `files` the paths that matter, `open_points` what is left to do. `notes`
    are for other tasks of the same plan, by who may read them: the id of a task, a role, or `everyone`. `delegate`
    are parts for others to do, which become tasks of the same plan.
    """

    summary: Said
    evidence: Texts = ()
    files: Texts = ()
    open_points: Texts = ()
    notes: Notes = {}
    delegate: Annotated[tuple[Delegation, ...], Meta(max_length=50)] = ()


class Information(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something to know that asks for nothing."""

    text: Said


class Problem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why something could not be done; `code` is stable, "" where the sender has none."""

    summary: Said
    code: Annotated[str, Meta(max_length=100)] = ""
    evidence: Texts = ()
    files: Texts = ()
    open_points: Texts = ()


class Clarification(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question that a person has to answer; `options` are proposals, never the only answers."""

    question: Said
    options: Texts = ()


class Progress(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far work has come that goes on."""

    summary: Said
    open_points: Texts = ()


class Receipt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which messages were taken into the work, by their ids."""

    messages: Annotated[tuple[Said, ...], Meta(min_length=1, max_length=MOST_ENTRIES)]


class Instruction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the recipient is to do or to keep in mind."""

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
    """A tree that could not be merged with where a branch is now; `count` paths are in conflict."""

    told: str
    commit: str
    count: int
    branch: str | None = None
    conflicts: tuple[Conflict, ...] = ()


class Denied(Struct, frozen=True, kw_only=True):
    """An act that a rule denied before it happened."""

    action: str
    rule: str
    reason: str


class Violation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is not accepted: checks that failed, findings, reverted paths, a merge in conflict, acts denied.

    `tree` is what was judged, "" where an act was denied; `scope` and `verdict` are those of a verdict.
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
# Characters of an id or a sender's name; see `_fit_name` for agents whose name is a command line.
_LONGEST_NAME = 200
_Name = Annotated[str, Meta(min_length=1, max_length=_LONGEST_NAME)]
# msgspec tells the place of an error only in its message: "... - at `$.payload.files[0]`".
_PLACE = late_pattern(r" - at `(?:key in )?(\$[^`]*)`$")
_STEP = late_pattern(r"\.([^.\[\]]+)|\[(\d+)\]")
_SHOWN = 120


# Unknown keys are refused here, while events pass over them: what an agent says must mean one thing.
class _Envelope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """What every message has besides its payload; ids are unique within a mission."""

    version: Literal[2] = 2
    id: _Name
    mission: _Name
    sender: _Name
    recipient: _Name
    status: MessageStatus
    attempt: _Name | None = None
    in_reply_to: _Name | None = None
    critical: bool = False


# Each type fixes its statuses: a success that is an error report cannot be written down.
class TaskCompletion(_Envelope, frozen=True, kw_only=True, tag="task_completion"):
    """An agent's end: with `success` it says that the work is done, with `failure` that it is not."""

    status: Literal["success", "failure"]
    payload: Completion


class InformationReport(_Envelope, frozen=True, kw_only=True, tag="information_report"):
    """Something to know."""

    status: Literal["success", "in_progress"]
    payload: Information


class ErrorReport(_Envelope, frozen=True, kw_only=True, tag="error_report"):
    """An agent's end without success: why it could not do what was asked."""

    status: Literal["failure"]
    payload: Problem


class ClarificationRequest(_Envelope, frozen=True, kw_only=True, tag="clarification_request"):
    """An agent cannot go on without an answer."""

    status: Literal["request_clarification"]
    payload: Clarification


class CheckpointViolation(_Envelope, frozen=True, kw_only=True, tag="checkpoint_violation"):
    """What an agent left, or was about to do, is not accepted."""

    status: Literal["failure"]
    payload: Violation


class ProgressReport(_Envelope, frozen=True, kw_only=True, tag="progress_report"):
    """Work that goes on; never an end."""

    status: Literal["in_progress"]
    payload: Progress


class Acknowledgement(_Envelope, frozen=True, kw_only=True, tag="acknowledgement"):
    """Messages reached their recipient's work (`success`), or could not (`failure`)."""

    status: Literal["success", "failure"]
    payload: Receipt


class InstructionMessage(_Envelope, frozen=True, kw_only=True, tag="instruction"):
    """What a person, or Chargehand, tells an agent to do."""

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
    """What is known of a message before it is read: what it leaves out is this, other words are an error.

    An id is a proposal: a message may bring its own.
    """

    id: str
    mission: str
    attempt: str | None
    sender: str
    recipient: str = "chargehand"

    def fill(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return a document with what it leaves out; raises `MessageError` where it says something else."""
        known = {"mission": self.mission, "attempt": self.attempt, "sender": _fit_name(self.sender)}
        for name, value in known.items():
            # Nobody speaks for another mission, attempt or sender.
            if document.get(name, value) != value:
                raise MessageError(f"expected {value!r}", path=f"$.{name}", value=document[name])
        return {"id": self.id, "recipient": _fit_name(self.recipient), **known, **document}


def _fit_name(name: str) -> str:
    """Return a name that fits: that of an agent may be its whole command line, in bytes that are no text."""
    clean = name.encode("utf-8", "replace").decode() or "unknown"
    return clean if len(clean) <= _LONGEST_NAME else f"{clean[: _LONGEST_NAME - 1]}…"


_UNKNOWN = Addressed(id="unknown", mission="unknown", attempt=None, sender="unknown", recipient="unknown")


def decode_message(data: bytes | str, addressed: Addressed | None = None) -> Message:
    """Return the message that JSON is, of this version or an older one; raises `MessageError`.

    `addressed` gives what it may leave out.
    """
    if len(data) > LARGEST_MESSAGE:
        raise MessageError(f"longer than {LARGEST_MESSAGE} bytes", value=data[:_SHOWN])
    try:
        text = data.decode() if isinstance(data, bytes) else data
    except UnicodeDecodeError as error:
        raise MessageError(f"not UTF-8: {error.reason} at byte {error.start + 1}", value=data) from None
    return message_of(read_json(text), addressed)


def message_of(document: object, addressed: Addressed | None = None) -> Message:
    """Return the message that a decoded document is; see `decode_message`."""
    if not isinstance(document, Mapping):
        raise MessageError("a message must be a JSON object", value=document)
    # The first messages had none.
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
    if addressed is not None or version == 1:  # version 1 named nobody
        current = (addressed or _UNKNOWN).fill(current)
    kind = current.get("type")
    if not isinstance(kind, str) or kind not in MESSAGE_CLASSES:
        found = nearest(str(kind)[:_SHOWN], MESSAGE_CLASSES)
        raise MessageError(f"unknown message type: {found}", path="$.type", value=kind)
    return read_record(current, MESSAGE_CLASSES[kind])


def read_json(text: str) -> Any:
    """Return strict JSON; raises `MessageError` for anything else, a key given twice and NaN among it."""

    def refuse_number(word: str) -> NoReturn:
        raise MessageError("not a JSON number", value=word)

    try:
        # Not msgspec: it takes the last of two equal keys, and which one was meant would be a guess.
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
    """Return a decoded document as a record; raises `MessageError` with the place of what is wrong."""
    try:
        made = convert_to(document, kind)
        msgspec.json.encode(made)  # lone surrogates pass a conversion, and could not be written down
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
    """Return the JSON that a text is, also within one fence and with commas before a closing bracket.

    Only what is lossless and certain is repaired: nothing else may stand around it, and nothing is ever guessed.
    Raises `MessageError` as `read_json` does.
    """
    plain = text.removeprefix("\ufeff").strip()
    # The whole or nothing: prose around a fence may say the opposite of what stands in it.
    fenced = _FENCE.fullmatch(plain)
    inner = fenced["inner"] if fenced and fenced[1] not in fenced["inner"] else plain
    try:
        return read_json(inner)
    except MessageError as error:
        pieces = []
        end = 0
        for found in _STRING.finditer(inner):  # a comma inside a string is its text
            pieces += [_COMMA.sub("", inner[end : found.start()]), found[0]]
            end = found.end()
        without_commas = "".join([*pieces, _COMMA.sub("", inner[end:])])
        if without_commas == inner:
            raise
        try:
            return read_json(without_commas)
        except MessageError:
            raise error from None  # the place in what was written, not in what was made of it


def repaired_words(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document whose status and type are spelled as they should be where only case or spaces differ."""
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
    if "text" in report:  # what could not be read was shown as it was
        body: dict[str, Any] = {"summary": report["text"]}
        return {"type": "error_report", "status": "failure", "payload": body}
    body = {name: value for name, value in report.items() if name not in ("schema", "status", "version")}
    return {
        "type": "checkpoint_violation",
        "status": "failure",
        "payload": {**body, "verdict": report.get("status", "red")},
    }


# What makes a version into the next one.
UPGRADES: Mapping[int, Callable[[Mapping[str, Any]], dict[str, Any]]] = {1: _upgrade_1}
