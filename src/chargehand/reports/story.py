"""Missions as readable text: line by line while they run, and in pages.

`run`, `mission watch` and the demo show the lines of `MissionStory`. `describe` has a line for every event of a
log, including sandboxes, claims and temporary files. Pages are for clients that show many missions, or a long log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from chargehand.core import attempt_events as a
from chargehand.core import mission_events as m
from chargehand.core import plan_events as p
from chargehand.core.events import Event, Payload, read_payload
from chargehand.core.records import CheckResult, MissionStatus, Verdict
from chargehand.core.state import ENDED, SETTLED, MissionState
from chargehand.core.text import printable
from chargehand.missions.journal import load_step_output
from chargehand.missions.waiting import goes_on_by_itself, waiting_tasks
from chargehand.reports.decisions import HunkDecision as HunkDecision
from chargehand.reports.decisions import MissionReviews as MissionReviews
from chargehand.reports.decisions import ReviewDecisions as ReviewDecisions
from chargehand.reports.decisions import find_review as find_review
from chargehand.reports.decisions import list_reviews as list_reviews
from chargehand.reports.decisions import save_review as save_review
from chargehand.reports.documents import (
    Document,
    EventDocument,
    ListedMission,
    TranscriptDocument,
    event_document,
    event_step,
)
from chargehand.reports.listing import children_of, listed_missions
from chargehand.reports.outcome import describe_check, explain_check
from chargehand.reports.plan_graph import PlanDocument as PlanDocument
from chargehand.reports.plan_graph import plan_graph as plan_graph
from chargehand.reports.plan_graph import plan_tree as plan_tree
from chargehand.reports.plan_graph import show_plan as show_plan
from chargehand.reports.progress.crew import Crew as Crew
from chargehand.reports.progress.crew_following import follow_crew as follow_crew
from chargehand.reports.progress.crew_rows import crew_rows as crew_rows
from chargehand.reports.progress.event_text import alert_text as alert_text
from chargehand.reports.progress.event_text import describe as describe
from chargehand.reports.progress.event_text import describe_event as describe_event
from chargehand.reports.progress.terminal import TerminalFollower as TerminalFollower
from chargehand.reports.progress.terminal import TerminalRecord as TerminalRecord
from chargehand.reports.reading import StateReader, parse_since
from chargehand.reports.report import MissionReport as MissionReport
from chargehand.reports.review import ChangeReview as ChangeReview
from chargehand.store.rows import MissionFilter
from chargehand.store.store import Store

if TYPE_CHECKING:
    from chargehand.agents.tool_specs import ToolCall

_SUBJECTS = ("path", "pattern", "command", "question", "summary")
_PATCHED = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.+)$", re.MULTILINE)
_MOST_COMPLAINTS = 4
# The width to which a call's subject is padded, and the longest line, in characters.
_SUBJECT_CHARACTERS = 46
_LONGEST = 200
# The limit of a payload in a page of events, in bytes; `mission log --json` has longer ones.
_LONGEST_PAYLOAD = 16_000
# The maximum lines of a step of a transcript, and characters of a page of it.
_STEP_LINES = 1 << 24
_PAGE_CHARACTERS = 2_000_000
_COLOURS = {"green": "green", "red": "red", "succeeded": "green", "refused": "red", "failed": "red"}
_JUDGED = {"passed": "green", "failed": "red"}
# Decisions of a person and waits: shown at the margin, as described by `describe`.
_OF_THE_MISSION = (
    *(m.MissionPaused, m.MissionResumed, m.MissionContinued, m.CancelAsked, m.MissionQueued, m.MissionInterrupted),
    *(m.MergeConflicted, m.QuestionAsked, m.QuestionAnswered, m.QuestionExpired, a.BreakerChanged),
    *(m.MessageSent, a.MessageAcknowledged, a.MessageUndelivered, a.BudgetAlert),
    *(m.ForecastMade, m.LessonsRecalled, m.MissionAllowed, p.PlanWanted, p.PlannerStarted, p.PlanProposed),
    *(p.PlanMade, p.TaskStarted, p.TaskHeld, p.TaskAllowed),
    *(p.TaskReviewed, p.TaskNoted, p.TaskDelegated, p.TaskMerged, p.TaskReturned, p.TaskEnded),
)


class StoryLine(Struct, frozen=True, kw_only=True):
    """One line, and its style on a terminal."""

    text: str
    colour: str | None = None
    bold: bool = False
    is_step: bool = True
    """Whether it tells of a step, not of a detail inside one."""


class MissionStory:
    """Describes a mission event by event; `first` omits everything before that attempt.

    With `catch_up`, a mission that began before is shown from its beginning at its first event.
    """

    def __init__(self, store: Store, *, first: int = 1, catch_up: bool = False) -> None:
        self._store = store
        self._first = first
        self._catch_up = catch_up
        self._seen = 0
        self._number = 0
        self._agent = ""
        self._talks = False
        # A red verdict on the base is held until it is known whether it only showed that a setup is needed.
        self._red_base: list[StoryLine] = []
        # A mission that continues after an answer repeats the setup and the verdict on its base.
        self._told_of_base: set[str] = set()
        self._calls: dict[tuple[int, int], ToolCall] = {}

    def tell(self, event: Event) -> list[StoryLine]:
        """Return the lines for the next event, [] for events that a person need not see."""
        missed: list[Event] = []
        if self._seen == 0 and event.seq > 1:
            # The number of the attempt, and the calls for the coming results, are in earlier lines.
            missed = [each for each in self._store.log.read(event.mission) if each.seq < event.seq]
        self._seen = event.seq
        before = [line for each in missed for line in self._tell_event(each)]
        return [*(before if self._catch_up else ()), *self._tell_event(event)]

    def _after_red_base(self, payload: Payload | None, lines: list[StoryLine]) -> list[StoryLine]:
        """Return the lines of an event, preceded by held lines of a red base if they are still relevant."""
        held, self._red_base = self._red_base, []
        if isinstance(payload, m.SetupDetected):
            return lines
        if lines or isinstance(payload, m.MissionFinished):
            return [*held, *lines]
        self._red_base = held
        return lines

    def _tell_event(self, event: Event) -> list[StoryLine]:
        payload = read_payload(event)
        lines = self._after_red_base(payload, self._tell_payload(event, payload))
        if (
            isinstance(payload, m.VerdictGiven)
            and payload.verdict.scope == "base"
            and payload.verdict.status == "red"
        ):
            self._red_base, lines = lines, []
        return lines

    def _tell_payload(self, event: Event, payload: Payload | None) -> list[StoryLine]:
        match payload:
            case None:
                return [StoryLine(text=f"  {describe_event(event)}")]
            case a.AttemptStarted():
                self._number = payload.number
                self._talks = False
                self._calls.clear()
            case m.VerdictGiven() if payload.verdict.scope == "base":
                checks = payload.verdict.checks if self._first == 1 else ()
                found = (describe_check(self._store, check) for check in checks)
                return self._tell_once(f"  before      {text}" for text in found)
            case m.SetupDetected():
                return self._tell_once((f"  {describe(payload)}",))
        if self._number and self._number < self._first:
            return []
        if (note := self._note(payload)) is not None:
            return [StoryLine(text=f"    {note}"[:_LONGEST], colour="yellow", is_step=False)]
        return list(self._tell(payload))

    def _tell_once(self, lines: Iterable[str]) -> list[StoryLine]:
        new = [line for line in lines if line not in self._told_of_base]
        self._told_of_base.update(new)
        return [StoryLine(text=line) for line in new]

    def _tell(self, payload: Payload) -> Iterator[StoryLine]:
        match payload:
            case m.StepFinished():
                yield from self._tell_step(payload)
            case a.AttemptStarted():
                more = ", with the report of the problems" if payload.number > 1 else ""
                # The first attempt's agent was named before; a later attempt may have another agent.
                who = f" by {payload.agent}" if self._agent not in ("", payload.agent) else ""
                self._agent = payload.agent
                yield StoryLine(text=f"  attempt {payload.number}{who}{more}", bold=True)
            case m.QuestionAsked(question=m.PROMOTE):
                return  # the result shows it, with the commands
            case m.VerdictGiven():
                yield from self._tell_verdict(payload.verdict, reused=payload.reused)
            case m.AttemptFinished():
                reasons = "; ".join(reason.message for reason in payload.reasons)
                why = "" if payload.status in ("succeeded", "refused") else f": {reasons}"
                text = f"  attempt {self._number} {payload.status}{why}"
                yield StoryLine(text=text, colour=_COLOURS.get(payload.status), bold=True)
            case _ if isinstance(payload, _OF_THE_MISSION) and (text := describe(payload)):
                yield StoryLine(text=f"  {text}")

    def _note(self, payload: Payload) -> str | None:
        """Return a note about the agent's actions apart from its messages, `None` if there is nothing to note."""
        match payload:
            case a.CheckpointMade() if not self._talks and payload.checkpoint.changed:
                # A tool's own line says what it changed; for a program there is only this line.
                count = payload.checkpoint.changed
                return f"changed     {count} {'file' if count == 1 else 'files'}"
            case a.ModelCalled() if payload.status not in ("ok", "replayed"):
                return f"model       {payload.status}: {payload.reason}"
            case a.NetworkRequested() if payload.allowed or payload.unlisted:
                return None
            case a.ActionJudged(effect="allow"):
                return None
            case a.ActionJudged() | a.NetworkRequested() | m.ChangesReverted():
                return describe(payload) or None
        return None

    def _tell_step(self, done: m.StepFinished) -> Iterator[StoryLine]:
        """Yield a line for each text of the model and each call with a result."""
        if "/work/" not in done.step:
            return
        # Imported here: these modules load what runs attempts, half a second that other agents save.
        from chargehand.agents.recorded import read_reply
        from chargehand.missions.transcript import parse_act

        act = parse_act(done.step)
        if act is None or act[1].kind not in ("reply", "call"):
            return
        self._talks = True
        step = act[1]
        output = load_step_output(self._store, done)
        if step.kind == "reply":
            reply = read_reply(output)
            if reply.text:
                yield StoryLine(text=f"    model       {reply.text}", colour="cyan", is_step=False)
            for call in reply.calls:
                self._calls[step.turn, call.index] = call
                if call.name == "finish":
                    yield StoryLine(text=f"    finish      {_subject(call)}", is_step=False)
            return
        made = self._calls.get((step.turn, step.index))
        if made is not None and made.name != "finish":
            # It is shown with its result, in one line.
            outcome = _outcome(made.name, output.get("output", output))
            text = f"    {made.name:<11} {_subject(made):<{_SUBJECT_CHARACTERS}} {outcome}"
            yield StoryLine(text=text, is_step=False)

    def _tell_verdict(self, verdict: Verdict, *, reused: bool) -> Iterator[StoryLine]:
        if verdict.scope == "merged" and reused:
            return
        where = " on the merged tree" if verdict.scope == "merged" else ""
        for check in verdict.checks:
            judged = _JUDGED.get(check.status, verdict.status)
            if check.status == "failed" and verdict.status == "no_worse":
                judged = "no worse"
            lines = complaints(self._store, check)
            # The first failed tests are named with their reasons below, if the output has any.
            found = describe_check(self._store, check, with_names=not lines)
            yield StoryLine(text=f"    {judged:<11} {found}{where}", colour=_COLOURS.get(judged))
            for line in lines:
                yield StoryLine(text=f"                  {line}", is_step=False)


