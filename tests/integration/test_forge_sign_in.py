"""Accounts at forges sign in by the device flow, as a GitHub App, or with a token, and stay signed in."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from tests.forge_stand_in import Answer, Asked, StandIn

from chargehand.app.composition import App
from chargehand.app.forge.accounts import ForgeAccounts
from chargehand.app.forge.sign_in import SignIns
from chargehand.app.forge_accounts import log_out
from chargehand.app.forge_accounts import test_forge as try_account
from chargehand.app.knowledge import add_lesson
from chargehand.core.config import Config
from chargehand.core.errors import UsageError
from chargehand.forges.contract import ForgeError
from chargehand.forges.grants import read_grant
from chargehand.forges.oauth import DeviceCode
from chargehand.identity.accounts import owner
from chargehand.reports.known_secrets import KnownSecrets
from chargehand.testing.forges.suite import fails

CLIENT = "client-1"
REDACTED = re.compile(r"\[redacted:[\w.-]+\]")


class OauthHost:
    """A stand-in of a forge's OAuth server: refresh tokens are accepted once, as GitHub and GitLab do.

    `polls` are the errors that answer before the code is granted.
    """

    def __init__(self, *, kind: str = "gitlab") -> None:
        self.kind = kind
        self.interval = 5.0
        self.polls: list[str] = []
        self.lost = 0  # answers to a refresh that are not sent
        self.refreshed = 0
        self.access, self.refresh = "access-0", "refresh-0"
        self._lock = threading.Lock()
        self.server = StandIn(self.answer)

    def answer(self, asked: Asked) -> Answer:
        if asked.method == "GET":
            if asked.token != self.access:
                return Answer(401, {"error": "invalid_token", "error_description": "Token was revoked."})
            return Answer(200, {"username": "robot", "login": "robot", "scopes": ["api"]})
        form = {name: values[0] for name, values in parse_qs(asked.content.decode()).items()}
        assert form["client_id"] == CLIENT
        assert asked.headers["accept"] == "application/json"
        if asked.path in ("/oauth/authorize_device", "/login/device/code"):
            page = {"verification_uri": "https://forge.test/device", "user_code": "ABCD-1234"}
            return Answer(200, {"device_code": "dev-1", "expires_in": 60, "interval": self.interval, **page})
        assert asked.path in ("/oauth/token", "/login/oauth/access_token")
        with self._lock:
            return self._token(form)

    def _token(self, form: dict[str, str]) -> Answer:
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] != self.refresh:
                return self._error("invalid_grant")
            if self.lost:
                self.lost -= 1
                return Answer(-1)
            self.refreshed += 1
            self.access, self.refresh = f"access-{self.refreshed}", f"refresh-{self.refreshed}"
        else:
            assert form["device_code"] == "dev-1"
            if self.polls:
                return self._error(self.polls.pop(0))
        return Answer(200, {"access_token": self.access, "refresh_token": self.refresh, "expires_in": 7_200})

    def _error(self, name: str) -> Answer:
        # GitHub answers with 200 also for an error; GitLab, as RFC 6749 asks, with 400.
        return Answer(200 if self.kind == "github" else 400, {"error": name, "error_description": f"it is {name}"})


class Person:
    """A person with an account `lab`; time passes only by `slept`."""

    def __init__(self, place: Path, host: OauthHost, **settings: str) -> None:
        self.place, self.host = place, host
        self.time, self.slept = 1_000_000.0, list[float]()
        own = {"kind": f'"{host.kind}"', "url": f'"{host.server.url}"', "api": f'"{host.server.url}"', **settings}
        file = place / ".config" / "chargehand" / "config.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("[forges.lab]\n" + "".join(f"{key} = {value}\n" for key, value in own.items()))

    @contextlib.contextmanager
    def app(self, **environ: str) -> Iterator[App]:
        """Open the person's state."""
        home = {"HOME": str(self.place), "CHARGEHAND_HOME": str(self.place / "state"), **environ}
        app = App(environ=home, cwd=self.place, starts_workers=False)
        try:
            yield app
        finally:
            app.close()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def sign_ins(self, app: App) -> SignIns:
        return SignIns(app, now=lambda: self.time, sleep=self.sleep)

    def sign_in(self, app: App) -> list[DeviceCode]:
        """Sign in with a code, and return the codes that were shown."""
        shown = list[DeviceCode]()
        entry = ForgeAccounts(app).entry("lab")
        app.credentials.set("LAB_TOKEN", self.sign_ins(app).sign_in(entry, CLIENT, shown.append))
        return shown

    def token(self, app: App) -> str:
        return self.sign_ins(app).token(ForgeAccounts(app).entry("lab")).value


