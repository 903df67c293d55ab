"""Sign-in at an external provider: the way of a browser to the provider and back, and every refusal on it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tests.server_kit import API, PASSWORD, Served, environment, serving

from chargehand.core.ports import ExternalSubject
from chargehand.identity.accounts import create_user, list_access, owner, remove_user, set_user_disabled
from chargehand.identity.providers import AccountRules, ConfiguredProvider
from chargehand.identity.sign_in import link_subject, unlink_subject
from chargehand.testing.sign_in import ISSUER, FakeSignInProvider

SIGN_IN = f"{API}/sign-in"
AT_PROVIDER = f"{SIGN_IN}/example"


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
        answer = client.get(AT_PROVIDER, params={"return": back})
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


def offer(provider: FakeSignInProvider, rules: AccountRules | None = None) -> tuple[ConfiguredProvider, ...]:
    rules = rules or AccountRules()
    return (ConfiguredProvider(name="example", provider=provider, rules=rules),)


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
    with serving(environment(directory), directory, sign_in=offer(provider)) as served:
        yield Place(served, provider)


def test_a_browser_signs_in_and_the_secret_of_its_session_is_in_no_url(place: Place) -> None:
    subject, client = place.person(), place.served.stranger()
    answer = client.get(AT_PROVIDER, params={"return": "/missions?status=waiting"})
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
    answer = place.served.stranger().get(AT_PROVIDER, params={"return": back})
    assert refused(answer, 400, "arguments_invalid")
    assert "set-cookie" not in answer.headers


def test_an_unknown_subject_is_refused_and_no_account_is_made(place: Place) -> None:
    with place.served.reader() as reader:
        before = reader.store.accounts.list()
        assert refused(place.come_back(place.served.stranger(), "stranger"), code="account_missing")
        assert reader.store.accounts.list() == before
        line = list_access(reader, by=owner(reader)).entries[0]
    assert (line.action, line.subject, line.outcome) == ("session.open", f"stranger of {ISSUER}", "refused")
    # A name that fits an account is no proof: only a linked subject is.
    unlinked = place.come_back(place.served.stranger(), place.person(linked=False))
    assert refused(unlinked, code="account_missing")


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
    if late:
        assert refused(exchange(client, code))
    else:
        assert refused(place.come_back(client, subject), code="account_missing")


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
    assert refused(follow(client, f"{AT_PROVIDER}/callback?state={state}&error=access_denied"))


def test_one_address_can_begin_only_so_many_sign_ins(tmp_path: Path) -> None:
    with serving(environment(tmp_path), tmp_path, sign_in=offer(FakeSignInProvider())) as served:
        client = served.stranger()
        assert {client.get(AT_PROVIDER).status_code for _ in range(40)} == {303, 429}


def test_a_server_behind_tls_gives_the_callback_and_the_cookie_of_https(tmp_path: Path) -> None:
    provider = FakeSignInProvider()
    with serving(
        environment(tmp_path), tmp_path, sign_in=offer(provider), names=("chargehand.example",)
    ) as served:
        answer = served.stranger().get(AT_PROVIDER, headers={"Host": "chargehand.example"})
    (callback,) = parse_qs(urlsplit(answer.headers["location"]).query)["redirect_uri"]
    assert callback == f"https://chargehand.example{AT_PROVIDER}/callback"
    assert "; Secure" in answer.headers["set-cookie"]


def test_the_login_page_names_the_provider_only_if_there_is_one(place: Place, tmp_path: Path) -> None:
    with serving(environment(tmp_path), tmp_path) as served:
        client = served.stranger()
        plain = client.get("/login").text
        for method, path in (("GET", AT_PROVIDER), ("GET", f"{AT_PROVIDER}/callback"), ("POST", SIGN_IN)):
            assert refused(client.request(method, path), 404, "no_route")
    offered = place.served.stranger().get("/login").text
    meta = '<meta name="chargehand-sign-in" content="Example &amp; Co" data-provider="example" />'
    assert meta in offered
    assert offered.replace(meta, "") == plain


def test_a_browser_is_shown_the_code_of_a_refusal_and_no_text_of_an_address(place: Place) -> None:
    client = place.served.stranger()
    url = place.provider.approve(place.begin(client), "stranger")
    answer = client.get(url, headers={"Accept": "text/html,*/*"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login#refused=account_missing")


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server with two providers, of which the second admits by rules."""
    directory, provider = tmp_path_factory.mktemp("ruled"), FakeSignInProvider()
    rules = AccountRules(
        domains=frozenset({"example.org"}), groups=frozenset({"eng"}), roles={"ops": "operator", "boss": "admin"}
    )
    other = ConfiguredProvider(name="other", provider=FakeSignInProvider("https://other.example"))
    with serving(environment(directory), directory, sign_in=(*offer(provider, rules), other)) as served:
        yield Place(served, provider)


def known(place: Place, subject: str, **claims: Any) -> str:
    """Let the provider tell this of a subject."""
    place.provider.people[subject] = ExternalSubject(issuer=ISSUER, subject=subject, **claims)
    return subject


def enter(place: Place, subject: str) -> dict[str, Any]:
    """Sign a subject in and return the session's document."""
    client = place.served.stranger()
    opened = exchange(client, code_of(place.come_back(client, subject)))
    assert opened.status_code == 200, opened.text
    document: dict[str, Any] = opened.json()
    return document