def verdict_of(state: MissionState, number: int) -> Verdict | None:
    """Return the verdict on an attempt's result, `None` without a verdict."""
    given = [verdict for verdict in state.verdicts if verdict.scope == "attempt"]
    return given[number - 1] if number <= len(given) else None


def complaints(store: Store, check: CheckResult) -> list[str]:
    """Return a few lines that explain a check that did not pass: each failing test with its reason."""
    failure = explain_check(store, check)
    tests = [line for test in failure.tests for line in (test.name, *test.lines[:1])]
    return [line[:_LONGEST] for line in (*tests, *failure.lines)][:_MOST_COMPLAINTS]


def attempt_costs(state: MissionState) -> Iterator[str]:
    """Yield the cost of each attempt, in words."""
    for attempt in state.attempts:
        cost = f"{attempt.cost_usd:.4f} USD" if attempt.cost_known else "unknown"
        yield f"attempt {attempt.number} {cost} for {attempt.calls} replies"


def _subject(call: ToolCall) -> str:
    arguments: dict[str, Any] = call.arguments if isinstance(call.arguments, dict) else {}
    if call.name == "apply_patch":
        return ", ".join(_PATCHED.findall(str(arguments.get("patch", ""))))
    given = str(next((arguments[name] for name in _SUBJECTS if name in arguments), ""))
    return given.strip().partition("\n")[0][:_LONGEST]


