"""The key of a provider may change while a gateway is open."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.native_kit import ModelServer, says

from chargehand.app.providers.served import existing_keys, has_key, provider_scope, require_key, served_model
from chargehand.core.clock import SteppedClock
from chargehand.core.config import LimitsConfig, ModelConfig
from chargehand.core.errors import RefusedError, UpstreamError
from chargehand.core.own_config import SecretKeyConfig, SecretsConfig, SecretSourceConfig
from chargehand.core.ports import KeyUse
from chargehand.credentials.credentials import Credentials, StoreFailedError, open_credentials
from chargehand.credentials.scoped import ScopedKeys
from chargehand.models.contract import ModelCall, ServedModel

NAME = "THE_KEY"
CALL = ModelCall(
    id="c",
    dialect="openai",
    body={"model": "up", "messages": [{"role": "user", "content": "hi"}]},
    attempt="a",
    turn=1,
    seconds=5.0,
)


class Provider(ModelServer):
    """Accepts one key, and repeats any other in its error."""

    def __init__(self) -> None:
        super().__init__([says("well")])
        self.accepted = "first-key-0001"
        self.keys: list[str] = []

    def _answer(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, str, bytes]:
        key = {name.lower(): text for name, text in headers.items()}["authorization"].removeprefix("Bearer ")
        self.keys.append(key)
        if key != self.accepted:
            return 401, "application/json", json.dumps({"error": {"message": f"wrong: {key}"}}).encode()
        return super()._answer(body, headers)


class Setting:
    """A provider, and a key that a person changes in the environment."""

    def __init__(self, place: Path, address: str, server: Provider) -> None:
        self.server, self.environ, self.clock = server, {NAME: server.accepted}, SteppedClock()
        self.config = ModelConfig(provider="openai-compatible", base_url=address, model="up", key=NAME)
        self.scope: dict[str, Any] = {}
        self.credentials: Credentials = open_credentials(self.environ, place, self.settings, self.clock)
        self.keys = ScopedKeys(self.credentials, KeyUse())

    def settings(self) -> SecretsConfig:
        return SecretsConfig(keys={NAME: SecretKeyConfig(**self.scope)})

    def model(self) -> ServedModel:
        return served_model("m", self.config, keys=self.keys, limits=LimitsConfig())

    async def ask(self, model: ServedModel) -> tuple[int, str]:
        reply = await model.upstream.send(CALL)
        return reply.status, (await reply.read_all()).decode()


@contextmanager
def setting(place: Path) -> Iterator[Setting]:
    server = Provider()
    with server.running() as address:
        yield Setting(place, address, server)


async def test_a_refused_key_is_read_again_and_the_call_repeated_once(tmp_path: Path) -> None:
    with setting(tmp_path) as made:
        model = made.model()
        assert (await made.ask(model))[0] == 200
        made.environ[NAME] = made.server.accepted = "second-key-0002"
        assert (await made.ask(model))[0] == 200
        assert (await made.ask(model))[0] == 200
        assert made.server.keys == ["first-key-0001", "first-key-0001", "second-key-0002", "second-key-0002"]
        # The source has no other key: the refusal is passed on, without the key.
        made.server.accepted = "third-key-00003"
        status, text = await made.ask(model)
        assert status == 401
        assert "second-key-0002" not in text
        assert f"[redacted:{NAME}]" in text
        assert len(made.server.keys) == 5
        await model.upstream.close()


async def test_calls_that_are_refused_at_once_read_the_new_key_and_all_succeed(tmp_path: Path) -> None:
    with setting(tmp_path) as made:
        model = made.model()
        made.environ[NAME] = made.server.accepted = "second-key-0002"
        answers = await asyncio.gather(*(made.ask(model) for _ in range(5)))
        assert {status for status, _ in answers} == {200}
        assert set(made.server.keys[-5:]) == {"second-key-0002"}
        await model.upstream.close()


async def test_a_key_is_read_again_after_its_time_and_when_a_person_forces_it(tmp_path: Path) -> None:
    with setting(tmp_path) as made:
        model = made.model()
        await made.ask(model)
        made.environ[NAME] = "second-key-0002"
        assert (await made.ask(model))[0] == 200, "the first key is still used"
        made.clock.advance(301)
        made.server.accepted = "second-key-0002"
        await made.ask(model)
        made.environ[NAME] = made.server.accepted = "third-key-00003"
        open_credentials({}, tmp_path).rotate(NAME)
        await made.ask(model)
        assert made.server.keys == ["first-key-0001", "first-key-0001", "second-key-0002", "third-key-00003"]
        del made.environ[NAME]
        made.credentials.rotate(NAME)
        with pytest.raises(UpstreamError, match="THE_KEY is not set any more"):
            await made.ask(model)
        assert len(made.server.keys) == 4
        await model.upstream.close()


async def test_a_scope_that_is_narrowed_meanwhile_ends_the_use(tmp_path: Path) -> None:
    with setting(tmp_path) as made:
        model = made.model()
        made.scope = {"providers": ("elsewhere.example",)}
        made.clock.advance(301)
        with pytest.raises(UpstreamError, match="may not be used by"):
            await made.ask(model)
        assert made.server.keys == []
        with pytest.raises(RefusedError) as caught:
            require_key("m", made.config, made.keys)
        assert caught.value.code == "secret_scope"
        assert not has_key(made.config, existing_keys(made.credentials))
        made.scope = {"providers": ("127.0.0.1",), "roles": ("reviewer",)}
        assert has_key(made.config, existing_keys(made.credentials)), "its role is not decided yet"
        assert not has_key(made.config, made.keys)
        await model.upstream.close()


def test_a_model_whose_store_fails_is_not_offered_and_says_why_when_it_is_wanted(tmp_path: Path) -> None:
    say = SecretSourceConfig(kind="command", command=("false",))
    settings = SecretsConfig(order=("say",), sources={"say": say})
    keys = existing_keys(open_credentials(dict(os.environ), tmp_path, lambda: settings))
    config = ModelConfig(provider="openai", model="m")
    assert not has_key(config, keys)
    with pytest.raises(StoreFailedError, match="ended with exit code 1"):
        require_key("m", config, keys)


@pytest.mark.parametrize(
    ("provider", "address", "scope"),
    [
        ("openai", None, "openai"),
        ("openai", "https://api.openai.com/v1", "openai"),
        ("openai", "http://api.openai.com/v1", "api.openai.com"),
        ("openai", "https://api.openai.com.evil.example/v1", "api.openai.com.evil.example"),
        ("openai", "https://api.openai.com:444/v1", "api.openai.com"),
        ("openai-compatible", "https://models.example/v1", "models.example"),
        ("anthropic", "https://api.anthropic.com", "anthropic"),
    ],
)
def test_a_provider_counts_by_its_name_at_its_own_address_only(
    provider: str, address: str | None, scope: str
) -> None:
    assert provider_scope(ModelConfig(provider=provider, base_url=address, model="m")) == scope
