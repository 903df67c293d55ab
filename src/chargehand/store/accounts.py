"""Accounts of the server, and the secrets that grant access to it.

Secrets are stored only as hashes: argon2id of a password, SHA-256 of a secret with 256 random bits. A secret is
looked up by that hash, which no guess can steer towards another one.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from msgspec import Struct

from chargehand.core.clock import Clock
from chargehand.core.errors import NotFoundError, RefusedError, UsageError, nearest
from chargehand.store.access_log import AccessChange, AccessLog, Actor, as_moment, as_text
from chargehand.store.chain import is_moment
from chargehand.store.database.connection import Database
from chargehand.store.factors import UsedFactor, factor_kind, remove_factors, use_factor

LoginKind = Literal["password", "code", "external", "passkey"]


class AccountRow(Struct, frozen=True, kw_only=True):
    """One account; times are ISO 8601 in UTC. `failures` counts consecutive failed logins."""

    name: str
    role: str
    has_password: bool
    disabled: bool
    created: str
    failures: int
    locked_until: str | None


class SessionRow(Struct, frozen=True, kw_only=True):
    """One open session; `role` is the account's current one, null for the user who runs Chargehand here.

    It ends at `expires`, which moves with use, up to `ends`.
    """

    digest: str
    user: str
    role: str | None
    kind: LoginKind
    created: str
    last_seen: str
    expires: str
    ends: str
    issuer: str = ""
    """The provider's issuer, subject and session of an external sign-in; "" for other sessions."""
    subject: str = ""
    provider_session: str = ""
    factor: str = ""
    """The kind of second factor that the account last showed in it, "" for none."""
    proved: str = ""
    """When that was."""
    has_factor: bool = False
    """Whether the account has a second factor now."""


class TokenRow(Struct, frozen=True, kw_only=True):
    """One token for programs; `role` is the account's current one, null for the user who runs Chargehand."""

    id: str
    user: str
    role: str | None
    owner: bool
    name: str
    scopes: tuple[str, ...]
    created: str
    expires: str
    last_used: str | None
    revoked: str | None


class LoginAttempt(Struct, frozen=True, kw_only=True):
    """A started login: its line in the access log, and the hash to check the password against, or `None`."""

    line: int
    password: str | None


