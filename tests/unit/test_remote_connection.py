"""Every failure to reach a server is one error with a way out; a repeated request takes effect once."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from tests.server_kit import API, Served, environment, record_missions, serving

from chargehand import __version__
from chargehand.cli.main import chargehand
from chargehand.cli.remote.connection import FeedSignal, ServerConnection, check_url
from chargehand.core.clock import SteppedClock
from chargehand.core.errors import ChargehandError, InfrastructureError, NotFoundError, RefusedError, UsageError
from chargehand.identity.accounts import owner
from chargehand.identity.tokens import create_token
from chargehand.operations.commands import known_operations
from chargehand.store.idempotency import IdempotencyKeys
from chargehand.store.store import open_store

SHOW, PAUSE, LIST = (
    known_operations()[name] for name in ("get_missions_mission", "post_missions_mission_pause", "get_missions")
)
VERSION = {"Chargehand-Version": __version__, "Content-Type": "application/json"}


class Stub(BaseHTTPRequestHandler):
    """Gives configured replies in turn; `None` breaks the connection."""

    replies: list[tuple[int, dict[str, str], bytes] | None]
    seen: list[tuple[str, dict[str, str]]]

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.seen.append((self.path, dict(self.headers.items())))
        reply = self.replies.pop(0)
        if reply is None:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.send_response(reply[0])
        for name, value in {**reply[1], "Content-Length": str(len(reply[2]))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply[2])

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def stub(*replies: tuple[int, dict[str, str], bytes] | None) -> Iterator[tuple[str, type[Stub]]]:
    handler = type("Handler", (Stub,), {"replies": list(replies), "seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", handler
        finally:
            server.shutdown()
            thread.join()


def connection(url: str, token: str = "chg_none") -> ServerConnection:
    return ServerConnection(url, token, retries=(0.0, 0.0), sleep=lambda seconds: None)


def failure(url: str, *, ask: Callable[[ServerConnection], object] | None = None) -> ChargehandError:
    with connection(url) as made, pytest.raises(ChargehandError) as caught:
        (ask or (lambda it: it.call(SHOW, {"mission": "m-1"})))(made)
    assert caught.value.message
    assert caught.value.hint
    assert "chg_none" not in f"{caught.value.message} {caught.value.hint}"
    return caught.value


# --- addresses


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("http://127.0.0.1:8642", "http://127.0.0.1:8642"),
        ("http://localhost:8642/", "http://localhost:8642"),
        (" https://Example.org ", "https://example.org"),
        ("http://[::1]:1", "http://[::1]:1"),
    ],
)
def test_a_server_url_is_normalized(given: str, kept: str) -> None:
    assert check_url(given) == kept


@pytest.mark.parametrize(
    "given",
    ["", "example.org", "ftp://example.org", "https://", "https://u:p@example.org", "https://example.org/x",
     "https://example.org?x=1", "https://example.org:x", "https://[::1"],
)  # fmt: skip
def test_an_invalid_server_url_is_rejected(given: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_url(given)
    assert caught.value.code == "server_url_invalid"


def test_a_token_travels_in_the_clear_only_by_consent() -> None:
    with pytest.raises(UsageError) as caught:
        check_url("http://example.org:8642")
    assert caught.value.code == "server_unencrypted"
    assert "ssh -L" in caught.value.hint
    assert check_url("http://example.org:8642", insecure=True) == "http://example.org:8642"


# --- ways to fail


def test_a_refused_connection_is_a_server_unreachable_error() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        error = failure(f"http://127.0.0.1:{held.getsockname()[1]}")
    assert (error.code, error.exit_code) == ("server_unreachable", 6)


def test_a_host_that_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure("http://chargehand.invalid:1").code == "server_unreachable"


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ((502, {"Content-Type": "text/html"}, b"<html>bad gateway"), "server_unknown"),
        ((200, {"Content-Type": "text/html"}, b"<html>log in"), "server_unknown"),
        ((200, {}, b""), "server_unknown"),
        ((200, VERSION, b'{"missions": ['), "server_lost"),
        ((200, {"Content-Type": "application/json"}, b'{"ok": true}'), "server_unknown"),
        (
            (400, {"Content-Type": "application/json"}, b'{"error": {"code": "usage", "message": "of others"}}'),
            "server_unknown",
        ),
        ((500, {"Content-Type": "application/json"}, b'{"detail": "no"}'), "server_unknown"),
        ((500, {"Content-Type": "application/json"}, b'{"error": "no"}'), "server_unknown"),
        ((302, {"Location": "https://example.org/"}, b""), "server_redirects"),
        ((401, VERSION, b'{"error": {"code": "token_expired", "message": "m", "hint": ""}}'), "token_expired"),
        ((404, VERSION, b'{"error": {"code": "no_route", "message": "m", "hint": ""}}'), "server_version"),
        (
            (400, VERSION | {"Chargehand-Version": "0.0.1"},
             b'{"error": {"code": "arguments_invalid", "message": "m", "hint": ""}}'),
            "server_version",
        ),
    ],
)  # fmt: skip
def test_error_codes_of_unexpected_server_responses(reply: tuple[int, dict[str, str], bytes], code: str) -> None:
    with stub(reply) as (url, seen):
        error = failure(url)
    assert error.code == code
    assert "\x1b" not in error.message
    assert len(seen.seen) == 1  # the token was sent nowhere else


@pytest.mark.parametrize("content", [b"[]", b'"x"', b'{"name": "ann"}'])
def test_an_invalid_session_response_of_another_version_is_a_version_error(content: bytes) -> None:
    with stub((200, VERSION | {"Chargehand-Version": "9.9"}, content)) as (url, _):
        error = failure(url, ask=lambda it: it.show_session())
    assert error.code == "server_version"
    assert "9.9" in error.message


def test_a_feed_keeps_unicode_line_separators_and_rejects_non_feed_responses() -> None:
    events = 'id: 7\nevent: message\ndata: {"text": "a\u2028b\x85c"}\n\n'
    page = (200, {"Content-Type": "text/html"}, b"<html>log in")
    feed = (200, VERSION | {"Content-Type": "text/event-stream; charset=utf-8"}, events.encode())
    with stub(feed, page, page, page) as (url, _):

        def follow(it: ServerConnection) -> None:
            for signal in it.follow("m-1"):
                found.append(signal)

        found: list[FeedSignal] = []
        assert failure(url, ask=follow).code == "server_unknown"
    assert [signal.data.get("text") for signal in found if signal.name] == ["a\u2028b\x85c"]


@pytest.mark.parametrize("command", ["audit verify", "mission watch m-1"])
def test_an_unexpected_response_of_another_version_is_a_version_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setenv("CHARGEHAND_HOME", str(tmp_path))
    monkeypatch.setenv("CHARGEHAND_TOKEN", "chg_none")
    with (
        stub((200, VERSION | {"Chargehand-Version": "9.9"}, b'{"missions": 1}')) as (url, _),
        pytest.raises(SystemExit) as caught,
    ):
        chargehand.main(["--json", "--server", url, *command.split()])
    assert caught.value.code == 2
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "server_version"


def test_a_report_is_taken_from_a_server_of_ours_alone() -> None:
    report = known_operations()["get_missions_mission_report"]
    for headers, is_ours in (
        ({"Content-Type": "text/html"}, False),
        (VERSION | {"Content-Type": "text/markdown"}, True),
    ):
        with stub((200, headers, b"# report")) as (url, _), connection(url) as made:
            if is_ours:
                assert made.call(report, {"mission": "m-1"}).content == b"# report"
            else:
                with pytest.raises(InfrastructureError):
                    made.call(report, {"mission": "m-1"})


@pytest.mark.parametrize("exit_code", [1, 2, 3, 4, 5, 6])
def test_an_error_response_keeps_the_exit_code_of_the_server(exit_code: int) -> None:
    content = b'{"error": {"code": "c", "message": "m", "hint": "h"}}'
    with stub((409, VERSION | {"Chargehand-Exit-Code": str(exit_code)}, content)) as (url, _):
        error = failure(url)
    assert (error.exit_code, error.code, error.message, error.hint) == (exit_code, "c", "m", "h")


def test_an_untrusted_certificate_is_an_error_with_a_hint(tmp_path: Path) -> None:
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
    certificate = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "both.pem").write_bytes(certificate + private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "both.pem")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            accepted, _ = listening.accept()
            with accepted, pytest.raises(ssl.SSLError):
                context.wrap_socket(accepted, server_side=True)

        thread = threading.Thread(target=accept)
        thread.start()
        error = failure(f"https://localhost:{listening.getsockname()[1]}")
        thread.join()
    assert error.code == "server_certificate"
    assert "SSL_CERT_FILE" in error.hint


# --- the real one


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("served")
    with serving(environment(place), place) as made:
        with made.reader() as reader:
            record_missions(reader, 3)
        yield made


def token(served: Served, *scopes: str, days: int = 1) -> str:
    with served.reader() as reader:
        return create_token(reader, "t", scopes=scopes, days=days, by=owner(reader)).secret


def test_a_token_that_is_wrong_or_may_less(served: Served) -> None:
    error = failure(served.url)
    assert (error.code, error.exit_code, type(error)) == ("token_unknown", 1, RefusedError)
    assert f"chargehand login {served.url}" in error.hint
    with connection(served.url, token(served, "steer")) as made, pytest.raises(RefusedError) as caught:
        made.call(LIST, {})
    assert caught.value.code == "access_denied"
    with connection(served.url, token(served, "read")) as made:
        assert made.show_session()["role"] == "admin"
        assert len(made.call(LIST, {"limit": "2"}).document["missions"]) == 2
        with pytest.raises(NotFoundError):
            made.call(SHOW, {"mission": "m-none"})
        with pytest.raises(UsageError) as wrong:
            made.call(LIST, {"limit": "many"})
        assert wrong.value.code == "arguments_invalid"


def test_a_token_whose_time_is_over_says_so(served: Served) -> None:
    secret = token(served, "read")
    with served.reader() as reader, reader.store.database.write() as database:
        database.execute("UPDATE api_tokens SET expires = '2020-01-01T00:00:00.000000+00:00'")
    with connection(served.url, secret) as made, pytest.raises(RefusedError) as caught:
        made.call(LIST, {})
    assert caught.value.code == "token_expired"


def test_a_change_whose_answer_is_lost_is_sent_again_by_the_same_key() -> None:
    done = (200, VERSION, b'{"mission": "m-1"}')
    accepted = (202, VERSION, b'{"accepted": true}')
    with stub(None, None, accepted, done) as (url, handler), connection(url) as made:
        assert made.call(PAUSE, {"mission": "m-1"}).document == {"mission": "m-1"}
        keys = {headers["Idempotency-Key"] for _, headers in handler.seen}
        assert (len(handler.seen), len(keys)) == (4, 1)
    with stub(None, None, None) as (url, _):
        error = failure(url, ask=lambda it: it.call(PAUSE, {"mission": "m-1"}))
    assert error.code == "server_lost"


def test_a_request_with_a_key_is_done_once(tmp_path: Path) -> None:
    def send(client: httpx.Client, key: str, text: str) -> httpx.Response:
        headers = {"Idempotency-Key": key}
        return client.post(f"{API}/missions/m-00000/send", json={"text": text}, headers=headers)

    environ = environment(tmp_path)
    with serving(environ, tmp_path) as made:
        with made.reader() as reader:
            record_missions(reader, 1)
        client = made.token("steer")
        with ThreadPoolExecutor(8) as pool:  # at once, and once more
            first = [each.json() for each in pool.map(lambda _: send(client, "k", "once"), range(8))]
        first.append(send(client, "k", "once").json())
        assert all(each == first[0] for each in first)
        assert first[0]["messages"] == 1
        other = send(client, "k", "another")
        assert (other.status_code, other.json()["error"]["code"]) == (409, "key_reused")
        assert send(client, "k2", "twice").json()["messages"] == 2
        assert send(made.user("ada", "operator"), "k", "of another").json()["messages"] == 3
    with serving(environ, tmp_path) as made:
        again = send(made.token("steer"), "k", "once")
        assert (again.status_code, again.json()) == (200, first[0])
        other = send(made.token("steer"), "k", "another")
        assert (other.status_code, other.json()["error"]["code"]) == (409, "key_reused")
        with made.reader() as reader:
            assert len(reader.mission_state("m-00000").messages) == 3
            with reader.store.database.write() as database:  # after a day a key is free again
                database.execute("UPDATE keyed_requests SET begun = '2020-01-01T00:00:00+00:00'")
    with serving(environ, tmp_path) as made:
        assert send(made.token("steer"), "k", "once").json()["messages"] == 4


def test_a_request_that_a_restart_broke_off_is_not_done_again(tmp_path: Path) -> None:
    def send(client: httpx.Client, key: str, path: str, **body: object) -> tuple[int, str]:
        answer = client.post(f"{API}/{path}", json=body, headers={"Idempotency-Key": key})
        return answer.status_code, answer.text

    def refused(client: httpx.Client, key: str, path: str, **body: object) -> tuple[int, str]:
        status, text = send(client, key, path, **body)
        error = json.loads(text)["error"]
        assert error["hint"]
        return status, error["code"]

    environ = environment(tmp_path)
    with serving(environ, tmp_path) as made:
        with made.reader() as reader:
            record_missions(reader, 1)
        client = made.owner()
        told = ("missions/m-00000/send", {"text": "once"})
        new = {"name": "t", "scopes": ["read"], "days": 1}
        assert send(client, "done", told[0], **told[1])[0] == 200
        refusal = send(client, "no", "missions/m-none/pause")
        assert refusal[0] == 404
        status, secret = send(client, "token", "tokens", **new)
        assert status == 201
        assert send(client, "token", "tokens", **new) == (201, secret)  # this server still has it in memory
        with made.reader() as reader, reader.store.database.read() as database:
            kept = database.execute("SELECT answer FROM keyed_requests ORDER BY status").fetchall()
        assert [row[0] is None for row in kept] == [False, True, False]
        with made.reader() as reader, reader.store.database.write() as database:
            # The state after a kill between the work and its answer.
            database.execute("UPDATE keyed_requests SET status = 0, answer = NULL WHERE status = 200")
    with serving(environ, tmp_path) as made:
        client = made.owner()
        assert refused(client, "done", told[0], **told[1]) == (409, "key_unfinished")
        assert refused(client, "token", "tokens", **new) == (409, "key_used")
        assert send(client, "no", "missions/m-none/pause") == refusal
        with made.reader() as reader:
            assert len(reader.mission_state("m-00000").messages) == 1
            assert len(reader.store.grants.tokens()) == 1


def test_keys_and_answers_are_bounded_by_number_and_an_erasure_takes_answers(tmp_path: Path) -> None:
    clock = SteppedClock()
    with open_store(tmp_path, clock=clock) as store:
        with store.database.write() as database:
            database.executemany(
                "INSERT INTO keyed_requests VALUES (?, 'ada', 'a', ?, 200, '', x'00')",
                [(f"k{number}", clock.advance(0.1) or clock.now().isoformat()) for number in range(10_050)],
            )
            database.execute(
                "INSERT INTO keyed_requests VALUES ('o', 'bob', 'a', ?, 200, '', x'00')",
                (clock.now().isoformat(),),
            )
        keys = IdempotencyKeys(store.database, clock=clock)
        assert keys.begin("new", user="ada", asked="a") is None
        keys.finish("new", status=200, exit_code="", answer=b"x" * 70_000)

        def count(where: str) -> int:
            with store.database.read() as database:
                return int(database.execute(f"SELECT count(*) FROM keyed_requests WHERE {where}").fetchone()[0])

        assert (count("user = 'ada'"), count("user = 'ada' AND answer IS NOT NULL")) == (10_001, 500)
        assert keys.begin("k0", user="ada", asked="a") is None  # it was removed
        known = keys.begin("new", user="ada", asked="a")
        assert known is not None
        assert (known.status, known.answer) == (200, None)
        keys.drop_answers()
        assert count("answer IS NOT NULL") == 0
        clock.advance(90_000)
        assert IdempotencyKeys(store.database, clock=clock).begin("new", user="ada", asked="b") is None
        assert count("1 = 1") == 1
