"""What is known of a model: what it takes and gives, how much of it, since when, and who says so."""

from __future__ import annotations

import gzip
import ipaddress
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

from chargehand.core.config import ModelConfig
from chargehand.models.contract import Price

if TYPE_CHECKING:
    from decimal import Decimal

    from genai_prices.types import ModelInfo, ModelPrice, TieredPrices

_LETTERS = {"t": "text", "i": "image", "p": "pdf", "a": "audio", "v": "video"}
_OWN = {"openai": "openai", "openai-responses": "openai", "anthropic": "anthropic", "gemini": "google"}
_HOSTS = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "google",
    "api.groq.com": "groq",
    "api.together.xyz": "togetherai",
    "api.together.ai": "togetherai",
    "api.mistral.ai": "mistral",
    "api.x.ai": "xai",
    "api.cerebras.ai": "cerebras",
    "api.perplexity.ai": "perplexity",
    "api.cohere.ai": "cohere",
    "api.cohere.com": "cohere",
    "api.deepinfra.com": "deepinfra",
}
"""Hosts of providers for which models.dev names none: their clients know their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A model as models.dev has it; `None` is what it does not say. `day` is that of the data."""

    day: str
    context: int | None = None
    max_output: int | None = None
    tools: bool | None = None
    reasoning: bool | None = None
    structured: bool | None = None
    takes: tuple[str, ...] | None = None
    gives: tuple[str, ...] | None = None
    status: str | None = None
    released: str | None = None
    price: Price | None = None

    @property
    def source(self) -> str:
        """Who says so, and as of when."""
        return f"models.dev {self.day}"


NOTHING_LISTED = Listed(day="")


def listed_models(provider: str | None = None) -> Iterator[tuple[str, str, Listed]]:
    """Yield provider, name and facts of all models that are listed, or of one provider by our name or its own.

    Nothing comes for a provider that it does not list.
    """
    wanted = _OWN.get(provider, provider) if provider is not None else None
    known = _document()["providers"]
    for publisher in known if wanted is None else [wanted] if wanted in known else []:
        for name, row in _models(publisher).items():
            yield publisher, name, _listed(row)


def listed_providers() -> list[str]:
    """Return the providers that models.dev lists."""
    return list(_document()["providers"])


def find_listed(provider: str, model: str, host: str | None) -> Listed | None:
    """Return what is listed for the provider at `host`, or for the provider itself where that is not known."""
    publisher = (host and (_HOSTS.get(host) or _hosts().get(host))) or _OWN.get(provider)
    row = _models(publisher).get(model) if publisher is not None else None
    return None if row is None else _listed(row)


def _listed(row: Sequence[Any]) -> Listed:
    _, context, output, tools, reasoning, structured, takes, gives, status, released, prices = row
    return Listed(
        day=_document()["day"],
        context=context,
        max_output=output,
        tools=_flag(tools),
        reasoning=_flag(reasoning),
        structured=_flag(structured),
        takes=_spelled(takes),
        gives=_spelled(gives),
        status=status,
        released=released,
        price=_price(prices or (), context),
    )


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _spelled(letters: str | None) -> tuple[str, ...] | None:
    return None if letters is None else tuple(_LETTERS[letter] for letter in letters)


def _price(tiers: Sequence[Sequence[float | None]], context: int | None) -> Price | None:
    """Return the highest price of the prompts that a model takes; tiers beyond that are of the past."""
    reached = [tier for tier in tiers if context is None or (tier[4] or 0) < context]
    if not reached:
        return None
    read, written, cached, cache_write = (
        max((tier[at] or 0.0 for tier in reached if tier[at] is not None), default=None) for at in range(4)
    )
    if read is None or written is None:
        return None
    return Price(input=read, output=written, cached=cached, cache_write=cache_write, source="models.dev")


@cache
def _document() -> Mapping[str, Any]:
    # Takes 0.05 s, which only those pay who ask for what neither the user nor the provider said.
    packed = files("chargehand.models").joinpath("catalogue.json.gz").read_bytes()
    document: Mapping[str, Any] = json.loads(gzip.decompress(packed))
    return document


@cache
def _models(publisher: str) -> Mapping[str, Sequence[Any]]:
    return {row[0]: row for row in _document()["providers"][publisher]["models"]}


@cache
def _hosts() -> Mapping[str, str]:
    """Return whose a host is; of several offers at one host the plain one, not its subscriptions."""
    found: dict[str, str] = {}
    for name, entry in _document()["providers"].items():
        host = entry["host"]
        if host is not None and (host not in found or len(name) < len(found[host])):
            found[host] = name
    return found


