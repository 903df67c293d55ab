"""Second factors: time-based codes (RFC 6238), recovery codes, and fresh proof before dangerous operations."""

from __future__ import annotations

import re

from chargehand.core.errors import RefusedError, UsageError
from chargehand.identity._codes import digest_code, match_code, match_factor, new_codes
from chargehand.identity.accounts import Caller, actor_of, find_user, require_access, session_document
from chargehand.identity.documents import (
    EnrolmentDocument,
    FactorDocument,
    FactorListDocument,
    RecoveryCodesDocument,
    SessionDocument,
    UserDocument,
)
from chargehand.reports.reading import StateReader

_NAME = re.compile(r"[^\s/](?:[^/\x00-\x1f\x7f]{0,38}[^\s/])?")
_ISSUER = "Chargehand"


def list_factors(reader: StateReader, *, by: Caller) -> FactorListDocument:
    """Return the caller's factors, and how many recovery codes are left."""
    require_access(reader, by, "factor.own.list", by.user)
    rows = [row for row in reader.store.factors.list(by.user) if row.confirmed]
    return FactorListDocument(
        factors=tuple(FactorDocument(name=row.name, created=row.created, kind=row.kind) for row in rows),
        recovery_left=reader.store.factors.count_recovery(by.user),
    )


def start_enrolment(reader: StateReader, name: str, *, by: Caller) -> EnrolmentDocument:
    """Return the secret of a new factor for an authenticator app; it counts once `confirm_enrolment` got a code.

    Raises `UsageError` (`factor_invalid`), `RefusedError` (`access_denied`, `factor_exists`).
    """
    require_own(reader, by, "factor.own.add")
    import pyotp
    import segno

    check_factor_name(name)
    secret = pyotp.random_base32()
    if not reader.store.factors.add(by.user, name, secret, actor=actor_of(by)):
        raise factor_exists(name)
    uri = pyotp.TOTP(secret).provisioning_uri(name=by.user, issuer_name=_ISSUER)
    picture = segno.make(uri, error="m").svg_data_uri(scale=5, border=2, light="#fff")
    return EnrolmentDocument(name=name, secret=secret, uri=uri, picture=picture)


def confirm_enrolment(reader: StateReader, name: str, code: str, *, by: Caller) -> RecoveryCodesDocument:
    """Let a factor count, after its app showed the right code; return recovery codes with the first factor.

    Raises `RefusedError` (`access_denied`, `factor_wrong`).
    """
    require_own(reader, by, "factor.own.add")
    rows = [row for row in reader.store.factors.list(by.user) if row.name == name and not row.confirmed]
    used = match_factor(rows, code, now=reader.clock.now())
    codes = new_codes()
    is_first = reader.store.factors.count_recovery(by.user) == 0
    digests = [digest_code(by.user, each) for each in codes]
    if used is None or not reader.store.factors.confirm(by.user, used, digests, actor=actor_of(by)):
        raise _wrong()
    return RecoveryCodesDocument(codes=codes if is_first else ())


def remove_factor(reader: StateReader, name: str, *, by: Caller) -> FactorListDocument:
    """Remove a factor of the caller, and end the other sessions of the account.

    Raises `NotFoundError`, `RefusedError` (`access_denied`, `proof_needed`).
    """
    require_own(reader, by, "factor.own.remove")
    reader.store.factors.remove(by.user, name, session=by.session, actor=actor_of(by))
    return list_factors(reader, by=by)


def replace_recovery_codes(reader: StateReader, *, by: Caller) -> RecoveryCodesDocument:
    """Return new recovery codes for the caller; earlier ones are void.

    Raises `RefusedError` (`access_denied`, `proof_needed`, `factor_missing`).
    """
    require_own(reader, by, "factor.own.remove")
    if not by.has_factor:
        raise RefusedError(
            "recovery codes belong to a second factor, and you have none", code="factor_missing", hint="add one"
        )
    codes = new_codes()
    digests = [digest_code(by.user, each) for each in codes]
    reader.store.factors.replace_codes(by.user, digests, actor=actor_of(by))
    return RecoveryCodesDocument(codes=codes)


def reset_factors(reader: StateReader, user: str, *, by: Caller) -> UserDocument:
    """Remove all factors of an account and end its sessions, for a person who lost them.

    Only the owner of the state directory may do that alone. Raises `NotFoundError`, `RefusedError`
    (`access_denied`).
    """
    require_access(reader, by, "factor.reset", user)
    found = find_user(reader, user, by=by)
    reader.store.factors.reset(user, actor=actor_of(by))
    return found


def prove_again(reader: StateReader, code: str, *, by: Caller) -> SessionDocument:
    """Note that the caller just showed a code, so that dangerous operations are open for ten minutes.

    The fifth wrong code ends the session. Raises `RefusedError` (`access_denied`, `factor_wrong`).
    """
    require_own(reader, by, "factor.own.list")
    used = match_code(reader, by.user, code)
    if used is None or not reader.store.factors.prove(by.session, by.user, used, actor=actor_of(by)):
        reader.store.factors.refuse(by.session, by.user, actor=actor_of(by))
        raise _wrong()
    return session_document(reader, by)


def check_factor_name(name: str) -> None:
    """Raise `UsageError` (`factor_invalid`) if a factor cannot have that name."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} is not a name for a factor",
            code="factor_invalid",
            hint="give 1 to 40 characters without '/', such as phone",
        )


def factor_exists(name: str) -> RefusedError:
    """Return the refusal of a name that a factor of the account has."""
    return RefusedError(
        f"there is a second factor {name!r} already", code="factor_exists", hint="choose another name"
    )


def require_own(reader: StateReader, by: Caller, action: str) -> None:
    """Raise `RefusedError` unless an account that is logged in does this to its own factors."""
    require_access(reader, by, action, by.user)
    if by.via != "session" or by.user == reader.identity():
        raise RefusedError(
            "second factors belong to an account that is logged in",
            code="access_denied",
            hint="log in on the dashboard with the account's name and password",
        )


def _wrong() -> RefusedError:
    return RefusedError(
        "this code is wrong, or was used",
        code="factor_wrong",
        hint="wait for the next code of your app, or use a recovery code; the clock of the device must be right",
    )
