"""Routes of external sign-in: a browser goes to the provider and comes back, and its page gets a session.

A cookie binds the steps to one browser: without it, a page could finish its own sign-in in the browser of another
person. The cookie opens no session, is sent to these routes only, and ends after 10 minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any
from urllib.parse import quote

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from chargehand.core.ports import SignInProvider
from chargehand.identity.accounts import redeem_sign_in, session_document
from chargehand.identity.documents import OpenedSessionDocument
from chargehand.identity.sign_in import SIGN_IN_LASTS, finish_sign_in, start_sign_in
from chargehand.operations.operation import PREFIX, RestArguments, read_arguments
from chargehand.reports.reading import StateReader
from chargehand.server._guard import CallerLimits, Hosts
from chargehand.server._responses import document_response
from chargehand.server._sessions import name_network, request_address, request_secret

SIGN_IN = f"{PREFIX}/sign-in"
_COOKIE = "chargehand_sign_in"
# Sign-ins that one address begins: each costs a row until it expires.
_BURST, _PER_SECOND = 30.0, 0.2


class SignInCode(RestArguments, frozen=True):
    """The code that a finished sign-in left in the fragment of the page's address."""

    code: Annotated[str, Meta(max_length=200)]


class SignInRoutes:
    """Takes browsers to a provider and back; `routes` are method, path and the work, which may block."""

    def __init__(self, reader: StateReader, provider: SignInProvider, hosts: Hosts) -> None:
        self._reader = reader
        self._provider = provider
        self._hosts = hosts
        self._limits = CallerLimits(burst=_BURST, per_second=_PER_SECOND)
        self.routes: tuple[tuple[str, str, Callable[[Request, Mapping[str, Any]], Response]], ...] = (
            ("GET", SIGN_IN, self._start),
            ("GET", f"{SIGN_IN}/callback", self._finish),
            ("POST", SIGN_IN, self._open_session),
        )

    def _start(self, request: Request, body: Mapping[str, Any]) -> Response:
        self._limits.of(name_network(request)).take(hint="wait a minute, then sign in again")
        started = start_sign_in(
            self._reader,
            self._provider,
            callback=self._callback(request),
            return_to=request.query_params.get("return", "/"),
        )
        response = RedirectResponse(started.url, 303)
        response.set_cookie(
            _COOKIE,
            started.browser,
            max_age=int(SIGN_IN_LASTS.total_seconds()),
            path=SIGN_IN,
            secure=self._is_https(request),
            httponly=True,
            # Not strict: the provider's redirect to the callback comes from another site.
            samesite="lax",
        )
        return response

    def _finish(self, request: Request, body: Mapping[str, Any]) -> Response:
        return_to, code = finish_sign_in(
            self._reader,
            self._provider,
            dict(request.query_params),
            browser=request.cookies.get(_COOKIE, ""),
            callback=self._callback(request),
            address=request_address(request),
        )
        # In the fragment, which browsers send to no server.
        return RedirectResponse(f"/login?back={quote(return_to, safe='')}#sign-in={code}", 303)

    def _open_session(self, request: Request, body: Mapping[str, Any]) -> Response:
        given = read_arguments(SignInCode, path={}, query=(), body=body)
        opened = redeem_sign_in(
            self._reader,
            given.code,
            browser=request.cookies.get(_COOKIE, ""),
            address=request_address(request),
            replaces=request_secret(request),
        )
        session = session_document(self._reader, opened.caller)
        response = document_response(OpenedSessionDocument(secret=opened.secret, session=session))
        response.delete_cookie(_COOKIE, path=SIGN_IN)
        return response

    def _callback(self, request: Request) -> str:
        scheme = "https" if self._is_https(request) else "http"
        # The guard has refused every other host.
        return f"{scheme}://{request.headers['host']}{SIGN_IN}/callback"

    def _is_https(self, request: Request) -> bool:
        return request.headers["host"] in self._hosts.proxied
