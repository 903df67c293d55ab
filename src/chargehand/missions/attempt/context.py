"""The agent's interface during an attempt: recorded steps, checkpoints after its acts, questions to people."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NoReturn

from chargehand.agents.contract import Endpoint, Resumed, Snippets
from chargehand.core.attempt_events import ActionJudged, CheckpointMade, MessageAcknowledged, MessageDelivered
from chargehand.core.errors import WaitingError
from chargehand.core.events import Payload
from chargehand.core.mission_events import MessageSent, QuestionAsked, StepFinished
from chargehand.core.ports import CodeMap
from chargehand.core.records import Checkpoint, Reason
from chargehand.core.text import printable
from chargehand.missions._messages import NEXT, wait_for_quota
from chargehand.missions._policy import NO, Judge
from chargehand.missions._questions import answer_about
from chargehand.missions.attempt.inspection import Inspector, scan_workspace
from chargehand.missions.control import Control
from chargehand.missions.journal import Journal
from chargehand.missions.services import Services
from chargehand.missions.transcript import acts_prefix
from chargehand.models.contract import QuotaRest
from chargehand.policy.actions import Action, Judgement
from chargehand.sandbox.contract import OnOutput, Sandbox
from chargehand.workspace.scan import Scan
from chargehand.workspace.workspace import Workspace


def find_last_tree(journal: Journal, number: int) -> str | None:
    """Return the tree of an attempt's last recorded act, or a newer one made by a person; else `None`."""
    state = journal.state
    restored = next((each for each in reversed(state.restored) if each.attempt == number), None)
    # Newest first: a later act may have reverted files to an earlier tree.
    for position, step in reversed(tuple(enumerate(state.steps.values()))):
        if restored is not None and position < restored.steps:
            break
        output = journal.recall(step) if step.step.startswith(acts_prefix(number)) else None
        if isinstance(output, dict) and "tree" in output:
            return str(output["tree"])
    return restored.checkpoint.tree if restored is not None else None


