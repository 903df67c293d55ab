"""Sign-in at an external provider: the way of a browser to the provider and back, and every refusal on it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tests.server_kit import API, Served, environment, serving

from chargehand.identity.accounts import create_user, list_access, owner, remove_user, set_user_disabled
from chargehand.identity.sign_in import link_subject, unlink_subject
from chargehand.testing.sign_in import ISSUER, FakeSignInProvider

SIGN_IN = f"{API}/sign-in"


class Place:
    """A server with a provider; each client is a browser."""

    def __init__(self, served: Served, provider: FakeSignInProvider) -> None:
        self.served = served
        self.provider = provider
        self._people = 0

    def person(self, *, linked: bool = True) -> str:
        """Return the subject, and the account's name, of a new person."""
        self._people += 1
        name = f"ann-{self._people}"
        with self.served.reader() as reader:
            create_user(reader, name, role="operator", by=owner(reader))
            if linked:
                link_subject(reader, name, issuer=ISSUER, subject=name, by=owner(reader))
        return name

    def begin(self, client: httpx.Client, back: str = "/missions?status=waiting") -> str:
        """Begin a sign-in and return the provider's URL."""
        answer = client.get(SIGN_IN, params={"return": back})
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    def come_back(self, client: httpx.Client, subject: str) -> httpx.Response:
        """Begin a sign-in, sign in at the provider, and follow its redirect, as from another site."""
        return follow(client, self.provider.approve(self.begin(client), subject))

    def expire(self) -> None:
        """Let every sign-in under way expire."""
        with closing(sqlite3.connect(Path(self.served.environ["CHARGEHAND_HOME"]) / "store.db")) as raw:
            raw.execute("UPDATE pending_sign_ins SET expires = '2020-01-01T00:00:00.000000+00:00'")
            raw.commit()


def follow(client: httpx.Client, url: str) -> httpx.Response:
    return client.get(url, headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})


def code_of(answer: httpx.Response) -> str:
    assert answer.status_code == 303, answer.text
    return urlsplit(answer.headers["location"]).fragment.removeprefix("sign-in=")


def exchange(client: httpx.Client, code: str, **headers: str) -> httpx.Response:
    return client.post(SIGN_IN, json={"code": code}, headers=headers)


def refused(answer: httpx.Response, status: int = 401, code: str = "login_failed") -> bool:
    return (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory, provider = tmp_path_factory.mktemp("sign-in"), FakeSignInProvider()
    with serving(environment(directory), directory, sign_in=provider) as served:
        yield Place(served, provider)


def test_a_browser_signs_in_and_the_secret_of_its_session_is_in_no_url(place: Place) -> None:
    subject, client = place.person(), place.served.stranger()
    answer = client.get(SIGN_IN, params={"return": "/missions?status=waiting"})
    (cookie,) = answer.headers.get_list("set-cookie")
    name, *attributes = (part.strip() for part in cookie.split(";"))
    assert {*attributes} == {"HttpOnly", "Max-Age=600", "Path=/api/v1/sign-in", "SameSite=lax"}
    at_provider = answer.headers["location"]
    assert name.partition("=")[2] not in at_provider
    returned = follow(client, place.provider.approve(at_provider, subject))
    location = urlsplit(returned.headers["location"])
    assert (location.netloc, location.path) == ("", "/login")
    assert parse_qs(location.query) == {"back": ["/missions?status=waiting"]}
    opened = exchange(client, code_of(returned))
    assert opened.status_code == 200, opened.text
    secret = opened.json()["secret"]
    assert opened.json()["session"]["user"] == subject
    assert not client.cookies
    assert not [url for url in (at_provider, str(returned.url), returned.headers["location"]) if secret in url]
    session = client.get(f"{API}/session", headers={"Authorization": f"Bearer {secret}"})
    assert (session.json()["user"], session.json()["role"]) == (subject, "operator")
    with place.served.reader() as reader:
        done = [row.subject for row in list_access(reader, by=owner(reader)).entries if row.outcome == "done"]
    assert done[0] == subject


def test_a_state_is_valid_once(place: Place) -> None:
    subject, client = place.person(), place.served.stranger()
    url = place.provider.approve(place.begin(client), subject)
    assert follow(client, url).status_code == 303
    asked = place.provider.finished
    assert refused(follow(client, url))
    assert place.provider.finished == asked, "the provider is not asked about it"


def test_an_expired_state_is_refused(place: Place) -> None:
    subject, client = place.person(), place.served.stranger()
    url = place.provider.approve(place.begin(client), subject)
    place.expire()
    assert refused(follow(client, url))


def test_a_state_of_another_browser_is_refused_and_stays_valid_for_its_own(place: Place) -> None:
    subject, client, other = place.person(), place.served.stranger(), place.served.stranger()
    url = place.provider.approve(place.begin(client), subject)
    assert refused(follow(other, url))
    place.begin(other)
    assert refused(follow(other, url))
    assert follow(client, url).status_code == 303


@pytest.mark.parametrize(
    "back",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "/x\\y",
        "/x#y",
        "/\t/evil.example",
        "x",
        "",
        "/ä",
    ],
)
def test_a_return_address_outside_this_server_is_refused(place: Place, back: str) -> None:
    answer = place.served.stranger().get(SIGN_IN, params={"return": back})
    assert refused(answer, 400, "arguments_invalid")
    assert "set-cookie" not in answer.headers


