"""Containers end with their owner, whatever ends it; a missing requirement is reported with its fix."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from _places import descendants, toolchain, workspace
from msgspec.structs import replace
from tests import container_kit

from chargehand.core.errors import SandboxDiedError, TierUnavailableError
from chargehand.sandbox.container.guard import PREFIX, container_names
from chargehand.sandbox.container_engine import ContainerEngine, find_engine
from chargehand.sandbox.container_tier import ContainerTier, probe_container
from chargehand.sandbox.contract import GATEWAY_PORT

needs_container = pytest.mark.needs_container
OWNER = """
import asyncio, os, sys
from pathlib import Path
from tests import container_kit
from chargehand.core.ports import MountPlan
from chargehand.sandbox.container_tier import ContainerTier
from chargehand.sandbox.contract import SandboxSpec
from chargehand.sandbox.toolchain import discover
async def main(root, how):
    plan = MountPlan(target="/workspace", lowers=(root / "base",), upper=root / "upper", work=root / "work")
    tools, engine = discover(search=os.environ["PATH"]), container_kit.engine("podman")
    async with ContainerTier(tools, engine=engine, environ=container_kit.environment(), scratch=root) as tier:
        sandbox = await tier.open(SandboxSpec(mounts=plan))
        script = "touch here; while :; do sleep 1; done"
        task = asyncio.create_task(sandbox.exec(["sh", "-c", script]))
        while not (root / "upper/here").exists():
            await asyncio.sleep(0.01)
        if how == "frozen":
            await sandbox.freeze()
        print("ready", flush=True)
        await task
asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


def owned_by(pid: int) -> list[str]:
    return container_names(container_kit.engine("podman").argv, f"{PREFIX}{pid}-")


def gone(pid: int) -> bool:
    limit = time.monotonic() + 30
    while owned_by(pid) and time.monotonic() < limit:
        time.sleep(0.1)
    return not owned_by(pid)


