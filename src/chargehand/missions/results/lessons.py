"""Lessons of a mission: recalled before its first attempt, and learned and measured at its end.

A lesson is derived from the log without a model: what a red attempt failed, and what the next one changed. Lessons
decide no mission: a failure to recall, book or store them is logged, and the mission continues without.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec
from msgspec import Struct

from chargehand.checks.areas import match_paths
from chargehand.checks.failure_excerpts import error_lines
from chargehand.core.attempt_events import AttemptStarted
from chargehand.core.errors import ChargehandError, MessageError
from chargehand.core.events import read_payload
from chargehand.core.ids import keyed_id
from chargehand.core.messages import CheckpointViolation, FailedCheck, decode_message
from chargehand.core.mission_events import (
    LessonsRecalled,
    MessageSent,
    MissionContinued,
    RecalledLesson,
    VerdictGiven,
)
from chargehand.core.records import MissionRequest, Verdict
from chargehand.knowledge.lessons import (
    MOST_LESSONS,
    MOST_SEARCHED,
    LessonContent,
    LessonQuery,
    find_contradictions,
    rank_lessons,
    read_lessons,
    render_lesson,
)
from chargehand.knowledge.lessons_effect import choose_arm, measure_effect
from chargehand.missions.attempt.admission import provider_fault
from chargehand.missions.journal import Journal
from chargehand.missions.services import Services
from chargehand.store.lessons import LessonRow, LessonUse

_LOG = logging.getLogger("chargehand.missions")
_TYPES = (AttemptStarted.type, MessageSent.type, MissionContinued.type, VerdictGiven.type)
_ERRORS = 5
# Characters of a patch that are read before it is cut.
_LONGEST_PATCH = 100_000


class _Judged(Struct):
    """An attempt as the log shows it: its verdict, and the messages that persons sent until the next one began."""

    id: str
    number: int
    verdict: Verdict | None = None
    messages: list[str] = []


async def recall_lessons(services: Services, journal: Journal, request: MissionRequest) -> None:
    """Record the lessons that fit a mission, once, before its first attempt; without any, record nothing."""
    if services.config.knowledge.lessons == "off" or journal.state.attempts:
        return
    if recorded_lessons(services, journal):
        return
    recalled: tuple[RecalledLesson, ...] = ()
    with _logged_failures("recalled"):
        recalled = await asyncio.to_thread(_recall, services, journal, request)
    if recalled:
        journal.record(LessonsRecalled(lessons=recalled))


def recorded_lessons(services: Services, journal: Journal) -> tuple[RecalledLesson, ...]:
    """Return the lessons that the log says were recalled for a mission, also for the one that it is a fork of."""
    lines = services.store.log.read(journal.mission, types=(LessonsRecalled.type,))
    events = (read_payload(line) for line in lines)
    return tuple(lesson for event in events if isinstance(event, LessonsRecalled) for lesson in event.lessons)


def _recall(services: Services, journal: Journal, request: MissionRequest) -> tuple[RecalledLesson, ...]:
    stored, mode, mission = services.store.lessons, services.config.knowledge.lessons, journal.mission
    rows = stored.list(journal.state.user, project=services.project, newest=MOST_SEARCHED)
    known = {each.row.id: each for each in read_lessons(rows)}
    disputed = find_contradictions(tuple(known.values()))
    query = LessonQuery(text=request.text, role=request.role, areas=request.allow)
    ranked = rank_lessons([each for name, each in known.items() if name not in disputed], query, match_paths)

    def is_demoted(lesson: str) -> bool:
        return measure_effect(stored.uses([lesson])[lesson]).status == "demoted"

    def choose(lesson: str, uses: Sequence[LessonUse]) -> bool:
        return choose_arm(measure_effect(uses), mode, seed=f"{mission}/{lesson}")

    best = list(islice((each.row.id for each in ranked if not is_demoted(each.row.id)), MOST_LESSONS))
    # Assigned before the event is recorded: a worker that dies in between leaves the same arms to the next one.
    assigned = stored.assign(mission, best, choose) if best else ()
    return tuple(
        RecalledLesson(
            lesson=use.lesson, shown=use.shown, text=render_lesson(known[use.lesson]) if use.shown else ""
        )
        for use in assigned
        if use.lesson in known
    )


async def close_lessons(services: Services, journal: Journal, *, good: bool) -> None:
    """Book a mission's outcome on the lessons recalled for it; if its result is good, store what it taught.

    Each is done once, however often a worker repeats this.
    """
    book_outcome(services, journal, good=good)
    state = journal.state
    learns = good and services.config.knowledge.lessons != "off" and bool(state.user)
    if learns and len(state.attempts) > 1 and not state.attempts[-1].copied:
        with _logged_failures("stored"):
            await asyncio.to_thread(_learn, services, journal)


def book_outcome(services: Services, journal: Journal, *, good: bool) -> None:
    """Book whether the first attempt of a mission was good on the lessons recalled for it, once."""
    attempts = journal.state.attempts
    # A provider's fault says nothing about a lesson.
    if not attempts or provider_fault(attempts[0]) or not recorded_lessons(services, journal):
        return
    costs = [attempt.cost_so_far for attempt in attempts]
    known = [cost for cost in costs if cost is not None]
    with _logged_failures("measured"):
        services.store.lessons.close_mission(
            journal.mission,
            green=good and len(attempts) == 1,
            attempts=len(attempts),
            cost_usd=sum(known) if len(known) == len(costs) else None,
        )


@contextlib.contextmanager
def _logged_failures(what: str) -> Iterator[None]:
    """Log a failure of the block; it writes nothing to the mission's log, whose failures are the mission's own."""
    try:
        yield
    except (ChargehandError, OSError):
        _LOG.exception("lessons could not be %s; the mission continues", what)


def _learn(services: Services, journal: Journal) -> None:
    content = derive_lesson(services, journal)
    if content is None:
        return
    content = content.clean(services.redact)
    state = journal.state
    # The same failure with the same fix is one lesson, and one that was forgotten is not learned again.
    same = (content.kind, content.check, *content.tests, content.message, *content.paths, content.change)
    row = LessonRow(
        id=keyed_id("lesson", "\0".join((services.project, state.user, *same))),
        project=services.project,
        user=state.user,
        shared=False,
        created="",
        mission=journal.mission,
        content=msgspec.json.encode(content),
    )
    services.store.lessons.add(row)


def derive_lesson(services: Services, journal: Journal) -> LessonContent | None:
    """Return what the last attempt of a mission did right after an earlier one; `None` if nothing was learned.

    The earlier one is the last that was judged and then either was red or got a person's message.
    """
    *earlier, last = _judged_attempts(services, journal)
    if last.verdict is None or not last.verdict.is_good:
        return None
    for before in reversed(earlier):
        if before.verdict is not None and (not before.verdict.is_good or before.messages):
            break
    else:
        return None
    depot, old, new = services.depot, before.verdict.tree, last.verdict.tree
    paths = tuple(change.path for change in depot.diff(old, new))
    if not paths:  # a flaky test became green by itself
        return None
    failed = None if before.verdict.is_good else _first_failure(services, journal, before.number)
    if failed is None and not before.messages:
        return None
    request = journal.state.request
    tests = failed.failing_tests if failed is not None else ()
    errors = [line for test in tests for line in test.message.splitlines()[:2]]
    if failed is not None and not errors:
        errors = error_lines(failed.output) or failed.output.splitlines()[-_ERRORS:]
    return LessonContent(
        kind="correction" if before.verdict.is_good else "fix",
        role=request.role if request is not None else "",
        request=request.text if request is not None and request.text not in before.messages else "",
        check=failed.name if failed is not None else "",
        tests=tuple(test.name for test in tests),
        error="\n".join(errors[:_ERRORS]),
        message="\n".join(before.messages),
        paths=paths,
        change=_hunks(depot.patch(old, new)[:_LONGEST_PATCH].decode("utf-8", "replace")),
        red=old,
        green=new,
    )


def _judged_attempts(services: Services, journal: Journal) -> list[_Judged]:
    attempts: list[_Judged] = []
    for line in services.store.log.read(journal.mission, types=_TYPES):
        match read_payload(line):
            case AttemptStarted(attempt=id, number=number):
                attempts.append(_Judged(id, number))
            case MessageSent(text=text, again=False) if attempts:
                attempts[-1].messages.append(text)
            # A mission that follows a promoted one has the person's addition as its request.
            case MissionContinued(base=base) if attempts and base is not None and journal.state.request:
                attempts[-1].messages.append(journal.state.request.text)
            case VerdictGiven(attempt=id, verdict=verdict) if attempts and attempts[-1].id == id:
                attempts[-1].verdict = verdict
    return attempts


def _first_failure(services: Services, journal: Journal, number: int) -> FailedCheck | None:
    """Return the first failed check in the report on an attempt, one with failing tests before others."""
    done = journal.state.steps.get(f"attempt/{number}/verdict")
    report = journal.recall(done).get("report") if done is not None else None
    if not report:
        return None
    with contextlib.suppress(MessageError):
        message = decode_message(services.store.artifacts.get(report))
        if isinstance(message, CheckpointViolation):
            failing = sorted(message.payload.failing, key=lambda check: not check.failing_tests)
            return failing[0] if failing else None
    return None


def _hunks(patch: str) -> str:
    """Return a patch without the lines that only git needs."""
    noise = ("diff --git ", "index ", "new file mode", "deleted file mode", "similarity index")
    return "\n".join(line for line in patch.splitlines() if not line.startswith(noise))
