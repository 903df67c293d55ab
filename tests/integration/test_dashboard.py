"""The dashboard in a real browser, on the real server: it shows the facts, and a person's actions take effect."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from command_line import PASSES, Cli, repository, shell
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Page,
    Response,
    Route,
    StorageState,
    expect,
    sync_playwright,
)
from tests.conftest import find_chromium, git
from tests.crash_kit import wait_until
from tests.postgres import free_port
from tests.server_kit import API, Served, environment, record_missions, serving

from chargehand.core.mission_events import MissionCreated
from chargehand.core.records import MissionRequest
from chargehand.identity.accounts import create_login_code

pytestmark = [pytest.mark.needs_chromium, pytest.mark.needs_bwrap]
NAUGHTY = Path(__file__).parents[3] / "shared" / "data" / "naughty_strings.json"
SLOW = 60_000.0
expect.set_options(timeout=SLOW)
# About 149,000 with a thousand missions: one more package loaded with the board exceeds the limit.
FIRST_VIEW_BYTES = 170_000
Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Return a function that opens a page of a server, logged in; any complaint of the page fails the test."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def made(served: Served, path: str = "/", **options: Any) -> Page:
        # Logging in by the link would load everything twice each time: one test does that.
        secret = served.owner().headers["Authorization"].removeprefix("Bearer ")
        kept = {"origin": served.url, "localStorage": [{"name": "chargehand.session", "value": secret}]}
        # Frames of transitions, which no test looks at, would be a seventh of all work.
        still = {"reduced_motion": "reduce", **options}
        context = browser.new_context(storage_state={"cookies": [], "origins": [kept]}, **still)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(SLOW)
        # The browser itself complains of an unreachable server and of intended refusals.
        page.on(
            "console",
            lambda result: complaints.append(result.text) if is_complaint(result.type, result.text) else None,
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(served.url + path)
        expect(page.get_by_role("navigation", name="Pages", exact=True)).to_be_visible()
        return page

    yield made
    for context in contexts:
        context.close()
    assert not complaints


def is_complaint(kind: str, text: str) -> bool:
    return kind in ("error", "warning") and not re.search(r"Failed to load resource|net::ERR", text)


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    made = Cli(tmp_path_factory.mktemp("cli"))
    own = made.place / ".config" / "chargehand"
    own.mkdir(parents=True)
    command = '["sed", "-i", "s/g/i/", "g.txt"]'
    (own / "config.toml").write_text(f'[agents.mender]\nkind = "command"\ncommand = {command}\n')
    return made


@pytest.fixture(scope="module")
def repo(cli: Cli) -> Path:
    return repository(cli.place / "repo")


@pytest.fixture(scope="module")
def served(cli: Cli, repo: Path) -> Iterator[Served]:
    cli.run(repo)
    with serving(cli.environ, repo, worker=True) as made:
        yield made


def waiting_mission(cli: Cli, repo: Path) -> str:
    result = cli.run(repo, agent=shell("sed -i s/a/b/ f.txt; touch conftest.py"))
    assert result.document["status"] == "waiting", result
    return str(result.document["mission"])


# --- the board


# A single mission is shown like each of a thousand.
@pytest.mark.parametrize("count", [0, pytest.param(1, marks=pytest.mark.soak), 1000])
def test_the_board_shows_as_many_missions_as_the_api_counts(tmp_path: Path, open_page: Open, count: int) -> None:
    with serving(environment(tmp_path), tmp_path) as empty:
        with empty.reader() as reader:
            names = record_missions(reader, count)
        page = open_page(empty)
        if not count:
            expect(page.get_by_text("No missions yet")).to_be_visible()
            return
        expect(page.get_by_text(f"All {count}").or_(page.get_by_text(f"All{count}")).first).to_be_visible()
        rows = page.locator("a[data-row]")
        expect(rows.first).to_have_attribute("href", f"/missions/{names[-1]}")
        # Far fewer than exist: rows out of view are not rendered.
        assert rows.count() <= 60
        page.get_by_placeholder("Search missions").fill("m-00000")
        expect(rows).to_have_count(1)
        took, asked = first_view(page.context.browser, page.context.storage_state(), empty.url)
        assert took < FIRST_VIEW_BYTES
        # Requested at once with the session, and never twice.
        assert asked == ["/session", "/missions?limit=50"]


def first_view(browser: Browser | None, entered: StorageState, url: str) -> tuple[int, list[str]]:
    """Return the bytes, headers included, that the board loads with an empty cache, and its API requests."""
    assert browser is not None
    context = browser.new_context(storage_state=entered)
    page = context.new_page()
    answers: list[Response] = []
    page.on("response", lambda answer: answers.append(answer))
    with page.expect_response(lambda answer: "/events" in answer.url):
        page.goto(url)
        expect(page.locator("a[data-row]").first).to_be_visible()
    # The event stream never ends.
    ended = [answer for answer in answers if "/events" not in answer.url]
    sizes = [answer.request.sizes() for answer in ended]
    asked = sorted((answer.url.partition(API)[2] for answer in ended if API in answer.url), reverse=True)
    context.close()
    assert len(sizes) > 8
    return sum(each["responseBodySize"] + each["responseHeadersSize"] for each in sizes), asked


def test_a_mission_appears_and_updates_without_a_reload(served: Served, open_page: Open, repo: Path) -> None:
    page = open_page(served)
    client = served.owner()
    project = client.get(f"{API}/projects").json()["projects"][0]["id"]
    body = {"request": "a live one", "repo": project, "agent": "command:sed -i s/g/h/ g.txt", "checks": ["true"]}
    mission = client.post(f"{API}/missions", json=body).json()["mission"]
    row = page.locator(".board-row", has=page.locator(f"a[href='/missions/{mission}']"))
    expect(row).to_contain_text("a live one")
    expect(row).to_contain_text("Promoted", timeout=60_000)


def test_a_mission_is_started_and_followed_by_keyboard_alone(served: Served, open_page: Open, repo: Path) -> None:
    page = open_page(served)
    page.keyboard.press("Control+k")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.type("new mission")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="New mission")
    expect(dialog).to_be_visible()
    dialog.get_by_label("What is to be done").focus()
    page.keyboard.type("typed by hand")
    dialog.get_by_label("Agent").focus()
    page.keyboard.type("mender")
    dialog.get_by_role("button", name="Start").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="typed by hand")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("b")
    expect(page).to_have_url(served.url + "/")


def test_a_key_pressed_before_the_page_has_loaded_is_handled(served: Served, open_page: Open) -> None:
    page, held = open_page(served), list[Route]()
    page.route("**/assets/index-*.js", lambda route: held.append(route))
    page.reload(wait_until="commit")
    # `wait_for_function` would evaluate a text in the page, which its content security policy forbids.
    while not page.evaluate("window.earlyKeys !== undefined"):
        page.wait_for_timeout(20)
    page.keyboard.press("Control+k")
    while not held:
        page.wait_for_timeout(20)
    held[0].continue_()
    dialog = page.get_by_role("dialog", name="Find a mission or a command")
    expect(dialog.get_by_role("combobox")).to_be_focused()
    # The selected option is visible without a background too: forced colours remove it.
    page.emulate_media(forced_colors="active")
    expect(dialog.get_by_role("option", selected=True)).to_have_css("outline-style", "solid")
    expect(dialog.get_by_role("option", selected=False).first).to_have_css("outline-style", "none")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_a_dialog_traps_the_focus_and_returns_it(served: Served, open_page: Open, cli: Cli, repo: Path) -> None:
    mission = waiting_mission(cli, repo)
    page = open_page(served, f"/missions/{mission}")
    opener = page.get_by_role("button", name="New mission")
    opener.click()
    dialog = page.get_by_role("dialog", name="New mission")
    expect(dialog.get_by_label("What is to be done")).to_be_focused()
    for _ in range(25):  # once around the dialog; outside it only the browser itself has the focus
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('dialog, body').tagName") in ("DIALOG", "BODY")
        assert page.evaluate("document.querySelector('header').contains(document.activeElement)") is False
    page.mouse.click(5, 400)  # outside the dialog: the text typed in it stays
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(opener).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.mouse.click(5, 400)
    expect(page.get_by_role("dialog")).to_have_count(0)
    # A dialog opened from a menu returns the focus to the menu's button.
    more = page.get_by_role("button", name="More actions")
    more.press("Enter")
    page.get_by_role("menuitem").first.press("Enter")
    expect(page.locator("dialog[open]")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    expect(more).to_be_focused()


# --- one mission


def test_a_waiting_result_is_promoted_after_a_confirmation_dialog(
    served: Served, open_page: Open, cli: Cli, repo: Path
) -> None:
    mission = waiting_mission(cli, repo)
    page = open_page(served, f"/missions/{mission}")
    page.get_by_role("button", name="Promote", exact=True).click()
    dialog = page.get_by_role("dialog").or_(page.get_by_role("alertdialog"))
    expect(dialog).to_contain_text("cannot override a failed check")
    dialog.get_by_label("Why").fill("looked at it")
    dialog.get_by_role("button", name="Promote", exact=True).click()
    expect(page.get_by_role("main")).to_contain_text("Promoted", timeout=60_000)
    found = served.owner().get(f"{API}/missions/{mission}").json()
    assert found["status"] == "promoted"
    assert git(repo, "show", f"{found['branch']}:f.txt") == "baa"


def test_a_review_continues_in_another_browser(served: Served, open_page: Open, cli: Cli, repo: Path) -> None:
    mission = waiting_mission(cli, repo)
    notes = f"{API}/missions/{mission}/review/decisions"
    one, other = (open_page(served, f"/missions/{mission}/review") for _ in range(2))
    for page in (one, other):
        expect(page.get_by_text("0 of 2 hunks")).to_be_visible()
    one.get_by_role("button", name="Reject hunk 1 of 1").click()
    wait_until(lambda: list(served.owner().get(notes).json()["decided"].values()) == ["rejected"])
    # The other page knows nothing of this and decides the other hunk: both decisions are kept.
    other.get_by_role("navigation", name="Changed files").get_by_role("button").nth(1).click()
    other.get_by_role("button", name="Accept hunk 1 of 1").click()
    expect(other.get_by_text("2 of 2 hunks, 1 rejected")).to_be_visible()
    wait_until(lambda: len(served.owner().get(notes).json()["decided"]) == 2)
    third = open_page(served, f"/missions/{mission}/review")
    expect(third.get_by_text("2 of 2 hunks, 1 rejected")).to_be_visible()


def test_the_first_answer_of_two_tabs_counts_and_the_second_is_refused(
    served: Served, open_page: Open, cli: Cli, repo: Path
) -> None:
    plan = cli.place / "plan.json"
    unclear = [{"id": "way", "question": "Which way?", "options": ["to the left", "to the right"]}]
    task = {"id": "a", "text": "Write a", "agent": shell("echo $CHARGEHAND_REQUEST > sub/a.txt")}
    plan.write_text(json.dumps({"tasks": [task], "ambiguities": unclear}))
    result = cli.say("run", "--plan", str(plan), "--agent", "mender", *PASSES, "--detach", "--yes", cwd=repo)
    mission = result.document["mission"]
    first, second = (open_page(served, f"/missions/{mission}") for _ in range(2))
    for page in (first, second):
        expect(page.get_by_role("heading", name="Which way?")).to_be_visible(timeout=60_000)
    # The second tab gets no update, as if its stream were late.
    second.context.route("**/api/v1/missions/*", lambda route: route.abort())
    first.get_by_role("button", name="to the left").click()
    expect(first.get_by_role("heading", name="Which way?")).to_be_hidden()
    second.get_by_role("button", name="to the right").click()
    expect(second.get_by_role("alert").first).to_contain_text("does not wait for an answer")
    second.context.unroute("**/api/v1/missions/*")
    client = served.owner()
    wait_until(lambda: client.get(f"{API}/missions/{mission}").json()["status"] == "promoted")
    expect(first.get_by_role("main")).to_contain_text("Promoted", timeout=60_000)
    made = client.get(f"{API}/missions/{mission}").json()["branch"]
    assert "Which way? to the left" in git(repo, "show", f"{made}:sub/a.txt")


def test_every_tab_of_a_mission_opens(served: Served, open_page: Open, cli: Cli, repo: Path) -> None:
    mission = str(cli.run(repo).document["mission"])
    page = open_page(served, f"/missions/{mission}")
    tabs = page.get_by_role("tab").or_(page.get_by_role("navigation", name="Mission").get_by_role("link"))
    expect(tabs.first).to_be_visible()
    expect(tabs.filter(has_text="Report")).to_have_count(1)  # the last tab to appear
    names = tabs.all_inner_texts()
    assert {"Overview", "Timeline", "Transcript", "Changes", "Report"} <= set(names)
    for name in names:
        tabs.filter(has_text=name).first.click()
        expect(page.get_by_role("main")).not_to_contain_text("could not be loaded")
    page.goto(f"{served.url}/missions/{mission}/changes")
    expect(page.get_by_role("main")).to_contain_text("f.txt")
    page.goto(f"{served.url}/missions/m-none")
    expect(page.get_by_role("main")).to_contain_text("m-none")


def test_restoring_a_checkpoint_shows_its_changes_first(
    served: Served, open_page: Open, cli: Cli, repo: Path
) -> None:
    mission = waiting_mission(cli, repo)
    page = open_page(served, f"/missions/{mission}/changes?to=base")
    page.get_by_role("button", name="Restore Base").click()
    dialog = page.get_by_role("dialog", name="Restore this checkpoint?")
    expect(dialog.get_by_role("group", name="What is taken back")).to_contain_text("f.txt: as it was before")
    expect(dialog).to_contain_text("conftest.py: goes")
    dialog.get_by_role("button", name="Restore", exact=True).click()
    expect(page.get_by_text("Restored.")).to_be_visible(timeout=60_000)
    points = served.owner().get(f"{API}/missions/{mission}/checkpoints").json()["checkpoints"]
    assert len(points) == 2
    expect(page.get_by_role("button", name="Restore Base")).to_be_visible()


def test_a_mission_started_with_breakpoints_runs_step_by_step(served: Served, open_page: Open) -> None:
    page = open_page(served)
    page.get_by_role("button", name="New mission").click()
    dialog = page.get_by_role("dialog", name="New mission")
    dialog.get_by_label("What is to be done").fill("step by step")
    dialog.get_by_label("Agent").fill("mender")
    dialog.get_by_text("Breakpoints").click()
    dialog.get_by_label("before each of its steps").check()
    dialog.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", name="step by step")).to_be_visible()
    for _ in range(2):
        expect(page.get_by_role("main")).to_contain_text("Paused", timeout=60_000)
        seen = page.url.rpartition("/")[2]
        before = served.owner().get(f"{API}/missions/{seen}/events?limit=500").json()["last_seq"]
        page.get_by_role("button", name="Resume", exact=True).click()
        resume = page.get_by_role("dialog", name="Resume?")
        resume.get_by_label("Only until its next step").check()
        resume.get_by_role("button", name="Resume").click()
        expect(resume).to_be_hidden()
        assert served.owner().get(f"{API}/missions/{seen}/events").json()["last_seq"] > before


def test_the_statistics_page_matches_the_api(served: Served, open_page: Open) -> None:
    api = served.owner()
    # Wait for running missions of earlier tests: the figures would change between the two looks.
    wait_until(lambda: not api.get(f"{API}/missions?status=running").json()["missions"])
    page = open_page(served)
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", name="By agent", exact=True)).to_be_visible()
    figures = served.owner().get(f"{API}/stats").json()
    ended = {"In all": figures["attempts"], **figures["agents"]}
    table = page.get_by_role("table", name="By agent")
    for agent, told in ended.items():
        row = table.get_by_role("row").filter(has=page.get_by_role("rowheader", name=agent, exact=True))
        cells = row.get_by_role("cell").all_inner_texts()
        assert cells[:2] == [str(told["ended"]), str(told["succeeded"])], (agent, cells)
    outcomes = page.get_by_role("table", name="Outcomes")
    assert str(figures["missions"]["total"]) in outcomes.get_by_role("row").last.inner_text()
    page.get_by_label("Of", exact=True).select_option("24h")
    expect(page.get_by_role("heading", name="By agent", exact=True)).to_be_visible()


# --- failures


def test_a_server_that_comes_back_is_caught_up_with(tmp_path: Path, open_page: Open) -> None:
    environ, port = environment(tmp_path), free_port()
    with serving(environ, tmp_path, port=port) as first:
        with first.reader() as reader:
            record_missions(reader, 1)
        page = open_page(first)
        expect(page.locator("a[data-row]")).to_have_count(1)
    expect(page.get_by_text("Reconnecting")).to_be_visible()
    with serving(environ, tmp_path, port=port) as again:
        with again.reader() as reader:
            project = reader.store.projects.register(tmp_path)
            request = MissionRequest(text="meanwhile", agent="command:true", command=("true",), slug="m")
            created = MissionCreated(project=project.id, repository=str(tmp_path), request=request)
            reader.store.log.append("m-10000", created)
        expect(page.get_by_text("Reconnecting")).to_be_hidden()
        expect(page.locator("a[data-row]")).to_have_count(2)
        expect(page.get_by_text("meanwhile")).to_be_visible()


def test_a_session_that_ends_leads_to_the_login_and_back(served: Served, open_page: Open) -> None:
    page = open_page(served, "/system")
    expect(page.get_by_role("main")).to_contain_text("Workers")
    page.evaluate("localStorage.clear()")
    page.goto(f"{served.url}/agents")
    expect(page.get_by_role("heading", name="Sign in to Chargehand")).to_be_visible()
    page.get_by_label("Name").fill("nobody")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_role("alert")).to_be_visible()
    with served.reader() as reader:
        page.goto(f"{served.url}/login#{create_login_code(reader).secret}")
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
    assert "#" not in page.url


def test_no_word_of_anybody_runs_as_a_script(tmp_path: Path, open_page: Open) -> None:
    strings = json.loads(NAUGHTY.read_text()) if NAUGHTY.exists() else []
    words = [each for each in strings if each.strip() and "\0" not in each][:400]
    words += [
        "<img src=x onerror='window.pwned=1'>",
        "<script>window.pwned=1</script>",
        "javascript:window.pwned=1",
    ]
    with serving(environment(tmp_path), tmp_path) as served:
        with served.reader() as reader:
            project = reader.store.projects.register(tmp_path)
            for number, text in enumerate(words):
                request = MissionRequest(text=text, agent=text[:100] or "a", command=("true",), slug=f"m-{number}")
                created = MissionCreated(project=project.id, repository=str(tmp_path), request=request)
                reader.store.log.append(f"m-{number:05}", created)
        page = open_page(served)
        expect(page.locator("a[data-row]").first).to_be_visible()
        for number in (len(words) - 1, len(words) - 2, len(words) - 3, 0, 100):
            page.goto(f"{served.url}/missions/m-{number:05}")
            expect(page.get_by_role("main")).to_contain_text(f"m-{number:05}")
        assert page.evaluate("window.pwned") is None


# --- accessibility


def grave_violations(page: Page, *, colours_alone: bool) -> list[tuple[str, list[str]]]:
    """Return the serious accessibility violations of a page, each with its first places.

    In another theme only the colour rules run again: everything else is the same.
    """
    chosen = {"runOnly": ["color-contrast", "link-in-text-block"]} if colours_alone else {}
    found = Axe().run(page, options={"resultTypes": ["violations"], **chosen}).response["violations"]
    grave = [each for each in found if each["impact"] in ("serious", "critical")]
    return [(each["id"], [node["html"] for node in each["nodes"][:3]]) for each in grave]


EACH_WAY = tuple(product((1280, 390), THEMES))
LIGHT_AND_DARK = EACH_WAY[0], EACH_WAY[3]


# The suite shows each page in both widths and both themes and scans it by all rules in one width, every other page
# in the narrow one: so the frame around all pages is scanned in both.
@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_no_page_keeps_anybody_out(
    served: Served, open_page: Open, cli: Cli, repo: Path, everything: bool
) -> None:
    mission = next(each.id for each in cli.missions(repo) if each.status == "promoted")
    page = open_page(served)
    paths = (
        *("/", "/agents", "/projects", "/statistics", "/decisions", "/system", "/settings"),
        f"/missions/{mission}",
        *(f"/missions/{mission}/{tab}" for tab in ("timeline", "changes", "report")),
    )
    for number, path in enumerate(paths):
        page.goto(served.url + path)
        expect(page.get_by_role("main")).to_be_visible()
        # Show it in each way without reloading: loading and the first scan are most of a page's cost.
        rules_seen: set[int] = set()
        for width, theme in EACH_WAY if everything else LIGHT_AND_DARK[:: -1 if number % 2 else 1]:
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=theme)
            page.wait_for_timeout(300)
            colours_alone = width in rules_seen if everything else bool(rules_seen)
            assert not grave_violations(page, colours_alone=colours_alone), (path, width, theme)
            rules_seen.add(width)
            # Nothing is wider than the screen.
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width, theme)
