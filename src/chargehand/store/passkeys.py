"""Passkeys of accounts: their public keys, the challenges of ceremonies under way, and the sessions they open."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from chargehand.core.clock import Clock
from chargehand.store.access_log import AccessLog, Actor, as_moment, as_text
from chargehand.store.accounts import SessionRow, insert_session
from chargehand.store.database.connection import Database
from chargehand.store.factors import replace_codes


class PasskeyRow(Struct, frozen=True, kw_only=True):
    """One passkey: its account and name, its id (base64url), its public key (COSE), and its counter."""

    user: str
    name: str
    credential: str
    public_key: bytes
    counter: int


class Passkeys:
    """The passkeys of all accounts; each is one of the second factors of its account."""

    def __init__(self, database: Database, log: AccessLog, *, clock: Clock) -> None:
        self._database = database
        self._log = log
        self._clock = clock

    def add(self, passkey: PasskeyRow, codes: Iterable[str], *, actor: Actor) -> bool:
        """Store a passkey; return whether its account exists and has no factor of that name, nor anyone its id.

        `codes` as in `confirm`. Raises `StoreError`.
        """
        insert = """
            INSERT INTO second_factors SELECT name, :name, :key, :counter, :now, 1, 'passkey', :credential
            FROM accounts WHERE name = :user AND NOT EXISTS (
                SELECT 1 FROM second_factors WHERE (user = :user AND name = :name) OR credential = :credential)
        """
        with self._log.change(actor) as change:
            values = {
                "user": passkey.user,
                "name": passkey.name,
                "key": passkey.public_key.hex(),
                "counter": passkey.counter,
                "now": change.now,
                "credential": passkey.credential,
            }
            if change.execute(insert, values).rowcount != 1:
                return False
            replace_codes(change, passkey.user, codes, only_missing=True)
            change.note("factor.add", f"{passkey.user} ({passkey.name})")
        return True

    def find(self, credential: str) -> PasskeyRow | None:
        """Return the passkey with that id, `None` if unknown or damaged. Raises `StoreError`."""
        query = """
            SELECT user, name, secret, step FROM second_factors WHERE credential = ? AND kind = 'passkey'
        """
        with self._database.read() as connection:
            row = connection.execute(query, (credential,)).fetchone() if credential else None
        try:
            key = bytes.fromhex(as_text(row[2])) if row is not None else b""
        except ValueError:
            return None
        if row is None:
            return None
        return PasskeyRow(
            user=as_text(row[0]), name=as_text(row[1]), credential=credential, public_key=key, counter=int(row[3])
        )

    def list(self, user: str) -> tuple[str, ...]:
        """Return the ids of an account's passkeys. Raises `StoreError`."""
        query = "SELECT credential FROM second_factors WHERE user = ? AND kind = 'passkey'"
        with self._database.read() as connection:
            return tuple(as_text(row[0]) for row in connection.execute(query, (user,)).fetchall())

    def begin_challenge(self, digest: str, user: str, *, expires: str) -> None:
        """Store the challenge of a ceremony, of an account or ("") of anyone, and remove expired ones.

        Raises `StoreError`.
        """
        with self._database.write() as connection:
            now = as_moment(self._clock.now())
            connection.execute("DELETE FROM passkey_challenges WHERE expires <= ?", (now,))
            connection.execute("INSERT INTO passkey_challenges VALUES (?, ?, ?)", (digest, user, expires))

    def take_challenge(self, digest: str, user: str) -> bool:
        """Use up a challenge; return whether it was valid for that account. Raises `StoreError`."""
        remove = "DELETE FROM passkey_challenges WHERE digest = ? AND user = ? RETURNING expires > ?"
        with self._database.write(durable=True) as connection:
            now = as_moment(self._clock.now())
            row = connection.execute(remove, (digest, user, now)).fetchone()
        return row is not None and row[0] == 1

    def open_session(
        self, passkey: PasskeyRow, counter: int, *, digest: str, expires: str, ends: str, address: str
    ) -> SessionRow | None:
        """Open the session `digest` after a passkey was proven, and store its new counter.

        `None` if the account is disabled, or the passkey was removed or used meanwhile. Raises `StoreError`.
        """
        update = """
            UPDATE second_factors SET step = ? WHERE credential = ? AND user = ? AND step = ?
        """
        account = "SELECT role FROM accounts WHERE name = ? AND disabled = 0"
        with self._log.change(Actor(user=passkey.user, address=address)) as change:
            row = change.execute(account, (passkey.user,)).fetchone()
            values = (counter, passkey.credential, passkey.user, passkey.counter)
            if row is None or change.execute(update, values).rowcount != 1:
                return None
            session = SessionRow(
                digest=digest, user=passkey.user, role=as_text(row[0]), kind="passkey", created=change.now,
                last_seen=change.now, expires=expires, ends=ends, factor="passkey", proved=change.now,
                has_factor=True,
            )  # fmt: skip
            insert_session(change, session)
            change.note("session.open", passkey.user)
        return session
