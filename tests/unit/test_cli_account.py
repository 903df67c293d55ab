"""Text and documents of `chargehand user …` and `chargehand token …`; no secret appears in them."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.terminal_kit import COMMAND, Terminal

from chargehand.cli.main import chargehand
from chargehand.identity import accounts, tokens
from chargehand.reports.reading import StateReader

PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHARGEHAND_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "state"


def say(*words: str, stdin: str | bytes = "", code: int = 0) -> str:
    """Run a command and return its output: stdout on success, otherwise stderr."""
    done = CliRunner().invoke(chargehand, words, input=stdin)
    assert done.exit_code == code, done.output
    assert PASSWORD not in done.output
    return done.stdout if code == 0 else done.stderr


def document(*words: str, **more: Any) -> Any:
    return json.loads(say(*words, "--json", **more))


def test_an_account_from_its_first_day_to_its_last() -> None:
    assert say("user", "list") == "There are no accounts. To add one: chargehand user add NAME\n"
    told = say("user", "add", "ann", "--role", "operator", "--password-stdin", stdin=f"{PASSWORD}\n")
    assert told == "ann is added as operator\n"
    with StateReader.open() as reader:
        session = accounts.log_in(reader, "ann", PASSWORD)
        assert say("user", "role", "ann", "admin") == "ann is admin now\n"
        caller = accounts.resolve_session(reader, session.secret)
        assert caller is not None
        assert caller.role == "admin"
        assert say("user", "disable", "ann") == "ann is disabled\n"
        assert accounts.resolve_session(reader, session.secret) is None
    assert "disabled" in say("user", "list").splitlines()[1]
    assert say("user", "enable", "ann") == "ann is enabled\n"
    told = say("user", "password", "ann", "--password-stdin", stdin="staple staple staple\r\n")
    assert told == "ann has a new password and is logged out everywhere\n"
    with StateReader.open() as reader:
        assert accounts.log_in(reader, "ann", "staple staple staple")
    issuer = "https://login.example.org"
    assert say("user", "link", "ann", issuer, "7") == f"7 of {issuer} signs in to ann\n"
    assert f"signs in at {issuer}" in say("user", "list")
    assert say("user", "unlink", issuer, "7") == f"7 of {issuer} does not sign in to ann any more\n"
    assert "no second factor any more" in say("user", "reset-factors", "ann")
    assert say("user", "remove", "ann") == "ann is removed\n"
    lines = say("user", "log").splitlines()
    assert [line.split()[4] for line in lines[1:]] == [
        *("user.create", "session.open", "user.role", "user.disable", "user.enable", "user.password"),
        *("session.open", "user.link", "user.unlink", "factor.reset", "user.remove"),
    ]
    assert say("user", "log", "--limit", "1").splitlines()[1].split()[4] == "user.remove"


def test_a_token_is_shown_once_on_stdout_alone() -> None:
    document("user", "add", "ci", "--role", "operator", "--no-password")
    secret = say("token", "create", "build", "--user", "ci", "--scope", "read", "--scope", "steer").strip()
    with StateReader.open() as reader:
        caller = tokens.resolve_token(reader, secret)
    assert caller is not None
    assert (caller.user, caller.scopes) == ("ci", ("read", "steer"))
    shown = say("token", "list") + say("token", "list", "--user", "ci", "--json") + say("user", "log")
    assert secret not in shown
    row = say("token", "list").splitlines()[1].split()
    assert row[1:5] == ["ci", "build", "read", "steer"]
    assert say("token", "revoke", row[0]) == f"{row[0]} (build) is revoked\n"
    assert "revoked" in say("token", "list")
    with StateReader.open() as reader:
        assert tokens.resolve_token(reader, secret) is None


def test_json_output_of_user_and_token_commands() -> None:
    assert document("user", "list") == {"users": []}
    added = document("user", "add", "ann", "--password-stdin", stdin=PASSWORD)
    assert (added["name"], added["role"], added["has_password"]) == ("ann", "viewer", True)
    made = document("token", "create", "mine", "--days", "1")
    assert made["secret"].startswith("chg_")
    assert made["token"]["scopes"] == ["read"]
    assert document("token", "list")["tokens"] == [made["token"]]
    assert document("token", "revoke", made["token"]["id"])["revoked"]
    log = document("user", "log", "--limit", "2")
    assert [entry["action"] for entry in log["entries"]] == ["token.revoke", "token.create"]
    assert log["next"] == 2
    assert document("user", "remove", "ann") == {"name": "ann", "removed": True}


@pytest.mark.parametrize(
    ("words", "stdin", "error"),
    [
        (("user", "add", "ann"), "", "password_unasked"),
        (("user", "add", "ann", "--password-stdin"), "short", "password_weak"),
        (("user", "add", "ann", "--password-stdin"), b"\xff" * 20, "password_weak"),
        (("user", "add", "Ann", "--no-password"), "", "user_invalid"),
        (("user", "add", "ann", "--no-password", "--role", "boss"), "", "user_invalid"),
        (("user", "add", "ann", "--no-password", "--password-stdin"), PASSWORD, "usage"),
        (("user", "role", "ann", "admin"), "", "not_found"),
        (("user", "password", "ann"), "", "not_found"),
        (("token", "create", "t", "--scope", "all"), "", "token_invalid"),
        (("token", "create", "t", "--user", "ann"), "", "not_found"),
        (("token", "revoke", "t-1"), "", "not_found"),
    ],
)
def test_invalid_requests_are_refused_without_effect(
    words: tuple[str, ...], stdin: str | bytes, error: str
) -> None:
    told = json.loads(say(*words, "--json", stdin=stdin, code=2))["error"]
    assert told["code"] == error
    assert told["hint"] or error == "usage"
    assert document("user", "list") == {"users": []}
    assert document("token", "list") == {"tokens": []}


def test_a_password_is_prompted_twice_and_not_shown(tmp_path: Path) -> None:
    words = (*COMMAND, "user", "add", "ann")
    with contextlib.closing(Terminal(words, cwd=tmp_path, environment=dict(os.environ))) as terminal:
        for prompt in ("password of ann: ", "Repeat for confirmation: "):
            terminal.until(prompt)
            terminal.say(f"{PASSWORD}\n")
        assert terminal.end() == 0, terminal.shown
    assert "ann is added as viewer" in terminal.shown
    assert PASSWORD not in terminal.shown
    with StateReader.open() as reader:
        assert accounts.log_in(reader, "ann", PASSWORD)
