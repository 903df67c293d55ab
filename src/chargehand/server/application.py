"""The application: the routes of the table, sessions, the live feed, health, and the dashboard's files."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as HttpRoute
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from chargehand.app.composition import App
from chargehand.core.codec import decode_as
from chargehand.core.errors import ChargehandError, InfrastructureError, NotFoundError, UsageError
from chargehand.identity.accounts import Caller, require_access
from chargehand.identity.documents import EndedSessionDocument
from chargehand.identity.providers import ConfiguredProvider, open_providers
from chargehand.operations.operation import PREFIX, Accepted, FeedQuery, Operation, name_revision, read_arguments
from chargehand.operations.table import OPERATIONS
from chargehand.server._access_lines import ACCOUNT, AccessLines
from chargehand.server._feed import EventFeed, FeedFilter
from chargehand.server._guard import CallerLimits, Hosts, RequestGuard
from chargehand.server._idempotency import KeyedReply, KeyedRequests
from chargehand.server._metrics import Metrics
from chargehand.server._pages import Pages
from chargehand.server._passkeys import PasskeyRoutes
from chargehand.server._places import Places
from chargehand.server._responses import (
    COMPRESSION_LEVEL,
    LEAST_COMPRESSED_BYTES,
    KnownAnswers,
    document_response,
    error_response,
    reply_response,
)
from chargehand.server._rights import RightsWatch
from chargehand.server._sessions import Sessions, name_network
from chargehand.server._sign_in import SignInRoutes
from chargehand.server._terminal import TerminalSockets
from chargehand.server.openapi import openapi_document

_T = TypeVar("_T")
_LOG = logging.getLogger("chargehand.server")
PAGES = Path(__file__).parent / "pages"
_LARGEST_BODY_BYTES = 1 << 20
_LARGEST_HOOK_BYTES = 8 << 20
# The limit for sending a body. For a login it is shorter: strangers who send slowly must not hold all connections.
_BODY_SECONDS = 60.0
_LOGIN_BODY_SECONDS = 10.0
# Separate threads for requests that read and for those that change something: a change may wait for a worker, and
# must not delay pages.
_READER_THREADS = 8
_WRITER_THREADS = 8
# Authentication and redeeming a login link are short, and wait for no other work. Checking a password takes 0.3 s
# of a core and 64 MiB. Costly work is done one request at a time.
_ENTRY_THREADS = 4
_PASSWORD_THREADS = 2
_COSTLY_THREADS = 1
# Below the web server's own limit of concurrent requests, so that `/health` and logins are always answered.
_MOST_REQUESTS = 1000
_MOST_REQUESTS_OF_ACCOUNT = 300
_MOST_STREAMS_OF_ACCOUNT = 250
_MOST_LOGINS = 200
_MOST_LOGINS_OF_ADDRESS = 50
_MOST_COSTLY = 2
# The key of a request's scope for the functions that give its places back.
_HELD = "chargehand.held"
FORM = "application/x-www-form-urlencoded"
# Tracebacks stored for one fault location: three, then one in ten minutes.
_FAULT_BURST, _FAULTS_PER_SECOND = 3.0, 1 / 600
# How long a client waits for work that may take minutes, such as a verdict.
_WAIT_SECONDS = 20.0
KeepTraceback = Callable[[Exception], str]
"""Writes a traceback to a file and returns its path, "" if that failed."""


def _answer_errors(endpoint: Callable[[ChargehandServer, Request], Awaitable[Response]]) -> Any:
    """Return an endpoint of the server that answers errors as the routes of the table do."""

    @functools.wraps(endpoint)
    async def answer(server: ChargehandServer, request: Request) -> Response:
        return await server.answer_safely(lambda: endpoint(server, request))

    return answer


class _AnyPath(PathConvertor):
    """The rest of a path with line breaks: Starlette's convertor rejects such an address, and not in JSON."""

    regex = r"[\s\S]*"


register_url_convertor("path", _AnyPath())


