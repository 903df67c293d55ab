"""Missions as lists show them, read from the projected rows, not from their logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chargehand.core.records import Reason
from chargehand.core.state import MissionSummary
from chargehand.missions.waiting import WaitingTask
from chargehand.reports.documents import ListedMission, listed_mission
from chargehand.reports.reading import StateReader
from chargehand.store.rows import MissionFilter

# Cached list entries of a reader.
_MOST_LISTED = 5_000


def listed_missions(
    reader: StateReader,
    states: Iterable[MissionSummary],
    waits: Mapping[str, Reason],
    waiting: Mapping[str, tuple[WaitingTask, ...]],
) -> list[ListedMission]:
    """Return missions as lists show them; entries of unchanged summaries are reused."""
    known, found = reader.listed, list[ListedMission]()
    for state in states:
        told = (waiting_reason(state, waits), waiting.get(state.id, ()))
        before = known.get(state.id)
        if before is None or before[0] is not state or before[1] != told:
            if len(known) >= _MOST_LISTED:
                known.clear()
            before = known[state.id] = (state, told, listed_mission(state, *told))
        found.append(before[2])
    return found


def waiting_reason(state: MissionSummary, waits: Mapping[str, Reason]) -> Reason | None:
    """Return why a mission that should run waits: for quota, for its place in line, or for a worker."""
    if state.waits_for_quota is not None:
        return state.waits_for_quota.reason
    return state.queued.reason if state.queued is not None else waits.get(state.id)


def children_of(reader: StateReader, mission: str) -> tuple[MissionSummary, ...]:
    """Return the summaries of a coordinator's child missions; empty for any other mission."""
    found = reader.store.log.summaries(reader.workers.live, MissionFilter(parent=mission))
    return tuple(each.summary for each in found)
