"""Prices of models: the order of sources, published prices, and unknown ones."""

from __future__ import annotations

import subprocess
import sys
from datetime import date, time
from decimal import Decimal
from typing import Any

import pytest
from genai_prices.types import (
    ClauseEquals,
    ConditionalPrice,
    ModelInfo,
    ModelPrice,
    StartDateConstraint,
    Tier,
    TieredPrices,
    TimeOfDateConstraint,
)

from chargehand.core.config import ModelConfig
from chargehand.models.catalogue import find_context, find_price, listed_models
from chargehand.models.catalogue import read_published_price as _price
from chargehand.models.contract import Price, ReplyUsage, Usage
from chargehand.models.metering import CallBound, computed_usd, input_usd

DAY = date(2026, 6, 1)
PUBLISHED = ("openai", "gpt-4o")


def price(provider: str, model: str, *, assume: float | None = None, **keys: Any) -> Price | None:
    return find_price(provider, model, ModelConfig(**keys), assume=assume)


def info(prices: ModelPrice | list[ConditionalPrice], context: int | None = None) -> ModelInfo:
    return ModelInfo(id="x", match=ClauseEquals(equals="x"), prices=prices, context_window=context)


def flat(read: str, written: str, **more: str) -> ModelPrice:
    figures = {"input_mtok": read, "output_mtok": written, **more}
    return ModelPrice(**{name: Decimal(figure) for name, figure in figures.items()})


def tiered(base: str, *tiers: tuple[int, str]) -> TieredPrices:
    return TieredPrices(base=Decimal(base), tiers=[Tier(start=start, price=Decimal(p)) for start, p in tiers])


def test_configured_prices_take_precedence() -> None:
    for provider, model in (PUBLISHED, ("ollama", "llama3"), ("openai-compatible", "x")):
        given = price(provider, model, assume=9.0, price=1.5)
        assert given == Price(input=1.5, output=1.5, source="configured")
    assert price(*PUBLISHED, price=1.0, price_out=2.0) == Price(input=1.0, output=2.0, source="configured")
    assert price(*PUBLISHED, price=1.0, price_in=2.0) == Price(input=2.0, output=1.0, source="configured")
    assert price(*PUBLISHED, price=0.0) == Price(input=0.0, output=0.0, source="configured")


def test_a_partial_price_is_completed_from_the_next_source() -> None:
    known = price(*PUBLISHED)
    assert known is not None
    half = price(*PUBLISHED, price_in=0.5)
    assert half == Price(input=0.5, output=known.output, source="configured, genai-prices")
    half = price(*PUBLISHED, price_out=0.5)
    assert half is not None
    assert (half.input, half.output, half.cached) == (known.input, 0.5, known.cached)
    assert price("openai", "unheard-of", price_in=0.5) is None
    assert price("openai", "unheard-of", price_in=0.5, assume=4.0) == Price(
        input=0.5, output=4.0, source="configured, assumed"
    )


@pytest.mark.parametrize(
    ("provider", "model", "base_url"),
    [
        ("openai", "gpt-4o-2024-08-06", None),
        ("openai", "gpt-4o", "https://proxy.example.org/v1"),
        ("anthropic", "claude-sonnet-4-5-20250929", None),
        ("anthropic", "claude-sonnet-4-5", "https://api.anthropic.com/"),
        ("openai-compatible", "gpt-4o", "https://api.openai.com/v1"),
        ("openai-compatible", "gpt-4o", "https://API.OpenAI.com.:443/v1"),
        ("openai-compatible", "anthropic/claude-sonnet-4.5", "https://openrouter.ai/api/v1"),
        ("openai-compatible", "llama-3.3-70b-versatile", "https://api.groq.com/openai/v1"),
        ("openai-compatible", "deepseek-chat", "https://api.deepseek.com"),
        ("openai-compatible", "mistral-large-latest", "https://api.mistral.ai/v1"),
        ("openai-compatible", "meta-llama/Llama-3.3-70B-Instruct-Turbo", "https://api.together.xyz/v1"),
        ("openai-compatible", "grok-4", "https://api.x.ai/v1"),
        ("anthropic-compatible", "claude-sonnet-4-5", "https://api.anthropic.com"),
    ],
)
def test_published_prices_are_found_by_provider_and_by_well_known_host(
    provider: str, model: str, base_url: str | None
) -> None:
    found = price(provider, model, base_url=base_url, assume=1e6)
    assert found is not None
    assert found.source == "genai-prices"
    assert 0 < found.input <= found.output < 1000


