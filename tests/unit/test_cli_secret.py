"""Text and documents of `chargehand secret …`; no value appears in them."""

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

NAME = "OPENAI_API_KEY"
VALUE = "sk-0123456789abcdef"
# No keyring of this machine is used: this backend always fails.
NO_KEYRING = "keyring.backends.fail.Keyring"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("CHARGEHAND_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", NO_KEYRING)
    monkeypatch.delenv(NAME, raising=False)
    keyring = pytest.importorskip("keyring")
    monkeypatch.setattr(keyring.core, "_keyring_backend", None)
    return tmp_path / "config" / "chargehand"


def say(*words: str, stdin: str | bytes = "", code: int = 0) -> str:
    """Run `chargehand secret …` and return its output: stdout on success, otherwise stderr."""
    done = CliRunner().invoke(chargehand, ["secret", *words], input=stdin)
    assert done.exit_code == code, done.output
    assert VALUE not in done.output
    return done.stdout if code == 0 else done.stderr


def document(*words: str, **more: Any) -> Any:
    return json.loads(say(*words, "--json", **more))


def test_a_secret_is_kept_listed_and_removed(config: Path) -> None:
    path = config / "secrets.json"
    assert say("set", NAME, stdin=VALUE + "\n") == f"{NAME} is stored in the file {path}\n"
    assert json.loads(path.read_text())["secrets"] == {NAME: VALUE}
    assert say("list").split() == ["NAME", "FROM", NAME, "file"]
    assert say("remove", NAME) == f"{NAME} is removed\n"
    assert say("list") == "No secrets are stored. To store one: chargehand secret set NAME\n"


def test_json_output_of_secret_commands(config: Path) -> None:
    assert document("list") == {"secrets": []}
    assert document("set", NAME, stdin=VALUE) == {
        "name": NAME,
        "kept_in": f"the file {config / 'secrets.json'}",
        "hidden_by_environment": False,
        "warning": None,
    }
    assert document("list") == {"secrets": [{"name": NAME, "origin": "file"}]}
    assert document("remove", NAME) == {"name": NAME, "removed": True, "origin": None}


def test_setting_a_short_key_gives_a_warning(config: Path) -> None:
    told = say("set", NAME, stdin="ollama")
    assert f"{NAME} is weakly protected: it has fewer than 12 characters" in told
    assert "not from replies" in document("set", NAME, stdin="ollama")["warning"]


def test_precedence_of_the_environment_is_reported(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, VALUE + "-too")
    assert f"the environment variable {NAME} takes precedence" in say("set", NAME, stdin=VALUE)
    assert say("list").split()[2:] == [NAME, "environment"]
    assert document("set", NAME, stdin=VALUE)["hidden_by_environment"] is True
    assert "still comes from the environment" in say("remove", NAME)
    assert "unset" in say("remove", NAME, code=2)


def test_the_commands_touch_neither_the_state_directory_nor_a_repository(config: Path, tmp_path: Path) -> None:
    say("set", NAME, stdin=VALUE)
    say("list")
    say("remove", NAME)
    assert {path.name for path in tmp_path.iterdir()} == {"config"}


@pytest.mark.parametrize(
    "stdin", ["", "\n", f"{VALUE}\nsecond\n", VALUE.encode() + b"\xff", VALUE * 10_000, f"{VALUE}\0"]
)
def test_an_invalid_secret_is_refused_and_not_stored(config: Path, stdin: str | bytes) -> None:
    error = json.loads(say("set", NAME, "--json", stdin=stdin, code=2))["error"]
    assert error["code"] == "secret_invalid"
    assert NAME in error["message"]
    assert not (config / "secrets.json").exists()


def test_a_value_is_never_an_argument(config: Path) -> None:
    done = CliRunner().invoke(chargehand, ["secret", "set", NAME, "an-argument"])
    assert done.exit_code == 2
    assert not config.exists()


@pytest.mark.parametrize("words", [("set", "lower"), ("remove", "lower"), ("remove", NAME)])
def test_an_invalid_or_missing_name_is_an_error(config: Path, words: tuple[str, ...]) -> None:
    assert repr(words[1]) in say(*words, stdin=VALUE, code=2)


