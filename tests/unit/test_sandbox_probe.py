"""The abilities of this machine are found by trying; a missing one is refused with the exact remedy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from chargehand.core.errors import TierUnavailableError
from chargehand.core.ports import MountPlan, sandbox_ids
from chargehand.sandbox.contract import Sandbox, SandboxSpec
from chargehand.sandbox.probe import DRIVERS, probe, probe_tier
from chargehand.sandbox.process import remedies
from chargehand.sandbox.process import remedies as _mend
from chargehand.sandbox.process.remedies import remedy_for, tier_unavailable
from chargehand.sandbox.process_tier import ProcessTier
from chargehand.sandbox.toolchain import Toolchain, discover

needs_bwrap = pytest.mark.skipif(
    shutil.which("bwrap") is None and not os.environ.get("CI"), reason="needs bubblewrap"
)
TOOLS = Toolchain(binds=(), path=("/usr/bin", "/bin"), id="test")
REFUSALS = {
    "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user "
    "namespaces.": "No permissions",
    "bwrap: setting up uid map: Permission denied": "uid map",
    "bwrap: Creating new namespace failed: No space left on device": "No space left",
}


def stand_in(directory: Path, message: str, *, code: int = 1) -> None:
    """Put a `bwrap` on PATH that fails as the real one does if the machine refuses."""
    path = directory / "bwrap"
    path.write_text(f"#!/bin/sh\necho '{message}' >&2\nexit {code}\n")
    path.chmod(0o755)
    for place in (directory, *directory.parents):
        if place.owner() == Path.home().owner() and place != Path("/"):
            place.chmod(place.stat().st_mode | 0o011)  # it runs as another user if we are root


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A private /proc/sys and no container, so that the machine does not matter."""
    monkeypatch.setattr(remedies, "CONTAINER_MARKS", ())
    root = tmp_path / "sys"
    for name in ("kernel", "user"):
        (root / name).mkdir(parents=True)
    monkeypatch.setattr(_mend, "SETTINGS", root)
    return root


def spec(root: Path) -> SandboxSpec:
    for name in ("base", "upper", "work"):
        (root / name).mkdir()
        os.chown(root / name, *sandbox_ids())
    plan = MountPlan(target="/workspace", lowers=(root / "base",), upper=root / "upper", work=root / "work")
    return SandboxSpec(mounts=plan)


async def test_without_bubblewrap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    report = await probe(TOOLS, scratch=tmp_path)
    assert (report.ok, report.driver) == (False, None)
    assert [part.name for part in report.parts if not part.ok] == ["bubblewrap"]
    with pytest.raises(TierUnavailableError, match="bubblewrap") as caught:
        report.require()
    assert (caught.value.code, caught.value.exit_code) == ("sandbox_unavailable", 5)
    assert "install bubblewrap" in caught.value.hint
    with pytest.raises(TierUnavailableError) as started:
        async with ProcessTier(TOOLS):
            pass
    assert "install bubblewrap" in started.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("message", REFUSALS)
async def test_a_machine_that_refuses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Path, message: str
) -> None:
    (settings / "kernel/unprivileged_userns_clone").write_text("0\n")
    bin_directory, scratch = tmp_path / "bin", tmp_path / "scratch"
    bin_directory.mkdir()
    scratch.mkdir()
    stand_in(bin_directory, message)
    monkeypatch.setenv("PATH", f"{bin_directory}:{os.environ['PATH']}")
    report = await probe(TOOLS, scratch=scratch)
    assert (report.ok, report.driver) == (False, None)
    with pytest.raises(TierUnavailableError) as caught:
        report.require()
    assert REFUSALS[message] in caught.value.message
    assert caught.value.code == "sandbox_unavailable"
    assert caught.value.hint == "sysctl -w kernel.unprivileged_userns_clone=1"
    assert list(scratch.iterdir()) == []


async def test_a_refused_sandbox_names_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(tmp_path, "bwrap: out of luck")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    async with ProcessTier(TOOLS) as tier:
        with pytest.raises(TierUnavailableError, match="out of luck") as caught:
            await tier.open(spec(tmp_path))
    assert (caught.value.code, caught.value.exit_code) == ("sandbox_unavailable", 5)
    assert caught.value.hint
    for locked in tmp_path.glob("work/work"):
        locked.chmod(0o700)


@pytest.mark.needs_bwrap
@needs_bwrap
@pytest.mark.parametrize("kills", [1, 2])
async def test_a_probe_whose_sandbox_was_killed_is_retried(tmp_path: Path, kills: int) -> None:
    """A sandbox that dies at its first command, perhaps for lack of memory, shows nothing about the machine."""
    left = kills

    class Killed:
        """A tier whose first sandboxes are killed."""

        def __init__(self, inner: ProcessTier) -> None:
            self._inner = inner

        async def open(self, spec: SandboxSpec) -> Sandbox:
            nonlocal left
            sandbox = await self._inner.open(spec)
            if left:
                left -= 1
                await sandbox.close()
            return sandbox

    async with ProcessTier(discover(search=os.environ["PATH"])) as tier:
        parts = await probe_tier(Killed(tier), tmp_path, at_once=3)
    assert parts[0].ok, parts
    assert [part for part in parts if not part.ok and part.name not in DRIVERS] == []


@needs_bwrap
async def test_a_machine_that_can(tmp_path: Path) -> None:
    report = await probe(discover(search=os.environ["PATH"]), scratch=tmp_path)
    assert report.ok, [part for part in report.parts if not part.ok]
    assert report.require() == report.driver
    assert {"isolation", "network", "temporary files", "processes", "memory", "freeze"} <= {
        part.name for part in report.parts
    }
    assert all(part.detail for part in report.parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "apparmor"),
    ],
)
def test_a_setting_that_forbids_is_named(settings: Path, name: str, value: str, wanted: str) -> None:
    (settings / name).write_text(f"{value}\n")
    assert wanted in remedy_for("bwrap: No permissions to create new namespace")
    (settings / name).write_text("7\n")
    assert wanted not in remedy_for("bwrap: No permissions to create new namespace")


@pytest.mark.usefixtures("settings")
def test_every_message_has_a_way_out() -> None:
    assert "strategy" in remedy_for("launcher: [Errno 22] mount overlay on /mnt/workspace: Invalid argument")
    assert "disk space" in remedy_for("launcher: [Errno 28] No space left on device")
    assert "install bubblewrap" in remedy_for("bwrap: not found")
    assert remedy_for("something nobody has seen") == remedy_for("") != ""
    error = tier_unavailable("")
    assert (error.exit_code, "no reason given" in error.message) == (5, True)


@pytest.mark.usefixtures("settings")
def test_a_container_without_rights_gets_the_flags_to_start_it_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refused = "launcher: [Errno 1] unshare: Operation not permitted"
    monkeypatch.setattr(remedies, "CONTAINER_MARKS", (tmp_path / "mark",))
    assert "docker run" not in remedy_for(refused)
    (tmp_path / "mark").touch()
    assert "docker run --cap-add SYS_ADMIN" in remedy_for(refused)
    assert "docker run" not in remedy_for("the sandbox ended with 1")


@pytest.mark.parametrize("tool", ["apt-get", "dnf", "pacman", "zypper", "apk"])
def test_the_package_manager_of_this_machine_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tool: str
) -> None:
    (tmp_path / tool).write_text("#!/bin/sh\n")
    (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert remedy_for("bwrap: not found").startswith(f"install bubblewrap: {tool} ")
    monkeypatch.setenv("PATH", "/nowhere")
    assert remedy_for("bwrap: not found") == "install bubblewrap: with your package manager"