@pytest.fixture(params=["gitlab", "github"])
def host(request: pytest.FixtureRequest) -> Iterator[OauthHost]:
    made = OauthHost(kind=request.param)
    yield made
    made.server.close()


@pytest.fixture
def person(tmp_path: Path, host: OauthHost) -> Person:
    return Person(tmp_path, host)


def test_a_code_that_a_person_types_signs_in(person: Person, host: OauthHost) -> None:
    host.polls = ["authorization_pending", "slow_down", "authorization_pending"]
    # Without an answer, the forge is asked less often.
    host.server.fail(Answer(502), when=lambda asked: b"device_code" in asked.content)
    with person.app() as app:
        (code,) = person.sign_in(app)
        assert (code.user_code, code.page) == ("ABCD-1234", "https://forge.test/device")
        assert person.slept == [5.0, 10.0, 10.0, 15.0, 15.0]
        assert person.token(app) == "access-0"
        # The tokens are in the user's file of secrets, and shown by no representation.
        grant = read_grant(app.credentials.get("LAB_TOKEN") or "")
        assert "access-0" not in repr(grant)
        assert (person.place / ".config/chargehand/secrets.json").stat().st_mode & 0o077 == 0


def test_logs_leave_out_the_tokens_of_a_grant(person: Person) -> None:
    with person.app() as app:
        person.sign_in(app)
        known = KnownSecrets(app, app.user_configuration().config)
        assert REDACTED.sub("", known.text("sent access-0, then refresh-0")) == "sent , then "
        # Its value in the environment has precedence, and the stored one stays a secret.
        shadowed = {**app.environ, "LAB_TOKEN": "of-the-environment"}
        with App.open(environ=shadowed, cwd=app.cwd) as other:
            hidden = KnownSecrets(other, Config())
        assert REDACTED.sub("", hidden.text("access-0 and of-the-environment")) == " and "
        # A renewal in another process, after which the earlier token is valid for a while.
        person.time += 100_000
        with person.app() as other:
            assert person.token(other) == "access-1"
        assert REDACTED.sub("", known.text("access-0 access-1 refresh-1")) == "  "


def test_a_lesson_has_no_token_of_a_grant(person: Person) -> None:
    with person.app() as app:
        person.sign_in(app)
        note = add_lesson(app, "push with access-0, else with refresh-0", (), project="p", by=owner(app))
    assert REDACTED.sub("", note.content.message) == "push with , else with "


@pytest.mark.parametrize(
    ("error", "words"),
    [("access_denied", "was denied"), ("expired_token", "has expired"), ("unauthorized_client", "device flow")],
)
def test_a_code_that_is_not_granted_says_why(person: Person, host: OauthHost, error: str, words: str) -> None:
    host.polls = [error]
    with person.app() as app, pytest.raises(ForgeError) as caught:
        person.sign_in(app)
    assert words in f"{caught.value.message} {caught.value.hint}"


def test_a_code_that_nobody_types_ends(person: Person, host: OauthHost) -> None:
    host.polls = ["authorization_pending"] * 100
    with person.app() as app:
        error = fails("denied", lambda: person.sign_in(app))
    assert "expired" in error.message
    assert len(person.slept) == 12


def test_a_token_is_renewed_before_it_expires_and_stored_first(person: Person, host: OauthHost) -> None:
    with person.app() as app:
        person.sign_in(app)
        person.time += 3_600
        assert person.token(app) == "access-0"
        person.time += 3_000
        assert person.token(app) == "access-1"
        assert person.token(app) == "access-1"
    with person.app() as app:
        grant = read_grant(app.credentials.get("LAB_TOKEN") or "")
        assert grant is not None
        assert (grant.access, grant.refresh) == ("access-1", "refresh-1")
        assert host.refreshed == 1