def test_the_host_says_more_than_the_provider() -> None:
    model = "llama-3.3-70b-versatile"
    assert price("openai", model) is None
    assert price("openai", model, base_url="https://api.groq.com/openai/v1") is not None


@pytest.mark.parametrize(
    ("provider", "model", "base_url"),
    [
        ("openai", "unheard-of", None),
        ("openai", "", None),
        ("openai-compatible", "gpt-4o", None),
        ("openai-compatible", "gpt-4o", "https://api.openai.com.example.org/v1"),
        ("openai-compatible", "gpt-4o", "https://example.org/api.openai.com"),
        ("openai-compatible", "gpt-4o", "http://[::1/v1"),
        ("ollama", "llama3", "https://models.example.org"),
        ("ollama", "llama3", "http://localhost.example.org"),
    ],
)
def test_an_unlisted_model_has_no_price_unless_a_price_is_assumed(
    provider: str, model: str, base_url: str | None
) -> None:
    assert price(provider, model, base_url=base_url) is None
    assumed = Price(input=3.0, output=3.0, source="assumed")
    assert price(provider, model, base_url=base_url, assume=3.0) == assumed


LOOPBACK = (
    "http://localhost:11434",
    "http://LOCALHOST/v1",
    "http://models.localhost",
    "http://127.0.0.1:8000/v1",
    "http://127.1.2.3",
    "http://[::1]:8000/v1",
    "http://[::ffff:127.0.0.1]/v1",
    "http://0.0.0.0:8000",
)


@pytest.mark.parametrize("base_url", [None, *LOOPBACK])
def test_ollama_on_this_machine_is_free(base_url: str | None) -> None:
    assert price("ollama", "llama3", base_url=base_url, assume=3.0) == Price(
        input=0.0, output=0.0, source="ollama"
    )


@pytest.mark.parametrize("base_url", LOOPBACK)
@pytest.mark.parametrize("provider", ["openai-compatible", "openai"])
def test_a_loopback_provider_has_no_price_unless_configured(provider: str, base_url: str) -> None:
    assert price(provider, "gpt-4o", base_url=base_url, assume=3.0) is None
    free = price(provider, "gpt-4o", base_url=base_url, price=0.0)
    assert free == Price(input=0.0, output=0.0, source="configured")


def test_all_parts_of_a_published_price_are_used_with_the_highest_output_price() -> None:
    prices = flat("3", "15", cache_read_mtok="0.3", cache_write_mtok="3.75", cache_write_1h_mtok="6")
    assert _price(info(prices), DAY) == Price(
        input=3.0, output=15.0, cached=0.3, cache_write=3.75, hour_write=6.0, source="genai-prices"
    )
    assert _price(info(flat("3", "15", output_reasoning_mtok="20")), DAY) == Price(
        input=3.0, output=20.0, source="genai-prices"
    )


def test_of_tiers_the_highest_that_a_prompt_can_reach_counts() -> None:
    prices = ModelPrice(input_mtok=tiered("3", (200_000, "6"), (500_000, "5")), output_mtok=tiered("15"))
    for context, read in ((None, 6.0), (1_000_000, 6.0), (200_001, 6.0), (200_000, 3.0)):
        found = _price(info(prices, context), DAY)
        assert found is not None
        assert (found.input, found.output) == (read, 15.0)
    # A call is booked by its own length.
    found = _price(info(prices), DAY)
    for tokens, usd in ((200_000, 3.0), (200_001, 6.0), (500_000, 6.0), (500_001, 5.0)):
        used = ReplyUsage(usage=Usage(input=tokens, output=0))
        assert computed_usd(found, used) == pytest.approx(tokens * usd / 1e6)
    assert input_usd(found, CallBound(input=1_000, output=1, asked=True)) == pytest.approx(3e-3)
    assert input_usd(found, CallBound(input=600_000, output=1, asked=True)) == pytest.approx(3.6)


