"""What this machine can offer, found by trying it: each part with the exact mend where it fails."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from chargehand.core import ChargehandError, DriverName, MountPlan, TierUnavailableError, sandbox_ids
from chargehand.sandbox._contract import Sandbox, SandboxLimits, SandboxSpec
from chargehand.sandbox._mend import mend
from chargehand.sandbox._process import ProcessTier
from chargehand.sandbox._toolchain import Toolchain

_SMALL = SandboxLimits(memory_mb=256, processes=24, tmp_mb=4)
_FORKS = """
import os, sys, time
n = 0
try:
    for _ in range(100):
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        n += 1
except OSError:
    pass
print(n)
"""
_MEMORY = """
blocks = []
try:
    for _ in range(64):
        blocks.append(bytearray(b"x" * (16 << 20)))
except MemoryError:
    raise SystemExit(7)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing that was tried: `detail` says what was seen, `mend` the way out where it failed."""

    name: str
    ok: bool
    detail: str
    mend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """Every part that was tried; `driver` is the workspace driver to use, `None` where no sandbox can be had."""

    tier: str
    driver: DriverName | None
    parts: tuple[Part, ...]

    @property
    def ok(self) -> bool:
        """Whether the tier can be had with all that it promises."""
        return self.driver is not None and all(part.ok for part in self.parts if part.name != "overlay")

    def require(self) -> DriverName:
        """Return the driver; raises `TierUnavailableError` that names the first failed part and its mend."""
        failed = next((part for part in self.parts if not part.ok and part.name != "overlay"), None)
        if failed is not None or self.driver is None:
            part = failed or self.parts[-1]
            raise TierUnavailableError(
                f"the {self.tier} sandbox cannot be had here: {part.name}: {part.detail}", hint=part.mend
            )
        return self.driver


async def probe(toolchain: Toolchain, *, scratch: Path) -> ProbeReport:
    """Open real sandboxes below `scratch` and try each promise; nothing is left behind. Takes about 0.5 s."""
    parts = [_platform(), _bubblewrap()]
    if not all(part.ok for part in parts):
        return ProbeReport(tier="process", driver=None, parts=tuple(parts))
    async with ProcessTier(toolchain) as tier:
        overlay, driver = await _workspaces(tier, scratch)
        parts += overlay
        if driver is not None:
            with _scratch_plan(scratch, driver) as plan:
                sandbox = await tier.open(SandboxSpec(mounts=plan, limits=_SMALL))
                try:
                    parts += [await _try(name, trial, sandbox) for name, trial in _TRIALS.items()]
                finally:
                    await sandbox.close()
    return ProbeReport(tier="process", driver=driver, parts=tuple(parts))


def _platform() -> Part:
    ok = sys.platform == "linux"
    advice = "" if ok else "the process tier needs Linux; use a container or a virtual machine"
    return Part(name="platform", ok=ok, detail=f"{sys.platform} {os.uname().release}", mend=advice)


def _bubblewrap() -> Part:
    path = shutil.which("bwrap")
    advice = "" if path else mend("bwrap: not found")
    return Part(name="bubblewrap", ok=bool(path), detail=path or "not found on PATH", mend=advice)


async def _workspaces(tier: ProcessTier, scratch: Path) -> tuple[list[Part], DriverName | None]:
    """Try the drivers from the best to the plainest and return what was seen of each."""
    parts: list[Part] = []
    drivers: tuple[DriverName, ...] = ("overlay", "worktree")
    for driver in drivers:
        with _scratch_plan(scratch, driver) as plan:
            try:
                sandbox = await tier.open(SandboxSpec(mounts=plan))
            except TierUnavailableError as error:
                parts.append(Part(name=driver, ok=False, detail=error.message, mend=error.hint))
                continue
            result = await sandbox.exec(["sh", "-c", "rm -r lower && mkdir lower && echo new > lower/file"])
            await sandbox.close()
        ok = result.exit_code == 0
        seen = "mounted; deleted and replaced a lower directory" if ok else result.stderr.decode().strip()
        parts.append(Part(name=driver, ok=ok, detail=seen, mend="" if ok else mend("overlay")))
        if ok:
            return parts, driver
    return parts, None


@contextlib.contextmanager
def _scratch_plan(scratch: Path, driver: DriverName) -> Iterator[MountPlan]:
    with tempfile.TemporaryDirectory(dir=scratch, prefix="probe-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        for part in ("base/lower", "upper", "work"):
            (root / part).mkdir(parents=True)
        (root / "base/lower/file").write_text("old\n")
        for path in (root, *root.rglob("*")):
            os.chown(path, *sandbox_ids())
        if driver == "worktree":
            yield MountPlan(target="/workspace", plain=root / "base")
        else:
            yield MountPlan(target="/workspace", lowers=(root / "base",), upper=root / "upper", work=root / "work")
        for locked in root.glob("work/work"):
            locked.chmod(0o700)  # overlayfs leaves it without any permission


_Trial = Callable[[Sandbox], Awaitable[tuple[bool, str]]]


async def _try(name: str, trial: _Trial, sandbox: Sandbox) -> Part:
    try:
        ok, detail = await trial(sandbox)
    except ChargehandError as error:
        ok, detail = False, error.message
    return Part(name=name, ok=ok, detail=detail, mend="" if ok else _ADVICE.get(name, mend(detail)))


async def _isolation(sandbox: Sandbox) -> tuple[bool, str]:
    result = await sandbox.exec(
        ["sh", "-c", "grep -E '^(Seccomp|NoNewPrivs|CapBnd):' /proc/self/status | tr -d '\\n'"]
    )
    seen = result.stdout.decode().replace("\t", " ")
    return all(part in seen for part in ("Seccomp: 2", "NoNewPrivs: 1", "CapBnd: 0000000000000000")), seen


async def _processes(sandbox: Sandbox) -> tuple[bool, str]:
    result = await sandbox.exec(["python3", "-I", "-c", _FORKS], timeout=10)
    await sandbox.exec(["sh", "-c", "kill -9 -1"], timeout=10)
    count = int(result.stdout or b"100")
    limit = sandbox.limits_in_force["processes"]
    return count < _SMALL.processes + 1, f"{count} forks before it was refused; limit {limit}"


async def _memory(sandbox: Sandbox) -> tuple[bool, str]:
    result = await sandbox.exec(["python3", "-I", "-c", _MEMORY], timeout=30)
    return result.exit_code != 0, f"exit {result.exit_code} on 1 GiB; limit {sandbox.limits_in_force['memory']}"


async def _temporary(sandbox: Sandbox) -> tuple[bool, str]:
    result = await sandbox.exec(["sh", "-c", "head -c 8388608 /dev/zero > /tmp/full"])
    return result.exit_code != 0, f"exit {result.exit_code} on 8 MiB; limit {sandbox.limits_in_force['tmp']}"


async def _network(sandbox: Sandbox) -> tuple[bool, str]:
    result = await sandbox.exec(["cat", "/proc/net/dev"])
    lines = result.stdout.decode().splitlines()[2:]
    interfaces = [line.partition(":")[0].strip() for line in lines]
    return interfaces == ["lo"], f"interfaces: {', '.join(interfaces) or 'unknown'}"


async def _freeze(sandbox: Sandbox) -> tuple[bool, str]:
    await sandbox.freeze()
    await sandbox.thaw()
    return True, sandbox.limits_in_force["freeze"]


_TRIALS: dict[str, _Trial] = {
    "isolation": _isolation,
    "network": _network,
    "temporary files": _temporary,
    "processes": _processes,
    "memory": _memory,
    "freeze": _freeze,
}
_ADVICE = {
    "processes": "a control group or a kernel of 5.14 and later is needed for process limits",
    "memory": "run inside a control group that you may write to, e.g. systemd-run --user --scope -p Delegate=yes",
}
