"""Accounts of the server, the secrets that grant access (only hashes), and the log of actions on them."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"

_STATEMENTS = (
    """CREATE TABLE accounts (
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    password TEXT,
    disabled INTEGER NOT NULL,
    created TEXT NOT NULL,
    failures INTEGER NOT NULL,
    locked_until TEXT,
    PRIMARY KEY (name)
)""",
    """CREATE TABLE web_sessions (
    digest TEXT NOT NULL,
    user TEXT NOT NULL,
    kind TEXT NOT NULL,
    created TEXT NOT NULL,
    last_seen TEXT NOT NULL,
    expires TEXT NOT NULL,
    ends TEXT NOT NULL,
    PRIMARY KEY (digest)
)""",
    "CREATE INDEX web_sessions_by_user ON web_sessions (user)",
    """CREATE TABLE login_codes (
    digest TEXT NOT NULL,
    user TEXT NOT NULL,
    created TEXT NOT NULL,
    expires TEXT NOT NULL,
    used TEXT,
    PRIMARY KEY (digest)
)""",
    """CREATE TABLE api_tokens (
    id TEXT NOT NULL,
    digest TEXT NOT NULL,
    user TEXT NOT NULL,
    owner INTEGER NOT NULL,
    name TEXT NOT NULL,
    scopes TEXT NOT NULL,
    created TEXT NOT NULL,
    expires TEXT NOT NULL,
    last_used TEXT,
    revoked TEXT,
    PRIMARY KEY (id)
)""",
    "CREATE UNIQUE INDEX api_tokens_by_digest ON api_tokens (digest)",
    """CREATE TABLE access_log (
    seq INTEGER NOT NULL,
    time TEXT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    address TEXT NOT NULL,
    outcome TEXT NOT NULL,
    PRIMARY KEY (seq)
)""",
    "CREATE INDEX access_log_refused ON access_log (seq) WHERE outcome = 'refused'",
)


def upgrade() -> None:
    """Create the tables; earlier users of Chargehand have no account and do not need one."""
    for statement in _STATEMENTS:
        op.execute(statement)
