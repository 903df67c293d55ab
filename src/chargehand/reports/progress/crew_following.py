"""Follows a crew, reading only new lines of its logs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from chargehand.core.attempt_events import SandboxOpened
from chargehand.core.events import read_payload
from chargehand.core.mission_events import MissionPaused, MissionResumed, QuestionAnswered, QuestionExpired
from chargehand.core.plan_events import (
    PlanMade,
    PlanProposed,
    TaskAllowed,
    TaskEnded,
    TaskHeld,
    TaskMerged,
    TaskReturned,
    TaskReviewed,
    TaskStarted,
)
from chargehand.core.state import ENDED, SETTLED, MissionSummary
from chargehand.missions.waiting import goes_on_by_itself
from chargehand.reports.live_output import LOOK_SECONDS, Patience
from chargehand.reports.progress.crew import Crew, CrewFacts, describe_crew
from chargehand.reports.progress.event_text import describe
from chargehand.store.rows import MissionFilter

if TYPE_CHECKING:
    from chargehand.core.events import Event
    from chargehand.reports.reading import StateReader

# No event records that a worker died: the rows of missions are read again after this time even without one.
_AGAIN_SECONDS = 2.0
_MOST_LATELY = 10
_TOLD = (
    *(
        PlanMade,
        PlanProposed,
        TaskStarted,
        TaskHeld,
        TaskAllowed,
        TaskReviewed,
        TaskReturned,
        TaskMerged,
        TaskEnded,
    ),
    *(QuestionAnswered, QuestionExpired, MissionPaused, MissionResumed),
)


class CrewFollower:
    """Follows a coordinator and the missions of its tasks."""

    def __init__(self, reader: StateReader, mission: str) -> None:
        self._reader = reader
        self._mission = mission
        self._followed = reader.mission_reader.followed(mission)
        self._patience = Patience()
        self._position = -1
        self._read_at = 0.0
        self._children: dict[str, MissionSummary] = {}
        self._steps: dict[str, str] = {}
        self._lately = deque[str](maxlen=_MOST_LATELY)
        self._facts: CrewFacts | None = None

    def look(self) -> CrewFacts:
        """Return all current facts: the same object if nothing was appended to any log since."""
        position, now = self._reader.store.log.last_position(), time.monotonic()
        if self._facts is None or position != self._position or now - self._read_at > _AGAIN_SECONDS:
            self._read_at = now
            # The coordinator first: the rows read afterwards include everything that it knows of its tasks.
            state, events = self._followed.look()
            for event in events:
                payload = read_payload(event)
                if isinstance(payload, _TOLD) and (text := describe(payload)):
                    self._lately.append(text)
            log, live = self._reader.store.log, self._reader.mission_reader.workers.live
            self._children = {
                each.summary.id: each.summary for each in log.summaries(live, MissionFilter(parent=self._mission))
            }
            # The latest sandbox of each active mission: its whole log is read once, then only new lines.
            opened: tuple[str, ...] = (SandboxOpened.type,)
            news: list[Event] = []
            for name, child in self._children.items():
                if name not in self._steps and child.status not in ENDED:
                    self._steps[name] = ""
                    news += log.read(name, types=opened)
            if self._position >= 0:
                found = log.after(self._position, project=state.project or None, types=opened)
                news += [each.event for each in found if each.event.mission in self._steps]
            for event in news:
                payload = read_payload(event)
                if isinstance(payload, SandboxOpened):
                    self._steps[event.mission] = payload.purpose
            self._position = position
            statuses = [each.status for each in self._children.values()]
            anybody_planned = state.status in ("planned", "paused") or "planned" in statuses
            waits = self._reader.mission_reader.waits() if anybody_planned else {}
            why = state.held.reason if state.held else self._patience.lasting(waits.get(self._mission))
            self._facts = CrewFacts(
                state=state,
                children=self._children,
                steps=dict(self._steps),
                queued=waits,
                waits=why.message if why is not None else "",
                lately=tuple(self._lately),
            )
        return self._facts


def follow_crew(reader: StateReader, mission: str) -> Iterator[Crew]:
    """Yield the state of a coordinator and its tasks, several times per second, until it is settled.

    The pause between two of them leaves time to draw. Raises `NotFoundError`, `StoreError`.
    """
    follower, described = CrewFollower(reader, mission), None
    while True:
        facts = follower.look()
        if described is None or described[0] is not facts:
            described = facts, describe_crew(facts)
        yield described[1]
        if facts.state.status in SETTLED and not goes_on_by_itself(facts.state):
            return
        time.sleep(LOOK_SECONDS)
