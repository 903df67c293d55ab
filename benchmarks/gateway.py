"""The cost of the model gateway for a call, a stream and memory, against no gateway and the LiteLLM proxy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.gateway_side import EVENT, PACE_SECONDS, PIECES
from benchmarks.measure import Result, Side, Taken, compare, percentile_95
from benchmarks.mission_kit import MissionKit
from benchmarks.throwaway import environment_with

ADDED_AIM = 0.003
DIRECT, OURS, PEER = "upstream directly", "Gateway, unix socket", "LiteLLM proxy"
_ROOT = Path(__file__).parents[1]
_REPEAT = 5
_BATCH = 40
_STREAMS = 200
_ATTEMPTS = 50
_SLOW_ROUNDS = 2
_REQUEST_BYTES = 20_000
_START_SECONDS = 300
_PEER_KEY = "sk-benchmark"
_PEER_QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "DISABLE_ADMIN_UI": "True"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to the upstream; `process` is the process whose memory counts."""

    name: str
    address: str | tuple[str, int]
    token: str
    process: int

    def request(self, model: str, *, stream: bool) -> bytes:
        """Return a whole HTTP request of about 20 kB."""
        messages = [{"role": "user", "content": "x" * _REQUEST_BYTES}]
        body = json.dumps({"model": model, "messages": messages, "max_tokens": 5_000, "stream": stream}).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {self.token}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


async def run(kit: MissionKit, *, rounds: int) -> list[Result]:
    """Start an upstream, a gateway and the peer as separate processes, and call each in turn."""
    with contextlib.ExitStack() as stack:
        upstream = _Process(stack, "upstream")
        place = kit.place / "gateway"
        place.mkdir()
        gateway = _Process(stack, "gateway", str(place), str(upstream.said["port"]))
        port, said = upstream.said["port"], gateway.said
        direct = Way(name=DIRECT, address=_tcp(port), token="", process=upstream.process.pid)
        own = Way(name=OURS, address=said["socket"], token=said["token"], process=gateway.process.pid)
        tcp = replace(own, name="Gateway, TCP", address=_tcp(said["port"]))
        free = said["memory"]
        memory = replace(own, name="Gateway, nothing kept", address=free["socket"], token=free["token"])
        peer = stack.enter_context(_peer(kit.place, port))
        peers = [peer] if peer else []
        missing = "" if peer else f"; {PEER}: not installed"
        all_ways = [direct, own, tcp, memory, *peers]
        results = [
            *await _calls(all_ways, "whole reply", stream=False, rounds=rounds, note=_CALL_NOTE + missing),
            *await _calls(all_ways, "stream of 40 pieces", stream=True, rounds=rounds),
            *await _calls(all_ways, "stream's first byte", stream=True, rounds=rounds, first=True),
            await _processor(all_ways[1:], rounds=rounds),
            await _disk(place, rounds=rounds),
            await _throughput([direct, own, tcp, *peers], rounds=rounds),
            await _crowd([direct, own, *peers]),
        ]
        return [*results, _attempts(kit.place / "attempts", direct)]


_CALL_NOTE = (
    "20 kB to the upstream, 2 kB back, connection kept; the gateway has reserve and reply on the disk, settles"
    " each call and notes it in the mission's log, the proxy only checks its key"
)


async def _calls(
    ways: Sequence[Way], case: str, *, stream: bool, rounds: int, note: str = "", first: bool = False
) -> list[Result]:
    """Measure single calls until their last byte or the `first`, and what each way adds to the upstream's time."""
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(_Line(way)) for way in ways]
        sides = [
            Side(name=line.way.name, sample=line.sample("reply", stream=stream, first=first), repeat=_REPEAT)
            for line in lines
        ]
        plain = await compare("gateway", case, sides, rounds=rounds, note=note)
    base, *others = plain.sides
    middle = [
        Taken(
            name=side.name,
            rounds=[
                [statistics.median(mine) - statistics.median(its)]
                for mine, its in zip(side.rounds, base.rounds, strict=True)
            ],
        )
        for side in others
    ]
    slow = [
        Taken(name=side.name, rounds=[[percentile_95(side.samples) - percentile_95(base.samples)]])
        for side in others
    ]
    return [
        plain,
        replace(plain, case=f"added to a {case}, p50", sides=tuple(middle), aim=ADDED_AIM, note=""),
        replace(plain, case=f"added to a {case}, p95", sides=tuple(slow), note=""),
    ]


