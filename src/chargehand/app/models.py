"""Use cases of models: prices, abilities, keys, and probes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from chargehand.app.providers.ollama import find_ollama
from chargehand.app.providers.probe import ModelProbe, probe_model, try_model
from chargehand.app.providers.served import (
    ProbeReports,
    existing_keys,
    has_key,
    known_facts,
    model_config,
    open_probe_reports,
)
from chargehand.app.selection.choice import DEFAULT_MODELS
from chargehand.core.config import Config
from chargehand.core.errors import NotFoundError, nearest
from chargehand.core.ports import KeySource
from chargehand.core.text import printable
from chargehand.models.catalogue import Reported, SourcedFact, listed_models, listed_providers
from chargehand.models.contract import Price
from chargehand.models.key_filter import explain_weak_key
from chargehand.models.registries import key_name, usual_key
from chargehand.reports.reading import StateReader

if TYPE_CHECKING:
    from chargehand.app.composition import App


class ListPrice(msgspec.Struct, frozen=True, kw_only=True):
    """USD per million tokens, and the source of the price."""

    input: float
    output: float
    source: str


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """The key that a model needs (null: no key), whether it exists, and where in words; never its value."""

    name: str | None
    found: bool
    where: str


class FactView(msgspec.Struct, frozen=True, kw_only=True):
    """A value and its source; both are null if unknown."""

    value: Any
    source: str | None


class ModelFactsView(msgspec.Struct, frozen=True, kw_only=True):
    """All known facts of a model. Sizes in tokens; `takes` and `gives` are kinds of content, such as `image`."""

    context: FactView
    max_output: FactView
    tools: FactView
    streams: FactView
    reasoning: FactView
    structured: FactView
    embeddings: FactView
    gives: FactView
    released: FactView
    status: FactView
    takes: dict[str, FactView]
    price: Price | None


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """A model for `--model`."""

    name: str
    provider: str
    model: str
    base_url: str | None
    price: ListPrice | None
    key: KeyView
    origin: str
    facts: ModelFactsView


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The configured models, otherwise the detected ones."""

    models: tuple[ModelView, ...]


class CatalogueModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the catalogue; values missing in the catalogue are null."""

    provider: str
    model: str
    context: int | None
    max_output: int | None
    tools: bool | None
    reasoning: bool | None
    structured: bool | None
    takes: tuple[str, ...] | None
    gives: tuple[str, ...] | None
    status: str | None
    released: str | None
    price: Price | None
    source: str


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """The models of the catalogue, of one provider or of all."""

    catalogue: tuple[CatalogueModel, ...]


class ModelProbeView(msgspec.Struct, frozen=True, kw_only=True):
    """The result of probing a model; unknown values are null. `abilities` is null if they were not tried.

    `warning` describes the key's protection if that is weaker than for most keys, otherwise null.
    """

    name: str
    fine: bool
    reachable: bool
    answered: bool
    tools: bool | None
    listed: bool | None
    seconds: float
    price_source: str | None
    error: str | None
    abilities: Reported | None
    warning: str | None = None


class ModelProbes(msgspec.Struct, frozen=True, kw_only=True):
    """The results of probing models."""

    models: tuple[ModelProbeView, ...]


def list_models(app: App, repo: Path | None) -> ModelList:
    """Return the configured models, otherwise default models with a key and those that Ollama serves."""
    resolved = app.preparation.configuration_here(repo)
    reports = open_probe_reports(app.environ)
    names = model_names(resolved.config, app.environ, existing_keys(app.credentials))
    return ModelList(
        models=tuple(_describe_model(app, resolved.config, resolved.origins, name, reports) for name in names)
    )


def show_model(app: App, name: str, repo: Path | None) -> ModelView:
    """Return all known facts of an entry of `[models]` or a short form; raise `NotFoundError`."""
    resolved = app.preparation.configuration_here(repo)
    return _describe_model(app, resolved.config, resolved.origins, name, open_probe_reports(app.environ))


def list_catalogue(provider: str | None) -> Catalogue:
    """Return the models of the shipped catalogue; raise `NotFoundError` for a provider missing in it."""
    found = list(listed_models(provider))
    if not found:
        guess = nearest(str(provider), listed_providers())
        raise NotFoundError(
            f"the catalogue has no provider {printable(str(provider))!r}",
            hint=f"{guess}; chargehand model list --all lists every model of every provider",
        )
    return Catalogue(
        catalogue=tuple(
            CatalogueModel(
                provider=own_provider,
                model=model,
                context=listed.context,
                max_output=listed.max_output,
                tools=listed.tools,
                reasoning=listed.reasoning,
                structured=listed.structured,
                takes=listed.takes,
                gives=listed.gives,
                status=listed.status,
                released=listed.released,
                price=listed.price,
                source=listed.source,
            )
            for own_provider, model, listed in found
        )
    )


def model_names(config: Config, environ: Mapping[str, str], keys: KeySource) -> list[str]:
    """Return the names of the configured models, otherwise of those with a key or served by Ollama."""
    if config.models:
        return sorted(config.models)
    keyed = [model for provider, model in DEFAULT_MODELS.items() if keys.get(usual_key(provider))]
    return keyed + [f"ollama:{name}" for name in find_ollama(environ)]


def _describe_model(
    app: StateReader, config: Config, origins: Mapping[str, str], name: str, reports: ProbeReports
) -> ModelView:
    entry = model_config(config, name)
    facts = known_facts(
        name, entry, reports=reports, environ=app.environ, assume=config.limits.assume_usd_per_mtok
    )
    # A script is free unless its entry has a price.
    if facts.price is None and entry.provider == "script":
        facts = replace(facts, price=Price(input=0.0, output=0.0, source="script"))
    price = facts.price
    key = key_name(entry)
    if key is None:
        where = "none needed"
    elif app.environ.get(key):
        where = f"{key}, in the environment"
    elif has_key(entry, existing_keys(app.credentials)):
        where = f"{key}, kept"
    else:
        where = f"{key} is missing"
    said = (origins.get(f"models.{name}.{field}", "default") for field in ("model", "provider", "base_url", "key"))

    def view(fact: SourcedFact[Any]) -> FactView:
        return FactView(value=fact.value, source=fact.source)

    return ModelView(
        name=name,
        provider=entry.provider,
        model=entry.model or name,
        base_url=entry.base_url,
        price=None if price is None else ListPrice(input=price.input, output=price.output, source=price.source),
        key=KeyView(name=key, found=has_key(entry, existing_keys(app.credentials)), where=where),
        origin=next((origin for origin in said if origin != "default"), "found"),
        facts=ModelFactsView(
            context=view(facts.context),
            max_output=view(facts.max_output),
            tools=view(facts.tools),
            streams=view(facts.streams),
            reasoning=view(facts.reasoning),
            structured=view(facts.structured),
            embeddings=view(facts.embeddings),
            gives=view(facts.gives),
            released=view(facts.released),
            status=view(facts.status),
            takes={name: view(fact) for name, fact in facts.takes.items()},
            price=facts.price,
        ),
    )


async def probe_models(
    app: App,
    name: str | None,
    repo: Path | None,
    *,
    quick: bool = False,
    asking: Callable[[str], None] = lambda name: None,
) -> ModelProbes:
    """Call one model, or each listed model, for real; raise `NotFoundError`, `OSError`.

    Unless `quick`, four more calls try the abilities of an answering model, and the results are stored for `model
    show` and every later mission. `asking` is called with each name before the model is called.
    """
    config = app.preparation.configuration_here(repo).config
    # A person's own trial is no mission's: of a key's scope only the provider counts.
    keys = existing_keys(app.credentials)
    names = [name] if name is not None else model_names(config, app.environ, keys)
    models = {each: model_config(config, each) for each in names}  # an unknown name costs no call
    reports = None if quick else open_probe_reports(app.environ)
    probed = []
    for each, entry in models.items():
        asking(each)
        probe = await probe_model(each, entry, keys=keys, limits=config.limits, environ=app.environ)
        abilities, key = None, key_name(entry)
        if reports is not None:
            abilities = await try_model(
                probe,
                entry,
                keys=keys,
                limits=config.limits,
                environ=app.environ,
                day=app.clock.now().date(),
                reports=reports,
            )
        probed.append(
            ModelProbeView(
                name=each,
                fine=probe.fine,
                reachable=probe.reachable,
                answered=probe.answered,
                tools=probe.tools,
                listed=probe.listed,
                seconds=round(probe.seconds, 3),
                price_source=probe.price_source,
                error=probe.error or None,
                abilities=abilities,
                warning=explain_weak_key(keys.get(key)) or None if key and has_key(entry, keys) else None,
            )
        )
    return ModelProbes(models=tuple(probed))


def describe_probe(probe: ModelProbe | ModelProbeView) -> str:
    """Describe in one line how a model answered, by its name."""
    if probe.error:
        return f"{probe.name}: {probe.error}"
    if probe.tools is False:
        said = f"{probe.name} answers but did not use the tool it was offered"
        # A short form such as ollama:qwen3 is no entry of the file.
        known = ":" not in probe.name
        return f"{said}. If it has none: chargehand config set models.{probe.name}.tools false" if known else said
    tools = "calls tools" if probe.tools else "tool calls not tried"
    price = (
        f"price from {probe.price_source}" if probe.price_source else "price unknown, so refused under a budget"
    )
    return f"{probe.name} answers in {probe.seconds:.1f} s, {tools}, {price}"
