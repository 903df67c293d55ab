"""`chargehand gateway`: the real program serves scripts and recordings until it is stopped."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from tests.integration.command_line import Cli

from chargehand.app.composition import App
from chargehand.cli.main import chargehand
from chargehand.forges.grants import OauthGrant, write_grant
from chargehand.models.faults import Faults
from chargehand.models.recording import Recording
from chargehand.models.scripts import Script

PAGE = Path(__file__).parents[2] / "docs/reference/recording.md"
SCRIPT = '{"format": "chargehand-script", "version": 1}\n{"text": "one"}\n{"text": "the key is tops3cret-key"}\n'


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    (tmp_path / "script.jsonl").write_text(SCRIPT)
    return Cli(tmp_path, MY_KEY="tops3cret-key")


class Served:
    """A running gateway and the documents that it wrote."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.place = self.next()

    def next(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._process.stderr
        return json.loads(line)

    def ask(self, text: str, *, dialect: str = "openai", model: str = "scripted") -> tuple[int, Any]:
        base = urlsplit(self.place["openai_base_url" if dialect == "openai" else "anthropic_base_url"])
        path = f"{base.path}/chat/completions" if dialect == "openai" else "/v1/messages"
        body = {"model": model, "max_tokens": 50, "messages": [{"role": "user", "content": text}]}
        connection = http.client.HTTPConnection(base.hostname or "", base.port, timeout=60)
        try:
            connection.request("POST", path, json.dumps(body), {"Authorization": f"Bearer {self.place['token']}"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()


@contextmanager
def serving(cli: Cli, *words: str) -> Iterator[Served]:
    """Run a gateway, and assert that a signal ends it cleanly."""
    with cli.start("gateway", *words, cwd=cli.place) as process:
        try:
            yield Served(process)
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=60)
            assert (process.returncode, errors) == (0, ""), (rest, errors)
        finally:
            process.kill()


def test_a_script_is_served_and_recorded_and_the_recording_replayed(cli: Cli) -> None:
    with serving(cli, "record", "r.jsonl", "--script", "script.jsonl", "--budget", "1") as served:
        assert served.place["models"] == [
            {"name": "scripted", "dialect": each} for each in ("openai", "anthropic", "responses", "gemini")
        ]
        assert (served.place["budget_usd"], served.place["recording"]) == (1.0, "r.jsonl")
        where = f"look into {cli.place}/src"
        status, first = served.ask(where)
        assert (status, first["choices"][0]["message"]["content"]) == (200, "one")
        told = served.next()
        assert (told["turn"], told["model"], told["status"], told["cost_usd"]) == (1, "scripted", "ok", 0.0)
        assert told["output_tokens"] == 1
        status, second = served.ask("and the key?", dialect="anthropic")
        assert second["content"][0]["text"] == "the key is tops3cret-key"
        assert served.ask("more")[0] == 410

    content = (cli.place / "r.jsonl").read_text()
    assert len(Recording.load(cli.place / "r.jsonl").exchanges) == 3
    assert str(cli.place) not in content
    assert served.place["token"] not in content

    with serving(cli, "replay", "r.jsonl") as served:
        assert served.ask(where) == (200, first)
        assert served.next()["status"] == "ok"
        status, refused = served.ask("another question", dialect="anthropic")
        assert status == 409
        assert "/messages/0/content" in refused["error"]["message"]
        assert served.next()["divergence"]["turn"] == 2


def test_a_key_that_is_kept_never_gets_into_a_recording(cli: Cli) -> None:
    config = cli.home.parent / ".config" / "chargehand" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[models.mine]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\nkey = "MY_KEY"\n')
    with serving(cli, "record", "r.jsonl", "--script", "script.jsonl") as served:
        served.ask("first")
        assert served.ask("second")[1]["choices"][0]["message"]["content"].endswith("tops3cret-key")
    content = (cli.place / "r.jsonl").read_text()
    assert "tops3cret-key" not in content
    assert "[redacted:MY_KEY]" in content


def test_tokens_that_change_while_it_records_never_get_into_a_recording(cli: Cli) -> None:
    def sign_in(access: str) -> None:
        grant = OauthGrant(access=access, refresh=f"{access}-refresh", client="c", url="https://forge.test")
        with App.open(environ=cli.environ, cwd=cli.place) as app:
            app.credentials.set("LAB_TOKEN", write_grant(grant))

    sign_in("first-access")
    with serving(cli, "record", "r.jsonl", "--script", "script.jsonl") as served:
        served.ask("first-access-refresh, else first-access")
        sign_in("second-access")
        served.ask("second-access, before it first-access")
    content = (cli.place / "r.jsonl").read_text()
    assert "-access" not in content
    assert content.count("[redacted:LAB_TOKEN.") == 4


def test_text_output_shows_the_address_token_and_budget(cli: Cli) -> None:
    words = [word for word in cli.argv("gateway", "serve", "--script", "script.jsonl") if word != "--json"]
    with subprocess.Popen(words, cwd=cli.place, env=cli.environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            head = "".join(iter(process.stdout.readline, "\n"))
            assert re.search(r"^OpenAI +http://127\.0\.0\.1:\d+/v1$", head, re.M)
            assert re.search(r"^token +cht-\S+$", head, re.M)
            assert re.search(r"^budget +unlimited$", head, re.M)
        finally:
            process.terminate()
        assert process.wait(timeout=60) == 0


def test_manual_calls_count_against_the_day_budget_across_gateways(cli: Cli) -> None:
    """One gateway acts as the provider, and the calls of two others use up the day's budget."""
    config = cli.home.parent / ".config" / "chargehand" / "config.toml"
    config.parent.mkdir(parents=True)
    with serving(cli, "serve", "--script", "script.jsonl") as provider:
        cli.environ["MY_KEY"] = provider.place["token"]
        config.write_text(
            f'[models.mine]\nbase_url = "{provider.place["openai_base_url"]}"\nmodel = "scripted"\n'
            'key = "MY_KEY"\nprice_in = 1000\nprice_out = 1000\nmax_output = 50\n[limits]\nday_usd = 0.4\n'
        )
        for budget, code in (("0.00001", "the budget of the gateway"), ("5", "")):
            with serving(cli, "serve", "--budget", budget) as served:
                status, reply = served.ask("x", model="mine")
                assert (status, code in str(reply)) == (402 if code else 200, True), reply
                told = [served.next() for _ in range(1 if code else 2)]
        by_kind = {"alert" if "alert" in each else "call": each for each in told}
        assert by_kind["call"]["cost_usd"] > 0
        assert by_kind["alert"]["alert"]["limit"] == "day"
        with serving(cli, "serve", "--budget", "5") as served:
            status, reply = served.ask("x" * 400, model="mine")
            assert (status, "the budget of the day" in str(reply)) == (402, True), reply
            assert served.next()["status"] == "refused"
        assert [provider.next()["status"]] == ["ok"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["serve"], "no_model"),
        (["serve", "--script", "script.jsonl", "--replay", "none.jsonl"], "usage"),
        (["serve", "--script", "none.jsonl"], "file_unreadable"),
        (["replay", "script.jsonl"], "recording_invalid"),
        (["record", "script.jsonl", "--script", "script.jsonl"], "recording_invalid"),
        (["serve", "--script", "script.jsonl", "--faults", "429"], "faults_invalid"),
        (["serve", "--script", "script.jsonl", "--listen", "0.0.0.0:0"], "listen_invalid"),
        (["serve", "--script", "script.jsonl", "--listen", "nowhere"], "listen_invalid"),
        (["serve", "--model", "nobody"], "not_found"),
    ],
)
def test_unusable_gateway_arguments_are_an_error_at_start(
    words: list[str], code: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(cli.place)
    for name in ("HOME", "CHARGEHAND_HOME"):
        monkeypatch.setenv(name, cli.environ[name])
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    done = CliRunner().invoke(chargehand, ["--json", "gateway", *words])
    error = json.loads(done.stderr)["error"]
    assert (done.exit_code, error["code"]) == (2, code)
    assert error["hint"]
    assert (cli.place / "script.jsonl").read_text() == SCRIPT


def example(number: int) -> bytes:
    return re.findall(r"```jsonl\n(.*?)```", PAGE.read_text(), re.S)[number].encode()


def test_the_examples_of_the_gateway_page_are_valid() -> None:
    script = Script.load(example(0))
    assert [(attempt, turn) for attempt, turn, _ in script.turns()] == [*((None, n) for n in (1, 2, 3, 4)), (2, 1)]
    assert script.lines[1].expect == ("helo",)
    recording = Recording.load(example(1))
    assert [(each.status, each.cut) for each in recording.exchanges] == [(429, False), (200, False), (200, True)]
    assert not recording.torn
    spec = re.search(r"such as `(429[^`]*)`", PAGE.read_text())
    assert spec is not None
    assert len(Faults.parse(spec[1]).entries) == 3
