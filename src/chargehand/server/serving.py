"""Serving: the listening socket, the accepted hosts, and the supervised components."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import ipaddress
import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from granian.constants import Interfaces
from granian.http import HTTP1Settings
from granian.net import SocketHolder  # type: ignore[attr-defined]  # not declared as public; see `_Granian`
from granian.server.embed import Server
from msgspec import Struct

from chargehand.app.worker import AWAY, engine_answers
from chargehand.core.codec import decode_as
from chargehand.core.errors import InfrastructureError, UsageError
from chargehand.identity.accounts import require_accounts
from chargehand.identity.providers import ConfiguredProvider, open_providers
from chargehand.reports.reading import StateReader, state_home
from chargehand.reports.statistics import export_traces, watch_alerts
from chargehand.server._guard import Hosts
from chargehand.server.application import ChargehandServer, KeepTraceback

_LOG = logging.getLogger("chargehand.server")
_BACKLOG_CONNECTIONS = 512
_MOST_REQUESTS = 2000
# The limit for sending the head of a request: strangers who send half of one hold no connection.
_HEAD_MILLISECONDS = 5000
# A worker that ends is restarted after the first delay, which doubles each time the worker lived for less than
# `_STEADY_SECONDS`.
_FIRST_DELAY_SECONDS = 0.5
_LONGEST_DELAY_SECONDS = 30.0
_STEADY_SECONDS = 60.0
_STOP_SECONDS = 30.0
# How long the server waits at its start for a database that starts at the same time.
_AWAY_SECONDS = 120.0
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?(:[0-9]{1,5})?|\[[0-9a-f:.]+\](:[0-9]{1,5})?", re.I)


class ServeOptions(Struct, frozen=True, kw_only=True):
    """The address to listen on, other accepted host `names`, trusted `proxies`, and whether a worker runs."""

    host: str = "127.0.0.1"
    port: int = 8642
    names: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    worker: bool = True
    slots: int = 5


class _Granian(Server):
    """Granian on an existing socket: its own would share a taken port, and cannot report its port."""

    def __init__(self, application: Any, listening: socket.socket) -> None:
        host, port = listening.getsockname()[:2]
        super().__init__(
            application,
            address=host,
            port=port,
            interface=Interfaces.ASGI,
            websockets=True,
            log_enabled=False,
            # Concurrent requests; the event stream of every open page counts as one.
            backpressure=_MOST_REQUESTS,
            http1_settings=HTTP1Settings(header_read_timeout=_HEAD_MILLISECONDS),
        )
        self._listening = listening

    def _init_shared_socket(self) -> None:
        # Granian's workers also make a holder from a descriptor, which its typed interface omits.
        self._ssp = None
        self._shd = SocketHolder(os.dup(self._listening.fileno()), False, _BACKLOG_CONNECTIONS)  # type: ignore[call-arg,assignment]


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises `UsageError` (`port_taken`, `listen_invalid`)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family)
    try:
        # Connections of a server that has just ended keep its port in TIME_WAIT; the next server may use it.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(_BACKLOG_CONNECTIONS)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {port} of {host} is taken by another program",
                code="port_taken",
                hint="if it is yours, `chargehand up --link` prints a new login link; else name another port",
            ) from error
        raise UsageError(
            f"cannot listen at {host}:{port}: {error.strerror or error}",
            code="listen_invalid",
            hint="name an address of this machine, such as 127.0.0.1",
        ) from error
    made.setblocking(False)
    return made


def open_server(reader: StateReader, options: ServeOptions) -> socket.socket:
    """Return the socket to serve on, after checking everything that could prevent serving.

    Raises `UsageError` (`port_taken`, `listen_invalid`, `accounts_needed`), `ConfigError`, `StoreError`.
    """
    reader.store.log.last_position()
    open_providers(reader.user_configuration().config.sign_in, reader.credentials)
    for name in options.names:
        if not _HOST.fullmatch(name):
            raise UsageError(
                f"--name: {name!r} is not a host name",
                code="listen_invalid",
                hint="give the host of the browser's address, such as chargehand.example.org, without https://",
            )
    listening = bind(options.host, options.port)
    try:
        hosts_of(listening, options.names, options.proxies)
        require_accounts(reader, options.host)
    except BaseException:
        listening.close()
        raise
    return listening


def url_at(host: str, port: int) -> str:
    """Return the address for a browser."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def hosts_of(listening: socket.socket, names: tuple[str, ...], proxies: tuple[str, ...] = ()) -> Hosts:
    """Return the accepted `Host` headers for this socket: with the port, as browsers send it.

    Raises `UsageError` (`listen_invalid`) for a proxy that is not an address.
    """
    try:
        trusted = frozenset(str(ipaddress.ip_address(each)) for each in proxies)
    except ValueError as error:
        raise UsageError(
            f"--proxy: {error}", code="listen_invalid", hint="give the proxy's address, such as 127.0.0.1"
        ) from error
    host, port = listening.getsockname()[:2]
    names = tuple(name.lower() for name in names)  # as browsers send them
    shown = f"[{host}]" if ":" in host else host
    own = {
        f"{each}:{port}" for each in (shown, "localhost", "127.0.0.1", "[::1]", *(name.lower() for name in names))
    }
    # A proxy in front forwards the name that browsers request, without the port of TLS.
    return Hosts(own=frozenset(own), proxied=frozenset(names), trusted=trusted)


