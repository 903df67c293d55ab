"""What models.dev says of models, from a file of the package: see `scripts/make-catalogue`; nothing is fetched."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from chargehand.models._contract import Price

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
