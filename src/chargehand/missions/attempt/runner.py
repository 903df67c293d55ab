"""One run of an agent: workspace, sandbox, intermediate checkpoints, inspection of the result.

Read `AttemptRunner.run` first. The order in it matters: the agent's access to models and hosts is closed and its
sandbox frozen before the last scan, so the inspected tree is the agent's final tree.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from chargehand.agents.contract import (
    ENDS_WITHOUT_A_WORD,
    Agent,
    AgentOutcome,
    Assignment,
    Endpoint,
    Resumed,
    Snippets,
)
from chargehand.core.attempt_events import (
    ActionJudged,
    AttemptResumed,
    AttemptStarted,
    BudgetAlert,
    CheckpointMade,
    CommandFinished,
    ReplayDiverged,
)
from chargehand.core.errors import (
    ChargehandError,
    FencedError,
    InfrastructureError,
    SandboxDiedError,
    TierUnavailableError,
)
from chargehand.core.events import Payload
from chargehand.core.ports import CodeMap
from chargehand.core.records import Checkpoint, Finding, Reverted
from chargehand.core.redaction import log_fields
from chargehand.core.state import PAUSED, STOPPED, AttemptState
from chargehand.missions._messages import reject_repeated_message
from chargehand.missions.attempt.admission import counts_as_failure
from chargehand.missions.attempt.context import RecordedContext, find_last_tree
from chargehand.missions.attempt.inspection import CriticalFoundError, Inspector, scan_workspace, stopped_by
from chargehand.missions.attempt.leftovers import find_stopped_tree, keep_workspace
from chargehand.missions.attempt.log import call_event, replies_path, secret_events, settle_lost_calls
from chargehand.missions.attempt.result import AttemptResult
from chargehand.missions.attempt.supervision import (
    CriticalMessageGuard,
    FailureSnapshot,
    open_quota,
    run_within_quota,
)
from chargehand.missions.attempt.watching import PACE, WorkspaceWatch
from chargehand.missions.control import Control, complete
from chargehand.missions.journal import AGENT, Journal
from chargehand.missions.sandboxes.provisioning import (
    BaseEnvironment,
    SandboxProvisioner,
    SandboxRequest,
    attempt_purpose,
)
from chargehand.missions.sandboxes.slots import SlotQueue
from chargehand.missions.services import Egress, EndpointRequest, Services
from chargehand.missions.transcript import count_replies
from chargehand.models.contract import ToolService
from chargehand.sandbox.contract import OnOutput, Sandbox
from chargehand.workspace.scan import Scan
from chargehand.workspace.workspace import Workspace

if TYPE_CHECKING:  # replay loads every dialect, which a mission without a recording never needs
    from chargehand.models.request_matching import Divergence

_LOG = logging.getLogger("chargehand.missions")


@dataclass(eq=False, slots=True)
class AttemptRunner:
    """Runs the attempts of one mission on one base."""

    services: Services
    journal: Journal
    control: Control
    _: KW_ONLY
    environment: BaseEnvironment
    inspector: Inspector
    provisioner: SandboxProvisioner
    queue: SlotQueue
    on_output: OnOutput | None

    async def run(self, agent: Agent, assignment: Assignment, *, tree: str) -> AttemptResult:
        """Let the agent work on `tree` and return its changes that pass inspection.

        An attempt whose worker was lost, or that waited for a person, resumes in its own workspace: at the tree of
        its agent's last recorded act if there is one, otherwise from the start.
        """
        lost = self.journal.state.attempt(assignment.number)
        if lost is not None:
            tree = find_last_tree(self.journal, assignment.number) or self._resume_tree(agent, lost) or tree
            assignment = replace(assignment, tree=tree)
        opened = self._open_workspace(agent, assignment, lost, tree)
        # The slot comes first: a mission that waits for one holds neither disk nor memory.
        with log_fields(attempt=assignment.attempt):
            _LOG.info("attempt %d %s", assignment.number, "begins" if lost is None else "goes on")
            async with self.queue.turn("attempts"), opened as (workspace, resumed):
                try:
                    outcome, scan, critical = await self._run_sandboxed(
                        agent, assignment, workspace, tree, resumed
                    )
                except BaseException:
                    await self._keep_interrupted(agent, assignment.attempt, workspace, STOPPED)
                    raise
                result = await self._inspect(assignment.attempt, workspace, outcome, scan, critical)
        outcome, writes = result.outcome, assignment.role.writes
        left = result.tree != self.environment.base.tree if writes else bool(outcome.said.strip())
        if left and outcome.code in ENDS_WITHOUT_A_WORD:
            outcome = replace(outcome, claim="done")
            result = replace(result, outcome=outcome)
        if assignment.role.writes or outcome.claim != "done" or not outcome.said.strip():
            return result
        report = outcome.said.encode(errors="replace")
        artifacts, kind = self.services.store.artifacts, assignment.role.output
        return replace(result, report=artifacts.put(report, kind=kind, mission=self.journal.mission))

    def _resume_tree(self, agent: Agent, lost: AttemptState) -> str | None:
        # The recorded steps of a driven agent fit only the tree of its last act.
        return None if agent.checkpoints_itself else find_stopped_tree(self.journal.state, lost)

    async def _keep_interrupted(self, agent: Agent, attempt: str, workspace: Workspace, trigger: str) -> None:
        """Checkpoint an interrupted attempt's changes; no process may run in its sandbox."""
        if self.journal.fenced or self.control.stopped == "lost":  # another worker now owns the workspace
            return

        async def keep() -> None:
            # The trigger marks the tree from which an agent without recorded steps resumes.
            mark = not agent.checkpoints_itself
            made = await asyncio.to_thread(keep_workspace, workspace, trigger, start=workspace.start, mark=mark)
            if made is not None:
                self._record_checkpoint(attempt, made)

        # The interrupting error is raised; a failure to checkpoint (a full disk, say) matters less.
        with contextlib.suppress(ChargehandError, OSError):
            await complete(keep())

    @contextlib.asynccontextmanager
    async def _open_workspace(
        self, agent: Agent, assignment: Assignment, lost: AttemptState | None, tree: str
    ) -> AsyncIterator[tuple[Workspace, Resumed | None]]:
        """Open a new workspace or that of a lost attempt, and record that the attempt starts or resumes there."""
        if lost is None:
            purpose = attempt_purpose(assignment.number)
            async with self.provisioner.workspace(self.environment, purpose=purpose, tree=tree) as workspace:
                self.journal.record(
                    AttemptStarted(
                        attempt=assignment.attempt,
                        number=assignment.number,
                        agent=agent.name,
                        workspace=workspace.id,
                        tree=tree,
                    )
                )
                yield workspace, None
            return
        before = self.journal.state.worker_before
        # An abandoned worker whose processes may still be alive could still write there.
        idle = before is None or self.services.workers.gone(before)
        again = self.provisioner.resume_workspace(lost.workspace, self.environment, tree=tree, idle=idle)
        async with again as (workspace, kept):
            # A crash may have come between a checkpoint in the depot and its line in the log.
            known = {checkpoint.commit for checkpoint in self.journal.state.checkpoints}
            unlogged = [found for found in workspace.checkpoints() if found.commit not in known]
            self.journal.record(*(CheckpointMade(attempt=lost.id, checkpoint=each) for each in reversed(unlogged)))
            state: Resumed = "kept" if kept else "lost"
            self.journal.record(
                AttemptResumed(attempt=lost.id, workspace=workspace.id, tree=tree, ignored_state=state)
            )
            yield workspace, state

    async def _run_sandboxed(
        self, agent: Agent, assignment: Assignment, workspace: Workspace, tree: str, resumed: Resumed | None
    ) -> tuple[AgentOutcome, Scan, tuple[Finding, ...]]:
        """Run the agent in its own sandbox; return its outcome, the last scan, and critical findings."""
        attempt = assignment.attempt
        own = (self.services, self.journal, self.control)
        saved = _SavedTree(self.journal, tree)
        async with contextlib.AsyncExitStack() as stack:
            code_map, tools = self._open_map(agent, assignment, saved, stack)
            endpoint = await stack.enter_async_context(self._open_endpoint(agent, assignment, tools))
            # If the models are called outside the sandbox, nothing inside can reach them.
            gateway = None if endpoint is None or agent.checkpoints_itself else endpoint.socket
            egress = await stack.enter_async_context(self.provisioner.egress(purpose=AGENT, attempt=attempt))
            sandbox = await stack.enter_async_context(
                self.provisioner.sandbox(
                    workspace,
                    self.environment,
                    SandboxRequest(
                        purpose=AGENT,
                        gateway=gateway,
                        egress=egress,
                        attempt=attempt,
                        read_only=not assignment.role.writes,
                        directory=assignment.directory,
                    ),
                )
            )
            snapshot = FailureSnapshot(
                *own, attempt=attempt, workspace=workspace, sandbox=sandbox, next_output=self.on_output
            )
            context = RecordedContext(
                *own,
                attempt=attempt,
                number=assignment.number,
                workspace=workspace,
                sandbox=sandbox,
                tree=tree,
                endpoint=endpoint,
                on_output=snapshot.on_output,
                resumed=resumed,
                inspector=self.inspector,
                snippets=await self._open_snippets(agent, attempt),
                code_map=code_map,
            )
            keep = functools.partial(self._keep_interrupted, agent, attempt, workspace, PAUSED)
            async with self._watch(agent, attempt, workspace, sandbox) as watch:
                saved.watch = watch
                with self.control.keeping(keep):
                    outcome, critical = await self._run_agent(agent, assignment, context, snapshot, watch)
                await _cut_off(endpoint, egress)
                await self.control.may_go_on()
                self.control.detach(sandbox)  # frozen permanently: a resume must not thaw it
                self._record_command(agent, sandbox, outcome)
                await sandbox.freeze()
                await watch.finish()
            since = self.services.clock.monotonic()
            # A file mapped into memory changes without a new time stamp: the last scan does not trust time stamps.
            scan = await scan_workspace(workspace, trust_cache=False)
            trigger = "timeout" if outcome.claim == "timed_out" else "end"
            await self._checkpoint(attempt, workspace, trigger, scan, since=since)
            return outcome, scan, critical

    @contextlib.asynccontextmanager
    async def _open_endpoint(
        self, agent: Agent, assignment: Assignment, tools: ToolService | None
    ) -> AsyncIterator[Endpoint | None]:
        """Open the attempt's own gateway if its agent calls models."""
        if not agent.models:
            yield None
            return
        attempt = assignment.attempt
        self.journal.record(*settle_lost_calls(self.services.store, self.journal.state, attempt))
        loop = asyncio.get_running_loop()

        def record(*payloads: Payload) -> None:
            with contextlib.suppress(FencedError):  # the new worker finds the call in the ledger
                self.journal.record(*payloads)

        def record_divergence(found: Divergence) -> None:
            event = ReplayDiverged(
                attempt=attempt,
                turn=found.turn,
                pointer=found.pointer,
                recorded=found.recorded,
                sent=found.sent,
            )
            # The gateway calls from its own thread; the journal belongs to the event loop.
            loop.call_soon_threadsafe(record, event)

        wanted = EndpointRequest(
            models=agent.models,
            mission=self.journal.mission,
            attempt=attempt,
            number=assignment.number,
            first_turn=count_replies(self.journal.state, assignment.number) + 1,
            user=self.journal.state.user,
            payer=self.journal.state.parent,
            task=self.journal.state.task,
            kept=replies_path(self.services.home, attempt),
            strict=not agent.checkpoints_itself,
            on_diverged=record_divergence,
            tools=tools,
            role=assignment.role.name,
            on_secret=lambda access: record(
                *secret_events(self.services.store, self.journal.mission, assignment, access)
            ),
            on_call=lambda call: record(call_event(call)),
            on_alert=lambda spent: record(
                BudgetAlert(limit=spent.limit, limit_usd=spent.limit_usd, spent_usd=spent.spent_usd)
            ),
        )
        async with self.services.open_gateway(wanted) as endpoint:
            yield endpoint

    def _open_map(
        self, agent: Agent, assignment: Assignment, saved: _SavedTree, stack: contextlib.AsyncExitStack
    ) -> tuple[CodeMap | None, ToolService | None]:
        """Return the repository map for a native agent, or its queries for another agent that calls models.

        They are open as long as the stack.
        """
        opening = self.services.open_map
        if not agent.models or opening is None:
            return None, None
        code_map = stack.enter_context(opening())
        if agent.kind == "native":
            return code_map, None
        # Imported here: it loads the tools of native agents, of which most other agents need nothing.
        from chargehand.agents.map_service import MapService

        return None, MapService(code_map, saved, assignment.role, directory=assignment.directory)

    async def _open_snippets(self, agent: Agent, attempt: str) -> Snippets | None:
        """Return the runner of a native agent's snippets; if it is unavailable, log the reason."""
        opening = self.services.open_snippets
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
                reason=f"the tool is not available: {error.message}",
                rules=self.services.rules.digest,
            )
            self.journal.record(missing)
            return None

    def _watch(self, agent: Agent, attempt: str, workspace: Workspace, sandbox: Sandbox) -> WorkspaceWatch:
        async def keep(trigger: str) -> Scan:
            scan = await scan_workspace(workspace)
            await self._checkpoint(attempt, workspace, trigger, scan)
            return scan

        return WorkspaceWatch(
            self.services.depot,
            self.journal,
            self.control,
            clock=self.services.clock,
            attempt=attempt,
            workspace=workspace,
            sandbox=sandbox,
            # A driven agent has a checkpoint after each act; any other gets them from observed changes.
            keep=None if agent.checkpoints_itself else keep,
            inspect=self.inspector.inspect_scan,
            pace=PACE,
        )

    async def _run_agent(
        self,
        agent: Agent,
        assignment: Assignment,
        context: RecordedContext,
        snapshot: FailureSnapshot,
        watch: WorkspaceWatch,
    ) -> tuple[AgentOutcome, tuple[Finding, ...]]:
        """Let the agent work until it ends, exceeds its quota, or makes a critical change (returned too)."""
        began = self.services.clock.monotonic()
        work = functools.partial(self._run_supervised, agent, assignment, context, snapshot)
        try:
            async with stopped_by(watch.follow()):
                quota = await open_quota(snapshot.workspace)
                return await run_within_quota(quota, work(), clock=self.services.clock), ()
        except CriticalFoundError as error:
            seconds = self.services.clock.monotonic() - began
            outcome = AgentOutcome(
                claim="failed", reason=error.message, output=b"", seconds=seconds, code=error.code
            )
            return outcome, error.findings

    async def _run_supervised(
        self, agent: Agent, assignment: Assignment, context: RecordedContext, snapshot: FailureSnapshot
    ) -> AgentOutcome:
        """Let the agent work; after a timeout or a failure of its sandbox or machinery, store a snapshot."""
        guard = CriticalMessageGuard(
            self.journal,
            self.control,
            attempt=assignment.attempt,
            tree=assignment.tree or self.environment.base.tree,
            able=agent.abilities.acknowledges,
            before=len(assignment.messages),
        )
        try:
            async with snapshot.before_timeout(assignment.seconds), stopped_by(guard.follow()):
                if not agent.abilities.acknowledges:
                    context.mark_delivered(len(assignment.messages), acknowledged=False)
                outcome = reject_repeated_message(await agent.run(assignment, context), self.journal.state)
                # Another vendor's program reports a failed model call in its own words and with its own exit code,
                # possibly 0.
                fault = context.endpoint.meter().fault if context.endpoint is not None else ""
                reason = f"{outcome.reason}; its last model call failed: {fault}"
                if fault and outcome.claim == "done" and not outcome.code:
                    outcome = replace(outcome, claim="failed", code="calls_failed", reason=reason)
                elif fault and outcome.code == "agent_failed":
                    outcome = replace(outcome, code="model_failed", reason=reason)
        except SandboxDiedError:
            await snapshot.store("sandbox_died")
            raise
        if outcome.claim == "timed_out":
            await snapshot.store("timeout")
        elif outcome.claim == "failed" and counts_as_failure(outcome.code):
            await snapshot.store("failed")
        return outcome

    def _record_command(self, agent: Agent, sandbox: Sandbox, outcome: AgentOutcome) -> None:
        if outcome.exit_code is None and agent.checkpoints_itself:  # its steps contain all of it
            return
        # Stored before the event that names it: the log never names a missing artifact.
        artifacts, artifact = self.services.store.artifacts, None
        if outcome.output:
            artifact = artifacts.put(outcome.output, kind="agent", mission=self.journal.mission)
        self.journal.record(
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
        self, attempt: str, workspace: Workspace, trigger: str, scan: Scan, *, since: float | None = None
    ) -> None:
        clock = self.services.clock
        since = clock.monotonic() if since is None else since
        made = await asyncio.to_thread(workspace.checkpoint, trigger, scan=scan)
        if made.changed:
            self._record_checkpoint(attempt, made, seconds=clock.monotonic() - since)

    def _record_checkpoint(self, attempt: str, made: Checkpoint, *, seconds: float | None = None) -> None:
        if all(made.commit != known.commit for known in self.journal.state.checkpoints):
            self.journal.record(CheckpointMade(attempt=attempt, checkpoint=made, seconds=seconds))

    async def _inspect(
        self,
        attempt: str,
        workspace: Workspace,
        outcome: AgentOutcome,
        scan: Scan,
        critical: tuple[Finding, ...],
    ) -> AttemptResult:
        """Act on inspection's findings: a critical one, also from earlier, discards everything; an error reverts a
        path.
        """
        base_tree = self.environment.base.tree
        inspection = await self.inspector.inspect_all(scan.changes)
        # A finding of an earlier quick inspection appears here again: it is listed once.
        findings = tuple(dict.fromkeys((*critical, *scan.findings, *inspection.findings)))
        critical = tuple(found for found in findings if found.severity == "critical")
        if critical:
            made = await asyncio.to_thread(workspace.reset, base_tree, "discarded")
            self._record_checkpoint(attempt, made)
            return AttemptResult(
                outcome=outcome, tree=base_tree, changes=(), findings=findings, discarded=critical
            )
        wrong: Sequence[Finding] = tuple(found for found in findings if found.severity == "error")
        reverted: tuple[Reverted, ...] = ()
        if wrong:
            paths = tuple(dict.fromkeys(found.path for found in wrong))
            made = await asyncio.to_thread(workspace.reset_paths, paths, base_tree, "reverted")
            self._record_checkpoint(attempt, made)
            reverted = tuple(Reverted(path=found.path, rule=found.rule) for found in wrong)
            # Inspected again without them: the state after a revert may break another rule.
            scan = await scan_workspace(workspace)
            inspection = await self.inspector.inspect_all(scan.changes)
            findings = (*scan.findings, *inspection.findings)
        return AttemptResult(
            outcome=outcome,
            tree=scan.tree,
            changes=tuple(scan.changes),
            findings=findings,
            reverted=reverted,
            degraded=inspection.reason if inspection.degraded else "",
        )


class _SavedTree:
    """Saves the workspace of an attempt, which began at `tree`, and returns its tree."""

    def __init__(self, journal: Journal, tree: str) -> None:
        self.watch: WorkspaceWatch | None = None
        self._journal = journal
        self._tree = tree
        self._before = len(journal.state.checkpoints)

    async def __call__(self) -> str:
        if self.watch is not None:
            await self.watch.save()
        made = self._journal.state.checkpoints[self._before :]
        return made[-1].tree if made else self._tree


async def _cut_off(endpoint: Endpoint | None, egress: Egress | None) -> None:
    """Take models and hosts away: nothing that still runs inside may cost money or reach a host."""
    if endpoint is not None:
        endpoint.revoke()
    if egress is not None:
        await egress.close()
