"""Probes the abilities of this machine by trying them: each part with the exact remedy if it fails."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from chargehand.core.config import Strategy
from chargehand.core.errors import ChargehandError, SandboxDiedError, TierUnavailableError
from chargehand.core.ports import DriverName, MountPlan, sandbox_ids
from chargehand.sandbox.contract import ExecResult, Sandbox, SandboxLimits, SandboxSpec
from chargehand.sandbox.process.remedies import remedy_for
from chargehand.sandbox.process_tier import ProcessTier
from chargehand.sandbox.toolchain import Toolchain

# Every workspace driver, the best first: shared and mounted at once, then made of clones, then copied.
DRIVERS: tuple[DriverName, ...] = ("overlay", "reflink", "worktree")
_DIRECT: tuple[DriverName, ...] = ("reflink", "worktree")
_FICLONE = 0x40049409
# Small, because each limit is reached for real: touching memory until it is refused takes longest.
_SMALL = SandboxLimits(memory_mb=128, processes=24, tmp_mb=4)
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
        blocks.append(b"x" * (16 << 20))
except MemoryError:
    raise SystemExit(7)
"""
_ADVICE = {
    "reflink": "keep CHARGEHAND_HOME on btrfs, on xfs made with reflink=1, or on another that clones",
    "processes": "a control group or a kernel of 5.14 and later is needed for process limits",
    "memory": "run inside a control group that you may write to, e.g. systemd-run --user --scope -p Delegate=yes",
}
_OBSERVED: dict[DriverName, str] = {
    "overlay": "mounted; deleted and replaced a lower directory",
    "reflink": "cloned a file; worked in a directory of clones",
    "worktree": "worked in a separate directory",
}


# The exit code of a command that SIGKILL ended.
_KILLED = 137


class ProbePart(Struct, frozen=True, kw_only=True):
    """One probed part: `detail` gives the observation, `mend` the remedy if it failed.

    The field names are the keys of `chargehand doctor --json`.
    """

    name: str
    ok: bool
    detail: str
    mend: str = ""


class ProbeReport(Struct, frozen=True, kw_only=True):
    """Every part that was tried, among them each of the `DRIVERS` that could store a workspace.

    One driver that works is enough; failures of the others are reported but harmless.
    """

    tier: str
    parts: tuple[ProbePart, ...]

    @property
    def driver(self) -> DriverName | None:
        """The driver of strategy `shadow`: the best that works, `None` if no sandbox is available."""
        return self._best(DRIVERS)

    @property
    def direct(self) -> DriverName | None:
        """The driver of strategy `direct`: a separate directory, by clones if that works."""
        return self._best(_DIRECT)

    @property
    def drivers(self) -> tuple[ProbePart, ...]:
        """The observation for each driver, the best first."""
        return tuple(part for part in self.parts if part.name in DRIVERS)

    @property
    def ok(self) -> bool:
        """Whether the tier is available with all its promises."""
        return self.driver is not None and self._find_failed_part() is None

    def require(self, strategy: Strategy = "shadow") -> DriverName:
        """Return a strategy's driver; raises `TierUnavailableError` that names the failed part and its remedy."""
        failed = self._find_failed_part()
        driver = self.direct if strategy == "direct" else self.driver
        if failed is not None or driver is None:
            part = failed or self.parts[-1]
            raise TierUnavailableError(
                f"the {self.tier} sandbox is not available here: {part.name}: {part.detail}", hint=part.mend
            )
        return driver

    def _best(self, names: tuple[DriverName, ...]) -> DriverName | None:
        working = {part.name for part in self.parts if part.ok}
        return next((name for name in names if name in working), None)

    def _find_failed_part(self) -> ProbePart | None:
        return next((part for part in self.parts if not part.ok and part.name not in DRIVERS), None)


