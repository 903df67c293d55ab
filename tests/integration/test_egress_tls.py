"""TLS from a sandbox through the proxy: a real handshake with the host behind it, under its own authority."""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from opened_tiers import TIERS, opened
from tests.egress_kit import Names, proxy

HTTPX = """
import httpx, ssl
try:
    with httpx.Client(verify=ssl.create_default_context(cafile="authority.pem"), timeout=30) as client:
        with client.stream("GET", "https://allowed.test:%d/") as answer:
            tls = answer.extensions["network_stream"].get_extra_info("ssl_object").version()
            print(answer.status_code, answer.read().decode(), tls)
    httpx.get("https://allowed.test:%d/", timeout=30)
except httpx.ConnectError as error:
    print(error)
"""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"inner")

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing: clients that do not trust the authority are part of the test."""


@contextlib.contextmanager
def served(place: Path) -> Iterator[tuple[int, bytes]]:
    """Serve over TLS as allowed.test; yield the port and the certificate, which is its own authority."""
    key, certificate = place / "key.pem", place / "authority.pem"
    options = "-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    names = ["-addext", "subjectAltName=DNS:allowed.test"]
    subprocess.run(
        ["openssl", "req", *options.split(), *names, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = _Server(("127.0.0.1", 0), _Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1], certificate.read_bytes()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("tier", TIERS)
async def test_a_handshake_reaches_the_host_behind_the_proxy(
    tmp_path: Path, tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The interpreter inside is the one of the tests, which has httpx.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if shutil.which("curl") is None and os.environ.get("CI") != "true":
        pytest.skip("curl is not installed")
    with served(tmp_path) as (port, authority):
        names = Names(allowed_test=[["127.0.0.1"]])
        async with (
            proxy(tmp_path, f"private:allowed.test:{port}", names=names) as out,
            opened(tier, tmp_path, egress=out.path, files={"authority.pem": authority}) as sandbox,
        ):
            place = f"https://allowed.test:{port}/"
            trusted = await sandbox.exec(["curl", "-sS", "--cacert", "authority.pem", place])
            assert (trusted.exit_code, trusted.stdout) == (0, b"inner"), trusted.stderr
            # The certificate is the host's own: the proxy takes no part in the handshake.
            stranger = await sandbox.exec(["curl", "-sS", place])
            assert stranger.exit_code == 60, stranger.stderr
            # A tunnel to the allowed host that carries the name of another.
            other = ["--connect-to", f"other.test:{port}:allowed.test:{port}", f"https://other.test:{port}/"]
            fronted = await sandbox.exec(["curl", "-sSk", "-p", *other])
            assert fronted.exit_code == 35, fronted.stderr
            done = await sandbox.exec(["python3", "-c", HTTPX % (port, port)])
            assert done.exit_code == 0, done.stderr
            first, second = done.stdout.decode().splitlines()
            assert first.startswith("200 inner TLSv1.")
            assert "CERTIFICATE_VERIFY_FAILED" in second
            log = await out.logged(5)
    assert [(one.method, one.host, one.allowed) for one in log] == [("CONNECT", "allowed.test", True)] * 2 + [
        ("CONNECT", "allowed.test", False)
    ] + [("CONNECT", "allowed.test", True)] * 2
