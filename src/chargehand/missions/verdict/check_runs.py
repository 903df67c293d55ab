"""Runs of checks: a new sandbox on a new workspace of one exact tree for each run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from chargehand.checks.execution import CheckOutput, CheckPlan, run_checks
from chargehand.checks.reads import ReadObserver
from chargehand.core.errors import ChargehandError, NotFoundError
from chargehand.core.ports import Bind
from chargehand.core.records import Base, CheckResult
from chargehand.missions.journal import CHECKS, Journal
from chargehand.missions.sandboxes.provisioning import (
    BaseEnvironment,
    SandboxProvisioner,
    SandboxRequest,
    acceptance_directory,
    lay_out_files,
)
from chargehand.missions.sandboxes.slots import SlotQueue
from chargehand.missions.services import Services
from chargehand.missions.verdict.ahead import OwnRun
from chargehand.missions.verdict.commits import judged_head
from chargehand.missions.verdict.gates import OUTSIDE, Gates
from chargehand.missions.verdict.outside import OUTSIDE_PROGRAMS, find_limit, open_link, serve_tree
from chargehand.sandbox.contract import WORKSPACE, OnOutput, Sandbox
from chargehand.workspace.environment import CACHES, CompilerCaches, EnvironmentLayers

# Purposes of the workspaces that a verdict may open next to the one of its checks.
GUARD_PLACE, FAULT_PLACE, AGAIN_PLACE = "guard", "fault", "again"
_OUTSIDE_PLACE, _AHEAD = "outside", "ahead-"
_PATIENCE_SECONDS = 60.0
_CACHE_PLACES = {
    name: f"{WORKSPACE}/{CACHES}/{place}"
    for name, place in (
        ("GOCACHE", "go-build"),
        ("GOLANGCI_LINT_CACHE", "golangci-lint"),
        ("CCACHE_DIR", "ccache"),
        ("SCCACHE_DIR", "sccache"),
        ("ZIG_GLOBAL_CACHE_DIR", "zig"),
    )
}


@dataclass(eq=False, slots=True)
class CheckRuns:
    """Runs the checks of one mission on trees over one base; `outputs` has their output by name.

    Output also goes to `on_output` as it comes.
    """

    services: Services
    journal: Journal
    _: KW_ONLY
    environment: BaseEnvironment
    gates: Gates
    provisioner: SandboxProvisioner
    queue: SlotQueue
    on_output: OnOutput | None = None
    outputs: dict[str, CheckOutput] = field(init=False, default_factory=dict)
    _caches: CompilerCaches | None = field(init=False, default=None)

    @property
    def base(self) -> Base:
        """The base that trees are compared with."""
        return self.environment.base

    # --- caches of compilers: only runs on a person's own base write them, and all later runs start from them

    @property
    def _layers(self) -> EnvironmentLayers:
        return EnvironmentLayers(self.services.depot)

    @property
    def _can_be_warm(self) -> bool:
        # With a driver that copies files, copying the caches takes as long as they save.
        return self.services.config.project.warm_checks and self.services.driver == "overlay"

    @property
    def _caches_parts(self) -> tuple[str, str, str]:
        layer = self.environment.layer.parent.name if self.environment.layer else "-"
        return layer, self.services.toolchain, self.services.tier_name

    @property
    def _caches_key(self) -> str:
        return self._layers.caches_key(self.base, self.gates.on_base.digest(), *self._caches_parts)

    def find_caches(self) -> None:
        """Let later runs start with the caches of this base's run, or of an earlier base's; may block.

        A plan's branch has no caches: agents' code would have written them.
        """
        if self._can_be_warm:
            own = self._layers.find_caches(self._caches_key)
            self._caches = own or self._layers.find_inherited(self.base, *self._caches_parts)

    def may_keep_caches(self) -> bool:
        """Return whether the base is a person's, not the branch of a plan or agents' tests on it; may block."""
        state = self.journal.state
        if state.parent:
            with contextlib.suppress(NotFoundError):
                parent = self.services.store.log.summary(state.parent).summary
                return parent.base is not None and parent.base.commit == self.base.commit
            return False
        first = state.first_base if state.plan is not None else self.base
        return first is not None and first.commit == self.base.commit

    def _caches_for(self, tree: str, environment: BaseEnvironment) -> Path | None:
        """Return the caches for a tree's checks; `None` in another environment.

        Builders that compare times (cargo, for files that its build scripts read) notice newer files, but not
        deleted ones: if files were deleted, checks start without caches.
        """
        if self._caches is None or environment.layer != self.environment.layer:
            return None
        if self._caches.by_content:
            return self._caches.path
        gone = any(change.new_id is None for change in self.services.depot.diff(self.base.tree, tree))
        return None if gone else self._caches.path

    # --- runs

    async def run(
        self,
        tree: str,
        environment: BaseEnvironment,
        *,
        acceptance: Sequence[tuple[str, str]],
        plan: CheckPlan | None = None,
        reads: ReadObserver | None = None,
        keeps_caches: bool = False,
        ahead: dict[str, CheckOutput] | None = None,
        known: OwnRun | None = None,
        begun: asyncio.Event | None = None,
    ) -> tuple[CheckResult, ...]:
        """Run the checks of a plan (default: all) on a tree, unless a run of it is `known`.

        With `ahead`, which receives their output, only if a place is free. `begun` is set once no other run can
        take this one's place.
        """
        begun = begun or asyncio.Event()
        if known is not None and [check.name for check in known.checks] == [*self.gates.plan.commands]:
            begun.set()
            self.outputs.update(known.outputs)
            return known.checks
        if not (plan := plan or self.gates.plan).commands:
            return ()
        outputs = self.outputs if ahead is None else ahead
        place = CHECKS if ahead is None else f"{_AHEAD}{tree[:12]}"
        async with self.queue.turn("checks", wait=ahead is None) as held:
            if not held:
                return ()
            begun.set()
            opened = self.open(tree, environment, acceptance=acceptance, place=place, keeps_caches=keeps_caches)
            async with opened as sandbox:
                checks = await self.run_in(sandbox, plan, outputs, reads=reads, shows_output=ahead is None)
        warm = await asyncio.to_thread(self._caches_for, tree, environment) is not None
        return tuple(replace(check, warm=warm) for check in checks)

    async def run_in(
        self,
        sandbox: Sandbox,
        plan: CheckPlan,
        outputs: dict[str, CheckOutput],
        *,
        reads: ReadObserver | None = None,
        shows_output: bool = True,
    ) -> tuple[CheckResult, ...]:
        """Run the commands of a plan in an open sandbox; `outputs` gets their output by name."""

        def remember(result: CheckResult, output: CheckOutput) -> None:
            outputs[result.name] = output

        return await run_checks(
            plan,
            sandbox,
            keep=self.services.store.artifacts,
            mission=self.journal.mission,
            on_result=remember,
            on_output=self.on_output if shows_output else None,
            reads=reads,
        )

    async def run_outside(
        self, tree: str, environment: BaseEnvironment, *, reads: ReadObserver
    ) -> tuple[CheckResult, ...]:
        """Run the outside checks on the base's tree, next to a sandbox of the tree under test."""
        plan = self.gates.outside
        if not plan.commands:
            return ()
        outputs: dict[str, CheckOutput] = {}
        prefix = acceptance_directory(self.services, self.journal).name + "-link-"
        async with (
            self.queue.turn("checks"),
            open_link(self.services.home, prefix=prefix) as (link, binds),
            self.open(tree, environment, binds=binds, gateway=link.far) as subject,
            self.open(
                self.base.tree,
                self.environment,
                acceptance=plan.acceptance,
                place=_OUTSIDE_PLACE,
                binds=binds,
                gateway=link.near,
            ) as sandbox,
        ):
            await reads.begin(subject)
            seconds = len(plan.commands) * plan.seconds_each + _PATIENCE_SECONDS
            async with serve_tree(subject, link, seconds=seconds) as serving:
                checks = await self.run_in(sandbox, plan, outputs)
            await reads.note_check(subject)
            # A tree that was stopped at a limit fails, even if a check accepted its silence.
            limit = await find_limit(subject, serving)
        self.outputs.update({f"{OUTSIDE}{name}": output for name, output in outputs.items()})
        if limit is not None:
            checks = tuple(replace(check, status="failed", reason=limit) for check in checks)
        return tuple(replace(check, name=f"{OUTSIDE}{check.name}", outside=True) for check in checks)

    @contextlib.asynccontextmanager
    async def open(
        self,
        tree: str,
        environment: BaseEnvironment,
        *,
        acceptance: Sequence[tuple[str, str]] = (),
        place: str = CHECKS,
        binds: Sequence[Bind] = (),
        gateway: Path | None = None,
        keeps_caches: bool = False,
    ) -> AsyncIterator[Sandbox]:
        """Open a new sandbox on a new workspace of a tree, with the acceptance files laid over it.

        A mission has one workspace in each `place` at a time.
        """
        provisioner = self.provisioner
        caches = await asyncio.to_thread(self._caches_for, tree, environment)
        depot, state, checks = self.services.depot, self.journal.state, self.gates.names
        head = await asyncio.to_thread(judged_head, depot, state, self.base, tree, checks)
        with lay_out_files(self.services, self.journal, acceptance) as files:
            async with (
                provisioner.workspace(
                    environment, purpose=place, tree=tree, caches=caches, head=head
                ) as workspace,
                provisioner.egress(purpose=CHECKS) as egress,
            ):
                request = SandboxRequest(
                    purpose=CHECKS,
                    binds=(*files, *binds),
                    egress=egress,
                    gateway=gateway,
                    path=environment.path if gateway is None else (OUTSIDE_PROGRAMS, *environment.path),
                    variables=_CACHE_PLACES if self._can_be_warm else {},
                )
                async with provisioner.sandbox(workspace, environment, request) as sandbox:
                    yield sandbox
                # Only with the sandbox closed. Without the caches later checks are slower, with the same result.
                if keeps_caches and caches is None and self._can_be_warm:
                    with contextlib.suppress(ChargehandError, OSError):
                        keep = partial(self._layers.keep_caches, workspace, self._caches_key)
                        await asyncio.to_thread(keep, *self._caches_parts)
