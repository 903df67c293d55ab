"""ACP agents: any program that speaks the Agent Client Protocol over its standard streams."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from chargehand.agents import _acp_relay
from chargehand.agents._acp_client import CAPABILITIES, AcpClient
from chargehand.agents._acp_updates import Updates
from chargehand.agents._acp_wire import AcpError, Wire
from chargehand.agents._briefing import briefing
from chargehand.agents._claims import UNANSWERED, addressed
from chargehand.agents._clarify import answered_before, ask_person
from chargehand.agents._cli import environment_of, launch_of, shower, write_files
from chargehand.agents._cli_specs import SPECS, CliSpec, Launch
from chargehand.agents._contract import Abilities, Assignment, AttemptContext, Outcome
from chargehand.agents._ending import clean_output, outcome_of, paid, redactor, unable
from chargehand.agents._events import AgentEvent
from chargehand.agents._launch import require_launch
from chargehand.agents._look import count_at, inner, objects_at, text_at
from chargehand.agents._message_file import look_over, offer_message
from chargehand.agents._prompts import person_message
from chargehand.agents._repairing import Repairs
from chargehand.agents._session_log import SessionLog
from chargehand.core.config import AgentKind, CliName
from chargehand.core.messages import ClarificationRequest
from chargehand.models.contract import Usage
from chargehand.sandbox._contract import WORKSPACE, Converses, ExecResult, OnOutput, Stream

PROTOCOL_VERSION = 1
_OUTPUT_LIMIT = 256 << 20
_LEAVE_SECONDS = 0.5
"""What an agent gets to end by itself before everything in its sandbox is killed."""
_STDERR = 64 << 10


@dataclass(slots=True, kw_only=True)
class Run:
    """How the talk with an agent went."""

    ended: str = ""
    problem: str = ""
    result: ExecResult | None = None
    stderr: bytes = b""


class AcpAgent:
    """An agent driven by ACP: `command`, or that of a known CLI (`cli`) which is also given its settings.

    What it asks permission for, and the files and terminals that it asks us for, are judged first and done in its
    sandbox; what it wants to know goes to a person. An agent that does not ask is bounded by the sandbox alone.
    """

    kind: AgentKind = "acp"
    driven = False
    abilities = Abilities(
        judged=True, asks=True, hears=True, resumes="replay", reports=True, acknowledges=True, mends=True
    )

    def __init__(
        self,
        name: str,
        *,
        command: tuple[str, ...] = (),
        cli: CliName | None = None,
        models: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.models = models
        self._spec: CliSpec | None = SPECS[cli] if cli is not None else None
        self._command = command

    def prepare(self) -> None:
        """Nothing is needed ahead of time."""

    async def run(self, assignment: Assignment, context: AttemptContext) -> Outcome:
        """Let the agent work on its prompt, again with each answer that it ends for; see `Agent.run`."""
        known = addressed(assignment, self.name, "end")
        while True:
            answers = await answered_before(context)
            repairs = Repairs(context, known, run=len(answers))
            outcome = await repairs.ended(await self._run(assignment, context, answers, repairs))
            if not isinstance(outcome.message, ClarificationRequest) or outcome.code != UNANSWERED:
                return outcome
            await ask_person(context, len(answers) + 1, outcome.message)

    async def _run(
        self, assignment: Assignment, context: AttemptContext, answers: tuple[str, ...], repairs: Repairs
    ) -> Outcome:
        if not isinstance(context.sandbox, Converses):
            return unable(f"sandboxes of tier {context.sandbox.tier!r} cannot talk with a running program")
        launch = self._launch(assignment, context)
        if isinstance(launch, Outcome):
            return launch
        await require_launch(context, self._program())
        if launch is not None and self._spec is not None:
            await write_files(context.sandbox, self._spec.files(launch))
        log = SessionLog(redact=redactor(context.endpoint), show=shower(context))
        updates = Updates(log)
        client = AcpClient(context, updates)
        run = Run()
        talk = functools.partial(_talk, assignment, context, client.wire, updates, log, answers, repairs)
        began = time.monotonic()
        finished = await paid(self._work(assignment, context, client, log, launch, run, talk), context.endpoint)
        updates.flush()
        return await outcome_of(
            context,
            log,
            _result(run, began) if finished else None,
            program=self._program()[0],
            problem=run.problem,
            malformed=client.wire.malformed,
            seconds=time.monotonic() - began,
        )

    def _launch(self, assignment: Assignment, context: AttemptContext) -> Launch | Outcome | None:
        if self._spec is None:
            return None
        if self._spec.acp is None and not self._command:
            return unable(f'{self._spec.name} does not speak ACP by itself: use kind = "cli", or name a command')
        return launch_of(self._spec, assignment, context, stand_in=bool(self._command), asks=True)

    def _program(self) -> tuple[str, ...]:
        if self._command or self._spec is None:
            return self._command
        return (self._spec.program, *(self._spec.acp or ()))

    async def _work(
        self,
        assignment: Assignment,
        context: AttemptContext,
        client: AcpClient,
        log: SessionLog,
        launch: Launch | None,
        run: Run,
        talk: Callable[[], Coroutine[Any, Any, str]],
    ) -> bool:
        """Start the agent, talk with it, and end it; always returns True."""
        environment = environment_of(self._spec, launch, context) | await offer_message(context.sandbox)
        assert isinstance(context.sandbox, Converses)
        opening = started(
            context.sandbox,
            clean_output(context),
            self._program(),
            client.wire,
            environment,
            assignment.seconds,
            run,
        )
        async with opening as running:
            talking = asyncio.ensure_future(talk())
            try:
                waited: list[asyncio.Future[Any]] = [running, talking, client.wire.failed]
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if client.wire.failed.done():
                    client.wire.failed.result()
                if talking.done():
                    _ended(talking, run, client.wire)
                else:
                    run.problem = "it ended before it had answered"
            finally:
                await _dismiss(talking, client.wire, log.session)
        return True


def _ended(talking: asyncio.Future[str], run: Run, wire: Wire) -> None:
    try:
        run.ended = talking.result()
    except AcpError as error:
        run.problem = error.message
        return
    if run.ended != "end_turn":
        run.problem = f"it stopped: {run.ended[:100] or 'for no reason'}"
    if wire.malformed and run.problem:
        run.problem += f"; {wire.malformed} lines were no JSON, the last: {wire.odd}"


async def _dismiss(talking: asyncio.Future[str], wire: Wire, session: str) -> None:
    """End the talk; an agent in the middle of it is told, and gets a moment."""
    if not talking.done():
        if session:
            wire.notify("session/cancel", {"sessionId": session})
            await asyncio.wait([talking], timeout=_LEAVE_SECONDS)
        talking.cancel()
        await asyncio.wait([talking])
    if not talking.cancelled():
        talking.exception()
    await wire.abandon()


@asynccontextmanager
async def started(
    sandbox: Converses,
    show: OnOutput | None,
    program: tuple[str, ...],
    wire: Wire,
    environment: Mapping[str, str],
    seconds: float,
    run: Run,
) -> AsyncIterator[asyncio.Future[ExecResult]]:
    """Run an agent behind the relay for the block; afterwards everything in its sandbox is killed."""

    def heard(stream: Stream, piece: bytes) -> None:
        if stream == "stdout":
            wire.take(piece)
            return
        run.stderr = (run.stderr + piece)[-_STDERR:]
        if show is not None:
            show(stream, piece)

    running = asyncio.ensure_future(
        sandbox.converse(
            ("python3", "-I", "-c", inspect.getsource(_acp_relay), *program),
            wire.outgoing(),
            timeout=seconds,
            environment=environment,
            output_limit=_OUTPUT_LIMIT,
            on_output=heard,
        )
    )
    try:
        yield running
        wire.close()
        await asyncio.wait([running], timeout=_LEAVE_SECONDS)
    finally:
        if not running.done():
            running.cancel()
            await asyncio.wait([running])
        if not running.cancelled() and running.exception() is None:
            run.result = running.result()
    if not running.cancelled():
        running.result()


async def greet(wire: Wire) -> dict[str, Any]:
    """Agree on the protocol; return what the agent says of itself. Raises `AcpError`."""
    hello = await wire.request(
        "initialize",
        {
            "protocolVersion": PROTOCOL_VERSION,
            "clientCapabilities": CAPABILITIES,
            "clientInfo": {"name": "chargehand", "version": "1"},
        },
    )
    if hello.get("protocolVersion") != PROTOCOL_VERSION:
        version = hello.get("protocolVersion")
        raise AcpError(f"it speaks version {version!r} of the protocol, not {PROTOCOL_VERSION}")
    return hello


async def open_session(wire: Wire, hello: Mapping[str, Any]) -> str:
    """Return the id of a new session; raises `AcpError`, which names the ways to log in where one is asked for."""
    try:
        session = await wire.request("session/new", {"cwd": WORKSPACE, "mcpServers": []})
    except AcpError as error:
        ways = ", ".join(text_at(each, "id") for each in objects_at(hello, "authMethods"))
        raise AcpError(
            f"it opened no session: {error.message}" + (f" (logs in by: {ways})" if ways else "")
        ) from None
    name = text_at(session, "sessionId")
    if not name:
        raise AcpError("it opened a session without an id")
    return name


async def _talk(
    assignment: Assignment,
    context: AttemptContext,
    wire: Wire,
    updates: Updates,
    log: SessionLog,
    answers: tuple[str, ...],
    repairs: Repairs,
) -> str:
    """Send the prompt, after it what persons say meanwhile, and what to mend; return why the agent stopped."""
    hello = await greet(wire)
    session = await open_session(wire, hello)
    log.take(AgentEvent(kind="session", text=session))
    heard, text = len(assignment.messages), "\n\n".join([briefing(assignment), *answers])
    while True:
        context.delivered(heard, acknowledged=False)
        taken = functools.partial(context.delivered, heard, acknowledged=True)
        updates.on_turn(taken)
        answer = await wire.request(
            "session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]}
        )
        taken()
        updates.flush()
        log.take(AgentEvent(kind="usage", usage=_usage(answer)))
        if answer.get("stopReason") != "end_turn":
            return text_at(answer, "stopReason")
        words = context.heard()[heard:]
        heard += len(words)
        more = "\n\n".join(map(person_message, words)) or await repairs.again(look=look_over(wire))
        if more is None:
            return "end_turn"
        text = more


def _usage(answer: Mapping[str, Any]) -> Usage | None:
    told = inner(answer, "usage") or inner(answer, "_meta", "usage")
    fresh, output = count_at(told, "inputTokens"), count_at(told, "outputTokens")
    if fresh is None:
        return None
    read, written = count_at(told, "cachedReadTokens"), count_at(told, "cachedWriteTokens")
    thought = count_at(told, "thoughtTokens") or 0
    return Usage(
        input=fresh + (read or 0) + (written or 0),
        output=None if output is None else output + thought,
        cached=read,
        cache_write=written,
    )


def _result(run: Run, began: float) -> ExecResult:
    """Return how it ended; after a good talk the exit code says nothing, for nobody waited for it."""
    seconds = time.monotonic() - began
    result = run.result or ExecResult(exit_code=0, stdout=b"", stderr=run.stderr, seconds=seconds)
    result = replace(result, stdout=b"")
    if result.timed_out or (run.problem and not run.ended):
        return result
    return replace(result, exit_code=0)
