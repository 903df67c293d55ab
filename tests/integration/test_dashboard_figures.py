"""Figures in a browser: statistics and alerts equal the API's, and the API's equal the log's."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import test_alerts
import test_dashboard
from msgspec.structs import replace
from playwright.sync_api import Page, expect
from tests.server_kit import API, Served, environment, record_missions, serving

from chargehand.core.attempt_events import AttemptStarted, CheckpointMade, ModelCalled
from chargehand.core.choices import (
    AgentFacts,
    ChoiceContext,
    ChoiceHistory,
    ChoiceOutcome,
    KnownModel,
    PossibleCandidate,
    TriedCandidate,
)
from chargehand.core.clock import SteppedClock
from chargehand.core.events import read_payload
from chargehand.core.mission_events import (
    AgentSelected,
    AttemptFinished,
    ForecastMade,
    MissionFinished,
    RetryDeclined,
)
from chargehand.core.records import AttemptStatus, Band, Checkpoint, ChoiceReason, MissionForecast, MissionStatus
from chargehand.decisions.learned import LearnedRules
from chargehand.decisions.routing.next_steps import choose_step
from chargehand.decisions.routing.records import PossibleStep, StepArm, StepDraw
from chargehand.decisions.routing.value import DIFFICULTY, FAMILY
from chargehand.reports.alerting.watch import AlertWatch
from chargehand.reports.choices import explain_choices
from chargehand.reports.reading import StateReader

pytestmark = pytest.mark.needs_chromium
browser, open_page, hook = test_dashboard.browser, test_dashboard.open_page, test_alerts.hook

# --- statistics

# Agent, end and seconds of an attempt; model and cost of its calls; how its mission ended.
ATTEMPTS: tuple[tuple[str, AttemptStatus, float, tuple[tuple[str, float | None], ...], MissionStatus], ...] = (
    ("native", "succeeded", 12.0, (("large", 0.25), ("large", 0.5), ("small", 0.001)), "promoted"),
    ("native", "refused", 75.0, (("large", None), ("small", 0.002)), "refused"),
    ("mender <b>", "succeeded", 3.5, (), "promoted"),
    ("mender <b>", "failed", 4000.0, (("small", 0.0),), "failed"),
)


def record_attempts(reader: StateReader) -> None:
    for number, (mission, told) in enumerate(zip(record_missions(reader, 5), ATTEMPTS, strict=False)):
        agent, status, seconds, calls, ended = told
        attempt = f"a-{number}"
        known = [cost for _, cost in calls if cost is not None]
        whole = len(known) == len(calls)
        reader.store.log.append(
            mission,
            AttemptStarted(attempt=attempt, number=1, agent=agent, workspace="w", tree="t"),
            *(
                ModelCalled(
                    call=f"c-{turn}", attempt=attempt, turn=turn, model=model, upstream=model, provider="p",
                    status="ok", http_status=200, seconds=1.0 + turn, cost_usd=cost, cost_known=cost is not None,
                )
                for turn, (model, cost) in enumerate(calls)
            ),
            AttemptFinished(
                attempt=attempt, status=status, seconds=seconds,
                cost_usd=sum(known) if whole else None, cost_known=whole,
            ),
            MissionFinished(status=ended, reasons=()),
        )  # fmt: skip


def count_log(reader: StateReader) -> dict[str, Any]:
    """Return the figures counted from the lines of all logs."""
    lines = [read_payload(line) for number in range(5) for line in reader.store.log.read(f"m-{number:05}")]
    agents = {line.attempt: line.agent for line in lines if isinstance(line, AttemptStarted)}
    attempts, calls = defaultdict[str, list[AttemptFinished]](list), defaultdict[str, list[ModelCalled]](list)
    for line in lines:
        if isinstance(line, AttemptFinished):
            attempts[agents[line.attempt]].append(line)
        elif isinstance(line, ModelCalled):
            calls[line.model].append(line)
    statuses = [line.status for line in lines if isinstance(line, MissionFinished)]
    return {
        # The last mission has not begun.
        "status": Counter([*statuses, "planned"]),
        "agents": {
            agent: (len(ends), sum(end.status == "succeeded" for end in ends), *costs_and_median(ends))
            for agent, ends in attempts.items()
        },
        "models": {model: (len(made), *costs_and_median(made)) for model, made in calls.items()},
    }  # fmt: skip


def costs_and_median(lines: Sequence[Any]) -> tuple[Any, int, float]:
    known = [line.cost_usd for line in lines if line.cost_known]
    ordered = sorted(line.seconds for line in lines)
    return pytest.approx(sum(known)), len(lines) - len(known), ordered[(len(ordered) + 1) // 2 - 1]


def shown_cost(usd: float, unknown: int) -> str:
    digits = 4 if usd and usd < 0.1 else 2
    return f"{'≥ ' if unknown else ''}${usd:.{digits}f}"


def shown_time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} m {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} m"


def cells(page: Page, table: str) -> dict[str, list[str]]:
    """Return the cells of each row of a table by the row's head."""
    rows = page.get_by_role("table", name=table).locator("tbody tr")
    expect(rows.first).to_be_visible()
    return {
        row.get_by_role("rowheader").inner_text(): row.get_by_role("cell").all_inner_texts() for row in rows.all()
    }


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(environment(tmp_path), tmp_path) as made:
        yield made


