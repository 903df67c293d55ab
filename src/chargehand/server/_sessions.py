"""Authentication of requests by a session or a token; logging in and out.

A session is a bearer token that the page keeps in its origin's storage. It is not a cookie: a browser sends the
cookies of 127.0.0.1 to every server there, whatever its port. Browsers never attach it by themselves, so another
page cannot forge a request either (CSRF).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from chargehand.core.errors import RefusedError, UsageError
from chargehand.identity.accounts import (
    SESSION_PREFIX,
    Caller,
    OpenedSession,
    close_session,
    log_in,
    redeem_login_code,
    resolve_session,
    session_document,
)
from chargehand.identity.documents import OpenedSessionDocument
from chargehand.identity.tokens import resolve_token, token_has_expired
from chargehand.operations.operation import RestArguments, read_arguments
from chargehand.policy.access import FactorRole
from chargehand.reports.reading import StateReader
from chargehand.server._guard import CallerLimits
from chargehand.server._responses import document_response

# A page can set no header of a WebSocket except its protocols: one of them carries the session.
SESSION_PROTOCOL = "chargehand.session."
# Failed logins by password: at one account from one address, and from one address. There is no limit over all
# addresses, since strangers could use it up for everyone.
_ACCOUNT_BURST = 10.0
_PER_ACCOUNT_SECOND = 1 / 30
_ADDRESS_BURST = 30.0
_PER_ADDRESS_SECOND = 0.2
# Lines of the access log about unknown login codes, from one address.
_LINES_BURST = 20.0
_LINES_PER_SECOND = 1 / 60
_OTHER_WAY = "on the server's machine `chargehand up --link` prints a login link, which has no limit"
_BEARER = "bearer "


class LoginBody(RestArguments, frozen=True):
    """The credentials for a session: a code that `chargehand up` prints, or an account's name and password."""

    code: Annotated[str, Meta(max_length=200)] | None = None
    user: Annotated[str, Meta(max_length=100)] | None = None
    password: Annotated[str, Meta(max_length=1024)] | None = None
    second_factor: Annotated[str, Meta(max_length=100)] = ""


class Sessions:
    """Authenticates callers, and opens and ends sessions."""

    def __init__(self, reader: StateReader, *, has_passwords: bool, factor_from: FactorRole) -> None:
        self._reader = reader
        self._factor_from = factor_from
        self._has_passwords = has_passwords
        self._accounts = CallerLimits(burst=_ACCOUNT_BURST, per_second=_PER_ACCOUNT_SECOND)
        self._addresses = CallerLimits(burst=_ADDRESS_BURST, per_second=_PER_ADDRESS_SECOND)
        self._lines = CallerLimits(burst=_LINES_BURST, per_second=_LINES_PER_SECOND)

    def authenticate(self, request: HTTPConnection) -> Caller:
        """Return the caller; may block.

        Raises `RefusedError` (`login_needed`, `token_unknown`, `token_expired`), `StoreError`.
        """
        address = request_address(request)
        secret = request_secret(request)
        if secret.startswith(SESSION_PREFIX):
            caller = resolve_session(self._reader, secret, address=address, factor_from=self._factor_from)
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
            "this token has expired" if expired else "this token is unknown, or was revoked",
            code="token_expired" if expired else "token_unknown",
            hint="make another one: chargehand token create",
        )

    def log_in(self, request: Request, body: Mapping[str, Any]) -> Response:
        """Open a session. Raises `RefusedError` (`login_failed`), `RateLimitedError`."""
        given = read_arguments(LoginBody, path={}, query=(), body=body)
        address = request_address(request)
        before = request_secret(request)
        if given.code is not None:
            note = self._lines.of(name_network(request)).try_take
            opened = redeem_login_code(
                self._reader, given.code, address=address, replaces=before, note_unknown=note
            )
        elif not self._has_passwords:
            raise RefusedError(
                "nobody logs in with a password here",
                code="login_failed",
                hint="sign in with a provider, or a link",
            )
        elif given.user is not None and given.password is not None:
            opened = self._log_in_by_password(
                request, given.user, given.password, given.second_factor, replaces=before
            )
        else:
            raise UsageError("neither a code nor a name with a password was given", code="arguments_invalid")
        # Read again, as every later request does: it may have to add a second factor first.
        factor_from = self._factor_from
        caller = resolve_session(self._reader, opened.secret, address=address, factor_from=factor_from)
        session = session_document(self._reader, caller or opened.caller)
        return document_response(OpenedSessionDocument(secret=opened.secret, session=session))

    def _log_in_by_password(
        self, request: Request, user: str, password: str, factor: str, *, replaces: str
    ) -> OpenedSession:
        network = name_network(request)
        address = request_address(request)
        limits = self._accounts.of(f"{user} {network}"), self._addresses.of(network)
        for limit in limits:
            limit.take(hint=_OTHER_WAY)
        opened = log_in(self._reader, user, password, second_factor=factor, address=address, replaces=replaces)
        for limit in limits:
            limit.put_back()  # a login that succeeds was not a guess
        return opened

    def log_out(self, request: Request, caller: Caller) -> str:
        """End the caller's session; return the issuer at which its browser is signed in, or "". May block."""
        return close_session(self._reader, request_secret(request), by=caller)


def request_secret(request: HTTPConnection) -> str:
    """Return the secret that a request carries, "" unless there is exactly one."""
    given = request.headers.getlist("authorization")
    if given:
        only = given[0] if len(given) == 1 else ""
        return only[len(_BEARER) :].strip() if only.lower().startswith(_BEARER) else ""
    protocols = [each for each in request.scope.get("subprotocols", ()) if each.startswith(SESSION_PROTOCOL)]
    return protocols[0].removeprefix(SESSION_PROTOCOL) if len(protocols) == 1 else ""


def name_network(request: HTTPConnection) -> str:
    """Return the address range of one stranger, "" for this machine: one address of IPv4, 2^64 of IPv6."""
    address = request_address(request)
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return address if found.version == 4 else str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))


def request_address(request: HTTPConnection) -> str:
    """Return the address that a request comes from, "" for this machine."""
    host = request.client.host if request.client is not None else ""
    try:
        return "" if ipaddress.ip_address(host).is_loopback else host
    except ValueError:
        return host
