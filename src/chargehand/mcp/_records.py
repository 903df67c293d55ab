"""Arguments and results of the MCP server's tools: records that the schemas are generated from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from chargehand.core.codec import json_schema
from chargehand.core.records import Export, Feedback, MissionForecast, QuestionKind, Reason
from chargehand.decisions.forecast_records import PlanForecast
from chargehand.reports.documents import CauseDocument
from chargehand.reports.outcome import FailureDocument
from chargehand.workspace.depot import LineCount

_LONGEST_TEXT = 100_000

MissionName = Annotated[str, Meta(min_length=1, max_length=64, description="The id of a mission.")]
_Said = Annotated[str, Meta(min_length=1, max_length=_LONGEST_TEXT)]
_Words = Annotated[str, Meta(min_length=1, max_length=4096)]
_Short = Annotated[str, Meta(min_length=1, max_length=200)]
_Money = Annotated[float, Meta(gt=0, le=1_000_000)]
_Tries = Annotated[int, Meta(ge=1, le=100)]
_Many = Annotated[tuple[_Words, ...], Meta(max_length=50)]


# Unknown fields are refused: a client that misspells `budget` would otherwise run without it.
class McpArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The arguments of a tool; written without defaults, so that a new option leaves old digests as they are."""


class McpResult(msgspec.Struct, frozen=True, kw_only=True):
    """The structured result of a tool."""


class RunMission(McpArguments, frozen=True):
    """The arguments of `run_mission`, with the options of a run."""

    request: Annotated[_Said, Meta(description="The agent's task, in words.")]
    key: Annotated[
        _Short | None,
        Meta(
            description="Your own name for this mission. The same key always gives the same mission, never a "
            "second one, also after restarts on either side. Use one, so that a call can be made again.",
        ),
    ] = None
    repo: Annotated[
        _Words | None, Meta(description="The path of a git repository; the server's own by default.")
    ] = None


class OneMission(McpArguments, frozen=True):
    """The argument of tools on one mission."""

    mission: MissionName


class WaitMission(McpArguments, frozen=True):
    """The arguments of `wait_mission`."""

    mission: MissionName
    seconds: Annotated[float, Meta(ge=0, le=600, description="Wait at most this long.")] = 30.0


class ListMissions(McpArguments, frozen=True):
    """The arguments of `list_missions`."""

    repo: Annotated[_Words | None, Meta(description="Only those of this repository; of all by default.")] = None
    status: Annotated[_Many, Meta(description="Only those of these statuses.")] = ()
    limit: Annotated[int, Meta(ge=1, le=100, description="At most so many.")] = 20
    cursor: Annotated[_Short | None, Meta(description="`next_cursor` of the page before.")] = None


class AnswerQuestion(McpArguments, frozen=True):
    """The arguments of `answer_question`."""

    mission: MissionName
    text: Annotated[_Said, Meta(description="The answer; an option's number means its text.")]
    question: Annotated[_Short | None, Meta(description="The question's id: refused if another one is open.")] = (
        None
    )


class SendMessage(McpArguments, frozen=True):
    """The arguments of `send_message`."""

    mission: MissionName
    text: Annotated[_Said, Meta(description="The message; the agent gets it with its next attempt.")]


class GiveFeedback(McpArguments, frozen=True):
    """The arguments of `give_feedback`."""

    mission: MissionName
    word: Annotated[Literal["good", "bad"] | None, Meta(description="The word of your person.")] = None
    attempt: Annotated[int | None, Meta(description="By default the promoted or last one.")] = None
    hunk: Annotated[_Words | None, Meta(description="A place of its change, PATH:LINE.")] = None
    note: Annotated[str, Meta(max_length=2000, description="The reason, for other people.")] = ""
    retract: Annotated[bool, Meta(description="Take earlier words back; without a word.")] = False


class ShowDiff(McpArguments, frozen=True):
    """The arguments of `show_diff`."""

    mission: MissionName
    checkpoint: Annotated[_Words | None, Meta(description="Up to this checkpoint instead of the result.")] = None
    offset: Annotated[int, Meta(ge=0, le=1 << 40, description="`next_offset` of the page before.")] = 0
    limit: Annotated[int, Meta(ge=1, le=200_000, description="At most so many characters.")] = 50_000


