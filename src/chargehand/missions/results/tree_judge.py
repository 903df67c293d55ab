"""Judgement of one exact tree: prepares the base, then inspects the tree and runs the checks on it.

A single mission judges its attempts with it, a coordinator each merge, and a person's promotion the result of an
earlier run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial

from msgspec import Struct

from chargehand.checks.detection import could_not_run
from chargehand.core.mission_events import VerdictGiven
from chargehand.core.records import Base, MissionRequest, Verdict, VerdictScope
from chargehand.missions.attempt.inspection import Inspector
from chargehand.missions.control import Control
from chargehand.missions.journal import Journal
from chargehand.missions.reading import merged_checks, mission_ref
from chargehand.missions.sandboxes.environment import base_environment, needed_setup
from chargehand.missions.sandboxes.provisioning import SandboxProvisioner
from chargehand.missions.sandboxes.slots import SlotQueue
from chargehand.missions.services import Services
from chargehand.missions.verdict.ahead import RunsAhead
from chargehand.missions.verdict.failure_policy import failure_policy
from chargehand.missions.verdict.gates import Gates, areas_of, find_gates
from chargehand.missions.verdict.restored import find_rejected
from chargehand.missions.verdict.validation import Validator
from chargehand.sandbox.contract import OnOutput
from chargehand.workspace.errors import Fault, no_fault

# Runs while the validator judges a tree, and is cancelled once the verdict is given.
Meanwhile = Callable[[Validator], Awaitable[None]]


async def wait_idly(validator: Validator) -> None:
    """Do nothing while a tree is judged."""


class BaseContext(Struct, frozen=True, kw_only=True):
    """A base commit, with the inspector and the validator for trees on it."""

    base: Base
    validator: Validator
    inspector: Inspector


class TreeJudge:
    """Judges trees for one mission; `ahead` holds the checks that run before their tree's turn.

    The output of checks goes to `on_output` as it comes. Crash tests stop at the named points of `fault`.
    """

    def __init__(
        self,
        services: Services,
        journal: Journal,
        control: Control,
        *,
        fault: Fault = no_fault,
        on_output: OnOutput | None = None,
    ) -> None:
        self._services = services
        self._journal = journal
        self._control = control
        self._on_output = on_output
        self.fault = fault
        self.ahead = RunsAhead()
        self.queue = SlotQueue(services, journal, control)
        self.provisioner = SandboxProvisioner(services, journal, control=control)

    async def prepare_base(
        self, request: MissionRequest, base: Base, *, added: Sequence[str] = (), without: Collection[str] = ()
    ) -> BaseContext:
        """Return the context for judging trees on this base, after running the checks on the base itself.

        Trees of a coordinator have to pass the checks of all merged tasks, except tasks in `without`, and the
        checks in `added`.
        """
        configured = self._services.config.project.setup
        gates = await asyncio.to_thread(self._find_gates, request, base, added, without)
        validator = await self._open_validator(base, configured, gates)
        self.fault("environment")
        verdict = await validator.judge_base()
        tried: list[str] = []
        kept, progress = validator, -1
        # A working setup may still lack the program that runs the tests: then the next one is tried.
        find = partial(needed_setup, self._services, self._journal, provisioner=self.provisioner, tried=tried)
        while configured is None and (detected := await find(validator.environment, verdict)):
            tried.append(detected)
            validator = await self._open_validator(base, detected, gates)
            verdict = await validator.judge_base()
            # Later setups omit packages: a setup that gets no further does not replace an earlier one.
            if (reached := measure_progress(verdict)) > progress:
                kept, progress = validator, reached
        areas = areas_of(self._services, request, gates, kept.environment)
        inspector = Inspector(self._services, base, areas, seconds_left=self._control.seconds_left)
        return BaseContext(base=base, validator=kept, inspector=inspector)

    def _find_gates(
        self, request: MissionRequest, base: Base, added: Sequence[str], without: Collection[str]
    ) -> Gates:
        journal, merged = self._journal, merged_checks(self._journal.state, without=without)
        # A base other than the coordinator's branch lacks its tasks' results.
        merged_in = base.commit == self._services.depot.read_ref(mission_ref(journal.mission))
        gates = find_gates(self._services, base, request)
        return gates.with_tasks((*merged, *added), in_base=merged if merged_in else ())

    async def _open_validator(self, base: Base, setup: str | None, gates: Gates) -> Validator:
        """Return the validator of a base, in the environment that `setup` makes in the checks' directory."""
        services, journal, provisioner = self._services, self._journal, self.provisioner
        assert journal.state.request is not None
        environment = await base_environment(
            services, journal, base, setup=setup, directory=gates.plan.directory, provisioner=provisioner
        )
        return Validator(
            services,
            journal,
            environment=environment,
            gates=gates,
            policy=failure_policy(services.config, journal.state.request, journal.state),
            provisioner=provisioner,
            queue=self.queue,
            on_output=self._on_output,
            ahead=self.ahead,
        )

    async def judge(
        self, context: BaseContext, tree: str, *, scope: VerdictScope, before: Verdict | None = None
    ) -> Verdict:
        """Inspect a tree and run its checks; `before` is the verdict on the same changes before a merge."""
        depot, state = self._services.depot, self._journal.state
        changes = depot.diff(context.base.tree, tree)
        inspection = await context.inspector.inspect_all(changes)
        rejected = await asyncio.to_thread(find_rejected, depot, state, context.base.tree, tree)
        # Findings of the entry rules cannot be seen in the tree: they come from the attempt's verdict.
        known = before.findings if before else ()
        findings = tuple(dict.fromkeys((*known, *inspection.findings, *rejected)))
        return await context.validator.judge_candidate(
            tree, scope=scope, changes=changes, findings=findings, degraded=inspection.degraded
        )

    async def judge_again(
        self,
        base: Base,
        tree: str,
        *,
        scope: VerdictScope = "attempt",
        meanwhile: Meanwhile = wait_idly,
        added: Sequence[str] = (),
        without: Collection[str] = (),
    ) -> tuple[Verdict, BaseContext]:
        """Judge the tree of an earlier run or a task by the present gates and areas; the verdict is recorded.

        `added` and `without` are as in `prepare_base`.
        """
        request = self._journal.state.request
        assert request is not None
        context = await self.prepare_base(request, base, added=added, without=without)
        beside = asyncio.ensure_future(meanwhile(context.validator))
        try:
            verdict = await self.judge(context, tree, scope=scope)
        finally:
            beside.cancel()
            await asyncio.wait([beside])
        self._journal.record(VerdictGiven(verdict=verdict))
        return verdict, context


def measure_progress(verdict: Verdict) -> int:
    """Return how far the checks of a verdict got: found, able to load the tested code, able to run it, passed."""
    return sum(
        3
        if check.status == "passed"
        else 2
        if not could_not_run(check.reason)
        else 1
        if check.status != "missing"
        else 0
        for check in verdict.checks
    )