def test_costs_times_and_counts_are_those_of_the_log(served: Served, open_page: test_dashboard.Open) -> None:
    with served.reader() as reader:
        record_attempts(reader)
        log = count_log(reader)
    client = served.owner()
    stats, models = client.get(f"{API}/stats").json(), client.get(f"{API}/stats/models").json()["models"]
    assert {status: count for status, count in stats["missions"]["by_status"].items() if count} == log["status"]

    def measured(figures: dict[str, Any]) -> tuple[float, int, float]:
        return figures["cost"]["usd"], figures["cost"]["unknown"], figures["seconds"]["p50"]

    agents = {name: (each["ended"], each["succeeded"], *measured(each)) for name, each in stats["agents"].items()}
    assert agents == log["agents"]
    assert {each["model"]: (each["calls"], *measured(each)) for each in models} == log["models"]

    page = open_page(served, "/statistics")
    outcomes = {name.lower(): int(value) for name, (value,) in cells(page, "Outcomes").items()}
    assert outcomes == log["status"] | {"in all": 5}
    everybody = stats["attempts"]
    agents["In all"] = (everybody["ended"], everybody["succeeded"], *measured(everybody))
    assert agents["In all"][:2] == (len(ATTEMPTS), 2)
    assert cells(page, "By agent") == {
        agent: [
            str(ended), str(good), f"{100 * good / ended:.0f} %",
            shown_cost(usd, unknown), str(unknown), shown_time(median),
        ]
        for agent, (ended, good, usd, unknown, median) in agents.items()
    }  # fmt: skip
    by_model = cells(page, "By model")
    assert {model: row[1:5] for model, row in by_model.items()} == {
        each["model"]: [str(each["calls"]), shown_cost(usd, unknown), str(unknown), shown_time(median)]
        for each in models
        for usd, unknown, median in [measured(each)]
    }
    # Nothing is older than a minute, so the period includes everything.
    page.get_by_label("Of", exact=True).select_option("24h")
    expect(page.get_by_role("heading", name="Missions by status: 5 in total")).to_be_visible()
    assert cells(page, "By model") == by_model


@pytest.fixture
def learning(tmp_path: Path) -> Iterator[Served]:
    with serving(environment(tmp_path) | {"CHARGEHAND_DECISIONS_LEARNED": "true"}, tmp_path) as made:
        yield made


