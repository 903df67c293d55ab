"""The contract of sandboxes, whatever their tier: what is asked for, what is promised, what comes back."""

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
"""What a command may be ended by, the surest first: see `ExecResult.limit`."""
OnOutput = Callable[[Stream, bytes], None]
# Fixed, because agents' configuration names them and is written before a sandbox is opened.
EGRESS_PORT, GATEWAY_PORT, REGISTRY_PORT = 8872, 8871, 8870
WORKSPACE = "/workspace"
"""Where the workspace is mounted in every sandbox: fixed, so that absolute paths in layers hold."""


def new_host_name() -> str:
    """Return a host name for one sandbox, as container engines make them up.

    By a constant name, code could tell that checks run it.
    """
    return secrets.token_hex(6)


class SandboxLimits(Struct, frozen=True, kw_only=True):
    """What one sandbox may use; sizes in MiB.

    `tmp_mb` bounds /tmp and $HOME each, `file_mb` one file, `output_mb` what one command writes to both streams
    before it is killed (how much of that is kept is another matter). `cpu_percent` is the share of processor time
    (100: one processor), `cpu_seconds` the processor time of everything in the sandbox; `None` is no limit.
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

    `environment` is the whole environment besides PATH, HOME, LANG, TMPDIR, USER and LOGNAME, and what a tier's
    toolchain needs (PYTHONDONTWRITEBYTECODE, CARGO_HOME, GOPATH, GOTOOLCHAIN, JAVA_HOME); nothing of the host's
    comes along. `path` is prepended to PATH. `registries` is a host unix socket of a registry mirror (setup only),
    `gateway` that of the attempt's model gateway, `egress` that of a proxy to allowed hosts: inside they are
    reached at 127.0.0.1, on `REGISTRY_PORT`, `GATEWAY_PORT` and `EGRESS_PORT`. With `egress` the usual variables
    name that proxy. Commands start in `directory`, a path below the workspace, unless they are told otherwise.
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
    """How one command ended: exit code as a shell shows it (128 + signal), output, seconds.

    `truncated` says that output went over the limit: its head and its tail are kept with a line between them.
    `timed_out` says that the whole process tree was killed at the time limit (exit code 137).

    `limit` names the limit that ended it, `None` for one that ended by itself. `wall_time`, `output` and
    `cpu_time`: everything was killed at it. `memory`: the kernel killed a part of it, and it failed. `file_size`:
    it died by SIGXFSZ. `processes`: it failed and was refused a process, or everything was killed because it had
    all that it may have and could not go on: a fork bomb. `disk` and `files`: more lay in the
    workspace than may (see `LimitsDisk`); everything was killed, and its exit code is never 0. A program that
    meets a refusal (no such memory, no process, file too large) and goes on has not ended by a limit. `written`
    counts the bytes of both streams, also those that are not kept.
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
    """What a sandbox took, `None` for what nobody counts.

    `peak_memory` in bytes and `peak_processes` (threads counted) are the most at once; with `sampled` the most at
    any reading, so that a short peak may be higher. `cpu_seconds` is processor time, `disk_written` the bytes on
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
    """A place where programs of an untrusted author run; opened by `open_sandbox`, used by one task at a time.

    Every method raises `SandboxDiedError` when the sandbox itself has ended: a provider's failure never looks like
    a command's output. Commands run one after another, in `cwd` unless they are told otherwise.
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

        `timeout` in seconds, at which every process that the sandbox holds is killed; frozen time does not count.
        `output_limit` in bytes per stream; `on_output` gets each piece as it comes, and what it raises ends the
        command and comes out here. A program that is not found gives exit code 127 with the reason on stderr; one
        that cannot be executed, or a directory that cannot be entered, 126. Words that no kernel takes (NUL, none
        at all) raise `UsageError`. While the sandbox is frozen the command waits for the thaw. Cancelling the call
        kills every process that the sandbox holds.
        """
        ...

    async def freeze(self) -> None:
        """Stop every process inside; on return none runs, so what is mounted does not change. Idempotent."""
        ...

    async def thaw(self) -> None:
        """Let frozen processes run on. Idempotent."""
        ...

    def usage(self) -> SandboxUsage:
        """Return what it took so far; after `close` what it took in all."""
        ...

    async def close(self) -> None:
        """Kill everything inside and release mounts and cgroups. Idempotent; never raises for a dead sandbox."""
        ...


class RunningProcess(Struct, frozen=True, kw_only=True):
    """One process: its ids as they are inside, its state as ps(1) has it, and its processor time in seconds.

    `waits_in` is the kernel's function that it sleeps in, `open_files` how many it has; `None` where the host does
    not tell us.
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
    """What a sandbox offers besides where its tier can end commands that write too much."""

    def limit_disk(self, find_passed_limit: Callable[[], LimitName | None]) -> None:
        """Ask this, in a thread, while each command runs and after it; end the command where it names a limit.

        What is asked looks at the workspace from outside; its cost may grow with what was written.
        """
        ...


@runtime_checkable
class ShowsProcesses(Protocol):
    """What a sandbox offers besides where its tier can see into it from the host."""

    def processes(self) -> tuple[RunningProcess, ...]:
        """Return what runs inside, of a frozen sandbox too, nothing of one that ended; reads /proc."""
        ...


@runtime_checkable
class Converses(Protocol):
    """What a sandbox offers besides where its tier can hand a running program more input."""

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

        What the program does not read is buffered inside. When it ends before `stdin`, the rest is not asked for.
        """
        ...


class OpenedFiles(Struct, frozen=True, kw_only=True):
    """Files of observed directories that some program opened or executed.

    `paths` are below `WORKSPACE` where the directory is, else absolute. `complete` is false where the kernel could
    not watch all of the directories or lost count: then more may have been opened than `paths` names.
    """

    paths: frozenset[str]
    complete: bool


@runtime_checkable
class ObservesReads(Sandbox, Protocol):
    """What a sandbox offers besides where its tier sees which files programs open."""

    async def observe(self, directories: Sequence[str]) -> None:
        """Watch the files directly in these directories from now on, in place of those watched before.

        Directories are absolute, or relative to `WORKSPACE` ("" is the workspace itself); a symbolic link is not
        followed.
        """
        ...

    async def opened_files(self) -> OpenedFiles:
        """Return what was opened since `observe` or since this was last called; nothing, not complete, without."""
        ...