class ShowLog(McpArguments, frozen=True):
    """The arguments of `show_log`."""

    mission: MissionName
    after: Annotated[int, Meta(ge=0, le=1 << 40, description="Only events after this sequence number.")] = 0
    limit: Annotated[int, Meta(ge=1, le=500, description="At most so many.")] = 100


class PromoteMission(McpArguments, frozen=True):
    """The arguments of `promote`."""

    mission: MissionName
    reason: Annotated[str, Meta(max_length=2000, description="Why it is let in; it is recorded.")] = ""


class QuestionView(McpResult, frozen=True):
    """The open question of a mission."""

    id: str
    text: str
    options: tuple[str, ...]
    kind: QuestionKind
    closed: Annotated[bool, Meta(description="Only the options are answers.")]
    expires: Annotated[str, Meta(description="No answer is accepted after this time (UTC); empty: no limit.")]
    default: Annotated[str, Meta(description="The answer that is used if none comes in time.")]
    meanings: Annotated[tuple[str, ...], Meta(description="What each option means; empty: nothing to explain.")]


class AttemptView(McpResult, frozen=True):
    """One attempt of an agent."""

    agent: str
    model: str | None
    status: str
    verdict: str | None
    cost_usd: float | None
    cost_known: bool
    seconds: float | None
    cause: CauseDocument | None


class MissionView(McpResult, frozen=True):
    """The state of a mission. `settled`: it does not continue until a person or a client acts."""

    mission: str
    status: str
    settled: bool
    repository: str
    request: str
    branch: str | None
    commit: str | None
    base: str | None
    export: Export | None
    checkpoints: int
    attempts: tuple[AttemptView, ...]
    cost_usd: float | None
    cost_known: bool
    seconds: float | None
    reasons: tuple[Reason, ...]
    cause: CauseDocument | None
    question: QuestionView | None
    rolled_back: bool
    failures: tuple[FailureDocument, ...]
    last_seq: Annotated[int, Meta(description="The number of the last event, for `show_log`.")]


class Started(McpResult, frozen=True):
    """A mission, and whether this call made it (`false`: its key was known)."""

    created: bool
    mission: MissionView


class FeedbackGivenView(McpResult, frozen=True):
    """All feedback on a mission that was not retracted; `warning` if the given word does not count."""

    mission: str
    feedback: tuple[Feedback, ...]
    warning: str | None


class MissionLine(McpResult, frozen=True):
    """One line of the list; `parent` is the mission whose `task` it does, null for a requested mission."""

    mission: str
    status: str
    repository: str
    created: str
    updated: str
    request: str
    branch: str | None
    question: bool
    parent: str | None
    task: str | None


class MissionList(McpResult, frozen=True):
    """A page of missions, the newest first."""

    missions: tuple[MissionLine, ...]
    next_cursor: str | None


class ForecastView(McpResult, frozen=True):
    """A forecast of a mission; fields as in `mission forecast --json`, `summary` says it in words."""

    mission: str
    status: str
    forecast: MissionForecast | None
    plan: PlanForecast | None
    at_start: MissionForecast | None
    cost_usd: float | None
    seconds: float
    summary: tuple[str, ...]


class DiffView(McpResult, frozen=True):
    """A part of a patch. `exact`: the whole of it is what git applies, nothing had to be left out to show it."""

    mission: str
    old: str
    new: str
    files: tuple[LineCount, ...]
    files_total: int
    patch: str
    offset: int
    next_offset: int | None
    total: int
    exact: bool


class EventView(McpResult, frozen=True):
    """One event; `payload` is null if it was erased or is too long (`cut`)."""

    seq: int
    time: str
    type: str
    text: str
    payload: dict[str, Any] | None
    cut: bool


class LogView(McpResult, frozen=True):
    """A page of events; ask again after `next_after` for more."""

    mission: str
    events: tuple[EventView, ...]
    last_seq: int
    next_after: int | None
    settled: bool


def schema_of(record: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a record, with an object at its root as MCP requires."""
    # MCP requires the object itself at the root, where msgspec puts a reference to it.
    root, definitions = json_schema(record)
    name = root["$ref"].rpartition("/")[2]
    schema: dict[str, Any] = definitions.pop(name)
    schema.pop("title", None)
    return schema | ({"$defs": definitions} if definitions else {})