def _outcome(tool: str, result: dict[str, Any]) -> str:
    """Return the end of a result, where tools report the outcome."""
    lines = [line for line in result["text"].splitlines() if line.strip()]
    if tool == "search" and not result["failed"]:
        return f"{len(lines)} matches"
    ending = lines[-2:] if tool == "bash" else lines[-1:]
    return ", ".join(line.strip("[]. ") for line in ending)[:_LONGEST]


# --- pages


class MissionPage(Document, frozen=True):
    """A page of missions, the newest first; `next` is the `before` of the following page.

    `counts` are over all missions of the project and user. `position` is where the feed of events continues.
    """

    missions: list[ListedMission]
    next: str | None
    counts: dict[str, int]
    position: int


class PageRequest(Struct, frozen=True, kw_only=True):
    """Selects a page of missions: at most `limit` that were created before the mission `before`.

    `text` is searched in ids and requests, case-insensitively.
    """

    project: str | None = None
    user: str | None = None
    statuses: tuple[MissionStatus, ...] = ()
    since: str | None = None
    text: str = ""
    before: str | None = None
    limit: int = 50


def page_missions(reader: StateReader, request: PageRequest) -> MissionPage:
    """Return a page of missions, the newest first. Raises `NotFoundError` for an unknown cursor, `UsageError`."""
    log, is_live = reader.store.log, reader.workers.live
    # First, so that a client that follows the feed from there misses nothing after the page.
    position = log.last_position()
    since = parse_since(request.since, now=reader.clock.now()).isoformat() if request.since else None
    page = log.summaries(
        is_live,
        MissionFilter(
            project=request.project,
            user=request.user,
            statuses=request.statuses or None,
            since=since,
            before=request.before,
            text=request.text,
            limit=request.limit + 1,
        ),
    )
    found = [each.summary for each in reversed(page)]
    shown = found[: request.limit]
    counts = log.counts(is_live, project=request.project, user=request.user)
    waits = reader.mission_reader.waits([each.id for each in shown])
    coordinators = [each for each in shown if each.tasks is not None and each.status not in ENDED]
    waiting = waiting_tasks((*shown, *(child for each in coordinators for child in children_of(reader, each.id))))
    return MissionPage(
        missions=listed_missions(reader, shown, waits, waiting),
        next=shown[-1].id if len(found) > len(shown) else None,
        counts={str(status): count for status, count in counts.items()},
        position=position,
    )


