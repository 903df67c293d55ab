"""Records of accounts, sessions and tokens as clients get them."""

from __future__ import annotations

import msgspec

from chargehand.policy.access import AccountRole
from chargehand.store.accounts import AccessRow


class UserDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One account; `locked_until` is there while too many logins failed. Times are ISO 8601 in UTC."""

    name: str
    role: str
    disabled: bool
    has_password: bool
    created: str
    locked_until: str | None


class UserListDocument(msgspec.Struct, frozen=True, kw_only=True):
    """All accounts by name."""

    users: tuple[UserDocument, ...]


class UserRemovedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An account that was removed, with its sessions and tokens."""

    name: str
    removed: bool


class SessionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A session as its browser sees it; `expires` moves on with use.

    `accounts` says whether there are any, so that a login page knows whether to ask for a name.
    """

    user: str
    role: AccountRole
    expires: str
    version: str
    accounts: bool


class OpenedSessionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A session that a login opened; its requests carry `secret` as `Authorization: Bearer SECRET`."""

    secret: str
    session: SessionDocument


class LoginCodeDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`secret` is a code that logs the owner of the state directory in once, until `expires`."""

    secret: str
    expires: str


class TokenDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret; `last_used` and `revoked` are null for not yet."""

    id: str
    user: str
    name: str
    scopes: tuple[str, ...]
    created: str
    expires: str
    last_used: str | None
    revoked: str | None


class TokenListDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens, the oldest first, those that count no more too."""

    tokens: tuple[TokenDocument, ...]


class CreatedTokenDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A new token; `secret` is shown here and never again."""

    token: TokenDocument
    secret: str


class AccessLogDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of the access log, the newest first; `next` goes on before the last of them, null at the end."""

    entries: tuple[AccessRow, ...]
    next: int | None
