"""The application: routes from their table, sessions, the live feed, health, and the dashboard's files."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as HttpRoute
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp

from chargehand.app.accounts import Caller, require_access
from chargehand.app.composition import App
from chargehand.core.codec import decode_as
from chargehand.core.errors import ChargehandError, InfrastructureError, NotFoundError, UsageError
from chargehand.server._access_lines import ACCOUNT, AccessLines
from chargehand.server._feed import EventFeed, FeedFilter
from chargehand.server._guard import Hosts, RequestGuard
from chargehand.server._idempotency import KeyedReply, KeyedRequests
from chargehand.server._metrics import Metrics
from chargehand.server._pages import Pages
from chargehand.server._responses import (
    COMPRESSION,
    LEAST_COMPRESSED,
    KnownAnswers,
    document_response,
    error_response,
    reply_response,
)
from chargehand.server._routes import PREFIX, Accepted, FeedQuery, Route, name_revision, read_arguments
from chargehand.server._sessions import Sessions
from chargehand.server._terminal import TerminalSockets
from chargehand.server.openapi import ROUTES, openapi_document

_T = TypeVar("_T")
_LOG = logging.getLogger("chargehand.server")
PAGES = Path(__file__).parent / "pages"
_LARGEST = 1 << 20
# How long a body may take; a login's not so long that strangers who send theirs slowly hold all connections.
_BODY_SECONDS, _LOGIN_BODY_SECONDS = 60.0, 10.0
# Threads that read at once, and that change something: what waits for a worker must not keep pages waiting.
_READERS, _WRITERS = 8, 8
# How long a client is kept waiting for work that may take minutes, such as a verdict.
_WAIT_SECONDS = 20.0
KeepTraceback = Callable[[Exception], str]
"""Writes a traceback to a file and returns its path, "" where it could not."""


class ChargehandServer:
    """Answers requests on one state directory; `application` is what a web server runs."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        cwd: Path,
        hosts: Hosts,
        keep_traceback: KeepTraceback = lambda error: "",
        pages: Path = PAGES,
    ) -> None:
        self._environ, self._cwd, self._keep_traceback = environ, cwd, keep_traceback
        # One for all who only read: opening the store costs more than most reads.
        self._shared = App(environ=environ, cwd=cwd)
        self._shared.keeps_missions = True
        self._feed = EventFeed(self._shared)
        self._sessions = Sessions(self._shared, hosts=hosts)
        self._pages = Pages(pages)
        self._answers = KnownAnswers()
        self._metrics = Metrics(self._shared)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="read")
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="change")
        self._working: dict[str, asyncio.Task[Any]] = {}
        self._keyed = KeyedRequests(lambda: self._shared.store.idempotency)
        self._terminals = TerminalSockets(self._shared, authorise=self._authorise, in_thread=self._in_thread)
        self.application = self._starlette(hosts)

    def _starlette(self, hosts: Hosts) -> ASGIApp:
        routes: list[HttpRoute | WebSocketRoute] = [
            HttpRoute(PREFIX + route.pattern, self._endpoint(route), methods=[route.method]) for route in ROUTES
        ]
        routes += [
            HttpRoute(f"{PREFIX}/session", self._log_in, methods=["POST"]),
            HttpRoute(f"{PREFIX}/session", self._log_out, methods=["DELETE"]),
            HttpRoute(f"{PREFIX}/events", self._follow, methods=["GET"]),
            WebSocketRoute(f"{PREFIX}/missions/{{mission}}/terminal", self._terminals.serve),
            HttpRoute(f"{PREFIX}/{{rest:path}}", self._unknown, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
            HttpRoute("/health", self._health, methods=["GET"]),
            HttpRoute("/ready", self._ready, methods=["GET"]),
            HttpRoute("/metrics", self._show_metrics, methods=["GET"]),
            HttpRoute("/openapi.json", self._openapi, methods=["GET"]),
            HttpRoute("/{path:path}", self._page, methods=["GET"]),
        ]
        zipped = GZipMiddleware(
            Starlette(routes=routes, lifespan=self._lifespan),
            minimum_size=LEAST_COMPRESSED,
            compresslevel=COMPRESSION,
        )
        guarded = RequestGuard(zipped, hosts=hosts)
        return AccessLines(guarded, templates={route.endpoint: route.path for route in routes})

    @contextlib.asynccontextmanager
    async def _lifespan(self, application: Starlette) -> AsyncIterator[None]:
        following = asyncio.create_task(self._feed.run())
        try:
            yield
        finally:
            following.cancel()
            # What is being promoted is broken off in good order: its journal tells the next one how far it came.
            for task in self._working.values():
                task.cancel()
            await asyncio.gather(following, *self._working.values(), self._keyed.close(), return_exceptions=True)
            self._readers.shutdown(wait=True)
            self._writers.shutdown(wait=True)
            self._shared.close()

    async def end_streams(self) -> None:
        """End every open stream, so that a server that stops waits for none."""
        self._feed.close()
        await self._terminals.close()

    # --- routes

    def _endpoint(self, route: Route) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            began = time.monotonic()
            response = await self._answer_safely(lambda: self._call(route, request))
            self._metrics.note_request(route.name, response.status_code, time.monotonic() - began)
            return response

        return answer

    async def _answer_safely(self, work: Callable[[], Any]) -> Response:
        """Do the work of a request; whatever goes wrong is one of our errors, never a traceback."""
        try:
            response: Response = await work()
        except ChargehandError as error:
            return error_response(error)
        except Exception as error:  # the boundary: a client is told that something went wrong, and nothing of how
            _LOG.exception("request failed")
            kept = await asyncio.to_thread(self._keep_traceback, error)
            hint = f"the traceback was saved to {kept}" if kept else "the traceback could not be saved"
            message = f"something in Chargehand itself went wrong: {type(error).__name__}"
            return error_response(InfrastructureError(message, code="internal", hint=hint))
        return response

    async def _call(self, route: Route, request: Request) -> Response:
        if route.method == "GET":
            return await self._in_thread(lambda: self._read(route, request))
        caller = await self._in_thread(lambda: self._authorise(request, route.action))
        body = await _read_body(request)
        if route.method == "PUT" and (tag := request.headers.get("if-match", "")):
            body = name_revision(body, tag)
        call = read_arguments(
            route.takes, path=request.path_params, query=request.query_params.multi_items(), body=body
        )
        if key := request.headers.get("idempotency-key", ""):
            return await self._call_once(route, call, caller, key)
        if route.may_take_long:
            # A task of its own: a client that goes away breaks its request off, and never a promotion half-way.
            task = self._join_work(f"{route.name} {call!r}", lambda: self._change(route, call, caller))
        else:
            return document_response(await self._change(route, call, caller), status=route.status)
        if not await _is_done_soon(task):
            return document_response(Accepted(), status=202)
        return document_response(task.result(), status=route.status)

    def _read(self, route: Route, request: Request) -> Response:
        caller = self._authorise(request, route.action)
        call = read_arguments(
            route.takes, path=request.path_params, query=request.query_params.multi_items(), body={}
        )
        result = route.call(self._shared, call, caller)
        known = request.headers.get("if-none-match", "")
        gzipped = "gzip" in request.headers.get("accept-encoding", "")
        return document_response(result, status=route.status, known=known, gzipped=gzipped, answers=self._answers)

    async def _call_once(self, route: Route, call: Any, caller: Caller, key: str) -> Response:
        """Answer a request that has a key: what it asks for is done at most once, and a refusal is an answer."""

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

    async def _change(self, route: Route, call: Any, caller: Caller) -> Any:
        """Do what a route that changes something does, with a state directory of its caller's own."""

        def work() -> Any:
            with contextlib.closing(self._app(caller)) as app:
                return route.call(app, call, caller)

        if not route.may_take_long:
            return await self._in_thread(work, self._writers)
        with contextlib.closing(self._app(caller)) as app:
            return await route.call(app, call, caller)

    def _join_work(self, key: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        """Return the work of this name that goes on, or begin it: who asks again joins it."""
        task = self._working.get(key)
        if task is None:
            task = self._working[key] = asyncio.create_task(work())
            task.add_done_callback(functools.partial(self._forget_work, key))
        return task

    def _forget_work(self, key: str, task: asyncio.Task[Any]) -> None:
        self._working.pop(key, None)
        if not task.cancelled():
            task.exception()  # where its client left, nobody else asks for it

    def _app(self, caller: Caller) -> App:
        own = caller.user == self._shared.identity()
        actor = "" if own else f"account:{caller.user}"
        # A worker runs beside the server, or somebody chose that none does.
        return App(environ=self._environ, cwd=self._cwd, actor=actor, starts_workers=False)

    def _authorise(self, request: HTTPConnection, action: str) -> Caller:
        """Return who calls, if they may do this; nothing else of the request was looked at before."""
        caller = self._sessions.authenticate(request)
        request.scope[ACCOUNT] = caller.user
        require_access(self._shared, caller, action, request.path_params.get("mission", ""))
        return caller

    async def _in_thread(self, work: Callable[[], _T], threads: ThreadPoolExecutor | None = None) -> _T:
        def finish() -> _T:
            try:
                return work()
            except StopIteration as error:  # no future takes it: the request would never end
                raise RuntimeError("an iterator ended early") from error

        # With the context of the request: what its thread logs is known as this request's.
        told = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(threads or self._readers, told.run, finish)

    # --- sessions, feed, health, pages

    async def _log_in(self, request: Request) -> Response:
        async def work() -> Response:
            body = await _read_body(request, within=_LOGIN_BODY_SECONDS)
            return await self._in_thread(lambda: self._sessions.log_in(request, body), self._writers)

        return await self._answer_safely(work)

    async def _log_out(self, request: Request) -> Response:
        async def work() -> Response:
            caller = await self._in_thread(lambda: self._authorise(request, "session.close"))
            return await self._in_thread(lambda: self._sessions.log_out(request, caller))

        return await self._answer_safely(work)

    async def _follow(self, request: Request) -> Response:
        async def work() -> Response:
            await self._in_thread(lambda: self._authorise(request, "event.follow"))
            call = read_arguments(FeedQuery, path={}, query=request.query_params.multi_items(), body={})
            last = request.headers.get("last-event-id", "")
            after = int(last) if last.isascii() and last.isdecimal() and len(last) < 17 else call.after

            def wanted() -> FeedFilter:
                log = self._shared.store
                return FeedFilter(
                    mission=None if call.mission is None else log.log.find(call.mission),
                    project=None if call.project is None else log.projects.find(call.project).id,
                    types=frozenset(call.types),
                )

            async def is_valid() -> bool:
                with contextlib.suppress(ChargehandError):
                    await self._in_thread(lambda: self._authorise(request, "event.follow"))
                    return True
                return False

            frames = self._feed.follow(after, await self._in_thread(wanted), is_valid=is_valid)
            headers = {"X-Accel-Buffering": "no", "Content-Encoding": "identity"}
            return StreamingResponse(frames, media_type="text/event-stream", headers=headers)

        return await self._answer_safely(work)

    async def _unknown(self, request: Request) -> Response:
        path = request.url.path
        return error_response(
            NotFoundError(f"there is no {request.method} {path}", code="no_route", hint="see /openapi.json")
        )

    async def _health(self, request: Request) -> Response:
        return document_response({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        async def work() -> Response:
            await self._in_thread(self._shared.store.log.last_position)
            return document_response({"status": "ready"})

        return await self._answer_safely(work)

    async def _show_metrics(self, request: Request) -> Response:
        async def work() -> Response:
            await self._in_thread(lambda: self._authorise(request, "system.show"))
            content = await self._in_thread(self._metrics.render)
            return Response(content, media_type="text/plain; version=0.0.4; charset=utf-8")

        return await self._answer_safely(work)

    async def _openapi(self, request: Request) -> Response:
        async def work() -> Response:
            return document_response(openapi_document(), known=request.headers.get("if-none-match", ""))

        return await self._answer_safely(work)

    async def _page(self, request: Request) -> Response:
        return self._pages.serve(request)


async def _is_done_soon(task: asyncio.Task[Any]) -> bool:
    """Wait for work as long as a client is kept waiting; it goes on where that leaves."""
    # `wait` leaves the task running where this request is cancelled; to await it would cancel it too.
    await asyncio.wait({task}, timeout=_WAIT_SECONDS)
    return task.done()


async def _read_body(request: Request, *, within: float = _BODY_SECONDS) -> dict[str, Any]:
    """Return a JSON object of at most 1 MiB. Raises `UsageError` (`arguments_invalid`)."""
    content = b""
    try:
        async with asyncio.timeout(within):
            async for piece in request.stream():
                content += piece
                if len(content) > _LARGEST:
                    raise UsageError("the body has more than 1 MiB", code="arguments_invalid", hint="send less")
    except (ClientDisconnect, TimeoutError) as error:  # it went away, or stopped sending: no fault of ours
        raise UsageError(
            f"the body did not come whole within {within:g} s", code="arguments_invalid", hint="send it again"
        ) from error
    if not content:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # A form of another site can be sent without asking us first; JSON cannot.
        raise UsageError(f"the body is {kind!r}", code="arguments_invalid", hint="send application/json")
    try:
        return decode_as(content, dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(
            f"the body is no JSON object: {error}", code="arguments_invalid", hint="send a JSON object"
        ) from error
