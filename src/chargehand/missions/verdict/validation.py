"""The verdict of one exact tree: new workspace, new sandbox, its checks, and the base's own tests over it.

Nothing that the agent's sandbox left behind takes part: a process that still runs there, a changed tool or a file
outside the tree cannot make a check pass.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from chargehand.checks.areas import Areas
from chargehand.checks.execution import CheckOutput, judge, run_checks
from chargehand.checks.go_builds import find_skipped
from chargehand.checks.inspection import base_tests_tree_plan
from chargehand.checks.ran_tests import RanTests, find_lost_tests
from chargehand.checks.reads import (
    ReadObserver,
    changed_code,
    judge_reads,
    surface_findings,
)
from chargehand.checks.soft_tests import (
    changed_tests,
    describe_no_faults,
    fault_seconds,
    find_changed_examples,
    find_moves,
    leave_out_unread,
    may_say_less,
    measure_tests,
    most_faults,
    pick_faults,
    restore_inner_tests,
    support_in,
)
from chargehand.core.codec import convert_to
from chargehand.core.errors import ChargehandError
from chargehand.core.mission_events import VerdictGiven
from chargehand.core.ports import Bind
from chargehand.core.records import (
    Base,
    Change,
    CheckResult,
    Finding,
    MissionRequest,
    Verdict,
    VerdictScope,
    VerdictStatus,
)
from chargehand.core.text import shown_path
from chargehand.missions._policy import admit
from chargehand.missions.journal import CHECKS, Journal
from chargehand.missions.sandboxes.environment import CandidateLayers
from chargehand.missions.sandboxes.packages import installed_modules
from chargehand.missions.sandboxes.provisioning import (
    BaseEnvironment,
    SandboxProvisioner,
    SandboxRequest,
    acceptance_directory,
    lay_out_files,
)
from chargehand.missions.sandboxes.slots import SlotQueue
from chargehand.missions.services import DepotReader, Services
from chargehand.missions.verdict.ahead import OwnRun, RunKey, RunsAhead
from chargehand.missions.verdict.gates import Gates
from chargehand.missions.verdict.judgement import BASE_TESTS, NO_TESTS, load_ran_tests
from chargehand.missions.verdict.looking import ChangeLook, look_at_change
from chargehand.missions.verdict.outside import OUTSIDE_PROGRAMS, open_link, serve_tree
from chargehand.missions.verdict.red_base import heed_red_base
from chargehand.policy.actions import Run
from chargehand.sandbox.contract import WORKSPACE, OnOutput, Sandbox
from chargehand.workspace.environment import CACHES, EnvironmentLayers

_OUTSIDE = "outside: "
# Purposes of the workspaces that a verdict may open beside the one of its checks.
_GUARD, _OUTSIDE_PLACE, _AHEAD = "guard", "outside", "ahead-"
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
class Validator:
    """Gives verdicts for one mission on one base; `outputs` holds what the checks printed, by their names.

    What they print goes to `on_output` as it comes; `ahead` holds the runs before their turn.
    """

    services: Services
    journal: Journal
    _: KW_ONLY
    environment: BaseEnvironment
    gates: Gates
    provisioner: SandboxProvisioner
    queue: SlotQueue
    on_output: OnOutput | None = None
    ahead: RunsAhead = field(default_factory=RunsAhead)
    outputs: dict[str, CheckOutput] = field(init=False, default_factory=dict)
    _untested: frozenset[str] = field(init=False, default=frozenset())
    _ran_on_base: tuple[RanTests, ...] = field(init=False, default=())
    _on_base: Verdict | None = field(init=False, default=None)
    _caches: Path | None = field(init=False, default=None)

    @property
    def base(self) -> Base:
        """The base that trees are compared with."""
        return self.environment.base

    async def judge_base(self) -> Verdict:
        """Return how the checks end on the base itself: recorded, from the cache, or by running them.

        Raises `RefusedError` (`policy_denied`) where a rule is against any of them.
        """
        for command in self.gates.commands:
            trusted = command in self.gates.typed or self.services.is_trusted(command)
            action = Run(kind="check", run=command, trusted=trusted)
            await admit(self.services, self.journal, action, purpose="check", directory=self.gates.plan.directory)
        verdicts, project, tree = self.services.store.verdicts, self.services.project, self.base.tree
        key = self._base_key

        async def judge_now() -> object:
            known = verdicts.get(project, tree, plan_digest=key)
            if known is not None:
                return {"verdict": known, "reused": True}
            # Acceptance files come with the mission: they would fail on every base that has yet to be changed.
            checks = await self._run_checks(tree, self.environment, acceptance=(), keeps_caches=True)
            return {"verdict": await asyncio.to_thread(self._keep_as_base, tree, checks), "reused": False}

        def events(output: Any) -> tuple[VerdictGiven, ...]:
            return (VerdictGiven(verdict=output["verdict"], reused=output["reused"]),)

        output = await self.journal.step("verdict/base", [tree, key], judge_now, events=events)
        verdict = convert_to(output["verdict"], Verdict)
        self._untested = frozenset(check.name for check in verdict.checks if check.reason == NO_TESTS)
        self._ran_on_base = load_ran_tests(self.services.store, verdict.checks)
        self._on_base = verdict
        if self._can_be_warm:
            self._caches = await asyncio.to_thread(self._layers.find, self._caches_key)
        return verdict

    @property
    def _base_key(self) -> str:
        """What a base's verdict depends on: the same commands end differently on another layer or toolchain."""
        layer = self.environment.layer.name if self.environment.layer else "-"
        return "/".join(("base", self.gates.plan.digest(), layer, self.services.toolchain))

    def _keep_as_base(self, tree: str, checks: Sequence[CheckResult]) -> Verdict:
        """Keep how checks ended on a tree for missions that have it as their base."""
        findings = self.services.depot.find_lfs_pointers(tree)
        status = self._status(checks, ())
        verdict = Verdict(tree=tree, scope="base", status=status, checks=tuple(checks), findings=findings)
        self.services.store.verdicts.put(self.services.project, verdict, plan_digest=self._base_key)
        return verdict

    # --- what compilers cached while the base was checked: others begin with it, and only the base's write it

    @property
    def _layers(self) -> EnvironmentLayers:
        return EnvironmentLayers(self.services.depot)

    @property
    def _can_be_warm(self) -> bool:
        # A driver that copies files would spend on copying the caches what they save.
        return self.services.config.project.warm_checks and self.services.driver == "overlay"

    @property
    def _caches_key(self) -> str:
        layer = self.environment.layer.parent.name if self.environment.layer else "-"
        parts = (self.gates.plan.digest(), layer, self.services.toolchain, self.services.tier_name)
        return self._layers.caches_key(self.base, *parts)

    def _find_caches(self, tree: str, environment: BaseEnvironment) -> Path | None:
        """Return what a tree's checks begin with: nothing in another environment, or where files are gone.

        Builders that compare times (cargo, for what its build scripts read) see that a file is newer, not that one
        is gone.
        """
        if self._caches is None or environment.layer != self.environment.layer:
            return None
        gone = any(change.new_id is None for change in self.services.depot.diff(self.base.tree, tree))
        return None if gone else self._caches

    async def heed_red_base(self, request: MissionRequest) -> None:
        """Act as the request wants where checks fail on the base already; see `heed_red_base`."""
        heed_red_base(self.journal, request, self._on_base or await self.judge_base(), self._ran_on_base)

    async def judge_candidate(
        self,
        tree: str,
        *,
        scope: VerdictScope,
        changes: Sequence[Change],
        findings: Sequence[Finding],
        degraded: bool = False,
    ) -> Verdict:
        """Return the verdict of a tree: all gates on it, and on it with the base's tests and check surface.

        `degraded` says that `findings` are not all that inspection should have looked for.
        """
        # Without its acceptance files, or where it cannot start, no check says anything.
        if blocked := self._find_blocked(tree):
            return Verdict(tree=tree, scope=scope, status="red", findings=(*findings, *blocked))
        layers = CandidateLayers(self.services, self.journal, self.provisioner, self.environment)
        async with layers:
            environment = await layers.environment(tree)
            # In a layer that was made for the tree everything is its own.
            below = None if layers.is_private(environment) else environment.layer
            look = await self._look(below, self.base.tree, tree, changes)
            code, reader, settings, tests, inner, subject, observer = look
            # In another environment than the tree's own nothing runs ahead.
            known = await self.ahead.take(self._run_key(self.base.tree, tree, environment))
            observer = known.observer if known is not None else observer
            checks = await self._run_checks(
                tree, environment, acceptance=self.gates.acceptance, reads=observer, known=known
            )
            moves = find_moves(changes, reader, self.gates.plan.commands, observer)
            ran = load_ran_tests(self.services.store, checks)
            # In another environment than the tree's own tests vanish that are all there.
            lost = find_lost_tests(self._ran_on_base, ran, moves) if layers.matches else ()
            # A tree that fails its own checks is red already: more of them would only cost time.
            soft, outside = tuple[Finding, ...](), tuple[CheckResult, ...]()
            if all(check.status == "passed" for check in checks):
                if not self.gates.acceptance and layers.matches and environment.layer == self.environment.layer:
                    # Later missions begin at what is promoted: kept now, their base counts as judged already.
                    await asyncio.to_thread(self._keep_as_base, tree, checks)
                outside = await self._run_outside(tree, environment, reads=observer)
                mixed = await self._lay_base_tests(tree, changes, inner)
                with_base_tests = await self._check_with_base_tests(mixed, layers) if mixed else ()
                # Now with acceptance files on both sides: on one they may make up for the number of lost tests.
                lost = lost or find_lost_tests(load_ran_tests(self.services.store, with_base_tests), ran, moves)
                lost += await asyncio.to_thread(self._find_changed_examples, changes, reader)
                if mixed and tests and all(check.status == "passed" for check in with_base_tests):
                    soft = await self._try_faults(tree, mixed, changes, inner, subject, observer, checks, layers)
                checks += (*outside, *with_base_tests)
        skipped = await asyncio.to_thread(find_skipped, code, reader, tree)
        stale = await asyncio.to_thread(self.services.depot.find_stale, self.base.tree, tree)
        named = {found.path for found in findings if found.rule == "check_surface"}
        surface = [found for found in surface_findings(settings, observer) if found.path not in named]
        findings = (*findings, *layers.explain(checks), *surface, *lost, *soft, *stale)
        reads = judge_reads(code, observer, skipped=skipped)
        return Verdict(
            tree=tree,
            scope=scope,
            status=self._status(checks, findings, degraded=degraded, judged=reads.judged, at_home=layers.matches),
            checks=checks,
            findings=findings,
            unread=reads.unread,
            elsewhere=reads.elsewhere,
        )

    async def _look(self, layer: Path | None, base: str, tree: str, changes: Sequence[Change]) -> ChangeLook:
        return await asyncio.to_thread(look_at_change, self.services.depot, layer, base, tree, changes)

    def _run_key(self, base: str, tree: str, environment: BaseEnvironment) -> RunKey:
        checks = "/".join((self.gates.plan.digest(), *(f"{name}:{path}" for name, path in self.gates.acceptance)))
        return RunKey(base=base, tree=tree, layer=environment.layer, checks=checks)

    def run_ahead(self, base: str, tree: str) -> None:
        """Run a tree's own checks ahead of its turn, to be judged on the tree `base` by whoever has its `ahead`.

        Nothing is run where no place for checks is free, or the tree asks for another environment.
        """
        self.ahead.begin(self._run_key(base, tree, self.environment), self._run_own(base, tree))

    async def _run_own(self, base: str, tree: str) -> OwnRun | None:
        changes = await asyncio.to_thread(self.services.depot.diff, base, tree)
        layers = CandidateLayers(self.services, self.journal, self.provisioner, self.environment)
        if self._find_blocked(tree) or layers.asks_for_others(tree):
            return None
        look = await self._look(self.environment.layer, base, tree, changes)
        outputs: dict[str, CheckOutput] = {}
        checks = await self._run_checks(
            tree, self.environment, acceptance=self.gates.acceptance, reads=look.observer, ahead=outputs
        )
        return OwnRun(checks=checks, observer=look.observer, outputs=outputs) if checks else None

    def _find_blocked(self, tree: str) -> tuple[Finding, ...]:
        """Return what stands in a tree where an acceptance file or the directory of the checks has to be."""
        start = self.gates.plan.directory
        if not self.services.depot.has_directory(tree, start):
            message = f"{shown_path(start)} is no longer a directory, and the checks start there"
            return (Finding(rule="directory_gone", severity="error", path=start, message=message),)
        obstacles = ((path, self.services.depot.find_obstacle(tree, path)) for _, path in self.gates.acceptance)
        return tuple(
            Finding(
                rule="acceptance_path",
                severity="error",
                path=path,
                message=f"{obstacle}, where the checks have a file of their own",
            )
            for path, obstacle in obstacles
            if obstacle is not None
        )

    def _find_changed_examples(self, changes: Sequence[Change], reader: DepotReader) -> tuple[Finding, ...]:
        ran = (name for tests in self._ran_on_base for name in tests.names or ())
        return find_changed_examples(changes, reader, self.base.tree, self.gates.plan.commands, ran)

    async def _lay_base_tests(self, tree: str, changes: Sequence[Change], inner: Mapping[str, str]) -> str | None:
        """Return the tree with the base's tests and check surface put back over it, `None` where it has them.

        `inner` has the base's text of code with tests of its own, and of files that only tests use.
        """
        depot = self.services.depot
        areas = Areas(
            commands=self.gates.plan.commands,
            directory=self.gates.plan.directory,
            installed=installed_modules(self.environment.layer),
            acceptance=tuple(path for _, path in self.gates.acceptance),
        )
        reader = DepotReader(depot)
        overrides = base_tests_tree_plan(changes, reader, self.base.tree, areas, support=support_in(inner))
        contents = restore_inner_tests({path: inner[path] for path in inner.keys() - overrides}, reader, tree)
        if not overrides and not contents:
            return None
        mixed = await asyncio.to_thread(
            depot.replace_paths, tree, tuple(overrides), self.base.tree, contents=contents
        )
        return None if mixed == tree else mixed

    async def _check_with_base_tests(self, mixed: str, layers: CandidateLayers) -> tuple[CheckResult, ...]:
        """Run the checks once more, on a tree with the base's tests and check surface.

        An agent that weakens a test, or the configuration that selects tests, passes its own run but not this one.
        """
        environment = await layers.environment(mixed)
        checks = await self._run_checks(mixed, environment, acceptance=self.gates.acceptance)
        # Both runs give their checks the same names: the second one's outputs move out of the way.
        for check in checks:
            self.outputs[f"{BASE_TESTS}{check.name}"] = self.outputs.pop(check.name)
        # Where the base has no tests, it has none to be judged by: a project's first tests may land.
        counted = (check for check in checks if not (check.reason == NO_TESTS and check.name in self._untested))
        return tuple(replace(check, name=f"{BASE_TESTS}{check.name}", base_tests=True) for check in counted)

    async def _try_faults(
        self,
        tree: str,
        mixed: str,
        changes: Sequence[Change],
        inner: Mapping[str, str],
        subject: Sequence[str],
        observer: ReadObserver,
        checks: Sequence[CheckResult],
        layers: CandidateLayers,
    ) -> tuple[Finding, ...]:
        """Return which faults in the `subject` the changed tests no longer notice.

        That is known for a tree that was measured before.
        """
        verdicts = self.services.store.verdicts
        reader, project = DepotReader(self.services.depot), self.services.project
        tests, code = leave_out_unread(changed_tests(changes, inner, reader), observer), changed_code(changes)
        read = observer.read_of(subject)
        faults = await asyncio.to_thread(pick_faults, reader, tree, tests, read, subject, code) if tests else []
        must_measure = bool(tests) and await asyncio.to_thread(may_say_less, changes, inner, reader)
        if not faults:
            return describe_no_faults(must_measure=must_measure)
        seconds = fault_seconds(self.services.config.limits.fault_time, must_measure=must_measure)
        key = "/".join(("noticed", mixed, f"{seconds:g}", self.gates.plan.digest(), self.services.toolchain))
        known = verdicts.get(project, tree, plan_digest=key)
        if known is not None:
            return known.findings
        async with self.queue.turn("checks"), contextlib.AsyncExitStack() as stack:
            opened = self._open_checks(tree, await layers.environment(tree), acceptance=self.gates.acceptance)
            subject_sandbox = await stack.enter_async_context(opened)

            async def open_guard() -> Sandbox:
                environment = await layers.environment(mixed)
                # Beside the other one, which stays open.
                opened = self._open_checks(mixed, environment, acceptance=self.gates.acceptance, place=_GUARD)
                return await stack.enter_async_context(opened)

            found = await measure_tests(
                self.gates.plan,
                checks,
                faults,
                tree=subject_sandbox,
                base=open_guard,
                inner=inner,
                seconds=seconds,
                must_measure=must_measure,
                most=most_faults(tests),
            )
        # What the time limit cut short is not kept: another time the machine may be faster.
        if not any(each.rule == "tests_unmeasured" for each in found):
            known = Verdict(tree=tree, scope="attempt", status="green", findings=found)
            verdicts.put(project, known, plan_digest=key)
        return found

    def _status(
        self,
        checks: Sequence[CheckResult],
        findings: Sequence[Finding],
        *,
        degraded: bool = False,
        judged: bool = True,
        at_home: bool = True,
    ) -> VerdictStatus:
        none = self.gates.explicit_none
        return judge(checks, findings, explicit_none=none, degraded=degraded, judged=judged, at_home=at_home)

    async def _run_checks(
        self,
        tree: str,
        environment: BaseEnvironment,
        *,
        acceptance: Sequence[tuple[str, str]],
        reads: ReadObserver | None = None,
        keeps_caches: bool = False,
        ahead: dict[str, CheckOutput] | None = None,
        known: OwnRun | None = None,
    ) -> tuple[CheckResult, ...]:
        """Run the checks on a tree, unless a run of it is `known`.

        With `ahead`, which takes what they print, only where a place is free.
        """
        if known is not None:
            self.outputs.update(known.outputs)
            return known.checks
        if not self.gates.plan.commands:
            return ()
        outputs = self.outputs if ahead is None else ahead

        def remember(result: CheckResult, output: CheckOutput) -> None:
            outputs[result.name] = output

        place = CHECKS if ahead is None else f"{_AHEAD}{tree[:12]}"
        async with self.queue.turn("checks", wait=ahead is None) as held:
            if not held:
                return ()
            opened = self._open_checks(
                tree, environment, acceptance=acceptance, place=place, keeps_caches=keeps_caches
            )
            async with opened as sandbox:
                checks = await run_checks(
                    self.gates.plan,
                    sandbox,
                    keep=self.services.store.artifacts,
                    mission=self.journal.mission,
                    on_result=remember,
                    on_output=self.on_output if ahead is None else None,
                    reads=reads,
                )
        warm = await asyncio.to_thread(self._find_caches, tree, environment) is not None
        return tuple(replace(check, warm=warm) for check in checks)

    async def succeeds(self, command: str, tree: str) -> bool:
        """Tell whether a command succeeds on a tree, in a sandbox as checks have it."""
        async with self.queue.turn("checks"), self._open_checks(tree, self.environment) as sandbox:
            words = ["/bin/sh", "-c", command]
            result = await sandbox.exec(words, timeout=self.gates.plan.seconds_each, output_limit=1 << 16)
        return result.exit_code == 0

    async def _run_outside(
        self, tree: str, environment: BaseEnvironment, *, reads: ReadObserver
    ) -> tuple[CheckResult, ...]:
        """Run the outside checks on the base's tree, beside a sandbox of the tree that they ask."""
        plan = self.gates.outside
        if not plan.commands:
            return ()

        def remember(result: CheckResult, output: CheckOutput) -> None:
            self.outputs[f"{_OUTSIDE}{result.name}"] = output

        prefix = acceptance_directory(self.services, self.journal).name + "-link-"
        async with (
            self.queue.turn("checks"),
            open_link(self.services.home, prefix=prefix) as (link, binds),
            self._open_checks(tree, environment, binds=binds, gateway=link.far) as subject,
            self._open_checks(
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
                checks = await run_checks(
                    plan,
                    sandbox,
                    keep=self.services.store.artifacts,
                    mission=self.journal.mission,
                    on_result=remember,
                    on_output=self.on_output,
                )
            await reads.note_check(subject)
            # A tree that was ended at a limit fails, whatever a check made of its silence. What goes on to the end
            # is looked at once more: it may have written since the last look.
            limit = (await subject.exec(["true"])).limit if serving.cancelled() else serving.result().limit
        if limit is not None:
            checks = tuple(replace(check, status="failed", reason=limit) for check in checks)
        return tuple(replace(check, name=f"{_OUTSIDE}{check.name}", outside=True) for check in checks)

    @contextlib.asynccontextmanager
    async def _open_checks(
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
        caches = await asyncio.to_thread(self._find_caches, tree, environment)
        with lay_out_files(self.services, self.journal, acceptance) as files:
            async with (
                provisioner.workspace(environment, purpose=place, tree=tree, caches=caches) as workspace,
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
                # Only with the sandbox closed. What cannot be kept makes later checks slower and no other.
                if keeps_caches and self._can_be_warm:
                    with contextlib.suppress(ChargehandError, OSError):
                        await asyncio.to_thread(self._layers.keep_caches, workspace, self._caches_key)
