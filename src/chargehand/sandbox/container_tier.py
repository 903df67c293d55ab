"""The `container` tier: one podman or docker container per sandbox, our exec server as its process 1."""

from __future__ import annotations

import asyncio
import contextlib
import json
import marshal
import os
import shutil
import signal
import socket
import sys
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.errors import ChargehandError, InfrastructureError, SandboxDiedError, TierUnavailableError
from chargehand.core.ids import new_id
from chargehand.core.ports import Bind
from chargehand.sandbox.container import guard, start
from chargehand.sandbox.container.layout import (
    ROOT,
    ContainerContents,
    direct_mounts,
    plan_contents,
    staged_mounts,
    write_root,
)
from chargehand.sandbox.container_engine import ContainerEngine, engine_environment, find_engine
from chargehand.sandbox.contract import SandboxLimits, SandboxSpec
from chargehand.sandbox.inside import container_init, exec_server
from chargehand.sandbox.probe import ProbePart, ProbeReport, probe_tier
from chargehand.sandbox.process.cgroups import Cgroup
from chargehand.sandbox.process.launched_tier import compile_program, describe_limits, start_forwarders
from chargehand.sandbox.process.layout import base_environment, staging_directory
from chargehand.sandbox.process.session import ProcessSandbox, StartedSandbox
from chargehand.sandbox.seccomp import compile_filter, host_architecture
from chargehand.sandbox.toolchain import Toolchain

_ISOLATED = ("-I", "-S", "-E")
# Engines lock their store: more starts at a time only wait for each other.
_OPEN_AT_ONCE = 4


class ContainerSandbox(ProcessSandbox):
    """A sandbox of the `container` tier; made by `ContainerTier.open`, keeps the promises of `Sandbox`."""

    tier = "container"


class _RunningContainer(Struct):
    """One container from outside: the engine's client, its first process on this machine (0: not known yet)."""

    name: str
    client: asyncio.subprocess.Process
    ended: asyncio.Future[int]
    watching: asyncio.Task[None] | None = None
    pid: int = 0

    def kill(self) -> None:
        """End it at once: by its first process if visible, else through the engine."""
        if self.ended.done() or self.client.returncode is not None:
            return
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)
                return
        with contextlib.suppress(ProcessLookupError):
            self.client.kill()  # then the tier, which waits for the client, has the engine remove the container


