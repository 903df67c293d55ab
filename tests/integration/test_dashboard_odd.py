"""The dashboard in odd circumstances: many tabs, a wrong clock, long logs, wide and long changes."""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import test_dashboard
from command_line import Cli, repository, shell
from playwright.sync_api import Page, expect
from tests.server_kit import Served, environment, record_missions, serving

from chargehand.core.mission_events import MissionCreated, QuestionAsked, StepFinished
from chargehand.core.records import MissionRequest

pytestmark = pytest.mark.needs_chromium
# The fixtures of a browser and of a page without complaints.
browser, open_page = test_dashboard.browser, test_dashboard.open_page
SAID = 'TEXT = """\n\n\n\n\ndef old():\n"""\ndef after(): return 1 + len("a")  # why\n'
# Records the times (ms) for which the page could not react.
BLOCKED = """
window.blocked = [];
new PerformanceObserver((list) => {
  for (const { duration } of list.getEntries()) window.blocked.push(duration);
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


def test_seven_tabs_share_a_stream_that_another_tab_takes_over(
    served: Served, open_page: test_dashboard.Open
) -> None:
    first = open_page(served)
    streams: list[Page] = []
    pages = [first]
    first.context.on(
        "request", lambda asked: streams.append(asked.frame.page) if "/events?" in asked.url else None
    )
    # A browser has six connections per server: if each tab's stream held one, the seventh tab would stay empty.
    for _ in range(6):
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


def append_questions(served: Served, count: int) -> None:
    """Append `count` questions to the log of the only mission."""
    with served.reader() as reader:
        asked = [
            QuestionAsked(question=f"q-{number}", text="Which?", options=("a", "b"), tree="t", reasons=())
            for number in range(min(count, 500))
        ]
        for _ in range(0, count, 500):
            reader.store.log.append("m-00000", *asked)


def heap(page: Page) -> float:
    """Return the MB that a page's scripts hold after garbage collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used: float = session.send("Runtime.getHeapUsage")["usedSize"]
    return used / 1e6


# The log is read in pages of 500 events.
@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_a_mission_with_many_events_is_read_to_its_end(
    served: Served, open_page: test_dashboard.Open, count: int
) -> None:
    append_questions(served, count)
    page = open_page(served)
    page.add_init_script(BLOCKED)
    began = heap(page)
    page.goto(f"{served.url}/missions/m-00000/timeline")
    lines = page.locator(".timeline-line")
    # The summary above the log is computed from all of it.
    expect(lines.first).to_be_visible(timeout=120_000)
    shown = page.get_by_role("status").filter(has_text="events")
    expect(shown).to_have_text(f"{count + 1} events", timeout=300_000)
    page.get_by_role("button", name="To the latest").click()
    last = page.locator(f"[aria-posinset='{count + 1}']")
    expect(last).to_be_visible()
    # Scroll up and down again, as fast as a wheel turns.
    for way in (-1, -1, 1, 1):
        page.mouse.wheel(0, way * count * 10)
        expect(lines.first).to_be_visible()
    # The log grows while a person reads it.
    for step in range(2, 5):
        append_questions(served, 1)
        expect(shown).to_have_text(f"{count + step} events", timeout=60_000)
    page.get_by_role("button", name="To the latest").click()
    last = page.locator(f"[aria-posinset='{count + 4}']")
    expect(last).to_be_visible()
    assert lines.count() < 100
    # An event's content is not kept with its line: the page requests that event alone.
    with page.expect_response(lambda answer: answer.url.endswith(f"/events?after={count + 3}&limit=1")):
        last.locator("summary").click()
    expect(last.locator("pre")).to_contain_text('"question": "q-0"')
    held, blocked = heap(page) - began, page.evaluate("window.blocked")
    long = [duration for duration in blocked if duration > 200]
    print(
        f"{count} events: {held:.0f} MB; blocked for more than 200 ms {len(long)} times,"
        f" {max(blocked, default=0)} ms at most"
    )
    assert held < 20 + count * 0.001


