"""Secrets by name: their sources in order, their scopes, and the values of slow sources kept for a while."""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

from chargehand.core.clock import Clock, SystemClock
from chargehand.core.errors import ChargehandError, ConfigError, NotFoundError, RefusedError, UsageError
from chargehand.core.limits import LOCAL_SOURCES
from chargehand.core.own_config import SecretKeyConfig, SecretsConfig
from chargehand.core.ports import BY_NONE, UNDECIDED, KeySource, KeyUse
from chargehand.core.registry import Registry
from chargehand.credentials._file import SecretsContent
from chargehand.credentials._file import SecretsFile as SecretsFile  # these are parts of this face
from chargehand.credentials._file import check_name as check_name
from chargehand.credentials._file import check_value as check_value
from chargehand.credentials._keyring import KeyringFailedError, SystemKeyring
from chargehand.credentials._memory import protect_process, read_values
from chargehand.credentials._scope import admits, describe_scope, describe_use
from chargehand.credentials._setup import KeyPlace, LocatedKeys
from chargehand.credentials._setup import KeySetup as KeySetup
from chargehand.credentials._setup import StoreFailedError as StoreFailedError

_LOG = logging.getLogger(__name__)
Origin = str  # a registered name, or a name of [secrets.sources]
_USUAL = SecretKeyConfig()
# How long a value outlives its time if its store does not answer, in seconds.
_STALE_SECONDS = 3600.0
_ROTATED = "rotated"


class SecretName(NamedTuple):
    """A stored secret, and its present origin; `None` if its keyring does not answer."""

    name: str
    origin: Origin | None


class FoundSecret(NamedTuple):
    """A secret as found: its value, its source, the seconds for which it may be kept, and a failed new reading."""

    value: str
    origin: Origin
    ttl: float
    stale: str = ""

    def __repr__(self) -> str:
        return f"FoundSecret(origin={self.origin!r})"


class _Kept(NamedTuple):
    found: FoundSecret
    read_at: float
    stamp: object

    def __repr__(self) -> str:
        return f"_Kept({self.found!r})"


