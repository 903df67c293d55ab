"""Diagnosis of this machine by real tries: sandbox tiers, tools inside a sandbox, snippets, disk space."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from chargehand import __version__
from chargehand.app.wiring.tiers import try_tier
from chargehand.configuration.extras import EXTRAS, Extra, install_command
from chargehand.core.errors import ChargehandError
from chargehand.core.ports import DriverName
from chargehand.core.records import MissionStatus, TierName
from chargehand.reports.reading import StateReader
from chargehand.sandbox.probe import DRIVERS, ProbePart, ProbeReport
from chargehand.sandbox.snippet_pool import probe_snippets
from chargehand.sandbox.tiers import MACHINES
from chargehand.sandbox.tool_versions import ToolVersion, describe_origin, read_tool_versions
from chargehand.sandbox.toolchain import HiddenPrograms, Toolchain, discover
from chargehand.store.rows import MissionFilter

if TYPE_CHECKING:
    from chargehand.sandbox.vm_kernel import VmKernel

# Settings reach git by GIT_CONFIG_COUNT, introduced in 2.31.
_OLDEST_GIT = (2, 31)
_LEAST_FREE_MB = 1024


class Drivers(msgspec.Struct, frozen=True, kw_only=True):
    """The workspace drivers on this machine, by strategy; null if no sandbox works."""

    shadow: DriverName | None
    direct: DriverName | None


class MachineView(msgspec.Struct, frozen=True, kw_only=True):
    """This machine's size (MiB), the resulting profile of defaults, and whether it is large enough."""

    name: str
    memory_mb: int
    processors: int
    bound_by_group: bool
    budget_mb: int
    sandbox_memory_mb: int
    sandbox_tmp_mb: int
    attempts_at_once: int
    checks_at_once: int
    fits: bool


class ToolView(msgspec.Struct, frozen=True, kw_only=True):
    """One program inside a sandbox; `seen` says how it gets there, `problem` why it does not start."""

    name: str
    version: str
    host: str
    inside: str
    problem: str
    seen: str


class ExtraView(msgspec.Struct, frozen=True, kw_only=True):
    """An optional part of the installation: its use, and the command that installs it."""

    name: str
    installed: bool
    gives: str
    command: str

    @classmethod
    def of(cls, extra: Extra) -> ExtraView:
        """Look for an extra."""
        command = install_command(extra.name)
        return cls(name=extra.name, installed=extra.installed, gives=extra.gives, command=command)


class UsableModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model for agents, and the place of its key; `ready`: it needs no key, or has it."""

    name: str
    ready: bool
    key: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The result of every trial. `container` and `vm` are null if their programs are not installed.

    `agents` are the values of `--agent` for configured agents and installed programs. `next` is the next command,
    "" if something must be fixed first.
    """

    ok: bool
    tier: Literal["process"] | None
    driver: DriverName | None
    drivers: Drivers | None
    parts: tuple[ProbePart, ...]
    container: ProbeReport | None
    machine: MachineView
    vm: ProbeReport | None
    snippets: dict[str, ProbePart]
    tools: tuple[ToolView, ...]
    tools_problem: str
    not_shown: tuple[HiddenPrograms, ...]
    extras: tuple[ExtraView, ...]
    models: tuple[UsableModel, ...] = ()
    agents: tuple[str, ...] = ()
    next: str = ""

    @property
    def unneeded(self) -> tuple[str, ...]:
        """The drivers after the one in use: their failures do not matter."""
        return DRIVERS[DRIVERS.index(self.driver) + 1 :] if self.driver is not None else ()


