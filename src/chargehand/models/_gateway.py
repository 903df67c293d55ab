"""The endpoint that an agent talks to: its token, its models, its money."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from chargehand.core import Clock, InfrastructureError, Ledger, Spent, SystemClock, nearest
from chargehand.models._contract import PATHS, CallRecord, Dialect, ServedModel
from chargehand.models._dialect_anthropic import AnthropicRules
from chargehand.models._dialect_openai import OpenAIRules
from chargehand.models._gateway_bill import Desk
from chargehand.models._gateway_dialect import DialectRules
from chargehand.models._gateway_exchange import JSON_HEADERS, Exchange, Order
from chargehand.models._gateway_fault import CODES, GatewayFault
from chargehand.models._gateway_retry import Retries
from chargehand.models._gateway_screen import kept_betas, screened
from chargehand.models._http import HttpAnswer, HttpLimits, HttpRequest, HttpServer
from chargehand.models._meter import DEFAULT_OUTPUT, Bound, input_bound

_RULES: Mapping[Dialect, DialectRules] = {"openai": OpenAIRules(), "anthropic": AnthropicRules()}
_PASSED_HEADERS = ("anthropic-version", "anthropic-beta")
_CUT_SECONDS = 1.0
_BACKLOG = 1_024
"""Connecting to a unix socket fails at once where more than that wait."""
_COUNT = "/messages/count_tokens"
_MOST_PIECES = 1_000_000
"""A list of nothing takes 80 bytes here for the two that it is sent in, and holds everybody up meanwhile."""


def _ignore(_: Spent) -> None:
    pass


def _as_is(text: str) -> str:
    return text


class Gateway:
    """The model endpoint of one attempt, on that attempt's own socket or on a loopback TCP port.

    Answers `POST /v1/chat/completions`, `POST /v1/messages` and `GET /v1/models`, also without `/v1`, to whoever
    has `token`; `/v1/messages/count_tokens` is a 404 in that dialect's shape, on which clients estimate by
    themselves. Every call admitted or refused for money ends in one `on_call`. `on_call` and `on_alert` run in
    worker threads, never two at once, and may block; so may the ledger. The upstreams belong to the caller.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        *,
        ledger: Ledger,
        attempt: str,
        on_call: Callable[[CallRecord], None],
        first_turn: int = 1,
        on_alert: Callable[[Spent], None] = _ignore,
        call_seconds: float = 600.0,
        retries: int = 3,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        redact: Callable[[str], str] = _as_is,
        limits: HttpLimits | None = None,
    ) -> None:
        self.token = f"cht-{secrets.token_urlsafe(32)}"
        self._models = tuple(models)
        self._clock = clock or SystemClock()
        self._desk = Desk(ledger, self._clock, attempt=attempt, on_call=on_call, on_alert=on_alert)
        self._turn = first_turn
        self._call_seconds = call_seconds
        self._retries = retries
        self._sleep = sleep
        self._redact = redact
        self._revoked = False
        self._running: dict[Exchange, asyncio.Task[Any] | None] = {}
        self._http = HttpServer(self._handle, _refused, limits=limits or HttpLimits())
        self._servers: list[asyncio.Server] = []
        self._sockets: list[Path] = []

    async def __aenter__(self) -> Gateway:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def listen_unix(self, path: Path) -> None:
        """Listen on a unix socket of any path length; raises `InfrastructureError` (`gateway_socket`)."""
        try:
            listener = _bound_socket(path)
        except OSError as error:
            raise _unlistenable(str(path), error) from error
        self._sockets.append(path)
        self._servers.append(
            await asyncio.start_unix_server(self._http.connected, sock=listener, backlog=_BACKLOG)
        )

    async def listen_tcp(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen on TCP and return the port; raises `InfrastructureError` (`gateway_socket`)."""
        try:
            server = await asyncio.start_server(self._http.connected, host, port, backlog=_BACKLOG)
        except OSError as error:
            raise _unlistenable(f"{host}:{port}", error) from error
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def revoke(self) -> None:
        """Make the token worthless: running streams end in an error event, later calls get a 401."""
        self._revoked = True
        for exchange in self._running:
            exchange.cut(_revoked())

    async def close(self) -> None:
        """Revoke, cut every connection, and return once every call is settled. Idempotent."""
        self.revoke()
        for server in self._servers:
            server.close()
        self._servers.clear()
        running = [task for task in self._running.values() if task is not None]
        if running:
            # Time for a last error event: a connection that only breaks looks like a fault to be retried.
            await asyncio.wait(running, timeout=_CUT_SECONDS)
        await self._http.close()
        for path in self._sockets:
            path.unlink(missing_ok=True)
        self._sockets.clear()
        await self._desk.close()

    async def _handle(self, request: HttpRequest, answer: HttpAnswer) -> None:
        try:
            self._check_token(request)
            order = self._routed(request)
        except GatewayFault as fault:
            body = _refused(request.path, fault.status, fault.message, code=fault.code)
            await answer.send(fault.status, JSON_HEADERS, body)
            return
        if isinstance(order, bytes):
            await answer.send(200, JSON_HEADERS, b"" if request.method == "HEAD" else order)
            return
        retries = Retries(self._retries, self._clock, self._sleep)
        exchange = Exchange(order, answer, self._desk, retries=retries, redact=self._redact)
        self._running[exchange] = asyncio.current_task()
        try:
            await exchange.run()
        finally:
            del self._running[exchange]

    def _check_token(self, request: HttpRequest) -> None:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = [bearer.strip() if scheme.lower() == "bearer" else "", request.headers.get("x-api-key", "")]
        right = [hmac.compare_digest(token.encode(), self.token.encode()) for token in given]
        if not any(right):
            raise GatewayFault("token_invalid", "this token is not the one of this gateway")
        if self._revoked:
            raise _revoked()

    def _routed(self, request: HttpRequest) -> Order | bytes:
        path = _short(request.path)
        if path == "/models":
            if request.method not in ("GET", "HEAD"):
                raise GatewayFault("method_not_allowed", f"{request.path} takes only GET")
            return self._listed()
        for dialect, full in PATHS.items():
            if path == _short(full):
                if request.method != "POST":
                    raise GatewayFault("method_not_allowed", f"{request.path} takes only POST")
                return self._order(dialect, request)
        if path == _COUNT:
            raise GatewayFault("not_found", "this gateway does not count tokens: estimate them")
        known = ", ".join([*PATHS.values(), "/v1/models"])
        raise GatewayFault("not_found", f"no endpoint {request.path!r}; known: {known}")

    def _listed(self) -> bytes:
        """Return the list of models, as both dialects read it."""
        entries = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "chargehand",
                "type": "model",
                "display_name": name,
                "created_at": "1970-01-01T00:00:00Z",
            }
            for name in dict.fromkeys(served.name for served in self._models)
        ]
        ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]} if entries else {}
        return msgspec.json.encode({"object": "list", "data": entries, "has_more": False, **ends})

    def _order(self, dialect: Dialect, request: HttpRequest) -> Order:
        body = _decoded(request)
        served = self._served(dialect, body.get("model"))
        body = screened(dialect, body)
        rules = _RULES[dialect]
        limit = rules.output_limit(body)
        most = DEFAULT_OUTPUT if served.max_output is None else served.max_output
        bound = Bound(
            input=input_bound(request.body, body),
            output=most if limit is None else min(limit, most),
            asked=limit is not None or served.max_output is not None,
            choices=rules.choices(body),
            hour_cache=b'"1h"' in msgspec.json.encode(body),
        )
        turn = self._turn
        self._turn += 1
        return Order(
            served=served,
            rules=rules,
            body=body,
            bound=bound,
            turn=turn,
            seconds=self._call_seconds,
            headers=_passed(request.headers),
        )

    def _served(self, dialect: Dialect, name: object) -> ServedModel:
        if not isinstance(name, str):
            raise GatewayFault("bad_request", f"`model` must be a name, not {name!r:.100}")
        served = [model for model in self._models if model.name == name]
        if not served:
            known = sorted({model.name for model in self._models})
            raise GatewayFault(
                "model_not_found",
                f"no model {name[:100]!r} here, {nearest(name, known)} (known: {', '.join(known) or 'none'})",
            )
        for model in served:
            if model.dialect == dialect:
                return model
        other = served[0].dialect
        raise GatewayFault(
            "dialect_mismatch",
            f"model {name!r} speaks the {other} dialect: send it to {PATHS[other]}; this gateway does not "
            f"translate to {PATHS[dialect]} yet",
        )


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    kept = {name: headers[name] for name in _PASSED_HEADERS if name in headers}
    if "anthropic-beta" in kept:
        kept["anthropic-beta"] = kept_betas(kept["anthropic-beta"])
    return {name: value for name, value in kept.items() if value}


def _decoded(request: HttpRequest) -> Mapping[str, Any]:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise GatewayFault("unsupported_encoding", f"request bodies must be plain, not {encoding!r:.50}")
    if sum(map(request.body.count, (b"[", b"{", b","))) > _MOST_PIECES:
        raise GatewayFault("too_large", f"the request body has more than {_MOST_PIECES} values")
    try:
        body = msgspec.json.decode(request.body)
    except (ValueError, RecursionError) as error:
        raise GatewayFault("bad_request", f"the request body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise GatewayFault("bad_request", "the request body must be a JSON object")
    return body


def _refused(path: str, status: int, message: str, *, code: str = "") -> bytes:
    """Return the body of a refusal in the dialect that belongs to `path`."""
    rules = _RULES["anthropic" if _short(path).startswith("/messages") else "openai"]
    return rules.error(status, code or CODES.get(status, "gateway_error"), message)


def _revoked() -> GatewayFault:
    return GatewayFault("token_revoked", "the token of this attempt is revoked: its agent is to stop")


def _short(path: str) -> str:
    return path.removeprefix("/v1").rstrip("/").partition("?")[0] or "/"


def _unlistenable(place: str, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"the model gateway cannot listen on {place!r}: {error.strerror or error}",
        code="gateway_socket",
        hint="its directory must exist and be writable, and the name or port must be free",
    )


def _bound_socket(path: Path) -> socket.socket:
    """Return a bound socket at `path`, however long that is; a stale one there is replaced.

    Any user may connect: the sandbox runs under another uid, and the directory is what keeps others out.
    """
    with contextlib.ExitStack() as stack:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stack.callback(listener.close)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if path.is_socket():
                path.unlink()
            # The kernel takes 107 bytes; a path by descriptor is short wherever the state directory lies.
            listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)
        path.chmod(0o666)
        listener.setblocking(False)
        stack.pop_all()
    return listener
