"""External subjects of accounts, and sign-ins at an external provider that are under way."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"

_STATEMENTS = (
    """CREATE TABLE external_subjects (
    issuer TEXT NOT NULL,
    subject TEXT NOT NULL,
    user TEXT NOT NULL,
    created TEXT NOT NULL,
    PRIMARY KEY (issuer, subject)
)""",
    """CREATE TABLE pending_sign_ins (
    digest TEXT NOT NULL,
    browser TEXT NOT NULL,
    verifier TEXT NOT NULL,
    return_to TEXT NOT NULL,
    issuer TEXT,
    subject TEXT,
    expires TEXT NOT NULL,
    PRIMARY KEY (digest)
)""",
)


def upgrade() -> None:
    """Create the tables; earlier accounts have no external subject."""
    for statement in _STATEMENTS:
        op.execute(statement)
