"""The command agent: any program that edits the working directory and exits 0."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from chargehand.agents.contract import ABILITIES, AgentOutcome, Assignment, AttemptContext, Claim
from chargehand.agents.messages import message_address
from chargehand.agents.programs.last_message import MessageRepairs, offer_message
from chargehand.agents.programs.launching import require_launch
from chargehand.agents.programs.running import (
    QUOTA_WAIT,
    never_started,
    out_of_money,
    redact_bytes,
    redacted_output,
    redactor,
    run_while_paid,
    usage_so_far,
)
from chargehand.sandbox.contract import ExecResult, LimitName

# The report on the previous attempt; $CHARGEHAND_REPORT holds its path from the second run on.
REPORT = "/home/agent/.chargehand/report.json"
_MOST_OUTPUT_BYTES = 1_000_000
_LIMITS: Mapping[LimitName, str] = {
    "wall_time": "time",
    "output": "output (sandbox.output_mb)",
    "cpu_time": "processor time (sandbox.cpu_time)",
    "memory": "memory (sandbox.memory_mb)",
    "file_size": "the size of a file (sandbox.file_mb)",
    "processes": "processes (sandbox.processes)",
    "disk": "the limit of written data (sandbox.disk_mb)",
    "files": "how many files may be written (sandbox.files)",
}


class CommandAgent:
    """Runs a program with the request in `$CHARGEHAND_REQUEST`; never through a shell.

    Its role is in `$CHARGEHAND_ROLE`, the role's prompt in `$CHARGEHAND_ROLE_PROMPT`, and lessons from earlier
    missions, if any, in `$CHARGEHAND_LESSONS`. With models, their endpoint is in `$OPENAI_BASE_URL` and similar
    variables. The program may leave its last message in the file that `$CHARGEHAND_MESSAGE` names.
    """

    kind: str = "command"
    checkpoints_itself = False
    abilities = ABILITIES["command"]

    def __init__(self, name: str, command: tuple[str, ...], *, models: tuple[str, ...] = ()) -> None:
        self.name = name
        self.models = models
        self._command = command

    def prepare(self) -> None:
        """Do nothing: nothing is needed ahead of time."""

    async def run(self, assignment: Assignment, context: AttemptContext) -> AgentOutcome:
        """Run the program to its end; see `Agent.run`."""
        role = assignment.role
        environment = {
            "CHARGEHAND_REQUEST": assignment.request,
            "CHARGEHAND_MISSION": assignment.mission,
            "CHARGEHAND_ATTEMPT": str(assignment.number),
            **({"CHARGEHAND_LESSONS": "\n\n".join(assignment.lessons)} if assignment.lessons else {}),
            **({"CHARGEHAND_ROLE": role.name, "CHARGEHAND_ROLE_PROMPT": role.prompt} if role.name else {}),
            **(context.endpoint.environment if context.endpoint else {}),
        }
        report = assignment.report
        # A command gets no messages while it runs: they come with the report.
        if assignment.messages:
            document = msgspec.json.decode(report) if report else {}
            report = msgspec.json.encode({**document, "messages": assignment.messages})
        if report is not None:
            script = 'mkdir -p "${1%/*}" && cat > "$1"'
            await context.sandbox.exec(["/bin/sh", "-c", script, "sh", REPORT], stdin=report, cwd="/")
            environment["CHARGEHAND_REPORT"] = REPORT
        # Judged before it starts; afterwards the sandbox bounds an opaque program.
        await require_launch(context, self._command)
        environment |= await offer_message(context.sandbox)
        repairs = MessageRepairs(context, message_address(assignment, self.name, "end"))
        began = time.monotonic()
        running = context.sandbox.exec(
            self._command,
            timeout=assignment.seconds,
            environment=environment,
            output_limit=_MOST_OUTPUT_BYTES,
            on_output=redacted_output(context),
        )
        result = await run_while_paid(running, context.endpoint)
        seconds = time.monotonic() - began
        spent = usage_so_far(context.endpoint)
        ended_badly = result is None or (result.exit_code != 0 and not result.timed_out)
        if spent.quota is not None and not spent.refused and ended_badly:
            await context.park(QUOTA_WAIT, spent.quota, seconds=seconds)
        # A program that ends well although it was refused found another way: its end counts.
        if result is None or (spent.refused and ended_badly):
            return await repairs.conclude(replace(out_of_money(spent), seconds=seconds))
        redact = redactor(context.endpoint)
        outcome = _outcome(result, self._command[0])
        said = redact_bytes(redact, result.stdout).decode(errors="replace")
        outcome = replace(outcome, output=redact_bytes(redact, outcome.output), said=said)
        return await repairs.conclude(outcome, why_not="a command runs once in an attempt")


def _outcome(result: ExecResult, program: str) -> AgentOutcome:
    claim: Claim = "failed"
    code = "agent_failed"
    if result.timed_out:
        claim, reason = "timed_out", f"the agent was stopped at its time limit after {result.seconds:.1f} s"
    elif result.exit_code == 0:
        claim, code, reason = "done", "", "the agent says it is done"
    elif never_started(result):
        code, reason = "agent_missing", f"the agent's program {program!r} cannot be run in the sandbox"
    elif result.limit is not None:
        reason = f"the agent was ended by the limit of {_LIMITS[result.limit]}"
    else:
        reason = f"the agent ended with exit code {result.exit_code}"
    if claim == "failed" and result.limit is not None:
        code = result.limit
    return AgentOutcome(
        claim=claim,
        reason=reason,
        output=result.stdout + result.stderr,
        seconds=result.seconds,
        exit_code=result.exit_code,
        truncated=result.truncated,
        code=code,
        limit=result.limit,
    )
