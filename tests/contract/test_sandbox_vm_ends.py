"""Machines end with their owner, whatever ends it; a missing requirement is reported with its fix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from _places import descendants, running_with, toolchain, workspace
from tests import vm_kit

from chargehand.core.errors import TierUnavailableError
from chargehand.sandbox.vm_kernel import VirtualMachine
from chargehand.sandbox.vm_tier import VmTier, find_machine, may_open, probe_vm

OWNER = """
import asyncio, os, sys
from pathlib import Path
from tests import vm_kit
from chargehand.core.ports import MountPlan
from chargehand.sandbox.contract import SandboxSpec
from chargehand.sandbox.vm_tier import VmTier
from chargehand.sandbox.toolchain import discover
async def main(root, how):
    plan = MountPlan(target="/workspace", lowers=(root / "base",), upper=root / "upper", work=root / "work")
    async with VmTier(discover(search=os.environ["PATH"]), vm_kit.machine()) as tier:
        sandbox = await tier.open(SandboxSpec(mounts=plan))
        task = asyncio.create_task(sandbox.exec(["sh", "-c", "touch here; while :; do sleep 1; done"]))
        while not (root / "upper/here").exists():
            await asyncio.sleep(0.01)
        if how == "frozen":
            await sandbox.freeze()
        print("ready", flush=True)
        await task
asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.needs_vm
@pytest.mark.parametrize("how", [pytest.param("running", marks=pytest.mark.soak), "frozen"])
def test_a_killed_owner_leaves_no_machine(how: str, tmp_path: Path) -> None:
    with workspace(tmp_path / "place"):
        argv = [sys.executable, "-c", OWNER, str(tmp_path / "place"), how]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.stdout.close()
        mine = {pid for pid, words in descendants(process.pid).items() if "qemu-system" in words}
        assert mine
        process.kill()
        process.wait()
        limit = time.monotonic() + 60
        while left := mine & set(running_with("qemu-system")):
            assert time.monotonic() < limit, left
            time.sleep(0.05)


@pytest.mark.needs_vm
async def test_qemu_that_ends_at_once_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    guest = vm_kit.guest()
    wrong = VirtualMachine(
        qemu=vm_kit.machine().qemu,
        boot=type(guest)(kernel=tmp_path / "empty", initramfs=tmp_path / "empty", version="0"),
        accelerator="tcg",
        cpus=1,
    )
    async with VmTier(toolchain(), wrong) as tier:
        with workspace(tmp_path / "place") as spec, pytest.raises(TierUnavailableError) as caught:
            await tier.open(spec)
    assert "qemu" in caught.value.message, caught.value.message


@pytest.mark.needs_vm
async def test_kvm_is_believed_only_after_a_start(tmp_path: Path) -> None:
    """The sandbox user may open a fake device here; QEMU finds no KVM in it, and emulates instead."""
    vm_kit.provide(tmp_path / "vm")
    device = tmp_path / "kvm"
    device.touch()
    device.chmod(0o666)
    tmp_path.chmod(0o755)
    if may_open(Path("/dev/kvm")):
        pytest.skip("KVM may be opened on this machine, and might work")
    machine = await find_machine(toolchain(), tmp_path / "vm", device=device)
    assert (machine.accelerator, machine.cpus) == ("tcg", 1)
    kept = json.loads((tmp_path / "vm/kvm.json").read_text())
    assert kept["works"] is False
    (tmp_path / "vm/kvm.json").write_text(json.dumps({**kept, "works": True}))
    machine = await find_machine(toolchain(), tmp_path / "vm", device=device)
    assert machine.accelerator == "kvm", "what is known is not tried again"
    device.chmod(0o600)
    os.chown(device, 0, 0) if os.geteuid() == 0 else device.unlink()
    assert (await find_machine(toolchain(), tmp_path / "vm", device=device)).accelerator == "tcg"


async def test_without_qemu_its_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(TierUnavailableError, match="not found") as caught:
        await find_machine(toolchain(), tmp_path, environ={"PATH": str(tmp_path)})
    assert "QEMU" in caught.value.hint
    report = await probe_vm(toolchain(), images=tmp_path, scratch=tmp_path, environ={"PATH": str(tmp_path)})
    assert not report.ok
    assert [(part.name, part.ok) for part in report.parts] == [("machine", False)]


@pytest.mark.needs_vm
@pytest.mark.soak
async def test_a_probe_tries_every_promise_in_real_machines(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    vm_kit.provide(tmp_path / "vm")
    report = await probe_vm(toolchain(), images=tmp_path / "vm", scratch=tmp_path, environ=os.environ)
    assert report.ok, report.parts
    assert report.driver == "overlay"
    assert {"machine", "isolation", "network", "processes", "memory", "freeze"} <= {p.name for p in report.parts}
