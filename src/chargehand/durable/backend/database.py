"""The engine's database: a separate SQLite file, or a PostgreSQL database by URL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from chargehand.configuration.extras import require_extra
from chargehand.core.errors import ConfigError, InfrastructureError
from chargehand.durable.engine_file import connect, make_ready

SCHEMA = "chargehand_engine"
_SQLITE = "sqlite:///"
_POOL = {"pool_size": 4, "max_overflow": 12, "pool_timeout": 30}
POSTGRES_ARGUMENTS = {
    "application_name": "chargehand",
    "client_encoding": "utf8",
    "connect_timeout": 5,
    # A server that vanishes silently is noticed in about 20 s instead of hours.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 20_000,
}


def is_sqlite(url: str) -> bool:
    """Return whether the URL names a SQLite file: `sqlite:///` and its path, taken literally."""
    return url.startswith(_SQLITE)


def shown(url: str) -> str:
    """Return the URL for display, without its password."""
    if is_sqlite(url):
        return url
    import sqlalchemy as sa

    try:
        return sa.make_url(url).render_as_string(hide_password=True)
    except (sa.exc.ArgumentError, ValueError):
        return url.split("@")[-1]


@contextmanager
def typed_errors(url: str) -> Iterator[None]:
    """Turn errors of SQLAlchemy, of the drivers and of the file system into `InfrastructureError`."""
    import sqlalchemy as sa

    try:
        yield
    except (sa.exc.SQLAlchemyError, sqlite3.Error, OSError) as error:
        detail = str(getattr(error, "orig", None) or error).strip()
        raise InfrastructureError(
            f"the engine's database {shown(url)!r} failed: {detail}",
            code="engine_database",
            hint="nothing is lost: the event log has all steps; try again when the database is reachable",
        ) from error


def check_url(url: str, *, sqlite: bool = True) -> None:
    """Raise `ConfigError` if the URL names no usable database; `sqlite`: whether a file is accepted.

    Raises `NotInstalledError` if the driver of its database is missing.
    """
    import sqlalchemy as sa

    try:
        usable = (sqlite and is_sqlite(url)) or (
            sa.make_url(url).get_backend_name() == "postgresql" and bool(sa.make_url(url).database)
        )
    except (sa.exc.ArgumentError, ValueError):  # the latter for a port that is not a number
        usable = False
    if not usable:
        raise ConfigError(
            f"not a database URL for the engine: {shown(url)!r}",
            code="engine_url",
            hint=("sqlite:///PATH or " if sqlite else "") + "postgresql://USER@HOST/DATABASE",
        )
    if not is_sqlite(url):
        require_extra("postgres")


def prepare(url: str) -> tuple[str, dict[str, Any]]:
    """Prepare the database; return the URL for DBOS and the arguments of its SQLAlchemy engine.

    Raises `sqlite3.Error` and `OSError`.
    """
    if not is_sqlite(url):
        return url, {**_POOL, "connect_args": dict(POSTGRES_ARGUMENTS)}
    path = Path(url.removeprefix(_SQLITE))
    make_ready(path)
    # The path bypasses the URL: a '?' or '%' in a directory's name must not be parsed.
    return f"{_SQLITE}engine.db", {**_POOL, "pool_pre_ping": False, "creator": partial(connect, path)}
