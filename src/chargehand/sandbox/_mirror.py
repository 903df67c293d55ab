"""The registry mirror: lets `setup` in a sandbox without network install packages from the user's registries.

It answers pip (PEP 503, 658, 691) under `/pypi/simple/`, npm under `/npm/`, cargo (sparse indexes) under `/cargo/`
and go (GOPROXY) under `/go/` on a unix socket of the host. It fetches only what the user's own registries name;
credentials and certificates stay on this side.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import h11

from chargehand.sandbox._egress_contract import Resolve
from chargehand.sandbox._mirror_cargo import CrateRegistry, cargo_settings
from chargehand.sandbox._mirror_config import RegistryConfig
from chargehand.sandbox._mirror_go import ModuleProxy, go_environment
from chargehand.sandbox._mirror_http import SocketServer
from chargehand.sandbox._mirror_npm import NodeRegistry
from chargehand.sandbox._mirror_pypi import PythonRegistry
from chargehand.sandbox._mirror_reach import Reach
from chargehand.sandbox._mirror_reply import MirrorLimits, MirrorRequest, Reply, Trace
from chargehand.sandbox._mirror_routes import Route, parse_route
from chargehand.sandbox._mirror_upstream import Upstream

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
PUBLIC_URL = "http://127.0.0.1:8870"
# Longer than the mirror's own patience with an upstream, so that its message is what the client shows.
_CLIENT_SECONDS = "180"


class RegistryMirror:
    """Serves the registries of `config` on `socket_path`; `public_url` is where the sandbox reaches that socket.

    `log` is called once for every request, in the event loop; `resolve` looks names up that pages and redirects
    lead to (default: the host's resolver). An async context manager.
    """

    def __init__(
        self,
        socket_path: Path,
        *,
        config: RegistryConfig,
        public_url: str = PUBLIC_URL,
        log: Callable[[MirrorRequest], None] | None = None,
        limits: MirrorLimits | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        limits = limits or MirrorLimits()
        self.socket_path = socket_path
        self.public_url = public_url.rstrip("/")
        self._config = config
        self._upstreams = [
            Upstream(client.access, reach=Reach(client.urls(), resolve=resolve), page_bytes=limits.page_bytes)
            for client in (config.pip, config.npm, config.cargo, config.go)
        ]
        pip, npm, cargo, go = self._upstreams
        self._python = PythonRegistry(config.pip, upstream=pip, limits=limits)
        self._node = NodeRegistry(config.npm, upstream=npm, limits=limits, public_url=self.public_url)
        self._crates = CrateRegistry(config.cargo, upstream=cargo, limits=limits, public_url=self.public_url)
        self._modules = ModuleProxy(config.go, upstream=go, limits=limits)
        self._server = SocketServer(socket_path, self._reply, limits=limits, log=log)

    async def start(self) -> None:
        """Listen; raises `InfrastructureError` where the socket cannot be made."""
        await self._server.start()

    async def close(self) -> None:
        """Cut every connection, upstream ones too, and remove the socket. Idempotent."""
        await self._server.close()
        for upstream in self._upstreams:
            await upstream.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def environment(self, public_url: str | None = None) -> Mapping[str, str]:
        """Return the variables that point pip, uv, npm and go in the sandbox here (`mirror_environment`)."""
        url = public_url or self.public_url
        return {**mirror_environment(url), **go_environment(self._config.go, url)}

    def cargo_settings(self, public_url: str | None = None) -> str:
        """Return the config.toml that points cargo in the sandbox here: no variable can replace a source."""
        return cargo_settings(self._config.cargo, public_url or self.public_url)

    async def _reply(self, request: h11.Request, trace: Trace) -> Reply:
        route = parse_route(request.target)
        trace.kind, trace.project = route.kind, route.project
        accept = dict(request.headers).get(b"accept", b"").decode("latin-1")
        match route.kind.partition("-")[0]:
            case "pypi":
                return await self._python_reply(route, accept=accept, trace=trace)
            case "cargo":
                return await self._cargo_reply(route, trace=trace)
            case "go":
                return await self._go_reply(route, trace=trace)
        return await self._node_reply(route, accept=accept, trace=trace)

    async def _python_reply(self, route: Route, *, accept: str, trace: Trace) -> Reply:
        if route.kind == "pypi-file":
            return await self._python.file(route.identity, route.filename, trace=trace)
        return await self._python.index(route.project, accept=accept, trace=trace)

    async def _cargo_reply(self, route: Route, *, trace: Trace) -> Reply:
        if route.kind == "cargo-config":
            return self._crates.settings(route.registry, trace=trace)
        if route.kind == "cargo-index":
            return await self._crates.entries(route.registry, route.project, route.filename, trace=trace)
        return await self._crates.crate(route.registry, route.project, route.filename, trace=trace)

    async def _go_reply(self, route: Route, *, trace: Trace) -> Reply:
        if route.kind == "go-sums":
            return await self._modules.sums(route.project, route.filename, trace=trace)
        if route.kind == "go-file":
            return await self._modules.archive(route.project, route.filename, trace=trace)
        return await self._modules.page(route.project, route.filename, trace=trace)

    async def _node_reply(self, route: Route, *, accept: str, trace: Trace) -> Reply:
        if route.kind == "npm-index":
            return await self._node.document(route.project, accept=accept, trace=trace)
        if route.identity:
            return await self._node.file(route.project, route.identity, route.filename, trace=trace)
        return await self._node.tarball(route.project, route.filename, trace=trace)


def mirror_environment(public_url: str = PUBLIC_URL) -> Mapping[str, str]:
    """Return the variables that point pip, uv and npm to a mirror reached at `public_url`, and keep them quiet.

    Configuration files are switched off: those of the host may be visible inside and name what is not reachable.
    """
    index = f"{public_url.rstrip('/')}/pypi/simple/"
    host = urlsplit(public_url)
    # pip refuses plain http but to this very machine.
    trusted = {} if host.hostname in _LOOPBACK else {"PIP_TRUSTED_HOST": host.netloc}
    return {
        **trusted,
        "PIP_INDEX_URL": index,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "PIP_DEFAULT_TIMEOUT": _CLIENT_SECONDS,
        "UV_DEFAULT_INDEX": index,
        "UV_INDEX_URL": index,
        "UV_HTTP_TIMEOUT": _CLIENT_SECONDS,
        "UV_PYTHON_DOWNLOADS": "never",
        "npm_config_registry": f"{public_url.rstrip('/')}/npm/",
        "npm_config_globalconfig": os.devnull,
        # Lock files name the registry they were written with; the mirror knows their paths.
        "npm_config_replace_registry_host": "always",
        "npm_config_audit": "false",
        "npm_config_fund": "false",
        "npm_config_update_notifier": "false",
    }
