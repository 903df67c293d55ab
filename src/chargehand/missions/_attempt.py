"""One run of an agent: workspace, sandbox, checkpoints on the way, inspection of what it left."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chargehand.agents.contract import Agent, AgentOutcome, Assignment, Endpoint, Resumed, Snippets
from chargehand.agents.roles import Role
from chargehand.checks.inspection import Inspection
from chargehand.core.attempt_events import (
    ActionJudged,
    AttemptResumed,
    AttemptStarted,
    BudgetAlert,
    CheckpointMade,
    CommandFinished,
)
from chargehand.core.codec import convert_to
from chargehand.core.errors import FencedError, InfrastructureError, SandboxDiedError, TierUnavailableError
from chargehand.core.events import Payload
from chargehand.core.records import Base, Change, Checkpoint, Finding, Reverted
from chargehand.core.state import AttemptState
from chargehand.missions._acknowledging import Acknowledging
from chargehand.missions._breaker import is_failure
from chargehand.missions._calls import called, lost_call
from chargehand.missions._capture import Capture
from chargehand.missions._context import Context, last_tree, replies_of
from chargehand.missions._control import Control
from chargehand.missions._disk import quota_of, run_within
from chargehand.missions._inspection import CriticalFoundError, Inspector, ended_by
from chargehand.missions._journal import Journal
from chargehand.missions._kept_calls import diverged, kept_calls
from chargehand.missions._places import AGENT, Ground, Places, attempt_purpose
from chargehand.missions._queue import Queue
from chargehand.missions._received import once
from chargehand.missions._services import Services
from chargehand.missions._watching import PACE, Watching
from chargehand.models.replay import Divergence
from chargehand.sandbox.contract import OnOutput, Sandbox
from chargehand.workspace.depot import Depot
from chargehand.workspace.scan import Scan
from chargehand.workspace.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What an agent left behind, after inspection: the tree to judge and how it differs from the base.

    `degraded` says what inspection did not see, "" where it saw everything. `report` is the artifact with what
    an agent had to say whose role changes nothing.
    """

    outcome: AgentOutcome
    tree: str
    changes: tuple[Change, ...]
    findings: tuple[Finding, ...]
    reverted: tuple[Reverted, ...]
    discarded: tuple[Finding, ...]
    degraded: str = ""
    report: str | None = None

    def record(self) -> dict[str, Any]:
        """Return it as JSON for the log; the agent's output is an artifact already."""
        return {
            "outcome": replace(self.outcome, output=b"", said=""),
            "tree": self.tree,
            "findings": self.findings,
            "reverted": self.reverted,
            "discarded": self.discarded,
            "degraded": self.degraded,
            "report": self.report,
        }

    @property
    def set_back(self) -> tuple[Reverted, ...]:
        """What inspection set back, by path or, where it discarded everything, by what was critical."""
        return self.reverted or tuple(Reverted(path=each.path, rule=each.rule) for each in self.discarded)

    @classmethod
    def recall(cls, record: dict[str, Any], *, base: Base, depot: Depot) -> Left:
        """Return what `record` made a document of; the changes are read from the depot."""
        return cls(
            outcome=convert_to(record["outcome"], AgentOutcome),
            tree=record["tree"],
            changes=depot.diff(base.tree, record["tree"]),
            findings=convert_to(record["findings"], tuple[Finding, ...]),
            reverted=convert_to(record["reverted"], tuple[Reverted, ...]),
            discarded=convert_to(record["discarded"], tuple[Finding, ...]),
            degraded=record.get("degraded", ""),
            report=record.get("report"),
        )


