"""What is known of a model: what it takes and gives, how much of it, since when, and who says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from chargehand.core.config import ModelConfig
from chargehand.models._contract import Price
from chargehand.models._modelsdev import NOTHING_LISTED, Listed
from chargehand.models._prices import find_price, listed_of, published_of

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
