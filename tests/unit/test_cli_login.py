"""`chargehand login` and `logout`: a token is tried before it is stored, and is never shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.server_kit import Served, environment, record_missions, serving

from chargehand.cli.main import chargehand
from chargehand.identity.accounts import owner
from chargehand.identity.tokens import create_token


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("served")
    with serving(environment(place), place) as made:
        with made.reader() as reader:
            record_missions(reader, 1)
        yield made


@pytest.fixture
def token(served: Served) -> str:
    with served.reader() as reader:
        return create_token(reader, "t", scopes=("read",), days=1, by=owner(reader)).secret


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("CHARGEHAND_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    for name in ("CHARGEHAND_SERVER", "CHARGEHAND_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pytest.importorskip("keyring").core, "_keyring_backend", None)
    return tmp_path / "config" / "chargehand" / "secrets.json"


def say(*words: str, stdin: str = "", code: int = 0) -> dict[str, Any]:
    done = CliRunner().invoke(chargehand, ["--json", *words], input=stdin)
    assert done.exit_code == code, done.output
    assert "chg_" not in done.output
    found: dict[str, Any] = json.loads(done.stdout if code == 0 else done.stderr)
    return found if code == 0 else dict(found["error"])


def test_a_server_works_from_login_to_logout(served: Served, token: str, elsewhere: Path) -> None:
    error = say("--server", served.url, "mission", "list", code=1)
    assert (error["code"], served.url in str(error["hint"])) == ("login_needed", True)
    kept = say("login", f"{served.url}/", stdin=f"{token}\n")
    assert kept == {
        "server": served.url,
        "user": kept["user"],
        "role": "admin",
        "kept_in": f"the file {elsewhere}",
        "hidden_by": None,
    }
    assert list(json.loads(elsewhere.read_text())["secrets"].values()) == [token]
    assert elsewhere.stat().st_mode & 0o077 == 0
    assert len(say("--server", served.url, "mission", "list")["missions"]) == 1
    assert say("logout", served.url) == {"server": served.url, "removed": True}
    assert say("logout", served.url, code=2)["code"] == "not_logged_in"
    assert say("--server", served.url, "mission", "list", code=1)["code"] == "login_needed"


def test_a_token_that_does_not_count_is_not_kept(served: Served, elsewhere: Path) -> None:
    assert say("login", served.url, stdin="chg_wrong\n", code=1)["code"] == "token_unknown"
    assert say("login", served.url, stdin="", code=2)["code"] == "secret_invalid"
    assert say("login", "http://example.org", stdin="x", code=2)["code"] == "server_unencrypted"
    assert say("login", "example.org", stdin="x", code=2)["code"] == "server_url_invalid"
    assert not elsewhere.exists()


def test_the_environment_names_server_and_token(
    served: Served, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHARGEHAND_SERVER", served.url)
    monkeypatch.setenv("CHARGEHAND_TOKEN", token)
    assert len(say("mission", "list")["missions"]) == 1
    assert say("login", served.url, stdin=token)["hidden_by"] == "CHARGEHAND_TOKEN"
    error = say("gc", "--dry-run", code=2)
    assert error["code"] == "command_local"
    assert "CHARGEHAND_SERVER" in str(error["hint"])
    assert say("--server", "", "mission", "list", "--all")["missions"] == []


def test_no_token_is_an_argument(served: Served, token: str) -> None:
    done = CliRunner().invoke(chargehand, ["login", served.url, token])
    assert done.exit_code == 2