def owner(root: Path, how: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", OWNER, str(root), how]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdout.close()
    return process


@needs_container
@pytest.mark.parametrize("how", ["running", "frozen"])
def test_a_killed_owner_leaves_no_container(how: str, tmp_path: Path) -> None:
    with workspace(tmp_path / "place"):
        process = owner(tmp_path / "place", how)
        assert len(owned_by(process.pid)) == 1
        process.kill()
        process.wait()
        assert gone(process.pid)
        limit = time.monotonic() + 30
        while left := list((tmp_path / "place").glob("containers-*")):
            assert time.monotonic() < limit, left
            time.sleep(0.05)


@needs_container
async def test_containers_of_a_dead_owner_and_guard_are_removed(tmp_path: Path) -> None:
    with workspace(tmp_path / "place"):
        process = owner(tmp_path / "place", "frozen")
        guards = [pid for pid, words in descendants(process.pid).items() if "container/guard.py" in words]
        assert len(guards) == 1
        os.kill(guards[0], signal.SIGKILL)
        process.kill()
        process.wait()
        assert len(owned_by(process.pid)) == 1
        async with ContainerTier(toolchain(), engine=container_kit.engine("podman")):
            assert owned_by(process.pid) == []


@needs_container
async def test_an_engines_killed_client_is_a_dead_sandbox(tmp_path: Path) -> None:
    async with ContainerTier(toolchain(), engine=container_kit.engine("podman")) as tier:
        with workspace(tmp_path / "place") as spec:
            sandbox = await tier.open(spec)
            mine = {p for p, words in descendants(os.getpid()).items() if sandbox.id in words and " run " in words}
            waiting = asyncio.create_task(sandbox.exec(["sleep", "60"]))
            await asyncio.sleep(0.1)
            for pid in mine:
                with contextlib.suppress(ProcessLookupError):  # one ends with another
                    os.kill(pid, signal.SIGKILL)
            with pytest.raises(SandboxDiedError):
                await waiting
            await sandbox.close()
    assert container_kit.containers("podman") == []


@needs_container
async def test_the_gateways_socket_is_a_port_inside(tmp_path: Path) -> None:
    path = tmp_path / "s"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(answer, path)
    path.chmod(0o777)
    program = (
        f"import socket; s = socket.create_connection(('127.0.0.1', {GATEWAY_PORT})); s.sendall(b'hello\\n');"
        "print(s.recv(100).decode(), end='')"
    )
    async with server, ContainerTier(toolchain(), engine=container_kit.engine("podman")) as tier:
        with workspace(tmp_path / "place") as spec:
            sandbox = await tier.open(replace(spec, gateway=path))
            done = await sandbox.exec(["python3", "-I", "-c", program])
            await sandbox.close()
    assert (done.exit_code, done.stdout) == (0, b"HELLO\n")


@needs_container
async def test_a_probe_tries_every_promise_in_real_containers(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    environ = container_kit.environment()
    report = await probe_container(toolchain(), scratch=tmp_path, environ=environ, program="podman")
    assert report.ok, report.parts
    assert report.driver == "overlay"
    assert {"engine", "isolation", "network", "processes", "memory", "freeze"} <= {
        part.name for part in report.parts
    }
    assert [path for path in tmp_path.iterdir() if path.name != "toolchain.json"] == []


def test_a_missing_engine_is_an_error_with_its_fix() -> None:
    with pytest.raises(TierUnavailableError) as caught:
        find_engine(program="no-such-engine", environ={"PATH": "/usr/bin:/bin"})
    assert "no-such-engine: not found" in caught.value.message
    assert "install podman" in caught.value.hint


def test_an_engine_that_refuses_is_quoted(tmp_path: Path) -> None:
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon at x' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(TierUnavailableError) as caught:
        find_engine(program=str(program), environ={"PATH": "/usr/bin:/bin"})
    assert "Cannot connect to the Docker daemon" in caught.value.message
    assert "start the daemon" in caught.value.hint


async def test_layers_are_refused_if_the_engine_does_the_mounts(tmp_path: Path) -> None:
    engine = ContainerEngine(kind="docker", program="/bin/false", base="none")
    with workspace(tmp_path / "place") as spec:
        async with ContainerTier(toolchain(), engine=engine) as tier:
            with pytest.raises(TierUnavailableError, match="layers"):
                await tier.open(spec)


@pytest.fixture
def image(tmp_path: Path) -> Iterator[str]:
    """Make an image of the system's own Python, a shell and the libraries that they are linked against."""
    root = tmp_path / "image"
    version = subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print('python%d.%d' % sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    programs = [Path("/usr/bin", name) for name in ("python3", "sh", "head", "id", "cat")]
    modules = sorted(Path("/usr/lib", version, "lib-dynload").glob("*.so"))
    shutil.copytree(
        f"/usr/lib/{version}", root / "usr/lib" / version, ignore=shutil.ignore_patterns("test*", "__pycache__")
    )
    said = subprocess.run(["ldd", *programs, *modules], capture_output=True, text=True, check=False).stdout
    libraries = {Path(found) for found in re.findall(r"(/\S+\.so\S*) \(", said)}
    for path in (*programs, *libraries):
        target = root / str(path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    (root / "bin").symlink_to("usr/bin")
    archive = tmp_path / "image.tar"
    subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
    tag = f"localhost/chargehand-test-{os.getpid()}:1"
    podman = container_kit.engine("podman").argv
    subprocess.run([*podman, "import", "-q", archive, tag], capture_output=True, check=True)
    yield tag
    subprocess.run([*podman, "rmi", "-f", tag], capture_output=True, check=True)


@needs_container
async def test_a_sandbox_uses_the_programs_and_python_of_its_image(image: str, tmp_path: Path) -> None:
    """The exec server runs on the image's interpreter, whatever version the host's has."""
    async with ContainerTier(toolchain(), program="podman", image=image) as tier:
        with workspace(tmp_path / "place") as spec:
            sandbox = await tier.open(spec)
            seen = await sandbox.exec(["python3", "-c", "import sys; print(sys.executable)"])
            done = await sandbox.exec(["sh", "-c", "id; cat /etc/passwd > copied; git --version; exit 3"])
            await sandbox.freeze()
            await sandbox.thaw()
            await sandbox.close()
        assert (tmp_path / "place/upper/copied").read_text().count("agent") == 3
    assert seen.stdout == b"/usr/bin/python3\n"
    assert (done.exit_code, b"(agent)" in done.stdout, b"not found" in done.stderr) == (3, True, True)
