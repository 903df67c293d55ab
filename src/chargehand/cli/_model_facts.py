"""What is known of a model, as a document and as lines, each value with who says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chargehand.models.catalogue import ModelFacts, ModelListing, SourcedFact
from chargehand.models.contract import Price

_NAMES = (
    "context",
    "max_output",
    "tools",
    "streams",
    "reasoning",
    "structured",
    "embeddings",
    "gives",
    "released",
)
_WORDS = {
    "max_output": "longest reply",
    "streams": "streaming",
    "structured": "reply by schema",
    "gives": "gives",
    "status": "state",
}


def price_document(price: Price | None) -> dict[str, Any] | None:
    """Return a price in USD per million tokens, `None` where nobody knows it."""
    if price is None:
        return None
    return {
        "input": price.input,
        "output": price.output,
        "cached": price.cached,
        "cache_write": price.cache_write,
        "source": price.source,
    }


def facts_document(facts: ModelFacts) -> dict[str, Any]:
    """Return what is known as `--json` prints it: a value and its source each, both null where nobody knows."""
    return {
        **{name: _pair(getattr(facts, name)) for name in (*_NAMES, "status")},
        "takes": {name: _pair(fact) for name, fact in facts.takes.items()},
        "price": price_document(facts.price),
    }


def _pair(fact: SourcedFact[Any]) -> dict[str, Any]:
    return {"value": fact.value, "source": fact.source}


def facts_rows(facts: ModelFacts) -> Iterator[tuple[str, str, str]]:
    """Yield what, how it is, and who says so."""
    for name in _NAMES:
        yield _row(_WORDS.get(name, name), getattr(facts, name))
    for name, fact in facts.takes.items():
        yield _row(f"takes {name}", fact)
    if facts.status.value is not None:
        yield _row(_WORDS["status"], facts.status)
    yield ("price", price_words(facts.price), facts.price.source if facts.price else "")


def _row(name: str, fact: SourcedFact[Any]) -> tuple[str, str, str]:
    return name, _shown(fact.value), fact.source or ""


def _shown(value: object) -> str:
    match value:
        case None:
            return "unknown"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,} tokens"
        case tuple():
            return ", ".join(value) or "nothing"
    return str(value)


def price_words(price: Price | None) -> str:
    """Return a price in words."""
    if price is None:
        return "unknown"
    if price.input == price.output == 0:
        return "free"
    more = [
        f"${one:g} {what}" for one, what in ((price.cached, "cached"), (price.cache_write, "to the cache")) if one
    ]
    return f"{', '.join([f'${price.input:g} in', f'${price.output:g} out', *more])} per million tokens"


def listed_document(provider: str, model: str, listed: ModelListing) -> dict[str, Any]:
    """Return one model of the data of models.dev; what that does not say is null."""
    return {
        "provider": provider,
        "model": model,
        "context": listed.context,
        "max_output": listed.max_output,
        "tools": listed.tools,
        "reasoning": listed.reasoning,
        "structured": listed.structured,
        "takes": listed.takes,
        "gives": listed.gives,
        "status": listed.status,
        "released": listed.released,
        "price": price_document(listed.price),
        "source": listed.source,
    }


def listed_row(provider: str, model: str, listed: ModelListing) -> tuple[str, ...]:
    """Return one model of the data of models.dev as a row."""
    takes = "unknown" if listed.takes is None else " ".join(listed.takes)
    context = "unknown" if listed.context is None else f"{listed.context:,}"
    return provider, model, context, _shown(listed.tools), takes, price_words(listed.price), listed.status or ""
