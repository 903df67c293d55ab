"""The contract of sandboxes of every tier: specification, guarantees, results."""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct, field

from chargehand.core.ports import Bind, MountPlan

Stream = Literal["stdout", "stderr"]
LimitName = Literal["wall_time", "output", "cpu_time", "memory", "file_size", "processes", "disk", "files"]
"""Limits that may end a command, the surest first: see `ExecResult.limit`."""
OnOutput = Callable[[Stream, bytes], None]
# Fixed, because agents' configuration names them and is written before a sandbox is opened.
EGRESS_PORT, GATEWAY_PORT, REGISTRY_PORT = 8872, 8871, 8870
WORKSPACE = "/workspace"
"""The mount point of the workspace in every sandbox: fixed, so that absolute paths in layers hold."""


def new_host_name() -> str:
    """Return a host name for one sandbox, in the style of container engines.

    With a constant name, code could detect that checks run it.
    """
    return secrets.token_hex(6)


class SandboxLimits(Struct, frozen=True, kw_only=True):
    """Resource limits of one sandbox; sizes in MiB.

    `tmp_mb` bounds /tmp and $HOME each, `file_mb` one file, `output_mb` the output of one command to both streams
    before it is killed (the amount kept is limited separately). `cpu_percent` is the share of processor time (100:
    one processor), `cpu_seconds` the processor time of everything in the sandbox; `None` means no limit.
    """

    memory_mb: int = 4096
    processes: int = 512
    tmp_mb: int = 1024
    open_files: int = 4096
    file_mb: int = 2048
    output_mb: int = 256
    cpu_percent: int | None = None
    cpu_seconds: float | None = None


