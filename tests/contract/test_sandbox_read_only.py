"""A workspace that is mounted read-only: no program inside can write there, in any tier, with any driver."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from _places import toolchain, workspace
from msgspec import structs
from msgspec.structs import replace
from tests import container_kit, vm_kit

from chargehand.sandbox.container_tier import ContainerTier
from chargehand.sandbox.process_tier import ProcessTier
from chargehand.sandbox.vm_tier import VmTier

TRIES = """
for place in . kept sub; do touch $place/new; echo x > $place/new; done
echo x >> old.txt; echo x > old.txt; rm old.txt; mv old.txt other; chmod 777 old.txt; ln -s / out; mkdir made
mount -o remount,rw /workspace; mount -o remount,bind,rw /workspace
cat old.txt; echo y > /tmp/mine && cat /tmp/mine; echo y > $HOME/mine && cat $HOME/mine
"""


async def refused(tier: AbstractAsyncContextManager[Any], place: Path, *, plain: bool) -> None:
    with workspace(place, plain=plain) as spec:
        (place / "base" / "old.txt").write_text("old\n")
        (place / "base" / "sub").mkdir()
        for path in (place / "base", place / "base" / "sub", place / "base" / "old.txt"):
            path.chmod(0o777)
        spec = replace(spec, mounts=structs.replace(spec.mounts, read_only=True))
        async with tier as opened:
            sandbox = await opened.open(spec)
            try:
                tried = await sandbox.exec(["sh", "-c", TRIES])
            finally:
                await sandbox.close()
    assert tried.stdout.split() == [b"old", b"y", b"y"], tried
    assert b"Read-only file system" in tried.stderr
    assert list((place / "upper").iterdir()) == []
    assert sorted(path.name for path in (place / "base").iterdir()) == ["old.txt", "sub"]
    assert (place / "base" / "old.txt").read_text() == "old\n"


@pytest.mark.needs_bwrap
@pytest.mark.parametrize("plain", [False, True], ids=["layers", "directory"])
async def test_in_a_process_sandbox(tmp_path: Path, plain: bool) -> None:
    await refused(ProcessTier(toolchain()), tmp_path / "place", plain=plain)


@pytest.mark.needs_container
@pytest.mark.parametrize("plain", [False, True], ids=["layers", "directory"])
async def test_in_a_container(tmp_path: Path, plain: bool) -> None:
    tier = ContainerTier(
        toolchain(), engine=container_kit.engine("podman"), environ=container_kit.environment(), scratch=tmp_path
    )
    await refused(tier, tmp_path / "place", plain=plain)


@pytest.mark.needs_vm
@pytest.mark.soak
@pytest.mark.parametrize("plain", [False, True], ids=["layers", "directory"])
async def test_in_a_machine(tmp_path: Path, plain: bool) -> None:
    await refused(VmTier(toolchain(), vm_kit.machine()), tmp_path / "place", plain=plain)
