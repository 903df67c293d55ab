"""The description of a mission's end: its time, its status in words, its exit code."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from chargehand.cli.terminal.rendering import exit_code, status_text
from chargehand.core.events import GENESIS, Event, Payload, encode
from chargehand.core.fold import fold
from chargehand.core.mission_events import (
    MissionCreated,
    MissionFinished,
    MissionPaused,
    MissionResumed,
    QuestionAnswered,
    QuestionAsked,
)
from chargehand.core.plan_events import PlanMade
from chargehand.core.plans import Plan, Task
from chargehand.core.records import Base, MissionRequest
from chargehand.core.state import MissionState
from chargehand.reports.outcome import mission_seconds
from chargehand.reports.progress.crew import CrewFacts, describe_crew
from chargehand.reports.progress.crew_rows import crew_rows

START = datetime(2026, 1, 1, tzinfo=UTC)
CREATED = MissionCreated(
    project="p",
    repository="/r",
    request=MissionRequest(text="t", agent="", command=(), slug="t"),
)
ASKED = QuestionAsked(question="q", tree="t", reasons=(), text="Which way?", attempt=None)
WAITS = MissionFinished(status="waiting")


def told(*lines: tuple[float, Payload]) -> MissionState:
    """Return the state after these payloads at these seconds."""
    events = [
        Event("m-1", seq, (START + timedelta(seconds=at)).isoformat(), each.type, encode(each), "", GENESIS, "")
        for seq, (at, each) in enumerate(lines, 1)
    ]
    return fold(events, live=True)


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        ([(30, MissionFinished(status="promoted"))], 30),
        ([(10, ASKED), (10, WAITS)], 10),
        ([(10, ASKED), (10, WAITS), (100, QuestionAnswered(question="q", text="left", identity="ada"))], 10),
        (
            [
                *[(10, ASKED), (10, WAITS), (100, QuestionAnswered(question="q", text="left", identity="ada"))],
                (130, MissionFinished(status="promoted")),
            ],
            40,
        ),
        (
            [
                *[(5, MissionPaused(identity="ada")), (65, MissionResumed(identity="ada"))],
                (70, MissionFinished(status="promoted")),
            ],
            10,
        ),
    ],
)
def test_the_time_of_a_mission_leaves_out_its_waits(lines: list[tuple[float, Payload]], seconds: float) -> None:
    assert mission_seconds(told((0, CREATED), *lines)) == seconds


def test_the_crew_clock_pauses_while_waiting_and_resumes_after_the_answer() -> None:
    made = PlanMade(plan=Plan(tasks=(Task(id="a", text="a"), Task(id="b", text="b"))), identity="ada")
    before: list[tuple[float, Payload]] = [(0, CREATED), (0, made), (10, ASKED), (10, WAITS)]
    answered = QuestionAnswered(question="q", text="left", identity="ada")

    def clock(at: float, *lines: tuple[float, Payload]) -> str:
        crew = describe_crew(CrewFacts(state=told(*before, *lines), children={}))
        rows = crew_rows(crew, now=START + timedelta(seconds=at), width=100, height=20, notice="")
        return rows[0].text

    assert "0:10" in clock(500)
    assert "0:10" in clock(1000, (1000, answered))
    assert "0:35" in clock(1025, (1000, answered))


@pytest.mark.parametrize(
    ("changes", "code", "status"),
    [
        ({}, 0, "done"),
        ({"commit": "c" * 40}, 3, "promoted"),
        ({"commit": "c" * 40, "parent": "m-0"}, 0, "promoted"),
        ({"status": "waiting"}, 3, "waiting"),
        ({"status": "refused"}, 1, "refused"),
    ],
)
def test_exit_code_and_status_of_an_ended_mission(changes: dict[str, Any], code: int, status: str) -> None:
    base = Base(commit="b" * 40, tree="t" * 40, revision="main")
    state = MissionState(**{"id": "m-1", "status": "promoted", "base": base, "tree": "u" * 40, **changes})
    assert exit_code(state) == code
    assert status_text(state) == status
