"""Malformed addresses: each place that takes one refuses it with a message, and none raises another error."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from chargehand.agents.acp.client import action_of_call
from chargehand.app.gateways import GatewayOptions, check_options
from chargehand.app.providers.ollama import ollama_address
from chargehand.cli.main import chargehand
from chargehand.cli.remote.connection import check_url
from chargehand.configuration.keys import NAMED, ConfigKey, entry_keys, parse_value, section_keys
from chargehand.core.errors import ChargehandError, ConfigError
from chargehand.durable.backend.database import check_url as check_database
from chargehand.network.addresses import (
    host_of,
    is_loopback,
    is_plain_web_url,
    is_web_url,
    join_web_url,
)
from chargehand.network.contract import MirrorRefusal, MirrorTrace
from chargehand.network.mirror.cargo import read_cargo_config
from chargehand.network.mirror.go import read_go_config
from chargehand.network.mirror.maven import read_maven_config
from chargehand.network.mirror.npm import read_npm_config
from chargehand.network.mirror.pypi import read_pip_config
from chargehand.network.mirror.settings import ClientAccess, split_login
from chargehand.network.mirror.upstream import AddressPolicy, RegistryClient
from chargehand.policy.actions import Other

WRONG = (
    *(
        "https://[",
        "https://[::zz]",
        "https://[::1",
        "https://h]",
        "https://h:99999",
        "https://h:x",
        "https://h:0",
    ),
    *("https://\u2100.example", "https://", "https:h", "h", "", "https://h?", "https://h#", "https://h\\x"),
    *("https://u:hunter2@h", "https://u:hunter2@[", "ftp://h", "https://h h"),
)
PIECES = ("https", "http", "postgresql", "file", "://", "//", "[", "]", "::1", ":", "99999", "@", "?", "#", "\\")
addresses = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=9).map("".join)


def _keys() -> list[ConfigKey]:
    rows = [*section_keys().values(), *(key for table in NAMED for key in entry_keys(table).values())]
    return [key for key in rows if key.form in ("http", "forge")]


READERS: Mapping[str, Callable[[str], object]] = {
    "host_of": host_of,
    "is_loopback": is_loopback,
    "is_web_url": is_web_url,
    "join_web_url": lambda text: [join_web_url("https://h/x", text), join_web_url(text, "y")],
    "split_login": split_login,
    "policy": lambda text: AddressPolicy([text]),
    "go": lambda text: read_go_config({"GOPROXY": text, "GOSUMDB": f"x {text}", "HOME": "/nonexistent"}),
    "pip": lambda text: read_pip_config({"PIP_INDEX_URL": text, "HOME": "/nonexistent"}),
    "ollama": lambda text: ollama_address({"OLLAMA_HOST": text}),
    "gateway": lambda text: check_options(GatewayOptions(listen=text)),
    "server": check_url,
    "database": check_database,
    "fetch": lambda text: action_of_call({"kind": "fetch", "rawInput": {"url": text}}),
}


@pytest.mark.parametrize("name", READERS)
@given(addresses)
def test_no_address_raises_another_error(name: str, text: str) -> None:
    with contextlib.suppress(ChargehandError):
        READERS[name](text)


@given(addresses)
def test_a_plain_address_has_a_host_and_a_port(text: str) -> None:
    if is_plain_web_url(text):
        parts = urlsplit(text)
        assert parts.hostname
        assert parts.port != 0
        assert not parts.username
        assert parts.geturl().lower() == text.lower()


@pytest.mark.parametrize("text", WRONG)
def test_a_key_that_takes_an_address_refuses_a_malformed_one(text: str) -> None:
    keys = _keys()
    assert len(keys) == 7
    for key in keys:
        with pytest.raises(ConfigError, match="address") as caught:
            parse_value(key, text, "here")
        assert "https://" in caught.value.hint
        assert "hunter2" not in caught.value.message


@pytest.mark.parametrize("text", WRONG)
def test_a_login_at_a_malformed_address_is_a_wrong_use(tmp_path: Path, text: str) -> None:
    environment = {"HOME": str(tmp_path), "CHARGEHAND_HOME": str(tmp_path / "state")}
    words = ["--json", "forge", "login", "x", "--kind", "gitea", "--url", text]
    done = CliRunner().invoke(chargehand, words, env=environment, input="token\n")
    assert done.exit_code == 2, (done.exception, done.stderr)
    error = json.loads(done.stderr)["error"]
    assert f"{text.rpartition('@')[2]!r} is not the address of a forge" in error["message"]
    assert "https://git.example.org" in error["hint"]
    assert "hunter2" not in done.stderr


def test_a_malformed_address_of_an_agent_is_an_unknown_action() -> None:
    call = {"kind": "fetch", "title": "fetch", "rawInput": {"url": "https://["}}
    assert action_of_call(call) == Other(kind="tool", name="fetch")


@pytest.mark.parametrize("url", ["https://[::zz]", "https://h:99999", "https://["])
def test_malformed_settings_of_package_clients_are_read(tmp_path: Path, url: str) -> None:
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2/settings.xml").write_text(
        f"<settings><mirrors><mirror><id>m</id><mirrorOf>*</mirrorOf><url>{url}</url></mirror></mirrors>"
        "<servers><server><id>m</id><username>u</username><password>p</password></server></servers></settings>"
    )
    (tmp_path / ".npmrc").write_text(f"{url.removeprefix('https:')}/:_authToken=t\n")
    (tmp_path / ".cargo").mkdir()
    (tmp_path / ".cargo/config.toml").write_text(f'[registries.r]\nindex = "sparse+{url}/"\ntoken = "t"\n')
    (tmp_path / ".netrc").write_text("machine h login u password p\n")
    environ = {"HOME": str(tmp_path), "GOPROXY": url, "PATH": "/nonexistent"}
    (repository, *_) = read_maven_config(environ).repositories
    assert "not http or https" in repository.problem
    assert read_npm_config(environ).registry
    assert read_cargo_config(environ).sources
    assert read_go_config(environ).proxies[0].url == url


@pytest.mark.parametrize("url", ["https://[::zz]/x", "https://h:99999/x", "https://[", "h", ""])
async def test_a_malformed_address_of_a_registry_is_refused_when_it_is_asked(url: str) -> None:
    client = RegistryClient(ClientAccess(), policy=AddressPolicy([url]), page_bytes=1_000)
    with pytest.raises(MirrorRefusal, match="not a web address"):
        await client.page(url, accept="*/*", trace=MirrorTrace())
    await client.close()
