"""The keys of model providers that are kept on this machine: their names and places, never their values."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from chargehand.app.reading import StateReader
from chargehand.credentials.credentials import Origin


class SecretEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that is kept; `origin` is where it would come from now, null where its keyring does not answer."""

    name: str
    origin: Origin | None


class SecretList(msgspec.Struct, frozen=True, kw_only=True):
    """All secrets that are kept."""

    secrets: tuple[SecretEntry, ...]


class SecretKept(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that was kept; `hidden_by_environment`: a variable of that name takes its place."""

    name: str
    kept_in: str
    hidden_by_environment: bool


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
    reader.credentials.describe(name)
    place = reader.credentials.set(name, read())
    hidden = reader.credentials.describe(name) == "environment"
    return SecretKept(name=name, kept_in=place, hidden_by_environment=hidden)


def list_secrets(reader: StateReader) -> SecretList:
    """Return the names of the secrets that are kept, and where each would come from."""
    names = reader.credentials.names()
    return SecretList(secrets=tuple(SecretEntry(name=each.name, origin=each.origin) for each in names))


def remove_secret(reader: StateReader, name: str) -> SecretRemoved:
    """Remove a secret from where it is kept; raises `NotFoundError`."""
    reader.credentials.remove(name)
    return SecretRemoved(name=name, removed=True, origin=reader.credentials.describe(name))
