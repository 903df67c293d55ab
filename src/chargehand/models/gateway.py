"""The model gateway of one attempt: checks the token, finds the models and passes each request to them."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.clock import Clock, SystemClock
from chargehand.core.errors import InfrastructureError, UpstreamError
from chargehand.core.ids import new_id
from chargehand.core.ports import Ledger
from chargehand.models._json import as_mapping, as_tokens, parse_json
from chargehand.models.contract import (
    FAULT_STATUS,
    CallListeners,
    GatewayFault,
    HttpLimits,
    ModelCall,
    Operation,
    ServedModel,
    ToolService,
)
from chargehand.models.dialects.base import (
    EmbeddingsFormat,
    ModelDialect,
    RequestRoute,
    WireHeaders,
    estimate_tokens,
    is_bare,
)
from chargehand.models.http.server import HttpAnswer, HttpRequest, HttpServer
from chargehand.models.providers import QUIET_SECONDS, Providers, Retries
from chargehand.models.registries import DIALECTS
from chargehand.models.replay_cache import CachedReply, ReplayCache
from chargehand.models.requested_waits import RequestedWaits
from chargehand.models.serving.admission import RESERVE_SECONDS, BudgetAdmission
from chargehand.models.serving.cached import ONLY_KEPT, CachedReplyHandler, CacheEntry, CacheWorker
from chargehand.models.serving.counted_inputs import CountedInputs
from chargehand.models.serving.fallback import FallbackChain
from chargehand.models.serving.forwarding import find_reply_fault
from chargehand.models.serving.handler import UpstreamRequest
from chargehand.models.serving.headers import JSON_HEADERS
from chargehand.models.serving.routes import RequestRouter, shorten_path
from chargehand.network.unix_socket import bind_listener

# Short, because an estimate replaces the provider's count if it does not come in time.
_COUNT_SECONDS = 10.0
# Time to send the last error event of a running stream.
_CUT_SECONDS = 1.0
# Connecting to a unix socket fails at once if more connections than this wait.
_BACKLOG = 1_024
# A list of empty values takes 80 bytes of memory here for every two bytes sent, and blocks the event loop
# meanwhile.
_MOST_PIECES = 1_000_000
_KEY_HEADERS = tuple({dialect.key_header for dialect in DIALECTS.values()} - {"authorization"})
# The code of a refusal of which only the HTTP status is known, such as one by the HTTP server.
_CODES = {status: code for code, status in reversed(FAULT_STATUS.items())}


class ServedAttempt(Struct, frozen=True, kw_only=True):
    """The attempt that a gateway serves: its id, its ledger, and its position.

    Its first call is turn `first_turn`. `calls` holds the replies that an earlier life of the attempt got, and
    keeps those of this one; it was made with the same `token`. If `token` is empty, the gateway makes one.
    `tools` are offered to its programs at `/mcp`.
    """

    id: str
    ledger: Ledger
    first_turn: int = 1
    calls: ReplayCache | None = None
    token: str = ""
    tools: ToolService | None = None


class GatewayLimits(Struct, frozen=True, kw_only=True):
    """How long a gateway waits, and how often it retries.

    `call_seconds` bounds the wait for each piece of a reply, `reserve_seconds` the wait for budget that other
    calls hold. A provider with another model behind it is probed after `quiet_seconds` of silence.
    """

    call_seconds: float = 600.0
    reserve_seconds: float = RESERVE_SECONDS
    quiet_seconds: float = QUIET_SECONDS
    retries: int = 3
    http: HttpLimits = HttpLimits()


class Gateway:
    """The model endpoint of one attempt, on that attempt's own socket or on a loopback TCP port.

    Answers chat completions, messages, responses and Gemini's `generateContent`, counts of tokens, embeddings and
    `GET /v1/models`, with or without `/v1`, to every client that has `token`. If a model speaks another dialect
    than the request, the request is translated. The tools of the attempt answer at `/mcp`. The caller owns the
    upstreams. `providers` tracks which providers are down, and is best shared between gateways; `redact` removes
    secrets from the providers' error messages.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        attempt: ServedAttempt,
        listeners: CallListeners,
        *,
        limits: GatewayLimits | None = None,
        providers: Providers | None = None,
        redact: Callable[[str], str] = str,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.token = attempt.token or new_token()
        self._cache = None if attempt.calls is None else CacheWorker(attempt.calls)
        self._router = RequestRouter(models, DIALECTS)
        self._clock = clock or SystemClock()
        self._limits = limits or GatewayLimits()
        self._admission = BudgetAdmission(
            attempt.ledger,
            self._clock,
            attempt=attempt.id,
            listeners=listeners,
            reserve_seconds=self._limits.reserve_seconds,
        )
        self._attempt = attempt.id
        self._tools = attempt.tools
        # Separately for each operation: counting tokens between two replies must not move the turns of a script.
        self._turns: dict[Operation, int] = {"reply": attempt.first_turn, "count": 1, "embed": 1}
        self._bares = 0
        self._inputs = CountedInputs()
        self._providers = providers or Providers(clock=self._clock)
        self._sleep = sleep
        self._waits = RequestedWaits(DIALECTS, self._clock)
        self._redact = redact
        self._revoked = False
        self._running: dict[FallbackChain | CachedReplyHandler, asyncio.Task[Any] | None] = {}
        self._http = HttpServer(self._handle, self._write_refusal, limits=self._limits.http)
        self._servers: list[asyncio.Server] = []
        self._sockets: list[Path] = []

    async def __aenter__(self) -> Gateway:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def listen_unix(self, path: Path) -> None:
        """Listen on a unix socket of any path length; raises `InfrastructureError` (`gateway_socket`)."""
        try:
            listener = bind_listener(path)
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
        """Invalidate the token: running streams end in an error event, later calls get a 401."""
        self._revoked = True
        for running in self._running:
            running.cut(_revocation())

    async def close(self) -> None:
        """Revoke, cut every connection, and return after every call is settled. Idempotent."""
        self.revoke()
        for server in self._servers:
            server.close()
        self._servers.clear()
        running = [task for task in self._running.values() if task is not None]
        if running:
            # Time for a last error event: a connection that merely breaks looks like a fault worth a retry.
            await asyncio.wait(running, timeout=_CUT_SECONDS)
        await self._http.close()
        for path in self._sockets:
            path.unlink(missing_ok=True)
        self._sockets.clear()
        if self._cache is not None:
            self._cache.close()
        await self._admission.close()

    async def _handle(self, request: HttpRequest, answer: HttpAnswer) -> None:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = [bearer.strip() if scheme.lower() == "bearer" else ""]
        given += [request.headers.get(name, "") for name in _KEY_HEADERS]
        # All are compared, so that the time taken does not reveal which one is close.
        right = [hmac.compare_digest(token.encode(), self.token.encode()) for token in given]
        try:
            if not any(right):
                raise GatewayFault("token_invalid", "the token is not valid for this gateway")
            if self._revoked:
                raise _revocation()
            prepared = await self._prepare_answer(request, answer)
        except GatewayFault as fault:
            body = self._write_refusal(request.path, fault.status, fault.message, code=fault.code)
            await answer.send(fault.status, JSON_HEADERS, body)
            return
        if isinstance(prepared, bytes):
            # Only a notification to the tools has no reply: it is accepted.
            body = b"" if request.method == "HEAD" else prepared
            await answer.send(200 if prepared else 202, JSON_HEADERS, body)
            return
        # `revoke` cuts the requests registered here, and `close` waits for them.
        self._running[prepared] = asyncio.current_task()
        try:
            await prepared.run()
        finally:
            del self._running[prepared]

    def _write_refusal(self, path: str, status: int, message: str, *, code: str = "") -> bytes:
        """Return the body of a refusal in the dialect that belongs to `path`."""
        dialect = self._router.dialect_at(path)
        return dialect.write_error(status, code or _CODES.get(status, "gateway_error"), message)

    def _is_garbage(self, request: UpstreamRequest, cached: CachedReply) -> bool:
        """Return whether no client can read a kept reply, which would end its attempt again at each resumption."""
        assert self._cache is not None
        content, headers = self._cache.cache.body(cached), cached.headers
        return bool(find_reply_fault(request.rules, request.body, headers, content))

    async def _prepare_answer(
        self, request: HttpRequest, answer: HttpAnswer
    ) -> FallbackChain | CachedReplyHandler | bytes:
        """Return a whole answer, or the handler that gives it; raises `GatewayFault`."""
        if shorten_path(request.path) == "/mcp" and self._tools is not None:
            if request.method != "POST":  # there are no streams, and no sessions to end
                raise GatewayFault("method_not_allowed", f"{request.path} takes only POST")
            reply = await self._tools.answer(_decode_body(request))
            return b"" if reply is None else msgspec.json.encode(reply)
        if shorten_path(request.path) == "/models":
            if request.method not in ("GET", "HEAD"):
                raise GatewayFault("method_not_allowed", f"{request.path} takes only GET")
            names = dict.fromkeys(served.name for served in self._router.models)
            return self._router.dialect_at(request.path).write_model_list(names)
        route = self._router.find_route(request.path)
        if request.method != "POST":
            raise GatewayFault("method_not_allowed", f"{request.path} takes only POST")
        if route.operation == "count":
            return await self._count_tokens(route, request)
        requests = self._prepare_requests(route, request)
        if self._cache is not None:
            first = requests[0]
            entry = CacheEntry(
                dialect=first.rules.name,
                operation=first.operation,
                body=first.body,
                turn=first.turn,
                worker=self._cache,
            )
            cached = await self._cache.look_up(entry)
            if cached is not None and not self._is_garbage(first, cached):
                return CachedReplyHandler(
                    self._cache.cache, cached, answer, self._admission, turn=first.turn, bare=first.bare
                )
            if request.headers.get(ONLY_KEPT) == "only":
                # The client repeats the request without the header, and only that request counts as the turn.
                self._turns[first.operation] -= 1
                self._bares -= first.bare
                raise GatewayFault(
                    "not_kept", "no recorded reply to this request exists, and no model may be asked"
                )
            requests = [replace(one, entry=entry) for one in requests]
        return FallbackChain(
            requests,
            answer,
            self._admission,
            retries=lambda count: Retries(
                self._limits.retries if count is None else count, self._waits, self._sleep
            ),
            redact=self._redact,
            sleep=self._sleep,
        )

    def _prepare_requests(self, route: RequestRoute, request: HttpRequest) -> list[UpstreamRequest]:
        """Return the request to each model that may answer it; raises `GatewayFault`."""
        given = {**_decode_body(request), **route.named}
        chain = self._router.find_chain(route.dialect, given.get("model"))
        # Screened in the client's dialect, before anything is reserved, so that a refused request costs nothing.
        client = DIALECTS[route.dialect]
        rules: ModelDialect | EmbeddingsFormat
        rules = client if route.operation == "reply" else client.require_embeddings()
        body, left_out = rules.screen(given)
        headers = _screen_headers(request.headers)
        left_out = (*left_out, *headers.left_out)
        candidates = self._router.find_candidates(chain, route, body)
        bare = route.operation == "reply" and is_bare(body)
        # Requests for titles and summaries have their own count: their timing differs from run to run, and a
        # script or a recording finds the turn of the attempt's work without them.
        turn = self._turns[route.operation]
        bares = self._bares
        self._turns[route.operation] += 1
        self._bares += bare
        return [
            UpstreamRequest(
                served=one.served,
                rules=rules,
                body=one.body,
                bound=one.bound_use(rules, request.body, self._inputs),
                turn=turn,
                seconds=self._limits.call_seconds,
                quiet=self._limits.quiet_seconds,
                # In another dialect they would name versions and features that it does not know.
                headers=headers.kept if one.served.dialect == route.dialect else {},
                operation=route.operation,
                upstream=one.upstream,
                health=self._providers.of(one.served.provider, one.served.model) if one.served.provider else None,
                shown=one.describe(many=len(chain) > 1),
                skipped=one.skipped,
                converted=one.converted,
                left_out=left_out if one.served.dialect == route.dialect else (*left_out, *headers.features),
                bare=bare,
                bares=bares,
            )
            for one in candidates
        ]

    async def _count_tokens(self, route: RequestRoute, request: HttpRequest) -> bytes:
        """Count the tokens of a request at no cost, by its provider if it can count, otherwise by its bytes.

        So no budget is reserved for it, and no log lists it.
        """
        given = {**_decode_body(request), **route.named}
        dialect = DIALECTS[route.dialect]
        served = self._router.find_chain(route.dialect, given.get("model"))[0]
        body = {**dialect.screen(given).body, "model": served.model}
        body.pop("stream", None)
        turn = self._turns["count"]
        self._turns["count"] += 1
        if served.dialect == route.dialect:
            call = ModelCall(
                id=new_id("call"),
                dialect=route.dialect,
                body=body,
                attempt=self._attempt,
                turn=turn,
                seconds=_COUNT_SECONDS,
                headers=_screen_headers(request.headers).kept,
                operation="count",
            )
            # If the provider's own count fails for any reason, an estimate replaces it.
            with contextlib.suppress(UpstreamError, TimeoutError, ValueError):
                async with asyncio.timeout(call.seconds):
                    reply = await served.upstream.send(call)
                    found = await reply.read_all()
                known = as_tokens(as_mapping(parse_json(found)).get(dialect.count_field)) is not None
                if reply.status == 200 and known:
                    return found
        return dialect.write_count(estimate_tokens(body))


