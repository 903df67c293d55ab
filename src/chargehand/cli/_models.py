"""`chargehand model …`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path

from chargehand.app.composition import App
from chargehand.app.providers.ollama import find_ollama
from chargehand.app.providers.probe import ModelProbe, probe_model, try_model
from chargehand.app.providers.served import (
    USUAL_KEYS,
    ProbeReports,
    has_key,
    key_name,
    known_facts,
    model_config,
    open_probe_reports,
)
from chargehand.app.selection.choice import DEFAULT_MODELS
from chargehand.cli._configuration import configuration_here
from chargehand.cli._model_facts import facts_document, facts_rows, listed_document, listed_row
from chargehand.cli._output import Output
from chargehand.core.config import Config, LimitsConfig, ModelConfig
from chargehand.core.errors import NotFoundError, nearest
from chargehand.core.ports import KeySource
from chargehand.core.text import printable
from chargehand.models._catalogue import ModelFacts, Reported
from chargehand.models._contract import Price
from chargehand.models._modelsdev import listed_models, listed_providers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    name: str
    config: ModelConfig
    origin: str
    price: Price | None
    facts: ModelFacts
    key: str
    has_key: bool


def list_models(out: Output, *, repo: Path | None, everything: bool = False, provider: str | None = None) -> int:
    """Write the models that are configured or found, with price and key; or those of the catalogue.

    Raises `NotFoundError` for a provider that the catalogue does not have.
    """
    if everything or provider is not None:
        return _list_catalogue(out, provider)
    with App.open() as app:
        resolved = configuration_here(app, repo)
        config = resolved.config
        reports = open_probe_reports(app.environ)
        listed = [
            _listed(app, config, name, _origin(resolved.origins, name), reports)
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


def _list_catalogue(out: Output, provider: str | None) -> int:
    found = list(listed_models(provider))
    if not found:
        known = listed_providers()
        raise NotFoundError(
            f"the catalogue has no provider {printable(str(provider))!r}",
            hint=f"{nearest(str(provider), known)}; chargehand model list --all shows all of its models",
        )
    out.document({"catalogue": [listed_document(*one) for one in found]})
    out.table(
        ("PROVIDER", "MODEL", "CONTEXT", "TOOLS", "TAKES", "PRICE", "STATE"), [listed_row(*one) for one in found]
    )
    out.text(f"{len(found)} models, as {found[0][2].source} has them")
    return 0


def show_model(out: Output, name: str, *, repo: Path | None) -> int:
    """Write all that is known of a model, each value with who says so."""
    with App.open() as app:
        resolved = configuration_here(app, repo)
        reports = open_probe_reports(app.environ)
        one = _listed(app, resolved.config, name, _origin(resolved.origins, name), reports)
    out.document(_document(one))
    out.text(f"{name}: {one.config.provider} {one.config.model}", bold=True)
    out.text(f"key: {one.key}")
    out.text()
    out.table(("WHAT", "VALUE", "SAID BY"), list(facts_rows(one.facts)))
    return 0


def model_names(config: Config, environ: Mapping[str, str], keys: KeySource) -> list[str]:
    """Return the models that are configured, else those for which a key is there or Ollama serves them."""
    if config.models:
        return sorted(config.models)
    keyed = [model for provider, model in DEFAULT_MODELS.items() if keys.get(USUAL_KEYS[provider])]
    return keyed + [f"ollama:{name}" for name in find_ollama(environ)]


def _listed(app: App, config: Config, name: str, origin: str, reports: ProbeReports) -> _Listed:
    found = model_config(config, name)
    assume = config.limits.assume_usd_per_mtok
    facts = known_facts(name, found, reports=reports, environ=app.environ, assume=assume)
    price = facts.price
    if price is None and found.provider == "script":
        price = Price(input=0.0, output=0.0, source="script")
        facts = replace(facts, price=price)
    return _Listed(
        name=name,
        config=found,
        origin=origin,
        price=price,
        facts=facts,
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
        "facts": facts_document(one.facts),
    }


def probe_models(out: Output, name: str | None, *, repo: Path | None, quick: bool = False) -> int:
    """Try one model or all, and write how each did; unless `quick`, what it can do as well, which is kept."""
    with App.open() as app:
        config = configuration_here(app, repo).config
        names = [name] if name is not None else model_names(config, app.environ, app.credentials)
        models = {each: model_config(config, each) for each in names}
        reports = None if quick else open_probe_reports(app.environ)
        day = app.clock.now().date()
        tried = asyncio.run(
            _probes(out, models, app.credentials, config.limits, app.environ, reports=reports, day=day)
        )
    probes = [probe for probe, _ in tried]
    out.document({"models": [{**probe_document(probe), "abilities": _abilities(found)} for probe, found in tried]})
    if not probes:
        out.text("no model is configured, and none was found: chargehand init sets one up")
        return 1
    for probe, found in tried:
        out.text(f"{probe.name}: {probe_words(probe)}")
        if found is not None:
            out.text(f"  {_ability_words(found)}")
    return 0 if all(probe.fine for probe in probes) else 1


async def _probes(
    out: Output,
    models: Mapping[str, ModelConfig],
    keys: KeySource,
    limits: LimitsConfig,
    environ: Mapping[str, str],
    *,
    reports: ProbeReports | None,
    day: date,
) -> list[tuple[ModelProbe, Reported | None]]:
    probes = []
    for name, config in models.items():
        out.notice(f"asking {name} …")
        probe = await probe_model(name, config, keys=keys, limits=limits, environ=environ)
        found = None
        if reports is not None:
            found = await try_model(
                probe, config, keys=keys, limits=limits, environ=environ, day=day, reports=reports
            )
        probes.append((probe, found))
    return probes


def _abilities(found: Reported | None) -> dict[str, object] | None:
    return None if found is None else asdict(found)


def _ability_words(found: Reported) -> str:
    words = {True: "yes", False: "no", None: "not found out"}
    named = {
        "streams": found.streams,
        "pictures": found.images,
        "embeddings": found.embeddings,
        "keeps the output limit": found.output_kept,
    }
    return ", ".join(f"{name}: {words[value]}" for name, value in named.items())


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
