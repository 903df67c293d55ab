"""The mirror against hostile code in a setup's sandbox: no way out, no login of others, nothing published."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from mirror_packages import serve_crate
from opened_tiers import TIERS, opened
from test_mirror_support import (
    Answer,
    LocalRegistry,
    Reached,
    document,
    registry,
    running,
    self_signed,
    tarball,
    user_config,
)

from chargehand.network.allow_list import Address
from chargehand.network.contract import MirrorLimits, MirrorRequest
from chargehand.network.registries import RegistryConfig, RegistryMirror

NPM, CRATES = "npm-s3cret", "cargo-s3cret"
HOST = b" HTTP/1.1\r\nHost: x\r\n\r\n"
ATTACKS: dict[str, tuple[bytes, int]] = {
    "absolute form": (b"GET http://169.254.169.254/latest/" + HOST, 400),
    "absolute form of a served path": (b"GET http://public.invalid/npm/plain" + HOST, 400),
    "two slashes": (b"GET //169.254.169.254/npm/plain" + HOST, 400),
    "CONNECT": (b"CONNECT 169.254.169.254:80" + HOST, 405),
    "dots": (b"GET /npm/../../etc/passwd" + HOST, 400),
    "encoded dots": (b"GET /npm/%2e%2e/%2e%2e/etc/passwd" + HOST, 400),
    "encoded slashes": (b"GET /cargo/own/index/..%2f..%2fsecret" + HOST, 400),
    "dots in a module": (b"GET /go/example.org/@v/..%2f..%2fsecret.zip" + HOST, 400),
    "twice encoded": (b"GET /npm/%252e%252e%252fsecret" + HOST, 404),
    "line feed in the path": (b"GET /npm/plain\r\nX: y" + HOST, 400),
    "encoded line feed": (b"GET /npm/plain%0d%0aHost:%20evil" + HOST, 400),
    "NUL": (b"GET /npm/plain%00" + HOST, 400),
    "backslash": (b"GET /npm/..\\..\\x" + HOST, 400),
    "huge header": (b"GET /npm/plain HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", 431),
    "both lengths": (
        b"POST /npm/plain HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\nGET /npm/@own%2ftool" + HOST,
        405,
    ),
    "a request behind a body": (
        b"GET /npm/plain HTTP/1.1\r\nHost: x\r\nContent-Length: 24\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\nGET /npm/@own%2ftool" + HOST,
        400,
    ),
    "publish to npm": (b"PUT /npm/plain" + HOST, 405),
    "publish to cargo": (b"PUT /cargo/own/api/v1/crates/new" + HOST, 405),
    "yank": (b"DELETE /cargo/own/api/v1/crates/inner/0.1.0/yank" + HOST, 405),
    "login": (b"GET /npm/-/whoami" + HOST, 404),
    "cargo's own API": (b"GET /cargo/own/api/v1/me" + HOST, 404),
    "a registry by its host": (b"GET /cargo/public.invalid/index/config.json" + HOST, 404),
    "another database": (b"GET /go/sumdb/evil.invalid/lookup/example.org/a@v1.0.0" + HOST, 404),
    "a redirect to the machine's metadata": (b"GET /npm/metadata" + HOST, 403),
    "a tarball in the inner network": (b"GET /npm/inner/-/inner-1.0.0.tgz" + HOST, 403),
    "a name that leads inside": (b"GET /npm/named/-/named-1.0.0.tgz" + HOST, 403),
    "a file of this machine": (b"GET /npm/local" + HOST, 502),
    "a scope's package that is not there": (b"GET /npm/@own%2fabsent" + HOST, 404),
}
CLIENT = """
import json, socket, sys
for name, data in json.load(sys.stdin).items():
    near = socket.create_connection(("127.0.0.1", 8870), 30)
    answer = b""
    try:
        near.sendall(bytes.fromhex(data))
        near.shutdown(socket.SHUT_WR)
        while piece := near.recv(65536):
            answer += piece
    except OSError:
        pass
    near.close()
    print(json.dumps([name, answer.decode("latin-1")]), flush=True)
