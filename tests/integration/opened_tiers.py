"""A sandbox of the `process` or the `container` tier that sees one of the host's sockets."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests import container_kit
from tests.contract._places import toolchain, workspace

from chargehand.sandbox.container_tier import ContainerTier
from chargehand.sandbox.contract import Sandbox
from chargehand.sandbox.process_tier import ProcessTier

TIERS = [
    pytest.param("process", marks=pytest.mark.needs_bwrap),
    pytest.param("container", marks=pytest.mark.needs_container),
]


@contextlib.asynccontextmanager
async def opened(
    tier: str,
    place: Path,
    *,
    registries: Path | None = None,
    egress: Path | None = None,
    files: Mapping[str, bytes] | None = None,
) -> AsyncIterator[Sandbox]:
    """Open a sandbox whose workspace holds `files`."""
    async with contextlib.AsyncExitStack() as stack:
        spec = stack.enter_context(workspace(place / "workspace", memory_mb=1024))
        for name, content in (files or {}).items():
            (place / "workspace/base" / name).write_bytes(content)
        made: ProcessTier | ContainerTier
        if tier == "process":
            made = await stack.enter_async_context(ProcessTier(toolchain()))
        else:
            engine, scratch = container_kit.engine("podman"), place / "scratch"
            scratch.mkdir()
            made = await stack.enter_async_context(
                ContainerTier(toolchain(), engine=engine, environ=container_kit.environment(), scratch=scratch)
            )
        sandbox = await made.open(replace(spec, registries=registries, egress=egress))
        try:
            yield sandbox
        finally:
            await sandbox.close()
