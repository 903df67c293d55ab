"""External subjects of accounts, and the sign-ins of browsers that are at a provider or just returned from it."""

from __future__ import annotations

from itertools import chain, count

from msgspec import Struct

from chargehand.core.clock import Clock
from chargehand.core.errors import NotFoundError, UsageError
from chargehand.store.access_log import AccessChange, AccessLog, Actor, as_moment
from chargehand.store.accounts import SessionRow, insert_session
from chargehand.store.database.connection import Database


class SubjectRow(Struct, frozen=True, kw_only=True):
    """A person at an external issuer who signs in to the account `user`; `created` is ISO 8601 in UTC."""

    issuer: str
    subject: str
    user: str
    created: str
    by_rule: bool = False


class ExternalSubjects:
    """Which person at which issuer signs in to which account; an account can have several."""

    def __init__(self, database: Database, log: AccessLog) -> None:
        self._database = database
        self._log = log

    def add(self, user: str, *, issuer: str, subject: str, actor: Actor) -> None:
        """Link a subject to an account.

        Raises `NotFoundError` without that account, `UsageError` (`subject_taken`) if the subject has an account.
        """
        query = "SELECT user FROM external_subjects WHERE issuer = ? AND subject = ?"
        with self._log.change(actor) as change:
            if change.execute("SELECT 1 FROM accounts WHERE name = ?", (user,)).fetchone() is None:
                raise NotFoundError(f"there is no user {user!r}", hint="`chargehand user list` shows them")
            if (taken := change.execute(query, (issuer, subject)).fetchone()) is not None:
                raise UsageError(
                    f"{subject!r} of {issuer!r} signs in to the account {taken[0]!r}",
                    code="subject_taken",
                    hint="remove it there first",
                )
            values = (issuer, subject, user, change.now)
            change.execute("INSERT INTO external_subjects VALUES (?, ?, ?, ?, 0)", values)
            change.note("user.link", f"{user} ({subject} of {issuer})")

    def admit(
        self, issuer: str, subject: str, *, name: str | None, new_role: str, role: str | None, actor: Actor
    ) -> bool:
        """Give a person who signs in their account and its role; return whether they have one.

        `name` is that of a new account, with a number if it is taken; `None` admits only people whom an
        administrator linked. `role` is the role from now on, `None` keeps it. Raises `StoreError`.
        """
        query = """
            SELECT name, role, by_rule FROM external_subjects JOIN accounts ON name = user
            WHERE issuer = ? AND subject = ?
        """
        with self._log.change(actor) as change:
            row = change.execute(query, (issuer, subject)).fetchone()
            if row is None and name is not None:
                user = _free_name(change, name)
                insert = "INSERT INTO accounts VALUES (?, ?, NULL, 0, ?, 0, NULL)"
                change.execute(insert, (user, new_role, change.now))
                change.note("user.create", f"{user} ({new_role})")
                values = (issuer, subject, user, change.now)
                change.execute("INSERT INTO external_subjects VALUES (?, ?, ?, ?, 1)", values)
                change.note("user.link", f"{user} ({subject} of {issuer})")
            elif row is None or (row[2] and name is None):
                return False
            elif role is not None and role != row[1]:
                change.execute("UPDATE accounts SET role = ? WHERE name = ?", (role, row[0]))
                change.note("user.role", f"{row[0]} ({role})")
        return True

    def end_sessions(self, issuer: str, *, subject: str, session: str, actor: Actor) -> int:
        """Close the sessions of a provider's subject, of one of its sessions, or of both; return how many.

        Each of the two is "" for any. Raises `StoreError`.
        """
        remove = """
            DELETE FROM web_sessions WHERE kind = 'external' AND issuer = :issuer
            AND (:subject = '' OR subject = :subject) AND (:session = '' OR provider_session = :session)
            RETURNING user
        """
        with self._log.change(actor) as change:
            named = {"issuer": issuer, "subject": subject, "session": session}
            users = [row[0] for row in change.execute(remove, named).fetchall()]
            for user in users:
                change.note("session.close", str(user))
        return len(users)

    def list(self, user: str | None = None) -> tuple[SubjectRow, ...]:
        """Return the subjects of all accounts or of one, oldest first. Raises `StoreError`."""
        query = """
            SELECT issuer, subject, user, created, by_rule FROM external_subjects
            WHERE :user IS NULL OR user = :user ORDER BY created, issuer, subject
        """
        with self._database.read() as connection:
            rows = connection.execute(query, {"user": user}).fetchall()
        return tuple(
            SubjectRow(
                issuer=str(issuer), subject=str(subject), user=str(name), created=str(created), by_rule=made == 1
            )
            for issuer, subject, name, created, made in rows
        )

    def remove(self, *, issuer: str, subject: str, actor: Actor) -> str:
        """Unlink a subject, close its sessions, and return its account. Raises `NotFoundError`, `StoreError`."""
        remove = "DELETE FROM external_subjects WHERE issuer = ? AND subject = ? RETURNING user"
        with self._log.change(actor) as change:
            row = change.execute(remove, (issuer, subject)).fetchone()
            if row is None:
                raise NotFoundError(
                    f"{subject!r} of {issuer!r} has no account", hint="`chargehand user list` shows them"
                )
            close = """
                DELETE FROM web_sessions WHERE kind = 'external' AND user = ?
                AND (issuer = '' OR (issuer = ? AND subject = ?))
            """
            change.execute(close, (row[0], issuer, subject))
            change.note("user.unlink", f"{row[0]} ({subject} of {issuer})")
        return str(row[0])


