"""The terminal in a real browser: a mission's output is printed there and does nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import test_dashboard
from axe_playwright_python.sync_playwright import Axe
from command_line import Cli, repository, shell
from playwright.sync_api import Page, expect
from tests.server_kit import Served, environment, record_missions, serving

from chargehand.core.clock import SystemClock
from chargehand.reports.live_output import OutputWriter

pytestmark = pytest.mark.needs_chromium
# The fixtures of a browser and of a page without complaints, including those of the content policy.
browser, open_page = test_dashboard.browser, test_dashboard.open_page
MISSION = "m-00000"
HOSTILE = (
    b"\x1b]0;a new title\x07\x1b]2;another\x1b\\\x1b]52;c;c2VjcmV0\x07\x1b[2J\x1b[?1049h\x1b[6n\x1bc\n"
    b"\x1b]8;;http://evil.example\x1b\\a link\x1b]8;;\x1b\\ <img src=x onerror=window.pwned=1> http://evil.example\n"
    b"\xff\xfe\xc3( \x1b[31;42mcolours\x1b[0m \x1b[8mnot hidden\x1b[0m \x1b[38;2;1;2;3mtrue\x1b[0m\n"
)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(environment(tmp_path), tmp_path) as made:
        with made.reader() as reader:
            record_missions(reader, 1)
        yield made


@contextlib.contextmanager
def printing(served: Served) -> Iterator[OutputWriter]:
    with served.reader() as reader:
        output = OutputWriter(reader.home, MISSION, clock=SystemClock())
        with contextlib.closing(output):
            yield output


def screen(page: Page) -> str:
    """Return the terminal's whole content, as its copy button gives it."""
    page.get_by_role("button", name="Copy").click()
    page.wait_for_function("navigator.clipboard.readText().then(text => text !== '')")
    return str(page.evaluate("navigator.clipboard.readText()"))


def test_hostile_output_is_printed_without_effect(served: Served, open_page: test_dashboard.Open) -> None:
    with printing(served) as output:
        output.write("stdout", HOSTILE)
        page = open_page(
            served, f"/missions/{MISSION}/terminal", permissions=["clipboard-read", "clipboard-write"]
        )
        rows = page.locator(".xterm-rows")
        expect(rows).to_contain_text("not hidden")
        expect(rows).to_contain_text("a link <img src=x")
        expect(page).to_have_title("Planned: mend it 0 · Chargehand")
        assert page.evaluate("window.pwned") is None
        assert page.locator(".terminal-place a, .terminal-place img").count() == 0
        assert page.evaluate("navigator.clipboard.readText()") == ""
        # A megabyte without a line end, and more lines than are kept: the page still works and follows.
        output.write("stdout", b"x" * 1_000_000 + b"\n")
        for first in range(0, 20_000, 100):
            output.write("stdout", b"".join(b"line %d\n" % number for number in range(first, first + 100)))
        output.write_check("stdout", b"checks say \x1b[32mgreen\x1b[0m\n")
        expect(rows).to_contain_text("checks say green", timeout=60_000)
        page.get_by_role("searchbox", name="Find in the output").fill("line 15000")
        page.keyboard.press("Enter")
        expect(rows).to_contain_text("line 15000")
        page.get_by_role("button", name="Stop following").click()
        output.write("stdout", b"the last one\n")
        page.get_by_role("button", name="Follow", exact=True).click()
        expect(rows).to_contain_text("the last one")
        page.locator(".xterm-screen").click()  # clears the selection, so that everything is copied
        text = screen(page)
        assert text.endswith("the last one")
        assert "checks ──\nchecks say green" in text


def test_the_terminal_is_accessible_by_keyboard_and_screen_reader(
    served: Served, open_page: test_dashboard.Open
) -> None:
    with printing(served) as output:
        output.write("stdout", b"\x1b[31mred\x1b[0m \x1b[43mground\x1b[0m plain\n")
        for theme, width in (("light", 1280), ("dark", 390)):
            page = open_page(served, color_scheme=theme, viewport={"width": width, "height": 800})
            page.goto(f"{served.url}/missions/{MISSION}/terminal")
            expect(page.locator(".xterm-rows")).to_contain_text("ground")
            expect(page.locator(".xterm-accessibility-tree")).to_contain_text("ground")
            found = Axe().run(page).response["violations"]
            grave = [each for each in found if each["impact"] in ("serious", "critical")]
            assert not grave, (theme, width, [(each["id"], each["nodes"][0]["html"]) for each in grave])
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_role("button", name="Copy").focus()
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Shift+Tab")
        expect(page.get_by_role("button", name="Copy")).to_be_focused()


@pytest.mark.needs_bwrap
def test_the_terminal_shows_live_output_and_later_the_kept_output(
    tmp_path: Path, open_page: test_dashboard.Open
) -> None:
    cli, repo = Cli(tmp_path), repository(tmp_path / "repo")
    stays = shell("echo first words; sleep 60")
    running = cli.start("run", "watched", "--agent", stays, "--only-check", "echo a check speaks", cwd=repo)
    with serving(cli.environ, repo) as served:
        page = open_page(served)
        page.get_by_role("link", name="watched").click()
        page.get_by_role("link", name="Terminal").click()
        rows = page.locator(".xterm-rows")
        for text in ("Before the first attempt, checks", "a check speaks", "Attempt 1, agent", "first words"):
            expect(rows).to_contain_text(text)
        expect(page.get_by_text("Attempt 1: running. Live.")).to_be_visible()
        mission = page.url.split("/")[-2]
        cli.say("mission", "cancel", mission, cwd=repo)
        running.communicate(timeout=90)
        expect(page.get_by_text("The mission has ended.")).to_be_visible()
        page.reload()
        expect(page.get_by_text("this is its stored output")).to_be_visible()
        expect(rows).to_contain_text("a check speaks")
