"""ACP agents: any program that speaks the Agent Client Protocol over its standard streams."""

from __future__ import annotations

import asyncio
import base64
import functools
import inspect
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from chargehand.agents._json_rpc import RpcError, count_at, object_at, objects_at, text_at
from chargehand.agents.acp import relay
from chargehand.agents.acp.client import CAPABILITIES, AcpClient
from chargehand.agents.acp.connection import AcpConnection
from chargehand.agents.clis import GATEWAY, SPECS, CliSpec
from chargehand.agents.contract import ABILITIES, AgentOutcome, Assignment, AttemptContext, Endpoint
from chargehand.agents.messages import UNANSWERED, message_address
from chargehand.agents.programs.events import AgentEvent, SessionLog
from chargehand.agents.programs.last_message import (
    MESSAGE,
    MESSAGE_BYTES,
    MessageRepairs,
    ReadMessage,
    answered_questions,
    ask_person,
    offer_message,
    unreadable_file,
)
from chargehand.agents.programs.launching import environment_of, launch_of, require_launch, write_files
from chargehand.agents.programs.running import (
    outcome_of,
    redacted_output,
    redactor,
    run_while_paid,
    text_output,
    unable,
)
from chargehand.agents.prompts import briefing, person_message
from chargehand.core.messages import ClarificationRequest
from chargehand.models.contract import Usage
from chargehand.sandbox.contract import Converses, ExecResult, OnOutput, Stream

PROTOCOL_VERSION = 1
_MOST_OUTPUT_BYTES = 256 << 20
# Time for an agent to end by itself before everything in its sandbox is killed.
_LEAVE_SECONDS = 0.5
# The end of its standard error, where a program says why it died.
_STDERR_BYTES = 64 << 10


class AcpRun(Struct, kw_only=True):
    """The course of one agent run: why its last turn stopped, its problem, and how its process ended."""

    stop_reason: str = ""
    problem: str = ""
    result: ExecResult | None = None
    stderr: bytes = b""


