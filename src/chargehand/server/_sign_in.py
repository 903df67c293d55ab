"""Routes of external sign-in: a browser goes to the provider and comes back, and its page gets a session.

A cookie binds the steps to one browser: without it, a page could finish its own sign-in in the browser of another
person. The cookie opens no session, is sent to these routes only, and ends after 10 minutes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from chargehand.core.errors import ChargehandError, NotFoundError, nearest
from chargehand.identity.accounts import redeem_sign_in, session_document
from chargehand.identity.documents import OpenedSessionDocument
from chargehand.identity.providers import ConfiguredProvider
from chargehand.identity.sign_in import SIGN_IN_LASTS, end_sign_ins, finish_sign_in, start_sign_in
from chargehand.operations.operation import PREFIX, RestArguments, read_arguments
from chargehand.reports.reading import StateReader
from chargehand.server._guard import CallerLimits, Hosts
from chargehand.server._responses import document_response
from chargehand.server._sessions import name_network, request_address, request_secret

_LOG = logging.getLogger("chargehand.server")
SIGN_IN = f"{PREFIX}/sign-in"
_COOKIE = "chargehand_sign_in"
# Sign-ins that one address begins: each costs a row until it expires.
_BURST, _PER_SECOND = 30.0, 0.2


class SignInCode(RestArguments, frozen=True):
    """The code that a finished sign-in left in the fragment of the page's address."""

    code: Annotated[str, Meta(max_length=200)]


class SignInRoutes:
    """Takes browsers to a provider and back; `routes` are method, path and the work, which may block."""

    def __init__(self, reader: StateReader, providers: Sequence[ConfiguredProvider], hosts: Hosts) -> None:
        self._reader = reader
        self._providers = {each.name: each for each in providers}
        self._hosts = hosts
        self._limits = CallerLimits(burst=_BURST, per_second=_PER_SECOND)
        of_provider = f"{SIGN_IN}/{{provider}}"
        self.routes: tuple[tuple[str, str, Callable[[Request, Mapping[str, Any]], Response]], ...] = (
            ("GET", of_provider, self._start),
            # An address for each: a provider's answer cannot pass for another one's (RFC 9700, section 4.4.2.2).
            ("GET", f"{of_provider}/callback", self._finish),
            ("POST", f"{of_provider}/logout", self._end_sessions),
            ("POST", SIGN_IN, self._open_session),
        )

    def end_session_url(self, request: Request, issuer: str) -> str | None:
        """Return the page at which a browser ends its session with an issuer; `None` without one.

        A provider that does not answer is skipped: the session here has ended.
        """
        scheme = "https" if self._is_https(request) else "http"
        for each in self._providers.values():
            with contextlib.suppress(ChargehandError):
                if each.provider.issuer == issuer:
                    return each.provider.end_session(f"{scheme}://{request.headers['host']}/login")
        return None

    def _start(self, request: Request, body: Mapping[str, Any]) -> Response:
        self._limits.of(name_network(request)).take(hint="wait a minute, then sign in again")
        entry = self._find(request)
        try:
            started = start_sign_in(
                self._reader,
                entry,
                callback=self._callback(request, entry),
                return_to=request.query_params.get("return", "/"),
            )
        except ChargehandError as error:
            return _refuse(request, error)
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
        entry = self._find(request)
        try:
            return_to, code = finish_sign_in(
                self._reader,
                entry,
                dict(request.query_params),
                browser=request.cookies.get(_COOKIE, ""),
                callback=self._callback(request, entry),
                address=request_address(request),
            )
        except ChargehandError as error:
            return _refuse(request, error)
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

    def _end_sessions(self, request: Request, body: Mapping[str, Any]) -> Response:
        """Take a logout token (OpenID Connect Back-Channel Logout 1.0): its signature says who sent it."""
        token = body.get("logout_token", "")
        end_sign_ins(self._reader, self._find(request), str(token), address=request_address(request))
        return Response(status_code=200)

    def _find(self, request: Request) -> ConfiguredProvider:
        name = request.path_params["provider"]
        if name not in self._providers:
            raise NotFoundError(f"there is no provider {name[:80]!r}", hint=nearest(name, self._providers))
        return self._providers[name]

    def _callback(self, request: Request, entry: ConfiguredProvider) -> str:
        scheme = "https" if self._is_https(request) else "http"
        # The guard has refused every other host.
        return f"{scheme}://{request.headers['host']}{SIGN_IN}/{entry.name}/callback"

    def _is_https(self, request: Request) -> bool:
        return request.headers["host"] in self._hosts.proxied


def _refuse(request: Request, error: ChargehandError) -> Response:
    """Answer a browser with the login page, which has words for the error's code, and a program with the error.

    A page that showed a text of its address would show what any link says.
    """
    if "text/html" not in request.headers.get("accept", ""):
        raise error
    _LOG.warning("sign-in refused: %s", error)
    return RedirectResponse(f"/login#refused={quote(error.code, safe='')}", 303)
