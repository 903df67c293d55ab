"""The dashboard in odd circumstances: many tabs, a clock that is off, long logs, wide and long changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import test_dashboard
from axe_playwright_python.sync_playwright import Axe
from desk import Desk, repository, shell
from playwright.sync_api import Page, expect
from tests.server_kit import Served, environment, record_missions, serving

from chargehand.core.mission_events import MissionCreated, QuestionAsked
from chargehand.core.records import MissionRequest

pytestmark = pytest.mark.needs_chromium
# The fixtures of a browser, and of a page that nothing complains of.
browser, open_page = test_dashboard.browser, test_dashboard.open_page
# Keeps the longest time (ms) in which a page could react to nothing.
BLOCKED = """
window.blocked = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.blocked = Math.max(window.blocked, entry.duration);
}).observe({ type: "longtask", buffered: true });
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(environment(tmp_path), tmp_path) as made:
        with made.reader() as reader:
            record_missions(reader, 1)
        yield made


def record_another(served: Served, name: str) -> None:
    with served.reader() as reader:
        project = reader.store.projects.register(served.cwd)
        request = MissionRequest(text=f"the {name}", agent="command:true", command=("true",), slug=name)
        created = MissionCreated(project=project.id, repository=str(served.cwd), request=request)
        reader.store.log.append(name, created)


def test_eight_tabs_share_one_stream_and_the_next_one_goes_on(
    served: Served, open_page: test_dashboard.Open
) -> None:
    first = open_page(served)
    streams: list[Page] = []
    pages = [first]
    first.context.on(
        "request", lambda asked: streams.append(asked.frame.page) if "/events?" in asked.url else None
    )
    # A browser has six connections for a server: were each held by a stream, the seventh tab would stay empty.
    for _ in range(7):
        page = first.context.new_page()
        page.goto(served.url)
        pages.append(page)
    for page in pages:
        expect(page.locator("a[data-row]")).to_have_count(1)
    record_another(served, "m-20000")
    for page in pages:
        expect(page.get_by_text("the m-20000")).to_be_visible()
    assert set(streams) <= {first}
    streams.clear()
    first.close()
    record_another(served, "m-30000")
    for page in pages[1:]:
        expect(page.get_by_text("the m-30000")).to_be_visible()
    assert len(set(streams)) == 1


@pytest.mark.parametrize("hours", [-26, 26])
def test_times_go_by_the_servers_clock(served: Served, open_page: test_dashboard.Open, hours: int) -> None:
    page = open_page(served)
    page.add_init_script(f"const real = Date.now; Date.now = () => real() + {hours * 3_600_000};")
    page.reload()
    expect(page.get_by_text("just now")).to_be_visible()


@pytest.mark.soak
def test_a_hundred_thousand_events_stop_no_page(served: Served, open_page: test_dashboard.Open) -> None:
    with served.reader() as reader:
        asked = [
            QuestionAsked(question=f"q-{number}", text="Which?", options=("a", "b"), tree="t", reasons=())
            for number in range(500)
        ]
        for _ in range(200):
            reader.store.log.append("m-00000", *asked)
    page = open_page(served)
    page.add_init_script(BLOCKED)
    page.goto(f"{served.url}/missions/m-00000/timeline")
    expect(page.get_by_text("100001 events")).to_be_visible(timeout=300_000)
    page.get_by_role("button", name="To the latest").click()
    expect(page.locator(".timeline-line").first).to_be_visible()
    assert page.locator(".timeline-line").count() < 100


@pytest.mark.needs_bwrap
def test_a_change_of_any_size_is_shown_and_read_side_by_side(
    tmp_path: Path, open_page: test_dashboard.Open
) -> None:
    desk = Desk(tmp_path)
    repo = repository(
        tmp_path / "repo", {"big.py": "".join(f"old = {n}  # was\n" for n in range(25_000)), "w.txt": "x\n"}
    )
    writes = (
        "seq 1 5000 > big.py; mkdir d; for i in $(seq 300); do echo $i > d/$i.txt; done; "
        "head -c 5000 /dev/urandom > z.dat; head -c 1000000 /dev/zero | tr '\\\\0' y > w.txt"
    )
    mission = desk.run(repo, agent=shell(writes)).document["mission"]
    with serving(desk.environ, repo) as served:
        page = open_page(served, f"/missions/{mission}/changes?file=big.py")
        expect(page.get_by_role("status").filter(has_text="303 files")).to_be_visible()
        expect(page.locator(".code-comment").first).to_have_text("# was")
        # What nobody sees is not made.
        assert page.locator("*").count() < 2_000
        page.get_by_role("button", name="Side by side").click()
        expect(page.locator(".diff-pair").first).to_be_visible()
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            found = Axe().run(page).response["violations"]
            grave = [each for each in found if each["impact"] in ("serious", "critical")]
            assert not grave, (theme, [(each["id"], each["nodes"][0]["html"]) for each in grave])
        # It is remembered, but not where there is no room for it.
        page.reload()
        expect(page.locator(".diff-pair").first).to_be_visible()
        page.set_viewport_size({"width": 390, "height": 800})
        expect(page.locator(".diff-line.removed").first).to_be_visible()
        expect(page.locator(".diff-pair")).to_have_count(0)
        page.goto(f"{served.url}/missions/{mission}/changes?file=w.txt")
        expect(page.get_by_role("button", name=re.compile("more characters"))).to_be_visible()
        page.goto(f"{served.url}/missions/{mission}/changes?file=z.dat")
        expect(page.get_by_role("main")).to_contain_text("Binary files")