class ContainerTier:
    """Opens sandboxes of the `container` tier; close it to end everything it started.

    One instance per Chargehand process; an asynchronous context manager. `program` names the engine, `image` an
    image that it has; without an image containers show the host's /usr and toolchain. `scratch` is a directory of
    ours for the containers' root directories. `alive` is a descriptor that is held open until the last container
    is gone, even if this process is killed. `engine` is an engine found earlier. Entering raises
    `TierUnavailableError` if no engine works.
    """

    def __init__(
        self,
        toolchain: Toolchain,
        *,
        program: str = "",
        image: str = "",
        scratch: Path | None = None,
        alive: int | None = None,
        environ: Mapping[str, str] | None = None,
        engine: ContainerEngine | None = None,
    ) -> None:
        self._toolchain = toolchain
        self._program = program
        self._image = image
        self._scratch = scratch
        self._alive = alive
        self._environ = dict(os.environ if environ is None else environ)
        self._prefix = guard.owner_prefix()
        self._running: dict[str, _RunningContainer] = {}
        self._opened: weakref.WeakSet[ContainerSandbox] = weakref.WeakSet()
        self._starting = asyncio.Semaphore(_OPEN_AT_ONCE)
        self._found = engine
        self._engine: ContainerEngine | None = None
        # A separate process, since a container that is frozen when this process dies cannot notice the end of its
        # socket.
        self._guard: asyncio.subprocess.Process | None = None
        self._roots: tempfile.TemporaryDirectory[str] | None = None
        self._code = b""

    @property
    def engine(self) -> ContainerEngine:
        """The engine in use; raises `InfrastructureError` (`tier_closed`) outside of the context."""
        if self._engine is None:
            raise InfrastructureError("the container tier is closed", code="tier_closed")
        return self._engine

    async def __aenter__(self) -> ContainerTier:
        engine = self._found
        if engine is None:
            engine = await asyncio.to_thread(
                find_engine, program=self._program, image=self._image, environ=self._environ
            )
        await asyncio.to_thread(guard.sweep, engine.argv)
        server = compile_program(exec_server)
        if engine.image:  # its interpreter may have another version, which needs text and not compiled code
            server = marshal.dumps(Path(exec_server.__file__).read_text())
        # The code sent to the interpreter inside: our system call filter, then the exec server.
        inside = Path(container_init.__file__).read_text()
        self._code = marshal.dumps(f"{inside}\nrun({compile_filter(host_architecture())!r}, {server!r})\n")
        self._roots = tempfile.TemporaryDirectory(prefix="containers-", dir=self._scratch)
        # The container runs as another user, who has to pass through.
        os.chmod(self._roots.name, 0o755)
        self._guard = await asyncio.create_subprocess_exec(
            *(sys.executable, *_ISOLATED, guard.__file__, self._prefix, self._roots.name, *engine.argv),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=engine_environment(self._environ),
            pass_fds=() if self._alive is None else (self._alive,),
            # A Ctrl-C reaches the whole terminal group; this process has to outlive it.
            start_new_session=True,
            cwd="/",
        )
        self._engine = engine
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self, spec: SandboxSpec) -> ContainerSandbox:
        """Open one sandbox; raises `TierUnavailableError` with the engine's output if it refuses."""
        engine = self.engine
        name = new_id("sandbox")
        errors = os.memfd_create("errors", os.MFD_CLOEXEC)
        try:
            async with self._starting:
                return await self._open(engine, name, spec, errors)
        except SandboxDiedError:
            said = os.pread(errors, 4000, 0).decode(errors="replace").strip()
            if not said:  # ended from outside: an engine that refuses says why
                raise
            raise TierUnavailableError(
                f"the container sandbox cannot start: {said}",
                hint="run `chargehand doctor` to see why, or use --sandbox process",
            ) from None
        finally:
            os.close(errors)

    async def _open(self, engine: ContainerEngine, name: str, spec: SandboxSpec, errors: int) -> ContainerSandbox:
        limits = spec.limits
        if not engine.image:
            spec = replace(spec, binds=(*self._toolchain.binds, *spec.binds))
        contents = plan_contents(spec, image=engine.image, fd=engine.fd, code_size=len(self._code))
        if not engine.image:
            contents.links.update(self._toolchain.links)
            environment = base_environment(spec, path=self._toolchain.path, tools=self._toolchain.environment)
        else:
            environment = base_environment(spec, path=engine.path)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                running = await self._start(engine, name, contents, limits, theirs, errors)
        except BaseException:
            ours.close()
            raise
        started = StartedSandbox(
            name=name,
            sock=ours,
            ended=running.ended,
            kill=running.kill,
            first=lambda: running.pid or None,
            limits=limits,
            environment=environment,
            limits_in_force=describe_limits(
                limits,
                memory=f"{limits.memory_mb} MiB for the sandbox (cgroup of {engine.kind})",
                processes=f"{limits.processes} for the sandbox (cgroup of {engine.kind})",
                freeze=f"cgroup of {engine.kind}, or signals to the whole process namespace",
                cpu_share=f"{limits.cpu_percent} % of a processor (cgroup of {engine.kind})",
            ),
            cwd=spec.cwd,
        )
        sandbox = ContainerSandbox(started)
        self._opened.add(sandbox)
        try:
            await sandbox.start(self._code)
            # After the greeting: before it there may be no process yet.
            running.pid = await asyncio.to_thread(guard.container_pid, engine.argv, running.name)
            directories, unified = guard.cgroup_directories(running.pid) if running.pid else ({}, False)
            group = Cgroup(tuple(directories.values()), unified)
            # The engine's group, if this process may freeze it; with a rootless engine it may not.
            if group.freezer is not None and os.access(group.freezer, os.W_OK):
                sandbox.use_cgroup(group)
            await start_forwarders(sandbox, spec, contents.python)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def _start(
        self,
        engine: ContainerEngine,
        name: str,
        contents: ContainerContents,
        limits: SandboxLimits,
        theirs: socket.socket,
        errors: int,
    ) -> _RunningContainer:
        assert self._roots is not None
        place = Path(self._roots.name, name)
        place.mkdir(mode=0o755)
        root = place / "root"
        await asyncio.to_thread(write_root, contents, root)
        if engine.image:
            # An image does not have our user.
            contents.binds += [
                Bind(source=root / "etc" / each, target=f"/etc/{each}") for each in ("passwd", "group")
            ]
        container = f"{self._prefix}{name}"
        staging = staging_directory() if engine.stages else ""
        if engine.stages:
            mounts, words = staged_mounts(contents, root, staging)
        else:
            mounts, words = [], direct_mounts(contents, inodes=engine.kind == "docker")
        argv = engine.run(
            contents, limits, name=container, root=f"{staging}/{ROOT}" if staging else str(root), mounts=words
        )
        request = {"argv": argv, "mounts": mounts, "staging": staging, "stdio": engine.kind == "docker"}
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, *_ISOLATED, start.__file__, json.dumps(request)),
            stdin=theirs.fileno(),
            stdout=errors,
            stderr=errors,
            env=engine_environment(self._environ),
            start_new_session=True,
            cwd="/",
        )
        running = _RunningContainer(container, client, asyncio.get_running_loop().create_future())
        self._running[name] = running
        running.watching = asyncio.create_task(self._watch(name, running, place))
        return running

    async def _watch(self, name: str, running: _RunningContainer, place: Path) -> None:
        """Wait for the end of a container and remove its remains."""
        code = await running.client.wait()
        if code < 0:  # the client was killed, which alone does not end the container
            await asyncio.to_thread(guard.remove, self.engine.argv, running.name)
        await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
        self._running.pop(name, None)
        if not running.ended.done():
            running.ended.set_result(code)

    async def close(self) -> None:
        """End every sandbox that is still open."""
        engine = self._engine
        beside = self._guard
        if engine is None or beside is None:
            return
        for running in list(self._running.values()):
            await asyncio.to_thread(guard.remove, engine.argv, running.name)
        watching = [running.watching for running in self._running.values() if running.watching]
        if watching:
            await asyncio.wait(watching)
        for sandbox in list(self._opened):
            await sandbox.close()  # their sockets too: nobody may read the end of one any more
        self._engine = None
        assert beside.stdin is not None
        beside.stdin.close()
        await beside.wait()
        if self._roots is not None:
            self._roots.cleanup()


async def probe_container(
    toolchain: Toolchain, *, scratch: Path, environ: Mapping[str, str], program: str = "", image: str = ""
) -> ProbeReport:
    """Find an engine and try each promise in real containers; nothing is left behind. Takes about 5 s.

    `program` and `image` are those of `ContainerTier`.
    """
    try:
        engine = await asyncio.to_thread(find_engine, program=program, image=image, environ=environ)
    except TierUnavailableError as error:
        part = ProbePart(name="engine", ok=False, detail=error.message, mend=error.hint)
        return ProbeReport(tier="container", parts=(part,))
    options = f" with {' '.join(engine.options)}" if engine.options else ""
    shown = f"the image {engine.image}" if engine.image else "the host's own /usr"
    detail = f"{engine.version}{options}; containers show {shown}"
    parts = [ProbePart(name="engine", ok=True, detail=detail)]
    try:
        async with ContainerTier(toolchain, scratch=scratch, environ=environ, engine=engine) as tier:
            parts += await probe_tier(tier, scratch)
    except ChargehandError as error:
        parts.append(ProbePart(name="containers", ok=False, detail=error.message, mend=error.hint))
    return ProbeReport(tier="container", parts=tuple(parts))
