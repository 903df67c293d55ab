"""The way to a provider through whatever proxy the environment names; httpx knows how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import httpx

from chargehand.models.http.framing import WireError, WireReply

if TYPE_CHECKING:
    import ssl

_CONNECTIONS = 512
_KEPT_CONNECTIONS = 32
"""httpx goes through all connections for each idle one whenever a call begins or ends."""
_IDLE_SECONDS = 60.0


class ProxiedWire:
    """The rules of `Wire` by httpx, on one event loop; `base` is what paths are put behind."""

    def __init__(self, base: str, certificates: ssl.SSLContext, *, trust_env: bool) -> None:
        self._base = base
        self._client = httpx.AsyncClient(
            limits=httpx.Limits(
                max_connections=_CONNECTIONS,
                max_keepalive_connections=_KEPT_CONNECTIONS,
                keepalive_expiry=_IDLE_SECONDS,
            ),
            follow_redirects=False,
            trust_env=trust_env,
            verify=certificates,
        )

    async def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, connect: float, seconds: float
    ) -> WireReply:
        """Send one request; see `Wire`."""
        timeout = httpx.Timeout(seconds, connect=connect)
        try:
            request = self._client.build_request(
                method, self._base + path, content=body, headers=dict(headers), timeout=timeout
            )
            response = await self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            raise _failed(error, begun=False) from None
        except httpx.InvalidURL as error:
            raise ValueError(type(error).__name__) from None
        return WireReply(status=response.status_code, headers=dict(response.headers), body=_Body(response))

    async def close(self) -> None:
        """Close the pool. Idempotent."""
        await self._client.aclose()


class _Body:
    """The body of a response; unlike a generator's, its `aclose` works also where nothing was read yet."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._pieces = response.aiter_bytes()

    def __aiter__(self) -> _Body:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._pieces)
        except httpx.HTTPError as error:
            raise _failed(error, begun=True) from None

    async def aclose(self) -> None:
        """Close the response; its connection is used again only where all of it was read."""
        await self._response.aclose()


def _failed(error: httpx.HTTPError, *, begun: bool) -> WireError:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    unsent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
    malformed = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)
    if isinstance(error, unsent) or (not begun and isinstance(error, malformed)):
        return WireError("upstream_unreachable", what)
    if isinstance(error, httpx.TimeoutException):
        return WireError("upstream_timeout", what)
    return WireError("upstream_cut", what)