class ChargehandServer:
    """Answers requests on one state directory; `application` is the ASGI application for a web server."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        cwd: Path,
        hosts: Hosts,
        keep_traceback: KeepTraceback = lambda error: "",
        pages: Path = PAGES,
        sign_in: Sequence[ConfiguredProvider] | None = None,
    ) -> None:
        self._environ = environ
        self._cwd = cwd
        self._keep_traceback = keep_traceback
        # All requests that only read share this one: opening the store costs more than most reads.
        self._shared = App(environ=environ, cwd=cwd)
        self._shared.keeps_missions = True
        self._feed = EventFeed(self._shared)
        self._rights = RightsWatch(self._shared, on_change=self._feed.check_rights)
        configured = self._shared.user_configuration().config
        has_passwords = configured.server.passwords
        self._sessions = Sessions(
            self._shared, has_passwords=has_passwords, factor_from=configured.server.second_factor
        )
        self._faults = CallerLimits(burst=_FAULT_BURST, per_second=_FAULTS_PER_SECOND)
        self._requests = Places("requests", per_account=_MOST_REQUESTS_OF_ACCOUNT, total=_MOST_REQUESTS)
        self._streams = Places("event streams", per_account=_MOST_STREAMS_OF_ACCOUNT, total=_MOST_REQUESTS)
        self._logins = Places("logins", per_account=_MOST_LOGINS_OF_ADDRESS, total=_MOST_LOGINS)
        self._work = Places("pieces of costly work", per_account=1, total=_MOST_COSTLY)
        self._answers = KnownAnswers()
        self._metrics = Metrics(self._shared)
        self._readers = ThreadPoolExecutor(_READER_THREADS, thread_name_prefix="read")
        self._writers = ThreadPoolExecutor(_WRITER_THREADS, thread_name_prefix="change")
        self._entry = ThreadPoolExecutor(_ENTRY_THREADS, thread_name_prefix="entry")
        self._passwords = ThreadPoolExecutor(_PASSWORD_THREADS, thread_name_prefix="password")
        self._costly = ThreadPoolExecutor(_COSTLY_THREADS, thread_name_prefix="costly")
        self._working: dict[str, asyncio.Task[Any]] = {}
        self._keyed = KeyedRequests(lambda: self._shared.store.idempotency)
        providers = open_providers(configured.sign_in, self._shared.credentials) if sign_in is None else sign_in
        self._sign_in = SignInRoutes(self._shared, providers, hosts) if providers else None
        self._passkeys = PasskeyRoutes(self._shared, self._sessions, hosts)
        self._terminals = TerminalSockets(
            self._shared, authorise=self._authorise, in_thread=self._in_thread, rights=self._rights
        )
        routes = self._routes(Pages(pages, providers, passwords=has_passwords))
        zipped = GZipMiddleware(
            _give_places_back(Starlette(routes=routes, lifespan=self._lifespan)),
            minimum_size=LEAST_COMPRESSED_BYTES,
            compresslevel=COMPRESSION_LEVEL,
        )
        guarded = RequestGuard(zipped, hosts=hosts)
        self.application: ASGIApp = AccessLines(
            guarded, templates={route.endpoint: route.path for route in routes}
        )

    def _routes(self, pages: Pages) -> list[HttpRoute | WebSocketRoute]:
        return [
            *(
                HttpRoute(
                    PREFIX + route.pattern, functools.partial(self.answer_route, route), methods=[route.method]
                )
                for route in OPERATIONS
            ),
            *self._sign_in_routes(),
            HttpRoute(f"{PREFIX}/session", self.log_in, methods=["POST"]),
            HttpRoute(f"{PREFIX}/session", self.log_out, methods=["DELETE"]),
            HttpRoute(f"{PREFIX}/forges/{{forge}}/hook", self.receive_hook, methods=["POST"]),
            HttpRoute(f"{PREFIX}/events", self.follow_events, methods=["GET"]),
            WebSocketRoute(f"{PREFIX}/missions/{{mission}}/terminal", self._terminals.serve),
            HttpRoute(
                f"{PREFIX}/{{rest:path}}", refuse_unknown, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]
            ),
            HttpRoute("/health", show_health, methods=["GET"]),
            HttpRoute("/ready", self.show_readiness, methods=["GET"]),
            HttpRoute("/metrics", self.show_metrics, methods=["GET"]),
            HttpRoute("/openapi.json", self.show_openapi, methods=["GET"]),
            HttpRoute("/{path:path}", pages.serve, methods=["GET"]),
        ]

    def _sign_in_routes(self) -> Iterator[HttpRoute]:
        for method, path, work in (*self._passkeys.routes, *(self._sign_in.routes if self._sign_in else ())):
            yield HttpRoute(path, functools.partial(self.answer_sign_in, work), methods=[method])

    @contextlib.asynccontextmanager
    async def _lifespan(self, application: Starlette) -> AsyncIterator[None]:
        following = [asyncio.create_task(each.run()) for each in (self._feed, self._rights)]
        try:
            yield
        finally:
            for each in following:
                each.cancel()
            # A promotion is interrupted safely: its journal shows the next server how far it got.
            for task in self._working.values():
                task.cancel()
            await asyncio.gather(*following, *self._working.values(), self._keyed.close(), return_exceptions=True)
            for threads in (self._readers, self._writers, self._entry, self._passwords, self._costly):
                threads.shutdown(wait=True)
            self._shared.close()

    async def end_streams(self) -> None:
        """End every open stream, so that a stopping server does not wait for them."""
        self._feed.close()
        await self._terminals.close()

    # --- routes of the table

    async def answer_route(self, route: Operation, request: Request) -> Response:
        """Answer a request for a route of the table, and count it."""
        began = time.monotonic()
        response = await self.answer_safely(lambda: self._call(route, request))
        self._metrics.note_request(route.name, response.status_code, time.monotonic() - began)
        return response

    async def answer_safely(self, work: Callable[[], Awaitable[Response]]) -> Response:
        """Do the work of a request; every failure is answered as one of our errors, never as a traceback."""
        try:
            return await work()
        except ChargehandError as error:
            return error_response(error)
        except Exception as error:  # the boundary: the client learns that an error occurred, without details
            # One fault location fills neither the log nor the directory of tracebacks, however often it occurs.
            if self._faults.of(_place_of(error)).try_take():
                _LOG.exception("request failed")
                kept = await asyncio.to_thread(self._keep_traceback, error)
                _LOG.error("the traceback %s", f"was saved to {kept}" if kept else "could not be saved")
            # The client may be a stranger: the path of the state directory appears only in the log.
            hint = "the server's log has the traceback under the X-Request-Id of this answer"
            message = f"something in Chargehand itself went wrong: {type(error).__name__}"
            return error_response(InfrastructureError(message, code="internal", hint=hint))

    async def _call(self, route: Operation, request: Request) -> Response:
        caller = await self._enter(request, route.action)
        if route.is_costly:
            self._hold(request, self._work, caller)
        if route.method == "GET":
            return await self._in_thread(
                lambda: self._read(route, request, caller), self._costly if route.is_costly else None
            )
        body = await _read_body(request)
        if route.method == "PUT" and (tag := request.headers.get("if-match", "")):
            body = name_revision(body, tag)
        call = read_arguments(
            route.takes, path=request.path_params, query=request.query_params.multi_items(), body=body
        )
        if key := request.headers.get("idempotency-key", ""):
            return await self._call_once(route, call, caller, key)
        if not route.may_take_long:
            return document_response(await self._change(route, call, caller), status=route.status)
        # A separate task: a client that leaves cancels its request, but never a promotion half-way. A client that
        # sends the same request while the work continues joins it.
        work = f"{route.name} {call!r}"
        task = self._working.get(work)
        if task is None:
            task = self._working[work] = asyncio.create_task(self._change(route, call, caller))
            task.add_done_callback(functools.partial(self._forget_work, work))
        if not await _is_done_soon(task):
            return document_response(Accepted(), status=202)
        return document_response(task.result(), status=route.status)

    def _read(self, route: Operation, request: Request, caller: Caller) -> Response:
        call = read_arguments(
            route.takes, path=request.path_params, query=request.query_params.multi_items(), body={}
        )
        result = route.call(self._shared, call, caller)
        known = request.headers.get("if-none-match", "")
        gzipped = "gzip" in request.headers.get("accept-encoding", "")
        return document_response(result, status=route.status, known=known, gzipped=gzipped, answers=self._answers)

    async def _call_once(self, route: Operation, call: Any, caller: Caller, key: str) -> Response:
        """Answer a request with a key: its work is done at most once, and a refusal is an answer too."""

        async def work() -> KeyedReply:
            try:
                response = document_response(await self._change(route, call, caller), status=route.status)
            except ChargehandError as error:
                response = error_response(error)
            exit_code = response.headers.get("chargehand-exit-code", "")
            return KeyedReply(response.status_code, bytes(response.body), exit_code)

        task = self._keyed.begin(
            key, user=caller.user, asked=f"{route.name} {call!r}", is_secret=route.is_secret, work=work
        )
        if not await _is_done_soon(task):
            return document_response(Accepted(), status=202)
        return reply_response(*task.result())

    async def _change(self, route: Operation, call: Any, caller: Caller) -> Any:
        """Do the work of a route that changes something, with an `App` for its caller."""

        def work() -> Any:
            with contextlib.closing(self._app(caller)) as app:
                return route.call(app, call, caller)

        if not route.may_take_long:
            return await self._in_thread(work, self._costly if route.is_costly else self._writers)
        with contextlib.closing(self._app(caller)) as app:
            return await route.call(app, call, caller)

    def _forget_work(self, work: str, task: asyncio.Task[Any]) -> None:
        self._working.pop(work, None)
        if not task.cancelled():
            task.exception()  # asyncio warns about an error that is never retrieved, and the client may have left

    def _app(self, caller: Caller) -> App:
        own = caller.user == self._shared.identity()
        actor = "" if own else f"account:{caller.user}"
        # The server starts no worker for a request: it already runs one, unless a person chose `--no-worker`.
        return App(environ=self._environ, cwd=self._cwd, actor=actor, starts_workers=False)

    def _authorise(self, request: HTTPConnection, action: str) -> Caller:
        """Return the caller, if they may do this; no other part of the request was read before."""
        caller = self._sessions.authenticate(request)
        request.scope[ACCOUNT] = caller.user
        require_access(self._shared, caller, action, request.path_params.get("mission", ""))
        return caller

    async def _enter(self, request: HTTPConnection, action: str) -> Caller:
        """Return the caller, if they may do this; the request holds one of their places until it is answered."""
        caller = await self._in_thread(lambda: self._authorise(request, action), self._entry)
        self._hold(request, self._requests, caller)
        return caller

    def _hold(self, request: HTTPConnection, places: Places, caller: Caller) -> None:
        request.scope[_HELD].append(places.take(caller.user))

    async def _in_thread(self, work: Callable[[], _T], threads: ThreadPoolExecutor | None = None) -> _T:
        def finish() -> _T:
            try:
                return work()
            except StopIteration as error:  # a future does not accept this exception: the request would never end
                raise RuntimeError("an iterator ended early") from error

        # The thread runs in the context of the request, so that its log lines carry the request's id.
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(threads or self._readers, context.run, finish)

    # --- sessions, feed, readiness

    @_answer_errors
    async def log_in(self, request: Request) -> Response:
        """Open a session."""
        # Strangers who send slowly, or many passwords at once, take no places from others.
        request.scope[_HELD].append(self._logins.take(name_network(request)))
        body = await _read_body(request, within=_LOGIN_BODY_SECONDS)
        threads = self._entry if "code" in body else self._passwords
        return await self._in_thread(lambda: self._sessions.log_in(request, body), threads)

    async def answer_sign_in(
        self, work: Callable[[Request, dict[str, Any]], Response], request: Request
    ) -> Response:
        """Answer a step of a sign-in by a provider or passkey, in the threads and the places of logins."""

        async def enter() -> Response:
            request.scope[_HELD].append(self._logins.take(name_network(request)))
            body = await _read_sign_in_body(request)
            return await self._in_thread(lambda: work(request, body), self._passwords)

        return await self.answer_safely(enter)

    @_answer_errors
    async def receive_hook(self, request: Request) -> Response:
        """Take a webhook of a forge, whose signature proves its origin."""
        # Anyone can send to this address: the places of strangers, as for logins.
        request.scope[_HELD].append(self._logins.take(name_network(request)))
        body = await _read_raw(request, within=_LOGIN_BODY_SECONDS, most=_LARGEST_HOOK_BYTES)

        def work() -> Response:
            from chargehand.app.forges import receive_hook

            headers = dict(request.headers)
            return document_response(receive_hook(self._shared, request.path_params["forge"], headers, body))

        return await self._in_thread(work, self._entry)

    @_answer_errors
    async def log_out(self, request: Request) -> Response:
        """End the caller's session."""
        caller = await self._enter(request, "session.close")

        def work() -> Response:
            issuer = self._sessions.log_out(request, caller)
            url = self._sign_in.end_session_url(request, issuer) if issuer and self._sign_in is not None else None
            return Response(status_code=204) if url is None else document_response(EndedSessionDocument(url=url))

        return await self._in_thread(work)

    @_answer_errors
    async def follow_events(self, request: Request) -> Response:
        """Stream the lines of all logs as server-sent events."""
        caller = await self._enter(request, "event.follow")
        self._hold(request, self._streams, caller)
        call = read_arguments(FeedQuery, path={}, query=request.query_params.multi_items(), body={})
        last = request.headers.get("last-event-id", "")
        after = int(last) if last.isascii() and last.isdecimal() and len(last) < 17 else call.after

        def read_filter() -> FeedFilter:
            store = self._shared.store
            return FeedFilter(
                mission=None if call.mission is None else store.log.find(call.mission),
                project=None if call.project is None else store.projects.find(call.project).id,
                types=frozenset(call.types),
            )

        async def is_valid() -> bool:
            with contextlib.suppress(ChargehandError):
                await self._in_thread(lambda: self._authorise(request, "event.follow"), self._entry)
                return True
            return False

        wanted = await self._in_thread(read_filter)

        async def frames() -> AsyncIterator[bytes]:
            with self._rights.watching():
                async for frame in self._feed.follow(after, wanted, is_valid=is_valid):
                    yield frame

        headers = {"X-Accel-Buffering": "no", "Content-Encoding": "identity"}
        return StreamingResponse(frames(), media_type="text/event-stream", headers=headers)

    @_answer_errors
    async def show_readiness(self, request: Request) -> Response:
        """Answer once the store can be read."""
        await self._in_thread(self._shared.store.log.last_position)
        return document_response({"status": "ready"})

    @_answer_errors
    async def show_metrics(self, request: Request) -> Response:
        """Return the metrics for Prometheus."""
        await self._enter(request, "system.show")
        content = await self._in_thread(self._metrics.render)
        return Response(content, media_type="text/plain; version=0.0.4; charset=utf-8")

    @_answer_errors
    async def show_openapi(self, request: Request) -> Response:
        """Return the OpenAPI document."""
        return document_response(openapi_document(), known=request.headers.get("if-none-match", ""))


