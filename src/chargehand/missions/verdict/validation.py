"""The verdict of one exact tree: new workspace, new sandbox, its checks, and the base's own tests over it.

Remains of the agent's sandbox have no influence: a process still running there, a changed tool or a file outside
the tree cannot make a check pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from chargehand.checks.execution import CheckOutput, CheckPlan, judge
from chargehand.checks.failures import own_name
from chargehand.checks.go_builds import find_skipped
from chargehand.checks.ran_tests import RanTests, TestMoves, find_lost_tests
from chargehand.checks.reads import ReadObserver, changed_code, judge_reads, surface_findings
from chargehand.checks.soft_tests import (
    changed_tests,
    describe_no_faults,
    describe_tests,
    fault_seconds,
    find_changed_examples,
    find_moves,
    leave_out_unread,
    may_say_less,
    measure_tests,
    most_faults,
    pick_faults,
)
from chargehand.core.codec import convert_to
from chargehand.core.mission_events import VerdictGiven
from chargehand.core.records import (
    Base,
    Change,
    CheckResult,
    Finding,
    FlakyTest,
    Verdict,
    VerdictScope,
)
from chargehand.core.text import shown_path
from chargehand.missions._policy import admit
from chargehand.missions.journal import Journal
from chargehand.missions.sandboxes.environment import CandidateLayers
from chargehand.missions.sandboxes.provisioning import BaseEnvironment, SandboxProvisioner
from chargehand.missions.sandboxes.slots import SlotQueue
from chargehand.missions.services import DepotReader, Services, measure_load
from chargehand.missions.verdict.ahead import OwnRun, RunKey, RunsAhead
from chargehand.missions.verdict.base_tests import SideRun, check_with_base_tests, lay_base_tests, run_beside
from chargehand.missions.verdict.check_runs import FAULT_PLACE, GUARD_PLACE, CheckRuns
from chargehand.missions.verdict.classification import Classified, FailureClassifier
from chargehand.missions.verdict.failure_policy import FailurePolicy, count_repeats
from chargehand.missions.verdict.gates import Gates
from chargehand.missions.verdict.judgement import NO_TESTS, load_ran_tests
from chargehand.missions.verdict.looking import ChangeLook, look_at_change
from chargehand.policy.actions import Run
from chargehand.sandbox.contract import OnOutput, Sandbox

# Polling interval for a free place: a run waiting in the queue takes it first.
_PLACE_SECONDS = 0.2


class _CandidateRun(NamedTuple):
    """A run of a tree's own checks: its failures by class, the tests that ran, and those that moved."""

    environment: BaseEnvironment
    look: ChangeLook
    observer: ReadObserver
    checks: tuple[CheckResult, ...]
    told: Classified
    moves: TestMoves
    ran: tuple[RanTests, ...]

    def find_lost(self, before: tuple[RanTests, ...]) -> tuple[Finding, ...]:
        """Return the tests that ran before but not here."""
        return find_lost_tests(before, self.ran, self.moves)