def test_candidates_causes_and_forecast_of_a_mission_are_those_of_its_record(
    learning: Served, open_page: test_dashboard.Open
) -> None:
    one = PossibleCandidate(agent=AgentFacts(name="native"), model=KnownModel(name="one"), breaker="closed")
    red = ChoiceOutcome(candidate=one.candidate, is_good=False, cost_usd=2.5, kind="p")
    context = ChoiceContext(
        moment="retry",
        kind="p",
        candidates=(one,),
        current=one.candidate,
        tried=(TriedCandidate(candidate=one.candidate, cause="check"),),
    )
    many = ChoiceHistory(outcomes=tuple(replace(red, work=str(number)) for number in range(30)))
    declined = LearnedRules().choose(context, many)
    assert declined.action == "stop"
    with learning.reader() as reader:
        (mission,) = record_missions(reader, 1)
        reader.store.log.append(mission, RetryDeclined(action="stop", attempt=2, reasons=declined.reasons))
        known = explain_choices(reader, mission).choices[-1].learned
        forecast = MissionForecast(
            chance=0.6,
            cost_usd=Band(middle=1.5, low=0.5, high=3.0),
            seconds=Band(middle=90.0, low=30.0, high=600.0),
            person_seconds=None,
            unlimited=0.6,
            enough_usd=2.0,
            outcomes=30,
        )
        reader.store.log.append(mission, ForecastMade(after=0, forecast=forecast))
        reader.store.log.append(mission, MissionFinished(status="failed", reasons=()))
    assert known is not None
    page = open_page(learning, f"/missions/{mission}/choices")
    expect(page.get_by_role("heading", name="no further attempt")).to_be_visible()
    assert cells(page, "Candidates") == {
        each.name: [
            f"{each.chance:.0%}".replace("%", " %"),
            f"${each.price_usd:.2f}",
            f"{'-' if each.value_usd < 0 else ''}${abs(each.value_usd):.2f}",
        ]
        for each in known.candidates
    }
    expect(page.get_by_text("model too weak")).to_be_visible()
    expect(page.get_by_text("it gives the same numbers")).to_be_visible()
    bands = page.get_by_role("list", name="80 % bands").get_by_role("listitem")
    expect(bands).to_have_text(["Cost$0.50 to $3.00; so far $0.00", "Time30 s to 10 m 00 s; so far 0.0 s"])
    expect(page.get_by_text("It ended failed")).to_be_visible()


def test_the_tree_of_steps_after_a_failure_is_that_of_its_record(
    learning: Served, open_page: test_dashboard.Open
) -> None:
    prior = tuple(weight.hex() for _, weight in FAMILY)
    draw = StepDraw(
        rho=0.55, worth=5.0, person_price=2.5, person_chance=0.9, mendable=(0.9).hex(),
        difficulty=tuple(weight.hex() for _, weight in DIFFICULTY), families={"a": (prior,) * len(DIFFICULTY)},
    )  # fmt: skip
    steps = [
        PossibleStep(
            name=name, strategy="model", arms=(StepArm(family="a", skill=skill.hex(), price=price.hex()),), costs=3
        )
        for name, skill, price in (("weak <b>", -0.3, 0.05), ("middle", 0.4, 0.3), ("strong", 1.2, 1.5))
    ]  # fmt: skip
    made = choose_step(steps, draw, outcomes=40, causes={"model_too_weak": 0.9, "budget": 0.1})
    reason = ChoiceReason("learned", made.chosen, "", msgspec.json.encode(made).decode())
    with learning.reader() as reader:
        (mission,) = record_missions(reader, 1)
        reader.store.log.append(
            mission, AgentSelected(agent="native", kind="native", reason="", reasons=(reason,))
        )
    (choice,) = learning.owner().get(f"{API}/missions/{mission}/choices").json()["choices"]
    paths = choice["learned"]["paths"]
    page = open_page(learning, f"/missions/{mission}/choices")
    tree = page.get_by_role("list", name="Decision tree")
    rows = tree.locator("> li")
    expect(rows).to_have_count(5)
    for row, path in zip(rows.all(), paths, strict=True):
        boxes = row.locator("li").all()
        assert [box.locator("strong").inner_text() for box in boxes] == [each["name"] for each in path["steps"]]
        for place, (box, each) in enumerate(zip(boxes, path["steps"], strict=True)):
            expect(box).to_contain_text(f"value ${each['value_usd']:.2f}")
            if each["chance"]:
                expect(box).to_contain_text(
                    f"{round(100 * each['chance'])} % for {shown_cost(each['price_usd'], 0)}"
                )
            if place:
                expect(box).to_contain_text(
                    f"{'fails' if place == 1 else 'all fail'}: {round(100 * each['reached'])} %"
                )
    first = [each["name"] for each in paths[0]["steps"]]
    assert (first[0], first[-1], len(first)) == (made.chosen, "asking a person", 4)
    expect(rows.first.locator("li").first).to_contain_text("(chosen)")
    expect(tree).to_contain_text("no further attempt")
    page.set_viewport_size({"width": 390, "height": 800})
    page.emulate_media(color_scheme="dark")
    assert not test_dashboard.grave_violations(page, colours_alone=False)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    then = ", ".join(f"{each['name']} ({each['reached']:.0%})" for each in paths[0]["steps"][1:])
    said = learning.command("decision", "why", mission)
    assert f"After weak <b>, with the chance that it comes to that: {then}." in said
    assert said.count("After ") == 3  # not of a person or no further attempt


