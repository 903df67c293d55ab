"""One command in a running sandbox, and the cost of observing which files it opens."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Result, Sample, Side, compare, timed
from benchmarks.mission_kit import MissionKit, Opened
from chargehand.sandbox.contract import ObservesReads, Sandbox

AIM = 0.0015
_CASES = {
    "true": ("true",),
    "1 kB of output by a shell": ("sh", "-c", "printf %01000d 0"),
}


async def run(kit: MissionKit, opened: Opened, *, rounds: int) -> list[Result]:
    """Compare with a plain process, and with a new bubblewrap of the same isolation for each command.

    Every side returns both output streams, as to a caller of the sandbox; the plain process is also measured
    without.
    """
    async with opened.both() as (_, sandbox):
        results = [
            await compare(
                "command",
                case,
                [
                    Side(name="in the open sandbox", sample=_inside(sandbox, argv), repeat=20),
                    Side(name="plain process", sample=_plain(argv), repeat=20),
                    Side(name="plain process, output dropped", sample=_plain(argv, keep=False), repeat=20),
                    Side(name="new bubblewrap", sample=_plain(bubblewrap_argv(kit.repository, argv)), repeat=10),
                ],
                rounds=rounds,
                files=kit.files,
                aim=AIM,
                note="the new bubblewrap has neither the system call filter nor the overlay",
            )
            for case, argv in _CASES.items()
        ]
        return [*results, await _compare_observed(kit, sandbox, rounds=rounds)]


async def _compare_observed(kit: MissionKit, sandbox: Sandbox, *, rounds: int) -> Result:
    """Compare a command that opens each file ten times with and without observing its opens."""
    assert isinstance(sandbox, ObservesReads)
    places = [
        path.relative_to(kit.repository) for path in (kit.repository, *kit.repository.rglob("*")) if path.is_dir()
    ]
    directories = ["" if str(path) == "." else str(path) for path in places if path.parts[:1] != (".git",)]
    return await compare(
        "command",
        f"{10 * kit.files:,} files read",
        [
            Side(name="opens observed", sample=_observed(sandbox, directories), repeat=3),
            Side(name="not observed", sample=_observed(sandbox, []), repeat=3),
        ],
        rounds=rounds,
        files=kit.files,
        note=f"observed: inotify on {len(directories)} directories, and what was opened told at the end",
    )


def _observed(sandbox: ObservesReads, directories: Sequence[str]) -> Sample:
    read = (
        "for turn in 1 2 3 4 5 6 7 8 9 10; do find . -name .git -prune -o -type f -exec cat {} + > /dev/null; done"
    )

    async def sample() -> float:
        await sandbox.observe(directories)
        with timed() as seconds:
            await sandbox.exec(["sh", "-c", read])
            await sandbox.opened_files()
        return seconds[0]

    return sample


def _inside(sandbox: Sandbox, argv: Sequence[str]) -> Sample:
    async def sample() -> float:
        with timed() as seconds:
            await sandbox.exec(argv)
        return seconds[0]

    return sample


def _plain(argv: Sequence[str], *, keep: bool = True) -> Sample:
    output = subprocess.PIPE if keep else subprocess.DEVNULL

    async def sample() -> float:
        with timed() as seconds:
            subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        return seconds[0]

    return sample


def bubblewrap_argv(directory: Path, command: Sequence[str]) -> list[str]:
    """Return a command in a new bubblewrap with the namespaces of the product's sandboxes."""
    links = [path for name in ("bin", "sbin", "lib", "lib64") if (path := Path("/", name)).is_symlink()]
    return [
        *("bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
        *("--cap-drop", "ALL", "--clearenv", "--hostname", "sandbox", "--uid", "1000", "--gid", "1000"),
        *("--ro-bind", "/usr", "/usr"),
        *(word for link in links for word in ("--symlink", str(link.readlink()), str(link))),
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/home"),
        *("--bind", str(directory), "/workspace", "--remount-ro", "/", "--chdir", "/workspace", *command),
    ]
