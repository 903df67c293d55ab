"""Judges one exact tree on a base: prepares environment and checks of the base, then inspects and checks the tree.

The flow of a single mission judges its attempts by it, a coordinator what it merges, a person's promotion what an
earlier run left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from msgspec import Struct

from chargehand.core.mission_events import VerdictGiven
from chargehand.core.records import Base, MissionRequest, Verdict, VerdictScope
from chargehand.missions.attempt.inspection import Inspector
from chargehand.missions.control import Control
from chargehand.missions.journal import Journal
from chargehand.missions.promotion.promoter import Fault, no_fault
from chargehand.missions.sandboxes.environment import base_environment, needed_setup
from chargehand.missions.sandboxes.provisioning import SandboxProvisioner
from chargehand.missions.sandboxes.slots import SlotQueue
from chargehand.missions.services import Services
from chargehand.missions.verdict.ahead import RunsAhead
from chargehand.missions.verdict.gates import Gates, areas_of, find_gates
from chargehand.missions.verdict.validation import Validator
from chargehand.sandbox.contract import OnOutput

# Called with what is about to judge a tree, before it begins.
Meanwhile = Callable[[Validator], Awaitable[None]]


async def wait_idly(validator: Validator) -> None:
    """Do nothing while a tree is judged."""


class BaseContext(Struct, frozen=True, kw_only=True):
    """A base commit with what inspects trees on it and runs their checks."""

    base: Base
    validator: Validator
    inspector: Inspector


class TreeJudge:
    """Judges trees for one mission; `ahead` holds the checks that run before their tree's turn.

    What the checks print goes to `on_output` as it comes. `fault` is called at named points.
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

    async def prepare_base(self, request: MissionRequest, base: Base) -> BaseContext:
        """Return what judges trees on a base, once it is known how the checks end on the base itself."""
        configured, gates = self._services.config.project.setup, find_gates(self._services, base, request)
        validator = await self._open_validator(base, configured, gates)
        self.fault("environment")
        verdict = await validator.judge_base()
        tried: list[str] = []
        # What can be installed may still leave out what the tests are run by: then the next one is tried.
        look = partial(needed_setup, self._services, self._journal, provisioner=self.provisioner, tried=tried)
        while configured is None and (detected := await look(validator.environment, verdict)):
            tried.append(detected)
            validator = await self._open_validator(base, detected, gates)
            verdict = await validator.judge_base()
        areas = areas_of(self._services, request, gates, validator.environment)
        inspector = Inspector(self._services, base, areas, seconds_left=self._control.seconds_left)
        return BaseContext(base=base, validator=validator, inspector=inspector)

    async def _open_validator(self, base: Base, setup: str | None, gates: Gates) -> Validator:
        """Return what runs checks on a base, in the environment that `setup` makes in the checks' directory."""
        services, journal, provisioner = self._services, self._journal, self.provisioner
        environment = await base_environment(
            services, journal, base, setup=setup, directory=gates.plan.directory, provisioner=provisioner
        )
        return Validator(
            services,
            journal,
            environment=environment,
            gates=gates,
            provisioner=provisioner,
            queue=self.queue,
            on_output=self._on_output,
            ahead=self.ahead,
        )

    async def judge(
        self, context: BaseContext, tree: str, *, scope: VerdictScope, before: Verdict | None = None
    ) -> Verdict:
        """Inspect a tree and run its checks; `before` is the verdict on the same changes before a merge."""
        changes = self._services.depot.diff(context.base.tree, tree)
        inspection = await context.inspector.inspect_all(changes)
        # The entry rules' findings are not in the tree any more: they come with the attempt's verdict.
        findings = tuple(dict.fromkeys((*(before.findings if before else ()), *inspection.findings)))
        return await context.validator.judge_candidate(
            tree, scope=scope, changes=changes, findings=findings, degraded=inspection.degraded
        )

    async def judge_again(
        self, base: Base, tree: str, *, scope: VerdictScope = "attempt", meanwhile: Meanwhile = wait_idly
    ) -> tuple[Verdict, BaseContext]:
        """Judge a tree that an earlier run or a task left, by today's gates and areas; the verdict is recorded."""
        assert self._journal.state.request is not None
        context = await self.prepare_base(self._journal.state.request, base)
        await meanwhile(context.validator)
        verdict = await self.judge(context, tree, scope=scope)
        self._journal.record(VerdictGiven(verdict=verdict))
        return verdict, context
