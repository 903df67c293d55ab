"""Access to the web server: hosts, origins, sessions, CSRF, roles and scopes, rates, headers."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from tests.server_kit import API, PASSWORD, Served, environment, record_missions, serving

from chargehand.core.mission_events import QuestionAsked
from chargehand.identity.accounts import (
    Caller,
    close_session,
    create_login_code,
    create_user,
    owner,
    remove_user,
    set_user_disabled,
    set_user_password,
)
from chargehand.identity.accounts import change_own_password as own_password
from chargehand.identity.tokens import list_tokens, revoke_token
from chargehand.operations.operation import Operation
from chargehand.operations.table import OPERATIONS
from chargehand.policy.access import ACCESS_RULES, ROLES, SCOPES, AccessScope, judge_access
from chargehand.reports.reading import StateReader
from chargehand.server._feed import EventFeed, FeedFilter
from chargehand.server._guard import Hosts, RequestGuard
from chargehand.server.application import ChargehandServer

MISSION = "m-00000"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("served")
    with serving(environment(place), place) as made:
        with made.reader() as reader:
            record_missions(reader, 2)
        yield made


def code(answer: httpx.Response) -> str:
    """Return the code of an error, and check that it has its three parts."""
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "hint"}
    assert error["message"]
    return str(error["code"])


def address(route: Operation) -> str:
    names = {
        "mission": MISSION,
        "artifact": "0123",
        "project": "p-0",
        "user": "nobody",
        "token": "k-0",
        "model": "none",
        "role": "none",
        "action": "x-0",
        "checkpoint": "0123",
        "network": "failure-cause",
        "lesson": "l-1",
        "name": "phone",
    }
    return API + re.sub(r"\{(\w+)\}", lambda found: names[found[1]], route.path)


def ask(client: httpx.Client, route: Operation) -> httpx.Response:
    body = None if route.method in ("GET", "DELETE") else {}
    return client.request(route.method, address(route), json=body)


# --- one policy over every route


@pytest.fixture(scope="module")
def clients(served: Served) -> dict[str, httpx.Client]:
    made = {role: served.user(f"{role}-1", role) for role in ROLES}
    made |= {scope: served.token(scope) for scope in SCOPES}
    return made


@pytest.mark.parametrize("route", OPERATIONS, ids=lambda route: route.name)
def test_every_route_enforces_the_access_policy(
    served: Served, clients: dict[str, httpx.Client], route: Operation
) -> None:
    assert route.action in ACCESS_RULES
    stranger = served.stranger()
    refused = ask(stranger, route)
    assert (refused.status_code, code(refused)) == (401, "login_needed")
    assert refused.headers["www-authenticate"].startswith("Bearer")
    held: dict[str, tuple[str, tuple[AccessScope, ...]]] = {role: (role, SCOPES) for role in ROLES}
    held |= {scope: ("admin", (scope,)) for scope in SCOPES}
    for name, client in clients.items():
        role, scopes = held[name]
        answer = ask(client, route)
        denied = answer.status_code == 403 and code(answer) == "access_denied"
        allowed = judge_access(route.action, role, scopes).allowed
        # An allowed request may still be invalid, and its use case may deny a further right.
        assert denied or allowed, (name, answer.text)
        assert (
            not denied or not allowed or route.action.startswith(("token.own", "mission.answer", "factor.own"))
        ), name
        assert answer.status_code < 500, answer.text


def test_the_feed_is_for_readers(served: Served, clients: dict[str, httpx.Client]) -> None:
    assert code(served.stranger().get(f"{API}/events")) == "login_needed"
    assert code(clients["steer"].get(f"{API}/events")) == "access_denied"


# --- foreign pages


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "evil.example:8642", "127.0.0.1:1", ""])
def test_a_foreign_host_header_is_refused(served: Served, host: str) -> None:
    client = served.stranger()
    for path in ("/", "/health", f"{API}/session", "/openapi.json"):
        answer = client.get(path, headers={"Host": host})
        assert answer.status_code in (400, 403), answer.text  # 400 if the web server itself refuses it


def test_cross_origin_requests_are_refused(served: Served) -> None:
    client = served.owner()
    port = client.base_url.port
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Origin": f"https://127.0.0.1:{port}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        answer = client.post(f"{API}/missions/{MISSION}/cancel", headers=headers)
        assert (answer.status_code, code(answer)) == (403, "forbidden"), headers
    good = {"Origin": f"http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"}
    assert client.post(f"{API}/audit/verify", json={}, headers=good).status_code == 200


def test_a_page_that_came_through_a_proxy_with_tls_may_change_things(tmp_path: Path) -> None:
    name = "chargehand.example.org"
    with serving(environment(tmp_path), tmp_path, names=(name,)) as served:
        with served.reader() as reader:
            given = {"code": create_login_code(reader).secret}
        client = served.stranger()
        through = {"Host": name, "Origin": f"https://{name}", "Sec-Fetch-Site": "same-origin"}
        plain = client.post(f"{API}/session", json=given, headers=through | {"Origin": f"http://{name}"})
        assert (plain.status_code, code(plain)) == (403, "forbidden")
        answer = client.post(f"{API}/session", json=given, headers=through)
        assert answer.status_code == 200


async def test_a_busy_stream_ends_once_its_session_counts_no_more(tmp_path: Path) -> None:
    with StateReader.open(environ=environment(tmp_path), cwd=tmp_path) as reader:
        record_missions(reader, 1)
        feed = EventFeed(reader, beat=0.0)
        asked = iter((True, False, False))

        async def is_valid() -> bool:
            return next(asked)

        async def stream() -> bytes:
            return b"".join([each async for each in feed.follow(0, FeedFilter(), is_valid=is_valid)])

        assert b"mission.created" in await stream()
        # There is a line to deliver, and no pause in which the session is checked: the line is held back all the
        # same.
        assert b"mission.created" not in await stream()


def disable(reader: StateReader, secret: str) -> None:
    set_user_disabled(reader, "vera", True, by=owner(reader))


def remove(reader: StateReader, secret: str) -> None:
    remove_user(reader, "vera", by=owner(reader))


def change_password(reader: StateReader, secret: str) -> None:
    set_user_password(reader, "vera", f"another {PASSWORD}", by=owner(reader))


def change_own_password(reader: StateReader, secret: str) -> None:
    by = Caller(user="vera", role="viewer", scopes=SCOPES, via="session")
    own_password(reader, PASSWORD, f"another {PASSWORD}", by=by)


def log_out(reader: StateReader, secret: str) -> None:
    close_session(reader, secret, by=owner(reader))


@pytest.mark.parametrize("lose", [disable, remove, change_password, change_own_password, log_out])
def test_a_silent_stream_ends_at_once_with_its_rights(
    served: Served, lose: Callable[[StateReader, str], None]
) -> None:
    with served.reader() as reader:
        if any(row.name == "vera" for row in reader.store.accounts.list()):
            remove_user(reader, "vera", by=owner(reader))
    client = served.user("vera", "viewer")
    secret = client.headers["Authorization"].removeprefix("Bearer ")
    with client.stream("GET", f"{API}/events") as stream, served.reader() as reader:
        lines = stream.iter_lines()
        assert next(lines) == ": connected"
        lose(reader, secret)
        # At its next beat the server would have sent a sign of life first.
        assert not [line for line in lines if line]


def test_a_stream_of_a_revoked_token_ends_at_once_and_others_continue(served: Served) -> None:
    revoked, other = served.token("read"), served.token("read")
    with (
        revoked.stream("GET", f"{API}/events") as stream,
        other.stream("GET", f"{API}/events") as kept,
        served.reader() as reader,
    ):
        lines, others = stream.iter_lines(), kept.iter_lines()
        assert (next(lines), next(others)) == (": connected", ": connected")
        *_, token, _ = list_tokens(reader, by=owner(reader)).tokens
        revoke_token(reader, token.id, by=owner(reader))
        assert not [line for line in lines if line]
        asked = QuestionAsked(question="q-other", text="Which?", options=("a", "b"), tree="t", reasons=())
        reader.store.log.append(MISSION, asked)
        assert next(line for line in others if line).startswith("id: ")


def test_cookies_are_neither_accepted_nor_set(served: Served) -> None:
    """A browser sends the cookies of 127.0.0.1 to every server there, and each could replay a session cookie."""
    client = served.owner()
    secret = client.headers["Authorization"].removeprefix("Bearer ")
    port = client.base_url.port
    for name in ("chargehand_session", f"chargehand_session_{port}", "chargehand.session"):
        thief = served.stranger()
        answer = thief.get(f"{API}/session", headers={"Cookie": f"{name}={secret}"})
        assert (answer.status_code, code(answer)) == (401, "login_needed")
        answer = thief.post(f"{API}/tokens", json={"name": "x", "scopes": ["read"]}, headers={"Cookie": secret})
        assert (answer.status_code, code(answer)) == (401, "login_needed")
    for path in ("/", "/login", f"{API}/session", f"{API}/missions", "/health"):
        assert "set-cookie" not in client.get(path).headers, path


def test_malformed_or_duplicate_authorization_headers_are_refused(served: Served) -> None:
    client = served.owner()
    secret = client.headers["Authorization"].removeprefix("Bearer ")
    stranger = served.stranger()
    for headers in (
        [("Authorization", f"Bearer {secret}"), ("Authorization", f"Bearer {secret}")],
        [("Authorization", secret)],
        [("Authorization", f"Basic {secret}")],
        [("Authorization", f"Bearer {secret.removeprefix('chs_')}")],
        [("Authorization", f"Bearer chg_{secret.removeprefix('chs_')}")],
        [("X-Session", secret)],
    ):
        answer = stranger.get(f"{API}/session", headers=headers)
        assert answer.status_code == 401, headers
    # An address ends up in logs and histories.
    assert stranger.get(f"{API}/session?authorization={secret}").status_code in (400, 401)


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x", ""]
)
def test_a_form_is_no_request(served: Served, kind: str) -> None:
    client = served.token("steer")
    answer = client.post(
        f"{API}/missions/{MISSION}/send", content=b'{"text": "x"}', headers={"Content-Type": kind}
    )
    assert (answer.status_code, code(answer)) == (400, "arguments_invalid")


def test_every_response_has_security_headers(served: Served) -> None:
    client = served.owner()
    for path in ("/", "/health", f"{API}/session", f"{API}/nothing", "/openapi.json", "/assets/none.js"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
    assert client.get(f"{API}/session").headers["cache-control"] == "no-store"


# --- sessions


def test_a_login_link_counts_once(served: Served) -> None:
    with served.reader() as reader:
        given = {"code": create_login_code(reader).secret}
    client = served.stranger()
    answer = client.post(f"{API}/session", json=given)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    again = served.stranger().post(f"{API}/session", json=given)
    assert (again.status_code, code(again)) == (401, "login_failed")


def test_a_login_creates_a_new_session_and_ends_the_previous_session(served: Served) -> None:
    client = served.user("fixed", "viewer")
    planted = client.headers["Authorization"]
    answer = client.post(f"{API}/session", json={"user": "fixed", "password": PASSWORD})
    assert answer.status_code == 200
    assert answer.json()["secret"] not in planted
    assert code(client.get(f"{API}/session")) == "login_needed"


def test_logging_out_ends_the_session(served: Served) -> None:
    client = served.user("leaver", "viewer")
    assert client.delete(f"{API}/session").status_code == 204
    assert code(client.get(f"{API}/session")) == "login_needed"


def test_a_disabled_account_and_a_revoked_token_count_no_more(served: Served) -> None:
    client = served.user("gone", "operator")
    with served.reader() as reader:
        assert client.get(f"{API}/missions").status_code == 200
        set_user_disabled(reader, "gone", True, by=owner(reader))
        assert code(client.get(f"{API}/missions")) == "login_needed"
        token = served.token("read")
        assert token.get(f"{API}/missions").status_code == 200
        made = reader.store.grants.tokens()[-1].id
        revoke_token(reader, made, by=owner(reader))
        assert code(token.get(f"{API}/missions")) == "token_unknown"


def test_an_account_leaves_no_server_without_an_administrator(tmp_path: Path) -> None:
    with serving(environment(tmp_path), tmp_path) as served:
        first = served.user("ada", "admin")

        def leave(client: httpx.Client, name: str) -> list[str]:
            ways: tuple[tuple[str, dict[str, object] | None], ...] = (
                ("PATCH", {"disabled": True}),
                ("PATCH", {"role": "viewer"}),
                ("PATCH", {"role": "operator", "disabled": True}),
                ("DELETE", None),
            )
            return [code(client.request(method, f"{API}/users/{name}", json=body)) for method, body in ways]

        assert leave(first, "ada") == ["last_administrator"] * 4
        token = first.post(f"{API}/tokens", json={"name": "t", "scopes": ["administer"]}).json()["secret"]
        program = served.stranger()
        program.headers["Authorization"] = f"Bearer {token}"
        assert leave(program, "ada") == ["last_administrator"] * 4
        # An administrator who cannot log in does not count.
        second = served.user("bea", "admin")
        assert first.patch(f"{API}/users/bea", json={"disabled": True}).status_code == 200
        assert leave(first, "ada") == ["last_administrator"] * 4
        assert first.patch(f"{API}/users/bea", json={"disabled": False}).status_code == 200
        second = served.user("bea", "admin")
        assert first.patch(f"{API}/users/ada", json={"role": "viewer"}).status_code == 200
        assert leave(second, "bea") == ["last_administrator"] * 4
        # A person with the state directory comes back by the link, and may do so.
        assert served.owner().patch(f"{API}/users/bea", json={"disabled": True}).status_code == 200


def test_refusals_of_an_account_push_no_failed_login_out_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chargehand.store.access_log._REFUSALS_KEPT", 5)
    with serving(environment(tmp_path), tmp_path) as served:
        assert code(served.stranger().post(f"{API}/session", json={"code": "wrong"})) == "login_failed"
        viewer = served.user("vera", "viewer")
        for _ in range(20):
            assert code(viewer.get(f"{API}/users")) == "access_denied"
        with served.reader() as reader:
            lines = [each for each in reader.store.access_log.list(limit=500) if each.outcome == "refused"]
    assert [each.action for each in lines if each.actor == ""] == ["session.open"]
    assert len([each for each in lines if each.actor == "vera"]) == 5


def test_a_wrong_password_locks_the_account_for_a_while(tmp_path: Path) -> None:
    with serving(environment(tmp_path), tmp_path) as served:
        with served.reader() as reader:
            create_user(reader, "locked", role="viewer", password=PASSWORD, by=owner(reader))
        client = served.stranger()
        answers = [
            client.post(f"{API}/session", json={"user": "locked", "password": f"wrong {n}"}) for n in range(5)
        ]
        assert {code(each) for each in answers} == {"login_failed"}
        # The right password too: a correct guess must look like the wrong ones before it.
        right = client.post(f"{API}/session", json={"user": "locked", "password": PASSWORD})
        assert code(right) == "login_failed"
        unknown = client.post(f"{API}/session", json={"user": "nobody", "password": PASSWORD})
        assert unknown.json() == right.json()


@pytest.mark.parametrize("path", ["x" * 4000, "/" + "y" * 300, "/root/none", "a/../b"])
def test_an_invalid_project_path_is_a_client_error(served: Served, path: str) -> None:
    answer = served.owner().post(f"{API}/projects", json={"path": path})
    assert (answer.status_code, code(answer)) == (422, "not_a_repository")


def test_unknown_arguments_of_a_decision_are_refused(served: Served) -> None:
    client = served.user("ines", "operator")
    for name in ("task", "tree"):
        answer = client.post(f"{API}/missions/m-00001/pause", json={name: "x"})
        assert (answer.status_code, code(answer)) == (400, "arguments_invalid"), name
    done = client.post(f"{API}/missions/m-00001/discard", json={"reason": "not wanted"}).json()
    assert done["reasons"] == [{"code": "discarded", "message": "account:ines discarded the mission: not wanted"}]


# --- limits


def test_only_a_trusted_proxy_may_name_client_addresses(tmp_path: Path) -> None:
    def guess(client: httpx.Client, *named: str) -> str:
        headers = [("X-Forwarded-For", each) for each in named]
        # One name for all: the limit of an account at an address is met first.
        return code(client.post(f"{API}/session", json={"user": "x", "password": "wrong"}, headers=headers))

    with serving(environment(tmp_path), tmp_path, proxies=("127.0.0.1",)) as served:
        client = served.stranger()
        # The client's own entries precede the proxy's, and do not count.
        answers = [guess(client, f"198.51.100.{number}", "203.0.113.7, 127.0.0.1") for number in range(12)]
        assert answers[-1] == "rate_limited"
        assert guess(client, "203.0.113.8") == "login_failed"
        assert guess(client, "no address") == "login_failed"
        assert guess(client) == "login_failed"
        # One stranger has 2^64 IPv6 addresses.
        answers = [guess(client, f"2001:db8::{number:x}") for number in range(1, 13)]
        assert answers[-1] == "rate_limited"
        assert guess(client, "2001:db8:0:1::1") == "login_failed"
    with serving(environment(tmp_path), tmp_path) as served:
        client = served.stranger()
        assert [guess(client, f"203.0.113.{number}") for number in range(12)][-1] == "rate_limited"


def test_wrong_codes_do_not_lock_out_others_or_fill_the_log(tmp_path: Path) -> None:
    with serving(environment(tmp_path), tmp_path) as served:
        client = served.stranger()
        answers = [client.post(f"{API}/session", json={"code": f"wrong {n}"}) for n in range(600)]
        assert {(each.status_code, code(each)) for each in answers} == {(401, "login_failed")}
        assert served.owner().get(f"{API}/missions").status_code == 200
        with served.reader() as reader:
            refused = [each for each in reader.store.access_log.list(limit=500) if each.outcome == "refused"]
        assert 1 <= len(refused) <= 30


def test_a_new_login_link_voids_older_links(served: Served) -> None:
    with served.reader() as reader:
        first, second = (create_login_code(reader).secret for _ in range(2))
    refused = served.stranger().post(f"{API}/session", json={"code": first})
    assert (refused.status_code, code(refused)) == (401, "login_failed")
    assert "newer one" in refused.json()["error"]["message"]
    assert served.stranger().post(f"{API}/session", json={"code": second}).status_code == 200


def test_a_locked_account_can_still_log_in_from_known_addresses(tmp_path: Path) -> None:
    def log_in(client: httpx.Client, password: str, address: str) -> str:
        given = {"user": "ann", "password": password}
        answer = client.post(f"{API}/session", json=given, headers={"X-Forwarded-For": address})
        return "" if answer.status_code == 200 else code(answer)

    with serving(environment(tmp_path), tmp_path, proxies=("127.0.0.1",)) as served:
        with served.reader() as reader:
            create_user(reader, "ann", role="viewer", password=PASSWORD, by=owner(reader))
        client = served.stranger()
        assert log_in(client, PASSWORD, "203.0.113.1") == ""
        for number in range(40):
            assert log_in(client, "wrong", "203.0.113.66") in ("login_failed", "rate_limited"), number
        assert log_in(client, PASSWORD, "203.0.113.1") == ""
        for _ in range(5):
            log_in(client, "wrong", "203.0.113.67")
        # From a new address the account is locked; an address of an earlier login has its own limit.
        assert log_in(client, PASSWORD, "203.0.113.2") == "login_failed"
        assert log_in(client, PASSWORD, "203.0.113.1") == ""
        assert [log_in(client, "wrong", "203.0.113.1") for _ in range(11)][-1] == "rate_limited"
        # And the link always works.
        assert served.owner().get(f"{API}/users").status_code == 200


@pytest.mark.parametrize("proxy", ["127.0.0.1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize(
    ("named", "known"), [("203.0.113.7", "203.0.113.7"), ("::FFFF:203.0.113.7", "203.0.113.7")]
)
async def test_client_addresses_have_a_canonical_form(proxy: str, named: str, known: str) -> None:
    """A server that listens for IPv6 sees IPv4 addresses in another form, and has to trust the same proxy."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(scope["client"][0])(scope, receive, send)

    guard = RequestGuard(answer, hosts=Hosts(own=frozenset({"here"}), trusted=frozenset({"127.0.0.1"})))
    transport = httpx.ASGITransport(app=guard, client=(proxy, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        assert (await client.get("/", headers={"X-Forwarded-For": named})).text == known
        assert (await client.get("/", headers={"X-Forwarded-For": "127.0.0.1"})).text == "127.0.0.1"
        assert (await client.get("/")).text == "127.0.0.1"


def test_password_guesses_are_rate_limited_with_retry_after(tmp_path: Path) -> None:
    with serving(environment(tmp_path), tmp_path) as served:
        client = served.stranger()
        given = {"user": "ann", "password": "wrong"}
        answers = [client.post(f"{API}/session", json=given) for _ in range(12)]
        assert [each.status_code for each in answers[:10]] == [401] * 10
        assert (answers[-1].status_code, code(answers[-1])) == (429, "rate_limited")
        hint = answers[-1].json()["error"]["hint"]
        assert hint.startswith(f"try again in {answers[-1].headers['retry-after']} s; ")
        assert 1 < int(answers[-1].headers["retry-after"]) <= 30
        assert "chargehand up --link" in hint
        # Another account at the same address has its own limit.
        assert code(client.post(f"{API}/session", json=given | {"user": "ben"})) == "login_failed"


async def test_requests_are_rate_limited() -> None:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await Response("fine")(scope, receive, send)

    moment = [0.0]
    guard = RequestGuard(answer, hosts=Hosts(own=frozenset({"here"})), now=lambda: moment[0])
    transport = httpx.ASGITransport(app=guard)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:

        async def statuses(count: int, **headers: str) -> list[int]:
            return [(await client.get(f"{API}/x", headers=headers)).status_code for _ in range(count)]

        assert await statuses(401) == [200] * 400 + [429]
        assert await statuses(1, Authorization="Bearer of another one") == [200]
        # A stranger at the same address does not keep the owner from the page, nor from the login.
        assert (await client.get("/login")).status_code == 200
        assert (await client.post(f"{API}/session")).status_code == 200
        moment[0] = 0.5
        assert await statuses(51) == [200] * 50 + [429]


def test_a_body_that_is_too_large_or_no_object_is_refused(served: Served) -> None:
    client = served.token("steer")
    url = f"{API}/missions/{MISSION}/send"
    for content in (
        b"{" + b" " * (1 << 20) + b"}",
        b"[]",
        b"{",
        b"\xff",
        b'{"text": "\xff"}',
        b'{"\xff": 1}',
        b'{"text": "\xed\xa0\x80"}',
        '{"text": "x"}'.encode("utf-16"),
        b'{"text": ' + b"[" * 100_000,
        b'{"text": "\\ud800"}',
        b'{"text": "a\\u0000"}',
    ):
        answer = client.post(url, content=content, headers={"Content-Type": "application/json"})
        assert (answer.status_code, code(answer)) == (400, "arguments_invalid"), content[:20]


@pytest.mark.parametrize(
    "route", [each for each in OPERATIONS if each.method != "GET"], ids=lambda route: route.name
)
def test_text_that_is_not_utf_8_is_refused_by_every_route(served: Served, route: Operation) -> None:
    client = served.token(*SCOPES)
    headers = {"Content-Type": "application/json"}
    for content in (b'{"text": "\xff"}', b'{"\xc3(": 1}', b'{"text": ["\xf0\x28\x8c\x28"]}'):
        answer = client.request(route.method, address(route), content=content, headers=headers)
        assert (answer.status_code, code(answer)) == (400, "arguments_invalid"), answer.text
    assert str(served.cwd) not in answer.text


def test_a_login_that_is_not_utf_8_is_refused_without_a_logged_error(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = served.stranger()
    for content in (b'{"code": "\xff"}', b'{"user": "\xfe", "password": "x"}', b'{"\xff": ""}'):
        answer = stranger.post(f"{API}/session", content=content, headers={"Content-Type": "application/json"})
        assert (answer.status_code, code(answer)) == (400, "arguments_invalid")
    assert "request failed" not in caplog.text


async def test_a_fault_of_ours_names_no_path_and_pushes_no_other_traceback_out(tmp_path: Path) -> None:
    kept: list[Exception] = []

    def keep(error: Exception) -> str:
        kept.append(error)
        return str(tmp_path / "errors" / "error-1.txt")

    server = ChargehandServer(
        environ=environment(tmp_path), cwd=tmp_path, hosts=Hosts(own=frozenset({"here"})), keep_traceback=keep
    )

    async def fail(kind: type[Exception]) -> Response:
        raise kind(str(tmp_path))

    for _ in range(300):
        answer = await server.answer_safely(lambda: fail(ValueError))
        assert answer.status_code == 500
        assert str(tmp_path).encode() not in answer.body
    assert len(kept) == 3
    # A different fault is still kept.
    await server.answer_safely(lambda: fail(KeyError))
    assert len(kept) == 4


def test_a_body_that_breaks_off_or_never_ends_is_no_fault_of_ours(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stranger who does so often holds no connection for long, and leaves nothing behind."""
    monkeypatch.setattr("chargehand.server.application._LOGIN_BODY_SECONDS", 0.2)
    port = served.stranger().base_url.port
    head = f"POST {API}/session HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    for how, sent in (("Content-Length: 100", b"{"), ("Transfer-Encoding: chunked", b"none\r\n")):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(f"{head}{how}\r\n\r\n".encode() + sent)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            assert (answer.status, json.loads(answer.read())["error"]["code"]) == (400, "arguments_invalid")
    assert "request failed" not in caplog.text


@pytest.mark.parametrize(
    "more", ["?limit=0", "?limit=x", "?limit=501", "?nothing=1", "?limit=1&limit=2", "?status=odd"]
)
def test_a_wrong_argument_is_named(served: Served, more: str) -> None:
    client = served.token("read")
    answer = client.get(f"{API}/missions{more}")
    assert (answer.status_code, code(answer)) == (400, "arguments_invalid")
