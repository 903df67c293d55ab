"""The page on decisions in a browser: beliefs, recent choices, roll-outs and belief networks equal the API's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import test_dashboard
from msgspec.structs import replace
from playwright.sync_api import Locator, Page, expect
from tests.conftest import git
from tests.server_kit import API, PASSWORD, Served, environment, serving

from chargehand.app.knowledge import import_network
from chargehand.core.attempt_events import AttemptStarted
from chargehand.core.choices import AgentFacts, ChoiceContext, PossibleCandidate
from chargehand.core.mission_events import (
    AgentSelected,
    AttemptFinished,
    ForecastMade,
    MissionCreated,
    MissionFinished,
)
from chargehand.core.records import (
    AttemptStatus,
    ChoiceReason,
    MissionForecast,
    MissionRequest,
    Reason,
)
from chargehand.decisions.forecast_records import ForecastFacts
from chargehand.decisions.forecasts import forecast_mission
from chargehand.decisions.learned import LearnedRules
from chargehand.identity.accounts import owner
from chargehand.reports import predictions
from chargehand.reports.outcomes import OutcomeHistory
from chargehand.reports.reading import StateReader

pytestmark = pytest.mark.needs_chromium
browser, open_page = test_dashboard.browser, test_dashboard.open_page

MARKUP = "mender <b>"
ROLLOUTS = """
[models.new]
provider = "script"
model = "maker/new"

[rollouts.try-new]
model = "new"
percent = 50

