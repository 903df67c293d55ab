"""Accounts of the server, logins and their sessions, tokens for programs, and the access log.

A person who can write the state directory owns it: they have no account, log in with a code that a command prints,
and may do everything. Other people have an account with a role.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Literal

import msgspec
from msgspec.structs import replace

from chargehand import __version__
from chargehand.core.codec import convert_to
from chargehand.core.errors import RefusedError, StoreError, UsageError, nearest
from chargehand.identity._codes import match_code
from chargehand.identity._secrets import digest_secret, new_secret
from chargehand.identity.documents import (
    AccessLogDocument,
    LoginCodeDocument,
    SessionDocument,
    SubjectDocument,
    UserDocument,
    UserListDocument,
    UserRemovedDocument,
)
from chargehand.identity.passwords import compare_password, hash_password
from chargehand.policy.access import (
    ENROLMENT,
    NEEDS_PROOF,
    ROLES,
    SCOPES,
    AccessScope,
    AccountRole,
    FactorRole,
    judge_access,
    lock_seconds,
)
from chargehand.reports.reading import StateReader
from chargehand.store.access_log import Actor, as_moment
from chargehand.store.accounts import AccountRow, LoginAttempt, SessionRow
from chargehand.store.sign_ins import SubjectRow

# A secret without this prefix opens no session: browsers sent earlier versions' cookies to other servers too.
SESSION_PREFIX = "chs_"
_CODE_LASTS = timedelta(minutes=10)
_IDLE = timedelta(hours=12)
_LONGEST = timedelta(days=7)
# Use is recorded at most this often, so that requests do not queue for the writer; a session may end this much
# early.
NOTED_EVERY = timedelta(minutes=1)
_PROOF_LASTS = timedelta(minutes=10)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The authenticated caller of an operation: a session, a token or the command line.

    `scopes` are those of a token, and all of them for a person. `expires` (ISO 8601 in UTC) is "" for the command
    line, `address` (the origin of the request) is "" for this machine.
    """

    user: str
    role: AccountRole
    scopes: tuple[AccessScope, ...]
    via: Literal["owner", "session", "token"]
    expires: str = ""
    address: str = ""
    session: str = ""
    """The digest of a session's secret, "" for others."""
    has_factor: bool = False
    must_enrol: bool = False
    proved: str = ""
    """When a session's account last showed a code of its second factor, ISO 8601 in UTC, "" for never."""


class OpenedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session that a login opened; `secret` is shown here and never again."""

    secret: str
    caller: Caller


def owner(reader: StateReader) -> Caller:
    """Return the caller of a command on this machine, whose user can write the state directory anyway."""
    return Caller(user=reader.identity(), role="admin", scopes=SCOPES, via="owner")


def require_access(reader: StateReader, caller: Caller, action: str, subject: str = "") -> None:
    """Return if the caller may do an action; otherwise log that and raise `RefusedError` (`access_denied`)."""
    judgement = judge_access(action, caller.role, caller.scopes)
    if judgement.allowed:
        _require_factor(reader, caller, action)
    else:
        reader.store.access_log.append(actor_of(caller), action, subject, outcome="refused")
        raise RefusedError(
            f"{caller.user} may not do this: {judgement.reason}",
            code="access_denied",
            hint="ask an administrator: `chargehand user role` and `chargehand token create` give rights",
        )


def _require_factor(reader: StateReader, caller: Caller, action: str) -> None:
    """Raise `RefusedError` if a second factor (`enrolment_needed`) or its code (`proof_needed`) is missing."""
    if caller.must_enrol and action not in ENROLMENT:
        raise RefusedError(
            f"the role {caller.role} needs a second factor here",
            code="enrolment_needed",
            hint="add one on the page of accounts",
        )
    oldest = as_moment(reader.clock.now() - _PROOF_LASTS)
    if caller.has_factor and action in NEEDS_PROOF and caller.proved < oldest:
        raise RefusedError(
            f"{action} needs a code of your second factor that is not older than 10 minutes",
            code="proof_needed",
            hint="POST /session/proof with a code, then repeat it",
        )


def create_user(
    reader: StateReader, name: str, *, role: str, password: str | None = None, by: Caller
) -> UserDocument:
    """Add an account; without a password only its tokens give access. Hashing a password takes 0.3 s."""
    require_access(reader, by, "user.create", name)
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} is not a user's name",
            code="user_invalid",
            hint="write up to 64 of a-z, 0-9, '.', '_' and '-', a letter or digit first",
        )
    role = known_role(role)
    hashed = None if password is None else hash_password(password, user=name)
    reader.store.accounts.add(name, role=role, password=hashed, actor=actor_of(by))
    return _find_user(reader, name)


def list_users(reader: StateReader, *, by: Caller) -> UserListDocument:
    """Return all accounts. Raises `RefusedError` (`access_denied`)."""
    require_access(reader, by, "user.list")
    subjects: dict[str, list[SubjectRow]] = {}
    for each in reader.store.subjects.list():
        subjects.setdefault(each.user, []).append(each)
    rows = reader.store.accounts.list()
    return UserListDocument(users=tuple(_user(reader, row, subjects.get(row.name, ())) for row in rows))


def find_user(reader: StateReader, name: str, *, by: Caller) -> UserDocument:
    """Return an account. Raises `NotFoundError`, `RefusedError` (`access_denied`)."""
    require_access(reader, by, "user.list", name)
    return _find_user(reader, name)


def set_user_role(reader: StateReader, name: str, role: str, *, by: Caller) -> UserDocument:
    """Change the role of an account; its sessions and tokens have the new one at once.

    Raises `NotFoundError`, `UsageError` (`user_invalid`), `RefusedError` (`access_denied`; `last_administrator` if
    no administrator would be left).
    """
    require_access(reader, by, "user.role", name)
    reader.store.accounts.set_role(
        name, known_role(role), actor=actor_of(by), keep_administrator=_has_account(reader, by)
    )
    return _find_user(reader, name)


def set_user_password(reader: StateReader, name: str, password: str, *, by: Caller) -> UserDocument:
    """Change the password of an account: closes its sessions and lifts a lock. Takes 0.3 s of work.

    Raises `NotFoundError`, `UsageError` (`password_weak`), `RefusedError` (`access_denied`).
    """
    require_access(reader, by, "user.password", name)
    reader.store.accounts.set_password(name, hash_password(password, user=name), actor=actor_of(by))
    return _find_user(reader, name)


def change_own_password(reader: StateReader, current: str, password: str, *, by: Caller) -> UserDocument:
    """Change the password of the caller's account; closes all its sessions. Takes 0.6 s of work.

    A wrong current password counts as a failed login. Raises `UsageError` (`password_weak`), `RefusedError`
    (`access_denied`, `login_failed`).
    """
    require_access(reader, by, "password.own.set", by.user)
    hashed = hash_password(password, user=by.user)
    attempt, _ = _verify_password(reader, by.user, current, address=by.address)
    reader.store.accounts.set_password(by.user, hashed, actor=actor_of(by), attempt=attempt)
    return _find_user(reader, by.user)


def set_user_disabled(reader: StateReader, name: str, disabled: bool, *, by: Caller) -> UserDocument:
    """Disable an account, which ends its sessions and tokens, or enable it again.

    Raises `NotFoundError`, `RefusedError` (`access_denied`, `last_administrator`).
    """
    require_access(reader, by, "user.disable" if disabled else "user.enable", name)
    reader.store.accounts.set_disabled(
        name, disabled, actor=actor_of(by), keep_administrator=_has_account(reader, by)
    )
    return _find_user(reader, name)


def remove_user(reader: StateReader, name: str, *, by: Caller) -> UserRemovedDocument:
    """Remove an account with its sessions and tokens.

    Raises `NotFoundError`, `RefusedError` (`access_denied`, `last_administrator`).
    """
    require_access(reader, by, "user.remove", name)
    reader.store.accounts.remove(name, actor=actor_of(by), keep_administrator=_has_account(reader, by))
    return UserRemovedDocument(name=name, removed=True)


def log_in(
    reader: StateReader,
    user: str,
    password: str,
    *,
    second_factor: str = "",
    address: str = "",
    replaces: str | None = None,
) -> OpenedSession:
    """Open a session with an account's name and password; `replaces` is the browser's previous session.

    An account with a second factor also needs a code of it: without one the right password is answered by
    `RefusedError` (`factor_needed`), and counts as a failed login until the code completes it.

    Takes 0.3 s of work and 64 MiB, whether or not the account exists: call it in a thread, few at once. After five
    failures in a row an account is locked for 1 minute, doubling up to 15, except for addresses from which it has
    logged in before; the caller bounds how often one address may try. Raises `RefusedError` (`login_failed`), the
    same for every cause; `StoreError`.
    """
    attempt, rehashed = _verify_password(reader, user, password, address=address)
    used = None
    if any(each.confirmed for each in reader.store.factors.list(user)):
        if not second_factor.strip():
            raise RefusedError(
                "a code of your second factor is needed",
                code="factor_needed",
                hint="send it, or a recovery code, as `second_factor`",
            )
        used = match_code(reader, user, second_factor)
        if used is None:
            raise _login_failed()
    secret, digest = new_secret(SESSION_PREFIX)
    expires, ends = session_times(reader.clock.now())
    row = reader.store.grants.open_session(
        user, attempt=attempt, rehashed=rehashed, digest=digest, expires=expires, ends=ends, used=used
    )
    if row is None:  # the account was disabled, or its password changed, in the 0.3 s
        raise _login_failed()
    return begin_session(reader, row, secret, address=address, replaces=replaces)


def create_login_code(reader: StateReader) -> LoginCodeDocument:
    """Create a code that logs the owner of the state directory in once, within 10 minutes; it voids older codes.

    Raises `StoreError`.
    """
    secret, digest = new_secret()
    expires = as_moment(reader.clock.now() + _CODE_LASTS)
    reader.store.grants.add_code(digest, expires=expires, actor=Actor(user=reader.identity()))
    return LoginCodeDocument(secret=secret, expires=expires)


def require_accounts(reader: StateReader, host: str) -> None:
    """Return if a server may listen on an address; an address other than loopback requires accounts."""
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback and not any(row.has_password for row in reader.store.accounts.list()):
        raise UsageError(
            f"{host!r} can be reached from other machines, and there is no account yet",
            code="accounts_needed",
            hint="chargehand user add NAME --role admin; or listen at 127.0.0.1",
        )


def redeem_login_code(
    reader: StateReader,
    code: str,
    *,
    address: str = "",
    replaces: str | None = None,
    note_unknown: Callable[[], bool] = lambda: True,
) -> OpenedSession:
    """Redeem a login code and open the owner's session. Raises `RefusedError` (`login_failed`), `StoreError`.

    An unknown code costs one read. `note_unknown` decides whether the access log gets a line about it, which costs
    a durable write: a code has 256 bits, so guessing needs no limit, but an attacker must not fill the log.
    """
    if not reader.store.grants.has_code(digest_secret(code)):
        if note_unknown():
            actor = Actor(user="", address=address)
            reader.store.access_log.append(actor, "session.open", "", outcome="refused")
        raise _code_refused()
    secret, digest = new_secret(SESSION_PREFIX)
    expires, ends = session_times(reader.clock.now())
    row = reader.store.grants.redeem_code(
        digest_secret(code), digest=digest, expires=expires, ends=ends, address=address
    )
    if row is None:
        raise _code_refused()
    return begin_session(reader, row, secret, address=address, replaces=replaces)


def redeem_sign_in(
    reader: StateReader, code: str, *, browser: str, address: str = "", replaces: str | None = None
) -> OpenedSession:
    """Exchange the code of an external sign-in (see `sign_in.finish_sign_in`) for a session of its account.

    `browser` is the secret of the browser that began it. Raises `RefusedError` (`login_failed`), `StoreError`.
    """
    secret, digest = new_secret(SESSION_PREFIX)
    expires, ends = session_times(reader.clock.now())
    row = reader.store.sign_ins.open_session(
        digest_secret(code),
        browser=digest_secret(browser),
        digest=digest,
        expires=expires,
        ends=ends,
        address=address,
    )
    if row is None:
        raise RefusedError(
            "this sign-in is not valid any more", code="login_failed", hint="begin it again on the login page"
        )
    return begin_session(reader, row, secret, address=address, replaces=replaces)


def resolve_session(
    reader: StateReader, secret: str, *, address: str = "", factor_from: FactorRole = "none"
) -> Caller | None:
    """Return the caller of a session's secret, `None` if it is invalid; extend the session by 12 hours.

    Accounts of the role `factor_from`, or a higher one, that log in with a password need a second factor.

    A session lasts 7 days at most. The role is the account's current one. Raises `StoreError`.
    """
    row = reader.store.grants.session(digest_secret(secret)) if secret.startswith(SESSION_PREFIX) else None
    if row is None:
        return None
    now = reader.clock.now()
    if row.last_seen <= as_moment(now - NOTED_EVERY):
        row = replace(row, expires=min(as_moment(now + _IDLE), row.ends))
        with suppress(StoreError):  # a full disk must not lock out the person who comes to free it
            reader.store.grants.extend_session(row.digest, expires=row.expires)
    return _session_caller(row, address, factor_from)


def session_document(reader: StateReader, caller: Caller) -> SessionDocument:
    """Return the caller's session, or token as a session, as its browser sees it."""
    return SessionDocument(
        user=caller.user,
        role=caller.role,
        expires=caller.expires,
        version=__version__,
        accounts=bool(reader.store.accounts.list()),
        has_factor=caller.has_factor,
        must_enrol=caller.must_enrol,
    )