def _give_places_back(application: ASGIApp) -> ASGIApp:
    """Wrap the application to give back a request's places once it is answered, or its client has left."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        held: list[Callable[[], None]] = []
        scope[_HELD] = held
        try:
            await application(scope, receive, send)
        finally:
            for give_back in held:
                give_back()

    return serve


def _place_of(error: Exception) -> str:
    """Return the location of a fault: its type, file and line."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return " ".join([type(error).__name__, *(f"{each.filename}:{each.lineno}" for each in last)])


async def show_health(request: Request) -> Response:
    """Answer as long as the server runs, whatever the state of the store."""
    return document_response({"status": "ok"})


async def refuse_unknown(request: Request) -> Response:
    """Answer an address below `PREFIX` without a route."""
    path = request.url.path
    return error_response(
        NotFoundError(f"there is no {request.method} {path}", code="no_route", hint="see /openapi.json")
    )


async def _is_done_soon(task: asyncio.Task[Any]) -> bool:
    """Wait for work at most as long as a client waits; the work continues if the client leaves."""
    # Awaiting the task itself would cancel it together with this request; `wait` leaves it running.
    await asyncio.wait({task}, timeout=_WAIT_SECONDS)
    return task.done()


async def _read_raw(request: Request, *, within: float, most: int) -> bytes:
    """Return a body of at most `most` bytes. Raises `UsageError` (`arguments_invalid`)."""
    content = b""
    try:
        async with asyncio.timeout(within):
            async for piece in request.stream():
                content += piece
                if len(content) > most:
                    message = f"the body has more than {most >> 20} MiB"
                    raise UsageError(message, code="arguments_invalid", hint="send less")
    except (ClientDisconnect, TimeoutError) as error:  # the client left, or stopped sending
        raise UsageError(
            f"the body did not arrive within {within:g} s", code="arguments_invalid", hint="send it again"
        ) from error
    return content