def test_a_file_that_is_open_to_others_is_refused_before_anyone_types(config: Path) -> None:
    say("set", NAME, stdin=VALUE)
    (config / "secrets.json").chmod(0o644)
    for words in (("list",), ("set", NAME), ("remove", NAME)):
        assert f"chmod 600 {config / 'secrets.json'}" in say(*words, stdin="x", code=2)


def test_a_secret_is_prompted_at_a_terminal_and_not_shown(config: Path, tmp_path: Path) -> None:
    words = (*COMMAND, "secret", "set", NAME)
    with contextlib.closing(Terminal(words, cwd=tmp_path, environment=dict(os.environ))) as terminal:
        terminal.until(f"value of {NAME}: ")
        terminal.say(f"{VALUE}\n")
        assert terminal.end() == 0, terminal.shown
    assert VALUE not in terminal.shown
    assert "is stored in" in terminal.shown
    assert json.loads((config / "secrets.json").read_text())["secrets"] == {NAME: VALUE}


TABLES = """
[models.big]
model = "gpt"
key = "OPENAI_API_KEY"
[secrets]
order = ["file", "say"]
[secrets.sources.say]
kind = "command"
command = ["cat", "{path}"]
[secrets.sources.box]
kind = "encrypted"
key_file = "KEYFILE"
[secrets.keys.OPENAI_API_KEY]
sources = ["say"]
path = "SAID"
roles = ["developer"]
providers = ["openai"]
[secrets.keys.BOX_KEY]
sources = ["box"]
"""


@pytest.fixture
def stores(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configure a command that prints a file, and an encrypted file; return the first."""
    monkeypatch.chdir(tmp_path)
    said, key = tmp_path / "said", tmp_path / "key"
    key.write_bytes(bytes(32))
    key.chmod(0o600)
    config.mkdir(parents=True)
    (config / "config.toml").write_text(TABLES.replace("SAID", str(said)).replace("KEYFILE", str(key)))
    return said


def test_check_asks_every_source_and_names_what_fails(stores: Path) -> None:
    say("set", "BOX_KEY", "--source", "box", stdin=VALUE)
    assert "only read" in say("set", NAME, "--source", "say", stdin=VALUE, code=2)
    problem = "the source 'say' of secrets ended with exit code 1"
    failed = json.loads(CliRunner().invoke(chargehand, ["secret", "check", "--json"]).stdout)["secrets"]
    assert [(each["name"], each["state"], each["problem"]) for each in failed] == [
        ("BOX_KEY", "found", ""),
        (NAME, "failed", problem),
    ]
    stores.write_text(VALUE)
    assert say("check").splitlines()[1:] == ["BOX_KEY         BOX_KEY         box", f"{NAME}  {NAME}  say"]
    assert document("check", NAME)["secrets"][0]["source"] == "say"
    missing = CliRunner().invoke(chargehand, ["secret", "check", "OTHER_KEY", "--json"])
    assert (missing.exit_code, json.loads(missing.stdout)["secrets"][0]["code"]) == (1, "secret_store")


def test_rotate_says_which_source_has_the_secret(stores: Path, config: Path) -> None:
    stores.write_text(VALUE)
    assert say("rotate", NAME) == f"{NAME} is read again from say before its next use\n"
    first = (config / "rotated" / NAME).stat().st_mtime_ns
    assert document("rotate", NAME) == {"name": NAME, "source": "say"}
    assert (config / "rotated" / NAME).stat().st_mtime_ns > first
    stores.write_text("")
    assert "no source has" in say("rotate", NAME, code=2)


def test_explain_shows_sources_scope_and_users_and_whether_a_use_is_admitted(stores: Path) -> None:
    told = say("explain", NAME)
    assert f"entry {NAME}: from say, path {stores}; kept 300 s" in told
    assert "projects any; roles developer; providers openai" in told
    assert "named by: models.big.key" in told
    assert told.endswith("this use is admitted\n")
    assert document("explain", NAME, "--role", "developer")["admitted"] == NAME
    refused = CliRunner().invoke(chargehand, ["secret", "explain", NAME, "--provider", "evil.example"])
    assert refused.exit_code == 1
    assert (
        "refused: OPENAI_API_KEY may not be used by any project, any role, provider evil.example" in refused.stdout
    )
    plain = document("explain", "OTHER_KEY")
    assert (plain["entries"][0]["sources"], plain["admitted"]) == (["file", "say"], "")