def test_an_unknown_subject_is_refused_and_no_account_is_made(place: Place) -> None:
    with place.served.reader() as reader:
        before = reader.store.accounts.list()
        assert refused(place.come_back(place.served.stranger(), "stranger"))
        assert reader.store.accounts.list() == before
        line = list_access(reader, by=owner(reader)).entries[0]
    assert (line.action, line.subject, line.outcome) == ("session.open", f"stranger of {ISSUER}", "refused")
    # A name that fits an account is no proof: only a linked subject is.
    assert refused(place.come_back(place.served.stranger(), place.person(linked=False)))


@pytest.mark.parametrize("late", [False, True], ids=["at the callback", "at the exchange"])
@pytest.mark.parametrize("loss", ["removed", "disabled", "unlinked"])
def test_a_subject_without_an_account_any_more_is_refused(place: Place, loss: str, late: bool) -> None:
    subject, client = place.person(), place.served.stranger()
    code = code_of(place.come_back(client, subject)) if late else ""
    with place.served.reader() as reader:
        by = owner(reader)
        if loss == "removed":
            remove_user(reader, subject, by=by)
            create_user(reader, subject, role="admin", by=by)  # the next account of that name inherits nothing
        elif loss == "disabled":
            set_user_disabled(reader, subject, True, by=by)
        else:
            unlink_subject(reader, issuer=ISSUER, subject=subject, by=by)
    assert refused(exchange(client, code) if late else place.come_back(client, subject))


def test_an_open_session_ends_with_its_link(place: Place) -> None:
    subject, client = place.person(), place.served.stranger()
    secret = exchange(client, code_of(place.come_back(client, subject))).json()["secret"]
    bearer = {"Authorization": f"Bearer {secret}"}
    assert client.get(f"{API}/session", headers=bearer).status_code == 200
    with place.served.reader() as reader:
        unlink_subject(reader, issuer=ISSUER, subject=subject, by=owner(reader))
    assert refused(client.get(f"{API}/session", headers=bearer), 401, "login_needed")


def test_a_code_is_valid_once_and_for_its_browser_only(place: Place) -> None:
    subject, client, other = place.person(), place.served.stranger(), place.served.stranger()
    code = code_of(place.come_back(client, subject))
    place.begin(other)
    assert refused(exchange(other, code)), "nobody can be made to use the session of another person"
    assert exchange(client, code).status_code == 200
    assert refused(exchange(client, code))


def test_an_expired_code_and_a_state_open_no_session(place: Place) -> None:
    subject, client = place.person(), place.served.stranger()
    code = code_of(place.come_back(client, subject))
    place.expire()
    assert refused(exchange(client, code))
    (state,) = parse_qs(urlsplit(place.begin(client)).query)["state"]
    assert refused(exchange(client, state))


def test_pages_of_other_origins_cannot_exchange_a_code(place: Place) -> None:
    subject, client = place.person(), place.served.stranger()
    code = code_of(place.come_back(client, subject))
    assert refused(exchange(client, code, Origin="https://evil.example"), 403, "forbidden")
    assert refused(exchange(client, code, **{"Sec-Fetch-Site": "cross-site"}), 403, "forbidden")
    assert exchange(client, code, Origin=place.served.url).status_code == 200


def test_a_refusal_of_the_provider_is_an_answer(place: Place) -> None:
    client = place.served.stranger()
    (state,) = parse_qs(urlsplit(place.begin(client)).query)["state"]
    assert refused(follow(client, f"{SIGN_IN}/callback?state={state}&error=access_denied"))


def test_one_address_can_begin_only_so_many_sign_ins(tmp_path: Path) -> None:
    with serving(environment(tmp_path), tmp_path, sign_in=FakeSignInProvider()) as served:
        client = served.stranger()
        assert {client.get(SIGN_IN).status_code for _ in range(40)} == {303, 429}


def test_a_server_behind_tls_gives_the_callback_and_the_cookie_of_https(tmp_path: Path) -> None:
    provider = FakeSignInProvider()
    with serving(environment(tmp_path), tmp_path, sign_in=provider, names=("chargehand.example",)) as served:
        answer = served.stranger().get(SIGN_IN, headers={"Host": "chargehand.example"})
    (callback,) = parse_qs(urlsplit(answer.headers["location"]).query)["redirect_uri"]
    assert callback == f"https://chargehand.example{SIGN_IN}/callback"
    assert "; Secure" in answer.headers["set-cookie"]


def test_the_login_page_names_the_provider_only_if_there_is_one(place: Place, tmp_path: Path) -> None:
    with serving(environment(tmp_path), tmp_path) as served:
        client = served.stranger()
        plain = client.get("/login").text
        for method, path in (("GET", SIGN_IN), ("GET", f"{SIGN_IN}/callback"), ("POST", SIGN_IN)):
            assert refused(client.request(method, path), 404, "no_route")
    offered = place.served.stranger().get("/login").text
    meta = '<meta name="chargehand-sign-in" content="Example &amp; Co" />'
    assert meta in offered
    assert offered.replace(meta, "") == plain