def close_session(reader: StateReader, secret: str, *, by: Caller) -> str:
    """End a session; return the issuer at which its browser is signed in, "" without one. Raises `StoreError`."""
    row = reader.store.grants.session(digest_secret(secret))
    reader.store.grants.close_session(digest_secret(secret), actor=actor_of(by))
    return "" if row is None else row.issuer


def list_access(
    reader: StateReader, *, by: Caller, limit: int = 100, before: int | None = None
) -> AccessLogDocument:
    """Return lines of the access log, the newest first. Raises `RefusedError` (`access_denied`)."""
    require_access(reader, by, "access.list")
    rows = reader.store.access_log.list(limit=limit, before=before)
    return AccessLogDocument(entries=rows, next=rows[-1].seq if len(rows) == limit else None)


def _verify_password(
    reader: StateReader, name: str, password: str, *, address: str
) -> tuple[LoginAttempt, str | None]:
    """Return the login attempt, and a new hash if the account's hash has old parameters.

    Raises `RefusedError` (`login_failed`).
    """
    now = reader.clock.now()

    def lock(failures: int) -> str | None:
        seconds = lock_seconds(failures)
        return as_moment(now + timedelta(seconds=seconds)) if seconds else None

    attempt = reader.store.accounts.begin_login(name, lock=lock, address=address)
    fits, rehashed = compare_password(password, attempt.password)
    if not fits:
        raise _login_failed()
    return attempt, rehashed


