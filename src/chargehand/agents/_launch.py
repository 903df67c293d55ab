"""Whether an agent's program may be started: what it does afterwards is the sandbox's to bound."""

from __future__ import annotations

from collections.abc import Sequence

from chargehand.agents._contract import AttemptContext
from chargehand.policy.actions import Run
from chargehand.policy.judgement import denied


async def require_launch(context: AttemptContext, command: Sequence[str]) -> None:
    """Have the start of a program judged; raises `RefusedError` (`policy_denied`) unless it is allowed."""
    action = Run(kind="launch", run=tuple(command), trusted=True)
    judgement = await context.judge("launch", action)
    if judgement.effect != "allow":
        raise denied(action.kind, judgement)