async def probe(toolchain: Toolchain, *, scratch: Path) -> ProbeReport:
    """Open real sandboxes below `scratch` and try each promise; nothing is left behind. Takes about 0.3 s."""
    linux = sys.platform == "linux"
    path = shutil.which("bwrap")
    parts = [
        ProbePart(
            name="platform",
            ok=linux,
            detail=f"{sys.platform} {os.uname().release}",
            mend="" if linux else "the process tier needs Linux; use a container or a virtual machine",
        ),
        ProbePart(
            name="bubblewrap",
            ok=bool(path),
            detail=path or "not found on PATH",
            mend="" if path else remedy_for("bwrap: not found"),
        ),
    ]
    if linux and path:
        async with ProcessTier(toolchain) as tier:
            parts += await probe_tier(tier, scratch, at_once=len(DRIVERS))
    return ProbeReport(tier="process", parts=tuple(parts))


class OpensSandboxes(Protocol):
    """A tier that is open."""

    async def open(self, spec: SandboxSpec, /) -> Sandbox:
        """Open one sandbox; raises `TierUnavailableError`."""
        ...


async def probe_tier(tier: OpensSandboxes, scratch: Path, *, at_once: int = 1) -> list[ProbePart]:
    """Try every driver, `at_once` in parallel, then each promise on the best that works.

    Several at once save time if starting a sandbox mostly waits for the kernel.
    """
    # Containers and machines one after another: engines lock their store, and machines compute.
    turns = asyncio.Semaphore(at_once)

    # The promises in the sandbox of the driver that mostly works: a container or machine takes long to start.
    first, *others = DRIVERS
    tried = await asyncio.gather(
        _try_driver(first, tier, scratch, turns, _PROMISES),
        *(_try_driver(driver, tier, scratch, turns) for driver in others),
    )
    found = dict(zip(DRIVERS, tried, strict=True))
    best = next((driver for driver, parts in found.items() if parts[0].ok), first)
    if best != first:
        found[best] = await _try_driver(best, tier, scratch, turns, _PROMISES)
    return [*(parts[0] for parts in found.values()), *found[best][1:]]


async def _try_driver(
    driver: DriverName,
    tier: OpensSandboxes,
    scratch: Path,
    turns: asyncio.Semaphore,
    promises: Sequence[_Promise] = (),
) -> list[ProbePart]:
    """Make a small workspace by a driver, mount it and work in it; if that works, try `promises` in it.

    If a process was killed from outside, everything is tried once more: that says nothing about the machine.
    """
    with contextlib.suppress(SandboxDiedError):
        return await _try_driver_once(driver, tier, scratch, turns, promises)
    try:
        return await _try_driver_once(driver, tier, scratch, turns, promises)
    except SandboxDiedError as error:
        return [ProbePart(name=driver, ok=False, detail=error.message, mend=error.hint)]


async def _try_driver_once(
    driver: DriverName,
    tier: OpensSandboxes,
    scratch: Path,
    turns: asyncio.Semaphore,
    promises: Sequence[_Promise],
) -> list[ProbePart]:
    """Do what `_try_driver` does once; raises `SandboxDiedError` after a kill from outside."""
    kept: list[ProbePart] = []
    try:
        async with turns:
            with scratch_plan(scratch, driver) as plan:
                sandbox = await tier.open(SandboxSpec(mounts=plan, limits=_SMALL))
                try:
                    # A mount proves little: an overlay without `userxattr` fails only here, with EIO.
                    made = "rm -r lower && mkdir lower && echo new > lower/file"
                    result = await sandbox.exec(["sh", "-c", made])
                    _require_alive(result)
                    if result.exit_code == 0:
                        kept = [await promise.probe(sandbox) for promise in promises]
                finally:
                    await sandbox.close()
    except SandboxDiedError:
        raise
    except ChargehandError as error:
        return [ProbePart(name=driver, ok=False, detail=error.message, mend=error.hint)]
    except OSError as error:
        detail = f"{scratch}: {error.strerror}"
        return [ProbePart(name=driver, ok=False, detail=detail, mend=_advise(driver, detail))]
    if result.exit_code == 0:
        return [ProbePart(name=driver, ok=True, detail=_OBSERVED[driver]), *kept]
    detail = result.stderr.decode().strip()
    return [ProbePart(name=driver, ok=False, detail=detail, mend=_advise(driver, detail))]


def _require_alive(result: ExecResult) -> None:
    """Raise `SandboxDiedError` for a command that was killed although no limit was reached."""
    if result.exit_code == _KILLED and result.limit is None:
        raise SandboxDiedError("a process outside killed the program in the sandbox")


