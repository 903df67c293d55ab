"""The command agent: any program that edits the working directory and exits 0."""

from __future__ import annotations

from chargehand.agents._contract import Assignment, Claim, Outcome
from chargehand.core import AgentConfig, AgentKind
from chargehand.sandbox import ExecResult, OnOutput, Sandbox

REPORT = "/home/agent/.chargehand/report.json"
"""Where the report of the attempt before lies; its path stands in $CHARGEHAND_REPORT from the second run on."""
_OUTPUT_LIMIT = 1_000_000
_MISSING, _NOT_EXECUTABLE = 127, 126


class CommandAgent:
    """Runs a program with the request in `$CHARGEHAND_REQUEST`; never through a shell."""

    kind: AgentKind = "command"

    def __init__(self, name: str, config: AgentConfig) -> None:
        self.name = name
        self._command = config.command

    async def run(self, assignment: Assignment, sandbox: Sandbox, *, on_output: OnOutput | None) -> Outcome:
        """Run the program to its end; see `Agent.run`."""
        environment = {
            "CHARGEHAND_REQUEST": assignment.request,
            "CHARGEHAND_MISSION": assignment.mission,
            "CHARGEHAND_ATTEMPT": str(assignment.number),
        }
        if assignment.report is not None:
            await _write_report(sandbox, assignment.report)
            environment["CHARGEHAND_REPORT"] = REPORT
        result = await sandbox.exec(
            self._command,
            timeout=assignment.seconds,
            environment=environment,
            output_limit=_OUTPUT_LIMIT,
            on_output=on_output,
        )
        return _outcome(result, self._command[0])


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
        cost_usd=0.0,
        cost_known=True,
    )


def _claim(result: ExecResult, program: str) -> tuple[Claim, str]:
    if result.timed_out:
        return "timed_out", f"the agent was stopped at its time limit after {result.seconds:.1f} s"
    if result.exit_code == 0:
        return "done", "the agent says it is done"
    if result.exit_code in (_MISSING, _NOT_EXECUTABLE) and not result.stdout:
        return "failed", f"the agent's program {program!r} cannot be run in the sandbox"
    return "failed", f"the agent ended with exit code {result.exit_code}"