_OWNPrices = {"openai": "openai", "openai-responses": "openai", "anthropic": "anthropic", "gemini": "google"}
_HOSTSPrices = {
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
    found = _price_prices(info, datetime.now(UTC).date()) if info else None
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
    publisher = _HOSTSPrices.get(_host(base_url)) if base_url is not None else None
    publisher = publisher or _OWNPrices.get(provider)
    if publisher is None or not model:
        return None
    # Takes 0.4 s, which only those pay who work with a model of which the configuration does not say the price.
    from genai_prices.data_snapshot import get_snapshot

    try:
        return get_snapshot().find_provider_model(model, None, publisher, None)[1]
    except LookupError:
        return None


def _price_prices(info: ModelInfo, day: date) -> Price | None:
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


T = TypeVar("T")
MODALITIES = ("text", "image", "pdf", "audio", "video")
"""What a model may take; text is taken by all that answer."""
_CONFIGURED = "configured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact(Generic[T]):
    """A value and who says so; both are `None` where nobody does."""

    value: T | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """What the provider said, or what came of trying, on one `day` (ISO 8601); `None` is what was not found out.

    `output_kept`: it stopped where the output limit was. `tried` holds why something failed, by what was tried.
    """

    day: str
    context: int | None = None
    max_output: int | None = None
    tools: bool | None = None
    streams: bool | None = None
    images: bool | None = None
    reasoning: bool | None = None
    embeddings: bool | None = None
    output_kept: bool | None = None
    tried: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """Who says so, and when."""
        return f"probe {self.day}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """All that is known of one model; tokens, USD per million of them, days in ISO 8601.

    `takes` has an entry for each of `MODALITIES`. `status` is `alpha`, `beta` or `deprecated` where that is said.
    """

    context: Fact[int]
    max_output: Fact[int]
    tools: Fact[bool]
    streams: Fact[bool]
    reasoning: Fact[bool]
    structured: Fact[bool]
    embeddings: Fact[bool]
    takes: Mapping[str, Fact[bool]]
    gives: Fact[tuple[str, ...]]
    released: Fact[str]
    status: Fact[str]
    price: Price | None


def find_facts(
    provider: str, model: str, config: ModelConfig, *, reported: Reported | None, assume: float | None
) -> ModelFacts:
    """Return what is known of a model, each value from the first source that has it.

    In this order: `config`, what a probe `reported`, the data of genai-prices, that of models.dev. Of what answers
    on this machine only the first two know anything. Nothing is fetched.
    """
    tried, listed = reported or Reported(day=""), listed_of(provider, model, config.base_url) or NOTHING_LISTED
    published = published_of(provider, model, config.base_url)
    context = published.context_window if published is not None else None
    deprecated = "deprecated" if published is not None and published.deprecated else None
    own, probe, prices, data = _CONFIGURED, tried.source, "genai-prices", listed.source
    return ModelFacts(
        context=_first((config.context, own), (tried.context, probe), (context, prices), (listed.context, data)),
        max_output=_first((config.max_output, own), (tried.max_output, probe), (listed.max_output, data)),
        tools=_first((config.tools, own), (tried.tools, probe), (listed.tools, data)),
        streams=_first((tried.streams, probe)),
        reasoning=_first((config.reasoning, own), (tried.reasoning, probe), (listed.reasoning, data)),
        structured=_first((listed.structured, data)),
        embeddings=_first((tried.embeddings, probe)),
        takes={each: _taken(each, config, tried, listed) for each in MODALITIES},
        gives=_first((listed.gives, data)),
        released=_first((listed.released, data)),
        status=_first((deprecated, prices), (listed.status, data)),
        price=find_price(provider, model, config, assume=assume),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a call may hold, as far as it is known: tools, pictures, other files, tokens of its reply."""

    tools: bool | None
    images: bool | None
    files: bool | None
    max_output: int | None


def find_abilities(provider: str, model: str, config: ModelConfig, *, reported: Reported | None) -> Abilities:
    """Return what a model takes by the sources of `find_facts`; faster, since prices are not looked at.

    `files` are PDFs first of all: what takes them takes others, and what does not gets text files as text. That a
    model with eyes takes no PDF is not believed of models.dev: providers turn pages into pictures for it.
    """
    tried = reported or Reported(day="")
    looks = config.images is not None or bool(config.modalities)
    said = looks and config.tools is not None and config.max_output is not None
    listed = NOTHING_LISTED if said else listed_of(provider, model, config.base_url) or NOTHING_LISTED
    return Abilities(
        tools=_first((config.tools, ""), (tried.tools, ""), (listed.tools, "")).value,
        images=_taken("image", config, tried, listed).value,
        files=_files(config, tried, listed),
        max_output=_first((config.max_output, ""), (tried.max_output, ""), (listed.max_output, "")).value,
    )


def _files(config: ModelConfig, tried: Reported, listed: Listed) -> bool | None:
    fact = _taken("pdf", config, tried, listed)
    doubted = fact.source == listed.source and fact.value is False and "image" in (listed.takes or ())
    return None if doubted else fact.value


def _first(*said: tuple[T | None, str]) -> Fact[T]:
    return next((Fact(value=value, source=source) for value, source in said if value is not None), Fact())


def _taken(modality: str, config: ModelConfig, tried: Reported, listed: Listed) -> Fact[bool]:
    named = modality == "text" or modality in config.modalities
    flag = config.images if modality in ("image", "pdf") else None
    return _first(
        (flag, _CONFIGURED),
        (named if config.modalities else None, _CONFIGURED),
        (tried.images if modality == "image" else None, tried.source),
        (None if listed.takes is None else modality in listed.takes, listed.source),
    )