def test_a_person_says_whether_a_result_was_good_and_takes_it_back(
    served: Served, open_page: test_dashboard.Open
) -> None:
    with served.reader() as reader:
        record_attempts(reader)
    page = open_page(served, "/missions/m-00000")
    card = page.get_by_role("region", name="Was the result good?")
    card.get_by_label("Why").fill("it fixed <b>all</b>")
    card.get_by_label("Place").fill("core.py")
    card.get_by_role("button", name="Bad").click()
    expect(page.get_by_text("'core.py' is not a place in a file")).to_be_visible()
    assert served.owner().get(f"{API}/missions/m-00000").json()["feedback"] == []
    card.get_by_label("Place").fill("")
    card.get_by_role("button", name="Good").click()
    expect(card.get_by_role("listitem")).to_contain_text("it fixed <b>all</b>")
    (word,) = served.owner().get(f"{API}/missions/m-00000").json()["feedback"]
    assert (word["good"], word["note"]) == (True, "it fixed <b>all</b>")
    card.get_by_role("button", name="Retract mine").click()
    expect(card.get_by_role("listitem")).to_have_count(0)
    assert served.owner().get(f"{API}/missions/m-00000").json()["feedback"] == []


# --- alerts


def test_alerts_are_shown_while_raised_and_when_over_and_so_is_a_way_that_fails(
    tmp_path: Path, open_page: test_dashboard.Open, hook: test_alerts.Hook
) -> None:
    environ = environment(tmp_path) | {
        # The alerts must not depend on how full the test machine is.
        "CHARGEHAND_ALERTS_DISK_PERCENT": "100",
        "CHARGEHAND_ALERTS_MEMORY_PERCENT": "1",
        "CHARGEHAND_ALERTS_WEBHOOK": hook.url,
    }
    clock = SteppedClock(datetime.now(UTC) - timedelta(hours=2))
    reader = StateReader(environ=environ | {"CHARGEHAND_ALERTS_DISK_PERCENT": "1"}, cwd=tmp_path, clock=clock)
    with contextlib.closing(reader):
        watch = AlertWatch(reader)
        record_missions(reader, 1)
        watch.look()
        made = Checkpoint(commit="c", tree="t", parent="p", trigger="end", changed=1)
        slow = CheckpointMade(attempt="a", checkpoint=made, seconds=3.0)
        reader.store.log.append("m-00000", slow, slow)
        for seconds, kind in ((10, "raised"), (310, "ended")):
            clock.advance(seconds)
            assert [f"{notice.kind} {notice.alert.rule}" for notice in watch.look()] == [f"{kind} checkpoint_slow"]
    with serving(environ, tmp_path) as served:
        client = served.owner()
        test_alerts._wait(lambda: client.get(f"{API}/alerts").json()["raised"])
        told = client.get(f"{API}/alerts").json()
        (raised,), (ended,) = told["raised"], told["ended"]
        assert (raised["rule"], ended["rule"]) == ("disk_low", "checkpoint_slow")
        page = open_page(served, "/system")
        assert cells(page, "Alerts") == {
            raised["text"]: ["Raised", "just now", str(raised["count"])],
            ended["text"]: ["Over", "until 2 h ago", str(ended["count"])],
        }
        notice = page.get_by_text("do not arrive")
        expect(notice).to_have_count(0)
        for answers, shown in (([404], 1), ([], 0)):
            hook.answers = list(answers)
            page.get_by_role("button", name="Send a trial notice").click()
            said = "the answer was 404" if shown else "sent"
            expect(page.get_by_text(f"webhook: {said}.", exact=True)).to_be_visible()
            expect(notice).to_have_count(shown)
            if shown:
                expect(notice).to_contain_text(f"Notices by webhook do not arrive: {said}")
        assert hook.kinds.count("trial trial") == 2
