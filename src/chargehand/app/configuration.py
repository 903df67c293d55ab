"""The configuration in force and the secrets that it names: show, set, keep, remove."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from chargehand.app.config.edit import check_user_value, set_user_value, set_user_values
from chargehand.app.config.keys import find_key
from chargehand.app.config.locations import user_config_path
from chargehand.app.config.records import ResolvedConfig, UntrustedKey
from chargehand.app.config.values import format_key_value
from chargehand.app.reading import StateReader
from chargehand.credentials.credentials import Origin

if TYPE_CHECKING:
    from chargehand.app.composition import App


class SecretEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that is kept; `origin` is where it would come from now, null where its keyring does not answer."""

    name: str
    origin: Origin | None


class SecretList(msgspec.Struct, frozen=True, kw_only=True):
    """All secrets that are kept."""

    secrets: tuple[SecretEntry, ...]


class SecretKept(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that was kept; `hidden_by_environment`: a variable of that name takes its place.

    `warning` says how far it is protected where that is less than for most keys, else null.
    """

    name: str
    kept_in: str
    hidden_by_environment: bool
    warning: str | None = None


class SecretRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that was removed; `origin` is where it still comes from, null for nowhere."""

    name: str
    removed: bool
    origin: Origin | None


def keep_secret(reader: StateReader, name: str, *, read: Callable[[], str]) -> SecretKept:
    """Keep a secret whose value `read` returns.

    `read` is called only once the name and the file are known to be right, so that nobody types in vain. Raises
    `UsageError` (`secret_invalid`), `ConfigError`.
    """
    # For its errors alone, before anybody types.
    reader.credentials.describe(name)
    from chargehand.models.key_filter import explain_weak_key

    value = read()
    place = reader.credentials.set(name, value)
    hidden = reader.credentials.describe(name) == "environment"
    weak = explain_weak_key(value) or None
    return SecretKept(name=name, kept_in=place, hidden_by_environment=hidden, warning=weak)


def list_secrets(reader: StateReader) -> SecretList:
    """Return the names of the secrets that are kept, and where each would come from."""
    names = reader.credentials.names()
    return SecretList(secrets=tuple(SecretEntry(name=each.name, origin=each.origin) for each in names))


def remove_secret(reader: StateReader, name: str) -> SecretRemoved:
    """Remove a secret from where it is kept; raises `NotFoundError`."""
    reader.credentials.remove(name)
    return SecretRemoved(name=name, removed=True, origin=reader.credentials.describe(name))


__all__ = ["check_user_value", "set_user_values"]


class ConfigurationView(msgspec.Struct, frozen=True, kw_only=True):
    """Every key with its value. `origins` is absent unless it was asked for; `untrusted` keys are not in force."""

    values: dict[str, Any]
    origins: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    untrusted: tuple[UntrustedKey, ...]
    notes: tuple[str, ...]


class ConfigurationChange(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was set, its value as it was given, and the file it stands in."""

    key: str
    value: str
    path: str


def configuration_here(app: App, repo: Path | None) -> ResolvedConfig:
    """Return the configuration in force in a repository, or outside of any the user's own."""
    return (
        app.user_configuration()
        if app.current_project(repo) is None
        else app.configured(repo, only_reads=True).resolved
    )


def show_configuration(app: App, repo: Path | None, *, with_origins: bool) -> ConfigurationView:
    """Return every key with its value in force. Raises `ConfigError` for anything wrong in any source."""
    resolved = configuration_here(app, repo)
    values: dict[str, Any] = {}
    for dotted in resolved.origins:
        owner: object = resolved.config
        for part in dotted.split("."):
            owner = owner.get(part) if isinstance(owner, dict) else getattr(owner, part, None)
        values[dotted] = owner
    return ConfigurationView(
        values=values,
        origins=dict(resolved.origins) if with_origins else msgspec.UNSET,
        untrusted=resolved.untrusted,
        notes=resolved.notes,
    )


def set_configuration(reader: StateReader, key: str, value: str) -> ConfigurationChange:
    """Set one key in the user's own file, with everything else in it left as it is; raises `ConfigError`."""
    path = user_config_path(reader.environ)
    set_user_value(path, key, value)
    return ConfigurationChange(key=key, value=value, path=str(path))


def format_setting(name: str, value: object) -> str:
    """Return the value of a dotted key as a person writes it: durations as `30m`, `-` for nothing."""
    key = find_key(name)
    return str(value) if key is None else format_key_value(key, value)