class Accounts:
    """People and programs that may use the server."""

    def __init__(self, database: Database, log: AccessLog) -> None:
        self._database = database
        self._log = log

    def add(self, name: str, *, role: str, password: str | None, actor: Actor) -> None:
        """Add an account; `password` is its hash. Raises `UsageError` (`account_exists`), `StoreError`."""
        with self._log.change(actor) as change:
            if change.execute("SELECT 1 FROM accounts WHERE name = ?", (name,)).fetchone() is not None:
                raise UsageError(
                    f"user {name!r} already exists", code="account_exists", hint="choose another name"
                )
            insert = "INSERT INTO accounts VALUES (?, ?, ?, 0, ?, 0, NULL)"
            change.execute(insert, (name, role, password, change.now))
            change.note("user.create", f"{name} ({role})")

    def list(self) -> tuple[AccountRow, ...]:
        """Return all accounts by name. Raises `StoreError`."""
        query = (
            "SELECT name, role, password, disabled, created, failures, locked_until FROM accounts ORDER BY name"
        )
        with self._database.read() as connection:
            rows = connection.execute(query).fetchall()
        return tuple(
            AccountRow(
                name=as_text(name),
                role=as_text(role),
                has_password=password is not None,
                disabled=disabled != 0,
                created=as_text(created),
                failures=_number(failures),
                locked_until=as_text(locked) or None,
            )
            for name, role, password, disabled, created, failures, locked in rows
        )

    def find(self, name: str) -> AccountRow:
        """Return an account. Raises `NotFoundError`, `StoreError`."""
        rows = self.list()
        for row in rows:
            if row.name == name:
                return row
        raise NotFoundError(f"there is no user {name!r}", hint=nearest(name, (row.name for row in rows)))

    def set_role(self, name: str, role: str, *, actor: Actor, keep_administrator: bool = False) -> None:
        """Change the role of an account, including its open sessions and its tokens.

        With `keep_administrator` the last administrator keeps the role. Raises as `find`, and `RefusedError`
        (`last_administrator`).
        """
        with self._log.change(actor) as transaction, self._keep_administrator(transaction, keep_administrator):
            self._update(transaction, name, "role = ?", role)
            transaction.note("user.role", f"{name} ({role})")

    def set_password(self, name: str, password: str, *, actor: Actor, attempt: LoginAttempt | None = None) -> None:
        """Replace an account's password (its hash) and close its sessions.

        `attempt` is the login that proved that the account's owner asks. Raises as `find`.
        """
        change = "password = ?, failures = 0, locked_until = NULL"
        with self._log.change(actor) as transaction:
            self._update(transaction, name, change, password, closing=True)
            if attempt is None:
                transaction.note("user.password", name)
            else:
                transaction.settle(attempt.line, "user.password", name)

    def set_disabled(self, name: str, disabled: bool, *, actor: Actor, keep_administrator: bool = False) -> None:
        """Close an account and its sessions, or open it again. Raises as `set_role`."""
        change = "disabled = ?, failures = 0, locked_until = NULL"
        with self._log.change(actor) as transaction, self._keep_administrator(transaction, keep_administrator):
            self._update(transaction, name, change, int(disabled), closing=disabled)
            transaction.note("user.disable" if disabled else "user.enable", name)

    def remove(self, name: str, *, actor: Actor, keep_administrator: bool = False) -> None:
        """Remove an account with its sessions, tokens and subjects: a later account of that name inherits nothing.

        Raises as `set_role`.
        """
        with self._log.change(actor) as change, self._keep_administrator(change, keep_administrator):
            self._require(change.execute("DELETE FROM accounts WHERE name = ?", (name,)).rowcount, name)
            change.execute("DELETE FROM web_sessions WHERE kind <> 'code' AND user = ?", (name,))
            change.execute("DELETE FROM api_tokens WHERE owner = 0 AND user = ?", (name,))
            remove_factors(change, name)
            # The next user of the name is another person.
            for table in ("reviews", "keyed_requests", "external_subjects"):
                change.execute(f"DELETE FROM {table} WHERE user = ?", (name,))
            change.note("user.remove", name)

    def begin_login(self, name: str, *, lock: Callable[[int], str | None], address: str) -> LoginAttempt:
        """Note that a client claims to be an account, and return the hash to check the password against.

        The attempt counts as failed until `Grants.open_session` completes it: a hundred at once are not a hundred
        guesses. `lock` maps a number of consecutive failures to the time until which the account is locked (ISO
        8601). During a lock nothing is counted, so that continued guessing cannot lock the owner out for good. An
        address from which the account has logged in before is not locked out; the caller bounds guesses from
        there. Raises `StoreError`.
        """
        query = """
            SELECT password, disabled, failures, locked_until, :address <> '' AND EXISTS (
                SELECT 1 FROM access_log WHERE action = 'session.open' AND outcome = 'done'
                AND actor = :name AND address = :address AND time > accounts.created)
            FROM accounts WHERE name = :name
        """
        count = "UPDATE accounts SET failures = ?, locked_until = ? WHERE name = ?"
        with self._log.change(Actor(user="", address=address)) as change:
            row = change.execute(query, {"name": name, "address": address}).fetchone()
            # Written for every name, since one write less could be measured; and without a name that is no
            # account's, because people type their password there.
            line = change.note("session.open", "" if row is None else name, outcome="refused")
            password, disabled, failed, locked_until, is_known = row or (None, 0, 0, None, 0)
            is_locked = as_text(locked_until) > change.now
            if not as_text(password) or disabled != 0 or (is_locked and not is_known):
                return LoginAttempt(line=line, password=None)
            if not is_locked:
                failures = _number(failed) + 1
                change.execute(count, (failures, lock(failures), name))
        return LoginAttempt(line=line, password=as_text(password))

    def _update(
        self, transaction: AccessChange, name: str, change: str, value: object, *, closing: bool = False
    ) -> None:
        changed = transaction.execute(f"UPDATE accounts SET {change} WHERE name = ?", (value, name)).rowcount
        self._require(changed, name)
        if closing:
            transaction.execute("DELETE FROM web_sessions WHERE kind <> 'code' AND user = ?", (name,))

    @contextmanager
    def _keep_administrator(self, change: AccessChange, keep: bool) -> Iterator[None]:
        """Undo the transaction if its change removes the last administrator."""
        # Within the transaction, so that two administrators who remove each other do not both succeed.
        query = "SELECT 1 FROM accounts WHERE role = 'admin' AND disabled = 0 LIMIT 1"
        before = keep and change.execute(query).fetchone() is not None
        yield
        if before and change.execute(query).fetchone() is None:
            raise RefusedError(
                "this is the last administrator who can log in",
                code="last_administrator",
                hint="make another one first; on the server's machine `chargehand user` changes any account",
            )

    def _require(self, found: int, name: str) -> None:
        if not found:
            self.find(name)


