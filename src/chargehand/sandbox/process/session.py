"""One open sandbox from the host's side: commands one after another, freezing, usage, closing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import marshal
import posixpath
import secrets
import signal
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.errors import InfrastructureError, SandboxDiedError
from chargehand.sandbox.contract import (
    WORKSPACE,
    ExecResult,
    LimitName,
    OnOutput,
    OpenedFiles,
    RunningProcess,
    SandboxLimits,
    SandboxUsage,
)
from chargehand.sandbox.inside import exec_server
from chargehand.sandbox.process.cgroups import Cgroup
from chargehand.sandbox.process.exec_protocol import (
    ExecChannel,
    ExecReply,
    decode_opened,
    encode_environment,
    encode_request,
    encode_word,
)
from chargehand.sandbox.process.usage import UsageMeter, processes_below

_T = TypeVar("_T")
START_SECONDS = 30.0
_GRACE_SECONDS = 10.0
_KILLED = 128 + signal.SIGKILL
# Pauses before each measurement of a command's writes; the last pause repeats.
_DISK_PAUSES_SECONDS = (0.0, 0.3, 0.45, 0.7, 1.0, 1.5, 2.0)
# Seconds after a command's time limit: only then does the host give up on an exec server that does not answer.
_LATEST_SECONDS = 30.0
_LONGEST_WAIT_SECONDS = 86_400.0  # asyncio's timers overflow on values that callers may ask for
_MOST_FREEZES = 256


async def _finish(what: Awaitable[_T]) -> _T:
    """Await `what` to its end even if the caller is cancelled meanwhile; raise the cancellation afterwards."""
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


class StartedSandbox(Struct, frozen=True, kw_only=True, eq=False):
    """A sandbox started by a tier: how to reach its exec server, notice its end, and end it.

    `sock` leads to the exec server; `ended` is done when the sandbox is gone; `kill` ends it at once; `first`
    returns the host pid of its process 1, `None` if it cannot be known. `limits` are in force, described in words
    by `limits_in_force`. Commands start with `environment`, in `cwd`.
    """

    name: str
    sock: socket.socket
    ended: asyncio.Future[int]
    kill: Callable[[], None]
    first: Callable[[], int | None]
    limits: SandboxLimits
    limits_in_force: Mapping[str, str]
    environment: Mapping[str, str]
    cwd: str


class ServedSandbox:
    """A sandbox with our exec server inside; keeps the promises of `Sandbox`, whatever its tier."""

    tier = ""
    start_seconds = START_SECONDS

    def __init__(self, started: StartedSandbox, *, cgroup: Cgroup | None = None) -> None:
        self.id = started.name
        self.cwd = started.cwd
        self.limits_in_force = started.limits_in_force
        self._environment = encode_environment(started.environment)
        self._channel = ExecChannel(started.sock, self._receive_frame)
        self._ended = started.ended
        self._kill = started.kill
        self._first = started.first
        self._limits = started.limits
        self._meter = UsageMeter(started.limits, first=started.first)
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
        # Separate from the signals: a freeze may wait for its signal while file reports arrive.
        self._told: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue()
        self._observed: tuple[str, ...] = ()
        self._find_passed_disk_limit: Callable[[], LimitName | None] | None = None
        for end in (started.ended, self._channel.lost):
            end.add_done_callback(self._note_end)

    def _note_end(self, _: asyncio.Future[Any]) -> None:
        """Wake the waiter for a command: the sandbox, or its exec server, is gone."""
        if self._channel.violated:
            self._kill()
        if self._reply is not None:
            self._reply.wake()

    async def start(self, server: bytes) -> None:
        """Send the exec server and wait for its greeting; raises `SandboxDiedError` if none comes."""
        await self._channel.open()
        self._channel.send(server)
        await self._wait(self._signals.get(), seconds=self.start_seconds)

    def use_cgroup(self, cgroup: Cgroup | None) -> None:
        """Freeze by this group from now on, and count its usage; for a group made by an engine."""
        self._cgroup = cgroup
        self._meter.use(cgroup)

    def limit_disk(self, find_passed_limit: Callable[[], LimitName | None]) -> None:
        """End commands that write too much; see `LimitsDisk.limit_disk`."""
        self._find_passed_disk_limit = find_passed_limit

    def _receive_frame(self, kind: bytes, body: bytes) -> None:
        """Handle one frame that arrived."""
        if kind not in (exec_server.OUT, exec_server.ERR, exec_server.DONE):
            if kind in (exec_server.OPENED, exec_server.TOLD):
                self._told.put_nowait((kind, body))
            else:
                self._signals.put_nowait(kind)
            return
        nonce = body[: exec_server.NONCE_BYTES]
        if self._reply is None or not secrets.compare_digest(nonce, self._reply.nonce):
            self._kill()  # only the exec server knows the nonce: this is another sender
        else:
            self._reply.take(kind, body[exec_server.NONCE_BYTES :])

    @property
    def _dead(self) -> bool:
        return self._closing is not None or self._channel.lost.done() or self._ended.done()

    def _send(self, kind: bytes, body: bytes = b"") -> None:
        if self._dead:
            raise SandboxDiedError(f"sandbox {self.id!r} is closed")
        self._channel.send_frame(kind, body)

    async def _wait(self, what: Awaitable[_T], *, seconds: float | None) -> _T:
        """Await `what` unless the sandbox ends, or is silent for `seconds`."""
        task = asyncio.ensure_future(what)
        waited: list[asyncio.Future[Any]] = [task, self._channel.lost, self._ended]
        try:
            await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # No other code awaits it.
            task.cancel()
            raise
        if task.done():
            return task.result()
        task.cancel()
        raise self._give_up()

    def _give_up(self) -> SandboxDiedError:
        """Kill the sandbox; return the error that gives the reason why it can no longer be used."""
        why = "ended while in use" if self._dead else "no longer answers"
        self._kill()
        self._meter.refresh()
        if self._dead and self._meter.memory_ran_out:
            return SandboxDiedError(
                f"sandbox {self.id!r} ended: all of its {self._limits.memory_mb} MiB of memory were used up",
                code="sandbox_memory",
                hint="raise sandbox.memory_mb, or lower sandbox.tmp_mb: temporary files are memory too",
            )
        return SandboxDiedError(
            f"sandbox {self.id!r} {why}", hint="it was killed from outside; run the mission again"
        )

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        cwd: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bytes | AsyncIterator[bytes] = b"",
        output_limit: int = 1_000_000,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Run one program to its end; see `Sandbox.exec`, and `converse` for input that comes meanwhile."""
        reply = ExecReply(secrets.token_bytes(exec_server.NONCE_BYTES), on_output)
        body = encode_request(
            reply.nonce,
            argv,
            cwd=cwd or self.cwd,
            environment=self._environment | encode_environment(environment or {}),
            timeout=timeout,
            output_limit=output_limit,
            output_most=self._limits.output_mb << 20,
            stdin=len(stdin) if isinstance(stdin, bytes) else -1,
        )
        async with self._turn:
            # Otherwise it would run inside a group that is meant to be frozen.
            if not self._thawed.is_set():
                await self._wait(self._thawed.wait(), seconds=None)
            self._reply = reply
            self._meter.begin_command()
            watching = self._watch_limits(reply)
            try:
                self._send(exec_server.EXEC, body)
                if not isinstance(stdin, bytes):
                    async with self._feeding(stdin):
                        result = await self._wait_for(reply, timeout)
                else:
                    if stdin:
                        self._send(exec_server.STDIN, stdin)
                    result = await self._wait_for(reply, timeout)
                return await self._check_disk(self._meter.name_limit(result, reply.stopped))
            # No sandbox is left in which to abandon it.
            except SandboxDiedError:
                raise
            except BaseException:  # cancelled, or the listener failed
                await _finish(self._abandon(reply))
                raise
            finally:
                self._reply = None
                for task in watching:
                    task.cancel()

    async def converse(
        self,
        argv: Sequence[str],
        stdin: AsyncIterator[bytes],
        *,
        timeout: float = 60.0,
        cwd: str | None = None,
        environment: Mapping[str, str] | None = None,
        output_limit: int = 1_000_000,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Run one program to its end and pass it input meanwhile; see `Converses.converse`."""
        return await self.exec(
            argv,
            timeout=timeout,
            cwd=cwd,
            environment=environment,
            stdin=stdin,
            output_limit=output_limit,
            on_output=on_output,
        )

    def _watch_limits(self, reply: ExecReply) -> list[asyncio.Task[None]]:
        """Start watching the limits that the kernel does not enforce, while one command runs."""
        watches: list[tuple[Callable[[], LimitName | None], Iterator[float]]] = [
            (self._meter.find_passed_limit, (self._meter.pause for _ in itertools.count()))
        ]
        if self._find_passed_disk_limit is not None:
            pauses = itertools.chain(_DISK_PAUSES_SECONDS, itertools.repeat(_DISK_PAUSES_SECONDS[-1]))
            watches.append((self._find_passed_disk_limit, pauses))
        return [asyncio.create_task(self._enforce(reply, *each)) for each in watches]

    async def _enforce(
        self, reply: ExecReply, find_passed_limit: Callable[[], LimitName | None], pauses: Iterator[float]
    ) -> None:
        """Measure repeatedly, and kill everything if a limit is passed."""
        cost = 0.0
        while reply.stopped is None:
            # The cost of measuring a workspace grows with its files: it may take a tenth of the time, not more.
            await asyncio.sleep(max(next(pauses), 10 * cost))
            began = time.monotonic()
            if self._thawed.is_set() and not self._dead:
                passed = await asyncio.to_thread(find_passed_limit)
                reply.stopped = reply.stopped or passed  # the other watch may have found one meanwhile
            cost = time.monotonic() - began
        with contextlib.suppress(SandboxDiedError):
            self._send(exec_server.KILL)

    async def _check_disk(self, result: ExecResult) -> ExecResult:
        """Return a command's result, as failed if it wrote too much between two measurements."""
        if result.limit in ("disk", "files"):
            return replace(result, exit_code=result.exit_code or _KILLED)
        if self._find_passed_disk_limit is None or result.limit is not None:
            return result
        limit = await asyncio.to_thread(self._find_passed_disk_limit)
        if limit is None:
            return result
        with contextlib.suppress(SandboxDiedError):  # processes that it left running would keep writing
            self._send(exec_server.KILL)
        return replace(result, limit=limit, exit_code=result.exit_code or _KILLED)

    @contextlib.asynccontextmanager
    async def _feeding(self, stdin: AsyncIterator[bytes]) -> AsyncIterator[None]:
        """Pass input on to the command until it ends."""

        async def feed() -> None:
            with contextlib.suppress(SandboxDiedError):  # the waiter for the command gets the error
                async for piece in stdin:
                    if piece:  # an empty frame means the end
                        self._send(exec_server.STDIN, piece)
                        await self._channel.drain()
                self._send(exec_server.STDIN, b"")

        feeding = asyncio.create_task(feed())
        try:
            yield
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])
        if not feeding.cancelled():
            feeding.result()

    async def _wait_for(self, reply: ExecReply, timeout: float) -> ExecResult:
        """Await the end of a command: the exec server enforces its time limit, this one is the fallback."""
        left = max(0.0, timeout) + _LATEST_SECONDS
        while True:
            began = time.monotonic()
            frozen = self._frozen_seconds()
            await reply.wait(min(left, _LONGEST_WAIT_SECONDS))
            if reply.failure is not None:
                raise reply.failure
            if reply.result is not None:
                return reply.result
            left -= time.monotonic() - began - (self._frozen_seconds() - frozen)
            if left <= 0 or self._dead:
                raise self._give_up()

    def _frozen_seconds(self) -> float:
        """Return the total time that this sandbox has been frozen."""
        return self._frozen_total + (0.0 if self._thawed.is_set() else time.monotonic() - self._frozen_since)

    async def _abandon(self, reply: ExecReply) -> None:
        """Kill everything and wait for the last frame, so that the next command starts clean."""
        with contextlib.suppress(SandboxDiedError, InfrastructureError):
            await self.thaw()
            self._send(exec_server.KILL)
            if not reply.ended:
                reply.abandon()
                await reply.wait(_GRACE_SECONDS)
                if not reply.ended:
                    self._give_up()

    async def observe(self, directories: Sequence[str]) -> None:
        """Watch which files of directories are opened; see `ObservesReads.observe`."""
        async with self._turn:
            self._observed = tuple(directories)
            places = [encode_word(posixpath.join(WORKSPACE, directory)) for directory in directories]
            self._send(exec_server.OBSERVE, marshal.dumps(places))

    async def opened_files(self) -> OpenedFiles:
        """Return files opened since the last call; see `ObservesReads.opened_files`."""
        async with self._turn:
            self._send(exec_server.TELL)
            paths: set[str] = set()
            while True:
                kind, body = await self._wait(self._told.get(), seconds=_LATEST_SECONDS)
                if kind != exec_server.OPENED:
                    return OpenedFiles(paths=frozenset(paths), complete=body == b"\1")
                paths.update(decode_opened(body, self._observed))

    async def freeze(self) -> None:
        """Stop every process inside; see `Sandbox.freeze`."""
        await _finish(self._set_frozen(True))

    async def thaw(self) -> None:
        """Let frozen processes continue; see `Sandbox.thaw`."""
        await _finish(self._set_frozen(False))

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
            self._send(exec_server.FREEZE)
            await self._wait(self._signals.get(), seconds=_GRACE_SECONDS)

    async def _order_thaw(self) -> None:
        if self._cgroup is not None and self._cgroup.freezer is not None:
            # Sent first: the exec server must not count frozen time as its command's time.
            self._send(exec_server.SKIP, exec_server.SECONDS.pack(time.monotonic() - self._frozen_since))
            await asyncio.to_thread(self._cgroup.freeze, False)
        else:
            self._send(exec_server.THAW)
            await self._wait(self._signals.get(), seconds=_GRACE_SECONDS)

    def usage(self) -> SandboxUsage:
        """Return its usage; see `Sandbox.usage`."""
        self._meter.refresh()
        return self._meter.usage(tuple(self._freezes))

    async def close(self) -> None:
        """Kill everything inside and release its resources; see `Sandbox.close`."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._release())
        await _finish(self._closing)

    async def _release(self) -> None:
        self.usage()  # a group that an engine made is removed with its container
        if self._cgroup is not None:
            if not self._thawed.is_set():
                self._cgroup.kill()  # while frozen, so that nothing is written between the thaw and the end
            with contextlib.suppress(InfrastructureError, OSError):
                await asyncio.to_thread(self._cgroup.freeze, False)  # version 1 holds back SIGKILL while frozen
        self._kill()
        await asyncio.wait([self._ended], timeout=_GRACE_SECONDS)
        self._channel.abort()
        await asyncio.wait([self._channel.lost])
        # The last reading: the counters are removed with the group.
        if self._cgroup is not None:
            self.usage()
            await asyncio.to_thread(self._cgroup.remove)


class ProcessSandbox(ServedSandbox):
    """A sandbox of the `process` tier, whose processes are seen from outside; made by `ProcessTier.open`."""

    tier = "process"

    def processes(self) -> tuple[RunningProcess, ...]:
        """Return the processes inside; see `ShowsProcesses.processes`."""
        first = self._first()
        return () if first is None or self._dead else processes_below(first)
