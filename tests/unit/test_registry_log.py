"""Requests to the registry mirror in a mission's log, beside those to hosts."""

from __future__ import annotations

import pytest

from chargehand.missions.sandboxes.provisioning import as_egress_request
from chargehand.network.contract import MirrorRequest


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
def test_a_request_is_told_as_one_to_the_host_behind(
    hosts: tuple[str, ...], status: int, host: str, port: int, allowed: bool
) -> None:
    request = MirrorRequest(
        method="GET", kind="npm-index", project="a", hosts=hosts, status=status, bytes_sent=7, problem="why"
    )
    told = as_egress_request(request)
    assert (told.host, told.port, told.status, told.allowed) == (host, port, status, allowed)
    assert (told.entry, told.reason, told.bytes_in) == ("registry npm-index", "why", 7)