class Grants:
    """Secrets that grant access: login codes, sessions, tokens; each is identified by its SHA-256."""

    def __init__(self, database: Database, log: AccessLog, *, clock: Clock) -> None:
        self._database = database
        self._log = log
        self._clock = clock

    def add_code(self, digest: str, *, expires: str, actor: Actor) -> None:
        """Store a code that logs `actor` in once, replacing older codes. Raises `StoreError`."""
        with self._log.change(actor) as change:
            change.execute("DELETE FROM login_codes WHERE expires <= ? OR user = ?", (change.now, actor.user))
            insert = "INSERT INTO login_codes VALUES (?, ?, ?, ?, NULL)"
            change.execute(insert, (digest, actor.user, change.now, expires))
            change.note("code.create", actor.user)

    def has_code(self, code: str) -> bool:
        """Return whether a code with this digest exists, used or not. Raises `StoreError`."""
        with self._database.read() as connection:
            row = connection.execute("SELECT digest FROM login_codes WHERE digest = ?", (code,)).fetchone()
        return row is not None and _equal(row[0], code)

    def redeem_code(self, code: str, *, digest: str, expires: str, ends: str, address: str) -> SessionRow | None:
        """Use up a code and open the session `digest` for its creator; return `None` if the code is invalid.

        Raises `StoreError`.
        """
        query = "SELECT user, expires, used, digest FROM login_codes WHERE digest = ?"
        with self._log.change(Actor(user="", address=address)) as change:
            row = change.execute(query, (code,)).fetchone()
            if row is None or row[2] is not None or not _lasts(row[1], change.now) or not _equal(row[3], code):
                change.note("session.open", "", outcome="refused")
                return None
            user = as_text(row[0])
            change.execute("UPDATE login_codes SET used = ? WHERE digest = ?", (change.now, code))
            session = SessionRow(
                digest=digest, user=user, role=None, kind="code", created=change.now, last_seen=change.now,
                expires=expires, ends=ends,
            )  # fmt: skip
            insert_session(change, session)
            change.note("session.open", user)
        return session

    def open_session(
        self,
        user: str,
        *,
        attempt: LoginAttempt,
        rehashed: str | None,
        digest: str,
        expires: str,
        ends: str,
        used: UsedFactor | None = None,
    ) -> SessionRow | None:
        """Open the session `digest` after a login with the right password; `rehashed` replaces its hash.

        `used` is the code of a second factor. `None` if the account is disabled, or has another password or
        factor by now, or the code was used. Raises `StoreError`.
        """
        forgive = """
            UPDATE accounts SET failures = 0, locked_until = NULL, password = coalesce(?, password)
            WHERE name = ? AND password = ? AND disabled = 0 RETURNING role
        """
        with self._log.change(Actor(user=user)) as change:
            if not use_factor(change, user, used):
                return None
            row = change.execute(forgive, (rehashed, user, attempt.password)).fetchone()
            if row is None:
                return None
            session = SessionRow(
                digest=digest, user=user, role=as_text(row[0]), kind="password", created=change.now,
                last_seen=change.now, expires=expires, ends=ends, factor=factor_kind(used),
                proved=change.now if used is not None else "", has_factor=used is not None,
            )  # fmt: skip
            insert_session(change, session)
            change.settle(attempt.line, "session.open", user)
        return session

    def session(self, digest: str) -> SessionRow | None:
        """Return the valid session with this digest, or `None`. Raises `StoreError`."""
        query = """
            SELECT digest, user, kind, web_sessions.created, last_seen, expires, ends, role, disabled, issuer,
                factor, proved, EXISTS (
                    SELECT 1 FROM second_factors WHERE second_factors.user = web_sessions.user AND confirmed = 1)
            FROM web_sessions LEFT JOIN accounts ON name = user AND kind <> 'code' WHERE digest = ?
        """
        with self._database.read() as connection:
            row = connection.execute(query, (digest,)).fetchone()
        now = as_moment(self._clock.now())
        if row is None or not _equal(row[0], digest) or not (_lasts(row[5], now) and _lasts(row[6], now)):
            return None
        if row[2] != "code" and (row[2] not in ("password", "external", "passkey") or row[8] != 0):
            return None
        return SessionRow(
            digest=digest, user=as_text(row[1]), role=None if row[2] == "code" else as_text(row[7]), kind=row[2],
            created=as_text(row[3]), last_seen=as_text(row[4]), expires=row[5], ends=row[6],
            issuer=as_text(row[9]), factor=as_text(row[10]), proved=as_text(row[11]),
            has_factor=row[2] != "code" and row[12] == 1,
        )  # fmt: skip

    def extend_session(self, digest: str, *, expires: str) -> None:
        """Extend a session in use until `expires`. Raises `StoreError`."""
        now = as_moment(self._clock.now())
        with self._database.write() as connection:
            update = "UPDATE web_sessions SET last_seen = ?, expires = ? WHERE digest = ?"
            connection.execute(update, (now, expires, digest))

    def close_session(self, digest: str, *, actor: Actor) -> None:
        """End a session; do nothing if it does not exist. Raises `StoreError`."""
        with self._log.change(actor) as change:
            remove = "DELETE FROM web_sessions WHERE digest = ? RETURNING user"
            row = change.execute(remove, (digest,)).fetchone()
            if row is not None:
                change.note("session.close", as_text(row[0]))

    def close_all(self, *, actor: Actor) -> None:
        """End all sessions and void all codes, for example after a restore. Raises `StoreError`."""
        with self._log.change(actor) as change:
            for table in ("web_sessions", "login_codes", "pending_sign_ins"):
                change.execute(f"DELETE FROM {table}")
            change.note("session.close", "all")

    def add_token(self, token: TokenRow, *, digest: str, actor: Actor) -> None:
        """Store a token. Raises `NotFoundError` if its user no longer has an account, `StoreError`."""
        with self._log.change(actor) as change:
            known = change.execute("SELECT 1 FROM accounts WHERE name = ?", (token.user,)).fetchone()
            if not token.owner and known is None:
                raise NotFoundError(f"there is no user {token.user!r}", hint="`chargehand user list` shows them")
            values = (token.id, digest, token.user, int(token.owner), token.name, " ".join(token.scopes))
            insert = "INSERT INTO api_tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)"
            change.execute(insert, (*values, token.created, token.expires))
            change.note("token.create", f"{token.id} of {token.user} ({' '.join(token.scopes)})")

    def tokens(self, user: str | None = None) -> tuple[TokenRow, ...]:
        """Return the tokens of all users or of one, oldest first, including invalid ones. Raises `StoreError`."""
        query = f"{_TOKENS} WHERE :user IS NULL OR user = :user ORDER BY api_tokens.created, id"
        with self._database.read() as connection:
            rows = connection.execute(query, {"user": user}).fetchall()
        return tuple(_token(row) for row in rows)

    def token(self, digest: str) -> TokenRow | None:
        """Return the valid token with this digest, or `None`. Raises `StoreError`."""
        with self._database.read() as connection:
            row = connection.execute(f"{_TOKENS} WHERE digest = ?", (digest,)).fetchone()
        if row is None or not _equal(row[0], digest):
            return None
        # A missing or disabled account, and a value that no program of ours wrote, grant nothing.
        if row[4] not in (0, 1) or (row[4] == 0 and row[11] != 0):
            return None
        token = _token(row)
        lasts = row[10] is None and _lasts(token.expires, as_moment(self._clock.now()))
        return token if lasts else None

    def has_expired(self, digest: str) -> bool:
        """Return whether a token with this digest was valid until it expired. Raises `StoreError`."""
        with self._database.read() as connection:
            row = connection.execute(f"{_TOKENS} WHERE digest = ? AND revoked IS NULL", (digest,)).fetchone()
        return row is not None and not _lasts(_token(row).expires, as_moment(self._clock.now()))

    def note_token_use(self, token: str) -> None:
        """Note that a token is in use. Raises `StoreError`."""
        now = as_moment(self._clock.now())
        with self._database.write() as connection:
            connection.execute("UPDATE api_tokens SET last_used = ? WHERE id = ?", (now, token))

    def revoke_token(self, token: str, *, actor: Actor) -> None:
        """Invalidate a token from now on; it stays in the list. Raises `NotFoundError`, `StoreError`."""
        with self._log.change(actor) as change:
            update = "UPDATE api_tokens SET revoked = coalesce(revoked, ?) WHERE id = ? RETURNING user"
            row = change.execute(update, (change.now, token)).fetchone()
            if row is None:
                raise NotFoundError(f"there is no token {token!r}", hint="`chargehand token list` shows them")
            change.note("token.revoke", f"{token} of {as_text(row[0])}")

    def problems(self, *, roles: Sequence[str]) -> Iterator[str]:
        """Yield rows of accounts and grants that no program of ours writes. Raises `StoreError`."""
        digest = "length(digest) = 64 AND digest NOT GLOB '*[^0-9a-f]*'"
        known = ", ".join(f"'{role}'" for role in roles)
        tables = (
            ("accounts", "name", f"role IN ({known}) AND disabled IN (0, 1) AND typeof(failures) = 'integer'",
             ("created",), ("locked_until",)),
            ("web_sessions", "user", f"kind IN ('password', 'code', 'external', 'passkey') AND {digest}",
             ("created", "last_seen", "expires", "ends"), ()),
            ("login_codes", "user", digest, ("created", "expires"), ("used",)),
            ("api_tokens", "id", f"owner IN (0, 1) AND {digest}",
             ("created", "expires"), ("last_used", "revoked")),
            ("external_subjects", "user", "length(issuer) > 0 AND length(subject) > 0", ("created",), ()),
            ("pending_sign_ins", "return_to", digest, ("expires",), ()),
            ("second_factors", "user", "length(secret) > 0 AND typeof(step) = 'integer' AND confirmed IN (0, 1)",
             ("created",), ()),
            ("recovery_codes", "user", digest, (), ()),
            ("passkey_challenges", "user", digest, ("expires",), ()),
        )  # fmt: skip
        with self._database.read() as connection:
            for table, name, good, needed, optional in tables:
                columns = ", ".join((name, f"coalesce({good}, 0)", *needed, *optional))
                for subject, is_good, *moments in connection.execute(f"SELECT {columns} FROM {table}"):
                    known_moments = [each for each in moments[len(needed) :] if each is not None]
                    whole = isinstance(subject, str) and is_good == 1
                    times = (*moments[: len(needed)], *known_moments)
                    if not whole or not all(isinstance(each, str) and is_moment(each) for each in times):
                        yield f"a row of {table} ({subject!r}) was changed or damaged"


