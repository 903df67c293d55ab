"""The log of a sandbox's requests to hosts and to the registry mirror."""

from __future__ import annotations

import pytest

from chargehand.core.attempt_events import NetworkRequested
from chargehand.core.clock import SteppedClock
from chargehand.core.errors import FencedError
from chargehand.core.events import Payload
from chargehand.missions.journal import Unlogged
from chargehand.missions.sandboxes.provisioning import NetworkLog, as_egress_request
from chargehand.network.contract import EgressRequest, MirrorRequest


class _Kept(Unlogged):
    def __init__(self) -> None:
        self.kept: list[NetworkRequested] = []

    def record(self, *payloads: Payload, durable: bool = False) -> None:
        """Keep the network events."""
        self.kept += [payload for payload in payloads if isinstance(payload, NetworkRequested)]


def asked(host: str, *, allowed: bool) -> EgressRequest:
    return EgressRequest(
        method="GET", host=host, port=80, status=200, allowed=allowed, bytes_in=3, bytes_out=2, seconds=0.5
    )


def test_excess_requests_of_a_flood_are_summed_in_the_log() -> None:
    clock, kept = SteppedClock(), _Kept()
    log = NetworkLog(kept, clock=clock, purpose="agent", attempt="a-1")
    for number in range(300):
        log.see(asked(f"h{number}.test", allowed=number % 2 == 0))
    assert len(kept.kept) == 200
    clock.advance(1.0)
    log.see(asked("late.test", allowed=True))
    gap, late = kept.kept[200:]
    assert (gap.unlisted, gap.unlisted_refused, gap.bytes_in, gap.bytes_out, gap.host) == (100, 50, 300, 200, "")
    assert (late.host, late.unlisted, late.attempt, late.purpose) == ("late.test", 0, "a-1", "agent")
    log.finish()
    assert len(kept.kept) == 202


def test_a_sandbox_has_so_many_lines_at_most() -> None:
    clock, kept = SteppedClock(), _Kept()
    log = NetworkLog(kept, clock=clock, purpose="agent", attempt=None)
    for _ in range(6_000):
        clock.advance(1.0)
        log.see(asked("h.test", allowed=True))
    log.finish()
    assert len(kept.kept) == 5_001
    assert kept.kept[-1].unlisted == 1_000


def test_a_mission_that_was_taken_over_is_no_failure_of_a_request() -> None:
    class _Fenced(Unlogged):
        def record(self, *payloads: Payload, durable: bool = False) -> None:
            """Refuse."""
            raise FencedError("taken over")

    NetworkLog(_Fenced(), clock=SteppedClock(), purpose="agent", attempt=None).see(asked("h.test", allowed=True))


@pytest.mark.parametrize(
    ("hosts", "status", "host", "port", "allowed"),
    [
        (("a.example",), 200, "a.example", 443, True),
        (("a.example", "b.example:8443"), 200, "b.example", 8443, True),
        (("[::1]:81",), 404, "[::1]", 81, True),
        (("a.example",), 502, "a.example", 443, True),
        (("a.example", "169.254.169.254"), 403, "169.254.169.254", 443, False),
        (("file:",), 200, "127.0.0.1", 8870, True),
        ((), 200, "127.0.0.1", 8870, True),
        ((), 405, "127.0.0.1", 8870, False),
        ((), 404, "127.0.0.1", 8870, False),
        ((), 0, "127.0.0.1", 8870, False),
    ],
)
def test_a_mirror_request_is_logged_as_a_request_to_its_host(
    hosts: tuple[str, ...], status: int, host: str, port: int, allowed: bool
) -> None:
    request = MirrorRequest(
        method="GET", kind="npm-index", project="a", hosts=hosts, status=status, bytes_sent=7, problem="why"
    )
    told = as_egress_request(request)
    assert (told.host, told.port, told.status, told.allowed) == (host, port, status, allowed)
    assert (told.entry, told.reason, told.bytes_in) == ("registry npm-index", "why", 7)
