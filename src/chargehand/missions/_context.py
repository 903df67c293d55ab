"""What an attempt's agent works with: recorded steps, checkpoints after its acts, people to ask."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NoReturn

from chargehand.agents.contract import Endpoint, Resumed, Snippets
from chargehand.agents.recorded import RecordedStep, parse_step
from chargehand.core.attempt_events import ActionJudged, CheckpointMade, MessageAcknowledged, MessageDelivered
from chargehand.core.errors import WaitingError
from chargehand.core.events import Payload
from chargehand.core.mission_events import MessageSent, QuestionAsked, StepFinished
from chargehand.core.records import Checkpoint, Reason
from chargehand.core.state import MissionState
from chargehand.core.text import printable
from chargehand.missions._acknowledge import NEXT, answer_to
from chargehand.missions._control import Control
from chargehand.missions._inspection import Inspector
from chargehand.missions._journal import Journal
from chargehand.missions._policy import Judge
from chargehand.missions._services import Services
from chargehand.missions._sleep import asleep
from chargehand.models.contract import QuotaRest
from chargehand.policy.actions import Action, Judgement
from chargehand.sandbox.contract import OnOutput, Sandbox
from chargehand.workspace.scan import Scan
from chargehand.workspace.workspace import Workspace

WORK = "attempt/{number}/work"
"""The step that is one attempt; the steps of its agent lie below it."""


def acts_prefix(number: int) -> str:
    """Return what the names of an attempt's own steps begin with."""
    return WORK.format(number=number) + "/"


def parse_act(step: str) -> tuple[int, RecordedStep] | None:
    """Return the attempt and what of it a step of a mission is, `None` for one that is no native agent's."""
    match step.split("/", 3):
        case ["attempt", number, "work", name] if (found := parse_step(name)) is not None:
            return int(number), found
    return None


def replies_of(state: MissionState, number: int) -> int:
    """Return how many replies of an attempt are recorded."""
    acts = (parse_act(step) for step in state.steps)
    return sum(act is not None and act[0] == number and act[1].kind == "reply" for act in acts)


def last_tree(journal: Journal, number: int) -> str | None:
    """Return the tree that the last recorded act of an attempt left, `None` where there is none."""
    for step in reversed(journal.state.steps.values()):
        output = journal.recall(step) if step.step.startswith(acts_prefix(number)) else None
        if isinstance(output, dict) and "tree" in output:
            return str(output["tree"])
    return None


