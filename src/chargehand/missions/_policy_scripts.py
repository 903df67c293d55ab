"""The scripts of a running attempt as policy reads them: through its sandbox, as a program there would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from chargehand.policy.actions import LARGEST_SCRIPT
from chargehand.sandbox.contract import WORKSPACE, Sandbox

_SECONDS = 10.0
_READ = r"""
root=$(pwd -P)
real=$(readlink -f -- "$1"; echo x); real=${real%?x}
case $real in "$root"/* | /tmp/*) ;; *) exit 1 ;; esac
[ -f "$real" ] || exit 1
exec head -c "$2" -- "$real"
"""
"""A link that leads out of the workspace is not followed; what is no regular file is not opened."""


async def read_script(sandbox: Sandbox, path: str) -> str | None:
    """Return the text of a file of the workspace or of `/tmp`, `None` for what is none, too large or binary.

    Bytes that are not UTF-8 come out as surrogates. Raises `SandboxDiedError`.
    """
    if "\0" in path or not path.startswith("/"):
        return None
    result = await sandbox.exec(
        ["/bin/sh", "-c", _READ, "sh", path, str(LARGEST_SCRIPT + 1)],
        timeout=_SECONDS,
        cwd=WORKSPACE,
        output_limit=LARGEST_SCRIPT + 1,
    )
    found = result.stdout
    if result.exit_code != 0 or result.timed_out or len(found) > LARGEST_SCRIPT or b"\0" in found:
        return None
    return found.decode("utf-8", "surrogateescape")


def scripts_of(sandbox: Sandbox) -> Callable[[str], str | None]:
    """Return what reads the scripts of a sandbox from another thread while the running loop goes on."""
    loop = asyncio.get_running_loop()
    known: dict[str, str | None] = {}

    def read(path: str) -> str | None:
        if path not in known:
            known[path] = asyncio.run_coroutine_threadsafe(read_script(sandbox, path), loop).result()
        return known[path]

    return read
