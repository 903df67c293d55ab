"""A line in the log for each request: what was asked for, by whom, and how it went; no query and no token."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chargehand.core.log_fields import log_fields

_LOG = logging.getLogger("chargehand.access")
# Where a request's scope says who called, once that is known.
ACCOUNT = "chargehand.account"


class AccessLines:
    """Logs each request once it is answered, at level INFO; its other lines and its answer have its id, too."""

    def __init__(self, app: ASGIApp, *, templates: Mapping[Callable[..., Any], str]) -> None:
        self._app = app
        self._templates = templates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, name = time.monotonic(), 0, secrets.token_hex(8)

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", name.encode())]
            await send(message)

        with log_fields(request=name):
            try:
                await self._app(scope, receive, note_status)
            finally:
                if _LOG.isEnabledFor(logging.INFO):
                    self._log(scope, status, time.monotonic() - began)

    def _log(self, scope: Scope, status: int, seconds: float) -> None:
        # The template and not the path: of what a client makes up only the kind is of interest.
        endpoint = scope.get("endpoint")
        route = self._templates.get(endpoint, "-") if endpoint is not None else "-"
        fields = {
            "method": scope["method"] if scope["method"].isalpha() and len(scope["method"]) < 10 else "-",
            "route": route,
            "status": status,
            "milliseconds": round(seconds * 1000, 1),
            "account": scope.get(ACCOUNT, "-"),
        }
        _LOG.info("%(method)s %(route)s %(status)s", fields, extra={"fields": fields})