class SandboxSpec(Struct, frozen=True, kw_only=True):
    """Everything a tier needs to open one sandbox.

    `environment` is the whole environment except PATH, HOME, LANG, TMPDIR, USER and LOGNAME, and the variables
    that a tier's toolchain needs (PYTHONDONTWRITEBYTECODE, CARGO_HOME, GOPATH, GOTOOLCHAIN, JAVA_HOME); no
    variable of the host is inherited. `path` is prepended to PATH. `registries` is a host unix socket of a
    registry mirror (setup only), `gateway` that of the attempt's model gateway, `egress` that of a proxy to
    allowed hosts: inside they are reached at 127.0.0.1, on `REGISTRY_PORT`, `GATEWAY_PORT` and `EGRESS_PORT`. With
    `egress` the usual variables name that proxy. Commands start in `directory`, a path below the workspace, by
    default.
    """

    mounts: MountPlan
    environment: Mapping[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    binds: tuple[Bind, ...] = ()
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    toolchain: tuple[Path, ...] = ()
    registries: Path | None = None
    gateway: Path | None = None
    egress: Path | None = None
    directory: str = ""

    @property
    def cwd(self) -> str:
        """The absolute path of `directory` inside."""
        return posixpath.join(WORKSPACE, self.directory).rstrip("/")


class ExecResult(Struct, frozen=True, kw_only=True):
    """The outcome of one command: exit code as a shell shows it (128 + signal), output, seconds.

    `truncated` means that output exceeded the limit: its head and its tail are kept with a line between them.
    `timed_out` means that the whole process tree was killed at the time limit (exit code 137).

    `limit` names the limit that ended the command, `None` if it ended by itself. `wall_time`, `output` and
    `cpu_time`: everything was killed at it. `memory`: the kernel killed a part of it, and it failed. `file_size`:
    it died by SIGXFSZ. `processes`: it failed and was refused a process, or everything was killed because it had
    reached the limit and made no progress: a fork bomb. `disk` and `files`: the workspace exceeded its limit (see
    `LimitsDisk`); everything was killed, and the exit code is never 0. A program that is refused a resource
    (memory, process, file size) and continues has not ended by a limit. `written` counts the bytes of both
    streams, including those not kept.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    seconds: float
    truncated: bool = False
    timed_out: bool = False
    limit: LimitName | None = None
    written: int = 0


class SandboxUsage(Struct, frozen=True, kw_only=True):
    """Resource usage of a sandbox, `None` for values that are not measured.

    `peak_memory` in bytes and `peak_processes` (threads counted) are maxima; with `sampled` the maxima of all
    readings, so that a short peak may be higher. `cpu_seconds` is processor time, `disk_written` the bytes on
    their way to a disk, `output` the bytes that commands wrote to their streams. `freezes` are the seconds that
    each freeze took until nothing ran any more, the latest 256 of them.
    """

    peak_memory: int | None = None
    cpu_seconds: float | None = None
    peak_processes: int | None = None
    disk_written: int | None = None
    output: int | None = None
    sampled: bool = False
    freezes: tuple[float, ...] = ()


class Sandbox(Protocol):
    """A sandbox for programs of an untrusted author; opened by `open_sandbox`, used by one task at a time.

    Every method raises `SandboxDiedError` if the sandbox itself has ended: a provider's failure never looks like a
    command's output. Commands run one after another, by default in `cwd`.
    """

    id: str
    tier: str
    cwd: str
    limits_in_force: Mapping[str, str]

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        cwd: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = 1_000_000,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Run one program to its end.

        After `timeout` seconds every process in the sandbox is killed; frozen time does not count. `output_limit`
        is in bytes per stream. `on_output` gets each piece as it arrives; an exception that it raises ends the
        command and is raised here. A missing program gives exit code 127 with the reason on stderr; a program that
        cannot be executed, or a directory that cannot be entered, 126. Words that no kernel accepts (with NUL, or
        an empty command) raise `UsageError`. While the sandbox is frozen the command waits for the thaw.
        Cancelling the call kills every process in the sandbox.
        """
        ...

    async def freeze(self) -> None:
        """Stop every process inside; on return no process runs, so mounted files do not change. Idempotent."""
        ...

    async def thaw(self) -> None:
        """Let frozen processes continue. Idempotent."""
        ...

    def usage(self) -> SandboxUsage:
        """Return its usage so far; after `close` the total."""
        ...

    async def close(self) -> None:
        """Kill everything inside and release mounts and cgroups. Idempotent; never raises for a dead sandbox."""
        ...


class RunningProcess(Struct, frozen=True, kw_only=True):
    """One process: its ids inside, its state as in ps(1), and its processor time in seconds.

    `waits_in` is the kernel function in which it sleeps, `open_files` the number of its open files; `None` if the
    host does not reveal it.
    """

    pid: int
    parent: int
    state: str
    command: str
    cpu_seconds: float
    waits_in: str | None = None
    open_files: int | None = None


@runtime_checkable
class LimitsDisk(Protocol):
    """An optional capability of a sandbox: its tier can end commands that write too much."""

    def limit_disk(self, find_passed_limit: Callable[[], LimitName | None]) -> None:
        """Call this, in a thread, while each command runs and after it; end the command if it names a limit.

        The function reads the workspace from outside; its cost may grow with the written files.
        """
        ...


@runtime_checkable
class ShowsProcesses(Protocol):
    """An optional capability of a sandbox: its tier can see its processes from the host."""

    def processes(self) -> tuple[RunningProcess, ...]:
        """Return the processes inside, also of a frozen sandbox; empty for an ended one; reads /proc."""
        ...


@runtime_checkable
class Converses(Protocol):
    """An optional capability of a sandbox: its tier can send more input to a running program."""

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
        """Run one program to its end as `Sandbox.exec` does; its standard input ends when `stdin` does.

        Input that the program has not read is buffered inside. If it ends before `stdin`, the rest is not read.
        """
        ...


class OpenedFiles(Struct, frozen=True, kw_only=True):
    """Files of observed directories that some program opened or executed.

    `paths` are relative to `WORKSPACE` for its directories, else absolute. `complete` is false if the kernel could
    not watch all of the directories or lost events: then more files than `paths` may have been opened.
    """

    paths: frozenset[str]
    complete: bool


@runtime_checkable
class ObservesReads(Sandbox, Protocol):
    """An optional capability of a sandbox: its tier sees which files programs open."""

    async def observe(self, directories: Sequence[str]) -> None:
        """Watch the files directly in these directories from now on, replacing those watched before.

        Directories are absolute, or relative to `WORKSPACE` ("" is the workspace itself); a symbolic link is not
        followed.
        """
        ...

    async def opened_files(self) -> OpenedFiles:
        """Return files opened since `observe` or the last call; empty and not complete without `observe`."""
        ...