class Credentials:
    """Finds secrets in the sources of `settings`, the user's [secrets]; a `core.KeySource` for use by no project.

    Names have the form of environment variables. Every method raises `UsageError` (`secret_invalid`) for another
    name or an impossible value, `ConfigError` (`secrets_file`) if the file is open to others or damaged,
    `RefusedError` (`secret_scope`) for a use that no entry of the secret admits, and the errors of `LocatedKeys`.
    No message, representation or traceback of ours shows a value. Thread-safe.

    Values of stores and commands are kept for their time, and up to an hour longer while their store is out of
    reach; those of this machine are read at each call.
    """

    def __init__(self, setup: KeySetup, settings: Callable[[], SecretsConfig] = SecretsConfig) -> None:
        self._setup = setup
        self.clock = setup.clock
        self._read = read_values(setup.directory)
        self._environ = setup.environ
        self._settings = settings
        self._sources: dict[tuple[Origin, object], KeySource] = {}
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        # Secrets are stored in these two alone, unless a person names an encrypted file.
        self._keyring = cast(SystemKeyring, self._open("keyring"))
        self._file = cast(SecretsFile, self._open("file"))

    def __repr__(self) -> str:
        return f"Credentials({str(self._file.path)!r})"

    def get(self, name: str) -> str | None:
        """Return the secret of that name for use by no project, role or provider; `None` if missing."""
        found = self.find(name)
        return found.value if found else None

    def find(self, name: str, use: KeyUse = BY_NONE, *, rejected: str | None = None) -> FoundSecret | None:
        """Return the secret of that name for a use, `None` if missing.

        A kept value that equals `rejected` is read again.
        """
        entry, config = self.entry(name, use)
        key = (entry, name)
        with self._locks.setdefault(key, threading.Lock()):
            now, stamp = self.clock.monotonic(), self.stamp(name)
            kept = self._kept.get(key)
            if kept and (kept.stamp != (stamp, config) or kept.found.value == rejected):
                kept = self._kept.pop(key, None) and None
            if kept and now < kept.read_at + kept.found.ttl:
                return kept.found
            try:
                found = self._ask(name, config)
            except StoreFailedError as error:
                if kept is None or now >= kept.read_at + kept.found.ttl + _STALE_SECONDS:
                    raise
                _LOG.warning("secret %s: the earlier value is used, since %s", name, error.message)
                return kept.found._replace(stale=error.message)
            except ChargehandError:
                self._kept.pop(key, None)
                raise
            if found is None:
                self._kept.pop(key, None)
            elif getattr(self._open(found.origin), "is_cached", False):
                self._kept[key] = _Kept(found, now, (stamp, config))
        return found

    def entry(self, name: str, use: KeyUse) -> tuple[str, SecretKeyConfig]:
        """Return the entry of [secrets.keys] for a use of a secret, with its name; ("", default) if none names it.

        Raises `RefusedError` (`secret_scope`), and logs the refusal, if no entry of that secret admits the use.
        """
        check_name(name)
        entries = self.entries(name)
        if not entries:
            return "", _USUAL
        for entry, config in entries.items():
            if admits(config, use):
                return entry, config
        _LOG.warning("secret %s refused: %s is outside of its scope", name, describe_use(use))
        allowed = "; or ".join(dict.fromkeys(map(describe_scope, entries.values())))
        raise RefusedError(
            f"{name} may not be used by {describe_use(use)}",
            code="secret_scope",
            hint=f"[secrets.keys] of your file allows it for {allowed}",
        )

    def entries(self, name: str, *, usual: bool = False) -> dict[str, SecretKeyConfig]:
        """Return the entries of [secrets.keys] for a secret, in order; with `usual` the default without any."""
        keys = self._settings().keys.items()
        found = {entry: each for entry, each in keys if (each.name or entry) == name}
        return found or ({"": _USUAL} if usual else {})

    def read(self, name: str, entry: str = "") -> FoundSecret | None:
        """Return a secret as its sources have it now, by an entry of it; its scope does not count."""
        return self._ask(check_name(name), self.entries(name, usual=True)[entry])

    def order(self, config: SecretKeyConfig = _USUAL) -> tuple[Origin, ...]:
        """Return the sources that are asked for the secrets of an entry, in order."""
        return config.sources or self._settings().order or _plain_sources()

    def named(self) -> tuple[str, ...]:
        """Return the names of the secrets of [secrets.keys], each once."""
        return tuple(dict.fromkeys(each.name or entry for entry, each in self._settings().keys.items()))

    def every(self, name: str) -> Iterator[str]:
        """Yield the secret of each origin on this machine, unchecked, and every value that this process read.

        All are secret, though `get` takes the first.
        """
        for origin in _plain_sources():
            if value := self._open(origin).get(name):
                yield value
        yield from self._read.of(name)

    def read_names(self) -> tuple[str, ...]:
        """Return the names of all secrets that this process read."""
        return self._read.names()

    def version(self) -> object:
        """Return a value that changes whenever our programs change stored secrets, or this process reads one."""
        try:
            status = self._file.path.stat()
        except OSError:
            return self._read.count() or None
        return status.st_ino, status.st_mtime_ns, self._read.count()

    def stamp(self, name: str) -> object:
        """Return a value that changes whenever our programs change stored secrets, or `rotate` this one."""
        found: list[tuple[int, int] | None] = []
        for path in (self._file.path, self._file.path.parent / _ROTATED / name):
            try:
                status = path.stat()
                found.append((status.st_ino, status.st_mtime_ns))
            except OSError:
                found.append(None)
        return tuple(found)

    def rotate(self, name: str) -> None:
        """Have all running processes of this user read a secret from its source again, before its time is over."""
        place = self._file.path.parent / _ROTATED / check_name(name)
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.touch(mode=0o600)
            os.utime(place, ns=(now := time.time_ns(), now))
        except OSError as error:
            message = f"{str(place)!r} cannot be written: {error.strerror}"
            raise ConfigError(message, code="secrets_file", hint="fix that and try again") from error

    def describe(self, name: str) -> Origin | None:
        """Return the origin from which `get` would take the secret, `None` if missing."""
        found = self.find(name, UNDECIDED)
        return found.origin if found else None

    def names(self) -> tuple[SecretName, ...]:
        """Return the stored secrets with their present origins: the environment comes before stored secrets."""
        kept = self._file.load()
        return tuple(SecretName(name, self._origin(name)) for name in sorted({*kept.secrets, *kept.keyring}))

    def _origin(self, name: str) -> Origin | None:
        try:
            return self.describe(name)
        except StoreFailedError:
            return None

    def set(self, name: str, value: str, source: Origin = "") -> str:
        """Store or replace a secret, in the keyring if available; return the place in words.

        `source` names an encrypted file of [secrets.sources] instead. Raises `ConfigError` (`secret_keyring`) if
        the keyring that holds the earlier secret refuses, `UsageError` (`secret_read_only`) for another source.
        """
        value = check_value(check_name(name), value)
        if source:
            file = self._open(source)
            if not isinstance(file, SecretsFile) or source not in self._settings().sources:
                hint = "store it there by its own means, or name a source of the kind encrypted"
                raise UsageError(f"the source {source!r} is only read", code="secret_read_only", hint=hint)
            with file.changing() as kept:
                kept.secrets[name] = value
            self.rotate(name)
            return f"the encrypted file {file.path}"
        with self._file.changing() as kept:
            return self._store(kept, name, value)

    def replace(self, name: str, before: str, value: str) -> bool:
        """Store a secret if the present one is `before`, in one step; return whether it was. Raises as `set`."""
        value = check_value(check_name(name), value)
        with self._file.changing() as kept:
            is_same = self.get(name) == before
            if is_same:
                self._store(kept, name, value)
        return is_same

    def _store(self, kept: SecretsContent, name: str, value: str) -> str:
        try:
            self._keyring.set(name, value)
        except KeyringFailedError as error:
            if name in kept.keyring:  # the keyring's comes first, and would hide the new one
                raise _keyring_error(name, error) from None
            kept.secrets[name] = value
            return f"the file {self._file.path}"
        # A secret in the keyring must not also remain in plain text.
        kept.secrets.pop(name, None)
        # A keyring cannot list its content: we have to remember the names.
        kept.keyring = sorted({*kept.keyring, name})
        return f"the system's keyring ({self._keyring.name})"

    def remove(self, name: str) -> None:
        """Remove a secret from every place.

        Raises `NotFoundError` if it is not stored, `ConfigError` (`secret_keyring`) as `set` does.
        """
        check_name(name)
        with self._file.changing() as kept:
            removed = indexed = name in kept.keyring
            # Removing only the name would leave a secret that we can never find again.
            if indexed and not self._keyring.works:
                raise _keyring_error(name, KeyringFailedError("it cannot be reached"))
            try:
                removed = self._keyring.remove(name) or indexed
            except KeyringFailedError as error:
                if indexed:
                    raise _keyring_error(name, error) from None
            removed = kept.secrets.pop(name, None) is not None or removed
            kept.keyring = [each for each in kept.keyring if each != name]
        if not removed:
            known = ", ".join(each.name for each in self.names()) or "none"
            set_there = "it is set in the environment; unset it there" if self._environ.get(name) else ""
            raise NotFoundError(f"there is no secret {name!r}", hint=set_there or f"known: {known}")

    def _ask(self, name: str, config: SecretKeyConfig) -> FoundSecret | None:
        place = KeyPlace(name, config.path or "", config.field or "")
        plain = _plain_sources()
        for origin in self.order(config):
            source = self._open(origin)
            value = source.get(name) if origin in plain else cast(LocatedKeys, source).find(place)
            if value:
                protect_process()
                if origin in plain:
                    return FoundSecret(check_value(name, value), origin, config.ttl)
                self._read.add(name, value.strip())
                return FoundSecret(check_value(name, value, f"change it in {origin}"), origin, config.ttl)
        return None

    def _open(self, origin: Origin) -> KeySource:
        config = None if origin in LOCAL_SOURCES else self._settings().sources.get(origin)
        if (origin, config) not in self._sources:
            setup = self._setup
            if config is not None:
                setup = setup._replace(config=config, name=origin, secret=self._find_here)
            self._sources[origin, config] = KEY_SOURCES.find(config.kind if config else origin)(setup)
        return self._sources[origin, config]

    def _find_here(self, name: str) -> str | None:
        """Return a secret of this machine, with which a store is opened."""
        found = (self._open(origin).get(name) for origin in LOCAL_SOURCES)
        return next(filter(None, found), None)


