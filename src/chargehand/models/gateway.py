"""The endpoint that an agent talks to: its token, its models, its money."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from chargehand.core.clock import Clock, SystemClock
from chargehand.core.errors import InfrastructureError
from chargehand.core.ids import new_id
from chargehand.core.ports import Ledger, Spent
from chargehand.models.contract import (
    CODES,
    Call,
    CallRecord,
    GatewayFault,
    Operation,
    QuotaRest,
    ServedModel,
    Upstream,
)
from chargehand.models.dialects.base import DialectRules
from chargehand.models.dialects.embeddings import EMBED_RULES, embedders, embedding_upstream
from chargehand.models.dialects.table import RULES
from chargehand.models.dialects.translation import TranslatingUpstream
from chargehand.models.http.server import HttpAnswer, HttpLimits, HttpRequest, HttpServer
from chargehand.models.metering import DEFAULT_OUTPUT, Bound, input_bound
from chargehand.models.providers import QUIET_SECONDS, Providers, Retries
from chargehand.models.replay_cache import CallLog
from chargehand.models.serving.admission import Desk
from chargehand.models.serving.cached import ONLY_KEPT, Replayed, Shelf, Tape
from chargehand.models.serving.fallback import Chain
from chargehand.models.serving.handler import JSON_HEADERS, Order
from chargehand.models.serving.routes import (
    Route,
    Taker,
    able,
    chain_of,
    dialect_at,
    listed,
    listed_gemini,
    no_endpoint,
    route_of,
    short,
)
from chargehand.models.serving.screening import kept_betas, screened
from chargehand.models.serving.side_requests import asked_count, counted, estimate, is_bare

_COUNT_SECONDS = 10.0
_PASSED_HEADERS = ("anthropic-version", "anthropic-beta")
_CUT_SECONDS = 1.0
_BACKLOG = 1_024
"""Connecting to a unix socket fails at once where more than that wait."""
_MOST_PIECES = 1_000_000
"""A list of nothing takes 80 bytes here for the two that it is sent in, and holds everybody up meanwhile."""


def _ignore(_: Spent) -> None:
    pass


def _unheard(_: QuotaRest) -> None:
    pass


def _as_is(text: str) -> str:
    return text


class Gateway:
    """The model endpoint of one attempt, on that attempt's own socket or on a loopback TCP port.

    Answers chat completions, messages, responses and Gemini's `generateContent`, counts of tokens, embeddings and
    `GET /v1/models`, also without `/v1`, to whoever has `token`; a model that speaks another dialect than the
    request is asked in its own. Every call admitted or refused for money ends in one `on_call`. `on_call` and
    `on_alert` run in a thread, never two at once, and may block as the ledger may; with `on_loop` they run on the
    event loop, which saves a call the way there and back, and must not. `on_quota` is called on the event loop
    before a client is refused for want of quota. The upstreams belong to the caller; `providers` knows who is down
    and is best shared. `calls` has what an earlier life of the attempt was answered and keeps what this one is;
    `token` is what it was made with.
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
        on_quota: Callable[[QuotaRest], None] = _unheard,
        on_loop: bool = False,
        call_seconds: float = 600.0,
        quiet_seconds: float = QUIET_SECONDS,
        retries: int = 3,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        redact: Callable[[str], str] = _as_is,
        limits: HttpLimits | None = None,
        providers: Providers | None = None,
        calls: CallLog | None = None,
        token: str = "",
    ) -> None:
        self.token = token or new_token()
        self._shelf = None if calls is None else Shelf(calls)
        self._models = tuple(models)
        self._clock = clock or SystemClock()
        self._desk = Desk(
            ledger,
            self._clock,
            attempt=attempt,
            on_call=on_call,
            on_alert=on_alert,
            on_quota=on_quota,
            on_loop=on_loop,
        )
        self._attempt = attempt
        self._turns: dict[Operation, int] = {"reply": first_turn, "count": 1, "embed": 1}
        self._bares = 0
        self._providers = providers or Providers(clock=self._clock)
        self._call_seconds = call_seconds
        self._quiet_seconds = quiet_seconds
        self._retries = retries
        self._sleep = sleep
        self._redact = redact
        self._revoked = False
        self._running: dict[Chain | Replayed, asyncio.Task[Any] | None] = {}
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
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_unix_server(self._http.protocol, sock=listener, backlog=_BACKLOG))

    async def listen_tcp(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen on TCP and return the port; raises `InfrastructureError` (`gateway_socket`)."""
        try:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(self._http.protocol, host, port, backlog=_BACKLOG)
        except OSError as error:
            raise _unlistenable(f"{host}:{port}", error) from error
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def revoke(self) -> None:
        """Make the token worthless: running streams end in an error event, later calls get a 401."""
        self._revoked = True
        for running in self._running:
            running.cut(_revoked())

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
        if self._shelf is not None:
            self._shelf.close()
        await self._desk.close()

    async def _handle(self, request: HttpRequest, answer: HttpAnswer) -> None:
        try:
            self._check_token(request)
            asked = await self._answerable(request, answer)
        except GatewayFault as fault:
            body = _refused(request.path, fault.status, fault.message, code=fault.code)
            await answer.send(fault.status, JSON_HEADERS, body)
            return
        if isinstance(asked, bytes):
            await answer.send(200, JSON_HEADERS, b"" if request.method == "HEAD" else asked)
            return
        self._running[asked] = asyncio.current_task()
        try:
            await asked.run()
        finally:
            del self._running[asked]

    async def _answerable(self, request: HttpRequest, answer: HttpAnswer) -> Chain | Replayed | bytes:
        found = self._routed(request)
        if isinstance(found, bytes):
            return found
        if found.operation == "count":
            return await self._counted(found, request)
        orders = self._orders(found, request)
        if self._shelf is not None:
            return await self._answered_before(self._shelf, orders, request, answer)
        return self._chain(orders, answer)

    async def _answered_before(
        self, shelf: Shelf, orders: list[Order], request: HttpRequest, answer: HttpAnswer
    ) -> Chain | Replayed:
        """Return who gives again what an earlier life was answered, else who asks and keeps the answer."""
        first = orders[0]
        tape = Tape(
            dialect=first.rules.name, operation=first.operation, body=first.body, turn=first.turn, shelf=shelf
        )
        kept = await shelf.look(tape)
        if kept is not None:
            return Replayed(shelf.calls, kept, answer, self._desk, turn=first.turn, bare=first.bare)
        if request.headers.get(ONLY_KEPT) == "only":
            self._turns[first.operation] -= 1  # it is asked again, and that is the turn
            self._bares -= first.bare
            raise GatewayFault("not_kept", "no reply to this request is kept, and no model is asked")
        return self._chain([replace(order, tape=tape) for order in orders], answer)

    def _chain(self, orders: list[Order], answer: HttpAnswer) -> Chain:
        return Chain(
            orders,
            answer,
            self._desk,
            retries=lambda count: Retries(self._retries if count is None else count, self._clock, self._sleep),
            redact=self._redact,
            sleep=self._sleep,
        )

    def _check_token(self, request: HttpRequest) -> None:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = [bearer.strip() if scheme.lower() == "bearer" else ""]
        given += [request.headers.get(name, "") for name in ("x-api-key", "x-goog-api-key")]
        right = [hmac.compare_digest(token.encode(), self.token.encode()) for token in given]
        if not any(right):
            raise GatewayFault("token_invalid", "this token is not the one of this gateway")
        if self._revoked:
            raise _revoked()

    def _routed(self, request: HttpRequest) -> bytes | Route:
        if short(request.path) == "/models":
            if request.method not in ("GET", "HEAD"):
                raise GatewayFault("method_not_allowed", f"{request.path} takes only GET")
            return (listed_gemini if dialect_at(request.path) == "gemini" else listed)(self._models)
        route = route_of(request.path)
        if route is None:
            raise no_endpoint(request.path)
        if request.method != "POST":
            raise GatewayFault("method_not_allowed", f"{request.path} takes only POST")
        return route

    def _orders(self, route: Route, request: HttpRequest) -> list[Order]:
        """Return the request to each model that may answer it; raises `GatewayFault`."""
        given = {**_decoded(request), **route.named}
        chain = chain_of(self._models, route.dialect, given.get("model"))
        if route.operation == "reply":
            body = screened(route.dialect, given)
            takers = able(chain, route.dialect, body)
            rules: DialectRules = RULES[route.dialect]
            bare = is_bare(body)
        else:
            bare = False
            takers, rules = embedders(chain, route, given), EMBED_RULES[route.dialect]
        turn, bares = self._turns[route.operation], self._bares
        self._turns[route.operation] += 1
        self._bares += bare
        made = (self._order(taker, rules, route, request, turn, many=len(chain) > 1) for taker in takers)
        return [replace(order, bare=bare, bares=bares) for order in made]

    def _order(
        self,
        taker: Taker,
        rules: DialectRules,
        route: Route,
        request: HttpRequest,
        turn: int,
        *,
        many: bool,
    ) -> Order:
        served, body = taker.served, taker.body
        limit = rules.output_limit(body)
        most = DEFAULT_OUTPUT if served.max_output is None else served.max_output
        bound = Bound(
            input=input_bound(request.body, body),
            output=most if limit is None else min(limit, most),
            asked=limit is not None or served.max_output is not None,
            choices=rules.choices(body),
            hour_cache=b'"1h"' in request.body,
        )
        return Order(
            served=served,
            rules=rules,
            body=body,
            bound=bound,
            turn=turn,
            seconds=self._call_seconds,
            quiet=self._quiet_seconds,
            headers=_passed(request.headers),
            operation=route.operation,
            upstream=_upstream(served, route),
            standing=self._providers.of(served.provider) if served.provider else None,
            shown=_told(taker, many=many),
            skipped=taker.skipped,
            converted=taker.converted,
        )

    async def _counted(self, route: Route, request: HttpRequest) -> bytes:
        """Count the tokens of a request, by its provider where that can, else by its bytes; it costs nothing."""
        given = {**_decoded(request), **route.named}
        served = chain_of(self._models, route.dialect, given.get("model"))[0]
        body = {**screened(route.dialect, given), "model": served.model, "stream": False}
        turn = self._turns["count"]
        self._turns["count"] += 1
        if served.dialect == route.dialect:
            body.pop("stream")
            call = Call(
                id=new_id("call"),
                dialect=route.dialect,
                body=body,
                attempt=self._attempt,
                turn=turn,
                seconds=_COUNT_SECONDS,
                headers=_passed(request.headers),
                operation="count",
            )
            found = await asked_count(served.upstream, call)
            if found is not None:
                return found
        return counted(route.dialect, estimate(body))


def new_token() -> str:
    """Return a token that nobody guesses."""
    return f"cht-{secrets.token_urlsafe(32)}"


def _upstream(served: ServedModel, route: Route) -> Upstream:
    if route.operation == "embed":
        return embedding_upstream(served, route.dialect)
    if served.dialect == route.dialect:
        return served.upstream
    return TranslatingUpstream(served.upstream, served.dialect)


def _told(taker: Taker, *, many: bool) -> dict[str, str]:
    """Return what the client is told of who answers, and of what was done to its request."""
    shown = {"x-chargehand-converted": str(len(taker.converted))} if taker.converted else {}
    if taker.skipped:
        shown["x-chargehand-skipped"] = str(len(taker.skipped))
    return {**shown, "x-chargehand-model": _ascii(taker.served.name)} if many else shown


def _ascii(name: str) -> str:
    return name.encode("ascii", "replace").decode()


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
    return RULES[dialect_at(path)].error(status, code or CODES.get(status, "gateway_error"), message)


def _revoked() -> GatewayFault:
    return GatewayFault("token_revoked", "the token of this attempt is revoked: its agent is to stop")


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