class EventLine(Document, frozen=True):
    """One line of any log in words; `position` is its place among the lines of all logs, if requested."""

    mission: str
    seq: int
    time: str
    type: str
    step: str | None
    text: str
    payload: Any = None
    position: int | None = None


class EventPage(Document, frozen=True):
    """A page of a mission's log; `next` is the `after` of the next page, `last_seq` the last line's number."""

    mission: str
    events: list[EventLine]
    next: int | None
    last_seq: int


def page_events(reader: StateReader, name: str, *, after: int = 0, limit: int = 200) -> EventPage:
    """Return a page of a mission's log, in words and with payloads, except long ones."""
    mission = reader.find_mission(name)
    # One more than shown reveals whether another page follows.
    lines = reader.store.log.read(mission, after=after, limit=limit + 1)
    shown = lines[:limit]
    return EventPage(
        mission=mission,
        events=[event_line(each, with_payload=True) for each in shown],
        next=shown[-1].seq if len(shown) < len(lines) else None,
        last_seq=reader.store.log.last_seq(mission),
    )


class LogPage(Document, frozen=True):
    """A page of a mission's log, or of a project's own, as written; `next` as in `EventPage`.

    `status` is the mission's, "" for a project's log; `settled` says that no worker will continue it by itself.
    """

    log: str
    status: str
    settled: bool
    events: list[EventDocument]
    next: int | None


