"""For the conformance suite of agents and its users: an in-memory attempt context, and a scripted gateway."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec.structs import replace

from chargehand.agents.contract import Agent, Assignment, Endpoint, EndpointModel, MeteredUsage, Resumed, Snippets
from chargehand.core.errors import WaitingError
from chargehand.core.ports import CodeMap
from chargehand.models.contract import CallListeners, CallRecord, Price, QuotaRest, ServedModel
from chargehand.models.gateway import Gateway, ServedAttempt
from chargehand.models.metering import MemoryLedger
from chargehand.models.script_upstream import ScriptUpstream
from chargehand.models.scripts import Script
from chargehand.policy.actions import Action, Effect, Judgement, Run
from chargehand.sandbox.contract import GATEWAY_PORT, OnOutput, Sandbox
from chargehand.testing.sandbox.kit import OpenedSandbox

MADE = "made.txt"
"""The file that an agent of the suite writes: `made` and a line end, or for `ask` the answer it got."""
ANSWER = "green"
# So expensive that a few calls of a few hundred tokens use up a budget of some USD.
PRICE = Price(input=1000.0, output=1000.0, source="the suite")
"""USD per million tokens."""


class MemoryAttemptContext:
    """An in-memory `AttemptContext` on a real sandbox; all its records can be read.

    `effect` is the result of every judgement. `again` resumes the attempt: recorded steps stay, all else is new.
    """

    def __init__(
        self, opened: OpenedSandbox, *, endpoint: Endpoint | None = None, effect: Effect = "allow"
    ) -> None:
        self.sandbox: Sandbox = opened.sandbox
        self.endpoint = endpoint
        self.resumed: Resumed | None = None
        self.snippets: Snippets | None = None
        self.code_map: CodeMap | None = None
        self.opened = opened
        self.effect: Effect = effect
        self.shown = bytearray()
        self.steps: dict[str, Any] = {}
        self.done: list[str] = []
        self.kept: list[bytes] = []
        self.judged: list[Action] = []
        self.asked: dict[str, tuple[str, tuple[str, ...]]] = {}
        self.parked: dict[str, QuotaRest] = {}
        self.answers: dict[str, str] = {}
        self.words: list[str] = []
        self.refusals: list[tuple[str, str]] = []
        self.reached = 0
        self.acknowledged = 0
        self.on_output: OnOutput | None = lambda _, piece: self.shown.extend(piece)

    def again(self) -> None:
        """Resume as after a crash or an answer."""
        # Ignored files still exist: the sandbox is the same.
        self.resumed = "kept"
        self.done.clear()

    def made(self) -> str | None:
        """Return the content of the file that agents of the suite write, or `None` if it is missing."""
        path = self.opened.written / MADE
        return path.read_text() if path.exists() else None

    def everything(self) -> bytes:
        """Return everything that was shown, kept and recorded."""
        return b"\n".join([bytes(self.shown), *self.kept, msgspec.json.encode(self.steps)])

    async def step(self, name: str, input: object, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run a recorded step; see `AttemptContext.step`."""
        if name not in self.steps:
            # Through JSON, like a log: values that do not survive that must fail here.
            self.steps[name] = msgspec.json.decode(msgspec.json.encode(await work()))
            self.done.append(name)
        return self.steps[name]

    async def act(self, name: str, input: object, work: Callable[[], Awaitable[Any]]) -> tuple[Any, str]:
        """Run a recorded step that may change files; its tree is a digest of the suite's file."""

        async def acted() -> object:
            output = await work()
            # Not a real tree: the suite never sets anything back to one.
            return {"output": output, "tree": hashlib.sha256((self.made() or "").encode()).hexdigest()}

        done = await self.step(name, input, acted)
        return done["output"], done["tree"]

    async def restore(self, name: str, input: object, tree: str) -> None:
        """Fail: no agent of the suite goes in circles, so none is rolled back."""
        raise NotImplementedError("the suite keeps no trees")

    def is_recorded(self, name: str) -> bool:
        """Return whether a step is recorded; see `AttemptContext.is_recorded`."""
        return name in self.steps

    def recorded(self, attempt: int) -> Sequence[tuple[str, Any]]:
        """Return the steps of the one attempt; see `AttemptContext.recorded`."""
        return list(self.steps.items())

    def keep(self, content: bytes) -> str:
        """Keep large content; see `AttemptContext.keep`."""
        self.kept.append(content)
        return hashlib.sha256(content).hexdigest()

    def artifact(self, id: str) -> bytes:
        """Return kept content; see `AttemptContext.artifact`."""
        return next(content for content in self.kept if hashlib.sha256(content).hexdigest() == id)

    def person_messages(self) -> Sequence[str]:
        """Return the messages of persons; see `AttemptContext.person_messages`."""
        return list(self.words)

    def mark_delivered(self, count: int, *, acknowledged: bool) -> None:
        """Remember how many messages reached the agent; see `AttemptContext.mark_delivered`."""
        self.reached = max(self.reached, count)
        if acknowledged:
            self.acknowledged = max(self.acknowledged, count)

    async def ask(self, question: str, text: str, options: Sequence[str]) -> str:
        """Return the answer in `answers`, else raise `WaitingError`; see `AttemptContext.ask`."""
        if question not in self.answers:
            self.asked[question] = (text, tuple(options))
            raise WaitingError(text, code="question")
        return self.answers[question]

    async def park(self, name: str, rest: QuotaRest, *, seconds: float = 0.0) -> NoReturn:
        """Note the wait, and raise `WaitingError`; see `AttemptContext.park`."""
        self.parked[name] = rest
        raise WaitingError(f"waiting for quota of {rest.provider}", code="quota_exhausted")

    async def judge(self, name: str, action: Action) -> Judgement:
        """Return `effect` for all actions but the start; "ask" asks a person; see `AttemptContext.judge`."""
        # The start is not the subject of the suite: an agent that may not start shows nothing.
        if isinstance(action, Run):
            return Judgement(effect="allow", rule="suite", reason="the suite starts it", subject=action.kind)
        self.judged.append(action)
        effect: Effect = self.effect
        if effect == "ask":
            effect = "allow" if await self.ask(name, repr(action), ("yes", "no")) == "yes" else "deny"
        return Judgement(effect=effect, rule="suite", reason="the suite says so", subject=repr(action))

    def refused(self, tool: str, reason: str) -> None:
        """Note a call that the role does not allow; see `AttemptContext.refused`."""
        self.refusals.append((tool, reason))

    @asynccontextmanager
    async def limited(self, seconds: float) -> AsyncIterator[None]:
        """Bound a block; see `AttemptContext.limited`."""
        async with asyncio.timeout(seconds):
            yield