class Validator:
    """Gives verdicts for one mission on one base; `outputs` has the output of checks by name.

    Output also goes to `on_output` as it comes; `ahead` holds the runs before their turn.
    """

    def __init__(
        self,
        services: Services,
        journal: Journal,
        *,
        environment: BaseEnvironment,
        gates: Gates,
        policy: FailurePolicy,
        provisioner: SandboxProvisioner,
        queue: SlotQueue,
        on_output: OnOutput | None = None,
        ahead: RunsAhead | None = None,
    ) -> None:
        self.services = services
        self.journal = journal
        self.ahead = ahead or RunsAhead()
        self.runs = CheckRuns(
            services,
            journal,
            environment=environment,
            gates=gates,
            provisioner=provisioner,
            queue=queue,
            on_output=on_output,
        )
        self._classifier = FailureClassifier(self.runs, policy)
        self._untested: frozenset[str] = frozenset()
        self._ran_on_base: tuple[RanTests, ...] = ()
        self.on_base: Verdict | None = None

    @property
    def base(self) -> Base:
        """The base that trees are compared with."""
        return self.runs.base

    @property
    def environment(self) -> BaseEnvironment:
        """The environment of the base."""
        return self.runs.environment

    @property
    def gates(self) -> Gates:
        """The gates of a tree."""
        return self.runs.gates

    @property
    def outputs(self) -> Mapping[str, CheckOutput]:
        """The output of checks by name."""
        return self.runs.outputs

    async def judge_base(self) -> Verdict:
        """Return the checks' results on the base itself: recorded, from the cache, or by running them.

        They run again each time a person asks for it. Raises `RefusedError` (`policy_denied`) if a rule denies any
        of them.
        """
        for command in self.gates.commands:
            trusted = command in self.gates.typed or self.services.is_trusted(command)
            action = Run(kind="check", run=command, trusted=trusted)
            await admit(self.services, self.journal, action, purpose="check", directory=self.gates.plan.directory)
        store, project, tree = self.services.store, self.services.project, self.base.tree
        plan = self.gates.on_base
        key, turn = self._base_key(plan), count_repeats(self.journal.state, self.base.tree)

        async def judge_now() -> object:
            known = store.verdicts.get(project, tree, plan_digest=key)
            if known is not None and not turn:
                return {"verdict": known, "reused": True}
            # Stored caches must be complete, so the run that makes them starts without any.
            keeps = await asyncio.to_thread(self.runs.may_keep_caches)
            if not keeps:
                await asyncio.to_thread(self.runs.find_caches)
            # Acceptance files come with the mission: they would fail on every base before the change.
            checks = await self.runs.run(tree, self.environment, acceptance=(), plan=plan, keeps_caches=keeps)
            flaky = await self._classifier.classify_base(checks, known)
            return {"verdict": await self._keep_as_base(tree, checks, plan, flaky=flaky), "reused": False}

        def events(output: Any) -> tuple[VerdictGiven, ...]:
            return (VerdictGiven(verdict=output["verdict"], reused=output["reused"]),)

        name = f"verdict/base/{turn}" if turn else "verdict/base"
        output = await self.journal.step(name, [tree, key], judge_now, events=events)
        verdict = convert_to(output["verdict"], Verdict)
        self._untested = frozenset(check.name for check in verdict.checks if check.reason == NO_TESTS)
        self._ran_on_base = load_ran_tests(store, verdict.checks)
        self._classifier.use_base(verdict)
        self.on_base = verdict
        await asyncio.to_thread(self.runs.find_caches)
        return verdict

    def _base_key(self, plan: CheckPlan) -> str:
        """Return the key of a base's verdict: results differ on another layer or toolchain."""
        layer = self.environment.layer.parent.name if self.environment.layer else "-"
        return "/".join(("base", plan.digest(), layer, self.services.toolchain))

    async def _keep_as_base(
        self, tree: str, checks: Sequence[CheckResult], plan: CheckPlan, *, flaky: tuple[FlakyTest, ...]
    ) -> Verdict:
        """Store the checks' results on a tree for missions that have it as their base."""
        excused = self._classifier.find_unstable(checks, flaky)
        findings = await asyncio.to_thread(self.services.depot.find_lfs_pointers, tree)
        status = judge(checks, (), explicit_none=self.gates.explicit_none, excused=excused)
        verdict = Verdict(
            tree=tree, scope="base", status=status, checks=tuple(checks), findings=findings, flaky=flaky
        )
        self.services.store.verdicts.put(self.services.project, verdict, plan_digest=self._base_key(plan))
        return verdict

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

        `degraded` says that `findings` are incomplete.
        """
        # Without its acceptance files, or without a directory to start in, no check shows anything.
        if blocked := self._find_blocked(tree):
            return Verdict(tree=tree, scope=scope, status="red", findings=(*findings, *blocked))
        layers = CandidateLayers(self.services, self.journal, self.runs.provisioner, self.environment)
        async with layers:
            environment = await layers.environment(tree)
            # A layer made for the tree contains only its own packages.
            below = None if layers.is_private(environment) else environment.layer
            look = await self._look(below, self.base.tree, tree, changes)
            mixed = await lay_base_tests(self.runs, tree, changes, look.inner)
            shares = mixed is not None and layers.matches and not layers.asks_for_others(mixed)
            async with run_beside(self.runs, mixed if shares else None, environment) as beside:
                run = await self._run_candidate(tree, changes, layers, environment, look, beside.begun)
                checks, told = run.checks, run.told
                # A tree that fails its own checks is already red: more of them would only cost time.
                if told.is_good(checks):
                    guard = (mixed, beside) if mixed is not None else None
                    checks, told, more = await self._judge_further(tree, changes, run, layers, guard)
                else:
                    more = run.find_lost(self._ran_on_base) if layers.matches else ()
        depot = self.services.depot
        skipped = await asyncio.to_thread(find_skipped, look.code, look.reader, tree)
        stale = await asyncio.to_thread(depot.find_stale, self.base.tree, tree)
        named = {found.path for found in findings if found.rule == "check_surface"}
        surface = [found for found in surface_findings(look.settings, run.observer) if found.path not in named]
        findings = (*findings, *layers.explain(checks), *surface, *told.findings, *more, *stale)
        reads = judge_reads(look.code, run.observer, skipped=skipped)
        status = judge(
            checks,
            findings,
            explicit_none=self.gates.explicit_none,
            degraded=degraded,
            judged=reads.judged,
            at_home=layers.matches,
            excused=told.excused,
            known=bool(told.known),
        )
        return Verdict(
            tree=tree,
            scope=scope,
            status=status,
            checks=checks,
            findings=findings,
            unread=reads.unread,
            elsewhere=reads.elsewhere,
            known=told.known,
            flaky=told.flaky,
        )

    async def _run_candidate(
        self,
        tree: str,
        changes: Sequence[Change],
        layers: CandidateLayers,
        environment: BaseEnvironment,
        look: ChangeLook,
        begun: asyncio.Event,
    ) -> _CandidateRun:
        """Run a tree's own checks, and classify its failures; `begun` is set once they have their place."""
        # Checks run ahead only in the tree's own environment.
        known = await self.ahead.take(self._run_key(self.base.tree, tree, environment, self.gates))
        observer = known.observer if known is not None else look.observer
        checks = await self.runs.run(
            tree, environment, acceptance=self.gates.acceptance, reads=observer, known=known, begun=begun
        )
        told = await self._tell_apart(tree, checks, environment) if layers.matches else Classified()
        moves = find_moves(changes, look.reader, self.gates.plan.commands, observer)
        ran = load_ran_tests(self.services.store, checks)
        return _CandidateRun(environment, look, observer, checks, told, moves, ran)

    async def _judge_further(
        self,
        tree: str,
        changes: Sequence[Change],
        run: _CandidateRun,
        layers: CandidateLayers,
        guard: tuple[str, SideRun] | None,
    ) -> tuple[tuple[CheckResult, ...], Classified, tuple[Finding, ...]]:
        """Judge a tree that passed its own checks further: by outside checks, the base's tests, and faults.

        `guard` is the tree with the base's tests, and the run of its checks. Return all checks with the base's and
        outside ones, the failures, and the findings.
        """
        checks, look, environment = run.checks, run.look, run.environment
        if not self.gates.acceptance and layers.matches and environment.layer == self.environment.layer:
            # Later missions start from the promoted tree: stored now, their base is already judged.
            await self._keep_as_base(tree, checks, self.gates.plan, flaky=run.told.flaky)
        outside = await self.runs.run_outside(tree, environment, reads=run.observer)
        with_base_tests, guarded = tuple[CheckResult, ...](), tuple[Finding, ...]()
        if guard is not None:
            with_base_tests, guarded = await check_with_base_tests(
                self.runs, *guard, checks, layers, self._classifier, self._untested
            )
        # In an environment other than the tree's own, existing tests may seem to vanish.
        lost = run.find_lost(self._ran_on_base) if layers.matches else ()
        # Now with acceptance files on both sides: on one side they may offset the number of lost tests.
        lost = lost or run.find_lost(load_ran_tests(self.services.store, with_base_tests))
        lost += await asyncio.to_thread(self._find_changed_examples, changes, look.reader)
        holds = guard is not None and look.tests and all(check.status == "passed" for check in with_base_tests)
        mixed = guard[0] if guard is not None and holds else None
        told, soft = await self._try_tests(tree, mixed, changes, run, layers)
        return (*checks, *outside, *with_base_tests), told, (*guarded, *lost, *soft)

    async def _tell_apart(
        self, tree: str, checks: Sequence[CheckResult], environment: BaseEnvironment
    ) -> Classified:
        """Classify failures, also by the earlier results of the same checks on the same tree."""
        verdicts, project = self.services.store.verdicts, self.services.project
        layer = environment.layer.parent.name if environment.layer else "-"
        key = "/".join(("own", self.gates.checks_key, layer, self.services.toolchain))
        earlier = verdicts.get(project, tree, plan_digest=key)
        told = await self._classifier.classify(
            checks, tree=tree, environment=environment, acceptance=self.gates.acceptance, earlier=earlier
        )
        # Failures are kept: judging a tree again must not turn it green.
        worst = {check.name: check for check in checks}
        if earlier is not None:
            worst |= {check.name: check for check in earlier.checks if check.status != "passed"}
        status = judge(checks, (), explicit_none=True, excused=told.excused)
        kept = Verdict(tree=tree, scope="attempt", status=status, checks=tuple(worst.values()), flaky=told.flaky)
        verdicts.put(project, kept, plan_digest=key)
        return told

    async def _try_tests(
        self, tree: str, mixed: str | None, changes: Sequence[Change], run: _CandidateRun, layers: CandidateLayers
    ) -> tuple[Classified, tuple[Finding, ...]]:
        """Repeat new tests, and at the same time try faults if there is a `mixed` tree with the base's tests.

        Return the failures with those of the repetitions, and the faults that changed tests no longer notice.
        """
        new = self._find_new_tests(run)
        if mixed is None and not new:
            return run.told, ()
        # One slot for both: no mission may wait for a slot while it holds another one.
        async with self.runs.queue.turn("checks"):
            repeating = asyncio.create_task(self._repeat_new_tests(tree, new, run))
            try:
                soft = () if mixed is None else await self._try_faults(tree, mixed, changes, run, layers)
                return run.told.joined(await repeating), soft
            finally:
                repeating.cancel()
                await asyncio.gather(repeating, return_exceptions=True)

    def _find_new_tests(self, run: _CandidateRun) -> list[tuple[CheckResult, list[str]]]:
        """Return the new and changed tests of the checks that passed."""
        before = {ran.check: set(ran.names) for ran in self._ran_on_base if ran.names is not None}
        found = []
        for check, ran in zip(run.checks, run.ran, strict=True):
            if check.status != "passed" or ran.names is None or check.name not in before:
                continue
            known = {name for name in before[check.name] if own_name(check.name, name) not in run.moves.rewritten}
            if new := sorted(set(ran.names) - known):
                found.append((check, new))
        return found

    async def _repeat_new_tests(
        self, tree: str, new: Sequence[tuple[CheckResult, Sequence[str]]], run: _CandidateRun
    ) -> Classified:
        """Run new and changed tests a few more times: passing by luck, they would be flaky in the next mission."""
        told = Classified()
        for check, tests in new:
            told = told.joined(
                await self._classifier.repeat_new_tests(
                    check, tests, tree=tree, environment=run.environment, acceptance=self.gates.acceptance
                )
            )
        return told

    async def _look(self, layer: Path | None, base: str, tree: str, changes: Sequence[Change]) -> ChangeLook:
        return await asyncio.to_thread(look_at_change, self.services.depot, layer, base, tree, changes)

    def _run_key(self, base: str, tree: str, environment: BaseEnvironment, gates: Gates) -> RunKey:
        return RunKey(base=base, tree=tree, layer=environment.layer, checks=gates.checks_key)

    def run_ahead(self, base: str, tree: str, *, added: Sequence[str] = ()) -> None:
        """Run a tree's own checks ahead of its turn, for the validator with the same `ahead` to judge it on
        `base`.

        `added` are checks of the next task. They run once a place for checks is free that no other run waits for,
        and not if the tree requires another environment.
        """
        gates = self.gates.with_tasks(added)
        key = self._run_key(base, tree, self.environment, gates)
        begun = asyncio.Event()
        self.ahead.begin(key, self._run_own(base, tree, gates, begun), begun)

    async def _run_own(self, base: str, tree: str, gates: Gates, begun: asyncio.Event) -> OwnRun | None:
        changes = await asyncio.to_thread(self.services.depot.diff, base, tree)
        layers = CandidateLayers(self.services, self.journal, self.runs.provisioner, self.environment)
        if self._find_blocked(tree) or layers.asks_for_others(tree):
            return None
        look = await self._look(self.environment.layer, base, tree, changes)
        outputs: dict[str, CheckOutput] = {}
        runs = dataclasses.replace(self.runs, gates=gates)
        await asyncio.to_thread(runs.find_caches)
        if not gates.plan.commands:
            return None
        run = partial(runs.run, tree, self.environment, acceptance=gates.acceptance, reads=look.observer)
        # No event signals a free place: other processes use the places too.
        while not (checks := await run(ahead=outputs, begun=begun)):  # noqa: ASYNC110
            await asyncio.sleep(_PLACE_SECONDS)
        return OwnRun(checks=checks, observer=look.observer, outputs=outputs)

    def _find_blocked(self, tree: str) -> tuple[Finding, ...]:
        """Return the obstacles in a tree at the paths of acceptance files or the checks' directory."""
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
                message=f"{obstacle}, where the checks need their own file",
            )
            for path, obstacle in obstacles
            if obstacle is not None
        )

    def _find_changed_examples(self, changes: Sequence[Change], reader: DepotReader) -> tuple[Finding, ...]:
        ran = (name for tests in self._ran_on_base for name in tests.names or ())
        return find_changed_examples(changes, reader, self.base.tree, self.gates.plan.commands, ran)

    async def _try_faults(
        self,
        tree: str,
        mixed: str,
        changes: Sequence[Change],
        run: _CandidateRun,
        layers: CandidateLayers,
    ) -> tuple[Finding, ...]:
        """Return the faults in the code under test that the changed tests no longer notice.

        The caller holds a slot. For a tree that was measured before, the result is cached.
        """
        verdicts, checks, look = self.services.store.verdicts, run.checks, run.look
        reader, project, inner = look.reader, self.services.project, look.inner
        tests, code = leave_out_unread(changed_tests(changes, inner, reader), run.observer), changed_code(changes)
        read = run.observer.read_of(look.subject)
        faults = (
            await asyncio.to_thread(pick_faults, reader, tree, tests, read, look.subject, code) if tests else []
        )
        must_measure = bool(tests) and await asyncio.to_thread(may_say_less, changes, inner, reader)
        if any(check.status != "passed" for check in checks):
            return describe_no_faults("a check fails without any fault", must_measure=must_measure)
        if not faults:
            return describe_no_faults(must_measure=must_measure)
        limit = self.services.config.limits.fault_time
        seconds = fault_seconds(limit, must_measure=must_measure)
        key = "/".join(("noticed", mixed, f"{seconds:g}", self.gates.plan.digest(), self.services.toolchain))
        known = verdicts.get(project, tree, plan_digest=key)
        if known is not None:
            return known.findings
        async with contextlib.AsyncExitStack() as stack:
            places = count(1)

            async def open_sandbox(tree: str, place: str) -> Sandbox:
                environment = await layers.environment(tree)
                # All stay open until the measurement ends, each in its own place.
                opened = self.runs.open(tree, environment, acceptance=self.gates.acceptance, place=place)
                return await stack.enter_async_context(opened)

            found = await measure_tests(
                self.gates.on_base,
                checks,
                faults,
                await asyncio.to_thread(describe_tests, tests, inner, reader, run.ran, self._ran_on_base),
                tree=lambda: open_sandbox(tree, f"{FAULT_PLACE}-{next(places)}"),
                base=lambda: open_sandbox(mixed, GUARD_PLACE),
                seconds=fault_seconds(limit, must_measure=must_measure, load=measure_load()),
                must_measure=must_measure,
                most=most_faults(tests),
            )
        # Results cut short by the time limit are not cached: the machine may be faster next time.
        if not any(each.rule == "tests_unmeasured" for each in found):
            known = Verdict(tree=tree, scope="attempt", status="green", findings=found)
            verdicts.put(project, known, plan_digest=key)
        return found