@pytest.mark.parametrize(
    ("claims", "role"),
    [
        ({"mail": "a@example.org"}, "viewer"),
        ({"mail": "a@EXAMPLE.org"}, "viewer"),
        ({"groups": ("eng",)}, "viewer"),
        ({"groups": ("eng", "ops")}, "operator"),
        ({"groups": (*(f"g{n}" for n in range(5_000)), "eng", "boss", "ops")}, "admin"),
        ({"mail": "a@example.org.evil.example"}, None),
        ({"mail": "example.org"}, "viewer"),
        ({"mail": "a@example.org@evil.example"}, None),
        ({"mail": "a@exampl\u0435.org"}, None),  # with a Cyrillic letter
        ({"groups": ("Eng", "ops", "boss")}, None),
        ({}, None),
    ],
)
def test_rules_admit_people_and_give_roles(ruled: Place, claims: dict[str, Any], role: str | None) -> None:
    subject = known(ruled, f"rule-{claims!r:.200}-{role}"[:200], login="rule", **claims)
    if role is None:
        refusal = ruled.come_back(ruled.served.stranger(), subject)
        assert refused(refusal, code="account_missing")
        return
    first = enter(ruled, subject)["session"]
    assert first["role"] == role
    assert enter(ruled, subject)["session"]["user"] == first["user"]


def test_roles_follow_the_groups_and_the_account_of_a_rule_ends_with_it(ruled: Place) -> None:
    subject = known(ruled, "mover", login="mover", groups=("eng", "ops"))
    assert enter(ruled, subject)["session"]["role"] == "operator"
    known(ruled, "mover", login="mover", groups=("eng",))
    assert enter(ruled, subject)["session"]["role"] == "viewer"
    known(ruled, "mover", login="mover")
    assert refused(ruled.come_back(ruled.served.stranger(), subject), code="account_missing")


def test_one_name_of_two_people_makes_two_accounts(ruled: Place) -> None:
    names = [
        enter(ruled, known(ruled, subject, login=login, mail="x@example.org"))["session"]["user"]
        for subject, login in (
            ("1", "Zo\u00eb"),
            ("2", "zoe\u0308"),
            ("3", "ZOE"),
            ("4", "../../\u6f22"),
            ("5", "os:root"),
        )
    ]
    assert names == ["zoe", "zoe-2", "zoe-3", "x", "os-root"]


def test_an_answer_of_one_provider_ends_no_sign_in_at_another(ruled: Place) -> None:
    subject, client = known(ruled, "mixed", groups=("eng",)), ruled.served.stranger()
    url = ruled.provider.approve(ruled.begin(client), subject)
    assert refused(follow(client, url.replace("/example/", "/other/")))
    assert follow(client, url).status_code == 303


def test_a_logout_here_leads_to_the_page_of_the_provider(ruled: Place) -> None:
    secret = enter(ruled, known(ruled, "leaver", groups=("eng",)))["secret"]
    bearer = {"Authorization": f"Bearer {secret}"}
    answer = ruled.served.stranger().delete(f"{API}/session", headers=bearer)
    after = f"{ruled.served.url}/login"
    assert answer.json() == {"url": ruled.provider.end_session(after)}
    assert ruled.served.user("local", "viewer").delete(f"{API}/session").status_code == 204


def test_a_logout_at_the_provider_ends_the_sessions_it_names_and_no_other(ruled: Place) -> None:
    client = ruled.served.stranger()

    def is_open(secret: str) -> bool:
        return client.get(f"{API}/session", headers={"Authorization": f"Bearer {secret}"}).status_code == 200

    def log_out(token: str) -> int:
        return client.post(f"{AT_PROVIDER}/logout", data={"logout_token": token}).status_code

    known(ruled, "a", groups=("eng",), session="s1")
    first = enter(ruled, "a")["secret"]
    known(ruled, "a", groups=("eng",), session="s2")
    second, other = enter(ruled, "a")["secret"], enter(ruled, known(ruled, "b", groups=("eng",)))["secret"]
    assert log_out("nonsense") == 401
    many = client.post(f"{AT_PROVIDER}/logout", data={f"f{n}": "x" for n in range(50)})
    assert (many.status_code, many.json()["error"]["code"]) == (400, "arguments_invalid")
    assert log_out("/s1") == 200
    assert [is_open(each) for each in (first, second, other)] == [False, True, True]
    assert log_out("a/") == 200
    assert [is_open(each) for each in (second, other)] == [False, True]


def test_passwords_can_be_switched_off(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    file = tmp_path / ".config" / "chargehand" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("[server]\npasswords = false\n")
    with serving(environ, tmp_path, sign_in=offer(FakeSignInProvider())) as served:
        with served.reader() as reader:
            create_user(reader, "ann", role="viewer", password=PASSWORD, by=owner(reader))
        client = served.stranger()
        given = {"user": "ann", "password": PASSWORD}
        assert refused(client.post(f"{API}/session", json=given))
        assert '<meta name="chargehand-no-passwords"' in client.get("/login").text
        assert served.owner().get(f"{API}/session").status_code == 200
