"""What is known of a model: who says it first, what nobody says, and what calls go by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chargehand.app.providers.served import ProbeReports, known_facts, served_model
from chargehand.core.config import LimitsConfig, ModelConfig
from chargehand.models.catalogue import (
    MODALITIES,
    ModelFacts,
    Reported,
    find_capabilities,
    find_facts,
    find_price,
    listed_models,
)

DATA = "models.dev"


def facts(provider: str, model: str, reported: Reported | None = None, **keys: Any) -> ModelFacts:
    return find_facts(provider, model, ModelConfig(**keys), reported=reported, assume=None)


def test_each_value_comes_from_the_first_who_has_it() -> None:
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
def test_what_nobody_says_is_null(provider: str, model: str, keys: dict[str, Any]) -> None:
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


def test_calls_go_by_the_catalogue_and_by_what_the_user_says() -> None:
    def served(**keys: Any) -> tuple[bool, bool, bool, int | None]:
        config = ModelConfig(provider="openai", model="gpt-3.5-turbo", **keys)
        made = served_model("m", config, keys={"OPENAI_API_KEY": "k"}, limits=LimitsConfig())
        return made.images, made.files, made.tools, made.max_output

    (listed,) = [one for _, name, one in listed_models("openai") if name == "gpt-3.5-turbo"]
    assert listed.takes == ("text",)
    # What it writes at most is less than what is asked for unasked, so that it has to be said.
    assert served() == (False, False, bool(listed.tools), listed.max_output)
    assert served(images=True, tools=True, max_output=99) == (True, True, True, 99)
    assert served(modalities=("image",))[:2] == (True, False)


def test_a_model_with_eyes_is_sent_pdfs_whatever_models_dev_says_of_them() -> None:
    (listed,) = [one for _, name, one in listed_models("openai") if name == "gpt-5"]
    assert "pdf" not in (listed.takes or ("pdf",))
    config = ModelConfig(provider="openai", model="gpt-5")
    assert find_capabilities("openai", "gpt-5", config, reported=None).files is None
    assert find_capabilities("openai", "gpt-4o", config, reported=None).files is True


def test_what_a_probe_found_is_kept_and_used(tmp_path: Path) -> None:
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
