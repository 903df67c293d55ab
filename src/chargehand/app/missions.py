"""Use cases of missions: list, show, follow, steer, answer, promote, roll back.

Those that read take a `StateReader` and import nothing that runs a mission. A mission that a worker holds is
changed by an order to that worker, any other mission in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import time
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from chargehand.app.worker import ensure_worker
from chargehand.core.errors import RefusedError, UsageError
from chargehand.core.events import Event
from chargehand.core.records import Reason
from chargehand.core.state import ENDED, SETTLED, MissionState, Question
from chargehand.missions.waiting import Addressee, Deed, find_addressee, waiting_tasks
from chargehand.missions.waiting import goes_on_by_itself as goes_on_by_itself
from chargehand.reports.documents import (
    Delivery,
    ListedMission,
    MessageDocument,
    MissionListDocument,
    QuestionDocument,
    TranscriptDocument,
)
from chargehand.reports.listing import children_of as children_of
from chargehand.reports.listing import listed_missions
from chargehand.reports.outcome import explain_check
from chargehand.reports.reading import StateReader, parse_since
from chargehand.store.rows import MissionFilter

if TYPE_CHECKING:
    from chargehand.app.composition import App
    from chargehand.core.events import OnEvent
    from chargehand.durable.actions import OutputLine
    from chargehand.reports.review import ChangeReview

_CANCEL_SECONDS = 30.0
# A message or an answer reaches agents as one environment variable, which Linux limits to 128 KiB.
_LARGEST_TEXT_BYTES = 100_000
_OPTION_DIGITS = 9
# Cached lists of a reader, so that an unchanged list is not built again.
_MOST_LISTS = 16


class MissionChange(msgspec.Struct, frozen=True, kw_only=True):
    """A mission's state after a change, and whether a worker was started for it."""

    state: MissionState
    worker_started: bool = False


# --- reading


class ListRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The filter of a list: missions of a repository (the working directory's by default) or of all projects.

    With any `statuses` only those, `since` as `7d` or a date, `limit` the number of newest missions; 0 is no
    limit. The missions of a listed coordinator's tasks are included and do not count.
    """

    repository: Path | None = None
    everywhere: bool = False
    statuses: tuple[str, ...] = ()
    since: str | None = None
    limit: int = 0


def list_missions(reader: StateReader, request: ListRequest) -> MissionListDocument:
    """Return missions, the newest first, and how many `limit` omits. Raises `UsageError`."""
    project = None if request.everywhere else reader.projects.current(request.repository)
    since = parse_since(request.since, now=reader.clock.now()).isoformat() if request.since else ""
    queue = reader.mission_reader.queue()
    # The projected rows, not the logs: a list must not grow with the history of its missions.
    listings = reader.mission_reader.listings(project=project.id if project else None)
    # The same rows and the same queue give the same list, which is not built again.
    key = (project and project.id, since, request.statuses, request.limit)
    made = reader.lists.get(key)
    if made is None or made[0] is not listings or made[1] != queue:
        if len(reader.lists) >= _MOST_LISTS:
            reader.lists.clear()
        states = [listing.summary for listing in listings]
        chosen_since = [state for state in states if state.created >= since]
        found = listed_missions(reader, chosen_since, queue.reasons(), waiting_tasks(states))
        chosen = [each for each in found if not request.statuses or listed_status(each) in request.statuses]
        ids = {each.mission for each in chosen}
        counted = [each.mission for each in chosen if each.parent not in ids]
        kept = set(counted[-request.limit :] if request.limit else counted)
        shown = [each for each in chosen if each.mission in kept or each.parent in kept]
        document = MissionListDocument(missions=shown[::-1], left_out=len(counted) - len(kept))
        made = reader.lists[key] = (listings, queue, document)
    return made[2]


def listed_status(listed: ListedMission) -> str:
    """Return the status shown in a list; a promoted mission that was undone is `rolled-back`."""
    return "rolled-back" if listed.rolled_back else listed.status


def review_mission(reader: StateReader, name: str) -> ChangeReview:
    """Return a mission's change for a person's review. Raises `RefusedError` (`no_base`), `RepositoryError`."""
    from chargehand.missions.reading import result_tree
    from chargehand.reports.review import ReviewSource, build_review

    state = reader.mission_state(name)
    tree = result_tree(state)
    assert state.base is not None
    return build_review(
        ReviewSource(
            state=state,
            depot=reader.projects.mission_depot(state),
            base=state.base,
            tree=tree,
            events=reader.store.log.read(state.id, types=("checkpoint.made",)),
            explain=partial(explain_check, reader.store),
        )
    )


def read_events(reader: StateReader, mission: str) -> Iterator[Event]:
    """Yield the events of a mission's log, or of a project's own."""
    yield from reader.store.log.read(mission)


def follow_mission(
    reader: StateReader, mission: str, *, with_output: bool = False
) -> Iterator[Event | Reason | OutputLine]:
    """Yield the events of a mission until it is settled, and its reason for waiting whenever that changes.

    No event records why a mission waits that no worker has taken up: it depends on the workers that are alive now.
    A coordinator waits for a moment between any two of its decisions: that is yielded only if it lasts.
    `with_output` also yields, in order of time, the lines that its agents print.
    """
    # Imported here: a list of missions follows none.
    from chargehand.reports.live_output import CHECK_STREAM, LOOK_SECONDS, OutputReader, Patience

    followed = reader.mission_reader.followed(mission)
    told = set[str]()
    patience = Patience()
    with OutputReader(reader.home, mission) as output:
        while True:
            state, events = followed.look()
            settled = state.status in SETTLED and not goes_on_by_itself(state)
            lines = (each for each in output.read() if each.stream != CHECK_STREAM) if with_output else ()
            if events:  # a reason that returns after progress is news again
                told.clear()
            merged: Iterator[Event | OutputLine] = heapq.merge(
                events, lines, key=lambda each: datetime.fromisoformat(each.time)
            )
            yield from merged
            if settled:
                return
            reason = None
            if state.waits_for_quota is not None:
                reason = state.waits_for_quota.reason
            elif state.status == "planned" or goes_on_by_itself(state):
                reason = reader.mission_reader.waits((state.id,)).get(state.id)
            # A worker that was just started joins in a moment.
            if state.plan is not None or (reason is not None and reason.code == "no_worker"):
                reason = patience.lasting(reason)
            if reason is not None and reason.message not in told:
                told.add(reason.message)
                yield reason
            time.sleep(LOOK_SECONDS)


def start_needed_worker(reader: StateReader, mission: str) -> bool:
    """Start a worker if a mission should run and no worker lives; return whether one was started."""
    state = reader.mission_reader.state(mission)
    sleeps = state.waits_for_quota is not None or state.held is not None or bool(state.expiring)
    needed = reader.has_work() or sleeps
    return needed and ensure_worker(reader).started


def read_transcript(reader: StateReader, name: str) -> Iterator[TranscriptDocument]:
    """Yield the conversation of a mission's agents: exact for native agents, as reported by others."""
    from chargehand.missions.transcript import read_transcript

    state = reader.mission_state(name)
    for line in read_transcript(reader.store, state):
        yield TranscriptDocument(mission=state.id, **msgspec.to_builtins(line))


def question_document(mission: str, asked: Question) -> QuestionDocument:
    """Return a mission's question as a document."""
    return QuestionDocument(
        mission=mission,
        question=asked.id,
        text=asked.text,
        options=asked.options,
        kind=asked.kind,
        closed=asked.closed,
        expires=asked.expires,
        default=asked.default,
        meanings=asked.meanings,
    )


def show_question(reader: StateReader, name: str, *, task: str | None = None) -> QuestionDocument:
    """Return the question of a mission, or of one of its tasks. Raises `RefusedError` as an answer would."""
    from chargehand.missions.steering import require_question

    meant = addressed_mission(reader, name, "answer", task=task)
    asked = meant.question or require_question(reader.mission_reader.state(meant.mission))
    return question_document(meant.mission, asked)


# --- steering


def addressed_mission(reader: StateReader, name: str, deed: Deed, *, task: str | None = None) -> Addressee:
    """Return the mission that a person means by name and task, as `find_addressee`. Raises `NotFoundError` too."""
    state = reader.mission_state(name)
    return find_addressee(state, children_of(reader, state.id), deed, task)


def pause_mission(app: App, name: str, *, reason: str) -> MissionState:
    """Pause a mission; nothing of it runs any more when this returns. Raises `RefusedError`."""
    mission = app.find_mission(name)
    if not app.order(mission, "pause", reason=reason):
        app.steering.pause(mission, reason)
    for child in open_children(app, mission):
        with contextlib.suppress(RefusedError):  # it waits already, or ended meanwhile
            pause_mission(app, child, reason=f"with its coordinator {mission}")
    return app.mission_reader.state(mission)


def resume_mission(app: App, name: str, *, step: bool = False, to_end: bool = False) -> MissionChange:
    """Resume a mission, in its worker or in a new one. Raises `RefusedError`, `UsageError`.

    With `step` until the next of its steps, with `to_end` past all breakpoints.
    """
    if step and to_end:
        raise UsageError("--step and --to-end were both given", hint="give one of them")
    mission = app.find_mission(name)
    more = {name: "yes" for name, wanted in (("step", step), ("to_end", to_end)) if wanted}
    # A worker that is about to release the mission takes the order without effect: the mission stays held.
    is_held = app.order(mission, "resume", **more) and app.mission_reader.state(mission).held is None
    if not is_held:
        before = app.mission_reader.state(mission)
        # A mission whose agent has finished continues with its verdict, which needs no agent.
        if before.status in ("paused", "cancelled", "failed") and not any(
            attempt.status == "succeeded" for attempt in before.attempts
        ):
            app.preparation.require_recorded_agent(before)
        app.steering.resume(mission, step=step, to_end=to_end)
    for child in open_children(app, mission):
        with contextlib.suppress(RefusedError):  # it waits for something else
            # A child that was paused while it ran is still held by its worker, which needs the order.
            if not app.order(child, "resume"):
                app.steering.resume(child)
    state = app.mission_reader.state(mission)
    return MissionChange(state=state, worker_started=not is_held and ensure_worker(app).started)


def send_message(app: App, name: str, text: str, *, critical: bool = False) -> MissionState:
    """Send the agent of a mission a message, by order if it runs. Raises `UsageError`, `RefusedError`."""
    mission = app.find_mission(name)
    if not text.strip():
        raise UsageError("the message is empty", hint="write a text for the agent")
    # An argument that is not UTF-8 has lone surrogates, which encode() refuses.
    if len(text.encode(errors="replace")) > _LARGEST_TEXT_BYTES:
        raise UsageError(f"the message has more than {_LARGEST_TEXT_BYTES} bytes", hint="put the rest into a file")
    if critical and app.mission_reader.state(mission).plan is not None:
        message = f"mission {mission!r} has a plan: only an agent of its tasks can be frozen"
        raise UsageError(message, hint="leave out --critical, or name the task: --task ID")
    more = {"critical": "yes"} if critical else {}
    ordered = app.order(mission, "send", text=text, **more)
    return app.mission_reader.state(mission) if ordered else app.steering.send(mission, text, critical=critical)


def message_document(state: MissionState) -> MessageDocument:
    """Return the last message sent to a mission, and when its agent gets it."""
    from chargehand.agents.kinds import AGENTS
    from chargehand.app.selection.agents import named_agent

    sent = state.messages[-1]
    request = state.request
    config = state.config
    delivery: Delivery = "next_attempt"
    if state.plan is not None:
        delivery = "next_task"
    elif state.status != "running" or request is None or config is None:
        delivery = "on_resume"
    elif AGENTS.find(named_agent(config, request.agent).kind).abilities.hears:
        delivery = "next_step"
    elif len(state.attempts) >= request.attempts and not sent.critical:
        delivery = "no_attempt_left"
    return MessageDocument(
        mission=state.id,
        status=state.status,
        messages=len(state.messages),
        message=sent.message,
        critical=sent.critical,
        delivery=delivery,
    )


def cancel_mission(app: App, name: str) -> MissionState:
    """Stop a mission, waiting up to 30 s for its processes, or close a waiting one. Raises `RefusedError`."""
    mission = app.find_mission(name)
    state = _cancel_and_wait(app, mission)
    for child in open_children(app, mission):
        with contextlib.suppress(RefusedError):  # it ended meanwhile
            _cancel_and_wait(app, child)
    if state.parent:  # its coordinator continues without it
        ensure_worker(app)
    return state


def open_children(app: StateReader, mission: str) -> tuple[str, ...]:
    """Return the missions of a coordinator's tasks that have not ended."""
    listed = app.store.log.summaries(app.workers.live, MissionFilter(parent=mission))
    return tuple(each.summary.id for each in listed if each.summary.status not in ENDED)


def _cancel_and_wait(app: App, mission: str) -> MissionState:
    # The worker of a mission that has just ended may refuse for a moment: `steer` retries.
    app.steer(mission, "cancel", lambda: app.steering.cancel(mission))
    deadline = time.monotonic() + _CANCEL_SECONDS
    while True:
        state = app.mission_reader.state(mission)
        # A paused mission counts as settled, although the cancellation is still pending.
        if state.cancel_asked and state.status in ENDED:  # its worker died before it could settle it
            with contextlib.suppress(RefusedError):
                state = app.steering.cancel(mission)
        if state.status in SETTLED - {"paused"} or time.monotonic() > deadline:
            return state
        time.sleep(0.05)


def discard_mission(app: App, name: str, *, reason: str = "") -> MissionState:
    """Settle a mission as discarded. Raises `RefusedError`."""
    state = app.steering.discard(app.find_mission(name), reason)
    if state.parent:
        ensure_worker(app)
    return state


def answer_mission(app: App, asked: Addressee, text: str, *, question: str | None = None) -> MissionChange:
    """Answer a mission's question, and make sure that a worker continues; `question` is the id that was shown.

    Raises `RefusedError` (`no_question` if the mission now asks another question), `UsageError`.
    """
    now = asked.question.id if asked.question is not None else ""
    if question is not None and question != now:
        raise RefusedError(
            f"mission {asked.mission!r} does not wait for an answer to {question!r} any more: it asks {now!r}",
            code="no_question",
            hint=f"chargehand mission show {asked.mission}",
        )
    question = now
    try:
        state = answer_question(app, asked.mission, check_answer(asked.question, text), question=question)
    except RefusedError as error:
        if error.code == "question_expired" and app.has_work():  # the default lets the mission continue
            ensure_worker(app)
        raise
    return MissionChange(state=state, worker_started=ensure_worker(app).started)


def answer_question(app: App, mission: str, text: str, *, question: str = "") -> MissionState:
    """Answer a mission's `question`, by default the first open one; by order if the mission runs.

    Raises `RefusedError` (`no_question`; `question_answered` if it was already answered, `question_expired`).
    """
    app.steer(
        mission, "answer", lambda: app.steering.answer(mission, text, question), text=text, question=question
    )
    return app.mission_reader.state(mission)


def check_answer(asked: Question | None, text: str) -> str:
    """Return an answer as it is recorded. Raises `UsageError` if it is empty or too long."""
    if asked is not None and not text.strip():
        raise UsageError("the answer is empty", hint="write an answer that the agent can use")
    if len(text.encode(errors="replace")) > _LARGEST_TEXT_BYTES:
        raise UsageError(f"the answer has more than {_LARGEST_TEXT_BYTES} bytes", hint="put the rest into a file")
    return resolve_option(asked, text.strip()) if asked is not None else text


def resolve_option(asked: Question, text: str) -> str:
    """Return an answer, with an option's number, or its text in any case, replaced by the option's text."""
    # No longer number: Python refuses to parse thousands of digits.
    if len(text) <= _OPTION_DIGITS and text.isdecimal() and 1 <= int(text) <= len(asked.options):
        return asked.options[int(text) - 1]
    # "Stop" means `stop`; it must not become a text for another try of a task.
    alike = [option for option in asked.options if option.casefold() == text.casefold()]
    return alike[0] if len(alike) == 1 else text


# --- results


async def promote_mission(
    app: App, name: str, *, reason: str = "", tree: str = "", watch: OnEvent | None = None
) -> MissionState:
    """Promote a mission's result, by the calling person's decision; `tree` is the tree that they reviewed.

    Raises `RefusedError`: `tree_changed` if the result is another tree by now.
    """
    mission = app.find_mission(name)
    async with app.mission_session(mission, watch=watch) as (found, session):
        state = await session.missions.promote(found, identity=app.identity(), reason=reason, seen=tree)
    if state.parent:  # its coordinator has something to merge
        await asyncio.to_thread(ensure_worker, app)
    return state


async def roll_back_mission(app: App, name: str, *, watch: OnEvent | None = None) -> MissionState:
    """Undo a promotion by a new commit; its export may be blocked. Raises `RefusedError`."""
    mission = app.find_mission(name)
    async with app.mission_session(mission, watch=watch) as (found, session):
        return await session.missions.roll_back(found)
