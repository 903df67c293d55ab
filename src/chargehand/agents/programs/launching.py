"""Starts an agent's own program: judged first, with its model, its settings files and its environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chargehand.agents.clis import CliLaunch, CliSpec
from chargehand.agents.contract import AgentOutcome, Assignment, AttemptContext
from chargehand.agents.programs.running import unable
from chargehand.agents.prompts import briefing
from chargehand.policy.actions import Run
from chargehand.policy.judgement import denied
from chargehand.sandbox.contract import Sandbox


async def require_launch(context: AttemptContext, command: Sequence[str]) -> None:
    """Have the start of a program judged; raises `RefusedError` (`policy_denied`) unless it is allowed.

    The sandbox bounds its later actions.
    """
    action = Run(kind="launch", run=tuple(command), trusted=True)
    judgement = await context.judge("launch", action)
    if judgement.effect != "allow":
        raise denied(action.kind, judgement)


def launch_of(
    spec: CliSpec, assignment: Assignment, context: AttemptContext, *, stand_in: bool, asks: bool = False
) -> CliLaunch | AgentOutcome:
    """Return the launch of a CLI, or why it cannot start: it does not work in sandboxes, or has no model."""
    if spec.outside and not stand_in:
        return unable(f"{spec.name} cannot be driven: {spec.outside}")
    endpoint = context.endpoint
    model = endpoint.models[0] if endpoint is not None and endpoint.models else None
    if model is None and spec.dialects:
        return unable(f"{spec.name} needs a model: name one of [models] in the agent's `model`")
    # The model's own dialect if the CLI speaks it; else the CLI's best, which the gateway translates.
    dialect = (
        model.dialect if model is not None and model.dialect in spec.dialects else next(iter(spec.dialects), "")
    )
    return CliLaunch(
        prompt=briefing(assignment),
        model=model.name if model else "",
        dialect=dialect,
        token=endpoint.token if endpoint else "",
        asks=asks,
        cwd=context.sandbox.cwd,
        # An ACP agent gets the tools with its session.
        tools=endpoint is not None and endpoint.tools and (spec.acp_tools_by_settings or not asks),
    )


def environment_of(spec: CliSpec | None, launch: CliLaunch | None, context: AttemptContext) -> dict[str, str]:
    """Return the environment of another vendor's program, in addition to the sandbox's own."""
    gateway = dict(context.endpoint.environment) if context.endpoint else {}
    own = spec.environment(launch) if spec is not None and launch is not None else {}
    # Colours and spinners would be noise in the transcript, and telemetry would leave the sandbox.
    return {**gateway, "CI": "1", "NO_COLOR": "1", "DO_NOT_TRACK": "1", **own}


async def write_files(sandbox: Sandbox, files: Mapping[str, str]) -> None:
    """Write settings files, by their paths below HOME."""
    script = 'file=$HOME/$1; mkdir -p "${file%/*}" && cat > "$file"'
    for path, text in files.items():
        await sandbox.exec(["/bin/sh", "-c", script, "sh", path], stdin=text.encode(), cwd="/")
