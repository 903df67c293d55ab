"""Log lines: for people and as JSON, without secrets, one record per line, in a file of limited size."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.server_kit import API, environment, serving

from chargehand.cli.terminal.logs import JsonFormatter, TextFormatter, trim_log
from chargehand.core.config import Config, ForgeConfig, ModelConfig
from chargehand.core.errors import ConfigError
from chargehand.core.own_config import AlertsConfig, TracesConfig
from chargehand.core.redaction import Redactor, log_fields
from chargehand.credentials.credentials import open_credentials
from chargehand.reports.known_secrets import KnownSecrets
from chargehand.reports.reading import StateReader

SECRET = "hunter2-and-more"
REDACTOR = Redactor({"HOOK_SECRET": SECRET})


def record(message: str, *values: object, fails: bool = False, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("chargehand.worker", logging.WARNING, "f.py", 1, message, values, None)
    made.fields = fields
    if fails:
        try:
            try:
                raise ValueError(f"within {SECRET}")
            except ValueError as inner:
                raise RuntimeError("without") from inner
        except RuntimeError:
            made.exc_info = sys.exc_info()
    return made


def as_json(made: logging.LogRecord) -> dict[str, Any]:
    text = JsonFormatter(REDACTOR).format(made)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_line_contains_its_context_fields() -> None:
    async def work(mission: str) -> dict[str, Any]:
        with log_fields(mission=mission):
            await asyncio.sleep(0)

            async def attempt() -> dict[str, Any]:
                with log_fields(attempt="a-1"):
                    return as_json(record("%s of %d", "one", 2))

            return await asyncio.create_task(attempt())

    async def both() -> list[dict[str, Any]]:
        return await asyncio.gather(work("m-1"), work("m-2"))

    first, second = asyncio.run(both())
    assert (first["mission"], first["attempt"], first["message"]) == ("m-1", "a-1", "one of 2")
    assert (second["mission"], first["level"], first["logger"]) == ("m-2", "warning", "chargehand.worker")
    assert "mission" not in as_json(record("later"))
    with log_fields(mission="m-1"):
        assert (
            TextFormatter(REDACTOR)
            .format(record("said"))
            .endswith("WARNING chargehand.worker: said [mission=m-1]")
        )


def test_an_exception_is_data_with_its_cause() -> None:
    error = as_json(record("it failed", fails=True))["exception"]
    assert (error["type"], error["message"], error["cause"]["type"]) == ("RuntimeError", "without", "ValueError")
    assert "test_logs.py" in error["frames"][0]
    assert error["cause"]["message"] == "within [redacted:HOOK_SECRET]"


def test_a_line_contains_no_secret_and_cannot_be_forged() -> None:
    shaped = "sk-ant-0123456789abcdefghij"
    for formatter in (TextFormatter(REDACTOR), JsonFormatter(REDACTOR)):
        with log_fields(mission=f"m-{SECRET}"):
            text = formatter.format(
                record("%s and %s\n2026 ERROR forged\x1b[2J", SECRET, shaped, note=SECRET, fails=True)
            )
        assert SECRET not in text
        assert shaped not in text
        assert "\x1b" not in text
        assert len([line for line in text.splitlines() if "forged" in line and line.startswith("2026 ")]) == 0


def test_secrets_are_those_that_are_stored_and_named(tmp_path: Path) -> None:
    environ = environment(tmp_path) | {
        "OPENAI_API_KEY": "of-the-environment",
        "CHARGEHAND_ALERTS_WEBHOOK_SECRET": "HOOK_SECRET",
        "EDITOR": "nano",
    }
    with StateReader.open(environ=environ, cwd=tmp_path) as reader:
        reader.credentials.set("HOOK_SECRET", SECRET)
        found = KnownSecrets(reader, reader.user_configuration().config).read()
    assert found["OPENAI_API_KEY"] == "of-the-environment"
    assert found["HOOK_SECRET"] == SECRET
    assert "EDITOR" not in found


def test_secrets_that_change_while_lines_are_written_are_left_out(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    with StateReader.open(environ=environ, cwd=tmp_path) as reader:
        reader.credentials.set("HOOK_SECRET", "the-first-value")
        known = KnownSecrets(reader, Config())
        formatter = TextFormatter(known)
        assert "the-first" not in formatter.format(record("the-first-value"))
        reader.credentials.set("HOOK_SECRET", "the-second-value")
        assert "-value" not in formatter.format(record("the-first-value the-second-value"))
        # Secrets that cannot be read any more stay known, and no line is lost.
        next(tmp_path.rglob("secrets.json")).chmod(0o644)
        assert "-value" not in formatter.format(record("the-first-value the-second-value"))
        with pytest.raises(ConfigError):
            known.redact("the-first-value")


def test_every_key_that_names_a_secret_is_known(tmp_path: Path) -> None:
    config = Config(
        models={
            "m": ModelConfig(key="OF_MODEL"),
            "local": ModelConfig(provider="ollama"),
            "own": ModelConfig(provider="openai"),
            "gone": ModelConfig(provider="gone"),
        },
        alerts=AlertsConfig(webhook_secret="OF_ALERTS", mail_password="OF_MAIL"),
        traces=TracesConfig(secret="OF_TRACES"),
        forges={"lab": ForgeConfig(webhook_secret="OF_HOOK"), "my-hub": ForgeConfig(token="OF_HUB")},
    )
    names = {
        *("OF_MODEL", "OPENAI_API_KEY", "OF_ALERTS", "OF_MAIL", "OF_TRACES"),
        *("OF_HOOK", "LAB_TOKEN", "OF_HUB"),
    }
    environ = {name: f"value of {name}" for name in names} | {"ANOTHER_PASSWORD": "of another program"}
    # Such a value is invalid as a secret, and still one that no text may have.
    environ["OF_MODEL"] = "two\nlines"
    with StateReader.open(environ={"HOME": str(tmp_path)} | environ, cwd=tmp_path) as reader:
        assert KnownSecrets(reader, config, variables=False).read().keys() == names
        assert KnownSecrets(reader, config).read().keys() == {*names, "ANOTHER_PASSWORD"}
        assert "two" not in KnownSecrets(reader, config).redact("two\nlines")


def test_a_change_in_a_keyring_is_a_new_version(tmp_path: Path) -> None:
    one, other = (open_credentials({}, tmp_path) for _ in range(2))
    one.set("HOOK_SECRET", SECRET)
    before = other.version()
    # The content of the file stays, as it does if the secret itself is in the keyring.
    one.set("HOOK_SECRET", SECRET)
    assert other.version() != before


def test_a_log_file_is_cut_as_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    with path.open("ab") as first, path.open("ab") as second:
        first.write(b"x" * 100)
        first.flush()
        trim_log(path, first.fileno(), largest=100)
        assert path.stat().st_size == 100
        second.write(b"y")
        second.flush()
        trim_log(path, second.fileno(), largest=100)
        assert (path.read_bytes(), path.with_suffix(".log.1").read_bytes()) == (b"", b"x" * 100 + b"y")
        first.write(b"z")
        first.flush()
        assert path.read_bytes() == b"z"
    with (tmp_path / "other").open("ab") as other:
        other.write(b"x" * 200)
        other.flush()
        trim_log(path, other.fileno(), largest=100)
        assert (tmp_path / "other").stat().st_size == 200


def test_the_server_logs_each_request_and_no_query(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("chargehand.access").setLevel(logging.INFO)
    try:
        with serving(environment(tmp_path), tmp_path) as served:
            client = served.token("read")
            token = client.headers["Authorization"]
            assert client.get(f"{API}/missions/m-none?format=markdown&x={SECRET}").status_code == 400
            answer = client.get(f"{API}/system")
            assert answer.status_code == 200
            assert served.stranger().get(f"{API}/{SECRET}").status_code == 404
            served.stranger().get("/health", headers={"Host": f"{SECRET}.example"})
    finally:
        logging.getLogger("chargehand.access").setLevel(logging.NOTSET)
    lines = [vars(each)["fields"] for each in caplog.records if each.name == "chargehand.access"]
    found = {(line["method"], line["route"], line["status"], line["account"]) for line in lines}
    owner = next(line["account"] for line in lines if line["route"] == f"{API}/system")
    assert owner.startswith("os:")
    assert ("GET", f"{API}/missions/{{mission}}", 400, owner) in found
    assert ("GET", f"{API}/{{rest:path}}", 404, "-") in found
    assert ("GET", "-", 403, "-") in found
    assert len(answer.headers["x-request-id"]) == 16
    assert all(line["milliseconds"] > 0 for line in lines)
    assert SECRET not in str(lines)
    assert token.removeprefix("Bearer ") not in caplog.text
