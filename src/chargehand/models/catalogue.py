"""Model facts with their sources: capabilities, limits and prices.

The sources are the configuration, probes, genai-prices, and models.dev, whose data is in `catalogue.json.gz` (made
by `scripts/make-catalogue`). Nothing is fetched.
"""

from __future__ import annotations

import gzip
import ipaddress
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from chargehand.core.config import ModelConfig
from chargehand.models.contract import Price, PriceTier
from chargehand.network.addresses import host_of

if TYPE_CHECKING:
    from decimal import Decimal

    from genai_prices.types import ModelInfo, ModelPrice

T = TypeVar("T")
# Inputs that a model may accept; every model that replies accepts text.
MODALITIES = ("text", "image", "pdf", "audio", "video")
_CONFIGURED = "configured"
# The rates of genai-prices that may depend on the length of the input.
_RATES = (
    *("input_mtok", "output_mtok", "output_reasoning_mtok", "cache_read_mtok"),
    *("cache_write_mtok", "cache_write_1h_mtok"),
)
_LETTERS = {"t": "text", "i": "image", "p": "pdf", "a": "audio", "v": "video"}
_PUBLISHERS = {"openai": "openai", "openai-responses": "openai", "anthropic": "anthropic", "gemini": "google"}
# Hosts of providers that models.dev lists without a host, because their clients know it.
_LISTED_HOSTS = {
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
# Hosts that speak one of our dialects, with their provider's name in genai-prices.
_PRICED_HOSTS = {
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


class ModelListing(Struct, frozen=True, kw_only=True):
    """A model's entry in the models.dev data of `day`; a field is `None` if the entry lacks it."""

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
        """The source and the date of its data."""
        return f"models.dev {self.day}"


_NOTHING_LISTED = ModelListing(day="")


class SourcedFact(Struct, Generic[T], frozen=True, kw_only=True):
    """A value and its source; both are `None` if the value is unknown."""

    value: T | None = None
    source: str | None = None


class Reported(Struct, frozen=True, kw_only=True):
    """Results of a probe on one `day` (ISO 8601): statements of the provider and outcomes of trials.

    A field is `None` if it was not found out. `output_kept` says that a reply stopped at the output limit. `tried`
    maps each failed trial to the reason.
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
        """The source and the day of the probe."""
        return f"probe {self.day}"


class ModelFacts(Struct, frozen=True, kw_only=True):
    """All known facts about one model; tokens, USD per million tokens, days in ISO 8601.

    `takes` has an entry for each of `MODALITIES`. `status` is `alpha`, `beta` or `deprecated` if a source says so.
    """

    context: SourcedFact[int]
    max_output: SourcedFact[int]
    tools: SourcedFact[bool]
    streams: SourcedFact[bool]
    reasoning: SourcedFact[bool]
    structured: SourcedFact[bool]
    embeddings: SourcedFact[bool]
    takes: Mapping[str, SourcedFact[bool]]
    gives: SourcedFact[tuple[str, ...]]
    released: SourcedFact[str]
    status: SourcedFact[str]
    price: Price | None


def find_facts(
    provider: str, model: str, config: ModelConfig, *, reported: Reported | None, assume: float | None
) -> ModelFacts:
    """Return the facts about a model, each value from the first source that has it.

    Precedence: `config`, `reported` (a probe), genai-prices, models.dev. For models on this machine only the first
    two apply. Nothing is fetched.
    """
    tried = reported or Reported(day="")
    listed = _find_listing(provider, model, config.base_url) or _NOTHING_LISTED
    published = _find_published(provider, model, config.base_url)
    context = published.context_window if published is not None else None
    deprecated = "deprecated" if published is not None and published.deprecated else None
    own = _CONFIGURED
    probe = tried.source
    prices = "genai-prices"
    data = listed.source
    return ModelFacts(
        context=_pick((config.context, own), (tried.context, probe), (context, prices), (listed.context, data)),
        max_output=_pick((config.max_output, own), (tried.max_output, probe), (listed.max_output, data)),
        tools=_pick((config.tools, own), (tried.tools, probe), (listed.tools, data)),
        streams=_pick((tried.streams, probe)),
        reasoning=_pick((config.reasoning, own), (tried.reasoning, probe), (listed.reasoning, data)),
        structured=_pick((listed.structured, data)),
        embeddings=_pick((tried.embeddings, probe)),
        takes={each: _find_modality(each, config, tried, listed) for each in MODALITIES},
        gives=_pick((listed.gives, data)),
        released=_pick((listed.released, data)),
        status=_pick((deprecated, prices), (listed.status, data)),
        price=find_price(provider, model, config, assume=assume),
    )


class Capabilities(Struct, frozen=True, kw_only=True):
    """The known capabilities of a model: tools, pictures, files, reasoning, tokens of a reply."""

    tools: bool | None
    images: bool | None
    files: bool | None
    reasoning: bool | None
    max_output: int | None


def find_capabilities(
    provider: str, model: str, config: ModelConfig, *, reported: Reported | None
) -> Capabilities:
    """Return a model's capabilities, by the sources of `find_facts`; faster, since prices are not looked up.

    `files` means PDFs first of all: a model that takes PDFs takes other files, and other models get text
    files as text. A claim of models.dev that a model takes images but no PDFs is ignored, because providers
    convert pages to images for such a model.
    """
    tried = reported or Reported(day="")
    looks = config.images is not None or bool(config.modalities)
    said = looks and config.tools is not None and config.max_output is not None
    # The listing takes 0.05 s to load, so it is skipped if the user's configuration says everything.
    listed = _NOTHING_LISTED if said else _find_listing(provider, model, config.base_url) or _NOTHING_LISTED
    takes_files = _find_modality("pdf", config, tried, listed)
    doubted = (
        takes_files.source == listed.source and takes_files.value is False and "image" in (listed.takes or ())
    )
    return Capabilities(
        tools=_pick((config.tools, ""), (tried.tools, ""), (listed.tools, "")).value,
        images=_find_modality("image", config, tried, listed).value,
        files=None if doubted else takes_files.value,
        reasoning=_pick((config.reasoning, ""), (tried.reasoning, ""), (listed.reasoning, "")).value,
        max_output=_pick((config.max_output, ""), (tried.max_output, ""), (listed.max_output, "")).value,
    )


def _pick(*said: tuple[T | None, str]) -> SourcedFact[T]:
    return next(
        (SourcedFact(value=value, source=source) for value, source in said if value is not None), SourcedFact()
    )


def _find_modality(modality: str, config: ModelConfig, tried: Reported, listed: ModelListing) -> SourcedFact[bool]:
    named = modality == "text" or modality in config.modalities
    flag = config.images if modality in ("image", "pdf") else None
    return _pick(
        (flag, _CONFIGURED),
        (named if config.modalities else None, _CONFIGURED),
        (tried.images if modality == "image" else None, tried.source),
        (None if listed.takes is None else modality in listed.takes, listed.source),
    )


def is_free(provider: str, config: ModelConfig) -> bool:
    """Return whether calls cost nothing: by the configuration, or because Ollama runs on this machine."""
    read = config.price if config.price_in is None else config.price_in
    written = config.price if config.price_out is None else config.price_out
    if read is None and written is None:
        return provider == "ollama" and _is_local(provider, config.base_url)
    return read == written == 0


def find_price(provider: str, model: str, config: ModelConfig, *, assume: float | None) -> Price | None:
    """Return the price of a model, or `None` if it is unknown; `Price.source` names the source.

    Precedence: `config` (source `configured`), Ollama on this machine (`ollama`, free), the published prices that
    ship with genai-prices (`genai-prices`; nothing is fetched), those of models.dev (`models.dev`), `assume` in
    USD per million tokens (`assumed`). Other servers on this machine may forward calls to anyone, so only `config`
    can set their price. If a published price depends on the hour, the highest counts.
    """
    read = config.price if config.price_in is None else config.price_in
    written = config.price if config.price_out is None else config.price_out
    # Anthropic charges a quarter more for cache writes.
    cache_write = 1.25 * read if read is not None and provider.startswith("anthropic") else None
    if read is not None and written is not None:
        return Price(input=read, output=written, cache_write=cache_write, source="configured")
    if _is_local(provider, config.base_url):
        # Other servers on this machine may forward calls to anyone, so their price is not guessed.
        found = Price(input=0.0, output=0.0, source="ollama") if provider == "ollama" else None
    else:
        info = _find_published(provider, model, config.base_url)
        found = read_published_price(info, datetime.now(UTC).date()) if info else None
        # Not if genai-prices knows the model: it may know a fee on top of the tokens, and then no price fits.
        listed = _find_listing(provider, model, config.base_url) if info is None else None
        if listed is not None and listed.price is not None:
            found = listed.price
        elif found is None and assume is not None:
            found = Price(input=assume, output=assume, source="assumed")
    if found is None or (read is None and written is None):
        return found
    if read is None:
        return replace(found, output=written or 0.0, source=f"configured, {found.source}")
    return Price(input=read, output=found.output, cache_write=cache_write, source=f"configured, {found.source}")


def find_context(provider: str, model: str, *, base_url: str | None = None) -> int | None:
    """Return a model's published maximum of input tokens, or `None` if no source gives one."""
    info = _find_published(provider, model, base_url)
    listed = _find_listing(provider, model, base_url)
    return (info and info.context_window) or (listed and listed.context) or None


def _is_local(provider: str, base_url: str | None) -> bool:
    """Return whether the endpoint is on this machine, as Ollama's default address is."""
    if base_url is None:
        return provider == "ollama"
    host = host_of(base_url).rstrip(".")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    # `::ffff:127.0.0.1` is this machine too.
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_unspecified)


def _find_published(provider: str, model: str, base_url: str | None) -> ModelInfo | None:
    """Return the genai-prices entry of a model, or `None` for a model on this machine.

    A well-known host is more reliable than `provider`, which may be chosen for its dialect.
    """
    if _is_local(provider, base_url):
        return None
    publisher = _PRICED_HOSTS.get(host_of(base_url).rstrip(".")) if base_url is not None else None
    publisher = publisher or _PUBLISHERS.get(provider)
    if publisher is None or not model:
        return None
    # Takes 0.4 s, paid only for models without a configured price.
    from genai_prices.data_snapshot import get_snapshot

    try:
        return get_snapshot().find_provider_model(model, None, publisher, None)[1]
    except LookupError:
        return None


def read_published_price(info: ModelInfo, day: date) -> Price | None:
    """Return the price of genai-prices in force on a day, or `None` if tokens alone do not determine the cost."""
    from genai_prices.types import StartDateConstraint, TieredPrices, TimeOfDateConstraint

    prices: list[ModelPrice] = []
    if not isinstance(info.prices, list):
        prices = [info.prices]
    else:
        # Prices in force on the day: the last ones to start, and the prices by hour that follow them.
        for one in info.prices:
            if isinstance(one.constraint, TimeOfDateConstraint):
                prices.append(one.prices)
            elif not isinstance(one.constraint, StartDateConstraint) or one.constraint.start_date <= day:
                prices = [one.prices]
    rates = (getattr(each, name) for each in prices for name in _RATES)
    steps = {tier.start for rate in rates if isinstance(rate, TieredPrices) for tier in rate.tiers}
    # Tiers for prompts longer than the model's context are outdated.
    reached = sorted(each for each in steps if info.context_window is None or each < info.context_window)
    # A fee per request cannot be expressed in tokens.
    if any(each.requests_kcount for each in prices):
        return None
    tiers = []
    for start in (0, *reached):
        # The highest of these prices for inputs of more than `start` tokens.
        read = _find_highest(prices, start, "input_mtok")
        written = _find_highest(prices, start, "output_mtok", "output_reasoning_mtok")
        if read is None or written is None:
            return None
        tiers.append(
            PriceTier(
                input=read,
                output=written,
                cached=_find_highest(prices, start, "cache_read_mtok"),
                cache_write=_find_highest(prices, start, "cache_write_mtok", "cache_write_5m_mtok"),
                hour_write=_find_highest(prices, start, "cache_write_1h_mtok"),
                start=start,
            )
        )
    return _make_price(tiers, "genai-prices")


def _make_price(tiers: Sequence[PriceTier], source: str) -> Price:
    """Return the price with these tiers, ordered by `start`; the first applies to inputs of any length."""

    def highest(name: str) -> float | None:
        return max((rate for tier in tiers if (rate := getattr(tier, name)) is not None), default=None)

    return Price(
        input=highest("input") or 0.0,
        output=highest("output") or 0.0,
        cached=highest("cached"),
        cache_write=highest("cache_write"),
        hour_write=highest("hour_write"),
        source=source,
        tiers=tuple(tiers) if len(tiers) > 1 else (),
    )


def _find_highest(prices: list[ModelPrice], start: int, *names: str) -> float | None:
    from genai_prices.types import TieredPrices

    rates: list[Decimal] = []
    for price in (getattr(each, name, None) for each in prices for name in names):
        if isinstance(price, TieredPrices):
            rates.append([price.base, *(tier.price for tier in price.tiers if tier.start <= start)][-1])
        elif price is not None:
            rates.append(price)
    return None if not rates else float(max(rates))


def listed_models(provider: str | None = None) -> Iterator[tuple[str, str, ModelListing]]:
    """Yield provider, name and facts of each listed model, or of one provider's, by our name or its own.

    Yields nothing for a provider that is not listed.
    """
    wanted = _PUBLISHERS.get(provider, provider) if provider is not None else None
    known = _load_document()["providers"]
    for publisher in known if wanted is None else [wanted] if wanted in known else []:
        for name, row in _load_models(publisher).items():
            yield publisher, name, _read_listing(row)


def listed_providers() -> list[str]:
    """Return the providers that models.dev lists."""
    return list(_load_document()["providers"])


def _find_listing(provider: str, model: str, base_url: str | None) -> ModelListing | None:
    """Return the models.dev entry of a model, or `None` for local models; the host outranks `provider`."""
    if _is_local(provider, base_url):
        return None
    host = "" if base_url is None else host_of(base_url).rstrip(".")
    publisher = _LISTED_HOSTS.get(host) or _map_hosts().get(host) if host else None
    publisher = publisher or _PUBLISHERS.get(provider)
    row = _load_models(publisher).get(model) if publisher is not None else None
    return None if row is None else _read_listing(row)


def _read_listing(row: Sequence[Any]) -> ModelListing:
    _, context, output, tools, reasoning, structured, takes, gives, status, released, prices = row
    return ModelListing(
        day=_load_document()["day"],
        context=context,
        max_output=output,
        tools=None if tools is None else bool(tools),
        reasoning=None if reasoning is None else bool(reasoning),
        structured=None if structured is None else bool(structured),
        takes=None if takes is None else tuple(_LETTERS[letter] for letter in takes),
        gives=None if gives is None else tuple(_LETTERS[letter] for letter in gives),
        status=status,
        released=released,
        price=_read_listed_price(prices or (), context),
    )


def _read_listed_price(tiers: Sequence[Sequence[float | None]], context: int | None) -> Price | None:
    """Return the price for prompts that fit the model; tiers beyond its context are outdated."""
    reached = list[PriceTier]()
    known = dict[str, float]()
    for *rates, start in sorted(tiers, key=lambda tier: tier[4] or 0):
        if context is None or (start or 0) < context:
            # A tier inherits the rates that it does not give from the tier below.
            given = zip(("input", "output", "cached", "cache_write"), rates, strict=True)
            known |= {name: rate for name, rate in given if rate is not None}
            if "input" not in known or "output" not in known:
                return None
            reached.append(PriceTier(**known, start=int(start or 0)))
    return _make_price(reached, "models.dev") if reached else None


@cache
def _load_document() -> Mapping[str, Any]:
    # Takes 0.05 s, paid only for facts that neither the user nor the provider gave.
    packed = files("chargehand.models").joinpath("catalogue.json.gz").read_bytes()
    document: Mapping[str, Any] = json.loads(gzip.decompress(packed))
    return document


@cache
def _load_models(publisher: str) -> Mapping[str, Sequence[Any]]:
    return {row[0]: row for row in _load_document()["providers"][publisher]["models"]}


@cache
def _map_hosts() -> Mapping[str, str]:
    """Map each host to its provider; of several offers at one host, to the plain one, not its subscriptions."""
    found: dict[str, str] = {}
    for name, entry in _load_document()["providers"].items():
        host = entry["host"]
        if host is not None and (host not in found or len(name) < len(found[host])):
            found[host] = name
    return found
