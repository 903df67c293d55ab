"""The system's keyring, if one answers."""

from __future__ import annotations

import sys
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

_SERVICE = "chargehand"
_FOREIGN_ERRORS = {
    # Errors that backends let through from their libraries; a module that is not loaded raised nothing.
    "keyring.errors": ("KeyringError",),
    "secretstorage.exceptions": ("SecretStorageException",),
    "jeepney.wrappers": ("DBusErrorResponse",),
    "jeepney.io.common": ("RouterClosed",),
    "dbus.exceptions": ("DBusException",),
    "gi.repository.GLib": ("Error",),
    "configparser": ("Error",),
}


class KeyringFailedError(Exception):
    """The keyring refused a request: it is locked, say, or does not answer."""


class SystemKeyring:
    """The system's keyring, if the `keyring` package is installed and has a real backend.

    Does nothing before its first use: importing the package and finding a backend take 0.3 s.
    """

    @cached_property
    def _backend(self) -> KeyringBackend | None:
        try:
            import keyring
            from keyring.core import recommended

            found = keyring.get_keyring()
            # Backends below recommended always fail, forget everything, or store plain text in a file.
            return found if recommended(found) else None
        except _keyring_failures():
            return None

    @property
    def works(self) -> bool:
        """Whether a backend is available."""
        return self._backend is not None

    @property
    def name(self) -> str:
        """The backend's name for people."""
        return str(self._backend.name) if self._backend else "none"

    def get(self, name: str) -> str | None:
        """Return the secret, `None` if it is missing or the keyring does not answer."""
        if self._backend is None:
            return None
        try:
            return self._backend.get_password(_SERVICE, name)
        except _keyring_failures():
            return None

    def set(self, name: str, value: str) -> None:
        """Store a secret; raises `KeyringFailedError`, which does not contain the value."""
        try:
            if self._backend is None:
                raise KeyringFailedError("there is none")
            self._backend.set_password(_SERVICE, name, value)
        except _keyring_failures() as error:
            # Only its type: a backend's message may contain the value.
            raise KeyringFailedError(type(error).__name__) from None

    def remove(self, name: str) -> bool:
        """Remove a secret and return whether it existed; raises `KeyringFailedError`."""
        if self._backend is None:
            return False
        try:
            if self._backend.get_password(_SERVICE, name) is None:
                return False
            self._backend.delete_password(_SERVICE, name)
        except _keyring_failures() as error:
            raise KeyringFailedError(type(error).__name__) from None
        return True


def _keyring_failures() -> tuple[type[Exception], ...]:
    """Return all errors that a missing, misconfigured, locked or silent keyring raises."""
    found: list[type[Exception]] = [ImportError, OSError, RuntimeError, AttributeError, ValueError]
    for module, names in _FOREIGN_ERRORS.items():
        loaded = sys.modules.get(module)
        found += [getattr(loaded, name) for name in names if hasattr(loaded, name)]
    return tuple(found)
