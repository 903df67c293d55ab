"""The common base of tiers with a launcher: the launcher's life, its packets, the start of a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import marshal
import os
import shutil
import signal
import socket
import sys
import time
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.abc import InspectLoader
from pathlib import Path
from types import ModuleType
from typing import Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.errors import InfrastructureError, SandboxDiedError, TierUnavailableError
from chargehand.core.ids import new_id
from chargehand.core.ports import sandbox_ids
from chargehand.sandbox.contract import SandboxLimits, SandboxSpec
from chargehand.sandbox.inside import exec_server
from chargehand.sandbox.process import sandbox_launcher
from chargehand.sandbox.process.cgroups import Cgroup, Cgroups
from chargehand.sandbox.process.layout import BOOTSTRAP, Layout, base_environment, forwarder_commands
from chargehand.sandbox.process.remedies import tier_unavailable
from chargehand.sandbox.process.session import START_SECONDS, ServedSandbox, StartedSandbox
from chargehand.sandbox.process.usage import first_child
from chargehand.sandbox.seccomp import compile_filter, host_architecture
from chargehand.sandbox.toolchain import Toolchain

_Sandbox = TypeVar("_Sandbox", bound=ServedSandbox)
_LAUNCHER_FD, _ALIVE_FD = 3, 4
# The launcher's descriptors are copied from above its numbers, so that neither copy overwrites the other.
_ABOVE = 16
# A launcher that did nothing for this long is starved: it is ended, and another one started.
_LAUNCHER_SECONDS = 10.0
# Interval of checks for a stopped launcher: it gets no more time, since it would never continue.
_STOPPED_CHECK_SECONDS = 0.5


class SandboxOpening(Struct, frozen=True, kw_only=True):
    """A sandbox that is being opened: its name, its specification, the file for the stderr of its start."""

    name: str
    spec: SandboxSpec
    errors: int


class LaunchedTier:
    """A tier whose sandboxes a launcher starts; close it to end the launcher and everything it started.

    One instance per Chargehand process. Use it as an asynchronous context manager. `alive` is a descriptor that
    the launcher keeps open until its last sandbox is gone, even if this process is killed: a lock on it shows
    other processes that sandboxes of ours may still run. Without `groups` it makes no control groups, as if not
    permitted. If the launcher dies its sandboxes die too, and the next sandbox gets a new launcher.
    """

    def __init__(self, toolchain: Toolchain, *, alive: int | None = None, groups: bool = True) -> None:
        self._toolchain = toolchain
        self._alive = alive
        self._cgroups = Cgroups()
        self._groups = groups and self._cgroups.available
        self._made: list[Cgroup] = []
        self._opened: weakref.WeakSet[ServedSandbox] = weakref.WeakSet()
        self._entered = False
        self._control: socket.socket | None = None
        self._launcher_pid = 0
        self._ended: dict[str, asyncio.Future[int]] = {}
        self._pids: dict[str, int] = {}
        self._filter = b""
        self._server = b""

    async def __aenter__(self) -> Self:
        self._start_launcher()
        self._entered = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def sweep(self) -> None:
        """Remove the control groups of dead Chargehand processes."""
        self._cgroups.sweep()

    def _start_launcher(self) -> None:
        bwrap = shutil.which("bwrap")
        if not bwrap:
            raise tier_unavailable("bwrap: not found")
        self._bwrap = os.path.realpath(bwrap)  # the sandbox's user may not be able to follow the link
        self._filter = compile_filter(host_architecture())
        self._server = compile_program(exec_server)
        program = compile_program(sandbox_launcher)
        # The remains of a killed Chargehand process are removed when the next one starts.
        self.sweep()
        # A socket pair and no path: an agent could connect to any path that it can write to. Packets, so that each
        # request arrives with its descriptors.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        held = {} if self._alive is None else {_ALIVE_FD: self._alive}
        given = {_LAUNCHER_FD: theirs.fileno(), **held}
        # The name is for a person who lists the machine's processes.
        words = (_LAUNCHER_FD, len(program), sandbox_launcher.__file__, *held)
        ours.send(program)
        copies = {wanted: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for wanted, fd in given.items()}
        self._launcher_pid = os.posix_spawn(
            sys.executable,
            [*(sys.executable, "-I", "-S", "-E", "-c", BOOTSTRAP), *map(str, words)],
            # Nothing of our environment: /proc/1/environ of a sandbox shows the environment of its start.
            {"PATH": "/usr/bin:/bin"},
            file_actions=[
                *((os.POSIX_SPAWN_DUP2, copy, wanted) for wanted, copy in copies.items()),
                *((os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)),
            ],
            setsid=True,
        )
        for copy in copies.values():
            os.close(copy)
        theirs.close()
        ours.setblocking(False)
        self._control = ours
        asyncio.get_running_loop().add_reader(ours, self._read_launcher)

    def _read_launcher(self) -> None:
        """Handle one packet of the launcher: a sandbox has started, or has ended."""
        assert self._control is not None
        try:
            data = self._control.recv(sandbox_launcher.PACKET)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._forget_launcher()
            return
        message = marshal.loads(data)
        if "pid" in message:
            self._pids[message["id"]] = message["pid"]
            return
        self._pids.pop(message["id"], None)
        ended = self._ended.pop(message["id"], None)
        if ended is not None and not ended.done():
            ended.set_result(message["exit_code"])

    def _forget_launcher(self) -> None:
        """Record that every sandbox has ended: no sandbox outlives the launcher."""
        control = self._control
        self._control = None
        if control is not None:
            asyncio.get_running_loop().remove_reader(control)
            control.close()
            _end_process(self._launcher_pid, seconds=0)
        for ended in self._ended.values():
            if not ended.done():
                ended.set_result(-1)
        self._ended.clear()

    @contextlib.asynccontextmanager
    async def _opening(
        self, spec: SandboxSpec, explain: Callable[[str], InfrastructureError | TierUnavailableError]
    ) -> AsyncIterator[SandboxOpening]:
        """Let the block open one sandbox that also shows the toolchain.

        If that dies at once, `explain` makes the error to raise from its standard error.
        """
        if not self._entered:
            raise InfrastructureError("the tier is closed", code="tier_closed")
        if self._control is None:  # killed from outside, by the kernel for memory, say
            self._start_launcher()
        spec = replace(spec, binds=(*self._toolchain.binds, *spec.binds))
        errors = os.memfd_create("errors", os.MFD_CLOEXEC)
        try:
            yield SandboxOpening(name=new_id("sandbox"), spec=spec, errors=errors)
        except SandboxDiedError:
            # Bubblewrap's stderr is the only information about a sandbox that never started. Every failure that it
            # finds is reported there; if it is empty, bubblewrap or its launcher was ended from outside.
            said = os.pread(errors, 4000, 0).decode(errors="replace").strip()
            if not said:
                raise
            raise explain(said) from None
        finally:
            os.close(errors)

    async def _launch(
        self,
        kind: type[_Sandbox],
        opening: SandboxOpening,
        *,
        plan: Callable[[Cgroup | None], Layout],
        name_limits: Callable[[Cgroup | None], dict[str, str]],
        descriptors: Sequence[int] = (),
    ) -> _Sandbox:
        """Start a sandbox of a `kind` in a new control group; the program to run inside is sent later.

        `descriptors` are passed to its command.
        """
        name = opening.name
        spec = opening.spec
        cgroup = self._cgroups.create(name, spec.limits) if self._groups else None
        if cgroup is not None:
            self._made = [*(each for each in self._made if each.exists), cgroup]
        # Before the launcher is asked: its report of the sandbox's end may arrive before this continues.
        ended = self._ended[name] = asyncio.get_running_loop().create_future()
        try:
            sock = await self._request(opening, plan(cgroup), descriptors)
        except BaseException:
            self._ended.pop(name, None)  # if the launcher itself ended, it is already removed
            if cgroup is not None:
                cgroup.remove()
            raise
        self._expect(lambda: name in self._pids or name not in self._ended)
        started = StartedSandbox(
            name=name,
            sock=sock,
            ended=ended,
            kill=lambda: self._kill(name),
            # Process 1 of a sandbox is bubblewrap's only child.
            first=lambda: first_child(self._pids[name]) if name in self._pids else None,
            limits=spec.limits,
            limits_in_force=name_limits(cgroup),
            environment=base_environment(spec, path=self._toolchain.path, tools=self._toolchain.environment),
            cwd=spec.cwd,
        )
        sandbox = kind(started, cgroup=cgroup)
        self._opened.add(sandbox)
        return sandbox

    async def _request(self, opening: SandboxOpening, layout: Layout, descriptors: Sequence[int]) -> socket.socket:
        """Have the launcher start a sandbox, which gets our socket's far end; `descriptors` as for `_launch`."""
        uid, gid = sandbox_ids()
        request = {"op": "open", "id": opening.name, "uid": uid, "gid": gid, **layout.as_request()}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # A separate file for each: bubblewrap reads from the descriptor's position.
        bpf = os.memfd_create("filter", os.MFD_CLOEXEC)
        try:
            os.write(bpf, self._filter)
            os.lseek(bpf, 0, os.SEEK_SET)
            await self._send(marshal.dumps(request), [theirs.fileno(), opening.errors, bpf, *descriptors])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(bpf)
        return ours

    async def _send(self, packet: bytes, fds: list[int]) -> None:
        """Send one packet to the launcher, waiting if it is behind."""
        if len(packet) > sandbox_launcher.PACKET:
            raise InfrastructureError(
                f"the mounts of this sandbox take {len(packet)} bytes, more than fit into one request",
                code="request_too_large",
            )
        deadline = time.monotonic() + _LAUNCHER_SECONDS
        while self._control is not None:
            try:
                socket.send_fds(self._control, [packet], fds)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    self._forget_launcher()
                await asyncio.sleep(0.001)
            except OSError:
                self._forget_launcher()
            else:
                return
        raise SandboxDiedError("the sandbox launcher was ended from outside", code="launcher_lost")

    def _kill(self, name: str) -> None:
        """Have the launcher end a sandbox at once; do nothing if it has ended."""
        if self._control is None or name not in self._ended:
            return
        try:
            self._control.send(marshal.dumps({"op": "kill", "id": name}))
        except BlockingIOError:
            asyncio.get_running_loop().call_later(0.001, self._kill, name)
        except OSError:
            return  # no launcher, no sandboxes: they ended with it
        else:
            self._expect(lambda: name not in self._ended)

    def _expect(self, is_done: Callable[[], bool], seconds: float = _LAUNCHER_SECONDS) -> None:
        """End a launcher, and so all its sandboxes, if it stops before it has carried out its order."""
        if is_done() or self._control is None:
            return
        try:
            state = Path(f"/proc/{self._launcher_pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # it ended, which its socket shows
            return
        if seconds <= 0 or state in "Tt":
            self._forget_launcher()
        else:
            asyncio.get_running_loop().call_later(
                _STOPPED_CHECK_SECONDS, self._expect, is_done, seconds - _STOPPED_CHECK_SECONDS
            )

    async def close(self) -> None:
        """End the launcher and with it every sandbox that is still open."""
        self._entered = False
        control = self._control
        self._control = None
        if control is not None:
            asyncio.get_running_loop().remove_reader(control)
            control.close()
            await asyncio.to_thread(_end_process, self._launcher_pid, seconds=_LAUNCHER_SECONDS)
        self._forget_launcher()
        for sandbox in list(self._opened):
            await sandbox.close()  # their sockets too: nobody may read the end of one any more
        # All sandboxes have ended. A launcher that was killed, or a busy kernel, may have left their groups.
        for cgroup in self._made:
            await asyncio.to_thread(cgroup.remove)
        self._cgroups.sweep()


def _end_process(pid: int, *, seconds: float) -> None:
    """Reap a child of ours, killing it if it has not ended by itself in time."""
    deadline = time.monotonic() + seconds
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() >= deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return
        time.sleep(0.002)


def describe_limits(
    limits: SandboxLimits, *, memory: str, processes: str, freeze: str, cpu_share: str
) -> dict[str, str]:
    """Return in words the limits common to every tier, and the four limits that depend on the tier."""
    in_force = {
        "open_files": f"{limits.open_files} for each process (rlimit)",
        "file_size": f"{limits.file_mb} MiB for one file (rlimit)",
        "output": f"{limits.output_mb} MiB for one command (exec server)",
        "wall_time": "of each command (exec server)",
    }
    if limits.cpu_seconds is not None:
        in_force["cpu_time"] = f"{limits.cpu_seconds:g} s for the sandbox (sampled)"
    in_force |= {"memory": memory, "processes": processes, "tmp": f"{limits.tmp_mb} MiB (sized tmpfs)"}
    return in_force | {"freeze": freeze} | ({} if limits.cpu_percent is None else {"cpu_share": cpu_share})


@functools.cache
def compile_program(module: ModuleType) -> bytes:
    """Return a program of `inside` compiled for the interpreter there: compiling inside costs 10 ms each time."""
    spec = module.__spec__
    if spec is None or not isinstance(spec.loader, InspectLoader):
        raise InfrastructureError(f"{module.__name__} has no code to send", code="server_missing")
    return marshal.dumps(spec.loader.get_code(spec.name))


async def start_forwarders(sandbox: ServedSandbox, spec: SandboxSpec, python: Sequence[str]) -> None:
    """Make the host's sockets of `spec` ports inside; raises `InfrastructureError` (`forwarder_failed`)."""
    for command in forwarder_commands(spec, python):
        result = await sandbox.exec(command, cwd="/", timeout=START_SECONDS)
        if result.stdout != b"ready\n":
            raise InfrastructureError(
                f"a socket of the host cannot be reached from inside: {result.stderr!r}", code="forwarder_failed"
            )
