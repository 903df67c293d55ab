"""Brings the schema to this program's version: one look when it is current, alembic only for an older one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from chargehand.core.errors import StoreError
from chargehand.store.database import connection as _sqlite
from chargehand.store.database.connection import Database, corrupt, typed_errors
from chargehand.store.database.schema import VERSION, metadata
from chargehand.store.heads import Heads

_VERSIONS = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's own table, as alembic makes it."""
_SCRIPTS = Path(__file__).parent / "migrations"


def ensure_current(database: Database, *, read_only: bool) -> None:
    """Bring the schema to `VERSION`; safe with several processes doing so at once.

    Raises `StoreError`: `store_newer` when a newer program wrote it, `store_older` when it would have to be
    changed but is opened read-only, `store_corrupt` when the log is gone although heads of it were kept.
    """
    if _is_current(database, found=_version(database)):
        return
    if read_only:
        raise StoreError(
            f"the state directory {str(database.home)!r} is older than this program",
            code="store_older",
            hint="run any command that may write, such as `chargehand mission list`, once",
        )
    with _lock(database.home):
        if not _is_current(database, found=_version(database)):
            _upgrade(database)


def _is_current(database: Database, *, found: str | None) -> bool:
    if found is not None and int(found) > int(VERSION):
        raise StoreError(
            f"the state directory {str(database.home)!r} has version {found!r}, this program knows {VERSION!r}",
            code="store_newer",
            hint="upgrade chargehand, or set CHARGEHAND_HOME to another directory",
        )
    return found == VERSION


def _version(database: Database) -> str | None:
    with database.read() as connection:
        if not sa.inspect(connection).has_table(_VERSIONS.name):
            return None
        found = connection.execute(sa.select(_VERSIONS.c.version_num)).scalar()
    if found is not None and not (str(found).isascii() and str(found).isdigit()):
        raise corrupt(database.home, f"{found!r} is not a version")
    return found


@contextmanager
def _lock(home: Path) -> Iterator[None]:
    with typed_errors(home):
        descriptor = os.open(home / "migrate.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _upgrade(database: Database) -> None:
    _refuse_lost_log(database)
    with database.plain() as connection:
        _sqlite.use_wal(connection)
    with database.write(durable=True) as connection:
        if sa.inspect(connection).get_table_names():
            _run_scripts(connection)
        else:
            _make(connection)


def _make(connection: sa.Connection) -> None:
    """Make in an empty database what the scripts would, without the 0.2 s that alembic takes to be imported."""
    metadata.create_all(connection, checkfirst=False)
    _VERSIONS.create(connection, checkfirst=False)
    connection.execute(sa.insert(_VERSIONS).values(version_num=VERSION))


def _refuse_lost_log(database: Database) -> None:
    # An emptied file is a valid empty database to SQLite: without this look the loss would pass for a fresh start.
    kept = Heads(database.home).missions()
    if kept and _version(database) is None:
        raise corrupt(database.home, f"its log is gone, while heads of {len(kept)} missions are kept")


def _run_scripts(connection: sa.Connection) -> None:
    # Imported here because a store that is current, the usual case, never needs it.
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(_SCRIPTS))
    context = MigrationContext.configure(connection)
    pending = list(scripts.iterate_revisions("head", context.get_current_revision() or "base"))
    with Operations.context(context):
        for script in reversed(pending):
            script.module.upgrade()
            context.stamp(scripts, script.revision)
