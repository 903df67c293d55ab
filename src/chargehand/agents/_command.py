"""The command agent: any program that edits the working directory and exits 0."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from chargehand.agents._claims import addressed
from chargehand.agents._contract import Abilities, Assignment, AttemptContext, Claim, Outcome
from chargehand.agents._ending import QUOTA_WAIT, clean_output, cleaned, metered, no_money, paid, redactor
from chargehand.agents._launch import require_launch
from chargehand.agents._message_file import offer_message
from chargehand.agents._repairing import Repairs
from chargehand.core.config import AgentKind
from chargehand.sandbox.contract import ExecResult, LimitName, Sandbox

REPORT = "/home/agent/.chargehand/report.json"
"""Where the report of the attempt before lies; its path stands in $CHARGEHAND_REPORT from the second run on."""
_OUTPUT_LIMIT = 1_000_000
_MISSING, _NOT_EXECUTABLE = 127, 126
_ONCE = "a command is run once in an attempt"
_LIMITS: Mapping[LimitName, str] = {
    "wall_time": "time",
    "output": "output (sandbox.output_mb)",
    "cpu_time": "processor time (sandbox.cpu_time)",
    "memory": "memory (sandbox.memory_mb)",
    "file_size": "the size of a file (sandbox.file_mb)",
    "processes": "processes (sandbox.processes)",
}


class CommandAgent:
    """Runs a program with the request in `$CHARGEHAND_REQUEST`; never through a shell.

    Its role stands in `$CHARGEHAND_ROLE`, what that asks of it in `$CHARGEHAND_ROLE_PROMPT`. One that is given
    models finds their endpoint in `$OPENAI_BASE_URL` and the like. It may leave its end as a message in the file
    that `$CHARGEHAND_MESSAGE` names.
    """

    kind: AgentKind = "command"
    driven = False
    abilities = Abilities()

    def __init__(self, name: str, command: tuple[str, ...], *, models: tuple[str, ...] = ()) -> None:
        self.name = name
        self.models = models
        self._command = command

    def prepare(self) -> None:
        """Nothing is needed ahead of time."""

    async def run(self, assignment: Assignment, context: AttemptContext) -> Outcome:
        """Run the program to its end; see `Agent.run`."""
        environment = {
            "CHARGEHAND_REQUEST": assignment.request,
            "CHARGEHAND_MISSION": assignment.mission,
            "CHARGEHAND_ATTEMPT": str(assignment.number),
            **_role(assignment),
            **(context.endpoint.environment if context.endpoint else {}),
        }
        report = _report(assignment)
        if report is not None:
            await _write_report(context.sandbox, report)
            environment["CHARGEHAND_REPORT"] = REPORT
        await require_launch(context, self._command)
        environment |= await offer_message(context.sandbox)
        repairs = Repairs(context, addressed(assignment, self.name, "end"))
        began = time.monotonic()
        running = context.sandbox.exec(
            self._command,
            timeout=assignment.seconds,
            environment=environment,
            output_limit=_OUTPUT_LIMIT,
            on_output=clean_output(context),
        )
        result = await paid(running, context.endpoint)
        spent = metered(context.endpoint)
        ended_badly = result is None or (result.exit_code != 0 and not result.timed_out)
        if spent.quota is not None and not spent.refused and ended_badly:
            await context.park(QUOTA_WAIT, spent.quota, seconds=time.monotonic() - began)
        if result is None or (spent.refused and result.exit_code != 0 and not result.timed_out):
            outcome = replace(no_money(spent), seconds=time.monotonic() - began)
            return await repairs.ended(outcome)
        outcome = _outcome(result, self._command[0])
        clean = redactor(context.endpoint)
        said = cleaned(clean, result.stdout).decode(errors="replace")
        outcome = replace(outcome, output=cleaned(clean, outcome.output), said=said)
        return await repairs.ended(outcome, why_not=_ONCE)


def _role(assignment: Assignment) -> dict[str, str]:
    """Return what the program finds of its role: name and prompt, where there is one."""
    role = assignment.role
    return {"CHARGEHAND_ROLE": role.name, "CHARGEHAND_ROLE_PROMPT": role.prompt} if role.name else {}


def _report(assignment: Assignment) -> bytes | None:
    """Return what the program is told: the report on the attempt before, and what a person said meanwhile."""
    if not assignment.messages:
        return assignment.report
    document = msgspec.json.decode(assignment.report) if assignment.report else {}
    return msgspec.json.encode({**document, "messages": assignment.messages})


async def _write_report(sandbox: Sandbox, report: bytes) -> None:
    script = 'mkdir -p "${1%/*}" && cat > "$1"'
    await sandbox.exec(["/bin/sh", "-c", script, "sh", REPORT], stdin=report, cwd="/")


def _outcome(result: ExecResult, program: str) -> Outcome:
    claim, reason = _claim(result, program)
    return Outcome(
        claim=claim,
        reason=reason,
        output=result.stdout + result.stderr,
        seconds=result.seconds,
        exit_code=result.exit_code,
        truncated=result.truncated,
        code=_code(result, claim),
        limit=result.limit,
    )


def _code(result: ExecResult, claim: Claim) -> str:
    if claim == "done":
        return ""
    if result.limit is not None and claim == "failed":
        return result.limit
    return "agent_missing" if _is_missing(result) else "agent_failed"


def _claim(result: ExecResult, program: str) -> tuple[Claim, str]:
    if result.timed_out:
        return "timed_out", f"the agent was stopped at its time limit after {result.seconds:.1f} s"
    if result.exit_code == 0:
        return "done", "the agent says it is done"
    if _is_missing(result):
        return "failed", f"the agent's program {program!r} cannot be run in the sandbox"
    if result.limit is not None:
        return "failed", f"the agent was ended by the limit of {_LIMITS[result.limit]}"
    return "failed", f"the agent ended with exit code {result.exit_code}"


def _is_missing(result: ExecResult) -> bool:
    return result.exit_code in (_MISSING, _NOT_EXECUTABLE) and not result.stdout
