"""Providers by their names: dialects, addresses, keys, chains and what each is given."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chargehand.app.providers.served import model_config, provider_limits, served_chain, with_fallbacks
from chargehand.core.clock import SteppedClock
from chargehand.core.config import Config, ModelConfig
from chargehand.core.errors import ConfigError
from chargehand.models.providers import ProviderLimits, Providers


class Keys:
    def __init__(self, *names: str) -> None:
        self.names = names

    def get(self, name: str) -> str | None:
        return "key" if name in self.names else None


@pytest.mark.parametrize(
    ("short", "dialect", "key", "address"),
    [
        ("openai:gpt-6", "openai", "OPENAI_API_KEY", "https://api.openai.com/v1"),
        ("openai-responses:gpt-6", "responses", "OPENAI_API_KEY", "https://api.openai.com/v1"),
        ("anthropic:claude", "anthropic", "ANTHROPIC_API_KEY", "https://api.anthropic.com"),
        ("gemini:gemini-3", "gemini", "GEMINI_API_KEY", "https://generativelanguage.googleapis.com"),
        ("resetdata:a/b:shared", "openai", "RESETDATA_API_KEY", "https://models.au-syd.resetdata.ai/v1"),
        ("ollama:qwen3:8b", "openai", None, "http://127.0.0.1:11434/v1"),
    ],
)
def test_a_short_form_is_enough(short: str, dialect: str, key: str | None, address: str) -> None:
    served = served_chain(short, Config(), keys=Keys(*([key] if key else [])), environ={})
    assert (served.dialect, served.provider, served.model) == (dialect, address, short.partition(":")[2])
    if key is not None:
        with pytest.raises(ConfigError, match=key):
            served_chain(short, Config(), keys=Keys(), environ={})


def config(**models: Any) -> Config:
    return Config(models={name: ModelConfig(**keys) for name, keys in models.items()})


HOUSE = {"base_url": "https://llm.example.org/v1", "model": "qwen"}


def test_a_chain_holds_each_model_once_and_leaves_out_those_without_a_key() -> None:
    found = config(
        a={**HOUSE, "fallback": ("b", "anthropic:claude")},
        b={**HOUSE, "fallback": ("a", "ollama:qwen3"), "images": False},
    )
    served = served_chain("a", found, keys=Keys(), environ={})
    assert [model.name for model in with_fallbacks([served])] == ["a", "b", "ollama:qwen3"]
    assert [model.images for model in with_fallbacks([served])] == [True, False, True]
    keyed = served_chain("a", found, keys=Keys("ANTHROPIC_API_KEY"), environ={})
    assert [model.dialect for model in keyed.fallback] == ["openai", "anthropic", "openai"]
    assert model_config(found, "a").fallback == ("b", "anthropic:claude")


def test_a_provider_gets_the_least_that_its_models_say() -> None:
    found = config(a={**HOUSE, "concurrency": 4}, b={**HOUSE, "concurrency": 2, "per_minute": 30}, c={**HOUSE})
    limits = provider_limits(found, {})
    assert limits == {HOUSE["base_url"]: ProviderLimits(concurrency=2, per_minute=30)}


def test_rests_grow_with_each_time_that_a_provider_is_still_down() -> None:
    clock = SteppedClock()
    standing = Providers({"p": ProviderLimits(failures=2)}, clock=clock).of("p", "m")
    standing.note_failure()
    assert standing.state == "closed"
    standing.note_failure()
    rests = []
    for _ in range(7):
        rests.append(standing.wait())
        assert not standing.begin_probe()
        clock.advance(standing.wait())
        assert standing.begin_probe()
        assert not standing.begin_probe()
        standing.note_failure()
    assert rests == pytest.approx([15, 30, 60, 60, 60, 60, 60])
    clock.advance(300)
    standing.note_success()
    assert (standing.state, standing.wait()) == ("closed", 0.0)
    standing.note_failure()
    assert standing.state == "closed"


def test_a_place_is_free_again_also_where_its_call_was_given_up() -> None:
    standing = Providers({"p": ProviderLimits(concurrency=1)}, clock=SteppedClock()).of("p", "m").address

    async def used() -> None:
        async with standing.hold_slot(asyncio.sleep):
            raise TimeoutError

    async def several() -> None:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await used()

    asyncio.run(several())
