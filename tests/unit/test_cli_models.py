"""`model` and `agent`: the configured ones, the origin of their keys, and whether they work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.provider_kit import Provider, serving

from chargehand.cli.main import chargehand

KEY = "sesame-1234567890"


class Desk:
    """A person with a configuration, outside any repository."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.user_file = place / "config" / "chargehand" / "config.toml"
        self.user_file.parent.mkdir(parents=True)
        monkeypatch.chdir(place)
        for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
            monkeypatch.delenv(name, raising=False)
        self.set(
            HOME=str(place),
            CHARGEHAND_HOME=str(place / "state"),
            XDG_CONFIG_HOME=str(place / "config"),
            OLLAMA_HOST="127.0.0.1:1",
        )

    def set(self, **environment: str) -> None:
        for name, value in environment.items():
            self.monkeypatch.setenv(name, value)

    def configure(self, text: str) -> None:
        self.user_file.write_text(text)

    def __call__(self, *words: str, code: int = 0) -> Result:
        done = CliRunner().invoke(chargehand, list(words))
        assert done.exit_code == code, done.output
        assert KEY not in done.output
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code).stdout)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with serving(Provider(key=KEY)) as served:
        yield served


def _entry(provider: Provider, name: str = "local") -> str:
    return f'[models.{name}]\nbase_url = "{provider.address}/v1"\nmodel = "tiny"\nkey = "M_KEY"\nprice = 0.5\n'


def test_models_with_price_and_key(desk: Desk, provider: Provider) -> None:
    desk.configure(_entry(provider))
    (missing,) = desk.json("model", "list")["models"]
    assert missing["key"] == {"name": "M_KEY", "found": False, "where": "M_KEY is missing"}
    assert missing["price"] == {"input": 0.5, "output": 0.5, "source": "configured"}
    assert missing["origin"] == str(desk.user_file)
    desk.set(M_KEY=KEY)
    (there,) = desk.json("model", "list")["models"]
    assert (there["key"]["found"], there["key"]["where"]) == (True, "M_KEY, in the environment")
    shown = desk("model", "list").output
    assert "$0.5 in, $0.5 out per million tokens (configured)" in shown


def test_without_configuration_the_models_that_were_found_are_listed(desk: Desk) -> None:
    assert desk.json("model", "list") == {"models": []}
    assert "chargehand init" in desk("model", "list").output
    desk.set(OPENAI_API_KEY=KEY)
    (found,) = desk.json("model", "list")["models"]
    assert (found["provider"], found["origin"]) == ("openai", "found")
    with serving(Provider(ollama=({"name": "q:1b"},))) as ollama:
        desk.set(OLLAMA_HOST=ollama.address)
        assert [one["name"] for one in desk.json("model", "list")["models"]] == [found["name"], "ollama:q:1b"]


def test_a_probe_is_one_real_call(desk: Desk, provider: Provider) -> None:
    desk.configure(_entry(provider) + _entry(provider, "wrong").replace('"tiny"', '"huge"'))
    desk.set(M_KEY=KEY)
    (probed,) = desk.json("model", "probe", "local")["models"]
    assert (probed["fine"], probed["tools"], probed["error"]) == (True, True, None)
    assert "calls tools, price from configured" in desk("model", "probe", "local").output
    both = desk.json("model", "probe", code=1)["models"]
    assert [one["fine"] for one in both] == [True, False]
    assert (probed["warning"], "weakly" in desk("model", "probe", "local").output) == (None, False)
    desk.set(M_KEY="other")
    assert "the key is not accepted" in desk("model", "probe", "local", code=1).output
    assert "its key is weakly protected" in desk("model", "probe", "local", code=1).output
    assert "no model named 'gone'" in desk("model", "probe", "gone", code=2).output


def test_no_model_is_not_fine(desk: Desk) -> None:
    assert desk.json("model", "probe", code=1) == {"models": []}


def test_agents_and_what_is_installed(desk: Desk, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    desk.set(PATH=f"{program.parent}:/usr/bin:/bin")
    desk.configure(
        '[agents.fixer]\ncommand = ["sed", "-i"]\n[agents.thinker]\nkind = "native"\nmodel = "openai:a"\n'
    )
    listed = desk.json("agent", "list")
    assert [(one["name"], one["kind"], one["model"]) for one in listed["agents"]] == [
        ("fixer", "command", None),
        ("native", "native", None),
        ("thinker", "native", "openai:a"),
    ]
    assert [one["origin"] for one in listed["agents"]] == [str(desk.user_file), "built in", str(desk.user_file)]
    assert listed["found"] == [{"name": "claude", "path": str(program), "driven": True}]
    assert (
        f"claude is installed ({program}): use it with --agent cli:claude --model NAME"
        in desk("agent", "list").output
    )


def test_whether_agents_can_work(desk: Desk, provider: Provider) -> None:
    desk.configure(
        '[agents.sed]\ncommand = ["sed"]\n[agents.gone]\ncommand = ["no-such-program"]\n'
        f'[agents.own]\ncommand = ["./tools/fix"]\n{_entry(provider)}'
    )
    desk.set(M_KEY=KEY)
    probed = {one["name"]: one for one in desk.json("agent", "probe", code=1)["agents"]}
    assert {name: one["fine"] for name, one in probed.items()} == {
        "sed": True,
        "gone": False,
        "own": True,
        "native": True,
    }
    assert "not found inside the sandbox" in probed["gone"]["found"]
    assert probed["native"]["found"].startswith("local: answers in")
    desk("agent", "probe", "sed")
    desk("agent", "probe", "/nowhere/program", code=2)
    desk.set(M_KEY="other")
    assert "native: cannot work: local: the key is not accepted" in desk("agent", "probe", "native", code=1).output
    desk.configure("")
    assert "has no model to work with" in desk("agent", "probe", "native", code=1).output
