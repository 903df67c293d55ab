"""Virtual machines for tests. The kernel is made once; `python -m tests.vm_kit` makes it too."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chargehand.core.errors import TierUnavailableError
from chargehand.sandbox.vm_kernel import VirtualMachine, VmKernel, find_kernel, set_up_kernel
from chargehand.sandbox.vm_tier import QEMU

IMAGES = Path(sys.prefix, "machines")


def missing() -> str:
    """Return the name of the missing program for virtual machines, or ""."""
    return "" if shutil.which(QEMU) else f"not installed: {QEMU}"


@functools.cache
def guest() -> VmKernel:
    """Return the kernel of test machines, downloading it if missing."""
    with _alone():
        try:
            return find_kernel(IMAGES)
        except TierUnavailableError:
            return set_up_kernel(IMAGES)


def machine() -> VirtualMachine:
    """Return the configuration of test machines: without KVM, as on every machine."""
    return VirtualMachine(qemu=shutil.which(QEMU) or QEMU, boot=guest(), accelerator="tcg", cpus=1)


def provide(images: Path) -> None:
    """Put the kernel of test machines into a state directory, as `chargehand sandbox setup vm` would."""
    guest()
    images.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    shutil.copytree(IMAGES, images, copy_function=os.link)


@contextmanager
def _alone() -> Iterator[None]:
    IMAGES.mkdir(exist_ok=True)
    with (IMAGES / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    print(guest().version)
