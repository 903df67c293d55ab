"""A person's own image: a root file system made by Debian's own tool, given to the engine unchanged."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from _places import toolchain, workspace
from tests import container_kit

from chargehand.sandbox.container_tier import ContainerTier

pytestmark = [pytest.mark.needs_container, pytest.mark.soak]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Make a minimal Debian with Python, and import it; takes a minute."""
    if shutil.which("mmdebstrap") is None or os.geteuid() != 0:
        pytest.skip("mmdebstrap as root makes the image")
    place = tmp_path_factory.mktemp("image") / "root.tar"
    release = Path("/etc/os-release").read_text()
    suite = next(line.partition("=")[2] for line in release.splitlines() if line.startswith("VERSION_CODENAME"))
    argv = ["mmdebstrap", "-q", "--variant=minbase", "--include=python3", suite, str(place)]
    subprocess.run(argv, check=True, capture_output=True, timeout=900)
    engine, name = container_kit.engine("podman").argv, f"localhost/chargehand-test:{os.getpid()}"
    subprocess.run([*engine, "import", "-q", str(place), name], check=True, capture_output=True)
    place.unlink()
    yield name
    subprocess.run([*engine, "rmi", "-f", name], check=True, capture_output=True)


async def test_programs_run_on_the_files_of_the_image(tmp_path: Path, image: str) -> None:
    with workspace(tmp_path / "place") as spec:
        tier = ContainerTier(
            toolchain(), program="podman", image=image, environ=container_kit.environment(), scratch=tmp_path
        )
        async with tier:
            sandbox = await tier.open(spec)
            tools = await sandbox.exec(["sh", "-c", "command -v gcc git make; command -v python3"])
            made = await sandbox.exec(["python3", "-c", "open('made', 'w').write('by its python')"])
            networks = await sandbox.exec(["python3", "-c", "import socket; print(socket.if_nameindex())"])
            above = await sandbox.exec(["touch", "/usr/bin/planted"])
            await sandbox.close()
        assert tools.stdout.decode().split() == ["/usr/bin/python3"]
        assert (made.exit_code, (tmp_path / "place/upper/made").read_text()) == (0, "by its python")
        assert networks.stdout == b"[(1, 'lo')]\n"
        assert above.exit_code != 0
