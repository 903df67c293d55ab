"""The registered sandbox tiers; light, because reading a configuration needs only their names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from chargehand.core.registry import Registry

if TYPE_CHECKING:
    from chargehand.core.config import SandboxConfig
    from chargehand.sandbox.probe import ProbeReport
    from chargehand.sandbox.toolchain import Toolchain

# The subdirectory of the state directory for the kernel of virtual machines.
MACHINES = "vm"


class TierPlace(Struct, frozen=True, kw_only=True):
    """The parameters of opening or probing a tier; `home` is the state directory.

    The tier's last sandbox keeps the descriptor `alive` open.
    """

    config: SandboxConfig
    toolchain: Toolchain
    home: Path
    environ: Mapping[str, str]
    alive: int | None = None


class TierAdapter(Struct, frozen=True, kw_only=True):
    """The implementation of a tier's name.

    `open` returns a context manager for a tier (`probe.OpensSandboxes`); entering raises `TierUnavailableError`.
    `probe` tries the promises of the tier on this machine; a stored probe is valid while `fingerprint`, values for
    JSON, stays the same. If `shared`, sessions of one process use one open tier, each after its `sweep()`.
    """

    open: Callable[[TierPlace], AbstractAsyncContextManager[Any]]
    probe: Callable[[TierPlace], Awaitable[ProbeReport]]
    fingerprint: Callable[[TierPlace], list[object]] = lambda place: []
    shared: bool = False


def _process() -> TierAdapter:
    from chargehand.sandbox.probe import probe
    from chargehand.sandbox.process_tier import ProcessTier

    return TierAdapter(
        open=lambda place: ProcessTier(place.toolchain, alive=place.alive),
        probe=lambda place: probe(place.toolchain, scratch=place.home),
        shared=True,
    )


def _container() -> TierAdapter:
    from chargehand.sandbox.container_tier import ContainerTier, probe_container

    def options(place: TierPlace) -> dict[str, Any]:
        program, image = place.config.container_program or "", place.config.container_image or ""
        return {"program": program, "image": image, "scratch": place.home, "environ": place.environ}

    def fingerprint(place: TierPlace) -> list[object]:
        # A container engine is identified by its path, its date, and its settings.
        search = place.environ.get("PATH", os.defpath)
        names = (place.config.container_program or "podman", "docker", "runc")
        found = [shutil.which(name, path=search) for name in names]
        stamps = [os.stat(path).st_mtime if path else 0 for path in found]
        return [*found, *stamps, place.config.container_image, place.environ.get("DOCKER_HOST", "")]

    return TierAdapter(
        open=lambda place: ContainerTier(place.toolchain, alive=place.alive, **options(place)),
        probe=lambda place: probe_container(place.toolchain, **options(place)),
        fingerprint=fingerprint,
    )


def _vm() -> TierAdapter:
    from chargehand.sandbox.vm_tier import open_vm_tier, probe_vm

    def options(place: TierPlace) -> dict[str, Any]:
        return {"images": place.home / MACHINES, "environ": place.environ}

    def fingerprint(place: TierPlace) -> list[object]:
        # Virtual machines are identified by QEMU's program and the installed kernel.
        path = shutil.which("qemu-system-x86_64", path=place.environ.get("PATH", os.defpath))
        places = [Path(path) if path else None, place.home / MACHINES / "about.json"]
        return [path, *(each.stat().st_mtime if each and each.exists() else 0 for each in places)]

    return TierAdapter(
        open=lambda place: open_vm_tier(place.toolchain, alive=place.alive, **options(place)),
        probe=lambda place: probe_vm(place.toolchain, scratch=place.home, **options(place)),
        fingerprint=fingerprint,
    )


TIERS: Registry[TierAdapter] = Registry("tiers", "sandbox tier")
TIERS.register("process", _process, "bubblewrap on this machine's kernel")
TIERS.register("container", _container, "a container engine around it")
TIERS.register("vm", _vm, "a virtual machine with its own kernel")
