"""Guards that stop or pause a running agent, and the snapshot of a failed one.

`CriticalMessageGuard` pauses an agent that does not acknowledge a critical message, `run_within_quota` ends one
that fills the disk, `FailureSnapshot` records the processes in the sandbox of one that timed out or failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Coroutine
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import msgspec

from chargehand.agents.contract import AgentOutcome
from chargehand.core.attempt_events import StateCaptured
from chargehand.core.clock import Clock
from chargehand.core.errors import RefusedError
from chargehand.core.events import encode_json
from chargehand.core.mission_events import MessageSent, QuestionAnswered, QuestionAsked
from chargehand.core.records import Reason
from chargehand.core.redaction import Redactor
from chargehand.missions._messages import ACKNOWLEDGE_SECONDS, CANCEL, GO_ON, OPTIONS
from chargehand.missions._questions import answer_about, question_about
from chargehand.missions.control import Control
from chargehand.missions.journal import Journal
from chargehand.missions.services import Services
from chargehand.sandbox.contract import OnOutput, RunningProcess, Sandbox, ShowsProcesses, Stream
from chargehand.workspace.space import AttemptQuota
from chargehand.workspace.workspace import Workspace

_TRIES = 2
_SYSTEM = "chargehand"


@dataclass(eq=False, slots=True)
class CriticalMessageGuard:
    """Enforces the critical messages of one attempt.

    `able` means that its agent acknowledges messages; an agent that cannot is stopped at once by a new message.
    `before` is the number of messages at the attempt's start. Open messages follow from the log: a worker that
    takes the mission over asks again only unanswered questions.
    """

    journal: Journal
    control: Control
    _: KW_ONLY
    attempt: str
    tree: str
    able: bool
    before: int
    seconds: float = ACKNOWLEDGE_SECONDS

    async def follow(self) -> None:
        """Handle critical messages one after the other while the attempt runs."""
        while True:
            state = self.journal.state
            # An agent that cannot acknowledge has the messages from before its start in its request.
            messages = state.messages if self.able else state.messages[self.before :]
            message = next((each for each in messages if each.critical and not self._is_settled(each)), None)
            if message is None:
                await self.control.wait_for_news()
            elif not self.able or not await self._wait_for_acknowledgement(message):
                await self._ask_person(message)

    def _is_settled(self, message: MessageSent) -> bool:
        state = self.journal.state
        answered = answer_about(state, self.attempt, message.message) is not None
        return answered or message.message in state.acknowledged

    async def _wait_for_acknowledgement(self, message: MessageSent) -> bool:
        """Wait for the acknowledgement; halfway through the time the message is sent once more."""
        if question_about(self.attempt, message.message) in self.journal.state.questions:
            return False  # an earlier worker already asked
        for number in range(1, _TRIES + 1):
            with contextlib.suppress(TimeoutError):
                async with self.control.limited(self.seconds / _TRIES):
                    async for _ in self._changes():
                        if self._is_settled(message):
                            return True
            if number < _TRIES:
                again = MessageSent(
                    identity=message.identity, text="", message=message.message, critical=True, again=True
                )
                self.journal.record(again)
        return self._is_settled(message)

    async def _changes(self) -> AsyncIterator[None]:
        while True:
            yield
            await self.control.wait_for_news()

    async def _ask_person(self, message: MessageSent) -> None:
        """Freeze the sandbox and let a person decide how to continue."""
        name = question_about(self.attempt, message.message)
        why = (
            f"the agent did not acknowledge a critical message within {self.seconds:.0f} s"
            if self.able
            else "the agent cannot receive a critical message while it works"
        )
        await self.control.may_go_on()
        await self.control.pause(_SYSTEM, why)
        if not self.control.paused:  # it is being stopped
            await self.control.wait_for_news()
            return
        if name not in self.journal.state.questions:
            question = QuestionAsked(
                question=name,
                tree=self.tree,
                reasons=(Reason(code="not_acknowledged", message=why),),
                text=f"{why}: {message.text}\nWhat now?",
                options=OPTIONS,
                attempt=None,
                kind="decision",
                closed=True,
            )
            self.journal.record(question, durable=True)
        async for _ in self._changes():
            answer = answer_about(self.journal.state, self.attempt, message.message)
            if answer is not None:
                break
            if not self.control.paused:  # a person resumed it without an answer
                self.journal.record(QuestionAnswered(question=name, text=GO_ON, identity=_SYSTEM))
                return
        if answer == CANCEL:
            self.control.stop("cancel", identity=_SYSTEM)
        else:
            await self.control.resume(_SYSTEM)


# --- snapshots of failed attempts

_TAIL_BYTES = 4096
# A time limit kills all processes, so they are listed before it: a second, or a tenth of a short limit.
_LEAD_SECONDS, _LEAD_SHARE = 1.0, 0.1


@dataclass(eq=False, slots=True)
class FailureSnapshot:
    """Stores the processes of a failed attempt's sandbox, and the end of its output, as an artifact."""

    services: Services
    journal: Journal
    control: Control
    _: KW_ONLY
    attempt: str
    workspace: Workspace
    sandbox: Sandbox
    next_output: OnOutput | None
    _tail: bytearray = field(init=False, default_factory=bytearray)
    _before_timeout: tuple[RunningProcess, ...] | None = field(init=False, default=None)

    def on_output(self, stream: Stream, piece: bytes) -> None:
        """Remember the end of the output, and pass the piece on."""
        self._tail += piece[-_TAIL_BYTES:]
        del self._tail[:-_TAIL_BYTES]
        if self.next_output is not None:
            self.next_output(stream, piece)

    @contextlib.asynccontextmanager
    async def before_timeout(self, seconds: float) -> AsyncIterator[None]:
        """List the processes shortly before the `seconds` of the block are up; pauses are not counted."""

        async def list_late() -> None:
            with contextlib.suppress(TimeoutError):
                async with self.control.limited(seconds - min(_LEAD_SECONDS, seconds * _LEAD_SHARE)):
                    await asyncio.Event().wait()
            self._before_timeout = await asyncio.to_thread(self._list_processes)

        listing = asyncio.create_task(list_late())
        try:
            yield
        finally:
            listing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listing

    def _list_processes(self) -> tuple[RunningProcess, ...] | None:
        """Return the processes in the sandbox, `None` if its tier cannot list them."""
        sandbox = self.sandbox
        return sandbox.processes() if isinstance(sandbox, ShowsProcesses) else None

    async def store(self, why: Literal["timeout", "sandbox_died", "failed"]) -> None:
        """Store the current facts as an artifact, and record it."""
        timed_out = why == "timeout"
        processes = self._before_timeout if timed_out else await asyncio.to_thread(self._list_processes)

        def encode() -> bytes:
            # In a thread: measuring a workspace takes time for each file.
            entries, size = self.workspace.usage()
            disk = shutil.disk_usage(self.workspace.directory)
            document = {
                "why": why,
                "sandbox": self.sandbox.id,
                "processes": processes,
                "limits": dict(self.sandbox.limits_in_force),
                "disk": {"written_entries": entries, "written_bytes": size, "free_bytes": disk.free},
                "output": bytes(self._tail).decode(errors="replace"),
            }
            # A command line may contain something that looks like a key; finding the hang does not need it.
            return encode_json(Redactor().tree(msgspec.to_builtins(document)))

        content = await asyncio.to_thread(encode)
        artifact = self.services.store.artifacts.put(content, kind="state", mission=self.journal.mission)
        count = len(processes or ())
        self.journal.record(StateCaptured(attempt=self.attempt, why=why, processes=count, artifact=artifact))


