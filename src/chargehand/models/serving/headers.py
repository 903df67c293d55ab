"""The headers of replies to clients."""

from __future__ import annotations

import re
from collections.abc import Mapping

from chargehand.models.dialects.translation import LEFT_OUT

JSON_HEADERS: Mapping[str, str] = {"content-type": "application/json"}
# What passes of a provider's headers, and only in these forms: whatever else it says, it says in the body.
_ID = r"[\w.:/+=-]{1,200}"
_PASSED_HEADERS = {
    "content-type": r"[\w.+-]+/[\w.+-]+(; ?charset=[\w-]+)?",
    "retry-after": r"\d{1,10}(\.\d{1,9})?|[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT",
    "retry-after-ms": r"\d{1,13}(\.\d{1,9})?",
    "x-request-id": _ID,
    "request-id": _ID,
    "x-should-retry": "true|false",
    LEFT_OUT: r"[ -~]{1,4000}",
}


def select_headers(headers: Mapping[str, str], call: str) -> dict[str, str]:
    """Return the provider's headers that the client gets, and the id of its call."""
    kept = {
        name: headers[name]
        for name, form in _PASSED_HEADERS.items()
        if name in headers and re.fullmatch(form, headers[name], re.ASCII)
    }
    return {**kept, "x-chargehand-call": call}
