"""The setup, the requests and the errors of sources of secrets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from chargehand.core.clock import Clock, SystemClock
from chargehand.core.codec import decode_as
from chargehand.core.errors import ConfigError, InfrastructureError, RefusedError
from chargehand.core.own_config import SecretSourceConfig

# The longest answer of a source that is read, in bytes; longer values are refused, never truncated.
LARGEST_ANSWER = 256 * 1024


class StoreFailedError(InfrastructureError):
    """A store of secrets did not answer, or cannot now: it is sealed, overloaded or unreachable."""

    default_code = "secret_store"


class KeyPlace(NamedTuple):
    """The place of a secret in its source; an empty `path` or `field` is the source's usual one."""

    name: str
    path: str = ""
    field: str = ""


class KeySetup(NamedTuple):
    """The parameters of opening a source of keys: environment, and directory of the user's configuration.

    A configured source also gets its name, its `config`, and `secret`, which returns secrets of this machine.
    """

    environ: Mapping[str, str]
    directory: Path
    config: SecretSourceConfig = SecretSourceConfig()
    name: str = ""
    secret: Callable[[str], str | None] = lambda name: None
    clock: Clock = SystemClock()

    def fail(self, what: str, hint: str = "try again later") -> StoreFailedError:
        """Return the error of a store that cannot answer now."""
        return StoreFailedError(f"the source {self.name!r} of secrets {what}", hint=hint)

    def deny(self, what: str, hint: str) -> RefusedError:
        """Return the error of a store that refuses us (`secret_denied`)."""
        return RefusedError(f"the source {self.name!r} of secrets {what}", code="secret_denied", hint=hint)

    def misconfigured(self, what: str, hint: str = "change its entry in [secrets]") -> ConfigError:
        """Return the error of a source or place that can never work as configured (`secret_source`)."""
        return ConfigError(f"the source {self.name!r} of secrets {what}", code="secret_source", hint=hint)


class LocatedKeys(Protocol):
    """A configured source of keys."""

    def find(self, place: KeyPlace, /) -> str | None:
        """Return the secret at a place, `None` if missing.

        Raises `StoreFailedError` if the store cannot answer now, `RefusedError` (`secret_denied`) if it refuses,
        and `ConfigError` (`secret_source`). No error contains an answer of the store.
        """
        ...


def pick_field(setup: KeySetup, place: KeyPlace, text: str) -> str | None:
    """Return the text itself, or the field of the JSON object that it is; `None` if that is missing."""
    if not place.field:
        return text
    try:
        fields = decode_as(text.encode(), dict[str, object])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        # Not chained: the error may quote the text.
        raise setup.misconfigured(f"has no JSON object for {place.name}, but its entry names a field") from None
    return pick_text(setup, place, fields, place.field)


def pick_text(setup: KeySetup, place: KeyPlace, fields: Mapping[str, object], field: str) -> str | None:
    """Return a field that must be text; `None` if it is missing."""
    value = fields.get(field)
    if value is not None and not isinstance(value, str):
        raise setup.misconfigured(f"has a field {field!r} for {place.name} that is no text")
    return value
