"""Secrets by name, wherever they are kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from chargehand.core.errors import ConfigError, NotFoundError
from chargehand.credentials._file import SecretsFile
from chargehand.credentials._keyring import KeyringFailedError, SystemKeyring
from chargehand.credentials._rules import checked_name, checked_value

Origin = Literal["environment", "keyring", "file"]


class SecretName(NamedTuple):
    """A secret that is kept, and where it would come from now; `None` where its keyring does not answer."""

    name: str
    origin: Origin | None


class Credentials:
    """Looks in the environment, then in the system's keyring, then in `secrets.json`; a `core.KeySource`.

    Names are as of environment variables. Every method raises `UsageError` (`secret_invalid`) for another name or
    a value that cannot be one, `ConfigError` (`secrets_file`) where the file is open to others or damaged; no
    message, representation or traceback of ours shows a value.
    """

    def __init__(self, environ: Mapping[str, str], file: SecretsFile, keyring: SystemKeyring) -> None:
        self._environ = environ
        self._file = file
        self._keyring = keyring

    def __repr__(self) -> str:
        return f"Credentials({str(self._file.path)!r})"

    def get(self, name: str) -> str | None:
        """Return the secret of that name, `None` where there is none."""
        return self._found(checked_name(name))[1]

    def describe(self, name: str) -> Origin | None:
        """Return where `get` would take the secret from, `None` where there is none."""
        return self._found(checked_name(name))[0]

    def names(self) -> tuple[SecretName, ...]:
        """Return what was set and where each would come from now: the environment goes before what is kept."""
        kept = self._file.load()
        return tuple(SecretName(name, self.describe(name)) for name in sorted({*kept.secrets, *kept.keyring}))

    def set(self, name: str, value: str) -> str:
        """Keep a secret in place of an earlier one, in the keyring where there is one; return where, in words.

        Raises `ConfigError` (`secret_keyring`) where the keyring that holds the earlier one refuses.
        """
        value = checked_value(checked_name(name), value)
        with self._file.changing() as kept:
            try:
                self._keyring.set(name, value)
            except KeyringFailedError as error:
                if name in kept.keyring:  # the keyring's, which comes first, would hide the new one
                    raise _refused(name, error) from None
                kept.secrets[name] = value
                return f"the file {self._file.path}"
            kept.secrets.pop(name, None)
            kept.keyring = sorted({*kept.keyring, name})
        return f"the system's keyring ({self._keyring.name})"

    def remove(self, name: str) -> None:
        """Forget a secret wherever it is kept.

        Raises `NotFoundError` where it is kept nowhere, `ConfigError` (`secret_keyring`) as `set` does.
        """
        with self._file.changing() as kept:
            removed = self._removed_from_keyring(checked_name(name), indexed=name in kept.keyring)
            removed = kept.secrets.pop(name, None) is not None or removed
            kept.keyring = [each for each in kept.keyring if each != name]
        if not removed:
            known = ", ".join(each.name for each in self.names()) or "none"
            set_there = "it comes from the environment: unset it there" if self._environ.get(name) else ""
            raise NotFoundError(f"no secret {name!r} is kept", hint=set_there or f"kept: {known}")

    def _found(self, name: str) -> tuple[Origin | None, str | None]:
        if value := self._environ.get(name):
            return "environment", checked_value(name, value)
        if value := self._keyring.get(name):
            return "keyring", checked_value(name, value)
        value = self._file.load().secrets.get(name)
        return (None if value is None else "file"), value

    def _removed_from_keyring(self, name: str, *, indexed: bool) -> bool:
        if indexed and not self._keyring.works:
            raise _refused(name, KeyringFailedError("it cannot be reached"))
        try:
            return self._keyring.remove(name) or indexed
        except KeyringFailedError as error:
            if indexed:
                raise _refused(name, error) from None
            return False


def open_credentials(environ: Mapping[str, str], directory: Path) -> Credentials:
    """Return the credentials of a user whose `secrets.json` is in `directory`; nothing is read or made yet."""
    return Credentials(environ, SecretsFile(directory / "secrets.json"), SystemKeyring())


def _refused(name: str, error: KeyringFailedError) -> ConfigError:
    return ConfigError(
        f"the system's keyring, which holds {name}, refuses: {error}",
        code="secret_keyring",
        hint="unlock it and try again",
    )
