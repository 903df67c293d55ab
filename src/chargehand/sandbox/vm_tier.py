"""The `vm` tier: one QEMU virtual machine per sandbox, confined by bubblewrap, our exec server inside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import marshal
import os
import platform
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from chargehand.core.errors import ChargehandError, InfrastructureError, TierUnavailableError
from chargehand.core.ports import sandbox_ids
from chargehand.sandbox.contract import OpenedFiles, SandboxLimits, SandboxSpec, new_host_name
from chargehand.sandbox.inside import exec_server, vm_init, vm_relay
from chargehand.sandbox.probe import ProbePart, ProbeReport, probe_tier, scratch_plan
from chargehand.sandbox.process.cgroups import Cgroup
from chargehand.sandbox.process.launched_tier import LaunchedTier, describe_limits
from chargehand.sandbox.process.layout import HIDDEN, INSIDE_ID, forwarded
from chargehand.sandbox.process.session import ServedSandbox
from chargehand.sandbox.toolchain import Toolchain
from chargehand.sandbox.vm.host_relay import HostRelay
from chargehand.sandbox.vm.layout import KERNEL_MB, plan_machine, qemu_limits
from chargehand.sandbox.vm_kernel import VirtualMachine, find_kernel

# The time a machine may take to answer: without KVM, on a busy computer, it takes a minute.
BOOT_SECONDS = 180.0
_STOP_ROUNDS = 5000
QEMU = "qemu-system-x86_64"
KVM = Path("/dev/kvm")
_KVM_RESULT = "kvm.json"
_KVM_SECONDS = 20.0
_MOST_CPUS = 4
_INSTALL = {
    "apt-get": "apt-get install --no-install-recommends qemu-system-x86",
    "dnf": "dnf install qemu-system-x86-core",
    "pacman": "pacman -S qemu-system-x86",
    "zypper": "zypper install qemu-x86",
    "apk": "apk add qemu-system-x86_64",
}


class VmSandbox(ServedSandbox):
    """A sandbox of the `vm` tier; made by `VmTier.open`, keeps the promises of `Sandbox`.

    A freeze stops every process inside and makes the machine write back its buffers; then QEMU itself is stopped
    from outside, so that even a machine whose kernel was taken over stops writing.
    """

    tier = "vm"
    start_seconds = BOOT_SECONDS
    grace_seconds = 60.0
    _relay: HostRelay | None = None

    async def join(self, relay: HostRelay) -> None:
        """Serve the machine's connections to the host's sockets until the end."""
        self._relay = relay
        await relay.start()

    async def _release(self) -> None:
        await super()._release()
        if self._relay is not None:
            await self._relay.close()

    async def opened_files(self) -> OpenedFiles:
        """Return opened files, never complete; see `ObservesReads.opened_files`."""
        # 9p makes a new inode at each look-up, so a watch inside misses files opened by others.
        return replace(await super().opened_files(), complete=False)

    async def _order_freeze(self) -> None:
        self._send(exec_server.FREEZE)
        await self._wait(self._signals.get(), seconds=self.grace_seconds)
        # From outside as well: a compromised machine may lie about its freeze.
        if self._cgroup is not None and self._cgroup.freezer is not None:
            await asyncio.to_thread(self._cgroup.freeze, True)
        else:
            await asyncio.to_thread(_stop_qemu, self._first())

    async def _order_thaw(self) -> None:
        if self._cgroup is not None and self._cgroup.freezer is not None:
            await asyncio.to_thread(self._cgroup.freeze, False)
        else:
            _signal_qemu(self._first(), signal.SIGCONT)
        self._send(exec_server.THAW)
        await self._wait(self._signals.get(), seconds=self.grace_seconds)


def _signal_qemu(qemu: int | None, number: int) -> None:
    if qemu is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(qemu, number)


def _stop_qemu(qemu: int | None) -> None:
    """Stop QEMU and wait until all its threads have stopped; a missing process counts as stopped.

    Raises `InfrastructureError` (`freeze_timeout`).
    """
    if qemu is None:
        return
    _signal_qemu(qemu, signal.SIGSTOP)
    for _ in range(_STOP_ROUNDS):
        states = []
        with contextlib.suppress(OSError):  # it, or one of its threads, ended meanwhile
            for task in os.listdir(f"/proc/{qemu}/task"):
                with contextlib.suppress(OSError):
                    stat = Path(f"/proc/{qemu}/task/{task}/stat").read_text()
                    states.append(stat.rpartition(")")[2].split()[0])
        if all(state in "TtZX" for state in states):
            return
        time.sleep(0.001)
    raise InfrastructureError("QEMU was not stopped in time", code="freeze_timeout")


class VmTier(LaunchedTier):
    """Opens sandboxes of the `vm` tier; close it to end every machine.

    One instance per Chargehand process, an asynchronous context manager. `machine` defines how machines run, see
    `find_machine`; `alive` is that of `LaunchedTier`.
    """

    def __init__(self, toolchain: Toolchain, machine: VirtualMachine, *, alive: int | None = None) -> None:
        super().__init__(toolchain, alive=alive)
        self._machine = machine

    async def open(self, spec: SandboxSpec) -> VmSandbox:
        """Open one sandbox; raises `TierUnavailableError` with QEMU's output if it does not start."""
        sockets = {port: path for _, port, path in forwarded(spec)}
        # The code sent to the interpreter inside: how the machine drops root, and then the exec server.
        inside = Path(vm_init.__file__).read_text()
        relay = marshal.dumps(compile(Path(vm_relay.__file__).read_text(), "relay", "exec")) if sockets else b""
        words = f"uid={INSIDE_ID}, hidden={HIDDEN!r}, relay={relay!r}, ports={tuple(sockets)!r}"
        words += f", host_name={new_host_name()!r}"
        call = f"run({self._filter!r}, {self._server!r}, {words})"
        code = marshal.dumps(compile(f"{inside}\n{call}\n", "vm", "exec"))
        async with self._opening(spec, _start_error) as opening:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sandbox = await self._launch(
                    VmSandbox,
                    replace(opening, spec=replace(opening.spec, limits=qemu_limits(spec.limits))),
                    plan=lambda cgroup: plan_machine(
                        opening.spec,
                        self._machine,
                        bwrap=self._bwrap,
                        code_size=len(code),
                        cgroups=cgroup.directories if cgroup else (),
                        links=self._toolchain.links,
                    ),
                    name_limits=lambda cgroup: _describe_machine_limits(spec.limits, cgroup),
                    descriptors=[theirs.fileno()],
                )
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
            try:
                await sandbox.join(HostRelay(ours, sockets))
                await sandbox.start(code)
            except BaseException:
                await sandbox.close()
                raise
            return sandbox


