"""Opens network access of sandboxes: to the configured hosts, and to package registries."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from msgspec import Struct

from chargehand.core.config import SandboxConfig
from chargehand.missions.services import Egress, Registries
from chargehand.network.allow_list import AllowList
from chargehand.network.contract import EgressLimits, EgressRequest, MirrorRequest


class SandboxNetwork(Struct, frozen=True, kw_only=True):
    """The `OpenEgress` of one session; sockets are in `scratch`, which belongs to this process."""

    config: SandboxConfig
    scratch: Path

    @contextlib.asynccontextmanager
    async def __call__(self, log: Callable[[EgressRequest], None], /) -> AsyncIterator[Egress]:
        """Allow requests to the configured hosts during the block; see `OpenEgress`."""
        from chargehand.network.egress import EgressProxy

        self.scratch.mkdir(exist_ok=True, mode=0o700)
        # A session may have several sandboxes at once, each with its own proxy.
        socket = self.scratch / f"egress-{secrets.token_hex(8)}.sock"
        allowed = AllowList.parse(self.config.network)
        limits = EgressLimits(
            bytes_out=self.config.network_mb_out << 20,
            bytes_in=self.config.network_mb_in << 20,
            requests_per_second=self.config.network_requests,
            connections=self.config.network_connections,
            idle_seconds=self.config.network_idle,
        )
        async with EgressProxy(socket, allowed, log=log, limits=limits) as proxy:
            yield proxy


class PackageMirrors(Struct, frozen=True, kw_only=True):
    """The `OpenRegistries` of one session; sockets are in `scratch`, which belongs to this process."""

    environ: Mapping[str, str]
    scratch: Path

    @contextlib.asynccontextmanager
    async def __call__(self, log: Callable[[MirrorRequest], None], /) -> AsyncIterator[Registries]:
        """Serve the person's registries for the block; see `OpenRegistries`."""
        from chargehand.network.registries import RegistryConfig, RegistryMirror

        config = await asyncio.to_thread(RegistryConfig.from_user, self.environ)
        self.scratch.mkdir(exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=self.scratch, prefix="registries-") as directory:
            async with RegistryMirror(Path(directory, "mirror.sock"), config=config, log=log) as mirror:
                yield mirror