"""


@dataclass(frozen=True)
class Registries:
    """Two registries that require logins, and the public one."""

    own: LocalRegistry
    crates: LocalRegistry
    public: LocalRegistry

    def config(self, home: Path) -> RegistryConfig:
        """Write the configuration of a user who keeps the registries apart; return it parsed."""
        (home / ".npmrc").write_text(
            f"registry={self.public.url}/\n@own:registry={self.own.url}/\n//{self.own.host}/:_authToken={NPM}\n"
        )
        (home / ".cargo").mkdir()
        settings = f'[registries.own]\nindex = "sparse+{self.crates.url}/index/"\ntoken = "{CRATES}"\n'
        (home / ".cargo/config.toml").write_text(settings)
        return user_config(home, GOPROXY="off")


def tarball_at(upstream: LocalRegistry, name: str, url: str) -> None:
    """Put a package on a registry, with an address for its tarball."""
    page = json.dumps(document(name, url, tarball(name))).encode()
    upstream.pages["/" + name.replace("/", "%2f")] = Answer(page, "application/json")


@pytest.fixture
def registries() -> Iterator[Registries]:
    with registry(login=f"Bearer {NPM}") as own, registry(login=CRATES) as crates, registry() as public:
        tarball_at(own, "@own/tool", f"{own.url}/tool.tgz")
        serve_crate(crates, "inner", auth=True)
        tarball_at(public, "plain", f"{public.url}/plain/-/plain-1.0.0.tgz")
        public.pages["/@own%2fabsent"] = Answer(b"{}", "application/json")
        public.pages["/metadata"] = Answer(status=302, headers={"Location": "http://169.254.169.254/latest/"})
        tarball_at(public, "inner", "http://10.0.0.1/inner-1.0.0.tgz")
        tarball_at(public, "named", "https://inner.test/named-1.0.0.tgz")
        tarball_at(public, "local", "file:///etc/passwd")
        yield Registries(own, crates, public)


async def names(host: str, port: int) -> Sequence[Address]:
    """Resolve names as an accomplice of a registry would."""
    if host == "inner.test":
        return [ipaddress.ip_address("192.168.7.7")]
    return [ipaddress.ip_address(host)]


@pytest.mark.parametrize("tier", TIERS)
async def test_every_attack_fails_and_is_logged(tmp_path: Path, registries: Registries, tier: str) -> None:
    log: list[MirrorRequest] = []
    config = await asyncio.to_thread(registries.config, tmp_path)
    sent = json.dumps({name: attack.hex() for name, (attack, _) in ATTACKS.items()}).encode()
    with tempfile.TemporaryDirectory() as directory:
        mirror = RegistryMirror(Path(directory, "mirror.sock"), config=config, log=log.append, resolve=names)
        async with mirror, opened(tier, tmp_path, registries=mirror.socket_path) as sandbox:
            done = await sandbox.exec(["python3", "-c", CLIENT], stdin=sent, timeout=120)
            assert done.exit_code == 0, done.stderr
            await mirror.close()
            # The socket is still visible inside, but no server answers once setup has ended.
            again = json.dumps({"late": (b"GET /npm/plain" + HOST).hex()}).encode()
            late = await sandbox.exec(["python3", "-c", CLIENT], stdin=again, timeout=60)
            assert json.loads(late.stdout) == ["late", ""], late
    answers = dict(json.loads(line) for line in done.stdout.splitlines())
    statuses = {name: answer[9:12] for name, answer in answers.items()}
    assert statuses == {name: str(status) for name, (_, status) in ATTACKS.items()}
    assert all(answer.count("HTTP/1.1 ") == 1 for answer in answers.values())
    assert len(log) == len(ATTACKS)
    for (name, (_, status)), record in zip(ATTACKS.items(), log, strict=True):
        assert (record.status, bool(record.problem)) == (status, True), name
    shown = done.stdout.decode() + repr(log)
    assert NPM not in shown
    assert CRATES not in shown
    # Only the registry of the scope was asked, and no login went anywhere else.
    assert [path for path, _ in registries.own.seen] == ["/@own%2fabsent"]
    assert registries.crates.seen == []
    assert all("authorization" not in headers for _, headers in registries.public.seen)
    assert {host for record in log for host in record.hosts} <= {
        *(each.host for each in (registries.own, registries.public)),
        *("169.254.169.254", "10.0.0.1", "inner.test"),
    }


async def test_identifying_headers_of_the_sandbox_are_not_forwarded(
    tmp_path: Path, registries: Registries
) -> None:
    async with running(registries.config(tmp_path)) as reached:
        headers = {"authorization": "Bearer mine", "host": registries.own.host, "x-forwarded-host": "evil.invalid"}
        more = {"cookie": "a=b", "npm-auth": "c", "referer": "http://evil.invalid/"}
        assert (await reached.client.get("/npm/plain", headers={**headers, **more})).status_code == 200
    assert registries.own.seen == []
    ((_, seen),) = registries.public.seen
    assert seen["host"] == registries.public.host
    assert not {"authorization", "cookie", "npm-auth", "referer", "x-forwarded-host"} & set(seen)


async def test_a_scope_never_falls_through_to_the_public_registry(tmp_path: Path, registries: Registries) -> None:
    registries.own.pages["/@own%2ffails"] = Answer(status=500)
    tarball_at(registries.public, "@own/fails", "http://evil.invalid/x.tgz")
    serve_crate(registries.public, "absent")
    async with running(registries.config(tmp_path)) as reached:
        assert (await reached.client.get("/npm/@own%2fabsent")).status_code == 404
        assert (await reached.client.get("/npm/@own%2ffails")).status_code == 502
        assert (await reached.client.get("/cargo/own/index/ab/se/absent")).status_code == 404
    assert registries.public.seen == []


async def test_an_index_of_pip_that_fails_is_not_left_out(tmp_path: Path) -> None:
    with registry() as own, registry() as public:
        own.pages["/simple/tool/"] = Answer(status=503)
        public.pages["/simple/tool/"] = Answer(b'<a href="tool-99.0.tar.gz">tool</a>')
        config = user_config(
            tmp_path, PIP_INDEX_URL=f"{own.url}/simple", PIP_EXTRA_INDEX_URL=f"{public.url}/simple"
        )
        async with running(config) as reached:
            assert (await reached.client.get("/pypi/simple/tool/")).status_code == 502


async def test_a_request_that_drips_is_cut(tmp_path: Path) -> None:
    limits = MirrorLimits(head_seconds=0.3)
    async with running(user_config(tmp_path, PIP_NO_INDEX="1"), limits=limits) as reached:
        reader, writer = await asyncio.open_unix_connection(reached.mirror.socket_path)
        with contextlib.suppress(OSError):
            for piece in b"GET /npm/plain HTTP/1.1\r\nX: " + b"a" * 10_000:
                writer.write(bytes([piece]))
                await writer.drain()
                await asyncio.sleep(0.01)
                if reader.at_eof() or reached.log:
                    break
        writer.close()
        while not reached.log:
            await asyncio.sleep(0.01)
    assert (reached.log[0].status, reached.log[0].problem) == (408, "the request did not come in time")


async def _flood(reached: Reached, count: int) -> list[bytes]:
    async def one() -> bytes:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_unix_connection(reached.mirror.socket_path)
            try:
                writer.write(b"GET /pypi/simple/alpha/" + HOST)
                return await reader.read()
            finally:
                writer.close()
        return b""

    return await asyncio.gather(*(one() for _ in range(count)))


@pytest.mark.parametrize("waves", [20, pytest.param(100, marks=pytest.mark.soak)])
async def test_ten_thousand_connections_are_bounded(tmp_path: Path, waves: int) -> None:
    limits = MirrorLimits(connections=8, head_seconds=3600)
    files = len(os.listdir("/proc/self/fd"))
    async with running(user_config(tmp_path, PIP_NO_INDEX="1"), limits=limits) as reached:
        held = [await asyncio.open_unix_connection(reached.mirror.socket_path) for _ in range(8)]
        most = 0
        for _ in range(waves):
            answers = await _flood(reached, 100)
            assert {answer[9:12] for answer in answers} <= {b"", b"503"}
            most = max(most, len(os.listdir("/proc/self/fd")))
        assert most < files + 200
        for reader, writer in held:
            writer.close()
            await reader.read()
        while len(reached.log) < 100 * waves + 8:
            await asyncio.sleep(0.01)
        assert [answer[9:12] for answer in await _flood(reached, 1)] == [b"404"]
    refused = reached.log[: 100 * waves]
    assert all("connections at once" in record.problem for record in refused)


async def everywhere_here(host: str, port: int) -> Sequence[Address]:
    """Resolve every name to this machine."""
    return [ipaddress.ip_address("127.0.0.1")]


async def test_a_kept_connection_serves_no_host_of_another_name(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path, "DNS:near.test")
    near = LocalRegistry(certificate=certificate, keeps_open=True)
    port = near.host.rpartition(":")[2]
    with contextlib.closing(near), registry() as index:
        links = [f"https://{host}.test:{port}/one-1.0.zip?{host}" for host in ("near", "far")]
        near.pages |= {f"/one-1.0.zip?{host}": Answer(b"zip") for host in ("near", "far")}
        page = "".join(f'<a href="{link}#sha256={n:064x}">one</a>' for n, link in enumerate(links))
        index.pages["/simple/one/"] = Answer(page.encode())
        config = user_config(tmp_path, PIP_INDEX_URL=f"{index.url}/simple", PIP_CERT=str(certificate))
        async with running(config, resolve=everywhere_here) as reached:
            text = (await reached.client.get("/pypi/simple/one/")).text
            first, second = (part.partition("#")[0] for part in text.split('href="')[1:])
            statuses = [(await reached.client.get(link)).status_code for link in (first, first, second)]
    assert statuses == [200, 200, 502]
    assert {headers["host"] for _, headers in near.seen} == {f"near.test:{port}"}
    assert "certificate is not trusted" in reached.log[-1].problem
