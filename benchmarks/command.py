"""One command in a sandbox that is there already."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Result, Side, compare, timed
from benchmarks.shop import Opened, Shop

AIM = 0.0015


async def run(shop: Shop, opened: Opened, *, rounds: int) -> list[Result]:
    """Compare with a plain process, and with a new bubblewrap of the same isolation for each command."""
    fresh = bubblewrap_argv(shop.repository, ["true"])
    async with opened.both() as (_, sandbox):

        async def ours() -> float:
            with timed() as seconds:
                await sandbox.exec(["true"])
            return seconds[0]

        async def plain() -> float:
            with timed() as seconds:
                subprocess.run(["true"], check=True)
            return seconds[0]

        async def bubblewrap() -> float:
            with timed() as seconds:
                subprocess.run(fresh, check=True)
            return seconds[0]

        sides = [
            Side(name="in the open sandbox", sample=ours, repeat=20),
            Side(name="plain process", sample=plain, repeat=20),
            Side(name="new bubblewrap", sample=bubblewrap, repeat=10),
        ]
        result = await compare(
            "command",
            "true",
            sides,
            rounds=rounds,
            files=shop.files,
            aim=AIM,
            note="the new bubblewrap has neither the system call filter nor the overlay",
        )
        return [result]


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