[rollouts.gone]
model = "missing"
percent = 100
"""
WEATHER = """{"node": "rain", "states": ["yes", "no"], "counts": [[1, 3]]}
{"node": "<i>wet</i>", "states": ["=yes", "<u>no</u>"], "parents": ["rain"], "table": [[0.9, 0.1], [0.2, 0.8]]}
{"node": "flood", "states": ["yes", "no"], "parents": ["rain"], "table": [[0.5, 0.5], [0, 1]]}
"""


def record_attempt(
    reader: StateReader,
    number: int,
    agent: str,
    status: AttemptStatus,
    cost: float | None,
    *why: ChoiceReason,
    forecast: MissionForecast | None = None,
) -> str:
    project, name = reader.store.projects.register(reader.cwd), f"m-{number:05}"
    request = MissionRequest(text=f"mend it {number}", agent=agent, command=("true",), slug=name, model="new")
    reasons = () if status == "succeeded" else (Reason(code="no_change", message="nothing changed"),)
    reader.store.log.append(
        name,
        MissionCreated(project=project.id, repository=str(project.path), request=request, chosen=why),
        *(() if forecast is None else (ForecastMade(after=0, forecast=forecast),)),
        AttemptStarted(attempt=f"a-{number}", number=1, agent=agent, workspace="w", tree="t"),
        AttemptFinished(
            attempt=f"a-{number}",
            status=status,
            seconds=1.0,
            reasons=reasons,
            cost_usd=cost,
            cost_known=cost is not None,
        ),
    )
    return name


def percent(share: float) -> str:
    return f"{int(100 * share + 0.5)} %"


def section(page: Page, name: str) -> Locator:
    return page.locator("section.card").filter(has=page.get_by_role("heading", name=name, exact=True))


def texts(rows: Locator) -> list[list[str]]:
    expect(rows.first).to_be_visible()
    return [row.locator("th, td").all_inner_texts() for row in rows.all()]


def init_repository(place: Path) -> None:
    git(place, "init", "-q")
    git(place, "commit", "-q", "--allow-empty", "-m", "begin")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    init_repository(tmp_path)
    with serving(environment(tmp_path), tmp_path) as made:
        yield made


@pytest.fixture
def learning(tmp_path: Path) -> Iterator[Served]:
    init_repository(tmp_path)
    with serving(environment(tmp_path) | {"CHARGEHAND_DECISIONS_LEARNED": "true"}, tmp_path) as made:
        yield made


def test_beliefs_are_those_of_the_api_with_unknown_prices_as_unknown(
    learning: Served, open_page: test_dashboard.Open
) -> None:
    with learning.reader() as reader:
        project = reader.store.projects.register(reader.cwd)
        for number in range(6):
            record_attempt(reader, number, "native", "refused" if number % 3 else "succeeded", 0.25)
        for number in range(6, 9):
            record_attempt(reader, number, MARKUP, "succeeded", None)
    arms = learning.owner().get(f"{API}/stats/models", params={"project": project.id}).json()["learned"]
    markup = f"{MARKUP} with new"
    counted = {(each["name"], each["good"], each["attempts"]) for each in arms}
    assert counted == {("native with new", 2, 6), (markup, 3, 3)}
    page = open_page(learning, "/decisions")
    shown = texts(section(page, "Agents and models").locator("tbody tr"))
    assert shown == [
        [
            each["name"],
            f"{each['good']} of {each['attempts']}",
            f"{percent(each['chance'])} ({percent(each['low'])} to {percent(each['high'])})",
            "unknown" if each["price_usd"] is None else f"${each['price_usd']:.2f}",
        ]
        for each in arms
    ]
    assert [row[3] == "unknown" for row in shown] == [row[0] == markup for row in shown]
    low, width = (
        float(section(page, "Agents and models").locator("rect.band-range").first.get_attribute(name) or "")
        for name in ("x", "width")
    )
    assert (low, low + width) == pytest.approx((100 * arms[0]["low"], 100 * arms[0]["high"]))


def test_a_viewer_reads_how_to_turn_learning_on(served: Served, open_page: test_dashboard.Open) -> None:
    with served.reader() as reader:
        record_attempt(reader, 0, "native", "succeeded", 0.25)
    served.user("ada", "viewer")
    page = open_page(served, "/decisions")
    page.evaluate("localStorage.clear()")
    page.goto(f"{served.url}/login?back=%2Fdecisions")
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    beliefs = section(page, "Agents and models")
    expect(beliefs).to_contain_text("Choices are not learned from outcomes.")
    expect(beliefs.locator("code")).to_have_text("chargehand config set decisions.learned true")
    expect(section(page, "Recent choices")).to_contain_text("No choice of agent or model is recorded")
    expect(section(page, "Roll-outs")).to_contain_text("There are none")
    expect(section(page, "Belief networks").get_by_role("button").first).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_recent_choices_are_listed_and_computed_again(learning: Served, open_page: test_dashboard.Open) -> None:
    agents = [AgentFacts(name=name, kind="command", configured=True) for name in ("native", MARKUP)]
    candidates = tuple(PossibleCandidate(agent=each) for each in agents)
    with learning.reader() as reader:
        project = reader.store.projects.register(reader.cwd)
        for number in range(4):
            record_attempt(reader, number, "native", "succeeded", 0.25, ChoiceReason("only_agent", "native"))
        context = ChoiceContext(moment="request", kind=project.id, candidates=candidates)
        choice = LearnedRules().choose(context, OutcomeHistory(lambda: reader.store)())
        assert choice.reasons[-1].code == "learned"
        evidence = choice.reasons[-1].evidence
        assert isinstance(evidence, str)
        # A record whose numbers were changed does not give them again.
        forged = replace(choice.reasons[-1], evidence=evidence.replace('"gain":', '"gain":1', 1))
        for number, reasons in ((4, choice.reasons), (5, (forged,))):
            mission = record_attempt(reader, number, MARKUP, "succeeded", 0.5)
            reader.store.log.append(
                mission, AgentSelected(agent=MARKUP, kind="native", reason="", reasons=reasons)
            )
    client = learning.owner()
    listed = client.get(f"{API}/choices?limit=50").json()["choices"]
    page = open_page(learning, "/decisions")
    recent = section(page, "Recent choices")
    shown = texts(recent.locator("tbody tr"))
    assert [row[1:5] for row in shown] == [
        [each["mission"], each["task"], each["chosen"], each["why"]] for each in listed
    ]
    for row, each in zip(shown, listed, strict=True):
        assert row[5:] == figures_of(each["learned"])
    assert sum(row[5] != "" for row in shown) == 2
    again = client.get(f"{API}/choices/replay").json()
    assert (again["same"], len(again["different"])) == (1, 1)
    recent.get_by_role("button", name="Compute them again").click()
    expect(recent.get_by_role("status")).to_have_text("1 of 2 learned choices gave the same numbers.")
    different = recent.get_by_role("list", name="Choices with other numbers").get_by_role("link")
    expect(different).to_have_text("m-00005")
    recent.get_by_role("link", name="m-00004").click()
    expect(page).to_have_url(f"{learning.url}/missions/m-00004/choices")


def test_reliability_and_simulations_are_those_of_the_api(
    learning: Served, open_page: test_dashboard.Open
) -> None:
    facts = ForecastFacts(mission="x", kind="p", agent="native", model="new", attempts=1)
    with learning.reader() as reader:
        project = reader.store.projects.register(reader.cwd)
        agents = [AgentFacts(name=name, kind="command", configured=True) for name in ("native", MARKUP)]
        context = ChoiceContext(
            moment="request", kind=project.id, candidates=tuple(PossibleCandidate(agent=each) for each in agents)
        )
        drawn, learned = random.Random(1), 0
        for number in range(30):
            outcomes = OutcomeHistory(lambda: reader.store)()
            choice = LearnedRules().choose(context, outcomes)
            assert choice.chosen is not None
            learned += choice.reasons[-1].code == "learned"
            good = drawn.random() < 0.7
            made = forecast_mission(replace(facts, kind=project.id), outcomes)
            mission = record_attempt(
                reader, number, choice.chosen.agent, "succeeded" if good else "refused", 0.25, *choice.reasons,
                forecast=made,
            )  # fmt: skip
            reader.store.log.append(mission, MissionFinished(status="promoted" if good else "refused", reasons=()))
        # Records of an earlier version, and one that was changed.
        old = replace(made, seed=None, samples=0, evidence="")
        record_attempt(reader, 30, "native", "succeeded", 0.25, forecast=old)
        record_attempt(reader, 31, MARKUP, "succeeded", None, forecast=replace(made, chance=0.123))
    client = learning.owner()
    measured = client.get(f"{API}/choices/reliability").json()
    listed = client.get(f"{API}/forecasts?limit=40").json()["forecasts"]
    page = open_page(learning, "/decisions")
    assert measured["choices"]["count"] == learned > 20
    assert measured["forecasts"]["count"] == 32
    for name, known in (("Learned choices", measured["choices"]), ("Forecasts", measured["forecasts"])):
        figure = page.get_by_role("figure", name=name)
        assert texts(figure.locator("tbody tr")) == [
            [
                f"{percent(each['low'])} to {percent(each['high'])}",
                str(each["count"]),
                percent(each["predicted"]),
                f"{each['good']} ({percent(each['rate'])})",
                f"{percent(each['rate_low'])} to {percent(each['rate_high'])}",
            ]
            for each in known["bins"]
        ]
        expect(figure.locator("circle.reliability-dot")).to_have_count(len(known["bins"]))
        assert known["count"] == sum(each["count"] for each in known["bins"])
        expect(figure).to_contain_text(f"{known['count']} with a known outcome, {known['open']} open.")
    shown = texts(section(page, "Simulations").locator("tbody tr"))
    assert [row[6] for row in shown] == [
        "not recorded" if each["seed"] is None else str(each["seed"]) for each in listed
    ]
    assert [row[8].partition(":")[0] for row in shown] == [
        "other numbers",
        "not possible",
        *["the same numbers"] * 30,
    ]
    assert [row[5] for row in shown[2:]] == [
        "an attempt passed" if each["is_good"] else "no attempt passed" for each in listed[2:]
    ]
    assert shown[2][2:5] == [
        percent(listed[2]["chance"]),
        f"${listed[2]['cost_usd']['low']:.2f} to ${listed[2]['cost_usd']['high']:.2f}; so far $0.25",
        f"{listed[2]['seconds']['low']:.1f} s to {listed[2]['seconds']['high']:.1f} s; so far 1.0 s",
    ]
    assert shown[-1][3] == "unknown"
    page.set_viewport_size({"width": 390, "height": 800})
    page.emulate_media(color_scheme="dark")
    assert not test_dashboard.grave_violations(page, colours_alone=False)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    said = learning.command("decision", "forecasts", "--limit", "40")
    assert [said.count(each) for each in ("the same", "other numbers", "not possible")] == [30, 1, 1]
    said = learning.command("decision", "reliability")
    assert f"Learned choices: {learned} with a known outcome, open: 0; squared error" in said
    for each in (*measured["choices"]["bins"], *measured["forecasts"]["bins"]):
        assert f"{each['good']} ({each['rate']:.0%})" in said
    section(page, "Simulations").get_by_role("link", name="m-00029").click()
    expect(page).to_have_url(f"{learning.url}/missions/m-00029/choices")


def test_pages_without_predictions_say_what_is_missing(
    served: Served, open_page: test_dashboard.Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_page(served, "/decisions")
    for figure in (page.get_by_role("figure", name=name) for name in ("Learned choices", "Forecasts")):
        expect(figure).to_contain_text("has a known outcome yet")
        expect(figure.locator("code")).to_have_text("chargehand config set decisions.learned true")
        expect(figure.locator("svg.reliability-plot")).to_have_count(0)
    simulations = section(page, "Simulations")
    expect(simulations).to_contain_text("No forecast is recorded")
    expect(simulations.locator("code")).to_have_text("chargehand config set decisions.learned true")
    monkeypatch.setattr(predictions, "has_extra", lambda name: name != "decisions")
    page.reload()
    for part in (page.get_by_role("figure", name="Forecasts"), simulations):
        expect(part.locator("code")).to_have_text("pip install 'chargehand[decisions]'")


def figures_of(learned: dict[str, Any] | None) -> list[str]:
    if learned is None:
        return ["", ""]
    (chosen,) = (each for each in learned["candidates"] if each["name"] == learned["chosen"])
    price = chosen["price_usd"]
    shown = f"${price:.{2 if price == 0 or price >= 0.1 else 4}f}"
    return [percent(chosen["chance"]), shown if chosen["known_costs"] else f"about {shown}, assumed"]


def test_roll_outs_show_both_sides_and_the_commands(tmp_path: Path, open_page: test_dashboard.Open) -> None:
    environ = environment(tmp_path)
    (tmp_path / ".config/chargehand").mkdir(parents=True)
    (tmp_path / ".config/chargehand/config.toml").write_text(ROLLOUTS)
    with serving(environ, tmp_path) as served:
        with served.reader() as reader:
            inside = ChoiceReason("rollout", "try-new", "50")
            for number, status in enumerate(("succeeded", "succeeded", "refused")):
                record_attempt(reader, number, "native", status, 0.25, inside)
        page = open_page(served)
        page.get_by_role("link", name="Decisions", exact=True).click()
        for each in served.owner().get(f"{API}/rollouts").json()["rollouts"]:
            card = (
                section(page, "Roll-outs")
                .locator("article")
                .filter(has=page.get_by_role("heading", name=each["name"], exact=True))
            )
            expect(card).to_contain_text(each["meaning"])
            expect(card).to_contain_text(each["gives"])
            commands = [each[name] for name in ("raise_with", "end_with") if each[name]]
            expect(card.locator("code")).to_have_text(commands)
            for command in commands:
                expect(card.get_by_role("button", name=f"Copy {command}")).to_be_visible()
            sides = card.locator("dd").all_inner_texts()[3:5]
            if each["name"] == "try-new":
                assert sides == ["67 %: 2 of 3 outcomes in 1 project", "unknown: there are no outcomes"]
            else:
                expect(card).to_contain_text("no entry of [models] is named 'missing'")


def test_evidence_on_a_network_changes_the_probabilities(served: Served, open_page: test_dashboard.Open) -> None:
    with served.reader() as reader:
        import_network(reader, "weather", WEATHER, by=owner(reader))
    page = open_page(served)
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Mission or command").fill("go to decisions")
    page.keyboard.press("Enter")
    networks = section(page, "Belief networks")
    # The shipped ones have nodes with several parents.
    shipped = served.owner().get(f"{API}/knowledge/failure-cause").json()["nodes"]
    graph = networks.get_by_role("group", name="Nodes")
    expect(graph.get_by_role("button")).to_have_count(len(shipped))
    expect(graph.locator("path.network-line")).to_have_count(sum(len(each["parents"]) for each in shipped))
    networks.get_by_label("Network", exact=True).select_option("weather")
    expect(graph.get_by_role("button")).to_have_count(3)
    expect(graph.get_by_role("button", name="<i>wet</i>")).to_contain_text("=yes, <u>no</u>")
    graph.get_by_role("button", name="rain").first.press("Enter")
    states = networks.get_by_role("list", name="Probability of each state").get_by_role("listitem")
    expect(states).to_have_text(["yes25.0 %", "no75.0 %"])
    networks.get_by_label("<i>wet</i>").select_option("=yes")
    expect(states).to_have_text(["yes60.0 %", "no40.0 %"])
    expect(networks).to_contain_text("Given <i>wet</i>==yes.")
    expect(graph.get_by_role("button", name="<i>wet</i>")).to_contain_text("observed: =yes")
    networks.get_by_label("<i>wet</i>").select_option("")
    expect(states).to_have_text(["yes25.0 %", "no75.0 %"])
    networks.get_by_label("Node", exact=True).select_option("<i>wet</i>")
    expect(states).to_have_text(["=yes37.5 %", "<u>no</u>62.5 %"])
    # A flood without rain is impossible.
    networks.get_by_label("rain", exact=True).select_option("no")
    networks.get_by_label("flood", exact=True).select_option("yes")
    expect(networks.get_by_role("alert")).to_contain_text("evidence")
    networks.get_by_label("rain", exact=True).select_option("yes")
    expect(states).to_have_text(["=yes90.0 %", "<u>no</u>10.0 %"])
