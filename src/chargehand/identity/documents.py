"""Records of accounts, sessions and tokens as clients receive them."""

from __future__ import annotations

from typing import Any

import msgspec

from chargehand.policy.access import AccountRole
from chargehand.store.access_log import AccessRow


class SubjectDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A person at a provider who signs in to an account; `by_rule` if a rule of the provider made the account."""

    issuer: str
    subject: str
    by_rule: bool


class UserDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One account; `locked_until` is set while it is locked after too many failed logins. Times: ISO 8601, UTC."""

    name: str
    role: str
    disabled: bool
    has_password: bool
    created: str
    locked_until: str | None
    subjects: tuple[SubjectDocument, ...] = ()


class UserListDocument(msgspec.Struct, frozen=True, kw_only=True):
    """All accounts by name."""

    users: tuple[UserDocument, ...]


class UserRemovedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An account that was removed, together with its sessions and tokens."""

    name: str
    removed: bool


class SessionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A session as its browser sees it; each use extends `expires`.

    `accounts` says whether any account exists, so that a login page knows whether to ask for a name.
    """

    user: str
    role: AccountRole
    expires: str
    version: str
    accounts: bool
    has_factor: bool = False
    must_enrol: bool = False
    """Whether the account needs a second factor before it may do anything else."""


class OpenedSessionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A session that a login opened; its requests carry `secret` as `Authorization: Bearer SECRET`."""

    secret: str
    session: SessionDocument


class FactorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One second factor of an account: an authenticator app (`totp`) or a `passkey`; `created`: ISO 8601, UTC."""

    name: str
    created: str
    kind: str = "totp"


class FactorListDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The second factors of an account, and the number of its unused recovery codes."""

    factors: tuple[FactorDocument, ...]
    recovery_left: int


class EnrolmentDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A factor to set up: its `secret` and the `uri` for an app, and a `picture` (QR code, a data URI of SVG)."""

    name: str
    secret: str
    uri: str
    picture: str


class PasskeyOptionsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The options that a page gives to the browser's `navigator.credentials`, as JSON of WebAuthn."""

    options: dict[str, Any]


class RecoveryCodesDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Recovery codes, each valid once; they are shown here and never again. Empty if earlier ones stay valid."""

    codes: tuple[str, ...]


class EndedSessionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A session that ended here; `url` is the page of its provider that ends the one there, and returns."""

    url: str


class LoginCodeDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A login code: `secret` logs the owner of the state directory in once, until `expires`."""

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
    """Tokens, the oldest first, including expired and revoked ones."""

    tokens: tuple[TokenDocument, ...]


class CreatedTokenDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A new token; `secret` is shown here and never again."""

    token: TokenDocument
    secret: str


class AccessLogDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of the access log, the newest first; `next` is the `before` of the next page, null at the end."""

    entries: tuple[AccessRow, ...]
    next: int | None
