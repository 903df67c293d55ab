"""Routes by which a browser adds a passkey and signs in with it: both need the origin of the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from msgspec import Meta
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from chargehand.core.errors import UsageError
from chargehand.identity.accounts import session_document
from chargehand.identity.documents import OpenedSessionDocument
from chargehand.identity.passkeys import add_passkey, passkey_options, sign_in_by_passkey, sign_in_options
from chargehand.operations.operation import PREFIX, RestArguments, read_arguments
from chargehand.reports.reading import StateReader
from chargehand.server._guard import CallerLimits, Hosts
from chargehand.server._responses import document_response
from chargehand.server._sessions import Sessions, name_network, request_address, request_secret

_AT = f"{PREFIX}/session/passkey"
# Ceremonies that one address begins: each costs a row until it expires.
_BURST, _PER_SECOND = 30.0, 0.5


class PasskeyAnswer(RestArguments, frozen=True):
    """The browser's answer to the options, and the account that it must belong to, if that is known."""

    credential: dict[str, Any]
    user: Annotated[str, Meta(max_length=100)] | None = None


class NewPasskey(RestArguments, frozen=True):
    """A passkey that the browser made, and its name."""

    name: Annotated[str, Meta(max_length=200)]
    credential: dict[str, Any]


class PasskeyRoutes:
    """Adds passkeys and signs browsers in by them; `routes` are method, path and the work, which may block."""

    def __init__(self, reader: StateReader, sessions: Sessions, hosts: Hosts) -> None:
        self._reader = reader
        self._sessions = sessions
        self._hosts = hosts
        self._limits = CallerLimits(burst=_BURST, per_second=_PER_SECOND)
        self.routes: tuple[tuple[str, str, Callable[[Request, Mapping[str, Any]], Response]], ...] = (
            ("POST", f"{_AT}/options", self._offer),
            ("POST", _AT, self._open_session),
            ("POST", f"{_AT}/new/options", self._offer_new),
            ("POST", f"{_AT}/new", self._add),
        )

    def _offer(self, request: Request, body: Mapping[str, Any]) -> Response:
        self._limits.of(name_network(request)).take(hint="wait a minute, then sign in again")
        return document_response(sign_in_options(self._reader, origin=self._origin(request)))

    def _open_session(self, request: Request, body: Mapping[str, Any]) -> Response:
        given = read_arguments(PasskeyAnswer, path={}, query=(), body=body)
        opened = sign_in_by_passkey(
            self._reader,
            given.credential,
            origin=self._origin(request),
            user=given.user,
            address=request_address(request),
            replaces=request_secret(request),
        )
        session = session_document(self._reader, opened.caller)
        return document_response(OpenedSessionDocument(secret=opened.secret, session=session))

    def _offer_new(self, request: Request, body: Mapping[str, Any]) -> Response:
        by = self._sessions.authenticate(request)
        return document_response(passkey_options(self._reader, origin=self._origin(request), by=by))

    def _add(self, request: Request, body: Mapping[str, Any]) -> Response:
        by = self._sessions.authenticate(request)
        given = read_arguments(NewPasskey, path={}, query=(), body=body)
        made = add_passkey(self._reader, given.name, given.credential, origin=self._origin(request), by=by)
        return document_response(made, status=201)

    def _origin(self, request: HTTPConnection) -> str:
        """Return the origin of our pages that sent a request: what its passkey signs must name it."""
        origin = request.headers.get("origin", "")
        if origin not in self._hosts.origins:
            raise UsageError(
                "a passkey needs the page that asks for it", code="arguments_invalid", hint="send Origin"
            )
        return origin