class MachinesReady(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel for virtual machines, and its file."""

    tier: Literal["vm"]
    kernel: str
    path: str


async def diagnose(reader: StateReader) -> Diagnosis:
    """Try everything concurrently: most of each trial is waiting for processes and disks."""
    essential = _try_essentials(reader.home)
    usable = essential[-1].ok
    size = reader.profile
    search = reader.environ.get("PATH", os.defpath)

    async def try_optional(tier: TierName, *programs: str) -> ProbeReport | None:
        """Try a tier that a machine need not offer, if any of its programs is installed."""
        installed = any(shutil.which(name, path=search) for name in programs)
        return await _try_tier(reader, tier) if usable and installed else None

    async def try_snippets() -> tuple[ProbePart, ...]:
        return await probe_snippets() if usable else ()

    (report, tools, problem, not_shown), container, machines, languages = await asyncio.gather(
        _try_process_tier(reader, usable=usable),
        try_optional("container", "podman", "docker"),
        try_optional("vm", "qemu-system-x86_64"),
        try_snippets(),
    )
    works = report is not None and report.ok
    parts = (*essential, *(report.parts if report else ()), *_describe_limits(reader))
    return Diagnosis(
        ok=works and all(part.ok for part in essential),
        tier="process" if works else None,
        driver=report.driver if report else None,
        drivers=Drivers(shadow=report.driver, direct=report.direct) if report else None,
        parts=parts,
        container=container,
        machine=MachineView(
            name=size.name,
            memory_mb=size.machine.memory_mb,
            processors=size.machine.cores,
            bound_by_group=size.machine.grouped,
            budget_mb=size.budget_mb,
            sandbox_memory_mb=size.memory_mb,
            sandbox_tmp_mb=size.tmp_mb,
            attempts_at_once=size.attempts_at_once,
            checks_at_once=size.checks_at_once,
            fits=size.fits,
        ),
        vm=machines,
        # A snippet runs in the process tier: if that fails, the snippets' failures would only repeat it.
        snippets={part.name.rpartition(" ")[2]: part for part in languages} if works else {},
        tools=tuple(
            ToolView(
                name=tool.name,
                version=tool.version,
                host=tool.host,
                inside=tool.inside,
                problem=tool.problem,
                seen=describe_origin(tool),
            )
            for tool in tools
        ),
        tools_problem=problem,
        not_shown=tuple(not_shown),
        extras=tuple(map(ExtraView.of, EXTRAS)),
    )


_ProcessTrial = tuple[ProbeReport | None, Sequence[ToolVersion], str, Sequence[HiddenPrograms]]
_NOT_TRIED = "tools are checked once a sandbox works"


async def _try_process_tier(reader: StateReader, *, usable: bool) -> _ProcessTrial:
    """Try the process tier, and with its best driver every known program of the toolchain."""
    report = await _try_tier(reader, "process") if usable else None
    if report is None or report.driver is None or not report.ok:
        return report, (), _NOT_TRIED, ()
    try:
        toolchain = await asyncio.to_thread(
            _discover_toolchain, reader, reader.user_configuration().config.sandbox.toolchain
        )
        tools = await read_tool_versions(toolchain, scratch=reader.home, driver=report.driver)
    except ChargehandError as error:
        return report, (), error.message, ()
    return report, tools, "", toolchain.not_shown if tools else ()


async def _try_tier(reader: StateReader, tier: TierName) -> ProbeReport:
    try:
        config = replace(reader.user_configuration().config.sandbox, tier=tier)
        toolchain = await asyncio.to_thread(_discover_toolchain, reader, ())
        return await try_tier(config, toolchain, home=reader.home, environ=reader.environ)
    except ChargehandError as error:
        part = ProbePart(name="sandbox", ok=False, detail=error.message, mend=error.hint)
        return ProbeReport(tier=tier, parts=(part,))


def _discover_toolchain(reader: StateReader, extra: Sequence[str]) -> Toolchain:
    return discover(
        search=reader.environ.get("PATH", os.defpath),
        extra=extra,
        cache=reader.home / "toolchain.json",
        environ=reader.environ,
    )


def _try_essentials(home: Path) -> tuple[ProbePart, ...]:
    """Try Python, git and the state directory: without them nothing works, whatever the sandboxes do."""
    python = ProbePart(name="python", ok=True, detail=f"{platform.python_version()} at {sys.executable}")
    git = ProbePart(name="git", ok=False, detail="not found on PATH", mend="install git")
    if (path := shutil.which("git")) is not None:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.strip()
        found = re.search(r"(\d+)\.(\d+)", said)
        ok = found is not None and (int(found[1]), int(found[2])) >= _OLDEST_GIT
        mend = "" if ok else f"install git {'.'.join(map(str, _OLDEST_GIT))} or later"
        git = ProbePart(name="git", ok=ok, detail=said or path, mend=mend)
    # A file is written, since permission bits do not reveal quotas and read-only mounts.
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=home) as file:
            file.write(b"x")
        room = os.statvfs(home)
    except OSError as error:
        mend = "make it writable, or set CHARGEHAND_HOME to a directory that is"
        state = ProbePart(name="state", ok=False, detail=f"{home}: {error.strerror}", mend=mend)
    else:
        # Not f_bfree, which includes the space reserved for root.
        free = room.f_bavail * room.f_frsize // (1 << 20)
        ok = free >= _LEAST_FREE_MB
        mend = "" if ok else "free some space there (chargehand gc), or set CHARGEHAND_HOME to a larger disk"
        state = ProbePart(name="state", ok=ok, detail=f"{home}, {free} MiB free", mend=mend)
    return python, git, state


def _describe_limits(reader: StateReader) -> tuple[ProbePart, ...]:
    """Describe the limits due to this machine's size, and the hosts that sandboxes may reach.

    For a machine that is too small there is advice, and no refusal.
    """
    profile = reader.profile
    machine = profile.machine
    bound = " (limited by a control group)" if machine.grouped else ""
    detail = (
        f"{machine.memory_mb} MiB{bound}, {machine.cores} processors: profile {profile.name}, "
        f"{profile.attempts_at_once} agents and {profile.checks_at_once} checks at once, each with "
        f"{profile.memory_mb} MiB of memory and {profile.tmp_mb} MiB of /tmp"
    )
    mend = "" if profile.fits else "use a machine with more memory, or lower sandbox.memory_mb yourself"
    size = ProbePart(name="machine", ok=profile.fits, detail=detail, mend=mend)
    try:
        config = reader.user_configuration().config.sandbox
    except ChargehandError as error:
        return size, ProbePart(name="hosts", ok=False, detail=error.message, mend=error.hint)
    who = "agents, setup and checks" if config.network_checks else "agents and setup"
    some = f"{who} may reach {', '.join(config.network)}"
    return size, ProbePart(name="hosts", ok=True, detail=some if config.network else "sandboxes have no network")


def set_up_machines(reader: StateReader, packages: Sequence[Path] = ()) -> MachinesReady:
    """Install the kernel of virtual machines in the state directory, from Debian `packages` or a download.

    Installs no packages and needs no root. Raises `UsageError`, `InfrastructureError`.
    """
    from chargehand.sandbox.vm_kernel import set_up_kernel

    reader.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    guest: VmKernel = set_up_kernel(reader.home / MACHINES, packages=packages, environ=reader.environ)
    return MachinesReady(tier="vm", kernel=guest.version, path=str(guest.kernel))


class LivingWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A living process of this state directory, and the number of missions it holds."""

    id: str
    role: str
    pid: int
    version: str
    missions: int


class SystemView(msgspec.Struct, frozen=True, kw_only=True):
    """The running system: `queued` missions wait for a worker, `sleeping` ones for quota; disk in MiB."""

    version: str
    home: str
    workers: tuple[LivingWorker, ...]
    running: int
    queued: int
    sleeping: int
    open_questions: int
    disk_free_mb: int
    disk_total_mb: int
    position: int


def describe_system(reader: StateReader) -> SystemView:
    """Return the living workers, the waiting missions, and the free space."""
    log = reader.store.log
    held = Counter(log.owners())
    members = reader.watched_workers.members()
    usage = shutil.disk_usage(reader.home)
    waiting = log.summaries(
        reader.watched_workers.live, MissionFilter(statuses=frozenset[MissionStatus]({"waiting"}))
    )
    return SystemView(
        version=__version__,
        home=str(reader.home),
        workers=tuple(
            LivingWorker(id=each.id, role=each.role, pid=each.pid, version=each.version, missions=held[each.id])
            for each in members
        ),
        running=sum(held[each.id] for each in members),
        queued=len(reader.mission_reader.queue().missions),
        sleeping=len(log.sleeping()),
        open_questions=sum(each.summary.open_question is not None for each in waiting),
        disk_free_mb=usage.free >> 20,
        disk_total_mb=usage.total >> 20,
        position=log.last_position(),
    )
