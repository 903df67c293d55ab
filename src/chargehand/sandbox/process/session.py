"""The host's side of the exec protocol: one open sandbox, one command at a time."""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import math
import os
import secrets
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from chargehand.core.errors import InfrastructureError, SandboxDiedError, UsageError
from chargehand.sandbox.contract import (
    WORKSPACE,
    ExecResult,
    LimitName,
    OnOutput,
    RunningProcess,
    SandboxLimits,
    SandboxUsage,
    processes_below,
)
from chargehand.sandbox.inside import exec_server as _server
from chargehand.sandbox.process.cgroups import Cgroup
from chargehand.sandbox.process.usage import UsageMeter


def encode_request(
    nonce: bytes,
    argv: Sequence[str],
    *,
    cwd: str,
    environment: Mapping[str, str],
    timeout: float,
    output_limit: int,
    output_most: int,
    stdin: int,
) -> bytes:
    """Return the body of an EXEC frame; raises `UsageError` (`command_invalid`) for what no kernel would take."""
    if not argv:
        raise UsageError("a command needs at least a program", code="command_invalid")
    if math.isnan(timeout) or output_limit < 0:
        raise UsageError(f"wrong limits: timeout {timeout!r}, output {output_limit!r}", code="command_invalid")
    request: dict[str, Any] = {
        "nonce": nonce,
        "argv": [_encoded(word) for word in argv],
        "cwd": _encoded(cwd),
        "environment": {_name(name): _encoded(value) for name, value in environment.items()},
        "timeout": float(timeout),
        "output_limit": output_limit,
        "output_most": output_most,
        "stdin": stdin,
    }
    return marshal.dumps(request)


def _encoded(word: str) -> bytes:
    try:
        data = os.fsencode(word)
    except UnicodeEncodeError:
        data = b"\0"
    if b"\0" in data:
        raise UsageError(
            f"{word!r} cannot be handed to a program",
            code="command_invalid",
            hint="leave out NUL characters and lone surrogates",
        )
    return data


def _name(name: str) -> bytes:
    if not name or "=" in name:
        raise UsageError(f"{name!r} is no name for an environment variable", code="command_invalid")
    return _encoded(name)


class ExecReply:
    """What has come back of the command that runs."""

    def __init__(self, nonce: bytes, on_output: OnOutput | None) -> None:
        self.nonce = nonce
        self.done: asyncio.Future[ExecResult] = asyncio.get_running_loop().create_future()
        self.ended = False
        self.stopped: LimitName | None = None
        """The limit at which we have everything killed, once there is one."""
        self._on_output = on_output
        self._kept: dict[bytes, list[bytes]] = {_server.OUT: [], _server.ERR: []}

    def take(self, kind: bytes, body: bytes) -> None:
        """Add one frame that carries our nonce."""
        if kind == _server.DONE:
            self.ended = True
            if not self.done.done():
                self.done.set_result(self._result(body))
            return
        self._kept[kind].append(body)
        if self._on_output and not self.done.done():
            try:
                self._on_output("stdout" if kind == _server.OUT else "stderr", body)
            except Exception as error:  # the listener's fault: it goes to who gave it to us
                self.done.set_exception(error)

    def abandon(self) -> None:
        """Take what still comes, for nobody: a listener that fails once more must not end the wait for the end."""
        self._on_output = None
        self.done = asyncio.get_running_loop().create_future()

    def _result(self, body: bytes) -> ExecResult:
        code, seconds, truncated, timed_out, flooded, _, written = _server.OUTCOME.unpack(body)
        return ExecResult(
            exit_code=code,
            stdout=b"".join(self._kept[_server.OUT]),
            stderr=b"".join(self._kept[_server.ERR]),
            seconds=seconds,
            truncated=truncated,
            timed_out=timed_out,
            limit="wall_time" if timed_out else "output" if flooded else None,
            written=written,
        )


_T = TypeVar("_T")
START_SECONDS = 30.0
_GRACE_SECONDS = 10.0
_LATEST_SECONDS = 30.0
_LONGEST_WAIT = 86_400.0
_LARGEST_FRAME = 1 << 20
_MOST_FREEZES = 256