def page_log(
    reader: StateReader, log: str, *, after: int = 0, limit: int = 200, of_project: bool = False
) -> LogPage:
    """Return a page of the log with this exact id. A mission's status is from before its lines were read."""
    state = None if of_project else reader.mission_reader.state(log)
    lines = reader.store.log.read(log, after=after, limit=limit + 1)
    return LogPage(
        log=log,
        status="" if state is None else str(state.status),
        settled=state is not None and state.status in SETTLED and not goes_on_by_itself(state),
        events=[event_document(each) for each in lines[:limit]],
        next=lines[limit - 1].seq if len(lines) > limit else None,
    )


def events_after(
    reader: StateReader, position: int, *, mission: str | None = None, project: str | None = None, limit: int = 500
) -> list[EventLine]:
    """Return lines of all logs, or of one, after a position; pass the last line's position to follow."""
    found = reader.store.log.after(position, mission=mission, project=project, limit=limit)
    return [event_line(each.event, position=each.position) for each in found]


def event_line(event: Event, *, with_payload: bool = False, position: int | None = None) -> EventLine:
    """Return one line of a log in words, without its payload if that is long or unreadable."""
    payload = None
    if with_payload and event.payload is not None and len(event.payload) <= _LONGEST_PAYLOAD:
        payload = event_document(event).payload
    return EventLine(
        mission=event.mission,
        seq=event.seq,
        time=event.time,
        type=event.type,
        step=event_step(event) or None,
        text=printable(describe_event(event)),
        payload=payload,
        position=position,
    )


class TranscriptPage(Document, frozen=True):
    """A page of a mission's transcript; `next` is the `after` of the following page, if it exists already.

    `end` is the `after` for clients that wait for entries after this page.
    """

    mission: str
    lines: list[TranscriptDocument]
    next: int | None
    end: int


def page_transcript(reader: StateReader, name: str, *, after: int = 0, limit: int = 200) -> TranscriptPage:
    """Return a page of the conversation of a mission's agents, reading no more than the page.

    At most `limit` lines, and fewer if they are long; `after` is 0, or comes from the page before.
    """
    from chargehand.missions.transcript import transcript_steps

    state = reader.mission_state(name)
    # A step of an agent has several lines: a position is the step's number and the number of its preceding lines.
    first, skipped = divmod(after, _STEP_LINES)
    lines, room = list[TranscriptDocument](), _PAGE_CHARACTERS
    for number, entries in transcript_steps(reader.store, state, first=first):
        for index, entry in enumerate(entries):
            if number == first and index < skipped:
                continue
            if lines and (len(lines) >= limit or room < len(entry.text)):
                place = number * _STEP_LINES + index
                return TranscriptPage(mission=state.id, lines=lines, next=place, end=place)
            lines.append(TranscriptDocument(mission=state.id, **msgspec.to_builtins(entry)))
            room -= len(entry.text)
    end = max(after, len(state.steps) * _STEP_LINES)
    return TranscriptPage(mission=state.id, lines=lines, next=None, end=end)
