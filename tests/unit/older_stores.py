"""Downgrades a current database to earlier versions of its schema."""

from __future__ import annotations

import sqlite3


def as_of_version_16(raw: sqlite3.Connection) -> None:
    columns = {
        "pending_sign_ins": ("provider", "provider_session"),
        "web_sessions": ("issuer", "subject", "provider_session", "factor", "proved", "wrong"),
        "external_subjects": ("by_rule",),
    }
    for table, names in columns.items():
        for name in names:
            raw.execute(f"ALTER TABLE {table} DROP COLUMN {name}")
    for table in ("second_factors", "recovery_codes", "passkey_challenges"):
        raw.execute(f"DROP TABLE {table}")
    raw.execute("UPDATE alembic_version SET version_num = '0016'")


def as_of_version_15(raw: sqlite3.Connection) -> None:
    as_of_version_16(raw)
    for table in ("lessons", "lesson_uses"):
        raw.execute(f"DROP TABLE {table}")
    raw.execute("UPDATE alembic_version SET version_num = '0015'")


def as_of_version_14(raw: sqlite3.Connection) -> None:
    as_of_version_15(raw)
    raw.execute("DROP TABLE network_versions")
    raw.execute("UPDATE alembic_version SET version_num = '0014'")


def as_of_version_13(raw: sqlite3.Connection) -> None:
    as_of_version_14(raw)
    for table in ("external_subjects", "pending_sign_ins"):
        raw.execute(f"DROP TABLE {table}")
    raw.execute("UPDATE alembic_version SET version_num = '0013'")


def as_of_version_9(raw: sqlite3.Connection) -> None:
    as_of_version_13(raw)
    raw.execute("DROP TABLE flaky_tests")
    raw.execute("DROP INDEX events_of_models")
    for table in ("alerts", "followers", "keyed_requests", "reviews"):
        raw.execute(f"DROP TABLE {table}")
    raw.execute("UPDATE alembic_version SET version_num = '0009'")


def as_of_version_8(raw: sqlite3.Connection) -> None:
    as_of_version_9(raw)
    for table in ("accounts", "web_sessions", "login_codes", "api_tokens", "access_log"):
        raw.execute(f"DROP TABLE {table}")
    raw.execute("UPDATE alembic_version SET version_num = '0008'")


def as_of_version_6(raw: sqlite3.Connection) -> None:
    as_of_version_8(raw)
    for index in ("missions_by_parent", "missions_with_news"):
        raw.execute(f"DROP INDEX {index}")
    for column in ("parent", "news"):
        raw.execute(f"ALTER TABLE missions DROP COLUMN {column}")
    for trigger in ("appended", "changed", "removed"):
        raw.execute(f"DROP TRIGGER event_{trigger}")
    raw.execute("DROP INDEX events_by_position")
    raw.execute("ALTER TABLE events DROP COLUMN position")
    raw.execute("DROP TABLE mission_summaries")
    raw.execute("DROP TABLE mission_calls")
    raw.execute("UPDATE alembic_version SET version_num = '0006'")
