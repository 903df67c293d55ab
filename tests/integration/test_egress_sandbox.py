"""Programs in a real sandbox that know nothing of the proxy: reachable and unreachable hosts, and their names."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.conftest import git, make_repository
from tests.contract._places import needs_bwrap, toolchain, workspace
from tests.egress_kit import Names, Proxy, proxy

from chargehand.sandbox.contract import ExecResult, Sandbox
from chargehand.sandbox.process_tier import ProcessTier

pytestmark = needs_bwrap


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def served(root: Path, host: str = "127.0.0.1") -> Iterator[int]:
    """Serve a directory on loopback."""
    handler = functools.partial(_Handler, directory=str(root))
    server = http.server.ThreadingHTTPServer((host, 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the directory that the allowed host serves."""
    place = tmp_path / "served"
    place.mkdir()
    (place / "file").write_text("hello from outside\n")
    return place


@contextlib.asynccontextmanager
async def inside(place: Path, port: int) -> AsyncIterator[tuple[Sandbox, Proxy]]:
    """Open a sandbox that may reach allowed.test on one port."""
    names = Names(allowed_test=[["127.0.0.1"]], inner_test=[["10.0.0.1"]])
    async with proxy(place, f"private:allowed.test:{port}", "inner.test", names=names) as out:
        with workspace(place / "workspace", memory_mb=1024) as spec:
            async with ProcessTier(toolchain()) as tier:
                sandbox = await tier.open(replace(spec, egress=out.path))
                try:
                    yield sandbox, out
                finally:
                    await sandbox.close()


def needs(program: str) -> None:
    """Skip the test if a program is not installed; in CI, let it fail."""
    if shutil.which(program) is None and os.environ.get("CI") != "true":
        pytest.skip(f"{program} is not installed")


async def shell(sandbox: Sandbox, script: str) -> ExecResult:
    return await sandbox.exec(["sh", "-c", script], timeout=60)


async def test_curl_reaches_the_allowed_host_and_no_other(tmp_path: Path, root: Path) -> None:
    needs("curl")
    with served(root) as port:
        async with inside(tmp_path, port) as (sandbox, out):
            for options in ("", "-p"):  # plain and by CONNECT
                done = await shell(sandbox, f"curl -sS {options} http://allowed.test:{port}/file")
                assert done.stdout == b"hello from outside\n", done.stderr
            refused = await shell(sandbox, "curl -sS -w '%{http_code}' http://other.test/")
            assert b"other.test:80 is not allowed" in refused.stdout
            assert refused.stdout.endswith(b"403")
            tunnel = await shell(sandbox, "curl -sS https://other.test/")
            assert tunnel.exit_code != 0
            assert b"403" in tunnel.stderr
            inner = await shell(sandbox, "curl -sS http://inner.test/")
            assert b"inner.test:80 leads to 10.0.0.1 (private)" in inner.stdout
            allowed = [(one.host, one.allowed) for one in await out.logged(5)]
    assert allowed == [("allowed.test", True)] * 2 + [("other.test", False)] * 2 + [("inner.test", False)]


_PYTHON = """
import sys, urllib.error, urllib.request
print(urllib.request.urlopen("http://allowed.test:%d/file", timeout=60).read().decode().strip())
for url in ("http://other.test/", "https://other.test/"):
    try:
        urllib.request.urlopen(url, timeout=60)
    except urllib.error.HTTPError as error:
        print(error.code)
    except urllib.error.URLError as error:
        print(error.reason)
"""


async def test_python_reaches_the_allowed_host_and_says_why_not_another(tmp_path: Path, root: Path) -> None:
    with served(root) as port:
        async with inside(tmp_path, port) as (sandbox, _):
            done = await sandbox.exec(["python3", "-c", _PYTHON % port], timeout=60)
    first, second, third = done.stdout.decode().splitlines()
    assert (first, second) == ("hello from outside", "403")
    assert "403 Forbidden: other.test:443 is not allowed" in third


_DIRECT = """
import socket
def tried(what):
    try:
        what()
    except OSError as error:
        return type(error).__name__
    return "reached"
def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.sendto(b"x", ("192.0.2.53", 53))
print(tried(lambda: socket.getaddrinfo("allowed.test", 80)))
print(tried(lambda: socket.getaddrinfo("localhost.example", 80)))
print(tried(lambda: socket.create_connection(("127.0.0.1", PORT), 5)))
print(tried(lambda: socket.create_connection(("192.0.2.1", 80), 5)))
print(tried(udp))
"""


async def test_without_the_proxy_neither_names_nor_addresses_are_reachable(tmp_path: Path, root: Path) -> None:
    """The sandbox has no DNS, not even for the allowed host, and does not share the host's loopback."""
    with served(root) as port:
        async with inside(tmp_path, port) as (sandbox, out):
            done = await sandbox.exec(["python3", "-c", _DIRECT.replace("PORT", str(port))], timeout=60)
            resolver = await shell(sandbox, "cat /etc/resolv.conf; grep -v : /proc/net/route | tail -n +2")
            assert out.log == []
    assert done.stdout.decode().split() == ["gaierror", "gaierror", "ConnectionRefusedError", "OSError", "OSError"]
    assert b"nameserver" not in resolver.stdout


async def test_git_clones_from_an_allowed_host(tmp_path: Path, root: Path) -> None:
    needs("git")
    made = make_repository(tmp_path / "made", {"a.txt": "a\n"})
    git(tmp_path, "clone", "-q", "--bare", str(made), str(root / "repo.git"))
    git(root / "repo.git", "update-server-info")
    with served(root) as port:
        async with inside(tmp_path, port) as (sandbox, _):
            script = f"git clone -q http://allowed.test:{port}/repo.git && cat repo/a.txt"
            done = await shell(sandbox, script)
            assert done.stdout == b"a\n", done.stderr
            other = await shell(sandbox, "git clone -q http://other.test/repo.git other")
    assert b"403" in other.stderr


async def test_pip_and_npm_keep_to_the_proxy(tmp_path: Path, root: Path) -> None:
    needs("npm")
    (root / "simple/thing").mkdir(parents=True)
    (root / "simple/thing/index.html").write_text("<a href='thing-1.0-py3-none-any.whl'>thing</a>")
    with served(root) as port:
        async with inside(tmp_path, port) as (sandbox, out):
            index = f"http://allowed.test:{port}/simple/"
            pip = "python3 -m pip --disable-pip-version-check"
            # The page lists the package with a missing file: pip has to get that far.
            done = await shell(sandbox, f"{pip} download -i {index} --trusted-host allowed.test thing")
            assert b"404" in done.stdout + done.stderr, done.stderr
            npm = "npm --fetch-retries 0 view thing"
            await shell(sandbox, f"{npm} --registry http://allowed.test:{port}/npm/")
            await shell(sandbox, f"{npm} --registry https://other.test/npm/")
            seen = {(one.host, one.allowed) for one in out.log}
    assert seen == {("allowed.test", True), ("other.test", False)}


async def test_a_sandbox_without_an_allow_list_has_no_proxy_variables(tmp_path: Path) -> None:
    with workspace(tmp_path / "workspace") as spec:
        async with ProcessTier(toolchain()) as tier:
            sandbox = await tier.open(spec)
            try:
                done = await shell(sandbox, "env | grep -i proxy")
            finally:
                await sandbox.close()
    assert (done.exit_code, done.stdout) == (1, b"")