class PendingSignIns:
    """Sign-ins under way, each found by the digest of a secret and bound to a browser by another one.

    The secret of a row is first the state that the provider returns. It is then a code that the page exchanges for
    a session; each is used once.
    """

    def __init__(self, database: Database, log: AccessLog, *, clock: Clock) -> None:
        self._database = database
        self._log = log
        self._clock = clock

    def begin(
        self, digest: str, *, provider: str, browser: str, verifier: str, return_to: str, expires: str
    ) -> None:
        """Store a sign-in that leaves for the provider, and remove expired ones. Raises `StoreError`."""
        with self._database.write() as connection:
            now = as_moment(self._clock.now())
            connection.execute("DELETE FROM pending_sign_ins WHERE expires <= ?", (now,))
            insert = "INSERT INTO pending_sign_ins VALUES (?, ?, ?, ?, NULL, NULL, ?, ?, '')"
            connection.execute(insert, (digest, browser, verifier, return_to, expires, provider))

    def take(self, digest: str, *, provider: str, browser: str) -> tuple[str, str] | None:
        """Use up the state of a sign-in of this browser, and return its verifier and its return address.

        `None` if it is unknown, used or expired. Raises `StoreError`.
        """
        remove = """
            DELETE FROM pending_sign_ins WHERE digest = ? AND browser = ? AND provider = ? AND subject IS NULL
            RETURNING expires > ?, verifier, return_to
        """
        # Durable: after a power cut, a state that was used must not be valid again.
        with self._database.write(durable=True) as connection:
            now = as_moment(self._clock.now())
            row = connection.execute(remove, (digest, browser, provider, now)).fetchone()
        return (row[1], row[2]) if row is not None and row[0] == 1 else None

    def add_code(
        self, digest: str, *, browser: str, issuer: str, subject: str, session: str, expires: str
    ) -> bool:
        """Store a code that opens a session for a subject; return whether the subject has an enabled account.

        Raises `StoreError`.
        """
        query = """
            INSERT INTO pending_sign_ins SELECT ?, ?, '', '/', issuer, subject, ?, '', ? FROM external_subjects
            JOIN accounts ON name = user AND disabled = 0 WHERE issuer = ? AND subject = ?
        """
        with self._database.write(durable=True) as connection:
            values = (digest, browser, expires, session, issuer, subject)
            return connection.execute(query, values).rowcount == 1

    def open_session(
        self, code: str, *, browser: str, digest: str, expires: str, ends: str, address: str
    ) -> SessionRow | None:
        """Use up a code of this browser and open the session `digest` of its account.

        `None` if the code is unknown, used or expired, or its subject has no enabled account by now. Raises
        `StoreError`.
        """
        remove = """
            DELETE FROM pending_sign_ins WHERE digest = ? AND browser = ? AND subject IS NOT NULL
            RETURNING issuer, subject, expires, provider_session
        """
        account = """
            SELECT name, role FROM external_subjects JOIN accounts ON name = user AND disabled = 0
            WHERE issuer = ? AND subject = ?
        """
        with self._database.read() as connection:  # a guess costs no durable write
            if connection.execute("SELECT 1 FROM pending_sign_ins WHERE digest = ?", (code,)).fetchone() is None:
                return None
        with self._log.change(Actor(user="", address=address)) as change:
            taken = change.execute(remove, (code, browser)).fetchone()
            issuer, subject, until, at_provider = taken or ("", "", "", "")
            row = change.execute(account, (issuer, subject)).fetchone()
            if row is None or until <= change.now:
                return None
            session = SessionRow(
                digest=digest, user=row[0], role=row[1], kind="external", created=change.now,
                last_seen=change.now, expires=expires, ends=ends, issuer=issuer, subject=subject,
                provider_session=at_provider,
            )  # fmt: skip
            insert_session(change, session)
            change.note("session.open", session.user)
        return session


def _free_name(change: AccessChange, name: str) -> str:
    """Return the name of a new account: `name`, or with the first free number if another person has it."""
    taken = {row[0] for row in change.execute("SELECT name FROM accounts", ()).fetchall()}
    return next(each for each in chain((name,), (f"{name}-{n}" for n in count(2))) if each not in taken)