def new_token() -> str:
    """Return an unguessable token."""
    return f"cht-{secrets.token_urlsafe(32)}"


def _screen_headers(headers: Mapping[str, str]) -> WireHeaders:
    """Return the client headers to pass on; clients of one dialect may name features of another."""
    screened = [dialect.screen_headers(headers) for dialect in DIALECTS.values()]
    return WireHeaders(
        kept={name: value for one in screened for name, value in one.kept.items()},
        features=tuple(name for one in screened for name in one.features),
        left_out=tuple(dict.fromkeys(name for one in screened for name in one.left_out)),
    )


def _decode_body(request: HttpRequest) -> Mapping[str, Any]:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise GatewayFault("unsupported_encoding", f"request bodies must be plain, not {encoding!r:.50}")
    # Counted before decoding, since decoding takes the memory.
    if sum(map(request.body.count, (b"[", b"{", b","))) > _MOST_PIECES:
        raise GatewayFault("too_large", f"the request body has more than {_MOST_PIECES} values")
    try:
        body = msgspec.json.decode(request.body)
    except (ValueError, RecursionError) as error:
        raise GatewayFault("bad_request", f"the request body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise GatewayFault("bad_request", "the request body must be a JSON object")
    return body


def _revocation() -> GatewayFault:
    return GatewayFault("token_revoked", "the token of this attempt was revoked: its agent must stop")


def _unlistenable(place: str, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"the model gateway cannot listen on {place!r}: {error.strerror or error}",
        code="gateway_socket",
        hint="its directory must exist and be writable, and the name or port must be free",
    )
