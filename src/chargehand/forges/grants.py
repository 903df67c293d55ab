"""The secret of an account that signed in by OAuth: its tokens in one value, so that they change together."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from chargehand.core.codec import decode_as
from chargehand.forges.contract import ForgeError, ForgeProblem

# A failed renewal is tried again after the first time, then after twice the last one, up to the longest.
FIRST_PAUSE, _LONGEST_PAUSE = 30.0, 300.0


class RenewalFailure(Struct, frozen=True, kw_only=True):
    """The last of `count` failed renewals in a row, `at` seconds since 1970; one that is `denied` stays so."""

    problem: ForgeProblem
    message: str
    hint: str = ""
    at: float
    count: int = 1

    @property
    def is_final(self) -> bool:
        """Whether the forge has refused the refresh token, which it never accepts again."""
        return self.problem == "denied"

    def pause(self, now: float) -> float:
        """Return the seconds from `now` until the next try, 0 if it is due."""
        left = self.at + min(FIRST_PAUSE * 2 ** (self.count - 1), _LONGEST_PAUSE) - now
        return left if 0 < left <= _LONGEST_PAUSE else 0.0  # a clock that was set back postpones no try


class OauthGrant(Struct, frozen=True, kw_only=True):
    """The tokens that a person granted to a client at the forge `url`.

    `expires` is when `access` expires, in seconds since 1970, `None` if it does not; `refresh` is then "".
    `failure` is set if the last renewal failed.
    """

    access: str
    refresh: str = ""
    expires: float | None = None
    client: str
    url: str
    failure: RenewalFailure | None = None

    def __repr__(self) -> str:
        return f"OauthGrant({self.client!r}, {self.url!r}, …)"

    def may_renew(self, now: float) -> bool:
        """Return whether a renewal may be tried: no earlier one was refused, or failed a moment ago."""
        return self.failure is None or not (self.failure.is_final or self.failure.pause(now))

    def after_failure(self, error: ForgeError, now: float) -> OauthGrant:
        """Return the grant as it is after a failed renewal."""
        count = min(self.failure.count + 1, 100) if self.failure else 1
        failure = RenewalFailure(
            problem=error.problem, message=error.message, hint=error.hint, at=now, count=count
        )
        return msgspec.structs.replace(self, failure=failure)


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
