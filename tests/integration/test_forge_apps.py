"""An account signs in as a GitHub App, at a stand-in that is checked by GitHub's own description."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from forge_kit import ForgeKit, LocalStoryHost
from tests.forge_stand_in import Answer
from tests.github_stand_in import GithubHost, openapi

from chargehand.app.forge.accounts import ForgeAccounts
from chargehand.app.forge.sign_in import SignIns
from chargehand.app.forge_accounts import test_forge as try_account
from chargehand.core.errors import UsageError
from chargehand.forges.contract import Forge
from chargehand.testing.forges.suite import fails

pytestmark = [pytest.mark.real, pytest.mark.needs_bwrap]


class AppStoryHost(LocalStoryHost):
    """A stand-in of GitHub at which `robot` is the App `build`."""

    kind = "github"

    def __init__(self, root: Path, stand_in: GithubHost) -> None:
        super().__init__(root)
        self.stand_in, self.url = stand_in, stand_in.server.url

    def token(self, login: str) -> str:
        return "" if login == "robot" else f"token-{login}"

    def open_forge(self, login: str) -> Forge:
        return self.stand_in.open_forge(f"token-{login}")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AppStoryHost]:
    openapi()
    root = tmp_path / "forge"
    root.mkdir()
    made = GithubHost(root)
    yield AppStoryHost(root, made)
    made.close()


@pytest.fixture
def kit(host: AppStoryHost, tmp_path: Path) -> ForgeKit:
    key = host.stand_in.app.write_key(tmp_path)
    return ForgeKit(tmp_path, host=host, api=f'"{host.url}"', app='"12"', app_key=f'"{key}"')


def test_an_app_resolves_an_issue_with_tokens_for_one_repository(host: AppStoryHost, kit: ForgeKit) -> None:
    mission = kit.take(kit.issue())
    kit.work()
    state = kit.state(mission)
    assert state.deliveries["request"].state == "done", state.deliveries
    kit.step()
    issued = host.stand_in.app.issued
    assert set(issued.values()) == {"ada/calc"}
    # Neither the key nor a token is in the state directory.
    key = (kit.place / "app.pem").read_bytes()
    files = [each.read_bytes() for each in kit.home.rglob("*") if each.is_file()]
    assert not any(secret in content for content in files for secret in (key, *map(str.encode, issued)))


def test_the_account_is_the_bot_and_lacking_permissions_are_named(host: AppStoryHost, kit: ForgeKit) -> None:
    with kit.app() as app:
        found = try_account(app, "home")
        assert (found.login, found.lacks, found.problem) == ("build[bot]", (), None)
        host.stand_in.app.permissions = {"contents": "read", "issues": "write", "pull_requests": "write"}
        found = try_account(app, "home")
    assert found.lacks == ("contents: write", "statuses: write", "checks: read", "actions: read")
    assert "may only read" in (found.problem or "")


@pytest.mark.parametrize("skew", [-400.0, -50.0, 400.0])
def test_a_wrong_clock_is_corrected_by_that_of_github(host: AppStoryHost, kit: ForgeKit, skew: float) -> None:
    host.stand_in.app.skew = skew
    # The answers to other calls have GitHub's time as well.
    host.stand_in.server.faults.append(
        lambda asked: Answer(200, {}, host.stand_in.app.headers()) if asked.path in ("", "/") else None
    )
    with kit.app() as app:
        assert try_account(app, "home").problem is None


def test_a_token_is_kept_until_it_nears_its_end(host: AppStoryHost, kit: ForgeKit) -> None:
    now = [1_000_000.0]
    app_host = host.stand_in.app
    with kit.app() as app:
        # The time of the test is that of the machine at first, as GitHub sees it.
        start = time.time()
        sign_ins = SignIns(app, now=lambda: start + now[0] - 1_000_000.0)
        entry = ForgeAccounts(app).entry("home")
        first = sign_ins.token(entry, "ada/calc")
        now[0] += 2_000
        assert sign_ins.token(entry, "ada/calc") == first
        now[0] += 1_000
        app_host.skew = 3_000
        assert sign_ins.token(entry, "ada/calc") != first
    assert len(app_host.issued) == 2


def test_a_refused_token_is_replaced(host: AppStoryHost, kit: ForgeKit) -> None:
    with kit.app() as app, contextlib.closing(ForgeAccounts(app, keep=True)) as accounts:
        with accounts.open("home", "ada/calc") as forge:
            assert forge.repository("ada/calc").right == "write"
        host.stand_in.app.issued.clear()  # revoked at GitHub

        def read() -> None:
            with accounts.open("home", "ada/calc") as forge:
                forge.repository("ada/calc")

        fails("denied", read)
        read()


def test_a_refused_token_says_how_the_app_signs_in_again(host: AppStoryHost, kit: ForgeKit) -> None:
    with kit.app() as app, contextlib.closing(ForgeAccounts(app, keep=True)) as accounts:
        with accounts.open("home", "ada/calc") as forge:
            host.stand_in.app.issued.clear()
            error = fails("denied", lambda: forge.repository("ada/calc"))

        def refuse() -> None:
            with accounts.open("home", "ada/calc"):
                raise error

        key = kit.place / "app.pem"
        assert f"chargehand forge login home --app 12 --key {key}" in fails("denied", refuse).hint


def test_a_valid_token_is_used_while_a_new_one_cannot_be_had(host: AppStoryHost, kit: ForgeKit) -> None:
    start = time.time()
    passed = [0.0]
    with kit.app() as app:
        sign_ins = SignIns(app, now=lambda: start + passed[0], sleep=lambda _: None)
        entry = ForgeAccounts(app).entry("home")
        first = sign_ins.token(entry, "ada/calc")
        host.stand_in.server.faults.append(lambda _: Answer(502))
        passed[0] = 3_000
        before = len(host.stand_in.server.requests)
        assert sign_ins.token(entry, "ada/calc") == first
        asked = len(host.stand_in.server.requests)
        assert asked > before
        # Not at every opening.
        assert sign_ins.token(entry, "ada/calc") == first
        assert len(host.stand_in.server.requests) == asked
        passed[0] = 3_700
        fails("broken", lambda: sign_ins.token(entry, "ada/calc"))


def test_an_app_that_cannot_sign_in_says_why(host: AppStoryHost, kit: ForgeKit) -> None:
    found = dict[str, str]()
    app_host = host.stand_in.app
    with kit.app() as app:

        def problem() -> str:
            return try_account(app, "home").problem or ""

        app_host.suspended = "2026-01-01T00:00:00Z"
        found["suspended"] = problem()
        app_host.suspended = None
        app_host.repositories = {"ada/other"}
        found["not installed for ada/calc"] = problem()
        app_host.repositories = {"ada/calc"}
        kit.configure("true", api=f'"{host.url}"', app='"13"', app_key=f'"{kit.place / "app.pem"}"')
        found["Integration not found"] = problem()
        kit.configure("true", api=f'"{host.url}"', app='"12"', app_key=f'"{kit.place / "app.pem"}"')
        (kit.place / "app.pem").chmod(0o644)
        found["open to others (mode 0644)"] = problem()
        (kit.place / "app.pem").chmod(0o600)
        (kit.place / "app.pem").write_text("-----BEGIN RSA PRIVATE KEY-----\nc2VjcmV0LW1hdGVyaWFs\n")
        found["not an RSA key"] = problem()
        (kit.place / "app.pem").unlink()
        found["No such file"] = problem()
    assert {words: words in text for words, text in found.items()} == dict.fromkeys(found, True), found
    assert not any("c2VjcmV0" in text for text in found.values())


def test_only_github_has_apps(kit: ForgeKit, host: AppStoryHost) -> None:
    key = kit.place / "app.pem"
    kit.configure("true", kind='"gitea"', app='"12"', app_key=f'"{key}"')
    with kit.app() as app, pytest.raises(UsageError, match="only an account at GitHub"):
        SignIns(app).token(ForgeAccounts(app).entry("home"), "ada/calc")


def test_the_command_signs_in_as_an_app_and_out_again(host: AppStoryHost, kit: ForgeKit) -> None:
    kit.configure("true", api=f'"{host.url}"')

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "chargehand", "forge", *words],
            env=kit.environ,
            cwd=kit.place,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    done = run("login", "home", "--app", "12", "--key", "app.pem")
    assert done.returncode == 0, done.stderr
    assert "as build[bot]" in done.stdout
    assert "App 12" in run("list").stdout
    assert run("test", "home").returncode == 0
    with kit.app() as app:
        config = app.user_configuration().config.forges["home"]
        assert (config.app, config.app_key, config.installation) == ("12", str(kit.place / "app.pem"), None)
    # A token of an earlier sign-in does not take the place of the App.
    with kit.app() as app:
        app.credentials.set("HOME_TOKEN", "token-robot")
    assert run("logout", "home").returncode == 0
    asked = len(host.stand_in.server.requests)
    assert "has no token" in run("test", "home").stdout
    assert len(host.stand_in.server.requests) == asked
    with kit.app() as app:
        assert app.user_configuration().config.forges["home"].app is None
        assert app.credentials.get("HOME_TOKEN") is None
