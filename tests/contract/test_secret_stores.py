"""Stores of secrets that are servers: Vault by a stand-in that `hvac` works with too, AWS by moto."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import hvac
import pytest
from tests.aws_kit import CREDENTIALS, open_aws
from tests.vault_stand_in import Vault, open_vault

from chargehand.core.errors import ChargehandError, ConfigError, RefusedError
from chargehand.core.own_config import SecretKeyConfig, SecretsConfig, SecretSourceConfig
from chargehand.core.ports import KeySource
from chargehand.credentials.credentials import (
    KEY_SOURCES,
    Credentials,
    KeySetup,
    StoreFailedError,
    open_credentials,
)
from chargehand.testing.names.suites import KeySourceContract

VALUE = "sk-0123456789abcdef"
NAME = "OPENAI_API_KEY"


@pytest.fixture
def vault() -> Iterator[Vault]:
    with open_vault() as made:
        yield made


def opened(vault: Vault, tmp_path: Path, *, key: SecretKeyConfig | None = None, **more: Any) -> Credentials:
    """Return the credentials of a person whose source `corp` is the stand-in."""
    source = SecretSourceConfig(kind="vault", address=vault.address, **more)
    entry = key or SecretKeyConfig(sources=("corp",), path="team/ai", field="key")
    settings = SecretsConfig(sources={"corp": source}, keys={NAME: entry})
    environ = {"VAULT_TOKEN": vault.root, "ROLE_SECRET": "the-secret-id"}
    return open_credentials(environ, tmp_path / "config", lambda: settings, clock=vault.clock)


def fails(kind: type[ChargehandError], code: str, work: Callable[[], object]) -> str:
    """Return the whole text of the error; it contains no value."""
    with pytest.raises(kind) as caught:
        work()
    assert caught.value.code == code
    assert caught.value.hint
    shown = "".join(traceback.format_exception(caught.value)) + caught.value.hint
    assert VALUE not in shown
    assert "hvs." not in shown
    return shown


class TestVault(KeySourceContract):
    @pytest.fixture
    def source(self, vault: Vault, tmp_path: Path) -> KeySource:
        vault.write("THE_KEY", value=self.value)
        config = SecretSourceConfig(kind="vault", address=vault.address)
        return KEY_SOURCES["vault"](KeySetup({}, tmp_path, config, "corp", {"VAULT_TOKEN": vault.root}.get))


def test_another_client_of_vault_works_with_the_stand_in(vault: Vault) -> None:
    client = hvac.Client(url=vault.address, token=vault.root)
    kv = client.secrets.kv.v2
    kv.create_or_update_secret("team/ai", secret={"key": "one"})
    kv.create_or_update_secret("team/ai", secret={"key": "two"})
    read = kv.read_secret_version("team/ai", raise_on_deleted_version=True)["data"]
    assert (read["data"], read["metadata"]["version"]) == ({"key": "two"}, 2)
    kv.delete_latest_version_of_secret("team/ai")
    with pytest.raises(hvac.exceptions.InvalidPath):
        kv.read_secret_version("team/ai", raise_on_deleted_version=True)
    vault.roles["role"], vault.accounts["account"] = "right", "jwt"
    guest = hvac.Client(url=vault.address)
    with pytest.raises(hvac.exceptions.InvalidRequest):
        guest.auth.approle.login("role", "wrong")
    login = guest.auth.approle.login("role", "right")["auth"]
    assert (login["lease_duration"], login["renewable"], guest.is_authenticated()) == (600, True, True)
    vault.clock.advance(500)
    assert guest.lookup_token()["data"]["ttl"] == 100
    assert guest.auth.token.renew_self()["auth"]["lease_duration"] == 600
    vault.clock.advance(601)
    with pytest.raises(hvac.exceptions.Forbidden):
        guest.auth.token.renew_self()
    guest.auth.kubernetes.login("account", "jwt")
    assert guest.is_authenticated()
    client.sys.seal()
    assert client.sys.is_sealed()
    with pytest.raises(hvac.exceptions.VaultDown):
        kv.read_secret_version("team/ai", raise_on_deleted_version=True)
    client.sys.submit_unseal_key("any")
    assert not client.sys.is_sealed()


@pytest.mark.parametrize("login", ["token", "token_file", "approle", "kubernetes"])
def test_each_login_reads_the_secret_and_logs_in_once(login: str, vault: Vault, tmp_path: Path) -> None:
    vault.write("team/ai", key=VALUE)
    vault.roles["the-role"] = "the-secret-id"
    vault.accounts["the-role"] = "the-jwt"
    file = tmp_path / "token"
    file.write_text("the-jwt" if login == "kubernetes" else f"{vault.root}\n")
    more: dict[str, dict[str, Any]] = {
        "token": {},
        "token_file": {"key_file": str(file)},
        "approle": {"login": "approle", "role": "the-role", "secret": "ROLE_SECRET"},
        "kubernetes": {"login": "kubernetes", "role": "the-role", "key_file": str(file)},
    }
    keys = opened(vault, tmp_path, **more[login])
    assert (keys.get(NAME), keys.describe(NAME)) == (VALUE, "corp")
    vault.clock.advance(301)
    assert keys.get(NAME) == VALUE
    assert vault.count("data/team/ai") == 2
    assert vault.count("login") == (login in ("approle", "kubernetes"))


def test_a_value_is_kept_for_its_time_and_then_read_again(vault: Vault, tmp_path: Path) -> None:
    vault.write("team/ai", key="old-value-of-it")
    keys = opened(vault, tmp_path)
    assert keys.get(NAME) == "old-value-of-it"
    vault.write("team/ai", key=VALUE)
    vault.clock.advance(299)
    assert keys.get(NAME) == "old-value-of-it"
    vault.clock.advance(2)
    assert keys.get(NAME) == VALUE


def test_a_lease_is_renewed_before_it_ends_and_a_lost_one_replaced_by_a_new_login(
    vault: Vault, tmp_path: Path
) -> None:
    vault.write("team/ai", key=VALUE)
    vault.roles["the-role"] = "the-secret-id"
    keys = opened(vault, tmp_path, login="approle", role="the-role", secret="ROLE_SECRET")
    for _ in range(5):
        assert keys.get(NAME) == VALUE
        vault.clock.advance(420)
    assert (vault.count("login"), vault.count("renew-self")) == (1, 4)
    # A lease that ended while no secret was read, and a token that was revoked.
    vault.clock.advance(10_000)
    assert keys.get(NAME) == VALUE
    vault.tokens = {vault.root: vault.tokens[vault.root]}
    vault.clock.advance(301)
    assert keys.get(NAME) == VALUE
    assert vault.count("login") == 3


def test_a_lost_token_of_the_user_is_refused_until_its_file_has_a_new_one(vault: Vault, tmp_path: Path) -> None:
    vault.write("team/ai", key=VALUE)
    file = tmp_path / "token"
    file.write_text(vault.grant(ttl=100, renewable=False).id)
    keys = opened(vault, tmp_path, key_file=str(file))
    assert keys.get(NAME) == VALUE
    vault.clock.advance(301)
    assert "policy of its token" in fails(RefusedError, "secret_denied", lambda: keys.get(NAME))
    file.write_text(vault.grant().id)
    assert keys.get(NAME) == VALUE


def test_a_changed_policy_ends_the_use_at_once_when_the_value_is_read_again(vault: Vault, tmp_path: Path) -> None:
    vault.write("team/ai", key=VALUE)
    token = vault.grant(paths=("team/",))
    keys = opened(vault, tmp_path)
    vault.tokens[vault.root] = token
    assert keys.get(NAME) == VALUE
    token.paths = ("elsewhere/",)
    vault.clock.advance(301)
    assert "denies 'team/ai'" in fails(RefusedError, "secret_denied", lambda: keys.get(NAME))
    assert fails(RefusedError, "secret_denied", lambda: keys.get(NAME)), "no earlier value comes back"


@pytest.mark.parametrize("trouble", ["sealed", "429", "500", "slow"])
def test_a_store_that_cannot_answer_is_an_error_but_a_known_value_stays_for_an_hour(
    trouble: str, vault: Vault, tmp_path: Path
) -> None:
    vault.write("team/ai", key=VALUE)
    keys, fresh = (opened(vault, tmp_path / name, timeout=0.2) for name in ("known", "fresh"))
    assert keys.get(NAME) == VALUE
    vault.sealed = trouble == "sealed"
    vault.failing = int(trouble) if trouble.isdecimal() else 0
    if trouble == "slow":
        vault.open.clear()
    said = fails(StoreFailedError, "secret_store", lambda: fresh.get(NAME))
    assert {"slow": "no answer in time"}.get(trouble, trouble) in said
    vault.clock.advance(301)
    found = keys.find(NAME)
    assert found is not None
    assert (found.value, bool(found.stale)) == (VALUE, True)
    vault.clock.advance(3_600)
    fails(StoreFailedError, "secret_store", lambda: keys.get(NAME))
    vault.sealed, vault.failing = False, 0
    vault.open.set()
    assert keys.get(NAME) == VALUE


def test_a_value_that_a_person_forced_out_is_not_used_while_the_store_is_away(
    vault: Vault, tmp_path: Path
) -> None:
    vault.write("team/ai", key=VALUE)
    keys = opened(vault, tmp_path)
    assert keys.get(NAME) == VALUE
    vault.sealed = True
    assert keys.get(NAME) == VALUE
    # By another process.
    opened(vault, tmp_path).rotate(NAME)
    fails(StoreFailedError, "secret_store", lambda: keys.get(NAME))


def test_a_store_that_is_down_or_elsewhere_is_named_without_its_secrets(vault: Vault, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}"
    vault.address, here = closed, vault.address
    assert "cannot be asked" in fails(StoreFailedError, "secret_store", lambda: opened(vault, tmp_path).get(NAME))
    vault.address = here
    vault.failing = 307
    keys = opened(vault, tmp_path)
    assert "redirects" in fails(ConfigError, "secret_source", lambda: keys.get(NAME))
    vault.failing = 0
    vault.write("team/ai", key=7, other=VALUE)
    assert "no text" in fails(ConfigError, "secret_source", lambda: keys.get(NAME))
    keys = opened(vault, tmp_path, key=SecretKeyConfig(sources=("corp",), path="team/ai", field="missing"))
    assert "fields: key, other" in fails(ConfigError, "secret_source", lambda: keys.get(NAME))
    keys = opened(vault, tmp_path, mount="kv")
    assert "no engine mounted at 'kv'" in fails(ConfigError, "secret_source", lambda: keys.get(NAME))
    keys = opened(vault, tmp_path, key=SecretKeyConfig(sources=("corp",), path="none/here"))
    assert keys.get(NAME) is None
    keys = opened(vault, tmp_path, login="approle", role="the-role", secret="ROLE_SECRET")
    assert "refuses the login" in fails(RefusedError, "secret_denied", lambda: keys.get(NAME))
    keys = opened(vault, tmp_path, secret="NOT_SET")
    assert "NOT_SET is not set" in fails(ConfigError, "secret_source", lambda: keys.get(NAME))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (f"{VALUE}\nsecond", "several lines"),
        (VALUE * 4_000, "longer than 16 kB"),
        (VALUE * 20_000, "too_large"),
        (f"{VALUE}\x00", "control characters"),
    ],
    ids=["lines", "64kB", "huge", "control"],
)
def test_a_value_that_no_header_can_carry_is_refused_and_not_shown(
    value: str, problem: str, vault: Vault, tmp_path: Path
) -> None:
    vault.write("team/ai", key=value)
    with pytest.raises(ChargehandError) as caught:
        opened(vault, tmp_path).get(NAME)
    if problem == "too_large":
        assert caught.value.code == "secret_store"
    else:
        assert problem in fails(ChargehandError, "secret_invalid", lambda: opened(vault, tmp_path).get(NAME))
    assert vault.kept["team/ai"] == [{"key": value}]


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with open_aws() as address:
        yield address


@pytest.fixture
def aws(moto: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return another client of an empty account."""
    for name, value in {**CREDENTIALS, "AWS_CONFIG_FILE": str(tmp_path / "none")}.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("secretsmanager", endpoint_url=moto)
    for each in client.list_secrets()["SecretList"]:
        client.delete_secret(SecretId=each["Name"], ForceDeleteWithoutRecovery=True)
    return client


