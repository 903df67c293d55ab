"""Versions of belief networks: each is written once and never changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct

from chargehand.core.errors import NotFoundError, RefusedError
from chargehand.store.access_log import AccessLog, Actor
from chargehand.store.chain import is_moment
from chargehand.store.database.connection import Database, corrupt

_COLUMNS = "name, number, version, parent, author, created"
_NEWEST = "number = (SELECT max(number) FROM network_versions AS other WHERE other.name = network_versions.name)"


class NetworkVersion(Struct, frozen=True, kw_only=True):
    """A version of a network, with its digest; numbers count from 1, and 0 is shipped.

    `parent` is the digest of the version it was learned from, "" if it was imported. `created` is ISO 8601 in UTC.
    """

    name: str
    number: int
    version: str
    parent: str
    author: str
    created: str


class NetworkVersions:
    """The networks by name, and their versions; each change is a line of the access log."""

    def __init__(self, database: Database, log: AccessLog) -> None:
        self._database = database
        self._log = log

    def list(self) -> tuple[NetworkVersion, ...]:
        """Return the newest version of each network, by name. Raises `StoreError`."""
        return self._select(f"WHERE {_NEWEST} ORDER BY name", {})

    def versions(self, name: str) -> tuple[NetworkVersion, ...]:
        """Return all versions of a network, oldest first. Raises `StoreError`."""
        return self._select("WHERE name = :name ORDER BY number", {"name": name})

    def load(self, name: str, number: int | None = None) -> tuple[NetworkVersion, bytes] | None:
        """Return a version (the newest by default) and its content, or `None` if it does not exist.

        Raises `StoreError`.
        """
        which = _NEWEST if number is None else "number = :number"
        query = f"SELECT content, {_COLUMNS} FROM network_versions WHERE name = :name AND {which}"
        with self._database.read() as connection:
            row = connection.execute(query, {"name": name, "number": number}).fetchone()
        if row is None:
            return None
        if not isinstance(row[0], bytes):
            raise corrupt(self._database.home, f"the content of network {name!r} is not bytes")
        return _read_row(row[1:]), row[0]

    def add(
        self,
        name: str,
        content: bytes,
        *,
        version: str,
        parent: str,
        action: Literal["knowledge.import", "knowledge.update"],
        actor: Actor,
        newest: int | None = None,
    ) -> NetworkVersion:
        """Add a version, unless the newest one has the same digest, and return it.

        With `newest` (0 before the first version), raises `RefusedError` (`network_changed`) if another number is
        the newest by now. Raises `StoreError`.
        """
        with self._log.change(actor) as change:
            query = f"SELECT {_COLUMNS} FROM network_versions WHERE name = :name AND {_NEWEST}"
            row = change.execute(query, {"name": name}).fetchone()
            last = None if row is None else _read_row(row)
            number = 0 if last is None else last.number
            if newest is not None and newest != number:
                raise RefusedError(
                    f"the network {name!r} was changed meanwhile: version {number} is the newest, not {newest}",
                    code="network_changed",
                    hint="try again; nothing was changed",
                )
            if last is not None and last.version == version:
                return last
            values = (name, number + 1, version, parent, actor.user, change.now)
            insert = f"INSERT INTO network_versions ({_COLUMNS}, content) VALUES (?, ?, ?, ?, ?, ?, ?)"
            change.execute(insert, (*values, content))
            change.note(action, f"{name} (version {number + 1}, {version})")
        return _read_row(values)

    def remove(self, name: str, *, actor: Actor) -> int:
        """Remove all versions of a network and return their number. Raises `NotFoundError`, `StoreError`."""
        with self._log.change(actor) as change:
            removed = change.execute("DELETE FROM network_versions WHERE name = ?", (name,)).rowcount
            if not removed:
                hint = "`chargehand knowledge list` shows them"
                raise NotFoundError(f"no network {name!r} is stored", hint=hint)
            change.note("knowledge.remove", f"{name} ({removed} versions)")
        return int(removed)

    def problems(self) -> Iterator[str]:
        """Yield rows that no program of ours writes. Raises `StoreError`."""
        good = "typeof(name) = 'text' AND typeof(number) = 'integer' AND number > 0 AND typeof(content) = 'blob'"
        with self._database.read() as connection:
            for name, is_good, created in connection.execute(
                f"SELECT name, {good}, created FROM network_versions ORDER BY name, number"
            ):
                if not is_good or not isinstance(created, str) or not is_moment(created):
                    yield f"a row of network_versions ({name!r}) was changed or damaged"

    def _select(self, where: str, values: dict[str, Any]) -> tuple[NetworkVersion, ...]:
        with self._database.read() as connection:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM network_versions {where}", values).fetchall()
        return tuple(map(_read_row, rows))


def _read_row(row: Sequence[Any]) -> NetworkVersion:
    name, number, version, parent, author, created = row
    # A damaged file can hold values of any type.
    return NetworkVersion(
        name=str(name),
        number=number if isinstance(number, int) else 0,
        version=str(version),
        parent=str(parent),
        author=str(author),
        created=str(created),
    )
