"""The time that the proxy to allowed hosts adds to a request and to a download, against no proxy and proxy.py."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.measure import Result, Side, compare
from benchmarks.mission_kit import MissionKit
from chargehand.network.allow_list import AllowList
from chargehand.network.contract import EgressLimits, EgressRequest
from chargehand.network.egress import EgressProxy

DIRECT, OURS, PEER = "host directly", "EgressProxy, unix socket", "proxy.py, TCP"
_ROOT = Path(__file__).parents[1]
_SMALL, _LARGE = 2_000, 64 << 20
_REPEAT = 5
_START_SECONDS, _INSTALL_SECONDS = 30, 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to the host on loopback; without `through` it is direct."""

    name: str
    host: int
    through: str | tuple[str, int] | None = None

    def fetch(self, size: int) -> float:
        """Return the seconds for an answer of `size` on a new connection or, through a proxy, a new tunnel."""
        started = time.perf_counter()
        address = ("127.0.0.1", self.host) if self.through is None else self.through
        with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as line:
            line.connect(address)
            if self.through is not None:
                place = f"127.0.0.1:{self.host}"
                line.sendall(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
                said = b""
                while not said.endswith(b"\r\n\r\n"):
                    said += _some(line.recv(1))
                if b" 200 " not in said:
                    raise RuntimeError(f"refused: {said!r}")
            line.sendall(b"%d\n" % size)
            left = size
            while left:
                left -= len(_some(line.recv(min(left, 1 << 20))))
        return time.perf_counter() - started


async def run(kit: MissionKit, *, rounds: int) -> list[Result]:
    """Start a host, the proxy and the peer as separate processes, and fetch through each in turn."""
    with contextlib.ExitStack() as stack:
        port = int(_started(stack, "host"))
        path = kit.place / "egress.sock"
        _started(stack, "proxy", str(path), str(port))
        ways = [Way(name=DIRECT, host=port), Way(name=OURS, host=port, through=str(path))]
        peer = stack.enter_context(_peer(kit.place / "egress-peer", port))
        ways += [peer] if peer else []
        missing = "" if peer else f"; {PEER}: not installed"
        note = f"a new connection each, by CONNECT where there is a proxy; ours judges and logs{missing}"
        small = await compare("egress", "request of 2 kB", _sides(ways, _SMALL), rounds=rounds, note=note)
        large = await compare("egress", "64 MiB", _sides(ways, _LARGE), rounds=max(1, rounds // 4))
        rates = "; ".join(f"{side.name} {_LARGE / 1e6 / side.median:,.0f} MB/s" for side in large.sides)
        return [small, replace(large, note=rates)]


def _sides(ways: Sequence[Way], size: int) -> list[Side]:
    def sample(way: Way) -> Callable[[], Awaitable[float]]:
        async def taken() -> float:
            return way.fetch(size)

        return taken

    return [Side(name=way.name, sample=sample(way), repeat=_REPEAT if size == _SMALL else 1) for way in ways]


def _some(data: bytes) -> bytes:
    if not data:
        raise RuntimeError("an answer ended before it was whole")
    return data


def _started(stack: contextlib.ExitStack, *given: str) -> str:
    """Start this module as a process that ends with `stack`; return its first line."""
    argv = [sys.executable, "-m", "benchmarks.egress", *given]
    process = subprocess.Popen(argv, cwd=_ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    stack.callback(process.communicate)  # it ends when its input closes
    assert process.stdout is not None
    return process.stdout.readline()


@contextlib.contextmanager
def _peer(place: Path, host: int) -> Iterator[Way | None]:
    """Run the peer from PATH, or else from a throw-away environment if one can be made."""
    program = shutil.which("proxy") or _installed(place)
    if program is None:
        yield None
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [program, "--hostname", "127.0.0.1", "--port", str(port), "--num-workers", "1", "--log-level", "ERROR"]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    way = Way(name=PEER, host=host, through=("127.0.0.1", port))
    try:
        _wait(way)
        yield way
    finally:
        process.terminate()
        process.wait()


def _wait(way: Way) -> None:
    limit = time.monotonic() + _START_SECONDS
    while True:
        try:
            way.fetch(1)
        except (OSError, RuntimeError):
            if time.monotonic() > limit:
                raise
            time.sleep(0.1)
        else:
            return


def _installed(place: Path) -> str | None:
    install = [str(place / "bin/python"), "-m", "pip", "install", "--quiet", "proxy.py"]
    try:
        for argv in ([sys.executable, "-m", "venv", str(place)], install):
            subprocess.run(argv, check=True, capture_output=True, timeout=_INSTALL_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return str(place / "bin/proxy")


async def _host() -> None:
    """Answer each line, a number, with that many bytes, until the input ends."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError):
            left = int(await reader.readline())
            while left > 0:
                writer.write(bytes(min(left, 1 << 18)))
                left -= 1 << 18
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def _proxy(path: Path, port: int) -> None:
    log: list[EgressRequest] = []
    limits = EgressLimits(bytes_in=1 << 50, requests_per_second=1_000_000)
    async with EgressProxy(path, AllowList.parse([f"127.0.0.1:{port}"]), log=log.append, limits=limits):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_host() if sys.argv[1] == "host" else _proxy(Path(sys.argv[2]), int(sys.argv[3])))
