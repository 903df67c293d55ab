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


class Cli:
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
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(tmp_path, monkeypatch)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with serving(Provider(key=KEY)) as served:
        yield served


def _entry(provider: Provider, name: str = "local") -> str:
    return f'[models.{name}]\nbase_url = "{provider.address}/v1"\nmodel = "tiny"\nkey = "M_KEY"\nprice = 0.5\n'


def test_models_with_price_and_key(cli: Cli, provider: Provider) -> None:
    cli.configure(_entry(provider))
    (missing,) = cli.json("model", "list")["models"]
    assert missing["key"] == {"name": "M_KEY", "found": False, "where": "M_KEY is missing"}
    assert missing["price"] == {"input": 0.5, "output": 0.5, "source": "configured"}
    assert missing["origin"] == str(cli.user_file)
    cli.set(M_KEY=KEY)
    (there,) = cli.json("model", "list")["models"]
    assert (there["key"]["found"], there["key"]["where"]) == (True, "M_KEY, in the environment")
    shown = cli("model", "list").output
    assert "$0.5 in, $0.5 out per million tokens (configured)" in shown


def test_without_configuration_the_models_that_were_found_are_listed(cli: Cli) -> None:
    assert cli.json("model", "list") == {"models": []}
    assert "chargehand model add" in cli("model", "list").output
    cli.set(OPENAI_API_KEY=KEY)
    (found,) = cli.json("model", "list")["models"]
    assert (found["provider"], found["origin"]) == ("openai", "found")
    with serving(Provider(ollama=({"name": "q:1b"},))) as ollama:
        cli.set(OLLAMA_HOST=ollama.address)
        assert [one["name"] for one in cli.json("model", "list")["models"]] == [found["name"], "ollama:q:1b"]


def test_a_probe_of_a_model_reports_success_or_its_error(cli: Cli, provider: Provider) -> None:
    cli.configure(_entry(provider) + _entry(provider, "wrong").replace('"tiny"', '"huge"'))
    cli.set(M_KEY=KEY)
    (probed,) = cli.json("model", "probe", "local")["models"]
    assert (probed["fine"], probed["tools"], probed["error"]) == (True, True, None)
    assert "calls tools, price from configured" in cli("model", "probe", "local").output
    both = cli.json("model", "probe", code=1)["models"]
    assert [one["fine"] for one in both] == [True, False]
    assert (probed["warning"], "weakly" in cli("model", "probe", "local").output) == (None, False)
    cli.set(M_KEY="other")
    assert "the key is not accepted" in cli("model", "probe", "local", code=1).output
    assert "its key is weakly protected" in cli("model", "probe", "local", code=1).output
    assert "no model named 'gone'" in cli("model", "probe", "gone", code=2).output


def test_no_model_is_not_fine(cli: Cli) -> None:
    assert cli.json("model", "probe", code=1) == {"models": []}


def test_agent_list_shows_configured_agents_and_installed_programs(cli: Cli, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    cli.set(PATH=f"{program.parent}:/usr/bin:/bin")
    cli.configure(
        '[agents.fixer]\ncommand = ["sed", "-i"]\n[agents.thinker]\nkind = "native"\nmodel = "openai:a"\n'
    )
    listed = cli.json("agent", "list")
    assert [(one["name"], one["kind"], one["model"]) for one in listed["agents"]] == [
        ("fixer", "command", None),
        ("native", "native", None),
        ("thinker", "native", "openai:a"),
    ]
    assert [one["origin"] for one in listed["agents"]] == [str(cli.user_file), "built in", str(cli.user_file)]
    assert listed["found"] == [{"name": "claude", "path": str(program), "driven": True}]
    assert (
        f"claude is installed ({program}): use it with --agent cli:claude --model NAME"
        in cli("agent", "list").output
    )


def test_whether_agents_can_work(cli: Cli, provider: Provider) -> None:
    cli.configure(
        '[agents.sed]\ncommand = ["sed"]\n[agents.gone]\ncommand = ["no-such-program"]\n'
        f'[agents.own]\ncommand = ["./tools/fix"]\n{_entry(provider)}'
    )
    cli.set(M_KEY=KEY)
    probed = {one["name"]: one for one in cli.json("agent", "probe", code=1)["agents"]}
    assert {name: one["fine"] for name, one in probed.items()} == {
        "sed": True,
        "gone": False,
        "own": True,
        "native": True,
    }
    assert "not found inside the sandbox" in probed["gone"]["found"]
    assert probed["native"]["found"].startswith("local answers in")
    cli("agent", "probe", "sed")
    cli("agent", "probe", "/nowhere/program", code=2)
    cli.set(M_KEY="other")
    assert "native: cannot work: local: the key is not accepted" in cli("agent", "probe", "native", code=1).output
    cli.configure("")
    assert "needs a model" in cli("agent", "probe", "native", code=1).output
