"""From a model's name to who serves it: addresses, keys and prices."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit

from chargehand.app._config_entries import is_short_form, model_hint
from chargehand.app._config_values import shown
from chargehand.app._scripts import scripted_model
from chargehand.core import Config, ConfigError, KeySource, LimitsConfig, ModelConfig, NotFoundError, Provider
from chargehand.models import Dialect, ServedModel

_OWN_ADDRESS: Mapping[str, str] = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "ollama": "http://127.0.0.1:11434/v1",
}
USUAL_KEYS: Mapping[str, str] = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}
"""The environment variable each provider's own programs look for, in the order they are tried."""
_OLLAMA_PORT = 11434


def model_config(config: Config, name: str) -> ModelConfig:
    """Return the entry of `[models]` of that name, or what the short form `provider:model` says.

    Its `model` is always set. Raises `NotFoundError` with the nearest name and the list.
    """
    entry = config.models.get(name)
    if entry is not None:
        return entry if entry.model else dataclasses.replace(entry, model=name)
    if is_short_form(name):
        provider, _, model = name.partition(":")
        return ModelConfig(provider=cast(Provider, provider), model=model)
    raise NotFoundError(f"no model named {shown(name)}", hint=model_hint(name, list(config.models)))


def dialect_of(config: ModelConfig) -> Dialect:
    """Return what the provider speaks."""
    return "anthropic" if config.provider.startswith("anthropic") else "openai"


def address_of(name: str, config: ModelConfig, *, environ: Mapping[str, str] | None = None) -> str:
    """Return the base URL; `OLLAMA_HOST` moves Ollama's own where it is on this machine.

    Raises `ConfigError` (`no_base_url`) for a compatible provider without one.
    """
    if config.base_url is not None:
        return config.base_url
    if config.provider == "ollama":
        return f"{ollama_address(environ or {}) or 'http://127.0.0.1:11434'}/v1"
    own = _OWN_ADDRESS.get(config.provider)
    if own is None:
        raise ConfigError(
            f"model {name!r}: {config.provider} has no address of its own",
            code="no_base_url",
            hint=f"chargehand config set models.{name}.base_url https://HOST/v1",
        )
    return own


def is_loopback(address: str) -> bool:
    """Return whether a URL leads to this machine."""
    host = urlsplit(address).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def ollama_address(environ: Mapping[str, str]) -> str | None:
    """Return where Ollama listens on this machine, as `http://HOST:PORT`; `None` where it is elsewhere."""
    said = environ.get("OLLAMA_HOST", "").strip() or "127.0.0.1"
    try:
        parts = urlsplit(said if "://" in said else f"http://{said}")
        host, port = parts.hostname or "127.0.0.1", parts.port or _OLLAMA_PORT
    except ValueError:
        return None
    host = "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104 - what a server binds; it is reached here
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return address if parts.scheme == "http" and is_loopback(address) else None


def key_name(config: ModelConfig) -> str | None:
    """Return the name of the key a model needs, `None` where it needs none.

    The usual key of a provider goes to that provider's own address only, any other address gets what is named.
    """
    if config.key is not None:
        return config.key
    return USUAL_KEYS.get(config.provider) if config.base_url is None else None


def has_key(config: ModelConfig, keys: KeySource) -> bool:
    """Return whether the key a model needs is there."""
    name = key_name(config)
    return name is None or bool(keys.get(name))


def require_key(name: str, config: ModelConfig, keys: KeySource) -> str | None:
    """Return the key, `None` where none is needed; raises `ConfigError` (`no_key`) where it is missing."""
    wanted = key_name(config)
    if wanted is None:
        return None
    key = keys.get(wanted)
    if key:
        return key
    raise ConfigError(
        f"model {name!r} needs the key {wanted}, which is neither kept nor in the environment",
        code="no_key",
        hint=f"chargehand secret set {wanted}, or export {wanted}=…",
    )


def served_model(
    name: str,
    config: ModelConfig,
    *,
    keys: KeySource,
    limits: LimitsConfig,
    environ: Mapping[str, str] | None = None,
    attempts: Mapping[str, int] | None = None,
) -> ServedModel:
    """Return the model as a gateway serves it under `name`; nothing is sent yet.

    `config` is what `model_config` returns; `attempts` (id to number) tells a script whose turn it is. Raises
    `ConfigError` (`no_key`, `no_base_url`, `no_script`) and what reading a script raises. The price is `None`
    where nobody knows it: the gateway refuses such a model where money is limited.
    """
    if config.provider == "script":
        return scripted_model(name, config, attempts=attempts or {})
    from chargehand.models import HttpUpstream, find_price

    address, key, dialect = (
        address_of(name, config, environ=environ),
        require_key(name, config, keys),
        dialect_of(config),
    )
    model = config.model or name
    return ServedModel(
        name=name,
        dialect=dialect,
        model=model,
        upstream=HttpUpstream(base_url=address, key=key, dialect=dialect),
        price=find_price(config.provider, model, config, assume=limits.assume_usd_per_mtok),
        max_output=config.max_output,
    )
