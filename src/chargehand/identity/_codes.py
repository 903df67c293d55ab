"""Codes of second factors: the time-based codes of RFC 6238, and recovery codes that are valid once."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from datetime import datetime

from chargehand.identity._secrets import digest_secret
from chargehand.reports.reading import StateReader
from chargehand.store.factors import FactorRow, UsedFactor

_STEP_SECONDS = 30
# One step before and after: clocks differ, and a person types for a while.
_STEPS = (0, -1, 1)
_DIGITS = 6
_RECOVERY_CODES = 10


def match_code(reader: StateReader, user: str, code: str) -> UsedFactor | None:
    """Return the factor or recovery code that a code fits, `None` without one; it is not used up yet."""
    plain = "".join(code.split()).replace("-", "").lower()
    if len(plain) > _DIGITS:
        return UsedFactor(recovery=digest_code(user, plain))
    rows = [row for row in reader.store.factors.list(user) if row.confirmed]
    return match_factor(rows, plain, now=reader.clock.now())


def match_factor(rows: Sequence[FactorRow], code: str, *, now: datetime) -> UsedFactor | None:
    """Return the factor whose code this is at a time, later than its last one; `None` without one."""
    import pyotp

    plain = "".join(code.split()).encode(errors="replace")
    present = int(now.timestamp()) // _STEP_SECONDS
    for row in (each for each in rows if each.kind == "totp"):
        for step in (present + each for each in _STEPS):
            good = pyotp.TOTP(row.secret, digits=_DIGITS).generate_otp(step)
            if step > row.step and hmac.compare_digest(good.encode(), plain):
                return UsedFactor(name=row.name, step=step)
    return None


def new_codes() -> tuple[str, ...]:
    """Return new recovery codes of 80 random bits: no one can guess them, so their digest needs no slow hash."""
    return tuple(f"{secrets.token_hex(5)}-{secrets.token_hex(5)}" for _ in range(_RECOVERY_CODES))


def digest_code(user: str, code: str) -> str:
    """Return the digest by which a recovery code of an account is found."""
    return digest_secret(f"{user} {code.replace('-', '')}")
