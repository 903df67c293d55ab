"""A log line for each request: method, route, status and account; never its query or token."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chargehand.core.redaction import log_fields

_LOG = logging.getLogger("chargehand.access")
# The key of a request's scope for the authenticated account.
ACCOUNT = "chargehand.account"


class AccessLines:
    """Logs each answered request at level INFO; adds the request's id to other log lines and to the response."""

    def __init__(self, app: ASGIApp, *, templates: Mapping[Callable[..., Any], str]) -> None:
        self._app = app
        self._templates = templates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        request_id = secrets.token_hex(8)
        status = 0

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        with log_fields(request=request_id):
            try:
                await self._app(scope, receive, note_status)
            finally:
                # The template, not the path: for a path made up by a client only its kind is of interest.
                endpoint = scope.get("endpoint")
                fields = {
                    "method": scope["method"] if scope["method"].isalpha() and len(scope["method"]) < 10 else "-",
                    "route": "-" if endpoint is None else self._templates.get(endpoint, "-"),
                    "status": status,
                    "milliseconds": round((time.monotonic() - began) * 1000, 1),
                    "account": scope.get(ACCOUNT, "-"),
                }
                _LOG.info("%(method)s %(route)s %(status)s", fields, extra={"fields": fields})