def _start_error(said: str) -> TierUnavailableError:
    return TierUnavailableError(
        f"the virtual machine did not start: {said}",
        hint="run `chargehand doctor` to see why, or use --sandbox process",
    )


def _describe_machine_limits(limits: SandboxLimits, cgroup: Cgroup | None) -> dict[str, str]:
    in_group = cgroup.limits_in_force if cgroup else {}
    stopped = "cgroup" if cgroup and cgroup.freezer else "a signal to QEMU"
    counted = ", counted by a cgroup" if "memory" in in_group else ""
    return describe_limits(
        limits,
        memory=f"{limits.memory_mb} MiB and {KERNEL_MB} MiB for its kernel (memory of the machine{counted})",
        processes=f"{limits.processes} for the sandbox (rlimit in the machine)",
        freeze=f"signals to all processes inside, then {stopped}",
        cpu_share=in_group.get("cpu_share", "not limited: no control group for processors is available here"),
    )


async def find_machine(
    toolchain: Toolchain, images: Path, *, environ: Mapping[str, str] | None = None, device: Path = KVM
) -> VirtualMachine:
    """Return how to run machines with the kernel in `images`; raises `TierUnavailableError` with the remedy.

    If the sandbox's user may open `device`, a machine is started with KVM once and has 20 s to answer; the result
    is cached until the computer, its kernel or QEMU changes.
    """
    if platform.machine() != "x86_64":
        raise TierUnavailableError(
            f"no virtual machines on {platform.machine()!r}", hint="use --sandbox process or container"
        )
    environ = os.environ if environ is None else environ
    qemu = shutil.which(QEMU, path=environ.get("PATH", os.defpath))
    if qemu is None:
        tools = [command for tool, command in _INSTALL.items() if shutil.which(tool)]
        raise TierUnavailableError(
            f"{QEMU}: not found", hint=f"install QEMU: {tools[0] if tools else 'with your package manager'}"
        )
    qemu = os.path.realpath(qemu)
    if not qemu.startswith("/usr/"):
        raise TierUnavailableError(
            f"{qemu!r} is outside /usr, and the machine's confinement shows only /usr",
            hint="install QEMU from your distribution",
        )
    machine = VirtualMachine(qemu=qemu, boot=find_kernel(images), accelerator="tcg", cpus=1)
    if not may_open(device):
        return machine
    fast = replace(machine, accelerator="kvm", cpus=min(_MOST_CPUS, os.cpu_count() or 1))
    place = images / _KVM_RESULT
    system = os.uname()
    key = [system.release, system.version, qemu, os.stat(qemu).st_mtime, fast.boot.version]
    works: bool | None = None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(place.read_text())
        works = bool(known["works"]) if known["key"] == key else None
    if works is None:
        # By a timed start: a device that exists and may be opened may still not work.
        works = await starts_in(toolchain, fast, images, seconds=_KVM_SECONDS)
        fresh = place.with_name(f"{place.name}.{os.getpid()}")
        fresh.write_text(json.dumps({"key": key, "works": works}))
        fresh.replace(place)
    return fast if works else machine


