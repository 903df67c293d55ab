"""MCP over streamable HTTP, loopback only. Requires the token; rejects cross-origin requests."""

from __future__ import annotations

import contextlib
import errno
import hmac
import ipaddress
import logging
import os
import secrets
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import uvicorn
from mcp.server.lowlevel.server import Server
from mcp.server.transport_security import TransportSecuritySettings
from msgspec import Struct
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from chargehand.core.errors import ConfigError, UsageError
from chargehand.durable.directories import make_private

PATH = "/mcp"
_LARGEST_BODY_BYTES = 1 << 20
_SESSIONS = 64
_CONNECTIONS = 512
_IDLE_SECONDS = 1800.0
_END_SECONDS = 1
_TOKEN_BYTES = 32


class StopSignal(Protocol):
    """The function by which a signal ends the server cleanly; it returns whether the server will end."""

    end: Callable[[], bool]


class Address(Struct, frozen=True, kw_only=True):
    """The listening address: a loopback address and a port, 0 for any free port."""

    host: str
    port: int


def parsed_address(text: str) -> Address:
    """Parse `HOST:PORT`. Raises `UsageError` (`listen_invalid`) unless it is a valid loopback address."""
    host, colon, port = text.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    hint = "127.0.0.1:8765, say; other machines reach it through `ssh -L`"
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not colon or not loopback or not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
        raise UsageError(f"--http: {text!r} is not a port on loopback", code="listen_invalid", hint=hint)
    return Address(host=host, port=int(port))


def bound(address: Address) -> socket.socket:
    """Return a listening socket. Raises `UsageError` (`port_taken`, `listen_invalid`)."""
    made = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    try:
        # Connections of a server that has just ended keep its port in TIME_WAIT; the next server may use it.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address.host, address.port))
        made.listen(128)
    except OSError as error:
        made.close()
        where = f"{address.host}:{address.port}"
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {address.port} of {address.host} is taken by another program",
                code="port_taken",
                hint=f"name another one, or --http {address.host}:0 for any that is free",
            ) from error
        reason = os.strerror(error.errno or 0)
        hint = "name another port of 127.0.0.1"
        raise UsageError(
            f"--http: cannot listen on {where}: {reason}", code="listen_invalid", hint=hint
        ) from error
    made.setblocking(False)
    return made


def token_of(path: Path) -> str:
    """Read the token file, creating it (mode 0600) if missing.

    Raises `ConfigError` (`token_file`) for a file that others may read, that is not a regular file of the
    caller's, or that contains no token.
    """
    make_private(path.parent)
    with contextlib.suppress(FileExistsError), _as_token_error(path):
        # Written completely before it gets its name: another server that starts now sees the whole file or
        # nothing.
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
            # Not a rename, which would replace the token of another server that is already serving.
            os.link(fresh, path)
        finally:
            fresh.unlink()
    # Neither a link to a file of another user's choice, nor a pipe that would wait for a writer.
    with _as_token_error(path), os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise _bad_token(path, "is not a file that only you may read", f"chmod 600 {path}")
        # Bounded: the path may name a large file by mistake.
        token = file.read(1000).strip()
    if len(token) < 20 or not token.isascii() or not token.isprintable() or " " in token:
        raise _bad_token(path, "has no token of 20 or more characters", "remove it: a new one is made")
    return token


@contextlib.contextmanager
def _as_token_error(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise _bad_token(path, f"cannot be used: {error}", "name another file with --token-file") from error


def _bad_token(path: Path, what: str, hint: str) -> ConfigError:
    return ConfigError(f"the token's file {str(path)!r} {what}", code="token_file", hint=hint)


class Guard:
    """Passes only requests for this address, from no foreign web page, with the token."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: frozenset[str]) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode()
        self._hosts = hosts
        self._origins = {f"http://{host}" for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it before its body is read."""
        if scope["type"] == "http":
            # DNS rebinding: a foreign page reaches loopback under a name of its domain that resolves to it.
            hosts = _header_values(scope, b"host")
            origins = _header_values(scope, b"origin")
            given = _header_values(scope, b"authorization")
            refused: JSONResponse | None = None
            # Exactly one `Host`: of two, the code behind this check might read the other one.
            if len(hosts) != 1 or hosts[0].decode("latin-1") not in self._hosts:
                refused = _refuse(421, "wrong_host", "this server is not at that host")
            elif any(origin.decode("latin-1") not in self._origins for origin in origins):
                refused = _refuse(403, "wrong_origin", "pages of other origins may not use this server")
            # Compared in constant time: a guess must not learn how far it was right.
            elif len(given) != 1 or not hmac.compare_digest(given[0], self._wanted):
                refused = _refuse(401, "wrong_token", "a request needs the token: Authorization: Bearer TOKEN")
            if refused is not None:
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _header_values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key.lower() == name]


def _refuse(status: int, code: str, message: str) -> JSONResponse:
    headers = {"WWW-Authenticate": 'Bearer realm="chargehand"'} if status == 401 else {}
    return JSONResponse({"error": {"code": code, "message": message, "hint": ""}}, status, headers)


def hosts_of(listening: socket.socket) -> frozenset[str]:
    """Return the accepted `Host` headers of requests for this socket."""
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    # With the port: a page of another local server has the same host, but is foreign.
    return frozenset(f"{name}:{port}" for name in (shown, "localhost", "127.0.0.1", "[::1]"))


def url_of(listening: socket.socket) -> str:
    """Return the address for clients."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}{PATH}" if ":" in host else f"http://{host}:{port}{PATH}"


async def serve_http(
    server: Server[Any], listening: socket.socket, *, token: str, stop: StopSignal, announce: Callable[[], None]
) -> None:
    """Serve until a signal; open calls then have a second to end.

    `announce` is called once requests are answered and a signal ends the server cleanly.
    """
    hosts = hosts_of(listening)
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=_LARGEST_BODY_BYTES,
        session_idle_timeout=_IDLE_SECONDS,
        max_sessions=_SESSIONS,
        # The SDK checks both itself if it gets the allowed values; the guard comes first.
        transport_security=TransportSecuritySettings(
            allowed_hosts=sorted(hosts), allowed_origins=sorted(f"http://{host}" for host in hosts)
        ),
    )
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    config = uvicorn.Config(
        Guard(app, token=token, hosts=hosts),
        loop="none",  # the command's own loop is already running
        http="h11",
        ws="none",
        # Not "auto", which ignores a failure to start: without its lifespan the SDK's app serves no session.
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # there is no proxy: any client could claim any address
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_END_SECONDS,
    )
    running = _Uvicorn(config, announce)

    def end() -> bool:
        running.should_exit = True
        return True

    stop.end = end
    await running.serve(sockets=[listening])


class _Uvicorn(uvicorn.Server):
    """A server that announces when it serves, and leaves signals to the command."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving."""
        await super().startup(sockets)
        self._announce()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not capture signals: the command handles them."""
        yield
