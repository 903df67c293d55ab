"""Sign-in: the provider of a session, accounts that a rule made, and second factors."""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"

_STATEMENTS = (
    # Sign-ins under way begin again.
    "DELETE FROM pending_sign_ins",
    "ALTER TABLE pending_sign_ins ADD COLUMN provider TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE pending_sign_ins ADD COLUMN provider_session TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE web_sessions ADD COLUMN issuer TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE web_sessions ADD COLUMN subject TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE web_sessions ADD COLUMN provider_session TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE web_sessions ADD COLUMN factor TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE web_sessions ADD COLUMN proved TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE web_sessions ADD COLUMN wrong INTEGER NOT NULL DEFAULT 0",
    """CREATE TABLE second_factors (
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    secret TEXT NOT NULL,
    step INTEGER NOT NULL,
    created TEXT NOT NULL,
    confirmed INTEGER NOT NULL,
    kind TEXT NOT NULL,
    credential TEXT NOT NULL,
    PRIMARY KEY (user, name)
)""",
    "CREATE UNIQUE INDEX second_factors_by_credential ON second_factors (credential) WHERE credential <> ''",
    """CREATE TABLE passkey_challenges (
    digest TEXT NOT NULL,
    user TEXT NOT NULL,
    expires TEXT NOT NULL,
    PRIMARY KEY (digest)
)""",
    """CREATE TABLE recovery_codes (
    digest TEXT NOT NULL,
    user TEXT NOT NULL,
    PRIMARY KEY (digest)
)""",
    "ALTER TABLE external_subjects ADD COLUMN by_rule INTEGER NOT NULL DEFAULT 0",
)


def upgrade() -> None:
    """Add the columns; subjects so far were linked by an administrator."""
    for statement in _STATEMENTS:
        op.execute(statement)
