"""Migrates the schema to this program's version: one query if it is current, alembic only for an older one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from chargehand.core.errors import StoreError
from chargehand.store.database import summaries
from chargehand.store.database.connection import Database, Transaction, corrupt, hold_lock, typed_errors

if TYPE_CHECKING:
    import sqlalchemy as sa

# The schema this program reads and writes: the newest file in `migrations/versions`.
VERSION = "0017"
_SCHEMA = Path(__file__).with_name("schema.sql")
_SCRIPTS = Path(__file__).parent / "migrations"


def ensure_current(database: Database, *, kept_heads: Callable[[], Collection[str]]) -> None:
    """Migrate the schema to `VERSION`; safe with several processes doing so at once.

    Raises `StoreError`: `store_newer` if a newer program wrote it, `store_older` if it needs a migration but is
    opened read-only, `store_corrupt` if the log is gone although `kept_heads` names missions with a kept head.
    """
    if _is_current(database):
        return
    if database.read_only:
        raise StoreError(
            f"the state directory {str(database.home)!r} is older than this program",
            code="store_older",
            hint="run any command that may write, such as `chargehand mission list`, once",
        )
    with hold_lock(database.home, "migrate.lock"):
        # Another process may have done it while this one waited.
        if not _is_current(database):
            _upgrade(database, kept_heads())


def _is_current(database: Database) -> bool:
    found = _find_version(database)
    if found is not None and int(found) > int(VERSION):
        raise StoreError(
            f"the state directory {str(database.home)!r} has version {found!r}, this program knows {VERSION!r}",
            code="store_newer",
            hint="upgrade chargehand, or set CHARGEHAND_HOME to another directory",
        )
    return found == VERSION


def _find_version(database: Database) -> str | None:
    """Return the version in alembic's own table, or `None` if it does not exist yet."""
    with database.read() as connection:
        table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'"
        if connection.execute(table).fetchone() is None:
            return None
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    found = None if row is None else row[0]
    if found is not None and not (str(found).isascii() and str(found).isdigit()):
        raise corrupt(database.home, f"{found!r} is not a version")
    return found


def _upgrade(database: Database, kept_heads: Collection[str]) -> None:
    # To SQLite an emptied file is a valid empty database: unchecked, the loss would pass for a fresh start.
    if kept_heads and _find_version(database) is None:
        raise corrupt(database.home, f"its log is gone, while heads of {len(kept_heads)} missions are kept")
    with database.plain() as connection:
        # Lets readers and a writer work in parallel; stored in the file, so done once.
        connection.execute("PRAGMA journal_mode=WAL")
        old = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table'").fetchone() is not None
    if old:
        with typed_errors(database.home):
            _migrate(partial(database.connect, "FULL"))
    else:
        with database.write(durable=True) as transaction:
            make_tables(transaction)


def make_tables(connection: Transaction) -> None:
    """Create the result of all scripts in an empty database, without the 0.2 s of alembic's import."""
    statement = ""
    # Not executescript, which would commit the open transaction.
    for line in _SCHEMA.read_text().splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
    connection.execute("INSERT INTO alembic_version (version_num) VALUES (?)", (VERSION,))


def _migrate(connect: partial[sqlite3.Connection]) -> None:
    import sqlalchemy as sa

    engine = sa.create_engine("sqlite+pysqlite://", creator=connect, poolclass=sa.NullPool)
    # The driver begins no transaction by itself (see `connect`): without this each statement would be separate.
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    try:
        with engine.begin() as connection:
            run_scripts(connection)
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            # In the same transaction: readers of the new tables never find rows of the old form.
            summaries.refresh(driver)
    except sa.exc.DBAPIError as error:
        raise (error.orig or error) from error
    finally:
        engine.dispose()


def run_scripts(connection: sa.Connection) -> None:
    """Run the scripts that were not applied to a database yet."""
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