def test_a_lost_answer_to_a_renewal_is_asked_for_again(person: Person, host: OauthHost) -> None:
    with person.app() as app:
        person.sign_in(app)
        person.time += 100_000
        host.lost = 2
        assert person.token(app) == "access-1"


def test_a_token_that_cannot_be_renewed_is_used_until_it_expires(person: Person, host: OauthHost) -> None:
    with person.app() as app:
        person.sign_in(app)
        host.refresh = "revoked"
        person.time += 7_000
        assert person.token(app) == "access-0"
        person.time += 1_000
        error = fails("denied", lambda: person.token(app))
        assert "chargehand forge login lab" in error.hint
        assert "refresh-0" not in f"{error.message}{error.hint}"


def test_a_failed_renewal_is_tried_again_after_a_pause_that_grows(person: Person, host: OauthHost) -> None:
    with person.app() as app:
        person.sign_in(app)
        renewal = host.server.requests
        host.server.fail(*[Answer(400, {"error": "unauthorized_client"})] * 3)
        person.time += 6_500
        for pause in (30.0, 60.0, 120.0):
            before = len(renewal)
            for _ in range(3):
                assert person.token(app) == "access-0"
            assert len(renewal) == before + 1
            person.time += pause - 1
            assert person.token(app) == "access-0"
            assert len(renewal) == before + 1
            person.time += 1
        assert person.token(app) == "access-1"
        # An expired token cannot be used meanwhile, and the message says when it is tried again.
        person.time += 7_200
        host.server.fail(Answer(400, {"error": "unauthorized_client"}))
        fails("invalid", lambda: person.token(app))
        person.time += 10
        error = fails("invalid", lambda: person.token(app))
        assert "tried again in 20 s" in error.hint
        assert error.retry_seconds == 20.0
        person.time -= 400  # a clock that is set back postpones no try
        assert person.token(app) == "access-2"


def test_a_refused_renewal_is_not_repeated_before_a_new_login(person: Person, host: OauthHost) -> None:
    with person.app() as app:
        person.sign_in(app)
        host.refresh = "revoked"
        person.time += 6_500
        assert person.token(app) == "access-0"
        asked = len(host.server.requests)
        for wait in (100, 300, 10_000):
            person.time += wait
            with contextlib.suppress(ForgeError):
                assert person.token(app) == "access-0"
        error = fails("denied", lambda: person.token(app))
        assert f"sign in again: chargehand forge login lab --device --client-id {CLIENT}" in error.hint
        assert len(host.server.requests) == asked
        person.sign_in(app)
        person.time += 7_000
        assert person.token(app) == "access-1"


def test_a_sign_in_in_the_environment_is_used_to_its_end(person: Person, host: OauthHost) -> None:
    with person.app() as app:
        person.sign_in(app)
        secret = app.credentials.get("LAB_TOKEN") or ""
    with person.app(LAB_TOKEN=secret) as app:
        person.time += 7_000
        assert person.token(app) == "access-0"
        person.time += 1_000
        assert "in the variable LAB_TOKEN" in fails("denied", lambda: person.token(app)).message
    assert host.refreshed == 0


