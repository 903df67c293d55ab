"""Agent CLIs: programs that work on a prompt unattended and report their actions in JSON Lines."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from msgspec.structs import replace

from chargehand.agents._json_rpc import JsonLines
from chargehand.agents.clis import SPECS, CliLaunch, CliSpec
from chargehand.agents.contract import ABILITIES, AgentOutcome, Assignment, AttemptContext
from chargehand.agents.messages import message_address, with_message
from chargehand.agents.programs.cli_forms import FORMS
from chargehand.agents.programs.events import SessionLog
from chargehand.agents.programs.last_message import MessageRepairs, offer_message
from chargehand.agents.programs.launching import environment_of, launch_of, require_launch, write_files
from chargehand.agents.programs.running import (
    NO_USAGE,
    outcome_of,
    redacted_output,
    redactor,
    run_while_paid,
    text_output,
    usage_so_far,
)
from chargehand.sandbox.contract import ExecResult, Stream

_MOST_OUTPUT_BYTES = 64 << 20
# The least time left for asking a program again.
_LEAST_SECONDS = 1.0
# An acceptable session id: it becomes a word of a command line, so it must not look like an option.
_SESSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")


class CliAgent:
    """One of the known CLIs (`SPECS`); `command` is started instead of the program by its own name.

    It runs in the sandbox with its own sandbox and questions off. Its report is kept as a transcript, with its own
    token count next to the gateway's. "done" is a claim, as always.
    """

    kind: str = "cli"
    checkpoints_itself = False
    abilities = ABILITIES["cli"]

    def __init__(
        self, name: str, cli: str, *, command: tuple[str, ...] = (), models: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.models = models
        self._spec: CliSpec = SPECS[cli]
        self._command = command

    def prepare(self) -> None:
        """Do nothing: nothing is needed ahead of time."""

    async def run(self, assignment: Assignment, context: AttemptContext) -> AgentOutcome:
        """Run the program to its end; see `Agent.run`."""
        address = message_address(assignment, self.name, "end")
        launch = launch_of(self._spec, assignment, context, stand_in=bool(self._command))
        if isinstance(launch, AgentOutcome):
            return with_message(launch, address, None)
        program = self._command or (self._spec.program,)
        await require_launch(context, program)
        await write_files(context.sandbox, self._spec.files(launch))
        environment = environment_of(self._spec, launch, context) | await offer_message(context.sandbox)
        repairs, seconds = MessageRepairs(context, address), 0.0
        while True:
            left = assignment.seconds - seconds
            outcome, session = await self._run_once(program, launch, environment, context, left)
            seconds += outcome.seconds
            outcome = replace(outcome, seconds=seconds)
            again = None
            if outcome.claim == "done":
                # Only in its own session: a fresh start did not do the work, and would have to guess the meaning.
                why_not = "" if _SESSION.fullmatch(session) else "it reported no session to resume"
                if not why_not and assignment.seconds - seconds <= _LEAST_SECONDS:
                    why_not = "no time is left"
                again = await repairs.again(why_not=why_not)
            if again is None:
                return await repairs.conclude(outcome)
            launch = replace(launch, prompt=again, session=session)

    async def _run_once(
        self,
        program: tuple[str, ...],
        launch: CliLaunch,
        environment: Mapping[str, str],
        context: AttemptContext,
        seconds: float,
    ) -> tuple[AgentOutcome, str]:
        """Run the program once, for at most `seconds`; return its outcome and its reported session id."""
        log = SessionLog(redact=redactor(context.endpoint), show=text_output(context))
        read_line = FORMS[self._spec.form]
        lines = JsonLines()
        show = redacted_output(context)
        # A resumed run of such a CLI reports its earlier tokens again, so it is compared with the whole attempt.
        since = NO_USAGE if self._spec.reports_session_total else usage_so_far(context.endpoint)

        def take_output(stream: Stream, piece: bytes) -> None:
            if stream == "stdout":
                for line in lines.take(piece):
                    for event in read_line(line):
                        log.take(event)
            elif show is not None:
                show(stream, piece)

        began = time.monotonic()
        running = context.sandbox.exec(
            (*program, *self._spec.words(launch)),
            timeout=seconds,
            environment=environment,
            output_limit=_MOST_OUTPUT_BYTES,
            on_output=take_output,
        )
        result = await run_while_paid(running, context.endpoint)
        # The last line may lack its end if the program was killed.
        for line in lines.finish():
            for event in read_line(line):
                log.take(event)
        problem = self._problem(log, lines, result)
        outcome = await outcome_of(
            context,
            log,
            result,
            program=program[0],
            problem=problem,
            malformed=lines.malformed,
            seconds=time.monotonic() - began if result is None else result.seconds,
            since=since,
        )
        if problem and not log.error and (outcome.exit_code, outcome.code) == (0, "agent_failed"):
            outcome = replace(outcome, code="end_unreadable")  # it ended well, and only its report is malformed
        return outcome, log.session

    def _problem(self, log: SessionLog, lines: JsonLines, result: ExecResult | None) -> str:
        """Return why a run with exit code 0 is not complete, judging by its report; "" if it is."""
        if result is not None and result.truncated:
            return f"it wrote more than {_MOST_OUTPUT_BYTES >> 20} MiB"
        if log.counts and (log.end is not None or not self._spec.tells_its_end):
            return ""
        odd = f"; {lines.malformed} lines were not JSON, the last: {lines.odd}" if lines.malformed else ""
        return f"it did not report how it ended{odd}"
