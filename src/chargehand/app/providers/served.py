"""Resolves a model's name to the provider that serves it: address, key, price, known abilities."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from chargehand.app.providers.ollama import ollama_address
from chargehand.app.providers.scripted import scripted_model
from chargehand.configuration.keys import format_value, is_short_form, model_hint
from chargehand.configuration.locations import state_home
from chargehand.core.codec import convert_to
from chargehand.core.config import Config, LimitsConfig, ModelConfig
from chargehand.core.errors import ConfigError, InfrastructureError, NotFoundError, RefusedError
from chargehand.core.ports import UNDECIDED, KeySource
from chargehand.credentials.scoped import ScopedKeys
from chargehand.models.contract import Dialect, ServedModel
from chargehand.models.registries import PROVIDERS, key_name

if TYPE_CHECKING:
    from chargehand.credentials.credentials import Credentials
    from chargehand.models.catalogue import ModelFacts, Reported
    from chargehand.models.providers import ProviderLimits
    from chargehand.store.projects import ProjectRow

_REPORTS_FILE = "models.json"


class ProbeReports:
    """The stored probes of all models, by address and the provider's model name; see `open_probe_reports`.

    An unreadable file counts as empty: the next probe overwrites it.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._known: dict[str, Any] | None = None

    def of(self, address: str, model: str) -> Reported | None:
        """Return the results of the latest probe of a model, `None` without a probe."""
        from chargehand.models.catalogue import Reported

        if self._known is None:
            self._known = self._read()
        try:
            return convert_to(self._known.get(_report_key(address, model)), Reported | None)
        except msgspec.ValidationError:
            return None

    def keep(self, address: str, model: str, reported: Reported) -> None:
        """Store the results of a probe, replacing older ones; raise `OSError`."""
        # Read again: another process may have stored a probe meanwhile.
        self._known = {**self._read(), _report_key(address, model): msgspec.to_builtins(reported)}
        self._place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Atomically, so that a mission that reads the file meanwhile finds the old reports or the new ones.
        fresh = self._place.with_name(f"{_REPORTS_FILE}.{os.getpid()}")
        fresh.write_text(json.dumps(self._known, indent=1, sort_keys=True))
        fresh.replace(self._place)

    def _read(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            known = json.loads(self._place.read_text())
            if isinstance(known, dict):
                return known
        return {}


def open_probe_reports(environ: Mapping[str, str]) -> ProbeReports:
    """Return the probes stored in the state directory."""
    return ProbeReports(state_home(environ) / _REPORTS_FILE)


def _report_key(address: str, model: str) -> str:
    return f"{address.rstrip('/')} {model}"


# The limit for connecting; shorter if there is a fallback model.
_CONNECT_SECONDS = 15.0
_CONNECT_BEFORE_FALLBACK_SECONDS = 3.0


def model_config(config: Config, name: str) -> ModelConfig:
    """Return the entry of `[models]` with that name, or an entry for the short form `provider:model`.

    Its `model` is always set. Raises `NotFoundError` with the nearest name and the list.
    """
    entry = config.models.get(name)
    if entry is not None:
        return entry if entry.model else replace(entry, model=name)
    if is_short_form(name):
        provider, _, model = name.partition(":")
        return ModelConfig(provider=provider, model=model)
    raise NotFoundError(f"no model named {format_value(name)}", hint=model_hint(name, list(config.models)))


def dialect_of(config: ModelConfig) -> Dialect:
    """Return the dialect that the provider speaks."""
    return PROVIDERS.find(config.provider).dialect


def served_chain(
    name: str,
    config: Config,
    *,
    keys: KeySource,
    environ: Mapping[str, str] | None = None,
    attempts: Mapping[str, int] | None = None,
    reports: ProbeReports | None = None,
) -> ServedModel:
    """Return a model with its fallback models, each under the name of the first.

    Raises the errors of `model_config` and `served_model`; a fallback without its key is left out.
    """
    names = [name]
    # The list grows while it is read: fallbacks of fallbacks come last, and a cycle ends.
    for other in names:
        names.extend(one for one in model_config(config, other).fallback if one not in names)
    first, *others = (model_config(config, one) for one in names)
    limits = config.limits
    made = partial(served_model, keys=keys, limits=limits, environ=environ, attempts=attempts, reports=reports)
    head = made(name, first)
    behind = [made(other, entry) for other, entry in zip(names[1:], others, strict=True) if has_key(entry, keys)]
    return replace(head, fallback=tuple(behind))


def with_fallbacks(models: Iterable[ServedModel]) -> list[ServedModel]:
    """Return models and their fallbacks, each once."""
    found: dict[int, ServedModel] = {}
    for model in models:
        for one in (model, *model.fallback):
            found.setdefault(id(one.upstream), one)
    return list(found.values())


def provider_limits(config: Config, environ: Mapping[str, str]) -> dict[str, ProviderLimits]:
    """Return the limits of each provider by address: the lowest that an entry of `[models]` sets."""
    from chargehand.models.providers import ProviderLimits

    found: dict[str, ProviderLimits] = {}
    for name, entry in config.models.items():
        if entry.provider == "script" or (entry.concurrency is None and entry.per_minute is None):
            continue
        # By address: a provider counts the calls to all of its models together.
        place = address_of(name, entry, environ=environ)
        known = found.get(place, ProviderLimits())
        found[place] = ProviderLimits(
            concurrency=_least(known.concurrency, entry.concurrency),
            per_minute=_least(known.per_minute, entry.per_minute),
        )
    return found


def _least(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)


def address_of(name: str, config: ModelConfig, *, environ: Mapping[str, str] | None = None) -> str:
    """Return the base URL; `OLLAMA_HOST` changes Ollama's address if it is on this machine.

    Raises `ConfigError` (`no_base_url`) for a compatible provider without one.
    """
    if config.base_url is not None:
        return config.base_url
    if config.provider == "ollama":
        return f"{ollama_address(environ or {}) or 'http://127.0.0.1:11434'}/v1"
    own = PROVIDERS.find(config.provider).address
    if not own:
        raise ConfigError(
            f"model {name!r}: {config.provider} has no default address",
            code="no_base_url",
            hint=f"chargehand config set models.{name}.base_url https://HOST/v1",
        )
    return own


def known_facts(
    name: str,
    config: ModelConfig,
    *,
    reports: ProbeReports | None,
    environ: Mapping[str, str] | None = None,
    assume: float | None = None,
) -> ModelFacts:
    """Return the known facts of the model of an entry returned by `model_config`, with their sources."""
    from chargehand.models.catalogue import find_facts

    model = config.model or name
    reported = None
    if reports is not None and config.provider != "script":
        with contextlib.suppress(ConfigError):  # without an address no probe was possible
            reported = reports.of(address_of(name, config, environ=environ), model)
    return find_facts(config.provider, model, config, reported=reported, assume=assume)


def provider_scope(config: ModelConfig) -> str:
    """Return the provider to which a model's key is sent, as scopes name it: at another address its host."""
    own = urlsplit(PROVIDERS.find(config.provider).address)
    given = urlsplit(config.base_url or "")
    is_own = config.base_url is None or (given.scheme, given.netloc) == (own.scheme, own.netloc)
    return config.provider if is_own else given.hostname or ""


def existing_keys(credentials: Credentials, project: ProjectRow | None = None) -> ScopedKeys:
    """Return the keys to choose by: those that some use, in the project if it is known, may have."""
    projects = None if project is None else (project.id, str(project.path))
    return ScopedKeys(credentials, replace(UNDECIDED, projects=projects))


def _provider_keys(config: ModelConfig, keys: KeySource) -> KeySource:
    return keys.for_provider(provider_scope(config)) if isinstance(keys, ScopedKeys) else keys


def has_key(config: ModelConfig, keys: KeySource) -> bool:
    """Return whether the key that a model needs exists and may be used; a store that fails has none."""
    name = key_name(config)
    if name is None:
        return True
    try:
        return bool(_provider_keys(config, keys).get(name))
    except (RefusedError, InfrastructureError):
        return False


def require_key(name: str, config: ModelConfig, keys: KeySource) -> str | None:
    """Return the key, `None` if the model needs no key.

    Raises `ConfigError` (`no_key`) if it is missing, `RefusedError` (`secret_scope`) if it may not be used for
    this provider, and the errors of its source.
    """
    wanted = key_name(config)
    if wanted is None:
        return None
    key = _provider_keys(config, keys).get(wanted)
    if key:
        return key
    raise ConfigError(
        f"{wanted} is not set (for model {name!r})",
        code="no_key",
        hint=f"chargehand secret set {wanted}, or export {wanted}=…",
    )


def require_served(
    name: str, config: Config, *, keys: KeySource, environ: Mapping[str, str] | None = None
) -> None:
    """Raise the errors of `served_chain` for a model: unknown name, missing address, key or script."""
    entry = model_config(config, name)
    if entry.provider == "script":
        scripted_model(name, entry, attempts={})
        return
    address_of(name, entry, environ=environ)
    require_key(name, entry, keys)


def served_model(
    name: str,
    config: ModelConfig,
    *,
    keys: KeySource,
    limits: LimitsConfig,
    environ: Mapping[str, str] | None = None,
    attempts: Mapping[str, int] | None = None,
    reports: ProbeReports | None = None,
) -> ServedModel:
    """Return the model as a gateway serves it under `name`; nothing is sent yet.

    `config` is a result of `model_config`; `attempts` (id to number) select the replies of a script. Raises
    `ConfigError` (`no_key`, `no_base_url`, `no_script`) and the errors of reading a script. The price is `None` if
    unknown: the gateway refuses such a model if money is limited. Content may be sent to it unless its kind is
    known to be unsupported; `reports` are the stored probes.
    """
    if config.provider == "script":
        return scripted_model(name, config, attempts=attempts or {})
    from chargehand.models.catalogue import find_capabilities, find_price
    from chargehand.models.http_upstream import HttpUpstream
    from chargehand.models.metering import DEFAULT_OUTPUT

    address = address_of(name, config, environ=environ)
    key = require_key(name, config, keys)
    wanted = key_name(config)
    scoped = _provider_keys(config, keys)
    dialect = dialect_of(config)
    model = config.model or name
    reported = None if reports is None else reports.of(address, model)
    able = find_capabilities(config.provider, model, config, reported=reported)
    longest = config.max_output
    # The default limit must not ask for more than the provider agrees to write.
    if longest is None and able.max_output is not None and able.max_output < DEFAULT_OUTPUT:
        longest = able.max_output
    return ServedModel(
        name=name,
        dialect=dialect,
        model=model,
        upstream=HttpUpstream(
            base_url=address,
            key=key,
            dialect=dialect,
            connect_seconds=_CONNECT_BEFORE_FALLBACK_SECONDS if config.fallback else _CONNECT_SECONDS,
            key_name=wanted or "",
            live=scoped.live(wanted) if wanted and isinstance(scoped, ScopedKeys) else None,
        ),
        provider=address,
        images=able.images is not False,
        files=able.files is not False,
        tools=able.tools is not False,
        reasoning=able.reasoning is not False,
        ollama=config.provider == "ollama",
        price=find_price(config.provider, model, config, assume=limits.assume_usd_per_mtok),
        max_output=longest,
    )
