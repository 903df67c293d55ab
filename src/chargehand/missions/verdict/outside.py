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
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from msgspec import Struct

from chargehand.core.errors import InfrastructureError
from chargehand.core.ports import Bind
from chargehand.missions.journal import Unlogged
from chargehand.missions.sandboxes.environment import CandidateLayers
from chargehand.missions.sandboxes.provisioning import BaseEnvironment, SandboxProvisioner, SandboxRequest
from chargehand.missions.services import Services
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


async def find_limit(subject: Sandbox, serving: asyncio.Task[ExecResult]) -> str | None:
    """Return the limit that ended a served tree, `None` if it reached none.

    A live sandbox is asked once more: its processes may have written since the last look.
    """
    return (await subject.exec(["true"])).limit if serving.cancelled() else serving.result().limit


class OutsideTrial(Struct, frozen=True, kw_only=True):
    """A command of `sh` that judges a tree from another sandbox within `seconds`; its exit code decides.

    Files are given by path as (content, executable), `None` for none there: `files` are laid over the base's tree,
    which the command sees, and `over` over the tree under test.
    """

    command: str
    seconds: float
    files: Mapping[str, tuple[bytes, bool] | None] = {}
    over: Mapping[str, tuple[bytes, bool] | None] = {}


class OutsideResult(Struct, frozen=True, kw_only=True):
    """The result of an `OutsideTrial`; `limit` is the limit that the tree under test reached, if any."""

    ended: ExecResult
    limit: str | None

    @property
    def passed(self) -> bool:
        """Whether the command ended with 0 in time, and neither sandbox reached a limit."""
        return self.ended.exit_code == 0 and not self.ended.timed_out and not (self.limit or self.ended.limit)


_OUTPUT_BYTES = 200_000
_PATIENCE_SECONDS = 60.0


async def judge_from_outside(
    services: Services,
    provisioner: SandboxProvisioner,
    environment: BaseEnvironment,
    trial: OutsideTrial,
    *,
    tree: str,
) -> OutsideResult:
    """Run a trial of a tree: in a new sandbox next to that of the tree, each on a new workspace.

    Raises the errors of `serve_tree`.
    """
    depot, base = services.depot, environment.base
    judged = await asyncio.to_thread(depot.lay_over, tree, trial.over)
    shown = await asyncio.to_thread(depot.lay_over, base.tree, trial.files)

    def request(link: Path, of: BaseEnvironment, binds: tuple[Bind, ...]) -> SandboxRequest:
        return SandboxRequest(purpose="exec", binds=binds, gateway=link, path=(OUTSIDE_PROGRAMS, *of.path))

    async with (
        # The tree may need other packages than the base.
        CandidateLayers(services, Unlogged(), provisioner, environment) as layers,
        open_link(services.home, prefix="validation-") as (link, binds),
    ):
        private = await layers.environment(judged)
        async with (
            provisioner.workspace(private, purpose="exec", tree=judged) as candidate,
            provisioner.workspace(environment, purpose="exec", tree=shown) as own,
            provisioner.sandbox(candidate, private, request(link.far, private, binds)) as subject,
            provisioner.sandbox(own, environment, request(link.near, environment, binds)) as sandbox,
        ):
            return await _run_trial(trial, link, subject, sandbox)


async def _run_trial(trial: OutsideTrial, link: SandboxLink, subject: Sandbox, sandbox: Sandbox) -> OutsideResult:
    async with serve_tree(subject, link, seconds=trial.seconds + _PATIENCE_SECONDS) as serving:
        ended = await sandbox.exec(["sh", "-c", trial.command], timeout=trial.seconds, output_limit=_OUTPUT_BYTES)
    return OutsideResult(ended=ended, limit=await find_limit(subject, serving))
