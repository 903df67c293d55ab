"""Every way in which a provider says when to ask again, and values that do not say it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit._model_clients import DIALECTS

from chargehand.core.clock import SteppedClock
from chargehand.models.requested_waits import LONGEST_REST, RequestedWaits

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = int(NOW.timestamp())
CLOCK = SteppedClock(NOW)
HOURS = 5 * 3600.0


def error(**fields: Any) -> bytes:
    return json.dumps({"error": fields}).encode()


INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.074824224s"}


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        # RFC 9110: seconds, a date in each of its forms, a past date
        ({"retry-after": "18000"}, b"", HOURS),
        ({"retry-after": " 1.5 "}, b"", 1.5),
        ({"retry-after": "0"}, b"", 0.0),
        ({"retry-after": "Sun, 01 Mar 2026 17:00:00 GMT"}, b"", HOURS),
        ({"retry-after": "Sun, 01 Mar 2026 17:00:00 -0100"}, b"", HOURS + 3600),
        ({"retry-after": "Sun Mar  1 12:00:30 2026"}, b"", 30.0),
        ({"retry-after": "Sun, 01 Mar 2026 11:00:00 GMT"}, b"", 0.0),
        ({"retry-after": "2026-03-01T12:01:00Z"}, b"", 60.0),
        ({"retry-after-ms": "1500"}, b"", 1.5),
        ({"retry-after": "2", "anthropic-ratelimit-unified-reset": str(SECOND + 18_000)}, b"", 2.0),
        # Anthropic: the reset time of a subscription's window in seconds, reset times of single windows
        ({"anthropic-ratelimit-unified-reset": str(SECOND + 18_000)}, b"", HOURS),
        (
            {
                "anthropic-ratelimit-requests-reset": "2026-03-01T12:00:10Z",
                "anthropic-ratelimit-requests-remaining": "49",
                "anthropic-ratelimit-output-tokens-reset": "2026-03-01T12:01:30Z",
                "anthropic-ratelimit-output-tokens-remaining": "0",
                "anthropic-ratelimit-input-tokens-reset": "2026-03-01T12:00:45Z",
                "anthropic-ratelimit-input-tokens-remaining": "0",
            },
            b"",
            90.0,
        ),
        # OpenAI and compatible servers: durations; a window with calls left refused nothing
        ({"x-ratelimit-reset-requests": "6m0s", "x-ratelimit-remaining-requests": "0"}, b"", 360.0),
        ({"x-ratelimit-reset-tokens": "1h2m3.5s", "x-ratelimit-remaining-tokens": "0"}, b"", 3723.5),
        ({"x-ratelimit-reset-tokens": "20ms", "x-ratelimit-remaining-tokens": "0"}, b"", 0.02),
        ({"x-ratelimit-reset-requests": "8h", "x-ratelimit-remaining-requests": "9"}, b"", None),
        ({"x-ratelimit-reset-requests": "1d", "x-ratelimit-reset-tokens": "7.66s"}, b"", 7.66),
        # a time in seconds, in milliseconds (OpenRouter), or a number of seconds (IETF draft)
        ({"x-ratelimit-reset": str(SECOND + 60)}, b"", 60.0),
        ({"x-ratelimit-reset": str((SECOND + 60) * 1000)}, b"", 60.0),
        ({"ratelimit-reset": "60", "ratelimit-remaining": "0"}, b"", 60.0),
        # bodies: Google's RetryInfo, also in a list; fields; a router's; accounts without quota
        ({}, error(details=[{"@type": "other"}, INFO]), 34.074824224),
        ({}, b"[" + error(details=[INFO]) + b"]", 34.074824224),
        ({}, error(type="usage_limit_reached", resets_in_seconds=18_000), HOURS),
        ({}, error(type="usage_limit_reached", resets_at=SECOND + 18_000), HOURS),
        ({}, error(resets_at="2026-03-01T17:00:00Z"), HOURS),
        ({}, error(code=429, metadata={"headers": {"X-RateLimit-Reset": str((SECOND + 60) * 1000)}}), 60.0),
        ({}, error(code="insufficient_quota"), 300.0),
        ({}, error(type="insufficient_quota", code=None), 300.0),
        # more than any quota, and values without meaning
        ({"retry-after": "999999999999999"}, b"", LONGEST_REST),
        ({"retry-after": "soon"}, b"", None),
        ({"retry-after": "-5"}, b"", None),
        ({"retry-after": "\u0663"}, b"", None),
        ({"x-ratelimit-reset": ""}, b"", None),
        ({}, b"no JSON", None),
        ({}, error(code="rate_limit_exceeded"), None),
        ({}, error(resets_in_seconds=True, resets_at=None), None),
        ({}, b'{"error": "busy"}', None),
    ],
)
def test_every_way_to_say_when(headers: dict[str, str], body: bytes, seconds: float | None) -> None:
    found = RequestedWaits(DIALECTS, CLOCK).read(headers, body)
    assert found == (None if seconds is None else pytest.approx(seconds, abs=1e-3))


NAMES = ["retry-after", "retry-after-ms", "x-ratelimit-reset", "anthropic-ratelimit-unified-reset"]
VALUES = st.text(max_size=30) | st.from_regex(r"[0-9.:TZ+ a-z-]{0,30}", fullmatch=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | VALUES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "details", "retryDelay", "metadata", "headers", "resets_at", "code"]), inner
        )
    ),
    max_leaves=10,
)


@given(headers=st.dictionaries(st.sampled_from(NAMES), VALUES), body=JSON.map(json.dumps) | VALUES)
def test_any_reply_gives_a_bounded_wait_or_no_wait(headers: dict[str, str], body: str) -> None:
    found = RequestedWaits(DIALECTS, CLOCK).read(headers, body.encode("utf-8", "replace"))
    assert found is None or 0 <= found <= LONGEST_REST
