"""The time that a person gives a plan counts by the clock, for all its tasks together."""

from __future__ import annotations

from pathlib import Path

import pytest
from desk import repository, shell
from tests.integration.test_coordinator import Crew, task

pytestmark = pytest.mark.needs_bwrap


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    (tmp_path / "place").mkdir()
    return Crew(tmp_path / "place", repository(tmp_path / "repo"))


def test_a_plan_ends_when_its_time_is_over_and_so_do_its_tasks(crew: Crew) -> None:
    mission = crew.record([task("a"), task("b", shell("sleep 600"), timeout="1h")], time="5s")
    state = crew.work(mission)
    assert (state.status, [reason.code for reason in state.reasons]) == ("exhausted", ["time"])
    assert "time limit of 5 s is over; what was merged before stays" in state.reasons[0].message
    assert crew.children(mission)["a"] == "promoted"
    assert crew.children(mission)["b"] in ("cancelled", "exhausted")
    assert 5.0 <= state.plan_elapsed < 60.0
    with crew.opened() as app:
        limits = [app.mission_reader.state(row.id).request for row in app.store.log.children(mission)]
    assert all(request is not None and request.seconds <= 5.0 for request in limits), "what was left for each"


def test_without_a_word_of_a_person_each_task_has_a_limit_of_its_own(crew: Crew) -> None:
    mission = crew.record([task("a")])
    state = crew.work(mission)
    assert state.request is not None
    assert (state.status, state.request.plan_seconds) == ("promoted", None)
