"""Secrets for one use: each is checked against its scope, noted once, and may change meanwhile."""

from __future__ import annotations

import threading

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.errors import ChargehandError
from chargehand.core.ports import KeyUse
from chargehand.credentials.credentials import Credentials

# How long a value whose store does not answer is used before the store is asked again, in seconds.
_ASK_AGAIN_SECONDS = 30.0


class SecretAccess(Struct, frozen=True, kw_only=True):
    """The first use of a secret: its source ("" if it was refused), the provider, and the code of a refusal."""

    name: str
    source: str
    provider: str
    refused: str = ""


class ScopedKeys:
    """The secrets that one use may have; a `core.KeySource` that raises as `Credentials.find`.

    `accesses` has the first use of each secret, `values` every value that was given, by name and number.
    """

    def __init__(self, credentials: Credentials, use: KeyUse) -> None:
        self._credentials = credentials
        self._use = use
        self._lock = threading.Lock()
        self.accesses: dict[str, SecretAccess] = {}
        self.values: dict[str, str] = {}

    def for_provider(self, provider: str) -> ScopedKeys:
        """Return the same secrets for calls to a provider; both note what either gives."""
        made = ScopedKeys(self._credentials, replace(self._use, provider=provider))
        made.accesses, made.values, made._lock = self.accesses, self.values, self._lock
        return made

    def get(self, name: str) -> str | None:
        """Return the secret of that name, `None` if missing."""
        return self.live(name).read()

    def live(self, name: str) -> ScopedKey:
        """Return the secret of that name as a key that may change."""
        return ScopedKey(self._credentials, name, self._use, self)

    def note(self, name: str, value: str, source: str, refused: str = "") -> None:
        """Note that a secret was given, or refused."""
        with self._lock:
            access = SecretAccess(name=name, source=source, provider=self._use.provider or "", refused=refused)
            self.accesses.setdefault(name, access)
            if value and value not in self.values.values():
                self.values[f"{name}.{len(self.values)}" if name in self.values else name] = value


class ScopedKey:
    """One secret for one use; a `core.LiveKey`."""

    def __init__(self, credentials: Credentials, name: str, use: KeyUse, keys: ScopedKeys) -> None:
        self._credentials, self._name, self._use, self._keys = credentials, name, use, keys
        # The last value, the state of secrets when it was read, and the end of its time.
        self._last: tuple[str, object, float] | None = None

    def __repr__(self) -> str:
        return f"ScopedKey({self._name!r})"

    def known(self) -> str | None:
        """See `LiveKey.known`."""
        last = self._last
        if last is None or last[1] != self._credentials.stamp(self._name):
            return None
        return last[0] if self._credentials.clock.monotonic() < last[2] else None

    def read(self, rejected: str | None = None) -> str | None:
        """See `LiveKey.read`."""
        stamp = self._credentials.stamp(self._name)
        try:
            found = self._credentials.find(self._name, self._use, rejected=rejected)
        except ChargehandError as error:
            self._keys.note(self._name, "", "", refused=error.code)
            raise
        if found is None:
            return None
        self._keys.note(self._name, found.value, found.origin)
        ttl = _ASK_AGAIN_SECONDS if found.stale else found.ttl
        self._last = (found.value, stamp, self._credentials.clock.monotonic() + ttl)
        return found.value
