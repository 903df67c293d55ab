"""Sign-in at a real OpenID Connect provider: from its forms to a session, roles by groups, logout both ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.oidc_kit import SECRET, Company, company, walk
from tests.oidc_stand_in import Keys
from tests.server_kit import API, Served, environment, serving

from chargehand.core.own_config import SignInConfig
from chargehand.identity.accounts import create_user, owner
from chargehand.identity.providers import open_providers
from chargehand.identity.sign_in import link_subject
from chargehand.server.serving import bind

AT_PROVIDER = f"{API}/sign-in/company"


class Office:
    """A company's provider and our server, each of which knows the other."""

    def __init__(self, served: Served, provider: Company) -> None:
        self.served = served
        self.provider = provider
        self._people: dict[str, dict[str, Any]] = {}

    def hire(self, name: str, **claims: Any) -> str:
        """Let the provider know a person."""
        self._people[name] = claims
        self.provider.know(self._people)
        return name

    def browser(self) -> httpx.Client:
        """Return a browser that knows neither."""
        return self.served.stranger()

    def sign_in(self, name: str, browser: httpx.Client) -> httpx.Response:
        """Sign a person in, at the provider's forms; return our answer to the page."""
        callback = walk(
            browser, f"{self.served.url}{AT_PROVIDER}", user=name, until=f"{self.served.url}{AT_PROVIDER}/callback"
        )
        returned = browser.get(callback)
        if returned.status_code != 303:
            return returned
        code = returned.headers["location"].partition("#sign-in=")[2]
        return browser.post(f"{API}/sign-in", json={"code": code})

    def is_open(self, opened: httpx.Response) -> bool:
        """Return whether a session is still valid."""
        bearer = {"Authorization": f"Bearer {opened.json()['secret']}"}
        return self.browser().get(f"{API}/session", headers=bearer).status_code == 200


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    directory = tmp_path_factory.mktemp("office")
    # The provider wants to know our address, and we its.
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    with company(directory, server=f"http://127.0.0.1:{port}") as provider:
        config = SignInConfig(
            url=provider.url, client="chargehand", secret="THE_SECRET", groups=("eng",),
            roles=("ops=operator", "boss=admin"),
        )  # fmt: skip
        providers = open_providers({"company": config}, Keys(SECRET))
        with serving(environment(directory), directory, port=port, sign_in=providers) as served:
            yield Office(served, provider)


def test_a_person_signs_in_and_keeps_the_account(office: Office) -> None:
    office.hire("alice", groups=["eng", "ops"])
    first = office.sign_in("alice", office.browser())
    assert first.status_code == 200, first.text
    session = first.json()["session"]
    assert (session["user"], session["role"]) == ("alice", "operator")
    office.hire("alice", groups=["eng"])
    second = office.sign_in("alice", office.browser()).json()["session"]
    assert (second["user"], second["role"]) == ("alice", "viewer")
    with office.served.reader() as reader:
        assert len([row for row in reader.store.accounts.list() if row.name.startswith("alice")]) == 1


def test_a_person_without_a_rule_needs_a_link(office: Office) -> None:
    office.hire("bob", email="bob@example.org", email_verified=True)
    refusal = office.sign_in("bob", office.browser())
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (401, "account_missing")
    with office.served.reader() as reader:
        create_user(reader, "robert", role="operator", by=owner(reader))
        link_subject(reader, "robert", issuer=office.provider.url, subject="bob", by=owner(reader))
    assert office.sign_in("bob", office.browser()).json()["session"]["user"] == "robert"


def test_a_callback_is_good_once_and_only_with_its_own_verifier(office: Office) -> None:
    office.hire("carol", groups=["eng"])
    browser, until = office.browser(), f"{office.served.url}{AT_PROVIDER}/callback"
    first = walk(browser, f"{office.served.url}{AT_PROVIDER}", user="carol", until=until)
    code = httpx.URL(first).params["code"]
    # Code injection: the code of one sign-in in the answer to another, which has another verifier.
    other = walk(browser, f"{office.served.url}{AT_PROVIDER}", user="carol", until=until)
    injected = browser.get(str(httpx.URL(other).copy_set_param("code", code)))
    assert (injected.status_code, injected.json()["error"]["code"]) == (401, "login_failed")
    assert browser.get(first).status_code == 401, "a later sign-in of the browser replaced it"


def test_a_logout_at_the_provider_ends_the_session_here(office: Office) -> None:
    office.hire("dave", groups=["eng"])
    browser = office.browser()
    mine, elsewhere = office.sign_in("dave", browser), office.sign_in("dave", office.browser())
    assert office.is_open(mine)
    walk(
        browser,
        f"{office.provider.url}/session/end?client_id=chargehand"
        f"&post_logout_redirect_uri={office.served.url}/login",
        user="dave",
        until=f"{office.served.url}/login",
    )
    # The provider answers the browser once it has told every client.
    assert not office.is_open(mine)
    assert office.is_open(elsewhere), "that browser is still signed in there"


def test_a_logout_here_ends_the_session_at_the_provider(office: Office) -> None:
    office.hire("erin", groups=["eng"])
    browser = office.browser()
    opened = office.sign_in("erin", browser)
    bearer = {"Authorization": f"Bearer {opened.json()['secret']}"}
    page = browser.delete(f"{API}/session", headers=bearer).json()["url"]
    back = walk(browser, page, user="erin", until=f"{office.served.url}/login")
    assert back == f"{office.served.url}/login"
    form = browser.get(f"{AT_PROVIDER}")
    while form.is_redirect:
        form = browser.get(httpx.URL(form.url).join(form.headers["location"]))
    assert 'name="login"' in form.text, "the provider asks who it is again"
