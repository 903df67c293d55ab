"""The `process` tier: bubblewrap over a private mount namespace, one exec server inside, one launcher outside."""

from __future__ import annotations

from chargehand.sandbox.contract import SandboxSpec
from chargehand.sandbox.process.cgroups import Cgroup
from chargehand.sandbox.process.launched_tier import LaunchedTier, describe_limits, start_forwarders
from chargehand.sandbox.process.layout import plan_layout, python_inside
from chargehand.sandbox.process.remedies import tier_unavailable
from chargehand.sandbox.process.session import ProcessSandbox


class ProcessTier(LaunchedTier):
    """Opens sandboxes of the `process` tier; close it to end its launcher and everything it started."""

    async def open(self, spec: SandboxSpec) -> ProcessSandbox:
        """Open one sandbox; raises `TierUnavailableError` with the exact remedy if this machine refuses."""
        async with self._opening(spec, tier_unavailable) as opening:
            limits = spec.limits

            def name_limits(cgroup: Cgroup | None) -> dict[str, str]:
                in_force = describe_limits(
                    limits,
                    memory=f"{limits.memory_mb} MiB for each process (rlimit), and for all together (sampled)",
                    processes=f"{limits.processes} for the sandbox (rlimit in its user namespace)",
                    freeze="signals to the whole process namespace",
                    cpu_share="not limited: no control group for processors is available here",
                )
                return in_force | (cgroup.limits_in_force if cgroup else {})

            sandbox = await self._launch(
                ProcessSandbox,
                opening,
                plan=lambda cgroup: plan_layout(
                    opening.spec,
                    bwrap=self._bwrap,
                    server_size=len(self._server),
                    cgroups=cgroup.directories if cgroup else (),
                    memory_bound=cgroup is not None and "memory" in cgroup.limits_in_force,
                    links=self._toolchain.links,
                ),
                name_limits=name_limits,
            )
            try:
                await sandbox.start(self._server)
                await start_forwarders(sandbox, spec, python_inside()[0])
            except BaseException:
                await sandbox.close()
                raise
            return sandbox
