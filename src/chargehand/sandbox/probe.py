"""What this machine can offer, found by trying it: each part with the exact mend where it fails."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chargehand.core.config import Strategy
from chargehand.core.errors import ChargehandError, TierUnavailableError
from chargehand.core.ports import DriverName, MountPlan, sandbox_ids
from chargehand.sandbox.contract import Sandbox, SandboxLimits, SandboxSpec
from chargehand.sandbox.process.remedies import remedy_for
from chargehand.sandbox.process_tier import ProcessTier
from chargehand.sandbox.toolchain import Toolchain

DRIVERS: tuple[DriverName, ...] = ("overlay", "reflink", "worktree")
"""Every workspace driver, the best first: shared and mounted at once, then made of clones, then copied."""
_DIRECT: tuple[DriverName, ...] = ("reflink", "worktree")
_FICLONE = 0x40049409
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
class ProbePart:
    """One thing that was tried: `detail` says what was seen, `mend` the way out where it failed."""

    name: str
    ok: bool
    detail: str
    mend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """Every part that was tried, among them each of `DRIVERS` that a workspace could lie on disk by.

    One driver that works is enough; the others' failures are told and mean no harm.
    """

    tier: str
    parts: tuple[ProbePart, ...]

    @property
    def driver(self) -> DriverName | None:
        """The driver of strategy `shadow`: the best that works, `None` where no sandbox can be had."""
        return self._best(DRIVERS)

    @property
    def direct(self) -> DriverName | None:
        """The driver of strategy `direct`: a directory of its own, by clones where that works."""
        return self._best(_DIRECT)

    @property
    def drivers(self) -> tuple[ProbePart, ...]:
        """What was seen of each driver, the best first."""
        return tuple(part for part in self.parts if part.name in DRIVERS)

    @property
    def ok(self) -> bool:
        """Whether the tier can be had with all that it promises."""
        return self.driver is not None and self._failed() is None

    def require(self, strategy: Strategy = "shadow") -> DriverName:
        """Return a strategy's driver; raises `TierUnavailableError` that names the failed part and its mend."""
        failed, driver = self._failed(), self.direct if strategy == "direct" else self.driver
        if failed is not None or driver is None:
            part = failed or self.parts[-1]
            raise TierUnavailableError(
                f"the {self.tier} sandbox cannot be had here: {part.name}: {part.detail}", hint=part.mend
            )
        return driver

    def _best(self, names: tuple[DriverName, ...]) -> DriverName | None:
        working = {part.name for part in self.parts if part.ok}
        return next((name for name in names if name in working), None)

    def _failed(self) -> ProbePart | None:
        return next((part for part in self.parts if not part.ok and part.name not in DRIVERS), None)


async def probe(toolchain: Toolchain, *, scratch: Path) -> ProbeReport:
    """Open real sandboxes below `scratch` and try each promise; nothing is left behind. Takes about 0.5 s."""
    parts = [_platform(), _bubblewrap()]
    if not all(part.ok for part in parts):
        return ProbeReport(tier="process", parts=tuple(parts))
    async with ProcessTier(toolchain) as tier:
        parts += [await try_driver(driver, tier, scratch) for driver in DRIVERS]
        driver = ProbeReport(tier="process", parts=tuple(parts)).driver
        if driver is not None:
            parts += await try_promises(driver, tier, scratch)
    return ProbeReport(tier="process", parts=tuple(parts))


def _platform() -> ProbePart:
    ok = sys.platform == "linux"
    advice = "" if ok else "the process tier needs Linux; use a container or a virtual machine"
    return ProbePart(name="platform", ok=ok, detail=f"{sys.platform} {os.uname().release}", mend=advice)


def _bubblewrap() -> ProbePart:
    path = shutil.which("bwrap")
    advice = "" if path else remedy_for("bwrap: not found")
    return ProbePart(name="bubblewrap", ok=bool(path), detail=path or "not found on PATH", mend=advice)


class OpensSandboxes(Protocol):
    """A tier that is open."""

    async def open(self, spec: SandboxSpec, /) -> Sandbox:
        """Open one sandbox; raises `TierUnavailableError`."""
        ...


async def try_promises(driver: DriverName, tier: OpensSandboxes, scratch: Path) -> list[ProbePart]:
    """Try each promise in a sandbox with small limits, on a workspace of `driver`."""
    with scratch_plan(scratch, driver) as plan:
        sandbox = await tier.open(SandboxSpec(mounts=plan, limits=_SMALL))
        try:
            return [await _try(name, trial, sandbox) for name, trial in _TRIALS.items()]
        finally:
            await sandbox.close()


