"""Passkeys (WebAuthn level 3): added by an account, and proof of possession and of the person in one step.

A passkey verifies its person by a PIN or biometrics, so it opens a session without name and password. The page of
another origin cannot use it: it signs the origin and the host. Attestation is not asked for.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from chargehand.core.errors import RefusedError, UsageError
from chargehand.identity._codes import digest_code, new_codes
from chargehand.identity._secrets import digest_secret, new_secret
from chargehand.identity.accounts import (
    SESSION_PREFIX,
    Caller,
    OpenedSession,
    actor_of,
    begin_session,
    session_times,
)
from chargehand.identity.documents import PasskeyOptionsDocument, RecoveryCodesDocument
from chargehand.identity.factors import check_factor_name, factor_exists, require_own
from chargehand.reports.reading import StateReader
from chargehand.store.access_log import Actor, as_moment
from chargehand.store.passkeys import PasskeyRow

_LASTS = timedelta(minutes=5)


def passkey_options(reader: StateReader, *, origin: str, by: Caller) -> PasskeyOptionsDocument:
    """Return the options with which a browser makes a passkey for the caller at an origin of this server.

    Raises `UsageError` (`passkey_host`) if the host is an address, `RefusedError` (`access_denied`).
    """
    require_own(reader, by, "factor.own.add")
    import webauthn
    from webauthn.helpers import structs

    account = reader.store.accounts.find(by.user)
    options = webauthn.generate_registration_options(
        rp_id=_host(origin),
        rp_name="Chargehand",
        user_name=by.user,
        # No name of the person: it is stored on the device. A later account of the same name has another one.
        user_id=hashlib.sha256(f"{account.name} {account.created}".encode()).digest(),
        challenge=_begin(reader, by.user),
        authenticator_selection=structs.AuthenticatorSelectionCriteria(
            resident_key=structs.ResidentKeyRequirement.REQUIRED,
            user_verification=structs.UserVerificationRequirement.REQUIRED,
        ),
        exclude_credentials=[
            structs.PublicKeyCredentialDescriptor(id=_from_base64(each))
            for each in reader.store.passkeys.list(by.user)
        ],
    )
    return PasskeyOptionsDocument(options=json.loads(webauthn.options_to_json(options)))


def add_passkey(
    reader: StateReader, name: str, credential: Mapping[str, Any], *, origin: str, by: Caller
) -> RecoveryCodesDocument:
    """Add the passkey that a browser made; return recovery codes with the first factor.

    Raises `UsageError` (`factor_invalid`), `RefusedError` (`access_denied`, `passkey_refused`, `factor_exists`).
    """
    require_own(reader, by, "factor.own.add")
    check_factor_name(name)
    import webauthn
    from webauthn.helpers.exceptions import WebAuthnException

    challenge = _take(reader, credential, by.user)
    try:
        found = webauthn.verify_registration_response(
            credential=dict(credential),
            expected_challenge=challenge,
            expected_rp_id=_host(origin),
            expected_origin=origin,
            require_user_verification=True,
        )
    except (WebAuthnException, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _refusal() from error
    row = PasskeyRow(
        user=by.user,
        name=name,
        credential=_to_base64(found.credential_id),
        public_key=found.credential_public_key,
        counter=found.sign_count,
    )
    codes = new_codes()
    is_first = reader.store.factors.count_recovery(by.user) == 0
    if not reader.store.passkeys.add(row, [digest_code(by.user, each) for each in codes], actor=actor_of(by)):
        raise factor_exists(name)
    return RecoveryCodesDocument(codes=codes if is_first else ())


def sign_in_options(reader: StateReader, *, origin: str) -> PasskeyOptionsDocument:
    """Return the options with which a browser signs in by any of its passkeys for this server.

    Raises `UsageError` (`passkey_host`).
    """
    import webauthn
    from webauthn.helpers import structs

    options = webauthn.generate_authentication_options(
        rp_id=_host(origin),
        challenge=_begin(reader, ""),
        user_verification=structs.UserVerificationRequirement.REQUIRED,
    )
    return PasskeyOptionsDocument(options=json.loads(webauthn.options_to_json(options)))


def sign_in_by_passkey(
    reader: StateReader,
    credential: Mapping[str, Any],
    *,
    origin: str,
    user: str | None = None,
    address: str = "",
    replaces: str | None = None,
) -> OpenedSession:
    """Open the session of the passkey's account, which must be `user` if that is given.

    Raises `RefusedError` (`passkey_refused`), the same for every cause; `StoreError`.
    """
    import webauthn
    from webauthn.helpers.exceptions import WebAuthnException

    challenge = _take(reader, credential, "")
    row = reader.store.passkeys.find(str(credential.get("id") or ""))
    if row is None or user not in (None, row.user):
        raise _refusal()
    try:
        found = webauthn.verify_authentication_response(
            credential=dict(credential),
            expected_challenge=challenge,
            expected_rp_id=_host(origin),
            expected_origin=origin,
            credential_public_key=row.public_key,
            credential_current_sign_count=row.counter,
            require_user_verification=True,
        )
    except (WebAuthnException, ValueError, TypeError, KeyError, AttributeError) as error:
        reader.store.access_log.append(
            Actor(user="", address=address), "session.open", row.user, outcome="refused"
        )
        raise _refusal() from error
    secret, digest = new_secret(SESSION_PREFIX)
    expires, ends = session_times(reader.clock.now())
    opened = reader.store.passkeys.open_session(
        row, found.new_sign_count, digest=digest, expires=expires, ends=ends, address=address
    )
    if opened is None:
        raise _refusal()
    return begin_session(reader, opened, secret, address=address, replaces=replaces)


def _begin(reader: StateReader, user: str) -> bytes:
    challenge, digest = new_secret()
    expires = as_moment(reader.clock.now() + _LASTS)
    reader.store.passkeys.begin_challenge(digest, user, expires=expires)
    return challenge.encode()


def _take(reader: StateReader, credential: Mapping[str, Any], user: str) -> bytes:
    """Return the challenge that a browser answered, which is valid once. Raises `RefusedError`."""
    try:
        answered = json.loads(_from_base64(credential["response"]["clientDataJSON"]))
        challenge = _from_base64(answered["challenge"])
        digest = digest_secret(challenge.decode())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _refusal() from error
    if not reader.store.passkeys.take_challenge(digest, user):
        raise _refusal()
    return challenge


def _host(origin: str) -> str:
    host = urlsplit(origin).hostname or ""
    if not host or ":" in host or host.rpartition(".")[2].isdigit():
        raise UsageError(
            f"a passkey belongs to a host name, and {host!r} is an address",
            code="passkey_host",
            hint="open the server as http://localhost:PORT, or by its name over https",
        )
    return host


def _refusal() -> RefusedError:
    return RefusedError(
        "this passkey is not valid here, or its request is older than 5 minutes",
        code="passkey_refused",
        hint="try again; if the device is lost, use another factor or a recovery code",
    )


def _from_base64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _to_base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