def open_credentials(
    environ: Mapping[str, str],
    directory: Path,
    settings: Callable[[], SecretsConfig] = SecretsConfig,
    clock: Clock | None = None,
) -> Credentials:
    """Return the credentials of a user whose `secrets.json` is in `directory`; reads and creates nothing yet.

    `settings` returns [secrets] of the user's own file, and is called again for each secret.
    """
    return Credentials(KeySetup(environ, directory, clock=clock or SystemClock()), settings)


def _keyring_error(name: str, error: KeyringFailedError) -> ConfigError:
    return ConfigError(
        f"the system's keyring, which has {name}, refuses: {error}",
        code="secret_keyring",
        hint="unlock it and try again",
    )


class EnvironmentKeys:
    """Keys in the environment; an empty variable is not set."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def get(self, name: str) -> str | None:
        """Return the variable's value, `None` if it is not set."""
        return self._environ.get(name) or None


def _load_class(target: str) -> Callable[[KeySetup], KeySource]:
    # A registry calls a class without arguments; these are called with a setup.
    module, _, name = target.partition(":")
    found = getattr(importlib.import_module(module), name)
    return lambda setup: cast(KeySource, found(setup))


# In the order in which they are asked. Extensions are asked last, and only read.
KEY_SOURCES: Registry[Callable[[KeySetup], KeySource]] = Registry("key_sources", "source of keys")
KEY_SOURCES.register("environment", lambda: lambda setup: EnvironmentKeys(setup.environ), "the environment")
KEY_SOURCES.register("keyring", lambda: lambda setup: SystemKeyring(), "the system's keyring")
KEY_SOURCES.register("file", lambda: lambda setup: SecretsFile(setup.directory / "secrets.json"), "secrets.json")
# Those below are opened by an entry of [secrets.sources] alone.
_PLACE = "chargehand.credentials"
for _name, _target, _summary in (
    ("vault", "_vault:VaultKeys", "HashiCorp Vault or OpenBao"),
    ("aws", "_aws:AwsKeys", "AWS Secrets Manager"),
    ("command", "_programs:CommandKeys", "the output of a command"),
    ("files", "_programs:MountedFiles", "mounted files, one for each secret"),
    ("encrypted", "_encrypted:EncryptedFile", "an encrypted file"),
):
    KEY_SOURCES.register(_name, partial(_load_class, f"{_PLACE}.{_target}"), _summary)


def _plain_sources() -> tuple[Origin, ...]:
    """Return the sources that need no entry: those of this machine, then those of extensions."""
    own = KEY_SOURCES.built_in()
    return tuple(name for name in KEY_SOURCES.names() if name in LOCAL_SOURCES or name not in own)
