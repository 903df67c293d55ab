"""Outside checks: a person's programs, in a separate sandbox from the code under test.

A check within the tree runs in the process of the code under test, which can forge any report. Here the check runs
on the base's tree, with a program `under-test` that runs commands on the candidate's tree in a separate sandbox:
only that tree's output and behaviour come back, and it cannot reach the check's exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from chargehand.core.errors import InfrastructureError
from chargehand.core.ports import Bind
from chargehand.network.link import SandboxLink
from chargehand.sandbox.contract import ExecResult, Sandbox
from chargehand.sandbox.inside import under_test

OUTSIDE_PROGRAMS = "/run/chargehand/outside"
"""The directory of `under-test` in both sandboxes."""
_LAUNCHER = f"""#!/bin/sh
library=/run/chargehand/python/lib
for python in /run/chargehand/python/bin/python3 python3 python; do
    command -v "$python" >/dev/null || continue
    case $python in /run/*) LD_LIBRARY_PATH=$library; export LD_LIBRARY_PATH ;; esac
    exec "$python" -I -S {OUTSIDE_PROGRAMS}/under_test.py "$@"
done
echo 'under-test: there is no Python in this sandbox' >&2
exit 127
"""


@contextlib.asynccontextmanager
async def open_link(directory: Path, *, prefix: str) -> AsyncIterator[tuple[SandboxLink, tuple[Bind, ...]]]:
    """Open the link between the two sandboxes, with the files for both.

    Its files are in `directory`, under a name that begins with `prefix`.
    """
    place = Path(tempfile.mkdtemp(prefix=prefix, dir=directory))
    try:
        place.chmod(0o755)
        launcher, program = place / "under-test", place / "under_test.py"
        launcher.write_text(_LAUNCHER)
        program.write_bytes(Path(under_test.__file__).read_bytes())
        launcher.chmod(0o555)
        program.chmod(0o444)
        binds = tuple(Bind(source=path, target=f"{OUTSIDE_PROGRAMS}/{path.name}") for path in (launcher, program))
        async with SandboxLink(place) as link:
            yield link, binds
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.asynccontextmanager
async def serve_tree(
    sandbox: Sandbox, link: SandboxLink, *, seconds: float
) -> AsyncIterator[asyncio.Task[ExecResult]]:
    """Let commands run in the sandbox of a tree for the block, for at most `seconds`.

    The task is done if that ends earlier. Raises `InfrastructureError` (`relay_failed`) if it does not start,
    `SandboxDiedError`.
    """
    serving = asyncio.create_task(sandbox.exec([f"{OUTSIDE_PROGRAMS}/under-test", "--relay"], timeout=seconds))
    starting = asyncio.create_task(link.until_relayed())
    try:
        await asyncio.wait((serving, starting), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            said = serving.result().stderr.decode("utf-8", "replace")
            raise InfrastructureError(f"cannot connect to the tree under test: {said!r}", code="relay_failed")
        await starting
        yield serving
        if serving.done():
            serving.result()
    finally:
        for task in (starting, serving):
            task.cancel()
        await asyncio.gather(starting, serving, return_exceptions=True)