def of_aws(address: str, tmp_path: Path, **more: Any) -> Credentials:
    source = SecretSourceConfig(kind="aws", address=address, timeout=5)
    key = SecretKeyConfig(**{"sources": ("cloud",), "path": "team/ai", **more})
    settings = SecretsConfig(sources={"cloud": source}, keys={NAME: key})
    return open_credentials({}, tmp_path, lambda: settings)


class TestAws(KeySourceContract):
    @pytest.fixture
    def source(self, moto: str, aws: Any, tmp_path: Path) -> KeySource:
        aws.create_secret(Name="THE_KEY", SecretString=self.value)
        config = SecretSourceConfig(kind="aws", address=moto)
        return KEY_SOURCES["aws"](KeySetup({}, tmp_path, config, "cloud"))


def test_aws_gives_texts_fields_and_the_rotated_version(moto: str, aws: Any, tmp_path: Path) -> None:
    aws.create_secret(Name="team/ai", SecretString=json.dumps({"key": VALUE, "number": 7}))
    keys = of_aws(moto, tmp_path, field="key")
    assert (keys.get(NAME), keys.describe(NAME)) == (VALUE, "cloud")
    aws.put_secret_value(SecretId="team/ai", SecretString=json.dumps({"key": "the-next-value"}))
    assert keys.get(NAME) == VALUE
    found = keys.find(NAME, rejected=VALUE)
    assert found is not None
    assert found.value == "the-next-value"
    aws.put_secret_value(SecretId="team/ai", SecretString="plain-text-value")
    keys.rotate(NAME)
    fails(ConfigError, "secret_source", lambda: keys.get(NAME))
    assert of_aws(moto, tmp_path).get(NAME) == "plain-text-value"
    assert of_aws(moto, tmp_path, path="not/there").get(NAME) is None
    aws.create_secret(Name="binary", SecretBinary=b"123")
    fails(ConfigError, "secret_source", lambda: of_aws(moto, tmp_path, path="binary").get(NAME))
    aws.delete_secret(SecretId="team/ai")
    assert of_aws(moto, tmp_path).get(NAME) is None


