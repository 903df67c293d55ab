"""Authentication of requests by session cookie or token; logging in and out."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from chargehand.app.accounts import (
    Caller,
    close_session,
    log_in,
    matches_csrf,
    redeem_login_code,
    resolve_session,
    resolve_token,
    session_document,
    token_has_expired,
)
from chargehand.app.reading import StateReader
from chargehand.core.errors import RefusedError, UsageError
from chargehand.policy.rates import RateLimit
from chargehand.server._guard import SAFE_METHODS, CallerLimits, Hosts
from chargehand.server._responses import document_response
from chargehand.server._routes import PREFIX, RestArguments, read_arguments

_COOKIE = "chargehand_session"
_CSRF_HEADER = "x-csrf-token"
# Failed logins, from one address and from all: a client with many addresses must not guess faster for long.
_LOGIN_BURST = 10.0
_LOGINS_PER_SECOND = 0.2
_ALL_LOGINS_BURST = 200.0
_ALL_LOGINS_PER_SECOND = 2.0
# Passwords hashed at once: one takes 0.3 s of a core and 64 MiB.
_MOST_HASHED = 2
_SESSION_SECONDS = 7 * 86_400
_BEARER = "bearer "


class LoginBody(RestArguments, frozen=True):
    """What opens a session: a code that `chargehand up` prints, or an account's name and password."""

    code: Annotated[str, Meta(max_length=200)] | None = None
    user: Annotated[str, Meta(max_length=100)] | None = None
    password: Annotated[str, Meta(max_length=1024)] | None = None


class Sessions:
    """Finds out who calls, and opens and ends sessions."""

    def __init__(self, reader: StateReader, *, hosts: Hosts) -> None:
        self._reader = reader
        self._hosts = hosts
        self._logins = CallerLimits(burst=_LOGIN_BURST, per_second=_LOGINS_PER_SECOND)
        self._all_logins = RateLimit(burst=_ALL_LOGINS_BURST, per_second=_ALL_LOGINS_PER_SECOND)
        self._hashing = threading.Semaphore(_MOST_HASHED)

    def authenticate(self, request: HTTPConnection) -> Caller:
        """Return who calls. Raises `RefusedError` (`login_needed`; `csrf`); may block."""
        address = _address(request)
        given = request.headers.getlist("authorization")
        if given:
            bearer = given[0] if len(given) == 1 and given[0].lower().startswith(_BEARER) else ""
            caller = resolve_token(self._reader, bearer[len(_BEARER) :].strip(), address=address)
        else:
            cookie = request.cookies.get(_cookie_name(request), "")
            caller = resolve_session(self._reader, cookie, address=address) if cookie else None
        if caller is None and given:
            expired = token_has_expired(self._reader, bearer[len(_BEARER) :].strip())
            raise RefusedError(
                "this token has expired" if expired else "nobody has this token, or it was revoked",
                code="token_expired" if expired else "token_unknown",
                hint="make another one: chargehand token create",
            )
        if caller is None:
            raise RefusedError(
                "a session or a token is needed",
                code="login_needed",
                hint="log in, or send Authorization: Bearer TOKEN",
            )
        # A WebSocket has no method; the guard admits it only from our own pages or with a token.
        changes = request.scope.get("method", "GET") not in SAFE_METHODS
        if changes and not matches_csrf(caller, request.headers.get(_CSRF_HEADER, "")):
            raise RefusedError(
                "the request does not carry its session's CSRF token",
                code="csrf",
                hint=f"send the `csrf` of GET {PREFIX}/session as X-CSRF-Token, or reload the page",
            )
        return caller

    def log_in(self, request: Request, body: Mapping[str, Any]) -> Response:
        """Open a session and set its cookie. Raises `RefusedError` (`login_failed`), `ExhaustedError`."""
        given = read_arguments(LoginBody, path={}, query=(), body=body)
        address = _address(request)
        limits = self._logins.of(address), self._all_logins
        for limit in limits:
            limit.take()
        before = request.cookies.get(_cookie_name(request))
        if given.code is not None:
            opened = redeem_login_code(self._reader, given.code, address=address, replaces=before)
        elif given.user is not None and given.password is not None:
            with self._hashing:
                opened = log_in(self._reader, given.user, given.password, address=address, replaces=before)
        else:
            raise UsageError("neither a code nor a name with a password was given", code="arguments_invalid")
        for limit in limits:
            limit.put_back()  # a login that succeeds was no guess
        response = document_response(session_document(self._reader, opened.caller))
        # Strict: a link on another site opens a page without the session; our page then asks again with it.
        response.set_cookie(
            _cookie_name(request),
            opened.secret,
            path="/",
            httponly=True,
            samesite="strict",
            secure=self._hosts.is_secure(request.headers.get("host", "")),
            max_age=_SESSION_SECONDS,
        )
        return response

    def log_out(self, request: Request, caller: Caller) -> Response:
        """End the caller's session; may block."""
        close_session(self._reader, request.cookies.get(_cookie_name(request), ""), by=caller)
        response = Response(status_code=204)
        response.delete_cookie(
            _cookie_name(request),
            path="/",
            httponly=True,
            samesite="strict",
            secure=self._hosts.is_secure(request.headers.get("host", "")),
        )
        return response


def _cookie_name(request: HTTPConnection) -> str:
    """Return this server's name for its cookie, with its port: browsers share cookies between ports of a host."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{_COOKIE}_{port}" if port.isdecimal() else _COOKIE


def _address(request: HTTPConnection) -> str:
    """Return where a request comes from, "" for this machine."""
    host = request.client.host if request.client is not None else ""
    try:
        return "" if ipaddress.ip_address(host).is_loopback else host
    except ValueError:
        return host
