"""`chargehand init` at a terminal: a whole dialogue with a provider on loopback; a key never shows anywhere."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import make_repository
from tests.provider_kit import Provider, serving
from tests.terminal_kit import COMMAND, Terminal

from chargehand.app.composition import App
from chargehand.app.onboarding import examine

KEY = "sesame-1234567890-open"
WRONG = "wrong-key-987654"
FILES = {"tests/__init__.py": "", "tests/test_it.py": "import unittest\n"}


class Asking(Terminal):
    """A terminal that looks for a question only after the last answer: the same question may come again."""

    answered = 0

    def until(self, text: str) -> None:
        while text not in self.shown[self.answered :]:
            assert self._read(), self.shown

    def say(self, text: str) -> None:
        self.answered = len(self.shown)
        super().say(text)


class Cli:
    """A repository without chargehand.toml, and a person without configuration."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.repository = make_repository(place / "repo", FILES)
        self.environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(place),
            "CHARGEHAND_HOME": str(place / "state"),
            "LANG": "C.UTF-8",
            "OLLAMA_HOST": "127.0.0.1:1",
            "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
        } | {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}

    def init(self, **environment: str) -> Asking:
        """Start `init`, and answer the questions about checks."""
        asking = Asking((*COMMAND, "init"), cwd=self.repository, environment=self.environment | environment)
        asking.until("Project repo")
        for question, answer in (("Check with", "y\n"), ("Another check", "\n")):
            asking.until(question)
            asking.say(answer)
        asking.until("Which one?")
        return asking

    @property
    def user(self) -> dict[str, object]:
        path = self.place / ".config" / "chargehand" / "config.toml"
        return tomllib.loads(path.read_text()) if path.exists() else {}

    def written(self) -> list[Path]:
        """Return every file of this person outside the repository's `.git`."""
        found = [path for path in self.place.rglob("*") if path.is_file()]
        return [path for path in found if self.repository / ".git" not in path.parents]

    def holding(self, text: str) -> list[str]:
        return [path.name for path in self.written() if text.encode() in path.read_bytes()]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with serving(Provider(key=KEY)) as served:
        yield served


def _choose(asking: Asking, title: str) -> None:
    number = [line.split()[0] for line in asking.shown.splitlines() if title in line][-1]  # of the last list
    asking.say(f"{number}\n")


def _endpoint(
    asking: Asking, provider: Provider, *, model: str = "tiny", price: str = "0.25", name: str = "near"
) -> None:
    _choose(asking, "an OpenAI-compatible endpoint")
    answers = {
        "A name for it": name,
        "Base URL": f"{provider.address}/v1",
        "Model": model,
        "USD per million": price,
        "Does it need a key": "y",
    }
    for question, answer in answers.items():
        asking.until(question)
        asking.say(f"{answer}\n")


def _paste(asking: Asking, key: str) -> None:
    asking.until("Its API key (input is hidden)")
    asking.say(f"{key}\n")


def test_an_endpoint_with_a_key_is_tried_and_kept(cli: Cli, provider: Provider) -> None:
    asking = cli.init()
    _endpoint(asking, provider)
    _paste(asking, WRONG)
    asking.until("What now?")
    assert "near: the key is not accepted (status 401)" in asking.shown
    asking.say("again\n")
    _paste(asking, KEY)
    assert asking.end() == 0
    assert "It works: near answers in" in asking.shown
    assert KEY not in asking.raw
    assert WRONG not in asking.raw
    assert cli.user == {
        "models": {
            "near": {
                "provider": "openai-compatible",
                "model": "tiny",
                "base_url": f"{provider.address}/v1",
                "key": "NEAR_API_KEY",
                "price": 0.25,
            }
        },
        "agents": {"native": {"kind": "native", "model": "near"}},
    }
    assert (cli.holding(KEY), cli.holding(WRONG)) == (["secrets.json"], [])
    (secrets,) = [path for path in cli.written() if path.name == "secrets.json"]
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    assert "checks = " in (cli.repository / "chargehand.toml").read_text()


def test_a_person_may_choose_something_else(cli: Cli, provider: Provider) -> None:
    asking = cli.init()
    _endpoint(asking, provider)
    _paste(asking, WRONG)
    asking.until("What now?")
    asking.say("other\n")
    asking.until("Which one?")
    _choose(asking, "none for now")
    assert asking.end() == 0
    assert (cli.user, cli.holding(WRONG)) == ({}, [])
    assert (cli.repository / "chargehand.toml").exists()


@pytest.mark.parametrize("when", ["Its API key", "What now?"])
def test_ctrl_c_leaves_no_partial_files(cli: Cli, provider: Provider, when: str) -> None:
    asking = cli.init()
    _endpoint(asking, provider)
    if when == "What now?":
        _paste(asking, WRONG)
    asking.until(when)
    asking.interrupt()
    assert asking.end() == 130
    assert "Traceback" not in asking.shown
    assert cli.user == {}
    assert not (cli.repository / "chargehand.toml").exists()
    assert cli.holding(WRONG) == []
    assert [path.name for path in cli.written() if path.name.startswith((".config", "secrets"))] == []