class AttemptRunner:
    """Runs the attempts of one mission."""

    def __init__(
        self,
        services: Services,
        journal: Journal,
        control: Control,
        *,
        ground: Ground,
        inspector: Inspector,
        places: Places,
        queue: Queue,
        on_output: OnOutput | None,
    ) -> None:
        self._services = services
        self._journal = journal
        self._control = control
        self._ground = ground
        self._inspector = inspector
        self._on_output = on_output
        self._places = places
        self._queue = queue

    async def run(self, agent: Agent, assignment: Assignment, *, tree: str) -> Left:
        """Let the agent work on `tree` and return what is left of its changes after inspection.

        An attempt whose worker was lost, or that waited for a person, goes on in its own workspace: at the tree
        of its agent's last recorded act, where that records any, else from the start.
        """
        lost = self._journal.state.attempt(assignment.number)
        if lost is not None:
            tree = last_tree(self._journal, assignment.number) or tree
        place = self._new_place(agent, assignment, tree) if lost is None else self._place_of(lost, tree)
        async with self._queue.turn("attempts"), place as (workspace, resumed):
            outcome, scan, critical = await self._work(agent, assignment, workspace, tree, resumed)
            left = await self._inspect(assignment.attempt, workspace, outcome, scan, critical)
            return replace(left, report=self._report(assignment.role, outcome))

    def _report(self, role: Role, outcome: AgentOutcome) -> str | None:
        """Keep what an agent said whose role changes nothing; `None` where that is nothing."""
        if role.writes or outcome.claim != "done" or not outcome.said.strip():
            return None
        keep = self._services.store.artifacts
        return keep.put(outcome.said.encode(errors="replace"), kind=role.output, mission=self._journal.mission)

    @contextlib.asynccontextmanager
    async def _new_place(
        self, agent: Agent, assignment: Assignment, tree: str
    ) -> AsyncIterator[tuple[Workspace, None]]:
        purpose = attempt_purpose(assignment.number)
        async with self._places.workspace(self._ground, purpose=purpose, tree=tree) as workspace:
            self._journal.note(
                AttemptStarted(
                    attempt=assignment.attempt,
                    number=assignment.number,
                    agent=agent.name,
                    workspace=workspace.id,
                    tree=tree,
                )
            )
            yield workspace, None

    @contextlib.asynccontextmanager
    async def _place_of(self, lost: AttemptState, tree: str) -> AsyncIterator[tuple[Workspace, Resumed]]:
        before = self._journal.state.worker_before
        quiet = before is None or self._services.workers.gone(before)
        again = self._places.workspace_again(lost.workspace, self._ground, tree=tree, quiet=quiet)
        async with again as (workspace, kept):
            self._note_unlogged(lost.id, workspace)
            state: Resumed = "kept" if kept else "lost"
            self._journal.note(
                AttemptResumed(attempt=lost.id, workspace=workspace.id, tree=tree, ignored_state=state)
            )
            yield workspace, state

    def _note_unlogged(self, attempt: str, workspace: Workspace) -> None:
        """Note the checkpoints that the depot has and the log has not: a crash came between, or setting back."""
        known = {checkpoint.commit for checkpoint in self._journal.state.checkpoints}
        unlogged = [found for found in workspace.checkpoints() if found.commit not in known]
        self._journal.note(*(CheckpointMade(attempt=attempt, checkpoint=each) for each in reversed(unlogged)))

    async def _work(
        self, agent: Agent, assignment: Assignment, workspace: Workspace, tree: str, resumed: Resumed | None
    ) -> tuple[AgentOutcome, Scan, tuple[Finding, ...]]:
        async with contextlib.AsyncExitStack() as stack:
            endpoint = await stack.enter_async_context(self._endpoint(agent, assignment))
            # Where nothing inside calls models, nothing inside can reach them.
            shown = None if endpoint is None or agent.checkpoints_itself else endpoint.socket
            out = self._places.egress(purpose=AGENT, attempt=assignment.attempt)
            egress = await stack.enter_async_context(out)
            place = self._places.sandbox(
                workspace,
                self._ground,
                purpose=AGENT,
                gateway=shown,
                egress=egress,
                attempt=assignment.attempt,
                read_only=not assignment.role.writes,
            )
            sandbox = await stack.enter_async_context(place)
            capture = self._capture(assignment.attempt, workspace, sandbox)
            context = Context(
                self._services,
                self._journal,
                self._control,
                attempt=assignment.attempt,
                number=assignment.number,
                workspace=workspace,
                sandbox=sandbox,
                tree=tree,
                endpoint=endpoint,
                on_output=capture.output,
                resumed=resumed,
                inspector=self._inspector,
                snippets=await self._snippets(agent, assignment.attempt),
            )
            async with self._watching(agent, assignment.attempt, workspace, sandbox) as watching:
                work = functools.partial(self._work_seen, agent, assignment, context, capture)
                outcome, critical = await self._run(work, workspace, watching)
                if endpoint is not None:
                    endpoint.revoke()
                if egress is not None:
                    await egress.close()
                await self._control.may_go_on()
                self._control.let_go(sandbox)  # frozen for good: a resume must not thaw it
                self._note_command(agent, sandbox, outcome)
                await sandbox.freeze()
                await watching.last()
            since = self._services.clock.monotonic()
            # A file mapped into memory changes without a new time stamp: the last look trusts none.
            scan = await asyncio.to_thread(workspace.scan, trust_cache=False)
            trigger = "timeout" if outcome.claim == "timed_out" else "end"
            await self._checkpoint(assignment.attempt, workspace, trigger, scan, since=since)
            return outcome, scan, critical

    def _capture(self, attempt: str, workspace: Workspace, sandbox: Sandbox) -> Capture:
        return Capture(
            self._services,
            self._journal,
            self._control,
            attempt=attempt,
            workspace=workspace,
            sandbox=sandbox,
            on_output=self._on_output,
        )

    @contextlib.asynccontextmanager
    async def _endpoint(self, agent: Agent, assignment: Assignment) -> AsyncIterator[Endpoint | None]:
        """Open the attempt's own gateway where its agent calls models; what a dead worker left open is booked."""
        if not agent.models:
            yield None
            return
        self._note_unlogged_calls(assignment.attempt)
        loop = asyncio.get_running_loop()

        def told(found: Divergence) -> None:
            loop.call_soon_threadsafe(self._tell, diverged(assignment.attempt, found))

        opened = self._services.open_gateway(
            agent.models,
            mission=self._journal.mission,
            attempt=assignment.attempt,
            number=assignment.number,
            first_turn=replies_of(self._journal.state, assignment.number) + 1,
            user=self._journal.state.user,
            kept=kept_calls(self._services.home, assignment.attempt),
            strict=not agent.checkpoints_itself,
            on_diverged=told,
            on_call=lambda record: self._tell(called(record)),
            on_alert=lambda spent: self._tell(
                BudgetAlert(limit=spent.limit, limit_usd=spent.limit_usd, spent_usd=spent.spent_usd)
            ),
        )
        async with opened as endpoint:
            yield endpoint

    async def _snippets(self, agent: Agent, attempt: str) -> Snippets | None:
        """Return what runs a native agent's snippets; where that cannot be had, the log says why."""
        opening = self._services.open_snippets
        if agent.kind != "native" or opening is None:
            return None
        try:
            return await opening()
        except (TierUnavailableError, InfrastructureError) as error:
            missing = ActionJudged(
                attempt=attempt,
                kind="snippet",
                text="the tool snippet",
                effect="deny",
                rule=error.code,
                reason=f"it is not offered: {error.message}",
                rules=self._services.rules.digest,
            )
            self._journal.note(missing)
            return None

    def _note_unlogged_calls(self, attempt: str) -> None:
        """Note the calls that the books have and the log has not: whoever made them came no further."""
        spending = self._services.store.spending
        spending.abandon(attempt)
        unlogged = [booked for booked in spending.booked(attempt) if booked.call not in self._journal.state.calls]
        self._journal.note(*(lost_call(attempt, booked) for booked in unlogged))

    def _tell(self, payload: Payload) -> None:
        with contextlib.suppress(FencedError):  # whoever took the mission over finds the call in the ledger
            self._journal.note(payload)

    async def _run(
        self, work: Callable[[], Coroutine[Any, Any, AgentOutcome]], workspace: Workspace, watching: Watching
    ) -> tuple[AgentOutcome, tuple[Finding, ...]]:
        """Let the agent work to its end, or until it writes too much, or what is critical (returned too)."""
        began = self._services.clock.monotonic()
        try:
            async with ended_by(watching.follow()):
                quota = await quota_of(workspace)
                return await run_within(quota, work(), clock=self._services.clock), ()
        except CriticalFoundError as error:
            seconds = self._services.clock.monotonic() - began
            outcome = AgentOutcome(
                claim="failed", reason=error.message, output=b"", seconds=seconds, code=error.code
            )
            return outcome, error.findings

    async def _work_seen(
        self, agent: Agent, assignment: Assignment, context: Context, capture: Capture
    ) -> AgentOutcome:
        """Let the agent work; what was going on where its time is up, or what it runs on fails, is kept."""
        try:
            async with capture.watching(assignment.seconds), ended_by(self._messages(agent, assignment).follow()):
                if not agent.abilities.acknowledges:
                    context.mark_delivered(len(assignment.messages), acknowledged=False)
                outcome = once(await agent.run(assignment, context), self._journal.state)
        except SandboxDiedError:
            await capture.keep("sandbox_died")
            raise
        if outcome.claim == "timed_out":
            await capture.keep("timeout")
        elif outcome.claim == "failed" and is_failure(outcome.code):
            await capture.keep("failed")
        return outcome

    def _messages(self, agent: Agent, assignment: Assignment) -> Acknowledging:
        return Acknowledging(
            self._journal,
            self._control,
            attempt=assignment.attempt,
            tree=assignment.tree or self._ground.base.tree,
            able=agent.abilities.acknowledges,
            before=len(assignment.messages),
        )

    def _watching(self, agent: Agent, attempt: str, workspace: Workspace, sandbox: Sandbox) -> Watching:
        """Watch what an agent does; one that nobody drives gets checkpoints by what is seen."""
        keep = None if agent.checkpoints_itself else functools.partial(self._keep, attempt, workspace)
        return Watching(
            self._services.depot,
            self._journal,
            self._control,
            clock=self._services.clock,
            attempt=attempt,
            workspace=workspace,
            sandbox=sandbox,
            keep=keep,
            kept=self._inspector.watch,
            pace=PACE,
        )

    async def _keep(self, attempt: str, workspace: Workspace, trigger: str) -> Scan:
        scan = await asyncio.to_thread(workspace.scan)
        await self._checkpoint(attempt, workspace, trigger, scan)
        return scan

    def _note_command(self, agent: Agent, sandbox: Sandbox, outcome: AgentOutcome) -> None:
        if outcome.exit_code is None and agent.checkpoints_itself:  # its steps tell all of it
            return
        keep = self._services.store.artifacts
        artifact = (
            keep.put(outcome.output, kind="agent", mission=self._journal.mission) if outcome.output else None
        )
        self._journal.note(
            CommandFinished(
                sandbox=sandbox.id,
                argv=(agent.name,),
                exit_code=-1 if outcome.exit_code is None else outcome.exit_code,
                seconds=outcome.seconds,
                timed_out=outcome.claim == "timed_out",
                truncated=outcome.truncated,
                artifact=artifact,
                limit=outcome.limit,
            )
        )

    async def _checkpoint(
        self,
        attempt: str,
        workspace: Workspace,
        trigger: str,
        scan: Scan | None = None,
        *,
        since: float | None = None,
    ) -> Checkpoint:
        clock = self._services.clock
        since = clock.monotonic() if since is None else since
        made = await asyncio.to_thread(workspace.checkpoint, trigger, scan=scan)
        if made.changed:
            self._note_checkpoint(attempt, made, seconds=clock.monotonic() - since)
        return made

    def _note_checkpoint(self, attempt: str, made: Checkpoint, *, seconds: float | None = None) -> None:
        if all(made.commit != known.commit for known in self._journal.state.checkpoints):
            self._journal.note(CheckpointMade(attempt=attempt, checkpoint=made, seconds=seconds))

    async def _inspect(
        self,
        attempt: str,
        workspace: Workspace,
        outcome: AgentOutcome,
        scan: Scan,
        critical: tuple[Finding, ...],
    ) -> Left:
        """Act on what inspection finds: critical, on the way too, discards everything, error sets a path back."""
        seen = await self._inspector.full(scan.changes)
        findings = tuple(dict.fromkeys((*critical, *scan.findings, *seen.findings)))
        critical = tuple(found for found in findings if found.severity == "critical")
        if critical:
            made = await asyncio.to_thread(workspace.reset, self._ground.base.tree, "discarded")
            self._note_checkpoint(attempt, made)
            return self._left(outcome, self._ground.base.tree, (), findings, reverted=(), discarded=critical)
        wrong = tuple(found for found in findings if found.severity == "error")
        if not wrong:
            return self._left(outcome, scan.tree, scan.changes, findings, degraded=_unseen(seen))
        return await self._revert(attempt, workspace, outcome, wrong)

    async def _revert(
        self, attempt: str, workspace: Workspace, outcome: AgentOutcome, wrong: Sequence[Finding]
    ) -> Left:
        paths = tuple(dict.fromkeys(found.path for found in wrong))
        made = await asyncio.to_thread(workspace.reset_paths, paths, self._ground.base.tree, "reverted")
        self._note_checkpoint(attempt, made)
        scan = await asyncio.to_thread(workspace.scan)
        seen = await self._inspector.full(scan.changes)
        rest = (*scan.findings, *seen.findings)
        reverted = tuple(Reverted(path=found.path, rule=found.rule) for found in wrong)
        return self._left(outcome, scan.tree, scan.changes, rest, reverted=reverted, degraded=_unseen(seen))

    @staticmethod
    def _left(
        outcome: AgentOutcome,
        tree: str,
        changes: Sequence[Change],
        findings: Sequence[Finding],
        *,
        reverted: tuple[Reverted, ...] = (),
        discarded: tuple[Finding, ...] = (),
        degraded: str = "",
    ) -> Left:
        return Left(
            outcome=outcome,
            tree=tree,
            changes=tuple(changes),
            findings=tuple(findings),
            reverted=reverted,
            discarded=discarded,
            degraded=degraded,
        )


def _unseen(seen: Inspection) -> str:
    return seen.reason if seen.degraded else ""
