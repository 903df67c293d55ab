"""Second factors of accounts: the secrets of time-based codes, and digests of recovery codes."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from chargehand.core.errors import NotFoundError, nearest
from chargehand.store.access_log import AccessChange, AccessLog, Actor, as_text
from chargehand.store.database.connection import Database

# Wrong codes in one session: with three valid ones among a million, five guesses are worth nothing.
_MOST_WRONG = 5


class FactorRow(Struct, frozen=True, kw_only=True):
    """One factor of an account: time-based codes (`totp`) or a `passkey`; `created` is ISO 8601 in UTC.

    `step` is the time step of the last accepted code.
    """

    name: str
    kind: str
    secret: str
    step: int
    created: str
    confirmed: bool

    def __repr__(self) -> str:
        return f"FactorRow({self.name!r}, …)"


class UsedFactor(Struct, frozen=True, kw_only=True):
    """A code that fits: of a factor and its time step, or a recovery code by its digest."""

    name: str = ""
    step: int = 0
    recovery: str = ""


class SecondFactors:
    """The factors and recovery codes of all accounts."""

    def __init__(self, database: Database, log: AccessLog) -> None:
        self._database = database
        self._log = log

    def list(self, user: str) -> tuple[FactorRow, ...]:
        """Return the factors of an account, unconfirmed ones too, the oldest first. Raises `StoreError`."""
        query = """
            SELECT name, kind, secret, step, created, confirmed FROM second_factors
            WHERE user = ? ORDER BY created, name
        """
        with self._database.read() as connection:
            rows = connection.execute(query, (user,)).fetchall()
        return tuple(
            FactorRow(
                name=as_text(name), kind=as_text(kind), secret=as_text(secret), step=int(step),
                created=as_text(created), confirmed=confirmed == 1,
            )
            for name, kind, secret, step, created, confirmed in rows
        )  # fmt: skip

    def count_recovery(self, user: str) -> int:
        """Return the number of unused recovery codes. Raises `StoreError`."""
        with self._database.read() as connection:
            row = connection.execute("SELECT count(*) FROM recovery_codes WHERE user = ?", (user,)).fetchone()
        return int(row[0])

    def add(self, user: str, name: str, secret: str, *, actor: Actor) -> bool:
        """Store a factor that is not confirmed yet, in place of an earlier unconfirmed one of that name.

        Return whether it was: a confirmed factor is not replaced, and people without an account have none. Raises
        `StoreError`.
        """
        insert = """
            INSERT INTO second_factors SELECT name, ?, ?, 0, ?, 0, 'totp', '' FROM accounts WHERE name = ?
            AND NOT EXISTS (SELECT 1 FROM second_factors WHERE user = ? AND name = ?)
        """
        with self._log.change(actor) as change:
            remove = "DELETE FROM second_factors WHERE user = ? AND name = ? AND confirmed = 0"
            change.execute(remove, (user, name))
            return change.execute(insert, (name, secret, change.now, user, user, name)).rowcount == 1

    def confirm(self, user: str, used: UsedFactor, codes: Iterable[str], *, actor: Actor) -> bool:
        """Let a factor count from now on, whose code was shown; return whether it was unconfirmed until now.

        `codes` are digests of recovery codes, stored if the account has none. Raises `StoreError`.
        """
        update = "UPDATE second_factors SET confirmed = 1, step = ? WHERE user = ? AND name = ? AND confirmed = 0"
        with self._log.change(actor) as change:
            if change.execute(update, (used.step, user, used.name)).rowcount != 1:
                return False
            replace_codes(change, user, codes, only_missing=True)
            change.note("factor.add", f"{user} ({used.name})")
        return True

    def replace_codes(self, user: str, codes: Iterable[str], *, actor: Actor) -> None:
        """Replace the recovery codes of an account. Raises `StoreError`."""
        with self._log.change(actor) as change:
            replace_codes(change, user, codes)
            change.note("factor.codes", user)

    def remove(self, user: str, name: str, *, session: str, actor: Actor) -> None:
        """Remove a factor, and with the last one the recovery codes; close all sessions but `session` (a digest).

        Another session may have been opened with the removed factor. Raises `NotFoundError`, `StoreError`.
        """
        with self._log.change(actor) as change:
            remove = "DELETE FROM second_factors WHERE user = ? AND name = ?"
            if change.execute(remove, (user, name)).rowcount == 0:
                known = [row.name for row in self.list(user)]
                raise NotFoundError(f"{user} has no second factor {name!r}", hint=nearest(name, known))
            left = "SELECT 1 FROM second_factors WHERE user = ? AND confirmed = 1"
            if change.execute(left, (user,)).fetchone() is None:
                change.execute("DELETE FROM recovery_codes WHERE user = ?", (user,))
            close = "DELETE FROM web_sessions WHERE kind IN ('password', 'passkey') AND user = ? AND digest <> ?"
            change.execute(close, (user, session))
            change.note("factor.remove", f"{user} ({name})")

    def reset(self, user: str, *, actor: Actor) -> None:
        """Remove all factors, recovery codes and sessions of an account. Raises `StoreError`."""
        with self._log.change(actor) as change:
            remove_factors(change, user)
            change.execute("DELETE FROM web_sessions WHERE kind <> 'code' AND user = ?", (user,))
            change.note("factor.reset", user)

    def prove(self, session: str, user: str, used: UsedFactor, *, actor: Actor) -> bool:
        """Note in a session that its account just showed a code; return whether the code is unused.

        Raises `StoreError`.
        """
        with self._log.change(actor) as change:
            if not use_factor(change, user, used):
                return False
            update = "UPDATE web_sessions SET factor = ?, proved = ?, wrong = 0 WHERE digest = ?"
            change.execute(update, (factor_kind(used), change.now, session))
            change.note("factor.use", user)
        return True

    def refuse(self, session: str, user: str, *, actor: Actor) -> None:
        """Note a wrong code; the fifth of a session ends it. Raises `StoreError`."""
        with self._log.change(actor) as change:
            change.execute("UPDATE web_sessions SET wrong = wrong + 1 WHERE digest = ?", (session,))
            change.execute("DELETE FROM web_sessions WHERE digest = ? AND wrong >= ?", (session, _MOST_WRONG))
            change.note("factor.use", user, outcome="refused")


def use_factor(change: AccessChange, user: str, used: UsedFactor | None) -> bool:
    """Use up a code in a transaction; return whether that was possible, or no code was needed.

    A code is valid once: its time step must be later than that of the last one.
    """
    if used is None:
        query = "SELECT 1 FROM second_factors WHERE user = ? AND confirmed = 1"
        return change.execute(query, (user,)).fetchone() is None
    if used.recovery:
        remove = "DELETE FROM recovery_codes WHERE user = ? AND digest = ?"
        return change.execute(remove, (user, used.recovery)).rowcount == 1
    update = """
        UPDATE second_factors SET step = :step
        WHERE user = :user AND name = :name AND confirmed = 1 AND step < :step
    """
    values = {"step": used.step, "user": user, "name": used.name}
    return change.execute(update, values).rowcount == 1


def factor_kind(used: UsedFactor | None) -> str:
    """Return the kind of factor that a session was opened with, "" without one."""
    return "" if used is None else "recovery" if used.recovery else "totp"


def remove_factors(change: AccessChange, user: str) -> None:
    """Remove all factors and recovery codes of an account in a transaction."""
    for table in ("second_factors", "recovery_codes"):
        change.execute(f"DELETE FROM {table} WHERE user = ?", (user,))


def replace_codes(change: AccessChange, user: str, codes: Iterable[str], *, only_missing: bool = False) -> None:
    """Replace the recovery codes of an account in a transaction; with `only_missing` only if it has none."""
    kept = change.execute("SELECT 1 FROM recovery_codes WHERE user = ? LIMIT 1", (user,)).fetchone()
    if only_missing and kept is not None:
        return
    change.execute("DELETE FROM recovery_codes WHERE user = ?", (user,))
    for digest in codes:
        change.execute("INSERT INTO recovery_codes VALUES (?, ?)", (digest, user))