@pytest.mark.needs_bwrap
def test_a_change_of_any_size_is_shown_and_read_side_by_side(
    tmp_path: Path, open_page: test_dashboard.Open
) -> None:
    cli = Cli(tmp_path)
    repo = repository(
        tmp_path / "repo",
        {
            "big.py": "".join(f"old = {n}  # was\n" for n in range(10_000)),
            "said.py": SAID,
            "w.txt": "x\n",
        },
    )
    writes = (
        "seq 1 5000 > big.py; sed -i 's/def old/def new/' said.py; "
        "mkdir d; for i in $(seq 300); do echo $i > d/$i.txt; done; "
        "head -c 5000 /dev/urandom > z.dat; head -c 1000000 /dev/zero | tr '\\\\0' y > w.txt"
    )
    mission = cli.run(repo, agent=shell(writes)).document["mission"]
    with serving(cli.environ, repo) as served:
        page = open_page(served, f"/missions/{mission}/changes?file=big.py")
        expect(page.get_by_role("status").filter(has_text="304 files")).to_be_visible()
        expect(page.locator(".code-comment").first).to_have_text("# was")
        # Content out of view is not rendered.
        assert page.locator("*").count() < 2_000
        page.get_by_role("button", name="Side by side").click()
        expect(page.locator(".diff-pair").first).to_be_visible()
        for tab in ("changes", "review"):
            page.goto(f"{served.url}/missions/{mission}/{tab}?file=said.py")
            if tab == "review":
                page.get_by_role("button", name="said.py").click()
                page.get_by_role("button", name="Side by side").click()
            # The string begins above the shown lines: only the whole file shows that `def` is not a keyword here.
            for side, word in enumerate(("old", "new")):
                changed = page.locator(".diff-pair", has_text="def new").locator("> *").nth(side)
                expect(changed.locator(".code-string")).to_have_text(f"def {word}():")
                expect(changed.locator(".code-keyword")).to_have_count(0)
            expect(page.locator(".code-name").first).to_have_text("after")
            for theme in test_dashboard.THEMES:
                page.emulate_media(color_scheme=theme)
                colours_alone = theme == "dark"
                assert not test_dashboard.grave_violations(page, colours_alone=colours_alone), (tab, theme)
        page.goto(f"{served.url}/missions/{mission}/changes?file=big.py")
        # The choice is remembered, but not applied on a narrow screen.
        page.reload()
        expect(page.locator(".diff-pair").first).to_be_visible()
        page.set_viewport_size({"width": 390, "height": 800})
        expect(page.locator(".diff-line.removed").first).to_be_visible()
        expect(page.locator(".diff-pair")).to_have_count(0)
        page.goto(f"{served.url}/missions/{mission}/changes?file=w.txt")
        expect(page.get_by_role("button", name=re.compile("more characters"))).to_be_visible()
        page.goto(f"{served.url}/missions/{mission}/changes?file=z.dat")
        expect(page.get_by_role("main")).to_contain_text("Binary files")


def test_a_line_of_a_megabyte_is_folded(served: Served, open_page: test_dashboard.Open) -> None:
    result = json.dumps({"kind": "text", "text": "<b>" + "y" * 1_000_000}) + "\n"
    with served.reader() as reader:
        output = {"artifact": reader.store.artifacts.put(result.encode(), kind="output")}
        step = StepFinished(step="attempt/1/work/told/1", input="", output=output, seconds=1.0)
        reader.store.log.append("m-00000", step)
    page = open_page(served, "/missions/m-00000/transcript")
    line = page.get_by_role("list", name="Transcript").locator("pre")
    expect(line).to_have_text(re.compile("^<b>y{3997}$"))
    page.get_by_role("button", name="Show all 1000003 characters").click()
    expect(page.get_by_role("button", name="Show less")).to_be_visible()
    assert len(line.inner_text()) == 1_000_003
    page.get_by_role("button", name="Show less").click()
    assert len(line.inner_text()) == 4_000


READS_IDS = """async () => {
  const response = await fetch("/api/v1/events?after=0");
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  window.ids = [];
  let rest = "";
  void (async () => {
    for (;;) {
      const lines = (rest + (await reader.read()).value).split("\\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("id: ")) window.ids.push(Number(line.slice(4)));
    }
  })();
}"""


@pytest.mark.soak
def test_a_slow_client_gets_all_events_without_server_memory_growth(
    tmp_path: Path, open_page: test_dashboard.Open
) -> None:
    environ = environment(tmp_path)
    words = [sys.executable, "-m", "chargehand", "up", "--no-worker", "--port", "0", "--json"]
    with subprocess.Popen(words, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            served = Served(json.loads(server.stdout.readline())["url"], environ, tmp_path)
            with served.reader() as reader:
                record_missions(reader, 1)
            page = open_page(served)
            session = page.context.new_cdp_session(page)
            session.send("Network.enable")
            slow = {"offline": False, "latency": 0, "uploadThroughput": -1}
            session.send("Network.emulateNetworkConditions", {**slow, "downloadThroughput": 20_000})
            page.evaluate(READS_IDS)
            append_questions(served, 1_000)
            page.wait_for_timeout(3_000)
            before = resident(server.pid)
            # 40 MB, of which the reader takes 20 kB a second.
            append_questions(served, 100_000)
            page.wait_for_timeout(5_000)
            grown, taken = resident(server.pid) - before, page.evaluate("window.ids.length")
            print(f"{taken} of 101001 lines taken, the server grew by {grown:.0f} MB")
            assert taken < 50_000
            assert grown < 20
            session.send("Network.emulateNetworkConditions", {**slow, "downloadThroughput": -1})
            for _ in range(600):
                if page.evaluate("window.ids.length") >= 101_001:
                    break
                page.wait_for_timeout(200)
            assert page.evaluate("window.ids.length") == 101_001
            assert page.evaluate("window.ids.every((id, at) => id === window.ids[0] + at)")
            served.close()
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=60)


def resident(pid: int) -> float:
    """Return the MB of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