def test_processes_that_renew_at_the_same_time_sign_no_one_out(person: Person, host: OauthHost) -> None:
    with person.app() as app:
        person.sign_in(app)
    person.time += 100_000
    found, gate = list[str](), threading.Barrier(6)

    def renew() -> None:
        with person.app() as app:
            gate.wait()
            found.append(person.token(app))

    threads = [threading.Thread(target=renew) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == ["access-1"] * 6
    assert host.refreshed == 1


def test_a_token_is_not_sent_to_another_forge(person: Person, host: OauthHost) -> None:
    with person.app() as app:
        person.sign_in(app)
    other = OauthHost(kind=host.kind)
    try:
        moved = Person(person.place, other)
        with moved.app() as app, pytest.raises(UsageError, match="not of") as caught:
            moved.token(app)
        assert caught.value.code == "forge_token"
        foreign = "glpat-1" if host.kind == "github" else "github_pat_1"
        with moved.app(LAB_TOKEN=foreign) as app, pytest.raises(UsageError, match="its token is one of"):
            moved.token(app)
        assert other.server.requests == []
    finally:
        other.server.close()


def test_a_revoked_token_says_how_to_sign_in_again(person: Person, host: OauthHost) -> None:
    with person.app(LAB_TOKEN="stale") as app:
        problem = try_account(app, "lab").problem or ""
    # The variable would hide what a login stores.
    assert problem.endswith("sign in again: unset LAB_TOKEN, then chargehand forge login lab")
    assert "stale" not in problem
    with person.app() as app:
        app.credentials.set("LAB_TOKEN", "stale")
        assert (try_account(app, "lab").problem or "").endswith("sign in again: chargehand forge login lab")


def test_a_revoked_sign_in_says_how_to_sign_in_again_by_a_code(person: Person, host: OauthHost) -> None:
    how = f"chargehand forge login lab --device --client-id {CLIENT}"
    with person.app() as app:
        person.time = time.time()
        person.sign_in(app)
        host.access = "another"
        assert (try_account(app, "lab").problem or "").endswith(f"sign in again: {how}")
    moved = OauthHost(kind=host.kind)
    with Person(person.place, moved).app() as app:
        assert (try_account(app, "lab").problem or "").endswith(f"it was not sent; {how}")
    moved.server.close()


def test_a_logout_names_the_variable_that_stays_in_use(person: Person) -> None:
    with person.app() as app:
        app.credentials.set("LAB_TOKEN", "stored")
    with person.app(LAB_TOKEN="access-0") as app:
        assert "LAB_TOKEN is still set, in 'environment'" in (log_out(app, "lab").problem or "")
    with person.app() as app:
        assert refusal(app) == "forge_token"


def refusal(app: App) -> str:
    with pytest.raises(UsageError) as caught:
        SignIns(app).token(ForgeAccounts(app).entry("lab"))
    return caught.value.code


def test_commands_that_run_at_the_same_time_renew_once(tmp_path: Path) -> None:
    host = OauthHost()
    person = Person(tmp_path, host)
    with person.app() as app:
        person.sign_in(app)  # by the person's clock, so that it expired long ago
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: _command(tmp_path, "test", "lab"), range(3)))
    assert [each.returncode for each in done] == [0, 0, 0], [each.stdout for each in done]
    assert host.refreshed == 1
    host.server.close()


def _command(place: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(place), "CHARGEHAND_HOME": str(place / "state")}
    return subprocess.run(
        [sys.executable, "-m", "chargehand", "forge", *words],
        input=stdin,
        env=environ,
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_command_signs_in_with_a_code_and_out_again(tmp_path: Path) -> None:
    host = OauthHost()
    host.interval, host.polls = 0.01, ["authorization_pending"]
    login = ("login", "lab", "--kind", "gitlab", "--url", host.server.url)
    wrong = _command(tmp_path, *login, "--device")
    assert (wrong.returncode, "--client-id" in wrong.stderr) == (2, True)
    done = _command(tmp_path, *login, "--device", "--client-id", CLIENT)
    assert done.returncode == 0, done.stderr
    assert "type ABCD-1234" in done.stderr
    assert "as robot" in done.stdout
    listed = _command(tmp_path, "list")
    assert "stored" in listed.stdout
    shown = "".join((done.stdout, done.stderr, listed.stdout, *(each.path for each in host.server.requests)))
    assert not any(secret in shown for secret in ("access-0", "refresh-0", "dev-1"))
    out = _command(tmp_path, "logout", "lab")
    assert out.returncode == 0, out.stderr
    assert "missing" in _command(tmp_path, "list").stdout
    assert _command(tmp_path, *login, stdin="wrong\n").returncode != 0
    assert "missing" in _command(tmp_path, "list").stdout
    plain = _command(tmp_path, *login, stdin="access-0\n")
    assert (plain.returncode, "as robot" in plain.stdout) == (0, True), plain.stderr
    host.server.close()


def test_gitea_has_no_device_flow(tmp_path: Path) -> None:
    host = OauthHost(kind="gitea")
    person = Person(tmp_path, host)
    with person.app() as app, pytest.raises(UsageError, match="no device flow") as caught:
        person.sign_in(app)
    host.server.close()
    assert f"{host.server.url}/user/settings/applications" in caught.value.hint


def test_a_client_without_the_device_flow_says_so(person: Person, host: OauthHost) -> None:
    host.server.fail(Answer(404, {"error": "Not Found"}))
    with person.app() as app:
        error = fails("missing", lambda: person.sign_in(app))
    assert "client id" in error.hint