class AgentCase(msgspec.Struct, frozen=True, kw_only=True):
    """An agent set up for one act, and its context."""

    agent: Agent
    context: MemoryAttemptContext

    def assignment(self, *, seconds: float = 60.0) -> Assignment:
        """Return the agent's assignment."""
        return Assignment(
            mission="m-suite", attempt="a-suite", number=1, request="Make it.", report=None, seconds=seconds
        )


OpenCase = Callable[..., Awaitable[AgentCase]]


@asynccontextmanager
async def scripted_endpoint(script: Script, socket: Path, *, usd: float | None = None) -> AsyncIterator[Endpoint]:
    """Serve a script in every dialect on a unix socket, for at most `usd`, like an attempt's gateway."""
    upstream = ScriptUpstream(script)
    served = [ServedModel(name="scripted", dialect="openai", model="scripted", upstream=upstream, price=PRICE)]
    meter = _CallMeter()
    ledger = MemoryLedger(usd)
    attempt = ServedAttempt(id="a-suite", ledger=ledger)
    async with Gateway(served, attempt, CallListeners(on_call=meter.called)) as gateway:
        await gateway.listen_unix(socket)
        # The port inside: the sandbox forwards it to the socket, since it has no access to the host's network.
        address = f"http://127.0.0.1:{GATEWAY_PORT}"
        yield Endpoint(
            socket=socket,
            token=gateway.token,
            models=(EndpointModel(name="scripted", dialect="openai"),),
            environment={
                "OPENAI_BASE_URL": f"{address}/v1",
                "OPENAI_API_KEY": gateway.token,
                "OPENAI_MODEL": "scripted",
                "ANTHROPIC_BASE_URL": address,
                "ANTHROPIC_API_KEY": gateway.token,
            },
            revoke=gateway.revoke,
            meter=lambda: meter.now,
        )


class _CallMeter:
    """Counts the calls of a gateway, like an attempt's own meter."""

    def __init__(self) -> None:
        self.now = MeteredUsage()

    def called(self, record: CallRecord) -> None:
        # A refused call used nothing, and ends a program that insists.
        if record.status == "refused":
            self.now = replace(self.now, refused=record.reason)
            return
        self.now = replace(
            self.now,
            calls=self.now.calls + 1,
            refused="",
            input=self.now.input + (record.usage.input or 0),
            output=self.now.output + (record.usage.output or 0),
        )