async def _to_the_end(what: Awaitable[_T]) -> _T:
    """Await `what` to its end even where the caller is cancelled meanwhile; the cancellation comes after."""
    task = asyncio.ensure_future(what)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and not task.cancelled():
        task.exception()
        raise cancelled
    return task.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What a program is started with; `more` is the input that comes while it runs, instead of `stdin`."""

    argv: Sequence[str]
    cwd: str
    environment: Mapping[str, str]
    stdin: bytes = b""
    more: AsyncIterator[bytes] | None = None


class ServedSandbox:
    """A sandbox with our exec server inside; keeps the promises of `Sandbox`, whatever its tier."""

    tier = ""
    start_seconds = START_SECONDS

    def __init__(
        self,
        name: str,
        sock: socket.socket,
        ended: asyncio.Future[int],
        *,
        kill: Callable[[], None],
        first: Callable[[], int | None],
        cgroup: Cgroup | None,
        limits: SandboxLimits,
        environment: Mapping[str, str],
        limits_in_force: Mapping[str, str],
    ) -> None:
        self.id = name
        self.limits_in_force = limits_in_force
        self._environment = environment
        self._sock = sock
        self._ended = ended
        self._kill = kill
        self._first = first
        self._limits = limits
        self._meter = UsageMeter(limits, first=first)
        self.use_cgroup(cgroup)
        self._frozen_since = 0.0
        self._frozen_total = 0.0
        self._freezes: deque[float] = deque(maxlen=_MOST_FREEZES)
        self._freezing = asyncio.Lock()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._closing: asyncio.Future[None] | None = None
        self._turn = asyncio.Lock()
        self._reply: ExecReply | None = None
        self._signals: asyncio.Queue[bytes] = asyncio.Queue()
        self._died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reading: asyncio.Task[None] | None = None

    async def start(self, server: bytes) -> None:
        """Send the exec server and wait for its greeting; raises `SandboxDiedError` where none comes."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._sock, limit=_LARGEST_FRAME)
        self._reading = asyncio.create_task(self._read())
        self._writer.write(server)
        await self._wait(self._signals.get(), seconds=self.start_seconds)

    def use_cgroup(self, cgroup: Cgroup | None) -> None:
        """Freeze by this group from now on, and count what it used; for one that was made by an engine."""
        self._cgroup = cgroup
        self._meter.use(cgroup)

    async def _read(self) -> None:
        """Hand each frame to whom it concerns until the sandbox ends."""
        try:
            while True:
                kind, size = _server.FRAME.unpack(await self._reader.readexactly(_server.FRAME.size))
                if size > _LARGEST_FRAME:
                    self._kill()  # no exec server of ours sends this
                    return
                body = await self._reader.readexactly(size)
                if kind in (_server.OUT, _server.ERR, _server.DONE):
                    self._take(kind, body)
                else:
                    self._signals.put_nowait(kind)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            if not self._died.done():
                self._died.set_result(None)

    def _take(self, kind: bytes, body: bytes) -> None:
        nonce, body = body[: _server.NONCE_BYTES], body[_server.NONCE_BYTES :]
        if self._reply is None or not secrets.compare_digest(nonce, self._reply.nonce):
            self._kill()  # nobody but the exec server knows the nonce: this is not it
            return
        self._reply.take(kind, body)

    async def _wait(self, what: Awaitable[_T], *, seconds: float | None) -> _T:
        """Await `what` unless the sandbox ends, or says nothing for `seconds`."""
        task = asyncio.ensure_future(what)
        waited: list[asyncio.Future[Any]] = [task, self._died, self._ended]
        try:
            await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            return task.result()
        task.cancel()
        why = "ended while in use" if self._dead else "no longer answers"
        self._kill()
        self._meter.refresh()
        if self._dead and self._meter.memory_ran_out:
            raise SandboxDiedError(
                f"sandbox {self.id!r} ended: all of its {self._limits.memory_mb} MiB of memory were used up",
                code="sandbox_memory",
                hint="raise sandbox.memory_mb, or lower sandbox.tmp_mb: temporary files are memory too",
            )
        raise SandboxDiedError(
            f"sandbox {self.id!r} {why}", hint="it was killed from outside; run the mission again"
        )

    @property
    def _dead(self) -> bool:
        return self._closing is not None or self._died.done() or self._ended.done()

    def _send(self, kind: bytes, body: bytes = b"") -> None:
        if self._dead:
            raise SandboxDiedError(f"sandbox {self.id!r} is closed")
        self._writer.write(_server.FRAME.pack(kind, len(body)) + body)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        cwd: str = WORKSPACE,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = 1_000_000,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Run one program to its end; see `Sandbox.exec`."""
        given = _Given(argv=argv, cwd=cwd, environment=environment or {}, stdin=stdin)
        return await self._run(given, on_output, timeout=timeout, output_limit=output_limit)

    async def converse(
        self,
        argv: Sequence[str],
        stdin: AsyncIterator[bytes],
        *,
        timeout: float = 60.0,
        cwd: str = WORKSPACE,
        environment: Mapping[str, str] | None = None,
        output_limit: int = 1_000_000,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Run one program to its end and hand it what comes meanwhile; see `Converses.converse`."""
        given = _Given(argv=argv, cwd=cwd, environment=environment or {}, more=stdin)
        return await self._run(given, on_output, timeout=timeout, output_limit=output_limit)

    async def _run(
        self, given: _Given, on_output: OnOutput | None, *, timeout: float, output_limit: int
    ) -> ExecResult:
        reply = ExecReply(secrets.token_bytes(_server.NONCE_BYTES), on_output)
        request = encode_request(
            reply.nonce,
            given.argv,
            cwd=given.cwd,
            environment={**self._environment, **given.environment},
            timeout=timeout,
            output_limit=output_limit,
            output_most=self._limits.output_mb << 20,
            stdin=len(given.stdin) if given.more is None else -1,
        )
        async with self._turn:
            if not self._thawed.is_set():
                await self._wait(self._thawed.wait(), seconds=None)
            self._reply = reply
            before = self._meter.mark()
            minding = asyncio.create_task(self._mind(reply)) if self._meter.minds else None
            try:
                self._send(_server.EXEC, request)
                if given.stdin:
                    self._send(_server.STDIN, given.stdin)
                async with self._feeding(given.more):
                    result = await self._wait_for(reply, timeout)
                return self._meter.judged(result, before, reply.stopped)
            except SandboxDiedError:
                raise
            except BaseException:  # cancelled, or the listener failed
                await _to_the_end(self._abandon(reply))
                raise
            finally:
                self._reply = None
                if minding is not None:
                    minding.cancel()

    async def _mind(self, reply: ExecReply) -> None:
        """Look now and then at what a command takes, and kill everything where that is too much."""
        while reply.stopped is None:
            await asyncio.sleep(self._meter.pause)
            if self._thawed.is_set() and not self._dead:
                reply.stopped = await asyncio.to_thread(self._meter.look)
        with contextlib.suppress(SandboxDiedError):
            self._send(_server.KILL)

    @contextlib.asynccontextmanager
    async def _feeding(self, stdin: AsyncIterator[bytes] | None) -> AsyncIterator[None]:
        """Hand on what comes for the command until it ends."""
        if stdin is None:
            yield
            return
        feeding = asyncio.create_task(self._feed(stdin))
        try:
            yield
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])
        if not feeding.cancelled():
            feeding.result()

    async def _feed(self, stdin: AsyncIterator[bytes]) -> None:
        with contextlib.suppress(SandboxDiedError, ConnectionError):  # whoever waits for the command is told
            async for piece in stdin:
                if piece:  # a frame of nothing is the end
                    self._send(_server.STDIN, piece)
                    await self._writer.drain()
            self._send(_server.STDIN, b"")

    async def _wait_for(self, reply: ExecReply, timeout: float) -> ExecResult:
        """Await the end of a command: the exec server keeps its time limit, here is what holds if it cannot."""
        left = max(0.0, timeout) + _LATEST_SECONDS
        while True:
            before = self._frozen_seconds()
            waited: list[asyncio.Future[Any]] = [reply.done, self._died, self._ended]
            await asyncio.wait(waited, timeout=min(left, _LONGEST_WAIT), return_when=asyncio.FIRST_COMPLETED)
            frozen = self._frozen_seconds() - before
            left = left - min(left, _LONGEST_WAIT) + frozen
            if reply.done.done():
                return reply.done.result()
            if left <= 0 or self._dead:
                return await self._wait(reply.done, seconds=0)

    def _frozen_seconds(self) -> float:
        """Return for how long this sandbox has been frozen in all."""
        return self._frozen_total + (0.0 if self._thawed.is_set() else time.monotonic() - self._frozen_since)

    async def _abandon(self, reply: ExecReply) -> None:
        """Kill what runs and wait for its last frame, so that the next command starts clean."""
        with contextlib.suppress(SandboxDiedError, InfrastructureError):
            await self.thaw()
            self._send(_server.KILL)
            if not reply.ended:
                reply.abandon()
                await self._wait(reply.done, seconds=_GRACE_SECONDS)

    async def freeze(self) -> None:
        """Stop every process inside; see `Sandbox.freeze`."""
        await _to_the_end(self._set_frozen(True))

    async def thaw(self) -> None:
        """Let frozen processes run on; see `Sandbox.thaw`."""
        await _to_the_end(self._set_frozen(False))

    async def _set_frozen(self, wanted: bool) -> None:
        async with self._freezing:
            if wanted != self._thawed.is_set():
                return
            if self._dead:
                raise SandboxDiedError(f"sandbox {self.id!r} is closed")
            if wanted:
                self._frozen_since = time.monotonic()
                self._thawed.clear()
            try:
                await (self._order_freeze() if wanted else self._order_thaw())
            except BaseException:
                self._thawed.set()
                raise
            if wanted:
                self._freezes.append(time.monotonic() - self._frozen_since)
            else:
                self._frozen_total = self._frozen_seconds()
                self._thawed.set()

    async def _order_freeze(self) -> None:
        if self._cgroup is not None and self._cgroup.freezer is not None:
            await asyncio.to_thread(self._cgroup.freeze, True)
        else:
            self._send(_server.FREEZE)
            await self._wait(self._signals.get(), seconds=_GRACE_SECONDS)

    async def _order_thaw(self) -> None:
        if self._cgroup is not None and self._cgroup.freezer is not None:
            # Sent first: the exec server must not take the time it stood still for time its command had.
            self._send(_server.SKIP, _server.SECONDS.pack(time.monotonic() - self._frozen_since))
            await asyncio.to_thread(self._cgroup.freeze, False)
        else:
            self._send(_server.THAW)
            await self._wait(self._signals.get(), seconds=_GRACE_SECONDS)

    def usage(self) -> SandboxUsage:
        """Return what it took; see `Sandbox.usage`."""
        self._meter.refresh()
        return self._meter.usage(tuple(self._freezes))

    async def close(self) -> None:
        """Kill everything inside and release what it held; see `Sandbox.close`."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._release())
        await _to_the_end(self._closing)

    async def _release(self) -> None:
        self.usage()  # a group that an engine made goes with its container
        if self._cgroup is not None:
            if not self._thawed.is_set():
                self._cgroup.kill()  # while nothing runs, so that nothing writes between the thaw and the end
            with contextlib.suppress(InfrastructureError, OSError):
                await asyncio.to_thread(self._cgroup.freeze, False)  # version 1 holds back SIGKILL while frozen
        self._kill()
        await asyncio.wait([self._ended], timeout=_GRACE_SECONDS)
        if self._reading is None:
            self._sock.close()
        else:
            self._reading.cancel()
            self._writer.transport.abort()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
        if self._cgroup is not None:
            self.usage()
            await asyncio.to_thread(self._cgroup.remove)


class ProcessSandbox(ServedSandbox):
    """A sandbox of the `process` tier, whose processes are seen from outside; made by `ProcessTier.open`."""

    tier = "process"

    def processes(self) -> tuple[RunningProcess, ...]:
        """Return what runs inside; see `ShowsProcesses.processes`."""
        first = self._first()
        return () if first is None or self._dead else processes_below(first)