async def _processor(ways: Sequence[Way], *, rounds: int) -> Result:
    """Measure only the processor time of the intermediate process for a whole reply."""

    def side(way: Way) -> Side:
        request = way.request("reply", stream=False)

        async def sample() -> float:
            with _Line(way) as line:  # a new connection: the peer closes idle ones after some seconds
                before = _cpu(way.process)
                for _ in range(_BATCH):
                    line.call(request)
                return (_cpu(way.process) - before) / _BATCH

        return Side(name=way.name, sample=sample)

    sides = [side(way) for way in ways]
    return await compare("gateway", "whole reply, processor", sides, rounds=max(3, rounds // 2))


def _cpu(pid: int) -> float:
    """Return the processor seconds of all threads of a process; ticks of 10 ms, so over many calls."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _disk(place: Path, *, rounds: int) -> Result:
    """Measure the lower bound of a reserve: money is on disk before the call is made."""
    with (place / "synced").open("wb", buffering=0) as file:

        async def sample() -> float:
            started = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            return time.perf_counter() - started

        side = Side(name="write, fdatasync", sample=sample, repeat=_REPEAT)
        return await compare("gateway", "4 kB to the disk", [side], rounds=rounds)


async def _throughput(ways: Sequence[Way], *, rounds: int) -> Result:
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(_Line(way)) for way in ways]
        sides = [
            Side(
                name=line.way.name,
                sample=line.sample("many", stream=True),
                most=_SLOW_ROUNDS if line.way.name == PEER else None,
            )
            for line in lines
        ]
        case = f"stream of {PIECES['many']:,} pieces"
        result = await compare("gateway", case, sides, rounds=rounds)
    size = PIECES["many"] * len(EVENT) / 1e6
    told = [
        f"{side.name} {size / side.median:.1f} MB/s, {PIECES['many'] / side.median:,.0f} tokens/s"
        for side in result.sides
    ]
    return replace(result, note=f"{len(EVENT)} bytes to a piece: {'; '.join(told)}")


async def _crowd(ways: Sequence[Way]) -> Result:
    """Run many streams at once, each as fast as a fast model writes."""
    most: dict[str, float] = {}
    bodies: dict[str, set[str]] = {}
    before = {way.name: _memory(way.process, "VmRSS") for way in ways}

    def side(way: Way) -> Side:
        async def sample() -> float:
            Path(f"/proc/{way.process}/clear_refs").write_text("5")  # the peak counts from here, see proc(5)
            request = way.request("paced", stream=True)
            started = time.perf_counter()
            texts = await asyncio.gather(*[_streamed(way.address, request) for _ in range(_STREAMS)])
            took = time.perf_counter() - started
            most[way.name] = max(most.get(way.name, 0.0), _memory(way.process, "VmHWM"))
            bodies.setdefault(way.name, set()).update(texts)
            return took

        return Side(name=way.name, sample=sample, most=_SLOW_ROUNDS)

    case = f"{_STREAMS} streams at once"
    result = await compare("gateway", case, [side(way) for way in ways], rounds=_SLOW_ROUNDS)
    pace = f"{PIECES['paced']} pieces each, one in {PACE_SECONDS * 1000:g} ms, so at best {_paced():.1f} s"
    told = "; ".join(
        f"{name} {before[name]:.0f} MB before, {megabytes:.0f} MB at most, "
        f"{max(0.0, megabytes - before[name]) * 1000 / _STREAMS:.0f} kB a stream"
        for name, megabytes in most.items()
    )
    if len(bodies[DIRECT]) != 1 or bodies[OURS] != bodies[DIRECT]:
        raise RuntimeError(f"{OURS}: not the events that the upstream wrote")
    return replace(result, note=f"all complete, their events equal; {pace}; resident memory: {told}")


def _attempts(place: Path, direct: Way) -> Result:
    """Open as many gateways as a busy worker has, in a separate process, then call each once."""
    place.mkdir()
    ours, its = Taken(name=OURS), Taken(name=DIRECT)
    with contextlib.ExitStack() as stack:
        gateway = _Process(stack, "gateway", str(place), str(direct.address[1]))
        own = replace(direct, name=OURS, address=gateway.said["socket"], token=gateway.said["token"])
        _first_call(own)  # one-time imports do not count for an attempt
        before = _memory(gateway.process.pid, "VmRSS")
        opened = gateway.ask(f"open {_ATTEMPTS}")["opened"]
        idle = _memory(gateway.process.pid, "VmRSS")
        for one in opened:
            ours.rounds.append([_first_call(replace(own, address=one["socket"], token=one["token"]))])
            its.rounds.append([_first_call(direct)])
        used = _memory(gateway.process.pid, "VmRSS")
    each, after = ((now - before) * 1000 / _ATTEMPTS for now in (idle, used))
    note = f"{_ATTEMPTS} open gateways: {each:.0f} kB each before their first call, {after:.0f} kB each after it"
    case = "first call of an attempt"
    return Result(benchmark="gateway", case=case, sides=(its, ours), load=os.getloadavg(), note=note)


def _first_call(way: Way) -> float:
    started = time.perf_counter()
    with _Line(way) as line:
        line.call(way.request("reply", stream=False))
    return time.perf_counter() - started


class _Process:
    """A ready process of `gateway_side`; it ends with `stack`."""

    def __init__(self, stack: contextlib.ExitStack, *given: str) -> None:
        argv = [sys.executable, "-m", "benchmarks.gateway_side", *given]
        self.process = subprocess.Popen(argv, cwd=_ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        stack.callback(self._end)
        self.said = self._line()

    def ask(self, command: str) -> dict[str, Any]:
        """Send a command and return the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line: dict[str, Any] = json.loads(self.process.stdout.readline())
        return line

    def _end(self) -> None:
        self.process.communicate()  # it ends when its input closes


class _Line:
    """A persistent connection, read without any library, so that the client itself costs next to nothing."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self._socket = socket.socket(socket.AF_UNIX if isinstance(way.address, str) else socket.AF_INET)

    def __enter__(self) -> _Line:
        self._socket.connect(self.way.address)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def sample(self, model: str, *, stream: bool, first: bool = False) -> Callable[[], Awaitable[float]]:
        """Return a sample of one call: its seconds, or those until the first byte of its body."""
        request = self.way.request(model, stream=stream)

        async def sample() -> float:
            started = time.perf_counter()
            begun = self.call(request)
            return (begun if first else time.perf_counter()) - started

        return sample

    def call(self, request: bytes) -> float:
        """Send and read until the last byte; return when the first byte of the body arrived."""
        self._socket.sendall(request)
        got, begun = bytearray(), 0.0
        while not _is_whole(got):
            got += _some(self._socket.recv(1_048_576))
            if not begun and -1 < got.find(b"\r\n\r\n") < len(got) - 4:
                begun = time.perf_counter()
        _check(got)
        return begun


async def _streamed(address: str | tuple[str, int], request: bytes) -> str:
    """Return the text of the events of one stream."""
    if isinstance(address, str):
        reader, writer = await asyncio.open_unix_connection(address)
    else:
        reader, writer = await asyncio.open_connection(*address)
    with contextlib.closing(writer):
        writer.write(request)
        got = bytearray()
        while not _is_whole(got):
            got += _some(await reader.read(65_536))
    _check(got)
    return "".join(line for line in got.decode().split("\n") if line.startswith("data: "))


def _some(data: bytes) -> bytes:
    if not data:
        raise RuntimeError("a reply ended before it was whole")
    return data


def _is_whole(got: bytearray) -> bool:
    end = got.find(b"\r\n\r\n", 0, 16_384)
    if end < 0:
        return False
    length = bytes(got[:end]).lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return len(got) >= end + 4 + int(length) if length else got.endswith(b"\r\n0\r\n\r\n")


def _check(got: bytearray) -> None:
    """Raise if the reply is not the upstream's."""
    if not got.startswith(b"HTTP/1.1 200") or not (b"[DONE]" in got or b'"chat.completion"' in got):
        raise RuntimeError(f"not a whole reply: {bytes(got[:20])!r} … {bytes(got[-300:])!r}")


def _tcp(port: int) -> tuple[str, int]:
    return "127.0.0.1", port


@contextlib.contextmanager
def _peer(place: Path, upstream: int) -> Iterator[Way | None]:
    """Run the proxy from PATH, or else from our cache, if it can be installed."""
    program = shutil.which("litellm") or _installed()
    if program is None:
        yield None
        return
    models = [
        {
            "model_name": name,
            "litellm_params": {
                "model": f"openai/{name}",
                "api_base": f"http://127.0.0.1:{upstream}/v1",
                "api_key": "key",
            },
        }
        for name in PIECES
    ]
    config = place / "peer.yaml"  # JSON is YAML
    config.write_text(json.dumps({"model_list": models, "general_settings": {"master_key": _PEER_KEY}}))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    with (place / "peer.log").open("wb") as log:
        environment = {**os.environ, **_PEER_QUIET}
        process = subprocess.Popen(argv, cwd=place, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_until_alive(process, port)
            yield Way(name=PEER, address=("127.0.0.1", port), token=_PEER_KEY, process=process.pid)
        finally:
            process.terminate()
            process.wait()


def _installed() -> str | None:
    """Return the proxy of a private environment that is kept: it downloads half a gigabyte."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache / "chargehand-benchmarks" / "litellm"
    program = place / "bin/litellm"
    if not program.exists() and environment_with("litellm[proxy]", place) is None:
        return None
    return str(program)


def _wait_until_alive(process: subprocess.Popen[bytes], port: int) -> None:
    limit = time.monotonic() + _START_SECONDS
    while time.monotonic() < limit and process.poll() is None:
        with contextlib.suppress(OSError, urllib.error.URLError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=5).close()
            return
        time.sleep(0.2)
    raise RuntimeError(f"{PEER} did not start")


def _memory(pid: int, field: str) -> float:
    """Return a field of `/proc/PID/status` in megabytes."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024 / 1e6


def _paced() -> float:
    return PIECES["paced"] * PACE_SECONDS