_TOKENS = """
    SELECT digest, id, user, role, owner, api_tokens.name, scopes, api_tokens.created, expires, last_used, revoked,
        disabled
    FROM api_tokens LEFT JOIN accounts ON accounts.name = user AND owner = 0
"""


def insert_session(change: AccessChange, session: SessionRow) -> None:
    """Add a session in a transaction, and remove expired ones."""
    change.execute("DELETE FROM web_sessions WHERE expires <= ?", (change.now,))
    values = (session.digest, session.user, session.kind, session.created, session.last_seen)
    insert = "INSERT INTO web_sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)"
    external = (session.issuer, session.subject, session.provider_session)
    change.execute(insert, (*values, session.expires, session.ends, *external, session.factor, session.proved))


def _token(row: Sequence[Any]) -> TokenRow:
    _, name, user, role, owner, label, scopes, created, expires, last_used, revoked, *_ = row
    return TokenRow(
        id=as_text(name),
        user=as_text(user),
        role=None if owner == 1 else as_text(role),
        owner=owner == 1,
        name=as_text(label),
        scopes=tuple(as_text(scopes).split()),
        created=as_text(created),
        expires=as_text(expires),
        last_used=as_text(last_used) or None,
        # Any value counts: a token with a damaged row is no better than a revoked one.
        revoked=None if revoked is None else as_text(revoked),
    )


def _lasts(moment: object, now: str) -> bool:
    """Return whether a value is a valid moment in the future."""
    return isinstance(moment, str) and is_moment(moment) and moment > now


def _equal(kept: object, digest: str) -> bool:
    return isinstance(kept, str) and hmac.compare_digest(kept.encode(), digest.encode())


def _number(kept: object) -> int:
    return kept if isinstance(kept, int) else 0
