"""`chargehand model …`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chargehand.app import (
    DEFAULT_MODELS,
    USUAL_KEYS,
    App,
    ModelProbe,
    find_ollama,
    has_key,
    key_name,
    model_config,
    probe_model,
)
from chargehand.cli._configuration import configuration_here
from chargehand.cli._output import Output
from chargehand.core import Config, KeySource, LimitsConfig, ModelConfig
from chargehand.models import Price, find_price


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    name: str
    config: ModelConfig
    origin: str
    price: Price | None
    key: str
    has_key: bool


def list_models(out: Output, *, repo: Path | None) -> int:
    """Write the models that are configured or found, with price and key."""
    with App.open() as app:
        resolved = configuration_here(app, repo)
        config = resolved.config
        listed = [
            _listed(app, config, name, _origin(resolved.origins, name))
            for name in model_names(config, app.environ, app.credentials)
        ]
    out.document({"models": [_document(one) for one in listed]})
    if not listed:
        out.text("no model is configured, and none was found")
        out.text("chargehand init sets one up; chargehand secret set ANTHROPIC_API_KEY is enough as well")
        return 0
    rows = [
        (one.name, one.config.provider, one.config.model, _price(one.price), one.key, one.origin) for one in listed
    ]
    out.table(("NAME", "PROVIDER", "MODEL", "PRICE", "KEY", "FROM"), rows)
    return 0


def model_names(config: Config, environ: Mapping[str, str], keys: KeySource) -> list[str]:
    """Return the models that are configured, else those for which a key is there or Ollama serves them."""
    if config.models:
        return sorted(config.models)
    keyed = [model for provider, model in DEFAULT_MODELS.items() if keys.get(USUAL_KEYS[provider])]
    return keyed + [f"ollama:{name}" for name in find_ollama(environ)]


def _listed(app: App, config: Config, name: str, origin: str) -> _Listed:
    found = model_config(config, name)
    price = find_price(found.provider, found.model or name, found, assume=config.limits.assume_usd_per_mtok)
    if price is None and found.provider == "script":
        price = Price(input=0.0, output=0.0, source="script")
    return _Listed(
        name=name,
        config=found,
        origin=origin,
        price=price,
        key=_key(app, found),
        has_key=has_key(found, app.credentials),
    )


def _origin(origins: Mapping[str, str], name: str) -> str:
    said = (origins.get(f"models.{name}.{field}", "default") for field in ("model", "provider", "base_url", "key"))
    return next((origin for origin in said if origin != "default"), "found")


def _key(app: App, config: ModelConfig) -> str:
    """Return where the key of a model is found, in words; never the key."""
    name = key_name(config)
    if name is None:
        return "none needed"
    if app.environ.get(name):
        return f"{name}, in the environment"
    return f"{name}, kept" if app.credentials.get(name) else f"{name} is missing"


def _price(price: Price | None) -> str:
    if price is None:
        return "unknown"
    if price.input == price.output == 0:
        return f"free ({price.source})"
    return f"${price.input:g} in, ${price.output:g} out per million tokens ({price.source})"


def _document(one: _Listed) -> dict[str, object]:
    price = one.price
    return {
        "name": one.name,
        "provider": one.config.provider,
        "model": one.config.model,
        "base_url": one.config.base_url,
        "price": None if price is None else {"input": price.input, "output": price.output, "source": price.source},
        "key": {"name": key_name(one.config), "found": one.has_key, "where": one.key},
        "origin": one.origin,
    }


def probe_models(out: Output, name: str | None, *, repo: Path | None) -> int:
    """Try one model or all, and write how each did."""
    with App.open() as app:
        config = configuration_here(app, repo).config
        names = [name] if name is not None else model_names(config, app.environ, app.credentials)
        models = {each: model_config(config, each) for each in names}
        probes = asyncio.run(_probes(out, models, app.credentials, config.limits, app.environ))
    out.document({"models": [probe_document(probe) for probe in probes]})
    if not probes:
        out.text("no model is configured, and none was found: chargehand init sets one up")
        return 1
    for probe in probes:
        out.text(f"{probe.name}: {probe_words(probe)}")
    return 0 if all(probe.fine for probe in probes) else 1


async def _probes(
    out: Output,
    models: Mapping[str, ModelConfig],
    keys: KeySource,
    limits: LimitsConfig,
    environ: Mapping[str, str],
) -> list[ModelProbe]:
    probes = []
    for name, config in models.items():
        out.notice(f"asking {name} …")
        probes.append(await probe_model(name, config, keys=keys, limits=limits, environ=environ))
    return probes


def probe_document(probe: ModelProbe) -> dict[str, object]:
    """Return a probe as a program reads it."""
    return {
        "name": probe.name,
        "fine": probe.fine,
        "reachable": probe.reachable,
        "answered": probe.answered,
        "tools": probe.tools,
        "listed": probe.listed,
        "seconds": round(probe.seconds, 3),
        "price_source": probe.price_source,
        "error": probe.error or None,
    }


def probe_words(probe: ModelProbe) -> str:
    """Return a probe in one line for a person."""
    if probe.error:
        return probe.error
    tools = {True: "calls tools", False: "does not call tools: set its tools = false", None: "tools not tried out"}
    price = (
        f"price by {probe.price_source}" if probe.price_source else "price unknown: refused while money is limited"
    )
    return f"answers in {probe.seconds:.1f} s, {tools[probe.tools]}, {price}"
