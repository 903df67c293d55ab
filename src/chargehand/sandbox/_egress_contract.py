"""What passes between the proxy of a sandbox and whoever opened it: limits, records, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from chargehand.core.errors import RefusedError
from chargehand.network.allow_list import Address
from chargehand.sandbox.contract import EGRESS_PORT

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]
"""Returns the addresses of a name; raises `OSError` where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressLimits:
    """What one sandbox may use of the network; sizes in bytes, times in seconds.

    `bytes_out` and `bytes_in` count what is sent to hosts and what comes back, over all requests;
    `requests_per_second` paces requests beyond a burst of as many, `connections` are open at once.
    """

    bytes_out: int = 256 << 20
    bytes_in: int = 2048 << 20
    requests_per_second: int = 50
    connections: int = 64
    idle_seconds: float = 120.0
    connect_seconds: float = 20.0
    head_seconds: float = 20.0
    head_bytes: int = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressRequest:
    """One request as it ended, never with a path, a query, a header or a body.

    `status` is what the sandbox was answered, 0 for nothing; `entry` is the rule that its host fits, "" for none;
    `reason` says why it was refused or cut. `address` is where it went, "" for nowhere. Bytes are those of the
    connection to the host.
    """

    method: str
    host: str
    port: int
    status: int
    allowed: bool
    entry: str = ""
    reason: str = ""
    address: str = ""
    bytes_out: int = 0
    bytes_in: int = 0
    seconds: float = 0.0


class EgressRefusal(RefusedError):
    """The proxy answers with an HTTP error; message and hint are shown inside the sandbox, so hold no secret."""

    default_code = "network_refused"

    def __init__(self, status: int, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


class Pace:
    """Lets a burst of `rate` through at once, then `rate` a second; whoever comes too early waits in order."""

    def __init__(self, rate: int, now: Callable[[], float]) -> None:
        self._each = 1 / rate
        self._now = now
        self._next = now() - 1.0

    async def turn(self, *, patience: float) -> None:
        """Wait for one's turn; raises `EgressRefusal` where that is further off than `patience` seconds."""
        now = self._now()
        at = max(self._next + self._each, now - 1.0 + self._each)
        if at - now > patience:
            raise EgressRefusal(429, "too many requests at once", hint="ask for less, later")
        self._next = at
        if at > now:
            await asyncio.sleep(at - now)


def egress_environment(port: int = EGRESS_PORT) -> Mapping[str, str]:
    """Return the variables that send the programs inside to a proxy on 127.0.0.1.

    In both cases, since curl reads `http_proxy` in lower case only and others the upper one; what is asked of the
    sandbox itself (the gateway, a test's own server) does not go to the proxy.
    """
    address, own = f"http://127.0.0.1:{port}", "localhost,127.0.0.1,::1"
    named = {"HTTP_PROXY": address, "HTTPS_PROXY": address, "ALL_PROXY": address, "NO_PROXY": own}
    return {**named, **{name.lower(): value for name, value in named.items()}, "NODE_USE_ENV_PROXY": "1"}
