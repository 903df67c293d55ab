"""Authentication of requests by a session or a token; logging in and out.

A session is a bearer that the page keeps in its origin's storage. It is no cookie: a browser sends the cookies of
127.0.0.1 to every server there, whatever its port. No request carries it by itself, so none can be forged by
another page (CSRF) either.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from chargehand.app.accounts import (
    SESSION_PREFIX,
    Caller,
    OpenedSessionDocument,
    close_session,
    log_in,
    redeem_login_code,
    resolve_session,
    resolve_token,
    session_document,
    token_has_expired,
)
from chargehand.app.reading import StateReader
from chargehand.core.errors import RefusedError, UsageError
from chargehand.policy.rates import RateLimit
from chargehand.server._guard import CallerLimits
from chargehand.server._responses import document_response
from chargehand.server._routes import RestArguments, read_arguments

# Browsers let a page set no header of a WebSocket but its protocols: one of them carries the session.
SESSION_PROTOCOL = "chargehand.session."
# Failed logins, from one address and from all: a client with many addresses must not guess faster for long.
_LOGIN_BURST = 10.0
_LOGINS_PER_SECOND = 0.2
_ALL_LOGINS_BURST = 200.0
_ALL_LOGINS_PER_SECOND = 2.0
# Passwords hashed at once: one takes 0.3 s of a core and 64 MiB.
_MOST_HASHED = 2
_BEARER = "bearer "


class LoginBody(RestArguments, frozen=True):
    """What opens a session: a code that `chargehand up` prints, or an account's name and password."""

    code: Annotated[str, Meta(max_length=200)] | None = None
    user: Annotated[str, Meta(max_length=100)] | None = None
    password: Annotated[str, Meta(max_length=1024)] | None = None


class Sessions:
    """Finds out who calls, and opens and ends sessions."""

    def __init__(self, reader: StateReader) -> None:
        self._reader = reader
        self._logins = CallerLimits(burst=_LOGIN_BURST, per_second=_LOGINS_PER_SECOND)
        self._all_logins = RateLimit(burst=_ALL_LOGINS_BURST, per_second=_ALL_LOGINS_PER_SECOND)
        self._hashing = threading.Semaphore(_MOST_HASHED)

    def authenticate(self, request: HTTPConnection) -> Caller:
        """Return who calls; may block.

        Raises `RefusedError` (`login_needed`, `token_unknown`, `token_expired`), `StoreError`.
        """
        address = _address(request)
        secret = _bearer(request)
        if secret.startswith(SESSION_PREFIX):
            caller = resolve_session(self._reader, secret, address=address)
        else:
            caller = resolve_token(self._reader, secret, address=address)
        if caller is not None:
            return caller
        if "authorization" not in request.headers or secret.startswith(SESSION_PREFIX):
            raise RefusedError(
                "a session or a token is needed",
                code="login_needed",
                hint="log in, or send Authorization: Bearer TOKEN",
            )
        expired = token_has_expired(self._reader, secret)
        raise RefusedError(
            "this token has expired" if expired else "nobody has this token, or it was revoked",
            code="token_expired" if expired else "token_unknown",
            hint="make another one: chargehand token create",
        )

    def log_in(self, request: Request, body: Mapping[str, Any]) -> Response:
        """Open a session. Raises `RefusedError` (`login_failed`), `ExhaustedError`."""
        given = read_arguments(LoginBody, path={}, query=(), body=body)
        address = _address(request)
        limits = self._logins.of(address), self._all_logins
        for limit in limits:
            limit.take()
        before = _bearer(request)
        if given.code is not None:
            opened = redeem_login_code(self._reader, given.code, address=address, replaces=before)
        elif given.user is not None and given.password is not None:
            with self._hashing:
                opened = log_in(self._reader, given.user, given.password, address=address, replaces=before)
        else:
            raise UsageError("neither a code nor a name with a password was given", code="arguments_invalid")
        for limit in limits:
            limit.put_back()  # a login that succeeds was no guess
        session = session_document(self._reader, opened.caller)
        return document_response(OpenedSessionDocument(secret=opened.secret, session=session))

    def log_out(self, request: Request, caller: Caller) -> Response:
        """End the caller's session; may block."""
        close_session(self._reader, _bearer(request), by=caller)
        return Response(status_code=204)


def _bearer(request: HTTPConnection) -> str:
    """Return the secret that a request carries, "" for none or more than one."""
    given = request.headers.getlist("authorization")
    if given:
        only = given[0] if len(given) == 1 else ""
        return only[len(_BEARER) :].strip() if only.lower().startswith(_BEARER) else ""
    protocols = [each for each in request.scope.get("subprotocols", ()) if each.startswith(SESSION_PROTOCOL)]
    return protocols[0].removeprefix(SESSION_PROTOCOL) if len(protocols) == 1 else ""


def _address(request: HTTPConnection) -> str:
    """Return where a request comes from, "" for this machine."""
    host = request.client.host if request.client is not None else ""
    try:
        return "" if ipaddress.ip_address(host).is_loopback else host
    except ValueError:
        return host