@contextlib.contextmanager
def scratch_plan(scratch: Path, driver: DriverName) -> Iterator[MountPlan]:
    """Make a workspace as `driver` would; raises `TierUnavailableError` if the file system cannot clone."""
    with tempfile.TemporaryDirectory(dir=scratch, prefix="probe-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        for part in ("base/lower", "upper", "work"):
            (root / part).mkdir(parents=True)
        (root / "base/lower/file").write_bytes(b"old\n" * 4096)
        if driver == "reflink":
            with (root / "base/lower/file").open("rb") as old, (root / "base/lower/clone").open("xb") as new:
                try:
                    fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
                except OSError as error:
                    raise TierUnavailableError(
                        f"the file system of {str(scratch)!r} does not clone files: {error.strerror}",
                        hint=_ADVICE["reflink"],
                    ) from error
        # The layers below as well: overlayfs needs them to belong to a mapped user.
        for path in (root, *root.rglob("*")):
            os.chown(path, *sandbox_ids())
        if driver == "overlay":
            yield MountPlan(target="/workspace", lowers=(root / "base",), upper=root / "upper", work=root / "work")
        else:
            yield MountPlan(target="/workspace", plain=root / "base")
        for locked in root.glob("work/work"):
            locked.chmod(0o700)  # overlayfs leaves it without any permission


class _Promise(Struct, frozen=True):
    """The probe of one promise: a command, whether its result shows that the promise is kept, and a report.

    `shown` is a template of `exit` (its exit code), `out` (the words that it wrote) and `limit`.
    """

    name: str
    argv: tuple[str, ...]
    kept: Callable[[ExecResult, list[str]], bool]
    shown: str
    limit: str = ""

    async def probe(self, sandbox: Sandbox) -> ProbePart:
        """Try it in a sandbox; raises `SandboxDiedError` after a kill from outside."""
        try:
            if self.name == "freeze":
                await sandbox.freeze()
                await sandbox.thaw()
            result = await sandbox.exec(self.argv, timeout=120)
            if self.name == "processes":  # its children still sleep, and count against the limit in the next probe
                await sandbox.exec(["sh", "-c", "kill -9 -1"])
        except SandboxDiedError:
            raise
        except ChargehandError as error:
            ok = False
            detail = error.message
        else:
            out = result.stdout.decode().split()
            ok = self.kept(result, out)
            if not ok:
                _require_alive(result)
            limit = sandbox.limits_in_force.get(self.limit, "")
            detail = self.shown.format(exit=result.exit_code, out=", ".join(out) or "unknown", limit=limit)
        return ProbePart(name=self.name, ok=ok, detail=detail, mend="" if ok else _advise(self.name, detail))


_PROMISES = (
    _Promise(
        "isolation",
        ("sed", "-nE", "s/^(Seccomp|NoNewPrivs|CapBnd):\\t(.*)/\\1:\\2/p", "/proc/self/status"),
        lambda _, out: {"Seccomp:2", "NoNewPrivs:1", "CapBnd:0000000000000000"} <= set(out),
        "{out}",
    ),
    _Promise(
        "network",
        ("sed", "-e", "1,2d", "-e", "s/:.*//", "/proc/net/dev"),
        lambda _, out: out == ["lo"],
        "interfaces: {out}",
    ),
    _Promise(
        "temporary files",
        ("sh", "-c", "head -c 8388608 /dev/zero > /tmp/full"),
        lambda result, _: result.exit_code != 0,
        "exit {exit} on 8 MiB; limit {limit}",
        limit="tmp",
    ),
    _Promise(
        "processes",
        ("python3", "-I", "-c", _FORKS),
        lambda _, out: int(out[0] if out else 100) <= _SMALL.processes,
        "{out} forks before it was refused; limit {limit}",
        limit="processes",
    ),
    _Promise(
        "memory",
        ("python3", "-I", "-c", _MEMORY),
        lambda result, _: result.exit_code != 0,
        "exit {exit} on 1 GiB; limit {limit}",
        limit="memory",
    ),
    _Promise("freeze", ("true",), lambda *_: True, "{limit}", limit="freeze"),
)


def _advise(name: str, detail: str) -> str:
    return _ADVICE.get(name) or remedy_for(f"{name}: {detail}")
