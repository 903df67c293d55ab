"""What a model costs per million tokens: as the user says, as published, as assumed, or unknown."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from chargehand.core.config import ModelConfig
from chargehand.models._contract import Price
from chargehand.models._modelsdev import Listed, find_listed

if TYPE_CHECKING:
    from decimal import Decimal

    from genai_prices.types import ModelInfo, ModelPrice, TieredPrices

_OWN = {"openai": "openai", "openai-responses": "openai", "anthropic": "anthropic", "gemini": "google"}
_HOSTS = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "openrouter.ai": "openrouter",
    "api.groq.com": "groq",
    "api.together.xyz": "together",
    "api.together.ai": "together",
    "api.deepseek.com": "deepseek",
    "api.mistral.ai": "mistral",
    "api.x.ai": "x-ai",
    "api.fireworks.ai": "fireworks",
    "api.cerebras.ai": "cerebras",
    "api.moonshot.ai": "moonshotai",
    "api.moonshot.cn": "moonshotai",
    "api.perplexity.ai": "perplexity",
    "api.novita.ai": "novita",
    "api.cohere.ai": "cohere",
    "api.cohere.com": "cohere",
    "api.minimax.io": "minimax",
    "api.z.ai": "zai",
    "open.bigmodel.cn": "zhipuai",
    "generativelanguage.googleapis.com": "google",
}
"""Hosts that speak a dialect of ours, and what the published prices call who runs them."""


def find_price(provider: str, model: str, config: ModelConfig, *, assume: float | None) -> Price | None:
    """Return what a model costs, `None` where nobody knows; `Price.source` tells who says so.

    In this order: `config` (source `configured`), Ollama on this machine (`ollama`, free), the published prices
    that genai-prices carries with it (`genai-prices`; nothing is fetched), those of models.dev (`models.dev`),
    `assume` in USD per million tokens (`assumed`). What else answers on this machine may pass calls on to anyone:
    only `config` can say its price. Where a published price depends on the hour, the length of the prompt or how
    long a cache keeps, it is the highest: what is reserved by it is enough.
    """
    read = config.price if config.price_in is None else config.price_in
    written = config.price if config.price_out is None else config.price_out
    # Anthropic charges a quarter more for what it writes to its cache.
    cache_write = 1.25 * read if read is not None and provider.startswith("anthropic") else None
    if read is not None and written is not None:
        return Price(input=read, output=written, cache_write=cache_write, source="configured")
    found = _unconfigured(provider, model, config.base_url, assume)
    if found is None or (read is None and written is None):
        return found
    if read is None:
        return replace(found, output=written or 0.0, source=f"configured, {found.source}")
    return Price(input=read, output=found.output, cache_write=cache_write, source=f"configured, {found.source}")


def find_context(provider: str, model: str, *, base_url: str | None = None) -> int | None:
    """Return how many tokens a model takes at most as far as that is published, `None` where nobody says."""
    info, listed = published_of(provider, model, base_url), listed_of(provider, model, base_url)
    return (info and info.context_window) or (listed and listed.context) or None


def published_of(provider: str, model: str, base_url: str | None) -> ModelInfo | None:
    """Return what genai-prices has on a model, `None` for one on this machine."""
    return None if _is_local(provider, base_url) else _published(provider, model, base_url)


def listed_of(provider: str, model: str, base_url: str | None) -> Listed | None:
    """Return what models.dev has on a model, `None` for one on this machine."""
    if _is_local(provider, base_url):
        return None
    return find_listed(provider, model, None if base_url is None else _host(base_url))


def _unconfigured(provider: str, model: str, base_url: str | None, assume: float | None) -> Price | None:
    if _is_local(provider, base_url):
        return Price(input=0.0, output=0.0, source="ollama") if provider == "ollama" else None
    info = _published(provider, model, base_url)
    found = _price(info, datetime.now(UTC).date()) if info else None
    listed = listed_of(provider, model, base_url) if info is None else None
    if listed is not None and listed.price is not None:
        return listed.price
    if found is None and assume is not None:
        return Price(input=assume, output=assume, source="assumed")
    return found


def _is_local(provider: str, base_url: str | None) -> bool:
    """Tell whether the endpoint is on this machine; Ollama's own address is."""
    if base_url is None:
        return provider == "ollama"
    host = _host(base_url)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_unspecified)


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:  # such as an IPv6 address that is not closed
        return ""


def _published(provider: str, model: str, base_url: str | None) -> ModelInfo | None:
    """Look a model up; a well-known host says more than `provider`, which may be chosen for its dialect."""
    publisher = _HOSTS.get(_host(base_url)) if base_url is not None else None
    publisher = publisher or _OWN.get(provider)
    if publisher is None or not model:
        return None
    # Takes 0.4 s, which only those pay who work with a model of which the configuration does not say the price.
    from genai_prices.data_snapshot import get_snapshot

    try:
        return get_snapshot().find_provider_model(model, None, publisher, None)[1]
    except LookupError:
        return None


def _price(info: ModelInfo, day: date) -> Price | None:
    prices = _in_force(info, day)
    read = _highest(info, prices, "input_mtok")
    written = _highest(info, prices, "output_mtok", "output_reasoning_mtok")
    # A price per request as well is nothing that tokens could pay for.
    if read is None or written is None or _highest(info, prices, "requests_kcount"):
        return None
    return Price(
        input=read,
        output=written,
        cached=_highest(info, prices, "cache_read_mtok"),
        cache_write=_highest(info, prices, "cache_write_mtok", "cache_write_5m_mtok", "cache_write_1h_mtok"),
        source="genai-prices",
    )


def _in_force(info: ModelInfo, day: date) -> list[ModelPrice]:
    """Return the prices of a day: the last ones that began, and those of its hours that come after them."""
    from genai_prices.types import StartDateConstraint, TimeOfDateConstraint

    if not isinstance(info.prices, list):
        return [info.prices]
    found: list[ModelPrice] = []
    for each in info.prices:
        if isinstance(each.constraint, TimeOfDateConstraint):
            found.append(each.prices)
        elif not isinstance(each.constraint, StartDateConstraint) or each.constraint.start_date <= day:
            found = [each.prices]
    return found


def _highest(info: ModelInfo, prices: list[ModelPrice], *names: str) -> float | None:
    found = [getattr(each, name) for each in prices for name in names]
    return max((_top(each, info.context_window) for each in found if each is not None), default=None)


def _top(price: Decimal | TieredPrices, context: int | None) -> float:
    """Return the price of the longest prompt that the model takes; tiers beyond that are of the past."""
    from genai_prices.types import TieredPrices

    if not isinstance(price, TieredPrices):
        return float(price)
    reached = [tier.price for tier in price.tiers if context is None or tier.start < context]
    return float(max([price.base, *reached]))
