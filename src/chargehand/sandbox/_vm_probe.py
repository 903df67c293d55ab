"""What the vm tier can offer here, found by starting real machines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chargehand.core.errors import ChargehandError, TierUnavailableError
from chargehand.sandbox._probe import DRIVERS, Part, ProbeReport, try_driver, try_trials
from chargehand.sandbox._toolchain import Toolchain
from chargehand.sandbox._vm import VmTier
from chargehand.sandbox._vm_layout import Machine
from chargehand.sandbox._vm_machine import KVM, find_machine, may_open

TIER = "vm"


async def probe_vm(
    toolchain: Toolchain, *, images: Path, scratch: Path, environ: Mapping[str, str]
) -> ProbeReport:
    """Find QEMU and a kernel and try each promise in real machines; nothing is left behind.

    Takes four starts: some seconds with KVM, up to a minute without. `images` is that of `find_machine`.
    """
    try:
        machine = await find_machine(toolchain, images, environ=environ)
    except TierUnavailableError as error:
        part = Part(name="machine", ok=False, detail=error.message, mend=error.hint)
        return ProbeReport(tier=TIER, parts=(part,))
    parts = [Part(name="machine", ok=True, detail=described(machine))]
    try:
        async with VmTier(toolchain, machine) as tier:
            parts += [await try_driver(driver, tier, scratch) for driver in DRIVERS]
            driver = ProbeReport(tier=TIER, parts=tuple(parts)).driver
            if driver is not None:
                parts += await try_trials(driver, tier, scratch)
    except ChargehandError as error:
        parts.append(Part(name="machines", ok=False, detail=error.message, mend=error.hint))
    return ProbeReport(tier=TIER, parts=tuple(parts))


def described(machine: Machine) -> str:
    """Return in words how machines are run."""
    if machine.accelerator == "kvm":
        how = f"KVM, {machine.cpus} processors"
    elif may_open(KVM):
        how = f"no KVM (a machine did not start with it in time), so it computes slowly; {machine.cpus} processor"
    else:
        how = f"no KVM ({KVM} may not be opened), so it computes slowly; {machine.cpus} processor"
    return f"{machine.qemu}, Linux {machine.guest.version}, {how}"
