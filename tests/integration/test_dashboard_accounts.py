"""Accounts in the dashboard, in a real browser: rights granted and revoked there take effect at the API."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Literal

import pyotp
import pytest
import test_dashboard
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, CDPSession, Page, expect
from tests.server_kit import API, PASSWORD, Served, environment, serving

from chargehand.identity.accounts import create_user, owner
from chargehand.identity.providers import ConfiguredProvider
from chargehand.identity.sign_in import link_subject
from chargehand.testing.sign_in import FakeSignInProvider

pytestmark = pytest.mark.needs_chromium
# The fixtures of a browser and of a page without complaints.
browser, open_page = test_dashboard.browser, test_dashboard.open_page


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("accounts")
    with serving(environment(place), place) as made:
        yield made


def log_in(page: Page, name: str, password: str) -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in", exact=True).click()


def set_password(page: Page, password: str) -> None:
    page.get_by_label("New password").fill(password)
    page.get_by_label("The same again").fill(password)


def test_a_token_counts_from_its_creation_to_its_revocation(
    served: Served, open_page: test_dashboard.Open
) -> None:
    page = open_page(served)
    page.keyboard.press("g")
    page.keyboard.press("u")
    expect(page.get_by_text("You have no token yet")).to_be_visible()
    # The owner has no password to change.
    expect(page.get_by_role("heading", name="Your password")).to_be_hidden()
    page.get_by_label("What it is for").fill("nightly")
    page.get_by_role("button", name="Create token").click()
    secret = page.get_by_label("Secret", exact=True).inner_text()
    program = served.stranger()
    program.headers["Authorization"] = f"Bearer {secret}"
    assert program.get(f"{API}/missions").status_code == 200
    # It has only the scope that was ticked.
    assert program.post(f"{API}/tokens", json={"name": "more", "scopes": ["read"]}).status_code == 403
    page.get_by_role("button", name="I have kept it").click()
    expect(page.get_by_text(secret)).to_have_count(0)
    page.get_by_role("button", name="Revoke nightly").click()
    dialog = page.get_by_role("alertdialog")
    expect(dialog).to_contain_text("is refused from now on")
    dialog.get_by_role("button", name="Revoke", exact=True).click()
    expect(page.get_by_role("row", name="nightly")).to_contain_text("Revoked")
    assert program.get(f"{API}/missions").status_code == 401


def test_an_added_viewer_can_read_but_not_start_missions(
    served: Served, open_page: test_dashboard.Open, browser: Browser
) -> None:
    page = open_page(served, "/accounts")
    page.get_by_label("Account name").fill("vera")
    set_password(page, "too short")
    page.get_by_role("button", name="Add account").click()
    expect(page.get_by_text("this one has 9")).to_be_visible()
    set_password(page, PASSWORD)
    page.get_by_role("button", name="Add account").click()
    row = page.get_by_role("table", name="All accounts").get_by_role("row", name="vera")
    expect(row).to_contain_text("viewer")

    with browser.new_context() as context:
        hers = context.new_page()
        hers.goto(f"{served.url}/login?back=%2Faccounts")
        log_in(hers, "vera", PASSWORD)
        expect(hers.get_by_role("heading", name="Your password")).to_be_visible()
        expect(hers.get_by_role("button", name="New mission")).to_be_hidden()
        expect(hers.get_by_role("heading", name="All accounts")).to_be_hidden()
        assert hers.get_by_role("checkbox").count() == 1
        hers.get_by_label("Current password").fill(PASSWORD)
        set_password(hers, PASSWORD[::-1])
        hers.get_by_role("button", name="Change password").click()
        expect(hers.get_by_role("heading", name="Sign in")).to_be_visible()
        log_in(hers, "vera", PASSWORD[::-1])
        expect(hers.get_by_role("navigation", name="Pages")).to_be_visible()

        row.get_by_role("button", name="Change vera").click()
        page.get_by_role("menuitem", name="Disable").click()
        dialog = page.get_by_role("alertdialog")
        expect(dialog).to_contain_text("All sessions of vera end now")
        dialog.get_by_role("button", name="Disable").click()
        expect(row).to_contain_text("Disabled")
        hers.reload()
        expect(hers.get_by_role("heading", name="Sign in")).to_be_visible()
    log = page.get_by_role("table", name="Access log")
    expect(log.get_by_role("row", name=re.compile("user.disable.*vera"))).to_be_visible()


def offered(provider: FakeSignInProvider) -> tuple[ConfiguredProvider, ...]:
    return (ConfiguredProvider(name="example", provider=provider),)


@contextmanager
def provider_pages(subject: str) -> Iterator[FakeSignInProvider]:
    """Serve the pages of a provider of another site, which signs every browser in as a subject."""

    class Redirect(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(303)
            self.send_header("Location", provider.approve(self.path, subject))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Redirect) as server:
        provider = FakeSignInProvider(f"http://localhost:{server.server_port}")
        serving_pages = Thread(target=server.serve_forever)
        serving_pages.start()
        try:
            yield provider
        finally:
            server.shutdown()
            serving_pages.join()


def test_a_person_signs_in_at_a_provider_and_comes_back_to_the_page(browser: Browser, tmp_path: Path) -> None:
    with (
        provider_pages("vera's subject") as provider,
        serving(
            environment(tmp_path), tmp_path, sign_in=(ConfiguredProvider(name="example", provider=provider),)
        ) as served,
        browser.new_context() as context,
    ):
        with served.reader() as reader:
            create_user(reader, "vera", role="viewer", by=owner(reader))
            link_subject(reader, "vera", issuer=provider.issuer, subject="vera's subject", by=owner(reader))
        page = context.new_page()
        page.goto(f"{served.url}/accounts")
        page.get_by_role("link", name="Sign in with Example & Co").click()
        expect(page.get_by_role("navigation", name="Pages", exact=True)).to_be_visible()
        assert page.url == f"{served.url}/accounts"
        assert page.evaluate("localStorage.getItem('chargehand.session')").startswith("chs_")
        assert not context.cookies()


def test_a_second_factor_is_added_asked_for_and_proves_a_change(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / ".config" / "chargehand" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('[server]\nsecond_factor = "admin"\n')
    with serving(environment(tmp_path), tmp_path) as served, browser.new_context() as context:
        with served.reader() as reader:
            create_user(reader, "dora", role="admin", password=PASSWORD, by=owner(reader))
        page = context.new_page()
        page.goto(f"{served.url}/login")
        log_in(page, "dora", PASSWORD)
        expect(page.get_by_role("heading", name="Add a second factor")).to_be_visible()
        page.get_by_role("button", name="Add an authenticator app").click()
        expect(page.get_by_role("img", name=re.compile("QR code"))).to_be_visible()
        app, now = pyotp.TOTP(page.get_by_label("Secret", exact=True).inner_text()), time.time()
        page.get_by_label("First code").fill("000000")
        page.get_by_role("button", name="Confirm").click()
        expect(page.get_by_role("alert")).to_contain_text("wrong")
        page.get_by_label("First code").fill(app.at(int(now)))
        page.get_by_role("button", name="Confirm").click()
        expect(page.get_by_role("heading", name="Recovery codes")).to_be_visible()
        page.get_by_role("button", name="I have kept them").click()
        expect(page.get_by_role("heading", name="Board")).to_be_visible()
        page.goto(f"{served.url}/accounts")
        expect(page.get_by_text("10 recovery codes left")).to_be_visible()

        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in to Chargehand")).to_be_visible()
        log_in(page, "dora", PASSWORD)
        page.get_by_label("Code of your second factor").fill(app.at(int(now) + 30))
        page.get_by_role("button", name="Sign in", exact=True).click()
        expect(page.get_by_role("navigation", name="Pages", exact=True)).to_be_visible()
        page.goto(f"{served.url}/accounts")
        page.get_by_role("button", name="Make new recovery codes").click()
        codes = page.get_by_label("Recovery codes").inner_text().split()
        assert len(codes) == 10

        with closing(sqlite3.connect(tmp_path / "state" / "store.db")) as raw:
            raw.execute("UPDATE web_sessions SET proved = '2020-01-01T00:00:00.000000+00:00'")
            raw.commit()
        page.get_by_label("What it is for").fill("nightly")
        page.get_by_role("button", name="Create token").click()
        dialog = page.get_by_role("dialog", name="Confirm that it is you")
        dialog.get_by_label("Code").fill(codes[0])
        dialog.get_by_role("button", name="Confirm").click()
        expect(page.get_by_role("heading", name="Secret of “nightly”")).to_be_visible()
        expect(page.get_by_text("9 recovery codes left")).to_be_visible()


@contextmanager
def device(page: Page) -> Iterator[CDPSession]:
    """Give the browser of a page an authenticator that verifies its person, and yield the session to steer it."""
    session = page.context.new_cdp_session(page)
    session.send("WebAuthn.enable")
    options = {
        "protocol": "ctap2",
        "transport": "internal",
        "hasResidentKey": True,
        "hasUserVerification": True,
        "isUserVerified": True,
        "automaticPresenceSimulation": True,
    }
    session.send("WebAuthn.addVirtualAuthenticator", {"options": options})
    yield session
    session.detach()


def test_a_passkey_signs_in_without_a_name_and_proves_a_change(browser: Browser, tmp_path: Path) -> None:
    with serving(environment(tmp_path), tmp_path) as served, browser.new_context() as context:
        with served.reader() as reader:
            create_user(reader, "dora", role="admin", password=PASSWORD, by=owner(reader))
        page = context.new_page()
        # A passkey belongs to a host name, and an address is none.
        page.goto(f"{served.url}/login")
        expect(page.get_by_role("heading", name="Sign in to Chargehand")).to_be_visible()
        expect(page.get_by_role("button", name="Sign in with a passkey")).to_be_hidden()
        url = served.url.replace("127.0.0.1", "localhost")
        page.goto(f"{url}/login?back=%2Faccounts")
        with device(page):
            log_in(page, "dora", PASSWORD)
            page.get_by_label("Name of the device").fill("laptop")
            page.get_by_role("button", name="Add a passkey").click()
            expect(page.get_by_role("heading", name="Recovery codes")).to_be_visible()
            page.get_by_role("button", name="I have kept them").click()
            expect(page.get_by_text("laptop", exact=True)).to_be_visible()
            page.get_by_role("button", name="Sign out").click()
            expect(page.get_by_role("heading", name="Sign in to Chargehand")).to_be_visible()
            # The password alone opens nothing any more.
            log_in(page, "dora", PASSWORD)
            expect(page.get_by_role("status").filter(has_text="Your password is right")).to_be_visible()
            page.get_by_role("button", name="Sign in with a passkey").click()
            expect(page.get_by_role("navigation", name="Pages", exact=True)).to_be_visible()
            page.goto(f"{url}/accounts")
            with closing(sqlite3.connect(tmp_path / "state" / "store.db")) as raw:
                raw.execute("UPDATE web_sessions SET proved = '2020-01-01T00:00:00.000000+00:00'")
                raw.commit()
            page.get_by_role("button", name="Remove laptop").click()
            page.get_by_role("dialog").get_by_role("button", name="Use a passkey").click()
            expect(page.get_by_role("button", name="Remove laptop")).to_be_hidden()
            page.get_by_role("button", name="Sign out").click()
            page.get_by_role("button", name="Sign in with a passkey").click()
            expect(page.get_by_role("alert")).to_contain_text("not valid here")


def test_everybody_can_use_the_page(served: Served, open_page: test_dashboard.Open) -> None:
    page = open_page(served, "/accounts")
    page.get_by_label("What it is for").fill("a long name " * 8)
    page.get_by_role("button", name="Create token").click()
    expect(page.get_by_label("Secret", exact=True)).to_be_visible()
    expect(page.get_by_role("table", name="Access log")).to_be_visible()
    themes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for width, theme in zip((1280, 390), themes, strict=True):
        page.set_viewport_size({"width": width, "height": 844})
        page.emulate_media(color_scheme=theme)
        found = Axe().run(page)
        grave = [each for each in found.response["violations"] if each["impact"] in ("serious", "critical")]
        assert not grave, [(each["id"], [node["html"] for node in each["nodes"][:3]]) for each in grave]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