class AcpAgent:
    """An agent driven by ACP: `command`, or a known CLI (`cli`), which also gets its settings.

    Its permission requests, and the files and terminals that it asks us for, are judged first and executed in its
    sandbox; its questions go to a person. An agent that does not ask is bounded by the sandbox alone.
    """

    kind: str = "acp"
    checkpoints_itself = False
    abilities = ABILITIES["acp"]

    def __init__(
        self,
        name: str,
        *,
        command: tuple[str, ...] = (),
        cli: str | None = None,
        models: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.models = models
        self._spec: CliSpec | None = SPECS[cli] if cli is not None else None
        self._command = command

    def prepare(self) -> None:
        """Do nothing: nothing is needed ahead of time."""

    async def run(self, assignment: Assignment, context: AttemptContext) -> AgentOutcome:
        """Let the agent work on its prompt, again with each answer to its questions; see `Agent.run`."""
        address = message_address(assignment, self.name, "end")
        while True:
            # An answer begins a new run of the agent, whose own session ended with its sandbox.
            answers = await answered_questions(context)
            repairs = MessageRepairs(context, address, run=len(answers))
            outcome = await repairs.conclude(await self._run_once(assignment, context, answers, repairs))
            if not isinstance(outcome.message, ClarificationRequest) or outcome.code != UNANSWERED:
                return outcome
            await ask_person(context, len(answers) + 1, outcome.message)

    async def _run_once(
        self, assignment: Assignment, context: AttemptContext, answers: tuple[str, ...], repairs: MessageRepairs
    ) -> AgentOutcome:
        if not isinstance(context.sandbox, Converses):
            return unable(f"sandboxes of tier {context.sandbox.tier!r} cannot talk with a running program")
        launch, program = None, self._command
        if self._spec is not None:
            if self._spec.acp is None and not self._command:
                return unable(
                    f'{self._spec.name} does not speak ACP by itself: use kind = "cli", or name a command'
                )
            made = launch_of(self._spec, assignment, context, stand_in=bool(self._command), asks=True)
            if isinstance(made, AgentOutcome):
                return made
            launch, program = made, program or (self._spec.program, *(self._spec.acp or ()))
        await require_launch(context, program)
        if launch is not None and self._spec is not None:
            await write_files(context.sandbox, self._spec.files(launch))
        environment = environment_of(self._spec, launch, context)
        log = SessionLog(redact=redactor(context.endpoint), show=text_output(context))
        # The log is the agent's own statement: it only decides whether the agent's output is readable.
        client = AcpClient(context, log)
        run = AcpRun()
        began = time.monotonic()
        names_tools = self._spec is None or not self._spec.acp_tools_by_settings
        session = _AcpSession(assignment, context, client, log, answers, repairs, names_tools)
        work = session.run(program, environment, run)
        finished = await run_while_paid(work, context.endpoint)
        client.updates.flush()
        seconds = time.monotonic() - began
        result = run.result or ExecResult(exit_code=0, stdout=b"", stderr=run.stderr, seconds=seconds)
        # After a good session the exit code is meaningless: the program got no time to leave by itself.
        if not result.timed_out and (run.stop_reason or not run.problem):
            result = replace(result, exit_code=0)
        if not client.connection.started:
            result = replace(result, seconds=0.0)  # otherwise the time of its relay
        return await outcome_of(
            context,
            log,
            replace(result, stdout=b"") if finished else None,
            program=program[0],
            problem=run.problem,
            malformed=client.connection.messages.malformed,
            seconds=seconds,
        )


class _AcpSession(Struct, frozen=True):
    """One session with a running agent: our prompts, and its replies.

    `names_tools`: the session names the tools of the gateway.
    """

    assignment: Assignment
    context: AttemptContext
    client: AcpClient
    log: SessionLog
    answers: tuple[str, ...]
    repairs: MessageRepairs
    names_tools: bool

    async def prompt(self) -> str:
        """Send the prompt, then later messages of persons, and repairs; return why the agent stopped."""
        connection, updates = self.client.connection, self.client.updates
        hello = await greet(connection)
        servers = tool_servers(self.context.endpoint, hello) if self.names_tools else []
        setup = {"cwd": self.context.sandbox.cwd, "mcpServers": servers}
        try:
            opened = await connection.request("session/new", setup)
        except RpcError as error:
            ways = ", ".join(text_at(each, "id") for each in objects_at(hello, "authMethods"))
            logins = f" (logs in by: {ways})" if ways else ""
            raise RpcError(f"it did not open a session: {error.message}{logins}") from None
        session = text_at(opened, "sessionId")
        if not session:
            raise RpcError("it opened a session without an id")
        self.log.take(AgentEvent(kind="session", text=session))
        seen, text = len(self.assignment.messages), "\n\n".join([briefing(self.assignment), *self.answers])
        while True:
            self.context.mark_delivered(seen, acknowledged=False)
            # A prompt has reached its work at the first update of that turn, not when it was sent.
            acknowledge = functools.partial(self.context.mark_delivered, seen, acknowledged=True)
            updates.on_turn(acknowledge)
            prompt = [{"type": "text", "text": text}]
            answer = await connection.request("session/prompt", {"sessionId": session, "prompt": prompt})
            acknowledge()
            updates.flush()
            self.log.take(AgentEvent(kind="usage", usage=_read_usage(answer)))
            # A closed set of the protocol. The agent's accompanying text is never searched.
            if answer.get("stopReason") != "end_turn":
                return text_at(answer, "stopReason")
            fresh = self.context.person_messages()[seen:]
            seen += len(fresh)
            # Over the relay, since the sandbox runs one command at a time and the agent is that command.
            read_file = relayed_message_reader(connection)
            more = "\n\n".join(map(person_message, fresh)) or await self.repairs.again(read_file=read_file)
            if more is None:
                return "end_turn"
            text = more

    async def run(self, program: tuple[str, ...], environment: Mapping[str, str], run: AcpRun) -> bool:
        """Start the agent, hold a session with it, and end it; return True, unless `run_while_paid` cancels it."""
        context = self.context
        connection = self.client.connection
        environment = {**environment, **await offer_message(context.sandbox)}
        assert isinstance(context.sandbox, Converses)
        show = redacted_output(context)
        seconds = self.assignment.seconds
        async with running_agent(context.sandbox, show, program, connection, environment, seconds, run) as running:
            prompting = asyncio.ensure_future(self.prompt())
            try:
                waited: list[asyncio.Future[Any]] = [running, prompting, connection.failed]
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if connection.failed.done():
                    connection.failed.result()
                if not prompting.done():
                    run.problem = "it ended before it answered"
                elif isinstance(error := prompting.exception(), RpcError):
                    run.problem = error.message
                else:
                    run.stop_reason = prompting.result()
                    if run.stop_reason != "end_turn":
                        lines = connection.messages
                        odd = ""
                        if lines.malformed:
                            odd = f"; {lines.malformed} lines were not JSON, the last: {lines.odd}"
                        run.problem = f"it stopped: {run.stop_reason[:100] or 'for no reason'}{odd}"
            finally:
                # In the middle of a turn the agent is notified, and gets a moment to end by itself.
                if not prompting.done():
                    if self.log.session:
                        connection.notify("session/cancel", {"sessionId": self.log.session})
                        await asyncio.wait([prompting], timeout=_LEAVE_SECONDS)
                    prompting.cancel()
                    await asyncio.wait([prompting])
                if not prompting.cancelled():
                    prompting.exception()  # otherwise asyncio warns of an unretrieved exception
                await connection.cancel_handlers()
        return True


@asynccontextmanager
async def running_agent(
    sandbox: Converses,
    show: OnOutput | None,
    program: tuple[str, ...],
    connection: AcpConnection,
    environment: Mapping[str, str],
    seconds: float,
    run: AcpRun,
) -> AsyncIterator[asyncio.Future[ExecResult]]:
    """Run an agent behind the relay for the block; afterwards everything in its sandbox is killed."""

    def take_output(stream: Stream, piece: bytes) -> None:
        if stream == "stdout":
            connection.take(piece)
            return
        run.stderr = (run.stderr + piece)[-_STDERR_BYTES:]
        if show is not None:
            show(stream, piece)

    running = asyncio.ensure_future(
        sandbox.converse(
            ("python3", "-I", "-c", inspect.getsource(relay), *program),
            connection.channel.outgoing(),
            timeout=seconds,
            environment=environment,
            output_limit=_MOST_OUTPUT_BYTES,
            on_output=take_output,
        )
    )
    try:
        # The relay closes the agent's input at the end of ours, which makes the agent leave by itself.
        yield running
        connection.channel.close()
        await asyncio.wait([running], timeout=_LEAVE_SECONDS)
    finally:
        if not running.done():
            running.cancel()
            await asyncio.wait([running])
        if not running.cancelled() and running.exception() is None:
            run.result = running.result()
    if not running.cancelled():
        running.result()


async def greet(connection: AcpConnection) -> dict[str, Any]:
    """Agree on the protocol; return the agent's self-description. Raises `RpcError`."""
    hello = await connection.request(
        "initialize",
        {
            "protocolVersion": PROTOCOL_VERSION,
            "clientCapabilities": CAPABILITIES,
            "clientInfo": {"name": "chargehand", "version": "1"},
        },
    )
    if hello.get("protocolVersion") != PROTOCOL_VERSION:
        version = hello.get("protocolVersion")
        raise RpcError(f"it speaks version {version!r} of the protocol, not {PROTOCOL_VERSION}")
    return hello


def tool_servers(endpoint: Endpoint | None, hello: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the MCP server of the attempt's gateway in the form of ACP, if the agent can use it."""
    able = object_at(hello, "agentCapabilities", "mcpCapabilities").get("http") is True
    if endpoint is None or not endpoint.tools or not able:
        return []
    key = {"name": "Authorization", "value": f"Bearer {endpoint.token}"}
    return [{"type": "http", "name": "chargehand", "url": f"{GATEWAY}/mcp", "headers": [key]}]


def relayed_message_reader(connection: AcpConnection) -> ReadMessage:
    """Return a reader of the agent's last message for use during its run: its relay reads the file."""

    async def read() -> bytes | None:
        try:
            found = await connection.order("peek", path=MESSAGE, limit=MESSAGE_BYTES)
        except RpcError:
            raise unreadable_file() from None
        content = found.get("content")
        return None if content is None else base64.b64decode(str(content))

    return read


def _read_usage(answer: Mapping[str, Any]) -> Usage | None:
    told = object_at(answer, "usage") or object_at(answer, "_meta", "usage")
    fresh, output = count_at(told, "inputTokens"), count_at(told, "outputTokens")
    if fresh is None:
        return None
    read, written = count_at(told, "cachedReadTokens"), count_at(told, "cachedWriteTokens")
    thought = count_at(told, "thoughtTokens") or 0
    # `Usage.input` includes cache reads and writes; ACP counts these apart.
    return Usage(
        input=fresh + (read or 0) + (written or 0),
        output=None if output is None else output + thought,
        cached=read,
        cache_write=written,
    )
