"""Actions: manual git and `exec` as records with an id, a derived status, and live output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import structs
from msgspec.structs import replace

from chargehand.app.action.work import WORK, ActionContext, ActionResult, ApprovalNeededError
from chargehand.app.sandbox_commands import ExecRequest
from chargehand.configuration.locations import load_user_file, user_config_path
from chargehand.configuration.records import OptionValue
from chargehand.configuration.resolve import resolve
from chargehand.core.actions import (
    ACTION_ENDED,
    ACTION_TYPES,
    ActionAnswered,
    ActionAsked,
    ActionBegan,
    ActionCreated,
    ActionEnd,
    ActionFinished,
    ActionKind,
    ActionQueued,
    ActionState,
    ActionStatus,
    fold_action,
)
from chargehand.core.config import ActionsConfig
from chargehand.core.errors import ChargehandError, RefusedError
from chargehand.core.events import Payload, decode, encode_json
from chargehand.core.mission_events import MergeConflicted
from chargehand.core.records import Reason
from chargehand.core.redaction import Redactor
from chargehand.durable.actions import ActionLocation, ActionLock, ActionRegistry, OutputLine
from chargehand.durable.admission import ConcurrencyLimit
from chargehand.durable.supervisor import OutputStream
from chargehand.reports.documents import Document
from chargehand.workspace.merge import MergeConflictError

if TYPE_CHECKING:
    from chargehand.app.composition import App

OnOutputLine = Callable[[OutputLine], None]
# An action and its followers are different processes, which communicate by files: each polls them.
_POLL_SECONDS = 0.1
# The limit for preparing a sandbox, before the command's own time begins.
_PREPARING_SECONDS = 600.0
_RESULT_BYTES = 6000
_REDACTOR = Redactor()
_CANCEL_SECONDS = 15.0
_CANCELLED = Reason(code="cancelled", message="a person cancelled the action")


class ActionDocument(Document, frozen=True):
    """One action: its arguments, status with reasons, and result.

    Times are ISO 8601 in UTC, "" for not yet.
    """

    action: str
    kind: ActionKind | None
    status: ActionStatus
    project: str
    mission: str | None
    arguments: dict[str, Any]
    limit_seconds: float
    identity: str
    detached: bool
    created: str
    began: str
    finished: str
    question: ActionAsked | None
    answer: bool | None
    exit_code: int | None
    seconds: float | None
    reasons: tuple[Reason, ...]
    result: dict[str, Any]
    lines: int | None
    truncated: bool


class QueuedActionDocument(Document, frozen=True):
    """The first line printed by a command that runs as an action."""

    action: str
    status: Literal["queued"]


class ActionLineDocument(Document, frozen=True):
    """One line of an action's output."""

    action: str
    time: str
    stream: str
    line: str


class ActionOutputPage(Document, frozen=True):
    """An action's output from an offset on; `next` is the offset to continue at, `status` the action's status."""

    action: str
    status: str
    lines: list[ActionLineDocument]
    next: int


def action_document(state: ActionState) -> ActionDocument:
    """Return an action as a document."""
    known = {field.name: getattr(state, field.name) for field in structs.fields(state)}
    return ActionDocument(action=known.pop("id"), **known)


