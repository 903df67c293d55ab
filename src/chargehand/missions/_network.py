"""Requests of a sandbox to hosts, put into the log: each of them, within a rate and a number."""

from __future__ import annotations

import contextlib

from msgspec.structs import replace

from chargehand.core.attempt_events import NetworkRequested
from chargehand.core.clock import Clock
from chargehand.core.errors import FencedError
from chargehand.missions._journal import Notes
from chargehand.network.contract import EgressRequest, MirrorRequest
from chargehand.sandbox.contract import REGISTRY_PORT

_BURST, _RATE = 200.0, 20.0
_MOST = 5_000


class NetworkLog:
    """Notes what one sandbox asked for; what is more than a log should hold is counted into a mark of a gap.

    A burst of 200 lines, then 20 a second, 5,000 in all.
    """

    def __init__(self, journal: Notes, *, clock: Clock, purpose: str, attempt: str | None) -> None:
        self._journal = journal
        self._clock = clock
        self._empty = NetworkRequested(purpose=purpose, attempt=attempt)
        self._gap = self._empty
        self._room, self._at = _BURST, clock.monotonic()
        self._left = _MOST

    def see(self, request: EgressRequest) -> None:
        """Note a request that ended."""
        now = self._clock.monotonic()
        self._room = min(_BURST, self._room + _RATE * (now - self._at))
        self._at = now
        if self._room < 1 or self._left <= 0:
            self._count(request)
            return
        self._room -= 1
        self._left -= 1
        self.end()
        self._note(
            replace(
                self._empty,
                method=request.method,
                host=request.host,
                port=request.port,
                status=request.status,
                allowed=request.allowed,
                entry=request.entry,
                reason=request.reason,
                address=request.address,
                bytes_out=request.bytes_out,
                bytes_in=request.bytes_in,
                seconds=request.seconds,
            )
        )

    def end(self) -> None:
        """Note what was counted only."""
        if self._gap.unlisted:
            gap, self._gap = self._gap, self._empty
            self._note(gap)

    def _count(self, request: EgressRequest) -> None:
        gap = self._gap
        self._gap = replace(
            gap,
            unlisted=gap.unlisted + 1,
            unlisted_refused=gap.unlisted_refused + (not request.allowed),
            bytes_out=gap.bytes_out + request.bytes_out,
            bytes_in=gap.bytes_in + request.bytes_in,
            seconds=gap.seconds + request.seconds,
        )

    def _note(self, payload: NetworkRequested) -> None:
        with contextlib.suppress(FencedError):  # whoever took the mission over logs its own
            self._journal.note(payload)


def as_egress(request: MirrorRequest) -> EgressRequest:
    """Return a request to the registry mirror as one to the host that was asked last, or to the mirror itself.

    It counts as refused where the mirror answered by itself, and not what a registry had said.
    """
    web = [host for host in request.hosts if host != "file:"]
    host, _, port = web[-1].rpartition(":") if web and web[-1].rpartition(":")[2].isdecimal() else ("", "", "")
    if not host:
        host, port = (web[-1], "443") if web else ("127.0.0.1", str(REGISTRY_PORT))
    of_the_registry = bool(request.hosts) and request.status in (404, 502)
    return EgressRequest(
        method=request.method,
        host=host,
        port=int(port),
        status=request.status,
        allowed=0 < request.status < 400 or of_the_registry,
        entry=f"registry {request.kind}",
        reason=request.problem,
        bytes_in=request.bytes_sent,
    )
