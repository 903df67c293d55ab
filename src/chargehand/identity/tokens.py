"""Tokens of accounts, with which programs use the server."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

from chargehand.core.codec import convert_to
from chargehand.core.errors import StoreError, UsageError, nearest
from chargehand.core.ids import new_id
from chargehand.identity._secrets import digest_secret, new_secret
from chargehand.identity.accounts import NOTED_EVERY, Caller, actor_of, known_role, require_access
from chargehand.identity.documents import CreatedTokenDocument, TokenDocument, TokenListDocument
from chargehand.policy.access import ROLES, SCOPES, scopes_of_role
from chargehand.reports.reading import StateReader
from chargehand.store.access_log import as_moment
from chargehand.store.accounts import TokenRow

TOKEN_PREFIX = "chg_"
_TOKEN_DAYS = range(1, 3651)


def create_token(
    reader: StateReader,
    name: str,
    *,
    scopes: tuple[str, ...],
    by: Caller,
    user: str | None = None,
    days: int = 90,
) -> CreatedTokenDocument:
    """Create a token for the caller or another `user`, limited to the scopes of that role and of the caller.

    It is valid for `days` (1 to 3650). Raises `UsageError` (`token_invalid`), `NotFoundError`, `RefusedError`
    (`access_denied`).
    """
    whose = by.user if user is None else user
    require_access(reader, by, "token.own.create" if whose == by.user else "token.create", whose)
    if not name.strip() or len(name) > 100 or not name.isprintable():
        raise _token_invalid(
            f"{name[:100]!r} is not a name for a token", "describe its purpose in 1 to 100 characters"
        )
    if days not in _TOKEN_DAYS:
        raise _token_invalid(f"a token counts from 1 to 3650 days, got {days}", "write --days 90")
    is_owner = whose == reader.identity()
    role = "admin" if is_owner else reader.store.accounts.find(whose).role
    allowed = [scope for scope in scopes_of_role(known_role(role)) if scope in by.scopes]
    for scope in scopes:
        if scope not in allowed:
            raise _token_invalid(
                f"a token of this {role} cannot have the scope {scope[:80]!r}", nearest(scope, allowed)
            )
    if not scopes:
        raise _token_invalid("a token needs a scope", f"give one or more of {', '.join(allowed)}")
    now = reader.clock.now()
    row = TokenRow(
        id=new_id("token", now_ms=int(now.timestamp() * 1000)),
        user=whose,
        role=None if is_owner else role,
        owner=is_owner,
        name=name,
        scopes=tuple(scope for scope in SCOPES if scope in scopes),
        created=as_moment(now),
        expires=as_moment(now + timedelta(days=days)),
        last_used=None,
        revoked=None,
    )
    secret, digest = new_secret(TOKEN_PREFIX)
    reader.store.grants.add_token(row, digest=digest, actor=actor_of(by))
    return CreatedTokenDocument(token=_token(row), secret=secret)


def list_tokens(reader: StateReader, *, by: Caller, user: str | None = None) -> TokenListDocument:
    """Return the tokens of a user, or all tokens. Raises `RefusedError` (`access_denied`)."""
    require_access(reader, by, "token.own.list" if user == by.user else "token.list", user or "")
    return TokenListDocument(tokens=tuple(_token(row) for row in reader.store.grants.tokens(user)))


def revoke_token(reader: StateReader, token: str, *, by: Caller) -> TokenDocument:
    """Revoke a token of the caller or, if permitted, of another user. Raises `NotFoundError`, `RefusedError`."""
    own = any(row.id == token for row in reader.store.grants.tokens(by.user))
    require_access(reader, by, "token.own.revoke" if own else "token.revoke", token)
    reader.store.grants.revoke_token(token, actor=actor_of(by))
    return next(_token(row) for row in reader.store.grants.tokens() if row.id == token)


def resolve_token(reader: StateReader, secret: str, *, address: str = "") -> Caller | None:
    """Return the caller of a bearer token, with the account's current role; `None` if the token is invalid.

    Raises `StoreError`.
    """
    row = reader.store.grants.token(digest_secret(secret)) if secret.startswith(TOKEN_PREFIX) else None
    role = None if row is None else "admin" if row.owner else row.role
    if row is None or role not in ROLES:
        return None
    if row.last_used is None or row.last_used <= as_moment(reader.clock.now() - NOTED_EVERY):
        with suppress(StoreError):
            reader.store.grants.note_token_use(row.id)
    scopes = tuple(scope for scope in SCOPES if scope in row.scopes)
    return Caller(user=row.user, role=role, scopes=scopes, via="token", expires=row.expires, address=address)


def token_has_expired(reader: StateReader, secret: str) -> bool:
    """Return whether a refused token has merely expired. Raises `StoreError`."""
    return reader.store.grants.has_expired(digest_secret(secret))


def _token_invalid(message: str, hint: str) -> UsageError:
    return UsageError(message, code="token_invalid", hint=hint)


def _token(row: TokenRow) -> TokenDocument:
    return convert_to(row, TokenDocument, from_attributes=True)