# --- disk quota

_POLL_SECONDS = 2.0


async def open_quota(workspace: Workspace) -> AttemptQuota:
    """Return an attempt's quota in a workspace; a plain directory's existing content does not count."""
    before = await asyncio.to_thread(workspace.usage) if workspace.holds_base else (0, 0)
    return AttemptQuota(workspace.scan_root(), workspace.limits, before=before)


async def run_within_quota(
    quota: AttemptQuota, work: Coroutine[Any, Any, AgentOutcome], *, clock: Clock
) -> AgentOutcome:
    """Return the agent's outcome; an agent that exceeds the quota fails with `disk` and is stopped within seconds.

    Raises `InfrastructureError` (`no_space`) if the disk itself is full: the agent did not cause that, and its
    reaction means nothing.
    """

    async def find_problem() -> RefusedError | None:
        try:
            await asyncio.to_thread(quota.check)
        except RefusedError as problem:
            return problem
        return None

    async def watch() -> RefusedError:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            problem = await find_problem()
            if problem is not None:
                return problem

    began = clock.monotonic()
    working, watching = asyncio.create_task(work), asyncio.create_task(watch())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        # Also after its end: an agent that filled the disk in its last second must not pass.
        problem = await find_problem() if working.done() else watching.result()
        if problem is None:
            return working.result()
        seconds = clock.monotonic() - began
        return AgentOutcome(claim="failed", reason=problem.message, code=problem.code, output=b"", seconds=seconds)
    finally:
        # Cancelling the agent kills its processes; it is awaited so that nothing writes afterwards.
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