class Context:
    """The `AttemptContext` of one attempt."""

    def __init__(
        self,
        services: Services,
        journal: Journal,
        control: Control,
        *,
        attempt: str,
        number: int,
        workspace: Workspace,
        sandbox: Sandbox,
        tree: str,
        endpoint: Endpoint | None,
        on_output: OnOutput | None,
        resumed: Resumed | None,
        inspector: Inspector,
        snippets: Snippets | None = None,
    ) -> None:
        self.sandbox = sandbox
        self.endpoint = endpoint
        self.on_output = on_output
        self.resumed: Resumed | None = resumed
        self.snippets = snippets
        self._services = services
        self._journal = journal
        self._control = control
        self._attempt = attempt
        self._number = number
        self._workspace = workspace
        self._tree = tree
        self._inspector = inspector
        self._unseen: Scan | None = None
        self._judge = Judge(services, journal, attempt, self.ask, sandbox)

    async def step(self, name: str, input: object, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run a recorded step; see `AttemptContext.step`."""
        await self._control.may_go_on()
        return await self._journal.step(acts_prefix(self._number) + name, input, work)

    async def act(self, name: str, input: object, work: Callable[[], Awaitable[Any]]) -> tuple[Any, str]:
        """Run a recorded step that may change files; see `AttemptContext.act`."""

        async def acted() -> object:
            return {"output": await work(), **await self._kept("action")}

        done = await self._act(name, input, acted)
        await self._look()
        return done["output"], done["tree"]

    async def restore(self, name: str, input: object, tree: str) -> None:
        """Set the workspace back to a tree, as a recorded step; see `AttemptContext.restore`."""

        async def restored() -> object:
            async with self._control.still(self.sandbox):
                await asyncio.to_thread(self._workspace.reset, tree, "rolled back")
            return await self._kept("rolled back")

        await self._act(name, input, restored)

    async def _act(self, name: str, input: object, work: Callable[[], Awaitable[Any]]) -> Any:
        await self._control.may_go_on()
        done = await self._journal.step(acts_prefix(self._number) + name, input, work, notes=self._made)
        self._tree = done["tree"]
        return done

    async def _kept(self, trigger: str) -> dict[str, Any]:
        """Keep the workspace as it is now, unless it is as it was."""
        began = self._services.clock.monotonic()
        async with self._control.still(self.sandbox):
            scan = await asyncio.to_thread(self._workspace.scan)
            self._unseen = scan  # also where the tree is as it was: what breaks a rule does not enter it
            if scan.tree == self._tree:
                return {"tree": scan.tree}
            made = await asyncio.to_thread(self._workspace.checkpoint, trigger, scan=scan)
        return {"tree": made.tree, "checkpoint": made, "seconds": self._services.clock.monotonic() - began}

    async def _look(self) -> None:
        """Look at what an act wrote once it is recorded; raises `CriticalFoundError`."""
        scan, self._unseen = self._unseen, None
        if scan is not None:
            await self._inspector.watch(scan)

    def _made(self, done: dict[str, Any]) -> Sequence[Payload]:
        made = done.get("checkpoint")
        if not isinstance(made, Checkpoint) or not made.changed:
            return ()
        if any(made.commit == known.commit for known in self._journal.state.checkpoints):
            return ()
        return (CheckpointMade(attempt=self._attempt, checkpoint=made, seconds=done["seconds"]),)

    def is_recorded(self, name: str) -> bool:
        """Tell whether a step is in the log; see `AttemptContext.is_recorded`."""
        return acts_prefix(self._number) + name in self._journal.state.steps

    def recorded(self, attempt: int) -> Sequence[tuple[str, Any]]:
        """Return the recorded steps of an attempt; see `AttemptContext.recorded`."""
        return self._journal.recorded(acts_prefix(attempt))

    def keep(self, content: bytes) -> str:
        """Keep what is too large for the log; see `AttemptContext.keep`."""
        return self._services.store.artifacts.put(content, kind="agent", mission=self._journal.mission)

    def artifact(self, id: str) -> bytes:
        """Return what was kept; see `AttemptContext.artifact`."""
        return self._services.store.artifacts.get(id)

    def person_messages(self) -> Sequence[str]:
        """Return what persons have said; see `AttemptContext.person_messages`."""
        return [message.text for message in self._messages()]

    def _messages(self) -> Iterator[MessageSent]:
        """Yield the messages up to the first one that a person wants delivered with the next attempt."""
        state = self._journal.state
        for message in state.messages:
            if answer_to(state, self._attempt, message.message) == NEXT:
                return
            yield message

    def mark_delivered(self, count: int, *, acknowledged: bool) -> None:
        """Note which messages reached the agent; see `AttemptContext.delivered`."""
        state = self._journal.state
        notes: list[Payload] = []
        for each in itertools.islice(self._messages(), count):
            if each.message not in state.delivered:
                notes.append(MessageDelivered(message=each.message, attempt=self._attempt))
            if acknowledged and each.message not in state.acknowledged:
                notes.append(MessageAcknowledged(message=each.message, attempt=self._attempt))
        if notes:
            self._journal.note(*notes)
            self._control.tell_news()

    async def ask(self, question: str, text: str, options: Sequence[str]) -> str:
        """Return a person's answer; see `AttemptContext.ask`."""
        await self._control.may_go_on()
        name = f"{self._attempt}/{question}"
        asked = self._journal.state.questions.get(name)
        if asked is not None and asked.answer is not None:
            return asked.answer
        reason = Reason(code="question", message=text)
        if asked is None:
            self._journal.note(
                QuestionAsked(
                    question=name,
                    tree=self._tree,
                    reasons=(reason,),
                    text=text,
                    options=tuple(options),
                    attempt=self._attempt,
                ),
                durable=True,
            )
        raise WaitingError(text, code="question")

    async def park(self, name: str, rest: QuotaRest, *, seconds: float = 0.0) -> NoReturn:
        """Let the mission wait until there is quota again; see `AttemptContext.park`."""
        await self._control.may_go_on()
        if seconds:  # a program that begins anew has used them up all the same
            await self._worked(name, rest, seconds)
        raise asleep(self._journal, name, rest, attempt=self._attempt, tree=self._tree)

    async def _worked(self, name: str, rest: QuotaRest, seconds: float) -> None:
        prefix = f"{acts_prefix(self._number)}{name}/"
        number = sum(step.startswith(prefix) for step in self._journal.state.steps) + 1
        output = {"model": rest.model, "provider": rest.provider, "until": rest.until.isoformat()}
        self._journal.note(StepFinished(step=f"{prefix}{number}", input="", output=output, seconds=seconds))

    async def judge(self, name: str, action: Action) -> Judgement:
        """Return whether an action may happen; see `AttemptContext.judge`."""
        return await self._judge.judge(name, action)

    def refused(self, tool: str, reason: str) -> None:
        """Note a call that the role does not allow; see `AttemptContext.refused`."""
        denied = ActionJudged(
            attempt=self._attempt,
            kind="tool",
            text=printable(tool)[:200],
            effect="deny",
            rule="role_tool",
            reason=reason,
            rules=self._services.rules.digest,
        )
        self._journal.note(denied)

    def limited(self, seconds: float) -> AbstractAsyncContextManager[None]:
        """Bound a block, pauses not counted; see `AttemptContext.limited`."""
        return self._control.limited(seconds)