def _login_failed() -> RefusedError:
    return RefusedError(
        "wrong user or password",
        code="login_failed",
        hint="after 5 failures an account waits for 1 to 15 minutes; `chargehand user password` sets a new one",
    )


def _code_refused() -> RefusedError:
    return RefusedError(
        "this login link is invalid: it was used, is older than 10 minutes, or a newer one was made",
        code="login_failed",
        hint="`chargehand up --link` prints a new one",
    )


def session_times(now: datetime) -> tuple[str, str]:
    """Return when a session that begins now ends without use, and in any case."""
    return as_moment(now + _IDLE), as_moment(now + _LONGEST)


def begin_session(
    reader: StateReader, row: SessionRow, secret: str, *, address: str, replaces: str | None
) -> OpenedSession:
    """Return a session that was just stored, and end its predecessor. Raises `RefusedError`."""
    if replaces:
        reader.store.grants.close_session(digest_secret(replaces), actor=Actor(user=row.user, address=address))
    caller = _session_caller(row, address)
    if caller is None:
        raise _login_failed()
    return OpenedSession(secret=secret, caller=caller)


def _session_caller(row: SessionRow, address: str, factor_from: FactorRole = "none") -> Caller | None:
    role = "admin" if row.kind == "code" else row.role
    if role not in ROLES:  # another program wrote this row
        return None
    # The link of the state directory's owner, and a provider, are proof of another kind.
    is_bound = row.kind == "password" and factor_from != "none" and ROLES.index(role) >= ROLES.index(factor_from)
    return Caller(
        user=row.user,
        role=role,
        scopes=SCOPES,
        via="session",
        expires=row.expires,
        address=address,
        session=row.digest,
        has_factor=row.has_factor,
        must_enrol=is_bound and not row.has_factor,
        proved=row.proved,
    )


def known_role(role: str) -> AccountRole:
    """Return a role. Raises `UsageError` (`user_invalid`)."""
    if role not in ROLES:
        raise UsageError(f"{role[:80]!r} is not a role", code="user_invalid", hint=nearest(role, ROLES))
    return role


def actor_of(caller: Caller) -> Actor:
    """Return the caller as the access log names them."""
    return Actor(user=caller.user, address=caller.address)


def _has_account(reader: StateReader, caller: Caller) -> bool:
    """Return whether the caller needs an account to log in again; the owner of the state directory does not."""
    return caller.user != reader.identity()


def _find_user(reader: StateReader, name: str) -> UserDocument:
    return _user(reader, reader.store.accounts.find(name), reader.store.subjects.list(name))


def _user(reader: StateReader, row: AccountRow, subjects: Sequence[SubjectRow]) -> UserDocument:
    locked = row.locked_until is not None and row.locked_until > as_moment(reader.clock.now())
    shown = row if locked else replace(row, locked_until=None)
    named = tuple(convert_to(each, SubjectDocument, from_attributes=True) for each in subjects)
    return replace(convert_to(shown, UserDocument, from_attributes=True), subjects=named)
