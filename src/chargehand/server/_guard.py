"""Checks that every request passes first: host, origin and rate; and the security headers of every response."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable

from msgspec import Struct
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chargehand import __version__
from chargehand.core.errors import ChargehandError, RefusedError
from chargehand.operations.operation import PREFIX
from chargehand.policy.rates import RateLimit
from chargehand.server._responses import error_response

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "form-action 'self'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
# Requests of one caller. A page with a feed sends a few per second; no person has a thousand pages open.
_BURST = 400.0
_REQUESTS_PER_SECOND = 100.0
# Callers whose limits are remembered: strangers with many addresses must not fill the memory.
_MOST_CALLERS = 2000


class Hosts(Struct, frozen=True, kw_only=True):
    """The allowed `Host` headers: `own` over plain HTTP, `proxied` behind a proxy that terminates TLS."""

    own: frozenset[str]
    proxied: frozenset[str] = frozenset()
    trusted: frozenset[str] = frozenset()
    """Addresses of proxies whose `X-Forwarded-For` is trusted."""

    @property
    def origins(self) -> frozenset[str]:
        """The `Origin` headers of our own pages."""
        return frozenset({f"http://{host}" for host in self.own} | {f"https://{host}" for host in self.proxied})


class CallerLimits:
    """A rate limit for each caller; the oldest caller is forgotten if there are too many."""

    def __init__(self, *, burst: float, per_second: float, now: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._per_second = per_second
        self._now = now
        self._limits: dict[str, RateLimit] = {}

    def of(self, caller: str) -> RateLimit:
        """Return the limit of one caller."""
        found = self._limits.get(caller)
        if found is None:
            if len(self._limits) >= _MOST_CALLERS:
                del self._limits[next(iter(self._limits))]
            found = RateLimit(burst=self._burst, per_second=self._per_second, now=self._now)
            self._limits[caller] = found
        return found


class RequestGuard:
    """Refuses requests not meant for this server; adds security headers for browsers to responses."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Hosts,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._rates = CallerLimits(burst=_BURST, per_second=_REQUESTS_PER_SECOND, now=now)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it before its body is read."""
        if scope["type"] in ("http", "websocket"):
            scope["client"] = self._client(scope)
        if scope["type"] == "websocket":
            try:
                self._check(scope)
            except ChargehandError as error:
                # A close before the socket is accepted sends the client a 403.
                await send({"type": "websocket.close", "code": 1008, "reason": error.code})
                return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if scope["path"].startswith(PREFIX):
                    headers.setdefault("Cache-Control", "no-store")
                    headers["Chargehand-Version"] = __version__
            await send(message)

        try:
            self._check(scope)
        except ChargehandError as error:
            await error_response(error)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        # DNS rebinding: a foreign page reaches loopback under a name of its domain that resolves to it. Exactly
        # one header: of two, the code behind this guard might read the other one.
        if len(hosts) != 1 or hosts[0] not in self._hosts.own | self._hosts.proxied:
            raise _forbidden("this server is not at that host", "open the address that `chargehand up` prints")
        # Browsers let any page open a WebSocket, and always name the page in `Origin`.
        is_socket = scope["type"] == "websocket"
        if is_socket and "origin" not in headers and "authorization" not in headers:
            raise _forbidden("a socket without a token has to name its page", "send an Origin or a token")
        if is_socket or scope["method"] not in SAFE_METHODS:
            if any(origin not in self._hosts.origins for origin in headers.getlist("origin")):
                raise _forbidden(
                    "pages of other origins may not use this server", "use the dashboard of this server"
                )
            if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                raise _forbidden("another site sent this request", "use the dashboard of this server")
        # By address and credential together. Strangers with one address share a limit. Pages, which come from
        # memory, and logins, which have separate limits, do not count: no stranger can use up the owner's limit.
        given = headers.get("authorization", "")
        path = scope["path"]
        if not given and (not path.startswith(PREFIX) or path == f"{PREFIX}/session"):
            return
        address = (scope.get("client") or ("", 0))[0]
        self._rates.of(f"{address} {given[-16:]}").take()

    def _client(self, scope: Scope) -> tuple[str, int]:
        """Return a request's sender: the last address added by a trusted proxy; clients can forge earlier ones."""
        host, port = scope.get("client") or ("", 0)
        host = _plain_address(host) or host
        if host in self._hosts.trusted:
            named = ",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",")
            for address in (_plain_address(each.strip()) for each in reversed(named)):
                if address not in self._hosts.trusted:
                    return (address, 0) if address else (host, port)
        return host, port


def _plain_address(text: str) -> str:
    """Return an address in its shortest form, "" if invalid: IPv6 sockets show IPv4 clients as mapped ones."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return ""
    return str(getattr(address, "ipv4_mapped", None) or address)


def _forbidden(message: str, hint: str) -> RefusedError:
    return RefusedError(message, code="forbidden", hint=hint)
