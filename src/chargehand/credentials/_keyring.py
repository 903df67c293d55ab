"""The system's keyring, where the `keyring` package is installed and something real is behind it."""

from __future__ import annotations

import sys
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

SERVICE = "chargehand"
_FOREIGN = {
    # What backends let through of the libraries they stand on; a module that is not loaded raised nothing.
    "keyring.errors": ("KeyringError",),
    "secretstorage.exceptions": ("SecretStorageException",),
    "jeepney.wrappers": ("DBusErrorResponse",),
    "jeepney.io.common": ("RouterClosed",),
    "dbus.exceptions": ("DBusException",),
    "gi.repository.GLib": ("Error",),
    "configparser": ("Error",),
}


class KeyringFailedError(Exception):
    """The keyring would not do what was asked: it is locked, say, or nobody answers."""


class SystemKeyring:
    """Asks for nothing before it is used: importing the package and finding a backend take 0.3 s."""

    @cached_property
    def _backend(self) -> KeyringBackend | None:
        try:
            import keyring
            from keyring.core import recommended

            found = keyring.get_keyring()
            # Less than recommended are those that fail always, forget all, or keep plain text in a file.
            return found if recommended(found) else None
        except _failures():
            return None

    @property
    def works(self) -> bool:
        """Whether there is a backend."""
        return self._backend is not None

    @property
    def name(self) -> str:
        """The backend's name for people."""
        return str(self._backend.name) if self._backend else "none"

    def get(self, name: str) -> str | None:
        """Return the secret, `None` where there is none or the keyring does not answer."""
        if self._backend is None:
            return None
        try:
            return self._backend.get_password(SERVICE, name)
        except _failures():
            return None

    def set(self, name: str, value: str) -> None:
        """Keep a secret; raises `KeyringFailedError`, which does not hold the value."""
        try:
            if self._backend is None:
                raise KeyringFailedError("there is none")
            self._backend.set_password(SERVICE, name, value)
        except _failures() as error:
            raise KeyringFailedError(type(error).__name__) from None

    def remove(self, name: str) -> bool:
        """Forget a secret and tell whether there was one; raises `KeyringFailedError`."""
        if self._backend is None:
            return False
        try:
            if self._backend.get_password(SERVICE, name) is None:
                return False
            self._backend.delete_password(SERVICE, name)
        except _failures() as error:
            raise KeyringFailedError(type(error).__name__) from None
        return True


def _failures() -> tuple[type[Exception], ...]:
    """Return all that a missing, misconfigured, locked or silent keyring raises."""
    found: list[type[Exception]] = [ImportError, OSError, RuntimeError, AttributeError, ValueError]
    for module, names in _FOREIGN.items():
        loaded = sys.modules.get(module)
        found += [getattr(loaded, name) for name in names if hasattr(loaded, name)]
    return tuple(found)