def test_detected_providers_are_offered_first_and_can_be_kept(cli: Cli) -> None:
    ollama = Provider(model="other", ollama=({"name": "coder:1b", "size": 1},))
    with serving(ollama):
        asking = cli.init(OLLAMA_HOST=ollama.address.removeprefix("http://"), OPENAI_API_KEY=KEY)
        titles = [line for line in asking.shown.splitlines() if line.startswith("  ")]
        assert "OPENAI_API_KEY is set" in titles[0]
        assert "coder:1b, served by Ollama on this machine" in titles[1]
        asking.say("2\n")
        asking.until("What now?")
        assert "it has no model 'coder:1b'" in asking.shown
        asking.say("keep\n")
        assert asking.end() == 0
    assert KEY not in asking.raw
    assert cli.user == {
        "models": {"ollama": {"provider": "ollama", "model": "coder:1b"}},
        "agents": {"native": {"kind": "native", "model": "ollama"}},
    }


def test_a_colleague_with_the_projects_file_is_offered_an_agent(cli: Cli, provider: Provider) -> None:
    file = cli.repository / "chargehand.toml"
    file.write_text("[project]\nchecks = ['true']\n")
    for configured in (False, True):
        asking = Asking((*COMMAND, "init"), cwd=cli.repository, environment=cli.environment)
        if configured:
            asking.until("Set up another one?")
            asking.say("n\n")
        else:
            asking.until("Which one?")
            _endpoint(asking, provider)
            _paste(asking, KEY)
        assert asking.end() == 0
        assert f"already exists; {'nothing was' if configured else 'it was not'} changed" in asking.shown
        assert list(cli.user["models"]) == ["near"]
    assert file.read_text() == "[project]\nchecks = ['true']\n"


@pytest.mark.parametrize(
    ("answers", "learned"),
    [
        (("7.5",), {"learned": True, "worth_usd": 7.5}),
        (("nothing", "-1", ""), {"learned": True, "worth_usd": 5}),
        (("0",), None),
    ],
    ids=["worth", "the default after two bad answers", "no choice"],
)
def test_who_has_two_models_says_what_a_task_is_worth(
    cli: Cli, provider: Provider, answers: tuple[str, ...], learned: dict[str, object] | None
) -> None:
    (cli.repository / "chargehand.toml").write_text("[project]\nchecks = ['true']\n")
    for name in ("near", "far"):
        asking = Asking((*COMMAND, "init"), cwd=cli.repository, environment=cli.environment)
        if name == "far":
            asking.until("Set up another one?")
            asking.say("y\n")
        asking.until("Which one?")
        _endpoint(asking, provider, name=name)
        _paste(asking, KEY)
        for answer in answers if name == "far" else ():
            asking.until("worth to you in USD")
            asking.say(f"{answer}\n")
        assert asking.end() == 0
    assert cli.user.get("decisions") == learned
    native = {"kind": "native"} if learned else {"kind": "native", "model": "far"}
    assert cli.user["agents"] == {"native": native}


def test_a_model_is_added_without_a_repository_and_the_doctor_then_names_the_next_step(
    cli: Cli, provider: Provider
) -> None:
    asking = Asking((*COMMAND, "model", "add"), cwd=cli.place, environment=cli.environment)
    asking.until("Which one?")
    assert "a command of your own" not in asking.shown
    assert "a model from Google Gemini, with a key to paste" in asking.shown
    _endpoint(asking, provider)
    _paste(asking, KEY)
    assert asking.end() == 0
    assert "added near to" in asking.shown
    assert KEY not in asking.raw
    with App.open(environ=cli.environment, cwd=cli.place) as app:
        outside = asyncio.run(examine(app))
    assert [(model.name, model.ready) for model in outside.models] == [("near", True)]
    assert outside.next == ("cd REPOSITORY && chargehand init" if outside.tier else "")
    with App.open(environ=cli.environment, cwd=cli.repository) as app:
        assert asyncio.run(examine(app)).next == ("chargehand init" if outside.tier else "")


def test_an_installed_program_is_offered_with_a_model_for_it(cli: Cli) -> None:
    programs = cli.place / "bin"
    programs.mkdir()
    (programs / "claude").write_text("#!/bin/sh\n")
    (programs / "claude").chmod(0o755)
    asking = cli.init(PATH=f"{programs}:/usr/bin:/bin", ANTHROPIC_API_KEY=KEY)
    _choose(asking, "the program claude, with a model from Anthropic")
    asking.until("Model")
    asking.say("any\n")
    asking.until("What now?")  # nothing is reached from here
    asking.say("keep\n")
    assert asking.end() == 0
    assert cli.user["agents"] == {"claude": {"kind": "cli", "cli": "claude", "model": "anthropic"}}


def test_adding_a_model_in_a_pipe_says_how_to_do_it_without_a_terminal(cli: Cli) -> None:
    done = subprocess.run(
        (*COMMAND, "model", "add"),
        cwd=cli.place,
        env=cli.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr
    assert "chargehand secret set" in done.stderr
    assert cli.user == {}
