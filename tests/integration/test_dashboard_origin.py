"""Another server on this machine learns nothing of a browser's session with Chargehand."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import test_dashboard
from playwright.sync_api import Browser, Page, expect
from tests.server_kit import API, Served, environment, record_missions, serving

from chargehand.identity.accounts import create_login_code

pytestmark = pytest.mark.needs_chromium
browser = test_dashboard.browser


class Neighbour(http.server.ThreadingHTTPServer):
    """Another server on 127.0.0.1 that keeps everything browsers send to it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _KeepRequest)
        self.heard: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _KeepRequest(http.server.BaseHTTPRequestHandler):
    server: Neighbour

    def do_GET(self) -> None:
        size = int(self.headers.get("content-length", 0))
        self.server.heard.append(f"{self.requestline}\n{self.headers}\n{self.rfile.read(size).decode()}")
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        # Accept everything that a foreign page could be made to send.
        self.send_header("Access-Control-Allow-Origin", self.headers.get("origin", "*"))
        self.send_header("Access-Control-Allow-Credentials", "true")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>neighbour</title>")

    do_POST = do_OPTIONS = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def neighbour() -> Iterator[Neighbour]:
    with Neighbour() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def log_in(served: Served, page: Page) -> str:
    """Log in by the link, and return the secret that the browser keeps."""
    with served.reader() as reader:
        page.goto(f"{served.url}/login#{create_login_code(reader).secret}")
    expect(page.get_by_role("navigation", name="Pages", exact=True)).to_be_visible()
    secret = page.evaluate("localStorage.getItem('chargehand.session')")
    assert secret.startswith("chs_")
    return str(secret)


def test_another_server_on_the_machine_gets_no_replayable_credentials(
    tmp_path: Path, browser: Browser, neighbour: Neighbour
) -> None:
    with serving(environment(tmp_path), tmp_path) as served, browser.new_context() as context:
        with served.reader() as reader:
            (mission,) = record_missions(reader, 1)
        page = context.new_page()
        secret = log_in(served, page)
        assert context.cookies() == []
        other = context.new_page()
        for host in ("127.0.0.1", "localhost"):
            other.goto(f"http://{host}:{neighbour.server_port}/")
            # Requests that a page there can make the browser send, to itself and to Chargehand.
            other.evaluate(
                """async ([own, ours, mission]) => {
                    const ask = (url, init) => fetch(url, { credentials: "include", ...init }).catch(() => null);
                    await ask(own + "/fetched");
                    await ask(own + "/posted", { method: "POST", body: "x" });
                    await ask(ours + "/api/v1/session");
                    await ask(ours + "/api/v1/missions", { mode: "no-cors", method: "POST", body: "{}" });
                    await new Promise((done) => {
                        const terminal = `${ours.replace("http", "ws")}/api/v1/missions/${mission}/terminal`;
                        const socket = new WebSocket(terminal);
                        socket.onclose = socket.onopen = done;
                    });
                    await new Promise((done) => {
                        const image = new Image();
                        image.onload = image.onerror = done;
                        image.src = own + "/image";
                    });
                }""",
                [f"http://{host}:{neighbour.server_port}", served.url, mission],
            )
            assert other.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0
        # A form, and a page in a window opened by the foreign page.
        other.set_content(f"<form method=post action='{neighbour.url}/form'><button>go</button></form>")
        other.get_by_role("button").click()
        expect(other).to_have_title("neighbour")
        with context.expect_page() as opened:
            other.evaluate("url => { window.open(url) }", served.url)
        # The opened page is ours and logged in, and gives nothing away.
        expect(opened.value.get_by_role("navigation", name="Pages", exact=True)).to_be_visible()
        assert len(neighbour.heard) >= 8
        heard = "\n".join(neighbour.heard)
        assert secret not in heard
        assert "cookie:" not in heard.lower()
        # All headers that the neighbour received, replayed to Chargehand, are no session.
        for request in neighbour.heard:
            lines = [line.partition(": ") for line in request.splitlines()[1:] if ": " in line]
            names = ("host", "connection", "content-length", "accept-encoding", "origin", "upgrade")
            headers = {name: value for name, _, value in lines if name.lower() not in names}
            answer = httpx.get(f"{served.url}{API}/session", headers=headers)
            assert answer.status_code == 401, headers
        # The person's own page still works.
        page.reload()
        expect(page.get_by_role("navigation", name="Pages", exact=True)).to_be_visible()


def test_signing_out_ends_the_session_in_all_tabs(tmp_path: Path, browser: Browser) -> None:
    with serving(environment(tmp_path), tmp_path) as served, browser.new_context() as context:
        served.user("ann", "viewer")
        page = context.new_page()
        log_in(served, page)
        tab = context.new_page()
        tab.goto(f"{served.url}/system")
        expect(tab.get_by_role("main")).to_contain_text("Workers")
        # The name leads to the account; only the button next to it ends the session.
        page.get_by_role("link", name="Account of").click()
        expect(page.get_by_text("You have no token yet")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in to Chargehand")).to_be_visible()
        assert page.evaluate("localStorage.getItem('chargehand.session')") is None
        tab.goto(f"{served.url}/agents")
        expect(tab.get_by_role("heading", name="Sign in to Chargehand")).to_be_visible()


def test_a_download_is_requested_with_the_session(tmp_path: Path, browser: Browser) -> None:
    with serving(environment(tmp_path), tmp_path) as served, browser.new_context() as context:
        with served.reader() as reader:
            (mission,) = record_missions(reader, 1)
        page = context.new_page()
        log_in(served, page)
        page.goto(f"{served.url}/missions/{mission}/report")
        with page.expect_download() as saved:
            page.get_by_role("button", name="Download as Markdown").click()
        assert saved.value.suggested_filename == f"{mission}.md"
        assert "mend it" in Path(saved.value.path()).read_text()
