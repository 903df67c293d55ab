"""The secret of an account that signed in by OAuth: its tokens in one value, so that they change together."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from chargehand.core.codec import decode_as


class OauthGrant(Struct, frozen=True, kw_only=True):
    """The tokens that a person granted to a client at the forge `url`.

    `expires` is when `access` expires, in seconds since 1970, `None` if it does not; `refresh` is then "".
    """

    access: str
    refresh: str = ""
    expires: float | None = None
    client: str
    url: str

    def __repr__(self) -> str:
        return f"OauthGrant({self.client!r}, {self.url!r}, …)"


def read_grant(secret: str) -> OauthGrant | None:
    """Return the grant that a secret contains, `None` for a plain token."""
    try:
        return decode_as(secret.encode(), OauthGrant) if secret.startswith("{") else None
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return None


def write_grant(grant: OauthGrant) -> str:
    """Return the secret that contains a grant."""
    return msgspec.json.encode(grant).decode()


def token_name(account: str, configured: str | None) -> str:
    """Return the name of the secret with an account's token: the configured one, or the one made of its name."""
    return configured or f"{account.upper().replace('-', '_')}_TOKEN"


def secret_parts(secret: str) -> tuple[str, ...]:
    """Return the texts of a secret that may be shown nowhere: the secret, and the tokens of a grant."""
    grant = read_grant(secret)
    return (secret, *(each for each in (grant.access, grant.refresh) if each)) if grant else (secret,)