def may_open(device: Path) -> bool:
    """Return whether the user that sandboxes run as may read and write a device."""
    try:
        status = device.stat()
    except OSError:
        return False
    if os.geteuid() != 0:
        return os.access(device, os.R_OK | os.W_OK)
    uid, gid = sandbox_ids()  # root becomes this user, which is in no other group
    shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
    return (status.st_mode >> shift) & 0o6 == 0o6


async def starts_in(toolchain: Toolchain, machine: VirtualMachine, scratch: Path, *, seconds: float) -> bool:
    """Return whether a machine started and ran a program in time."""
    with scratch_plan(scratch, "worktree") as plan:
        spec = SandboxSpec(mounts=plan, limits=SandboxLimits(memory_mb=256, tmp_mb=4))
        try:
            async with asyncio.timeout(seconds), VmTier(toolchain, machine) as tier:
                sandbox = await tier.open(spec)
                return (await sandbox.exec(["true"])).exit_code == 0
        except (ChargehandError, TimeoutError):
            return False


@contextlib.asynccontextmanager
async def open_vm_tier(
    toolchain: Toolchain, *, images: Path, environ: Mapping[str, str], alive: int | None = None
) -> AsyncIterator[VmTier]:
    """Detect how machines can run here and open the tier; raises as `find_machine` does."""
    machine = await find_machine(toolchain, images, environ=environ)
    async with VmTier(toolchain, machine, alive=alive) as tier:
        yield tier


async def probe_vm(
    toolchain: Toolchain, *, images: Path, scratch: Path, environ: Mapping[str, str]
) -> ProbeReport:
    """Find QEMU and a kernel and try each promise in real machines; nothing is left behind.

    Takes four starts: some seconds with KVM, up to a minute without. `images` is that of `find_machine`.
    """
    try:
        machine = await find_machine(toolchain, images, environ=environ)
    except TierUnavailableError as error:
        part = ProbePart(name="machine", ok=False, detail=error.message, mend=error.hint)
        return ProbeReport(tier="vm", parts=(part,))
    parts = [ProbePart(name="machine", ok=True, detail=describe_machine(machine))]
    try:
        async with VmTier(toolchain, machine) as tier:
            parts += await probe_tier(tier, scratch)
    except ChargehandError as error:
        parts.append(ProbePart(name="machines", ok=False, detail=error.message, mend=error.hint))
    return ProbeReport(tier="vm", parts=tuple(parts))


def describe_machine(machine: VirtualMachine) -> str:
    """Return in words how machines run."""
    if machine.accelerator == "kvm":
        how = f"KVM, {machine.cpus} processors"
    elif may_open(KVM):
        how = f"no KVM (a machine did not start with it in time), so it computes slowly; {machine.cpus} processor"
    else:
        how = f"no KVM ({KVM} may not be opened), so it computes slowly; {machine.cpus} processor"
    return f"{machine.qemu}, Linux {machine.boot.version}, {how}"
