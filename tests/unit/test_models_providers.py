"""Models and providers: known facts and their sources; names, addresses, keys, chains, health."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.provider_kit import Provider, serving

from chargehand.app.providers.probe import probe_model
from chargehand.app.providers.served import (
    ProbeReports,
    known_facts,
    model_config,
    provider_limits,
    served_chain,
    served_model,
    with_fallbacks,
)
from chargehand.app.wiring.gateways import ProviderHealthRegistry
from chargehand.core.clock import SteppedClock, SystemClock
from chargehand.core.config import Config, LimitsConfig, ModelConfig
from chargehand.core.errors import ConfigError
from chargehand.models.catalogue import (
    MODALITIES,
    ModelFacts,
    Reported,
    find_capabilities,
    find_facts,
    find_price,
    listed_models,
)
from chargehand.models.contract import Dialect
from chargehand.models.probes import small_answer
from chargehand.models.providers import ProviderLimits, Providers
from chargehand.models.registries import DIALECTS
from chargehand.models.scripted_replies import ScriptedCall, ScriptedReply, render


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


def test_a_slot_is_released_after_a_call_times_out() -> None:
    standing = Providers({"p": ProviderLimits(concurrency=1)}, clock=SteppedClock()).of("p", "m").address

    async def used() -> None:
        async with standing.hold_slot(asyncio.sleep):
            raise TimeoutError

    async def several() -> None:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await used()

    asyncio.run(several())


PLACE = "https://a.example"


async def test_missions_with_the_same_limits_share_provider_health() -> None:
    standings, clock = ProviderHealthRegistry(), SystemClock()
    known = standings.of({PLACE: ProviderLimits(concurrency=2)}, clock)
    known.of(PLACE, "m").note_failure()
    again = standings.of({PLACE: ProviderLimits(concurrency=2)}, clock)
    assert again is known
    assert again.of(PLACE, "m") is known.of(PLACE, "m")
    assert standings.of({PLACE: ProviderLimits(concurrency=3)}, clock) is not known


def test_each_event_loop_has_separate_provider_health() -> None:
    standings, clock = ProviderHealthRegistry(), SystemClock()

    async def known() -> object:
        return standings.of({}, clock)

    assert asyncio.run(known()) is not asyncio.run(known())


DATA = "models.dev"


def facts(provider: str, model: str, reported: Reported | None = None, **keys: Any) -> ModelFacts:
    return find_facts(provider, model, ModelConfig(**keys), reported=reported, assume=None)


def test_precedence_of_the_sources_of_model_facts() -> None:
    known = facts("openai", "gpt-4o")
    assert (known.context.source, known.context.value) == ("genai-prices", 128_000)
    assert known.tools.value is True
    assert str(known.tools.source).startswith(DATA)
    assert (known.takes["image"].value, known.takes["audio"].value) == (True, False)
    tried = facts("openai", "gpt-4o", Reported(day="2026-01-31", tools=False, images=False, context=7))
    assert (tried.tools.value, tried.tools.source) == (False, "probe 2026-01-31")
    assert (tried.takes["image"].value, tried.context.value) == (False, 7)
    assert str(tried.takes["pdf"].source).startswith(DATA)
    own = facts(
        "openai", "gpt-4o", Reported(day="2026-01-31", tools=False), tools=True, context=9, modalities=("audio",)
    )
    assert (own.tools.value, own.tools.source, own.context.value) == (True, "configured", 9)
    assert [name for name in MODALITIES if own.takes[name].value] == ["text", "audio"]
    assert facts("openai", "gpt-4o", images=False).takes["image"].value is False


@pytest.mark.parametrize(
    ("provider", "model", "keys"),
    [
        ("openai", "unheard-of", {}),
        ("openai-compatible", "gpt-4o", {"base_url": "http://127.0.0.1:1/v1"}),
        ("openai-compatible", "gpt-4o", {"base_url": "https://nobody.example.org/v1"}),
        ("ollama", "qwen3", {}),
    ],
)
def test_facts_without_a_source_are_null(provider: str, model: str, keys: dict[str, Any]) -> None:
    unknown = facts(provider, model, **keys)
    said = [unknown.context, unknown.max_output, unknown.tools, unknown.reasoning, unknown.structured]
    said += [unknown.gives, unknown.released, unknown.status, unknown.embeddings, *unknown.takes.values()]
    assert {(fact.value, fact.source) for fact in said} == {(None, None)}


def test_the_data_has_no_invented_figure() -> None:
    count = 0
    for provider, model, listed in listed_models():
        count += 1
        assert 0 not in (listed.context, listed.max_output), (provider, model)
        assert listed.takes != (), (provider, model)
        assert listed.price is None or listed.price.input > 0, (provider, model)
    assert count > 5000
    assert list(listed_models("nobody")) == []


def test_prices_of_models_dev_come_after_those_of_genai_prices() -> None:
    found = find_price("openai", "gpt-4o", ModelConfig(), assume=9.0)
    assert found is not None
    assert found.source == "genai-prices"
    priced = next((model, one.price) for _, model, one in listed_models("siliconflow") if one.price is not None)
    there = ModelConfig(base_url="https://api.siliconflow.com/v1")
    price = find_price("openai-compatible", priced[0], there, assume=9.0)
    assert price == priced[1]
    assert price is not None
    assert price.source == DATA
    unpriced = find_price("openai-compatible", "unheard-of", there, assume=9.0)
    assert unpriced is not None
    assert unpriced.source == "assumed"


def test_served_model_uses_the_catalogue_and_configured_overrides() -> None:
    def served(**keys: Any) -> tuple[bool, bool, bool, int | None]:
        config = ModelConfig(provider="openai", model="gpt-3.5-turbo", **keys)
        made = served_model("m", config, keys={"OPENAI_API_KEY": "k"}, limits=LimitsConfig())
        return made.images, made.files, made.tools, made.max_output

    (listed,) = [one for _, name, one in listed_models("openai") if name == "gpt-3.5-turbo"]
    assert listed.takes == ("text",)
    # Its longest output is less than the default request, so that the limit has to be stated.
    assert served() == (False, False, bool(listed.tools), listed.max_output)
    assert served(images=True, tools=True, max_output=99) == (True, True, True, 99)
    assert served(modalities=("image",))[:2] == (True, False)


def test_a_model_with_eyes_is_sent_pdfs_whatever_models_dev_says_of_them() -> None:
    (listed,) = [one for _, name, one in listed_models("openai") if name == "gpt-5"]
    assert "pdf" not in (listed.takes or ("pdf",))
    config = ModelConfig(provider="openai", model="gpt-5")
    assert find_capabilities("openai", "gpt-5", config, reported=None).files is None
    assert find_capabilities("openai", "gpt-4o", config, reported=None).files is True


def test_probe_results_are_kept_and_used(tmp_path: Path) -> None:
    config = ModelConfig(base_url="http://127.0.0.1:1/v1", model="tiny")
    reports = ProbeReports(tmp_path / "state" / "models.json")
    assert known_facts("m", config, reports=reports).tools.value is None
    reports.keep(
        "http://127.0.0.1:1/v1/", "tiny", Reported(day="2026-01-31", images=False, tried={"images": "HTTP 400"})
    )
    again = ProbeReports(tmp_path / "state" / "models.json")
    known = known_facts("m", config, reports=again)
    assert (known.takes["image"].value, known.takes["image"].source) == (False, "probe 2026-01-31")
    served = served_model("m", config, keys={}, limits=LimitsConfig(), reports=again)
    assert (served.images, served.files, served.tools) == (False, True, True)
    assert served_model("m", config, keys={}, limits=LimitsConfig()).images
    (tmp_path / "state" / "models.json").write_text('{"http://127.0.0.1:1/v1 tiny": {"day": 7}}')
    assert ProbeReports(tmp_path / "state" / "models.json").of("http://127.0.0.1:1/v1", "tiny") is None


class Newer(Provider):
    """Answers in one of the newer dialects."""

    said = ScriptedReply(tools=(ScriptedCall(name="ready", arguments={}),))
    dialect: Dialect = "gemini"

    def answer(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.asked.append((path, body))
        if headers.get("x-goog-api-key", headers.get("authorization")) not in ("k", "Bearer k"):
            return 401, {"error": {"message": "who are you?"}}
        if path.endswith("/models"):
            rows = [{"name": "models/tiny", "id": "tiny"}]
            return 200, {"models": rows} if self.dialect == "gemini" else {"data": rows}
        (whole,) = render(DIALECTS[self.dialect], self.said, model="tiny", stream=False)
        return 200, json.loads(whole)


class OneKey:
    def __init__(self, key: str) -> None:
        self.key = key

    def get(self, name: str) -> str | None:
        return self.key


@pytest.mark.parametrize(
    ("provider", "dialect", "path"),
    [
        ("gemini", "gemini", "/v1beta/models/tiny:generateContent"),
        ("openai-responses", "responses", "/v1/responses"),
    ],
)
async def test_a_provider_is_probed_in_the_configured_dialect(provider: Any, dialect: Dialect, path: str) -> None:
    newer = Newer()
    newer.dialect = dialect
    with serving(newer):
        config = ModelConfig(provider=provider, model="tiny", base_url=newer.address, key="KEY")
        good = await probe_model("m", config, keys=OneKey("k"), limits=LimitsConfig())
        wrong = await probe_model("m", config, keys=OneKey("x"), limits=LimitsConfig())
        newer.said = ScriptedReply(text="no tools here")
        deaf = await probe_model("m", config, keys=OneKey("k"), limits=LimitsConfig())
    assert (good.fine, good.tools, good.listed, good.error) == (True, True, True, "")
    assert newer.asked[0][0] == path
    assert "not accepted" in wrong.error
    assert (deaf.answered, deaf.tools, deaf.fine) == (True, False, False)


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "responses", "gemini"])
def test_a_document_that_is_not_a_reply_gives_no_message(dialect: Dialect) -> None:
    assert not small_answer(dialect, {"hello": 1}).message
