"""The registry mirror: lets `setup` in a sandbox without network install packages from the user's registries.

It serves pip (PEP 503, 658, 691) under `/pypi/simple/`, npm under `/npm/`, cargo (sparse indexes) under `/cargo/`,
go (GOPROXY) under `/go/` and maven under `/maven/` on a unix socket of the host. It fetches only files that the
user's registries name; credentials and certificates stay on this side.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self
from urllib.parse import unquote_to_bytes, urlsplit

import h11
from msgspec import Struct, field

from chargehand.core.text import late_pattern
from chargehand.network.contract import (
    MirrorLimits,
    MirrorRefusal,
    MirrorReply,
    MirrorRequest,
    MirrorTrace,
    RequestKind,
    Resolve,
)
from chargehand.network.mirror.cargo import CargoConfig, CrateRegistry, cargo_settings, read_cargo_config
from chargehand.network.mirror.go import GoConfig, ModuleProxy, go_environment, read_go_config
from chargehand.network.mirror.maven import JarRepository, MavenConfig, maven_settings, read_maven_config
from chargehand.network.mirror.npm import NodeRegistry, read_npm_config
from chargehand.network.mirror.pypi import PythonRegistry, read_pip_config
from chargehand.network.mirror.server import SocketServer
from chargehand.network.mirror.settings import NpmConfig, PipConfig
from chargehand.network.mirror.upstream import AddressPolicy, RegistryClient

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
PUBLIC_URL = "http://127.0.0.1:8870"
# Longer than the mirror's time-out for an upstream, so that the client shows the mirror's message.
_CLIENT_SECONDS = "180"
_MAX_TARGET = 2_048
# Names are matched strictly, since they become part of an upstream's URL.
_PROJECT = r"(?P<project>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,212}[A-Za-z0-9])?)"
_PACKAGE = r"(?P<project>(?:@[A-Za-z0-9~-][A-Za-z0-9._~-]{0,212}/)?(?!-/)[A-Za-z0-9~-][A-Za-z0-9._~-]{0,212})"
_FILE = r"(?P<filename>[A-Za-z0-9][A-Za-z0-9._+!~-]{0,260})"
_TARBALL = r"(?P<filename>[A-Za-z0-9~-][A-Za-z0-9._+~-]{0,255}\.tgz)"
_ID = r"(?P<identity>[0-9a-f]{24})"
_REGISTRY = r"(?P<registry>[A-Za-z0-9_-]{1,64})"
_CRATE = r"(?P<project>[A-Za-z0-9][A-Za-z0-9_-]{0,63})"
_ELEMENT = r"(?:[a-z0-9_.~-]|![a-z]){1,200}"
_MODULE = rf"(?P<project>{_ELEMENT}(?:/{_ELEMENT}){{0,24}})"
_VERSION = r"[a-z0-9](?:[a-z0-9._+~-]|![a-z]){0,200}"
_SUMS = rf"(?:supported|latest|lookup/{_ELEMENT}(?:/{_ELEMENT}){{0,24}}@{_VERSION}|tile/[a-z0-9./]{{1,80}})"
# Group, artifact and version as directories; in a group's directory maven requests its metadata.
_JAVA_NAME = r"[A-Za-z0-9_][A-Za-z0-9._+~-]{0,200}"
_JAVA_PATH = rf"(?P<project>{_JAVA_NAME}(?:/{_JAVA_NAME}){{1,24}})"
# npm appends the paths of lock files, which belong to other registries, to ours or replaces ours by them.
_ELSEWHERE = r"(?:[A-Za-z0-9._~-]{1,100}/){0,8}?"
_ROUTES: tuple[tuple[RequestKind, re.Pattern[str]], ...] = (
    ("pypi-index", late_pattern(rf"/pypi/simple/{_PROJECT}/?")),
    ("pypi-file", late_pattern(rf"/pypi/files/{_ID}/{_FILE}")),
    ("cargo-config", late_pattern(rf"/cargo/{_REGISTRY}/index/config\.json")),
    ("cargo-index", late_pattern(rf"/cargo/{_REGISTRY}/index/(?P<filename>(?:[^/]{{1,2}}/){{1,2}}{_CRATE})")),
    (
        "cargo-file",
        late_pattern(rf"/cargo/{_REGISTRY}/crates/{_CRATE}/(?P<filename>[0-9A-Za-z.+-]{{1,128}})/download"),
    ),
    ("go-sums", late_pattern(rf"/go/sumdb/(?P<project>[A-Za-z0-9.-]{{1,200}})/(?P<filename>{_SUMS})")),
    ("go-page", late_pattern(rf"/go/{_MODULE}/(?P<filename>@latest|@v/list|@v/{_VERSION}\.(?:info|mod))")),
    ("go-file", late_pattern(rf"/go/{_MODULE}/(?P<filename>@v/{_VERSION}\.zip)")),
    ("maven-file", late_pattern(rf"/maven/{_JAVA_PATH}/(?P<filename>{_JAVA_NAME})")),
    ("npm-index", late_pattern(rf"/npm/{_PACKAGE}")),
    ("npm-file", late_pattern(rf"/npm/{_PACKAGE}/-/{_ID}/{_FILE}")),
    ("npm-file", late_pattern(rf"/{_ELSEWHERE}{_PACKAGE}/-/{_TARBALL}")),
)


class RegistryConfig(Struct, frozen=True, kw_only=True):
    """The sources of packages with their credentials and trust; its repr shows no secret."""

    pip: PipConfig = field(default_factory=PipConfig)
    npm: NpmConfig = field(default_factory=NpmConfig)
    cargo: CargoConfig = field(default_factory=CargoConfig)
    go: GoConfig = field(default_factory=GoConfig)
    maven: MavenConfig = field(default_factory=MavenConfig)

    @classmethod
    def from_user(cls, environ: Mapping[str, str] | None = None) -> RegistryConfig:
        """Return the configuration of the user whose environment is `environ` (default: this process's).

        Runs the host's `pip config list` (about a second: call it off the event loop) and reads the files of npm,
        cargo, go and maven; without configuration the public registries. Raises `ConfigError` for an unusable
        registry URL of pip or npm; registries of others that cannot be served are refused when requested.
        """
        variables = os.environ if environ is None else environ
        return cls(
            pip=read_pip_config(variables),
            npm=read_npm_config(variables),
            cargo=read_cargo_config(variables),
            go=read_go_config(variables),
            maven=read_maven_config(variables),
        )


class RegistryMirror:
    """Serves the registries of `config` on `socket_path`; the sandbox reaches that socket at `public_url`.

    `log` is called once for every request, in the event loop; `resolve` looks up names that pages and redirects
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
        # A client for each: logins, proxies and authorities of one ecosystem must not be used for another.
        self._upstreams = [
            RegistryClient(
                client.access, policy=AddressPolicy(client.urls(), resolve=resolve), page_bytes=limits.page_bytes
            )
            for client in (config.pip, config.npm, config.cargo, config.go, config.maven)
        ]
        pip, npm, cargo, go, maven = self._upstreams
        self._python = PythonRegistry(config.pip, upstream=pip, limits=limits)
        self._node = NodeRegistry(config.npm, upstream=npm, limits=limits, public_url=self.public_url)
        self._crates = CrateRegistry(config.cargo, upstream=cargo, limits=limits, public_url=self.public_url)
        self._modules = ModuleProxy(config.go, upstream=go, limits=limits)
        self._jars = JarRepository(config.maven, upstream=maven)
        self._server = SocketServer(socket_path, self._reply, limits=limits, log=log)

    async def start(self) -> None:
        """Listen; raises `InfrastructureError` if the socket cannot be created."""
        await self._server.start()

    async def close(self) -> None:
        """Cut every connection, including upstream ones, and remove the socket. Idempotent."""
        await self._server.close()
        for upstream in self._upstreams:
            await upstream.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def environment(self, public_url: str | None = None) -> Mapping[str, str]:
        """Return the variables that point pip, uv, npm and go in the sandbox here (`mirror_environment`)."""
        url = public_url or self.public_url
        return {**mirror_environment(url), **go_environment(self._config.go, url)}

    def cargo_settings(self, public_url: str | None = None) -> str:
        """Return the config.toml that points cargo in the sandbox here: no variable can replace a source."""
        return cargo_settings(self._config.cargo, public_url or self.public_url)

    def maven_settings(self, *, offline: bool) -> str:
        """Return the settings.xml that points maven in the sandbox here, or makes it work offline."""
        return maven_settings(self.public_url, offline=offline)

    async def _reply(self, request: h11.Request, trace: MirrorTrace) -> MirrorReply:
        route = parse_route(request.target)
        trace.kind = route.kind
        trace.project = route.project
        accept = dict(request.headers).get(b"accept", b"").decode("latin-1")
        project = route.project
        filename = route.filename
        match route.kind:
            case "pypi-index":
                return await self._python.index(project, accept=accept, trace=trace)
            case "pypi-file":
                return await self._python.file(route.identity, filename, trace=trace)
            case "npm-index":
                return await self._node.document(project, accept=accept, trace=trace)
            case "npm-file":
                return await self._node.tarball(project, filename, identity=route.identity, trace=trace)
            case "cargo-config":
                return self._crates.settings(route.registry, trace=trace)
            case "cargo-index":
                return await self._crates.entries(route.registry, project, filename, trace=trace)
            case "cargo-file":
                return await self._crates.crate(route.registry, project, filename, trace=trace)
            case "go-sums":
                return await self._modules.sums(project, filename, trace=trace)
            case "maven-file":
                return await self._jars.file(project, filename, trace=trace)
        return await self._modules.file(project, filename, trace=trace)


def mirror_environment(public_url: str = PUBLIC_URL) -> Mapping[str, str]:
    """Return the variables that point pip, uv and npm to a mirror at `public_url`, without prompts and notices.

    Configuration files are switched off: those of the host may be visible inside and name unreachable hosts.
    """
    index = f"{public_url.rstrip('/')}/pypi/simple/"
    host = urlsplit(public_url)
    # pip accepts plain http only for this machine.
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


class MirrorRoute(Struct, frozen=True, kw_only=True):
    """The parsed request: the kind, the project (package, crate, module), and for a file its id and name.

    `registry` is the name of a cargo registry.
    """

    kind: RequestKind
    project: str = ""
    identity: str = ""
    filename: str = ""
    registry: str = ""


def parse_route(target: bytes) -> MirrorRoute:
    """Return the parsed target; raises `MirrorRefusal` 400 for a malformed, 404 for an unknown one."""
    if len(target) > _MAX_TARGET:
        raise MirrorRefusal(414, f"the path is longer than {_MAX_TARGET} B")
    # An absolute target, or `//host`, would use the mirror as a proxy.
    if not target.startswith(b"/") or target.startswith(b"//"):
        raise MirrorRefusal(400, "the request target must be a path: this is not a proxy")
    try:
        path = unquote_to_bytes(target.partition(b"?")[0]).decode("ascii")
    except UnicodeDecodeError:
        raise MirrorRefusal(400, "the path is not ASCII") from None
    # Checked after decoding: many servers treat %2e%2e like "..".
    if not path.isprintable() or "\\" in path or any(part in (".", "..") for part in path.split("/")):
        raise MirrorRefusal(400, "the path is not plain")
    for kind, pattern in _ROUTES:
        if match := pattern.fullmatch(path):
            return MirrorRoute(kind=kind, **match.groupdict())
    raise MirrorRefusal(404, "this mirror has no such page")
