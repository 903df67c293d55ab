"""Local registries for the mirror's tests, and the mirror with a client that reaches it as a sandbox does."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import os
import ssl
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

import chargehand.sandbox
from chargehand.network.contract import MirrorLimits, MirrorRequest, Resolve
from chargehand.network.registries import RegistryConfig, RegistryMirror

USER, PASSWORD = "someone", "pa ss@w0rd"
LOGIN = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
URL_LOGIN = f"{USER}:pa%20ss%40w0rd"
FORWARDER = Path(chargehand.sandbox.__file__).parent / "inside/forward.py"


@dataclass(frozen=True)
class Answer:
    """A local registry's answer to one path; `cut` promises that many bytes more than it sends."""

    body: bytes = b""
    media: str = "text/html"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int = 0


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients that refuse a certificate are part of the tests."""


class LocalRegistry:
    """An HTTP(S) server on loopback that answers from `pages` and keeps the requests it got."""

    def __init__(
        self,
        *,
        certificate: Path | None = None,
        login: str = "",
        ask_client: bool = False,
        keeps_open: bool = False,
    ) -> None:
        self._keeps_open = keeps_open
        self.pages: dict[str, Answer] = {}
        self.seen: list[tuple[str, dict[str, str]]] = []
        self._login = login
        self._server = _Server(("127.0.0.1", 0), self._handler())
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            context.load_verify_locations(certificate)
            context.verify_mode = ssl.CERT_REQUIRED if ask_client else ssl.CERT_NONE
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.scheme = "https" if certificate else "http"
        self.url = f"{self.scheme}://{self.host}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1" if registry._keeps_open else "HTTP/1.0"

            def do_GET(self) -> None:
                registry.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
                registry.answer(self)

            def log_message(self, *arguments: object) -> None:
                """Say nothing."""

        return Handler

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request from the pages."""
        page = self.pages.get(request.path, Answer(b"nothing here", status=404))
        if self._login and request.headers.get("Authorization") != self._login:
            page = Answer(b"login please", status=401)
        request.send_response(page.status)
        request.send_header("Content-Type", page.media)
        request.send_header("Content-Length", str(len(page.body) + page.cut))
        request.send_header("X-Upstream-Secret", "s3cret-header")
        for name, value in page.headers.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(page.body)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def registry(
    *, certificate: Path | None = None, login: str = "", ask_client: bool = False, keeps_open: bool = False
) -> Iterator[LocalRegistry]:
    """Run a local registry."""
    server = LocalRegistry(certificate=certificate, login=login, ask_client=ask_client, keeps_open=keeps_open)
    try:
        yield server
    finally:
        server.close()


def self_signed(directory: Path, name: str = "IP:127.0.0.1") -> Path:
    """Make a self-signed certificate with its key, for 127.0.0.1 or a `DNS:` name."""
    path = directory / "own-authority.pem"
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    options = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=local",
        "-addext",
        f"subjectAltName={name}",
    ]
    subprocess.run(
        ["openssl", "req", "-x509", *options, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    path.write_bytes(key.read_bytes() + certificate.read_bytes())
    return path


def user_config(home: Path, **variables: str) -> RegistryConfig:
    """Return the configuration of a user with `home` and `variables`, and nothing of this machine."""
    base = {"HOME": str(home), "PATH": "", "PIP_CONFIG_FILE": os.devnull, "PREFIX": str(home)}
    return RegistryConfig.from_user({**base, "XDG_CONFIG_DIRS": str(home), **variables})


@dataclass
class Reached:
    """A running mirror, a client on its socket, and its log."""

    mirror: RegistryMirror
    client: httpx.AsyncClient
    log: list[MirrorRequest]

    async def raw(self, request: bytes, *, close: bool = True) -> bytes:
        """Send bytes as they are and return the whole answer."""
        reader, writer = await asyncio.open_unix_connection(self.mirror.socket_path)
        try:
            writer.write(request)
            if close:
                writer.write_eof()
            return await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()


@asynccontextmanager
async def running(
    config: RegistryConfig,
    *,
    limits: MirrorLimits | None = None,
    public_url: str = "http://127.0.0.1:8870",
    resolve: Resolve | None = None,
) -> AsyncIterator[Reached]:
    """Run a mirror of `config` with a client that sees only its socket."""
    log: list[MirrorRequest] = []
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "mirror.sock"
        mirror = RegistryMirror(
            path, config=config, log=log.append, limits=limits, public_url=public_url, resolve=resolve
        )
        async with mirror:
            transport = httpx.AsyncHTTPTransport(uds=str(path))
            async with httpx.AsyncClient(transport=transport, base_url="http://mirror.invalid") as client:
                yield Reached(mirror, client, log)


@asynccontextmanager
async def forwarded(port: int, socket_path: Path) -> AsyncIterator[None]:
    """Run the forwarder as a sandbox does."""
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-I", "-S", str(FORWARDER), str(port), str(socket_path)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        await process.communicate()


@asynccontextmanager
async def forwarded_mirror(config: RegistryConfig, port: int) -> AsyncIterator[Reached]:
    """Run a mirror of `config` and a forwarder from `port` of loopback to it."""
    mirror = running(config, public_url=f"http://127.0.0.1:{port}")
    async with mirror as reached, forwarded(port, reached.mirror.socket_path):
        yield reached


async def run(argv: list[str], *, cwd: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a package client with only `environment`; return its exit code and output."""
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(cwd),
        "npm_config_cache": str(cwd / "npm-cache"),
        **environment,
    }
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=cwd, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode("utf-8", "replace")


def wheel(name: str, version: str = "1.0") -> tuple[str, bytes, bytes]:
    """Return file name, content and metadata of a wheel with one empty module."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    stem = f"{name}-{version}"
    files = {
        f"{name}.py": b"",
        f"{stem}.dist-info/METADATA": metadata,
        f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    listed = "".join(f"{path},,\n" for path in [*files, f"{stem}.dist-info/RECORD"])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, content in {**files, f"{stem}.dist-info/RECORD": listed.encode()}.items():
            archive.writestr(zipfile.ZipInfo(path), content)
    return f"{stem}-py3-none-any.whl", out.getvalue(), metadata


def tarball(name: str, version: str = "1.0.0") -> bytes:
    """Return an npm package with only its package.json."""
    content = f'{{"name": "{name}", "version": "{version}"}}'.encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        entry = tarfile.TarInfo("package/package.json")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def document(name: str, tarball_url: str, content: bytes, version: str = "1.0.0") -> dict[str, Any]:
    """Return the registry's document of an npm package with one version."""
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    dist = {"tarball": tarball_url, "integrity": integrity}
    entry = {"name": name, "version": version, "dist": dist}
    return {"name": name, "dist-tags": {"latest": version}, "versions": {version: entry}}


def sha256(content: bytes) -> str:
    """Return the digest as index pages write it."""
    return hashlib.sha256(content).hexdigest()
