"""The headers of replies to clients, and refusals."""

from __future__ import annotations

import re
from collections.abc import Mapping

from chargehand.models.contract import GatewayFault
from chargehand.models.dialects.base import RequestFormat
from chargehand.models.dialects.left_out import LEFT_OUT
from chargehand.models.http.server import HttpAnswer

JSON_HEADERS: Mapping[str, str] = {"content-type": "application/json"}
# The provider's headers that pass, only in these forms: all other information belongs in the body.
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
    """Return the provider's headers for the client, with the id of its call."""
    kept = {
        name: headers[name]
        for name, form in _PASSED_HEADERS.items()
        if name in headers and re.fullmatch(form, headers[name], re.ASCII)
    }
    return {**kept, "x-chargehand-call": call}


async def refuse(answer: HttpAnswer, rules: RequestFormat, fault: GatewayFault) -> None:
    """Answer a request with a refusal, in its dialect."""
    body = rules.write_error(fault.status, fault.code, fault.message)
    headers = dict(JSON_HEADERS)
    if fault.wait is not None:
        headers["retry-after"] = f"{fault.wait:.0f}"
    # Retries by clients would only repeat a request that needs waiting, or pay again for a whole reply.
    if fault.wait is not None or fault.code == "reply_unreadable":
        headers["x-should-retry"] = "false"
    await answer.send(fault.status, headers, body)