@pytest.mark.parametrize(
    ("kind", "code", "error"),
    [
        ("AccessDeniedException", "secret_denied", RefusedError),
        ("ExpiredTokenException", "secret_denied", RefusedError),
        ("InternalServiceError", "secret_store", StoreFailedError),
        ("ThrottlingException", "secret_store", StoreFailedError),
    ],
)
@pytest.mark.usefixtures("aws")
def test_errors_of_aws_are_told_apart_and_its_words_are_not_repeated(
    kind: str, code: str, error: type[ChargehandError], tmp_path: Path
) -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers["content-length"]))
            content = json.dumps({"__type": kind, "message": f"not with {VALUE}"}).encode()
            self.send_response(400)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            keys = of_aws(f"http://127.0.0.1:{server.server_address[1]}", tmp_path)
            assert kind in fails(error, code, lambda: keys.get(NAME))
        finally:
            server.shutdown()
            thread.join()
    assert len(asked) == (3 if kind == "ThrottlingException" else 1), "throttled requests are repeated"


def test_without_credentials_or_boto3_it_says_so(
    moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert "NoCredentialsError" in fails(RefusedError, "secret_denied", lambda: of_aws(moto, tmp_path).get(NAME))
    monkeypatch.setitem(sys.modules, "boto3", None)
    assert re.search(
        r"chargehand\[aws\]", fails(ChargehandError, "not_installed", lambda: of_aws(moto, tmp_path).get(NAME))
    )