class Actions:
    """The actions of one state directory: creates, runs, reads and cancels them."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.places = ActionRegistry(app.home)

    def config(self, limit: str | None = None) -> ActionsConfig:
        """Return the limits of actions, from the user's own configuration alone; `limit` is from `--time`."""
        app = self._app
        options = {"actions.time": OptionValue(value=limit, name="--time")}
        user = load_user_file(user_config_path(app.environ))
        return resolve(user=user, environ=app.environ, options=options).config.actions

    def create(
        self,
        kind: ActionKind,
        arguments: dict[str, Any],
        *,
        project: str,
        mission: str | None,
        seconds: float,
        detached: bool,
    ) -> ActionLock:
        """Record a new action and lock it; it is `queued` until it runs."""
        app = self._app
        log = mission or project
        # Taken before the append: readers begin after this line, and must see the action's first one.
        after = app.store.log.last_seq(log)
        held = self.places.make()
        created = ActionCreated(
            action=held.action,
            kind=kind,
            project=project,
            mission=mission,
            arguments=arguments,
            seconds=seconds,
            identity=app.identity(),
            detached=detached,
        )
        app.store.log.append(log, created, durable=True)
        # After the log, so that every listed action has its first line. A crash before this leaves a directory
        # without a record, which is cleaned up later.
        self.places.put(ActionLocation(action=held.action, log=log, after=after))
        return held

    def state(self, action: str) -> ActionState:
        """Return an action's state, derived from the log and its lock. Raises `NotFoundError`."""
        place = self.places.get(action)
        # Read the lock first: if the action ends in between, all its lines are in the log by then.
        live = self.places.live(action)
        lines = self._app.store.log.read(place.log, after=place.after, types=ACTION_TYPES)
        return fold_action(action, lines, live=live)

    def all(self, *, running: bool = False) -> list[ActionState]:
        """Return the actions still stored, the oldest first; with `running` only those that have not ended."""
        states = [self.state(action) for action in self.places.ids()]
        return [state for state in states if not (running and state.status in ACTION_ENDED)]

    def begin(
        self,
        kind: ActionKind,
        arguments: dict[str, Any],
        *,
        mission: str | None = None,
        project: str | None = None,
        limit: str | None = None,
        detached: bool = False,
    ) -> ActionLock:
        """Record an action on a mission (by its id) or else a project, with the time `limit` (`actions.time`)."""
        if mission is not None:
            project = self._app.store.log.get(mission).project
        assert project is not None
        seconds = self.config(limit).time
        return self.create(kind, arguments, project=project, mission=mission, seconds=seconds, detached=detached)

    def begin_exec(self, request: ExecRequest) -> ActionLock:
        """Record a command to run in a sandbox, detached from the caller. Raises `UsageError`."""
        request.check()
        app = self._app
        arguments: dict[str, Any] = {"command": list(request.command)}
        if request.mission is not None:
            mission = app.find_mission(request.mission)
            return self.begin("exec", arguments, mission=mission, limit=request.time, detached=True)
        found = app.preparation.register_project(request.repo)
        arguments |= {"repository": str(found.path), "base": request.base, "sandbox": request.sandbox}
        return self.begin("exec", arguments, project=found.id, limit=request.time, detached=True)

    def read_output(self, action: str, after: int = 0) -> ActionOutputPage:
        """Return the lines that an action printed, from byte `after` of its output on."""
        state = self.state(action)  # before the lines: they include all output of an ended action
        lines, offset = self.places.read(action, after)
        return ActionOutputPage(
            action=action,
            status=state.status,
            lines=[
                ActionLineDocument(action=action, time=each.time, stream=each.stream, line=each.line)
                for each in lines
            ],
            next=offset,
        )

    def cancel_and_wait(self, action: str) -> ActionState:
        """Cancel an action and return its state once it has ended, or after 15 seconds."""
        self.cancel(action)
        until = time.monotonic() + _CANCEL_SECONDS
        while True:
            state = self.state(action)
            if state.status in ACTION_ENDED or time.monotonic() >= until:
                return state
            time.sleep(_POLL_SECONDS)

    def follow(self, action: str) -> Iterator[OutputLine]:
        """Yield past and future output of an action, until it has ended or asks a question."""
        offset = 0
        while True:
            state = self.state(action)  # before the lines: they include all output of an ended action
            lines, offset = self.places.read(action, offset)
            yield from lines
            if state.status in ACTION_ENDED or state.status == "waiting":
                return
            time.sleep(_POLL_SECONDS)

    def start(self, held: ActionLock) -> subprocess.Popen[bytes]:
        """Hand an action over to a new process, which takes the lock without a gap."""
        app = self._app
        logs = app.home / "logs"
        logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        with Path(logs, "actions.log").open("ab") as log:
            process = subprocess.Popen(
                # `pass_fds` keeps the number of a descriptor, so the child finds the lock at the number in
                # `--lock`.
                [sys.executable, "-m", "chargehand", "action", "run", held.action, "--lock", str(held.fileno())],
                # The action may outlive the directory that it was requested in.
                cwd="/",
                env={**os.environ, **app.environ, "CHARGEHAND_HOME": str(app.home)},
                pass_fds=(held.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # The terminal's Ctrl-C and hang-up are meant for the command that started it, not for the action.
                start_new_session=True,
            )
        # Closed, not unlocked: an flock belongs to the open file, so unlocking would release the child's lock too.
        held.let_go(handed_on=True)
        return process

    async def run(self, held: ActionLock, *, on_line: OnOutputLine = lambda line: None) -> ActionState:
        """Run a locked action to its end, or to its question, and release it."""
        action = held.action
        clock = self._app.clock
        place = self.places.get(action)
        output = self.places.output(action)

        def tell(stream: OutputStream, text: str) -> None:
            line = OutputLine(time=clock.now().isoformat(), stream=stream, line=_REDACTOR.text(text))
            output.write(line)
            on_line(line)

        def note(*payloads: Payload) -> None:
            self._app.store.log.append(place.log, *payloads, durable=True)

        try:
            state = self.state(action)
            began = clock.monotonic()
            work = ActionContext(app=self._app, state=state, config=self.config(), tell=tell, note=note)
            status, done = await self._run_to_end(work, place)
            note(
                ActionFinished(
                    action=action,
                    status=status,
                    seconds=clock.monotonic() - began,
                    exit_code=done.exit_code,
                    reasons=done.reasons,
                    result=done.result,
                    lines=output.lines,
                    truncated=output.truncated,
                )
            )
            # Not by `action cancel`, so by a signal to this process: the caller has to end as well.
            if status == "cancelled" and not self.places.cancel_asked(action):
                raise asyncio.CancelledError
        # No end is recorded: after the answer the action starts again from the beginning.
        except ApprovalNeededError as asks:
            note(ActionAsked(action=action, text=asks.text, rule=asks.rule, subject=asks.subject))
        finally:
            # Release the lock last: an unfinished action without an owner counts as lost.
            output.close()
            held.let_go()
        return self.state(action)

    async def _run_to_end(self, work: ActionContext, place: ActionLocation) -> tuple[ActionEnd, ActionResult]:
        """Do the work and return its ending; raise `ApprovalNeededError` if it has to wait for a person."""
        seconds = work.state.limit_seconds
        try:
            done = await self._work_within_limits(work)
        except TimeoutError:
            return "timed_out", ActionResult(reasons=(_time_limit_reason(seconds),))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            # The cancellation is consumed here: the end still has to be recorded.
            task.uncancel()
            return "cancelled", ActionResult(reasons=(_CANCELLED,))
        # Before `ChargehandError`, its base class: only a conflict has more details in the log.
        except MergeConflictError as error:
            lines = self._app.store.log.read(place.log, after=place.after, types=(MergeConflicted.type,))
            told = decode(MergeConflicted.type, lines[-1].payload or b"{}") if lines else None
            result: dict[str, Any] = {}
            if isinstance(told, MergeConflicted):
                result = {"conflict_count": told.count, "conflicts": told.conflicts, "artifact": told.artifact}
                if len(encode_json(result)) > _RESULT_BYTES:
                    result["conflicts"] = ()
            return "failed", ActionResult(reasons=(_reason(error),), result=result)
        except ChargehandError as error:
            return "failed", ActionResult(reasons=(_reason(error),))
        if done.timed_out:
            return "timed_out", replace(done, reasons=(_time_limit_reason(seconds),))
        return ("failed" if done.reasons else "done"), done

    async def _work_within_limits(self, work: ActionContext) -> ActionResult:
        """Wait for a place and do the work within its time limit; a cancel request ends both."""
        state = work.state
        assert state.kind is not None
        task = asyncio.current_task()
        assert task is not None
        clock = self._app.clock
        places = max(1, work.config.git_at_once)

        def note_wait(before: int) -> None:
            running = f"{places} git actions are running" + (
                f", {before} are queued before this one" if before else ""
            )
            reason = Reason(code="queued", message=running)
            work.note(ActionQueued(action=state.id, before=before, places=places, reason=reason))

        async def cancel_when_asked() -> None:
            while not self.places.cancel_asked(state.id):  # noqa: ASYNC110 -- it is another process that sets it
                await asyncio.sleep(_POLL_SECONDS)
            task.cancel()

        watching = asyncio.create_task(cancel_when_asked())
        # The sandbox enforces a command's limit; this limit leaves time to prepare it.
        limit = state.limit_seconds + (_PREPARING_SECONDS if state.kind == "exec" else 0.0)
        asked = clock.monotonic()
        try:
            async with contextlib.AsyncExitStack() as stack:
                # The git actions of all processes wait for a place. A command needs no place: its sandbox bounds
                # it.
                if state.kind != "exec":
                    slots = ConcurrencyLimit(self._app.home / "slots" / "git", places=places)
                    await stack.enter_async_context(slots.place(on_wait=note_wait))
                work.note(ActionBegan(action=state.id, pid=os.getpid(), waited=clock.monotonic() - asked))
                # Waiting does not count: the time limit of an action starts when it begins.
                async with asyncio.timeout(limit):
                    return await WORK[state.kind](work)
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    def answer(self, action: str, *, yes: bool) -> ActionLock | None:
        """Answer an action's question; return its lock if it may continue.

        Raises `RefusedError` (`no_question`, `action_held`).
        """
        # Locked before its state is read: of two simultaneous answers only one can start it.
        held = self.places.hold(action)
        if held is None:
            raise RefusedError(
                f"action {action!r} is running", code="action_held", hint=f"chargehand action show {action}"
            )
        state = self.state(action)
        if state.status != "waiting":
            held.let_go()
            raise RefusedError(
                f"action {action!r} has no open question: it is {state.status}",
                code="no_question",
                hint=f"chargehand action show {action}",
            )
        identity = self._app.identity()
        self._note(action, ActionAnswered(action=action, yes=yes, identity=identity))
        if yes:
            return held
        reason = Reason(code="answered_no", message=f"{identity} answered no")
        self._note(action, ActionFinished(action=action, status="failed", seconds=0.0, reasons=(reason,)))
        held.let_go()
        return None

    def cancel(self, action: str) -> ActionState:
        """Cancel an action; its owner ends it within a second or two. An ended action is left unchanged."""
        state = self.state(action)
        if state.status in ACTION_ENDED:
            return state
        # Requested before the lock is taken: a process that takes ownership in between finds the request.
        self.places.ask_cancel(action)
        held = self.places.hold(action)
        if held is not None:
            if self.state(action).status == "waiting":
                ended = ActionFinished(action=action, status="cancelled", seconds=0.0, reasons=(_CANCELLED,))
                self._note(action, ended)
            held.let_go()
        return self.state(action)

    def _note(self, action: str, payload: Payload) -> None:
        self._app.store.log.append(self.places.get(action).log, payload, durable=True)


def _reason(error: ChargehandError) -> Reason:
    return Reason(code=error.code, message=f"{error.message} ({error.hint})" if error.hint else error.message)


def _time_limit_reason(seconds: float) -> Reason:
    return Reason(code="action_time", message=f"it took longer than {seconds:g} s and was stopped")
