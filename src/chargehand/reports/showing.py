"""One mission for people: all its details, and the report on it."""

from __future__ import annotations

from functools import partial

from chargehand.core.errors import ChargehandError
from chargehand.core.state import MissionState
from chargehand.missions.reading import base_tree, result_tree
from chargehand.missions.waiting import waiting_tasks
from chargehand.reports.documents import ArtifactEntry, MissionDetails, SandboxKind, mission_details
from chargehand.reports.listing import children_of, waiting_reason
from chargehand.reports.outcome import explain_check, explain_failures
from chargehand.reports.reading import StateReader
from chargehand.reports.report import MissionReport


def show_mission(reader: StateReader, name: str) -> tuple[MissionState, MissionDetails]:
    """Return a mission's state, and all its details. Raises `NotFoundError`, `UsageError`."""
    state = reader.mission_state(name)
    places = [SandboxKind(tier=tier, driver=driver) for tier, driver in state.sandbox_kinds]
    waits = waiting_reason(state, reader.mission_reader.waits((state.id,)))
    problems = reader.mission_reader.problems(state.id)
    failures = explain_failures(reader.store, state)
    waiting = waiting_tasks((state, *children_of(reader, state.id))).get(state.id, ())
    from chargehand.core.truth import TRUTH_TYPES, MissionTruth  # lists do not need it

    truth = MissionTruth.of(reader.store.log.read(state.id, types=TRUTH_TYPES))
    details = mission_details(state, places, waits, problems, failures, waiting, truth.promotions, truth.feedback)
    return state, details


def report_mission(reader: StateReader, name: str) -> tuple[MissionReport, str]:
    """Return the report on a mission in its current state, and the same as Markdown; raise as `show_mission`."""
    from chargehand.reports.markdown import render_report
    from chargehand.reports.report import ReportSource, build_report

    state, details = show_mission(reader, name)
    try:
        depot = reader.projects.mission_depot(state)
        files = depot.numstat(base_tree(state), result_tree(state))
    except ChargehandError:  # no base, or repository or tree is gone: the rest is still reported
        files, depot = None, None
    rows = reader.store.artifacts.list(state.id)
    report = build_report(
        ReportSource(
            state=state,
            details=details,
            events=reader.store.log.read(state.id),
            files=files,
            evidence=tuple(ArtifactEntry(id=row.id, kind=row.kind, size=row.size, time=row.time) for row in rows),
            explain=partial(explain_check, reader.store),
            depot=depot,
        )
    )
    return report, render_report(report)