async def try_driver(driver: DriverName, tier: OpensSandboxes, scratch: Path) -> ProbePart:
    """Try one driver: make a small workspace of its kind, mount it and work in it."""
    try:
        with scratch_plan(scratch, driver) as plan:
            sandbox = await tier.open(SandboxSpec(mounts=plan))
            try:
                result = await sandbox.exec(["sh", "-c", "rm -r lower && mkdir lower && echo new > lower/file"])
            finally:
                await sandbox.close()
    except ChargehandError as error:
        return ProbePart(name=driver, ok=False, detail=error.message, mend=error.hint)
    except OSError as error:
        return ProbePart(
            name=driver, ok=False, detail=f"{scratch}: {error.strerror}", mend=_ADVICE.get(driver, "")
        )
    ok = result.exit_code == 0
    seen = _SEEN[driver] if ok else result.stderr.decode().strip()
    return ProbePart(name=driver, ok=ok, detail=seen, mend="" if ok else _ADVICE.get(driver, remedy_for(seen)))


@contextlib.contextmanager
def scratch_plan(scratch: Path, driver: DriverName) -> Iterator[MountPlan]:
    """Make what `driver` would; raises `TierUnavailableError` where the file system does not clone."""
    with tempfile.TemporaryDirectory(dir=scratch, prefix="probe-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        for part in ("base/lower", "upper", "work"):
            (root / part).mkdir(parents=True)
        (root / "base/lower/file").write_bytes(b"old\n" * 4096)
        if driver == "reflink":
            _clone(root / "base/lower/file", root / "base/lower/clone")
        for path in (root, *root.rglob("*")):
            os.chown(path, *sandbox_ids())
        if driver == "overlay":
            yield MountPlan(target="/workspace", lowers=(root / "base",), upper=root / "upper", work=root / "work")
        else:
            yield MountPlan(target="/workspace", plain=root / "base")
        for locked in root.glob("work/work"):
            locked.chmod(0o700)  # overlayfs leaves it without any permission


def _clone(source: Path, target: Path) -> None:
    with source.open("rb") as old, target.open("xb") as new:
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        except OSError as error:
            raise TierUnavailableError(
                f"the file system of {str(source.parents[3])!r} does not clone files: {error.strerror}",
                hint=_ADVICE["reflink"],
            ) from error


_Trial = Callable[[Sandbox], Awaitable[tuple[bool, str]]]


async def _try(name: str, trial: _Trial, sandbox: Sandbox) -> ProbePart:
    try:
        ok, detail = await trial(sandbox)
    except ChargehandError as error:
        ok, detail = False, error.message
    return ProbePart(name=name, ok=ok, detail=detail, mend="" if ok else _ADVICE.get(name, remedy_for(detail)))


async def _isolation(sandbox: Sandbox) -> tuple[bool, str]:
    result = await sandbox.exec(
        ["sh", "-c", "grep -E '^(Seccomp|NoNewPrivs|CapBnd):' /proc/self/status | tr -d '\\n'"]
    )
    seen = result.stdout.decode().replace("\t", " ")
    return all(part in seen for part in ("Seccomp: 2", "NoNewPrivs: 1", "CapBnd: 0000000000000000")), seen


async def _processes(sandbox: Sandbox) -> tuple[bool, str]:
    result = await sandbox.exec(["python3", "-I", "-c", _FORKS], timeout=60)
    await sandbox.exec(["sh", "-c", "kill -9 -1"], timeout=60)
    count = int(result.stdout or b"100")
    limit = sandbox.limits_in_force["processes"]
    return count < _SMALL.processes + 1, f"{count} forks before it was refused; limit {limit}"


async def _memory(sandbox: Sandbox) -> tuple[bool, str]:
    result = await sandbox.exec(["python3", "-I", "-c", _MEMORY], timeout=120)
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
_SEEN: dict[DriverName, str] = {
    "overlay": "mounted; deleted and replaced a lower directory",
    "reflink": "cloned a file; worked in a directory of clones",
    "worktree": "worked in a directory of its own",
}
_ADVICE = {
    "overlay": remedy_for("overlay"),
    "reflink": "keep CHARGEHAND_HOME on btrfs, on xfs made with reflink=1, or on another that clones",
    "processes": "a control group or a kernel of 5.14 and later is needed for process limits",
    "memory": "run inside a control group that you may write to, e.g. systemd-run --user --scope -p Delegate=yes",
}
