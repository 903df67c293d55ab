"""The mirror with this user's own configuration and the registries it names."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import pytest
from test_mirror_support import forwarded_mirror, run
from tests.postgres import free_port

from chargehand.network.registries import RegistryConfig


@pytest.mark.real
async def test_pip_and_npm_reach_the_users_registries(tmp_path: Path) -> None:
    port = free_port()
    config = await asyncio.to_thread(RegistryConfig.from_user)
    commands = [[sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "six"]]
    if shutil.which("npm"):
        commands += [["npm", "view", "is-number", "version"], ["npm", "pack", "is-number"]]
    async with forwarded_mirror(config, port) as reached:
        for command in commands:
            code, output = await run(command, cwd=tmp_path, environment=reached.mirror.environment())
            assert code == 0, output
    assert list(tmp_path.glob("six-*"))
    assert len(list(tmp_path.glob("is-number-*.tgz"))) == len(commands) // 2
    assert all(record.status == 200 for record in reached.log)