async def _read_sign_in_body(request: Request) -> dict[str, Any]:
    """Return the fields of a JSON object or, as providers send a logout token, of a form."""
    if request.method != "POST":
        return {}
    is_form = request.headers.get("content-type", "").partition(";")[0].strip().lower() == FORM
    # Only the logout token, which is signed: another site's page can send a form.
    if is_form and request.url.path.endswith("/logout"):
        content = await _read_raw(request, within=_LOGIN_BODY_SECONDS, most=_LARGEST_BODY_BYTES)
        try:
            return dict(parse_qsl(content.decode("ascii", "replace"), max_num_fields=20))
        except ValueError as error:
            raise UsageError("the form has too many fields", code="arguments_invalid") from error
    return await _read_body(request, within=_LOGIN_BODY_SECONDS)


async def _read_body(request: Request, *, within: float = _BODY_SECONDS) -> dict[str, Any]:
    """Return a JSON object of at most 1 MiB. Raises `UsageError` (`arguments_invalid`)."""
    content = await _read_raw(request, within=within, most=_LARGEST_BODY_BYTES)
    if not content:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # A page of another site can submit a form without a preflight request; JSON it cannot.
        raise UsageError(f"the body is {kind!r}", code="arguments_invalid", hint="send application/json")
    try:
        return decode_as(content, dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(
            f"the body is not a JSON object: {error}", code="arguments_invalid", hint="send a JSON object"
        ) from error