def test_prices_by_length_of_models_dev_are_booked_by_length() -> None:
    tiered = [one.price for *_, one in listed_models() if one.price is not None and one.price.tiers]
    assert len(tiered) > 100
    for each in tiered:
        starts = [tier.start for tier in each.tiers]
        assert starts == sorted(set(starts))
        assert starts[0] == 0
        assert each.input == max(tier.input for tier in each.tiers)
        short = computed_usd(each, ReplyUsage(usage=Usage(input=10, output=10)))
        first = each.tiers[0]
        assert short == pytest.approx(10 * (first.input + first.output) / 1e6)


def test_prices_are_those_of_the_day_and_of_its_dearest_hour() -> None:
    begins = StartDateConstraint(start_date=date(2026, 5, 1))
    later = StartDateConstraint(start_date=date(2026, 7, 1))
    noon = TimeOfDateConstraint(start_time=time(11), end_time=time(13))
    prices = [
        ConditionalPrice(prices=flat("9", "9")),
        ConditionalPrice(constraint=noon, prices=flat("99", "99")),
        ConditionalPrice(constraint=begins, prices=flat("1", "2")),
        ConditionalPrice(constraint=noon, prices=flat("2", "1")),
        ConditionalPrice(constraint=later, prices=flat("7", "7")),
    ]
    by_day = {DAY: (2.0, 2.0), date(2026, 4, 30): (99.0, 99.0), date(2026, 7, 1): (7.0, 7.0)}
    for day, figures in by_day.items():
        found = _price(info(prices), day)
        assert found is not None
        assert (found.input, found.output) == figures


@pytest.mark.parametrize(
    "prices",
    [
        ModelPrice(),
        ModelPrice(input_mtok=Decimal(1)),
        ModelPrice(output_mtok=Decimal(1)),
        flat("1", "1", requests_kcount="5"),
        [],
    ],
)
def test_a_price_that_tokens_alone_do_not_make_is_unknown(prices: Any) -> None:
    assert _price(info(prices), DAY) is None


def test_the_published_context_length_is_returned() -> None:
    anthropic = "https://api.anthropic.com"
    assert find_context("anthropic", "claude-sonnet-4-5") == 200_000
    assert find_context("openai-compatible", "claude-sonnet-4-5", base_url=anthropic) == 200_000
    assert find_context("openai", "gpt-4o") is not None
    for provider, base_url in (("openai", "http://localhost:1/v1"), ("ollama", None), ("openai", None)):
        assert find_context(provider, "unheard-of", base_url=base_url) is None
    assert find_context("openai-compatible", "gpt-4o", base_url="http://127.0.0.1:1/v1") is None


def test_published_prices_are_loaded_lazily_and_without_network_access() -> None:
    script = """
import socket, sys, threading
def refuse(*arguments, **more):
    raise AssertionError("the network was asked")
socket.socket.connect = socket.getaddrinfo = refuse
from chargehand.core.config import ModelConfig
from chargehand.models.catalogue import find_price
cheap = ("openai", None, 1.0), ("ollama", None, None), ("openai-compatible", "http://x", None)
for provider, base_url, price in cheap:
    find_price(provider, "gpt-4o", ModelConfig(base_url=base_url, price=price), assume=None)
assert "genai_prices" not in sys.modules
assert find_price("openai", "gpt-4o", ModelConfig(), assume=None)
assert "genai_prices" in sys.modules and threading.active_count() == 1
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