async def serve(
    options: ServeOptions,
    listening: socket.socket,
    *,
    environ: Mapping[str, str],
    cwd: Path,
    on_signal: Callable[[Callable[[], bool]], None],
    announce: Callable[[], None],
    keep_traceback: KeepTraceback,
    sign_in: Sequence[ConfiguredProvider] | None = None,
) -> None:
    """Serve until a signal; `announce` is called once requests are answered.

    `on_signal` gets the function that a signal has to call for a clean end; it returns whether the server will
    end.
    """
    hosts = hosts_of(listening, options.names, options.proxies)
    server = ChargehandServer(
        environ=environ, cwd=cwd, hosts=hosts, keep_traceback=keep_traceback, sign_in=sign_in
    )
    granian = _Granian(server.application, listening)
    ended = asyncio.Event()

    def end() -> bool:
        ended.set()
        return True

    on_signal(end)
    serving = asyncio.create_task(granian.serve())
    answering = asyncio.create_task(_wait_until_answered(listening))
    waiting = asyncio.create_task(ended.wait())
    components = [
        asyncio.create_task(_supervise(name, work, environ, cwd))
        for name, work in (("alerts", watch_alerts), ("traces", export_traces))
    ]
    # A worker that cannot start ends the server, which otherwise would accept missions that are never run.
    keeping = [asyncio.create_task(_keep_worker(environ, cwd, options.slots))] if options.worker else []
    try:
        # A server that fails to start ends this wait as well, and so does a signal before the start.
        ends = {waiting, serving, *keeping}
        await asyncio.wait({answering, *ends}, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            # Objects made until now are permanent: the collector need not search them for cycles while a client
            # waits.
            gc.freeze()
            announce()
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        answering.cancel()
        waiting.cancel()
        failed = [each.exception() for each in keeping if each.done()]
        for component in (*components, *keeping):
            component.cancel()
        await asyncio.gather(*components, *keeping, return_exceptions=True)
        await server.end_streams()
        granian.stop()  # type: ignore[no-untyped-call]
        await serving
        for error in filter(None, failed):
            raise error


async def _wait_until_answered(listening: socket.socket) -> None:
    """Return once the server answers a connection: the socket accepts connections before that."""
    host, port = listening.getsockname()[:2]
    while True:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(f"GET /health HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
                answered = await reader.read(1)
                writer.close()
                if answered:
                    return
        await asyncio.sleep(0.02)


async def _supervise(
    name: str, work: Callable[[StateReader], Awaitable[None]], environ: Mapping[str, str], cwd: Path
) -> None:
    """Run a component as long as the server runs; a failed one is restarted, and ends nothing else."""
    while True:
        try:
            with StateReader.open(environ=environ, cwd=cwd) as reader:
                await work(reader)
        except Exception:  # the boundary: a fault in a component must not end the server
            _LOG.exception("%s failed; it starts again in %.0f s", name, _LONGEST_DELAY_SECONDS)
        await asyncio.sleep(_LONGEST_DELAY_SECONDS)


async def _keep_worker(environ: Mapping[str, str], cwd: Path, slots: int) -> None:
    """Run a worker as long as the server runs, restarting it when it ends; at the end it releases its missions.

    Raises `InfrastructureError` (`worker_failed`) if the first worker soon reports that it cannot run. For an
    unreachable database the server waits a while.
    """
    log = state_home(environ) / "logs" / "worker.log"
    delay = _FIRST_DELAY_SECONDS
    has_run = False
    away = _AwayDatabase(environ, cwd)
    while True:
        began = asyncio.get_running_loop().time()
        process, told = await _start_worker(environ, slots, log)
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_SECONDS):
                    await process.wait()
            raise
        lived = asyncio.get_running_loop().time() - began
        delay = _FIRST_DELAY_SECONDS if lived > _STEADY_SECONDS else min(delay * 2, _LONGEST_DELAY_SECONDS)
        # A worker that was killed (a negative code) says nothing about the next one.
        if code > 0 and lived < _STEADY_SECONDS and not has_run:
            cause, failed = _worker_failed(log, told, code)
            if cause != AWAY or not await away.may_come_back(failed.message):
                raise failed
        else:
            has_run = True
            _LOG.warning("the worker ended (exit %s); another one starts in %.1f s", code, delay)
        await asyncio.sleep(delay)


class _AwayDatabase:
    """Decides whether to retry a first worker that failed because its database is unreachable."""

    def __init__(self, environ: Mapping[str, str], cwd: Path) -> None:
        self._environ = environ
        self._cwd = cwd
        self._until = asyncio.get_running_loop().time() + _AWAY_SECONDS
        self._answered = 0
        self._told = False

    async def may_come_back(self, problem: str) -> bool:
        """Return whether to retry, and log the problem once.

        A database that answers now may have come back after the worker failed: it gets one more try.
        """
        answers = await asyncio.to_thread(self._ask)
        self._answered = self._answered + 1 if answers else 0
        if answers is None or self._answered > 1 or asyncio.get_running_loop().time() > self._until:
            return False
        if not answers and not self._told:
            self._told = True
            _LOG.warning("%s; it is tried again for %.0f s", problem, _AWAY_SECONDS)
        return True

    def _ask(self) -> bool | None:
        with StateReader.open(environ=self._environ, cwd=self._cwd) as reader:
            return engine_answers(reader)


async def _start_worker(
    environ: Mapping[str, str], slots: int, log: Path
) -> tuple[asyncio.subprocess.Process, int]:
    """Start a worker; return it with the offset in the log at which its lines begin."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with log.open("ab") as stderr:
            process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-m",
                    "chargehand",
                    "worker",
                    "--json",
                    "--slots",
                    str(slots),
                    "--until-eof",
                    "--watch-forges",
                ),
                # The worker ends with the server (--until-eof), however the server ends.
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=dict(environ),
                # The terminal's Ctrl-C is meant for the server, which stops its worker cleanly.
                start_new_session=True,
            )
            return process, stderr.tell()
    except OSError as error:
        raise InfrastructureError(
            f"cannot start a worker that logs to {log}: {error.strerror}",
            code="worker_failed",
            hint="make the state directory writable; --no-worker serves without a worker",
        ) from error


def _worker_failed(log: Path, begin: int, code: int) -> tuple[str, InfrastructureError]:
    """Return why a worker could not start, as the code and an error, from its log after an offset."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().splitlines()
    cause = ""
    said = f"exit {code}"
    hint = f"see {log}"
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, IndexError):
        error = decode_as(lines[-1], dict[str, dict[str, str]])["error"]
        cause = error["code"]
        said = error["message"]
        hint = error["hint"]
    return cause, InfrastructureError(
        f"the worker cannot start: {said}",
        code="worker_failed",
        hint="\n".join(filter(None, (hint, "--no-worker serves without a worker"))),
    )
