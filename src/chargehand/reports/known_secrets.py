"""The secrets of a user, which logs, lessons and recordings leave out."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from chargehand.configuration.keys import NAME, NAMED, entry_keys, section_keys
from chargehand.core.config import Config
from chargehand.core.errors import ChargehandError
from chargehand.core.redaction import Redactor
from chargehand.forges.grants import secret_parts, token_name
from chargehand.models.registries import key_name

if TYPE_CHECKING:
    from chargehand.reports.reading import StateReader

_SECRET_NAME = re.compile(r"[A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD)")


class KnownSecrets(Redactor):
    """Leaves out stored secrets, those that the configuration names, and the tokens inside of grants.

    With `variables` also environment variables whose names say that they are secrets. Secrets that change are read
    again; the value before, such as a token that was just renewed, is left out too. Secrets that cannot be read
    stay as they were known. Thread-safe.
    """

    def __init__(
        self, reader: StateReader, config: Config, names: dict[str, str] | None = None, *, variables: bool = True
    ) -> None:
        super().__init__(templates=names)
        self._credentials = reader.credentials
        self._names = frozenset(filter(None, _named_secrets(config)))
        self._variables = {
            name: (value,)
            for name, value in reader.environ.items()
            if value and (name in self._names or (variables and _SECRET_NAME.fullmatch(name)))
        }
        self._lock = threading.RLock()  # a keyring may log while it is read
        self._earlier: dict[str, str] = {}
        self._known = _name_parts(self._variables)
        self._redactor = Redactor(self._known, names)
        self._version: object = self

    def read(self) -> dict[str, str]:
        """Read the secrets again and return them by name. Raises `ConfigError`, `UsageError`."""
        with self._lock:
            # Before the secrets: a change meanwhile is then seen next time.
            self._version = self._credentials.version()
            names = self._names | {each.name for each in self._credentials.names()}
            names |= {*self._credentials.read_names()}
            found = _name_parts(self._variables | {name: tuple(self._credentials.every(name)) for name in names})
            if found != self._known:
                changed = self._known.items() - found.items()
                self._earlier |= {f"{name}.earlier": value for name, value in changed}
                self._known = found
                self._redactor = Redactor(self._earlier | found, self._templates)
            return found

    def redact(self, text: str) -> str:
        """Return a text without secrets, which are read again; raises as `read` does."""
        self.read()
        return self._redactor.text(text)

    def text(self, text: str, *, cut: bool = False) -> str:
        """See `Redactor.text`."""
        return self._current().text(text, cut=cut)

    def tree(self, value: Any) -> Any:
        """See `Redactor.tree`."""
        return self._current().tree(value)

    def stream(self, events: Sequence[Any], *, cut: bool = False) -> list[Any]:
        """See `Redactor.stream`."""
        return self._current().stream(events, cut=cut)

    def _current(self) -> Redactor:
        if self._version != self._credentials.version():
            with suppress(ChargehandError):
                self.read()
        return self._redactor


def _name_parts(values: Mapping[str, Sequence[str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in sorted(values):
        parts = dict.fromkeys(part for value in values[name] for part in secret_parts(value))
        found |= {f"{name}.{number}" if number else name: part for number, part in enumerate(parts)}
    return found


def _named_secrets(config: Config) -> Iterator[str | None]:
    """Yield the names of secrets in a configuration, else the usual ones; `None` if there is none."""
    for model in config.models.values():
        with suppress(ChargehandError):  # its provider is of an extension that is not installed any more
            yield key_name(model)
    yield from (token_name(name, forge.token) for name, forge in config.forges.items())
    for key in (*section_keys().values(), *(key for table in NAMED for key in entry_keys(table).values())):
        if key.form == "secret":
            place: Any = config
            for part in key.section.removesuffix(f".{NAME}").split("."):
                place = getattr(place, part)
            entries = place.values() if isinstance(place, dict) else (place,)
            yield from (getattr(entry, key.field) for entry in entries)