@dataclass(eq=False, slots=True)
class RecordedContext:
    """The `AttemptContext` of one attempt: each step and act is in the log before the agent continues."""

    services: Services
    journal: Journal
    control: Control
    _: KW_ONLY
    attempt: str
    number: int
    workspace: Workspace
    sandbox: Sandbox
    tree: str
    endpoint: Endpoint | None
    on_output: OnOutput | None
    resumed: Resumed | None
    inspector: Inspector
    snippets: Snippets | None = None
    code_map: CodeMap | None = None
    _uninspected: Scan | None = field(init=False, default=None)
    _judge: Judge = field(init=False)

    def __post_init__(self) -> None:
        self._judge = Judge(self.services, self.journal, self.attempt, self.ask_permission, self.sandbox)

    async def step(self, name: str, input: object, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run a recorded step; see `AttemptContext.step`."""
        # A pause takes effect between steps, never inside one: an interrupted step is done again.
        await self.control.may_go_on()
        return await self.journal.step(acts_prefix(self.number) + name, input, work)

    async def act(self, name: str, input: object, work: Callable[[], Awaitable[Any]]) -> tuple[Any, str]:
        """Run a recorded step that may change files; see `AttemptContext.act`."""

        async def act_and_keep() -> object:
            return {"output": await work(), **await self._checkpoint("action")}

        done = await self._record_act(name, input, act_and_keep)
        # Inspected only once the act is recorded: it stays in the log even if it ends the attempt.
        scan, self._uninspected = self._uninspected, None
        if scan is not None:
            await self.inspector.inspect_scan(scan)
        return done["output"], done["tree"]

    async def restore(self, name: str, input: object, tree: str) -> None:
        """Set the workspace back to a tree, as a recorded step; see `AttemptContext.restore`."""

        async def reset() -> object:
            async with self.control.frozen(self.sandbox):
                await asyncio.to_thread(self.workspace.reset, tree, "rolled back")
            return await self._checkpoint("rolled back")

        await self._record_act(name, input, reset)

    async def _record_act(self, name: str, input: object, work: Callable[[], Awaitable[Any]]) -> Any:
        def events(done: dict[str, Any]) -> Sequence[Payload]:
            made = done.get("checkpoint")
            if not isinstance(made, Checkpoint) or not made.changed:
                return ()
            if any(made.commit == known.commit for known in self.journal.state.checkpoints):
                return ()
            return (CheckpointMade(attempt=self.attempt, checkpoint=made, seconds=done["seconds"]),)

        await self.control.may_go_on()
        # Output and checkpoint in one append: a resumed agent never has an output without its files.
        done = await self.journal.step(acts_prefix(self.number) + name, input, work, events=events)
        self.tree = done["tree"]
        return done

    async def _checkpoint(self, trigger: str) -> dict[str, Any]:
        """Checkpoint the workspace if it changed; return the fields for the recorded step."""
        began = self.services.clock.monotonic()
        async with self.control.frozen(self.sandbox):
            scan = await scan_workspace(self.workspace)
            self._uninspected = scan  # also for an unchanged tree, which may lack the violations
            # A read-only act leaves the tree unchanged: no checkpoint, and one line less in the log.
            if scan.tree == self.tree:
                return {"tree": scan.tree}
            made = await asyncio.to_thread(self.workspace.checkpoint, trigger, scan=scan)
        return {"tree": made.tree, "checkpoint": made, "seconds": self.services.clock.monotonic() - began}

    def is_recorded(self, name: str) -> bool:
        """Return whether a step is in the log; see `AttemptContext.is_recorded`."""
        return acts_prefix(self.number) + name in self.journal.state.steps

    def recorded(self, attempt: int) -> Sequence[tuple[str, Any]]:
        """Return the recorded steps of an attempt; see `AttemptContext.recorded`."""
        return self.journal.recorded(acts_prefix(attempt))

    def keep(self, content: bytes) -> str:
        """Store content that is too large for the log; see `AttemptContext.keep`."""
        return self.services.store.artifacts.put(content, kind="agent", mission=self.journal.mission)

    def artifact(self, id: str) -> bytes:
        """Return the content of an artifact; see `AttemptContext.artifact`."""
        return self.services.store.artifacts.get(id)

    def person_messages(self) -> Sequence[str]:
        """Return people's messages; see `AttemptContext.person_messages`."""
        return [message.text for message in self._messages()]

    def _messages(self) -> Iterator[MessageSent]:
        """Yield the messages before the first message that a person moved to the next attempt."""
        state = self.journal.state
        for message in state.messages:
            if answer_about(state, self.attempt, message.message) == NEXT:
                return
            yield message

    def mark_delivered(self, count: int, *, acknowledged: bool) -> None:
        """Record which messages reached the agent; see `AttemptContext.delivered`."""
        state = self.journal.state
        events: list[Payload] = []
        for each in itertools.islice(self._messages(), count):
            if each.message not in state.delivered:
                events.append(MessageDelivered(message=each.message, attempt=self.attempt))
            if acknowledged and each.message not in state.acknowledged:
                events.append(MessageAcknowledged(message=each.message, attempt=self.attempt))
        if events:
            self.journal.record(*events)
            self.control.wake_waiters()

    async def ask(self, question: str, text: str, options: Sequence[str]) -> str:
        """Return a person's answer; see `AttemptContext.ask`."""
        return await self._ask_person(question, text, options, permission=False)

    async def ask_permission(self, question: str, text: str, options: Sequence[str]) -> str:
        """Return whether a person allows an act; without an answer in time it is refused."""
        return await self._ask_person(question, text, options, permission=True)

    async def _ask_person(self, question: str, text: str, options: Sequence[str], *, permission: bool) -> str:
        await self.control.may_go_on()
        # Named after the attempt: the next attempt's same question is a new one.
        name = f"{self.attempt}/{question}"
        asked = self.journal.state.questions.get(name)
        if asked is not None and asked.answer is not None:
            return asked.answer
        reason = Reason(code="question", message=text)
        if asked is None:
            asks = QuestionAsked(
                question=name,
                tree=self.tree,
                reasons=(reason,),
                text=text,
                options=tuple(options),
                attempt=self.attempt,
                kind="permission" if permission else "clarification",
                default=NO if permission else "",
            )
            self.journal.record(self.journal.limited(asks), durable=True)
        # Ends the run: sandbox and slot are given back, since a person may take days to answer.
        raise WaitingError(text, code="question")

    async def park(self, name: str, rest: QuotaRest, *, seconds: float = 0.0) -> NoReturn:
        """Let the mission wait until quota is available again; see `AttemptContext.park`."""
        await self.control.may_go_on()
        if seconds:
            # A resumed program starts from the beginning, but the time it used still counts.
            prefix = f"{acts_prefix(self.number)}{name}/"
            number = sum(step.startswith(prefix) for step in self.journal.state.steps) + 1
            output = {"model": rest.model, "provider": rest.provider, "until": rest.until.isoformat()}
            self.journal.record(StepFinished(step=f"{prefix}{number}", input="", output=output, seconds=seconds))
        question, error = wait_for_quota(
            self.journal.state, name, rest, attempt=self.attempt, tree=self.tree, now=self.services.clock.now()
        )
        if question is not None:
            self.journal.record(question, durable=True)
        raise error

    async def judge(self, name: str, action: Action) -> Judgement:
        """Return whether an action may happen; see `AttemptContext.judge`."""
        return await self._judge.judge(name, action)

    def refused(self, tool: str, reason: str) -> None:
        """Record a call that the role does not allow; see `AttemptContext.refused`."""
        denied = ActionJudged(
            attempt=self.attempt,
            kind="tool",
            text=printable(tool)[:200],
            effect="deny",
            rule="role_tool",
            reason=reason,
            rules=self.services.rules.digest,
        )
        self.journal.record(denied)

    def limited(self, seconds: float) -> AbstractAsyncContextManager[None]:
        """Limit a block to `seconds`, pauses not counted; see `AttemptContext.limited`."""
        return self.control.limited(seconds)
