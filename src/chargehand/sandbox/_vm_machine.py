"""How virtual machines can be run here: QEMU, the kernel, and KVM only where a timed start proved it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

from chargehand.core.errors import ChargehandError, TierUnavailableError
from chargehand.core.ports import sandbox_ids
from chargehand.sandbox._contract import SandboxLimits, SandboxSpec
from chargehand.sandbox._probe import scratch_plan
from chargehand.sandbox._toolchain import Toolchain
from chargehand.sandbox._vm import VmTier
from chargehand.sandbox._vm_guest import find_guest
from chargehand.sandbox._vm_layout import Machine

QEMU = "qemu-system-x86_64"
KVM = Path("/dev/kvm")
_PROVEN = "kvm.json"
_KVM_SECONDS = 20.0
_MOST_CPUS = 4
_INSTALL = {
    "apt-get": "apt-get install --no-install-recommends qemu-system-x86",
    "dnf": "dnf install qemu-system-x86-core",
    "pacman": "pacman -S qemu-system-x86",
    "zypper": "zypper install qemu-x86",
    "apk": "apk add qemu-system-x86_64",
}


async def find_machine(
    toolchain: Toolchain, images: Path, *, environ: Mapping[str, str] | None = None, device: Path = KVM
) -> Machine:
    """Return how to run machines with the kernel kept in `images`; raises `TierUnavailableError` with the mend.

    Where the sandbox's user may open `device`, a machine is started with KVM once and has 20 s to answer; what
    came of it is remembered until the computer, its kernel or QEMU changes.
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
            f"{qemu!r} lies outside of /usr, where the machine's confinement does not show it",
            hint="install QEMU from your distribution",
        )
    machine = Machine(qemu=qemu, guest=find_guest(images), accelerator="tcg", cpus=1)
    if not may_open(device):
        return machine
    fast = replace(machine, accelerator="kvm", cpus=min(_MOST_CPUS, os.cpu_count() or 1))
    return fast if await _proven(toolchain, fast, images) else machine


def may_open(device: Path) -> bool:
    """Tell whether the user that sandboxes run as may read and write a device."""
    try:
        status = device.stat()
    except OSError:
        return False
    if os.geteuid() != 0:
        return os.access(device, os.R_OK | os.W_OK)
    uid, gid = sandbox_ids()  # root becomes this user, which is in no other group
    shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
    return (status.st_mode >> shift) & 0o6 == 0o6


async def _proven(toolchain: Toolchain, machine: Machine, images: Path) -> bool:
    place = images / _PROVEN
    system = os.uname()
    key = [system.release, system.version, machine.qemu, os.stat(machine.qemu).st_mtime, machine.guest.version]
    try:
        known = json.loads(place.read_text())
        if known["key"] == key:
            return bool(known["works"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    works = await starts_in(toolchain, machine, images, seconds=_KVM_SECONDS)
    fresh = place.with_name(f"{place.name}.{os.getpid()}")
    fresh.write_text(json.dumps({"key": key, "works": works}))
    fresh.replace(place)
    return works


async def starts_in(toolchain: Toolchain, machine: Machine, scratch: Path, *, seconds: float) -> bool:
    """Tell whether a machine started and ran a program in time."""
    with scratch_plan(scratch, "worktree") as plan:
        spec = SandboxSpec(mounts=plan, limits=SandboxLimits(memory_mb=256, tmp_mb=4))
        try:
            async with asyncio.timeout(seconds), VmTier(toolchain, machine) as tier:
                sandbox = await tier.open(spec)
                return (await sandbox.exec(["true"])).exit_code == 0
        except (ChargehandError, TimeoutError):
            return False


@contextlib.asynccontextmanager
async def virtual_machines(
    toolchain: Toolchain, *, images: Path, environ: Mapping[str, str], alive: int | None = None
) -> AsyncIterator[VmTier]:
    """Find out how machines can be run here and open the tier; raises as `find_machine` does."""
    machine = await find_machine(toolchain, images, environ=environ)
    async with VmTier(toolchain, machine, alive=alive) as tier:
        yield tier
