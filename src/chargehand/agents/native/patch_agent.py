"""The patch agent: an existing patch, applied exactly or not at all; no model is asked."""

from __future__ import annotations

import time

from msgspec.structs import replace

from chargehand.agents.contract import ABILITIES, AgentOutcome, Assignment, AttemptContext
from chargehand.agents.messages import denial_text, message_address, with_message
from chargehand.agents.patches import patch_in
from chargehand.agents.toolbox import Toolbox, action_of

_STEP = "patch"
_TOOL = "apply_patch"


class PatchAgent:
    """Applies a given patch, in either notation of `apply_patch`; without one the request itself is the patch.

    The same base and patch give the same tree each time. The write is one recorded act: it is judged, and a
    recorded act is not repeated.
    """

    kind: str = "patch"
    checkpoints_itself = True
    abilities = ABILITIES["patch"]
    models: tuple[str, ...] = ()

    def __init__(self, name: str, *, patch: str | None = None) -> None:
        self.name = name
        self._patch = patch

    def prepare(self) -> None:
        """Do nothing: nothing is needed ahead of time."""

    async def run(self, assignment: Assignment, context: AttemptContext) -> AgentOutcome:
        """Apply the patch; see `Agent.run`."""
        began = time.monotonic()
        arguments = {"patch": patch_in(assignment.request) if self._patch is None else self._patch}

        async def work() -> object:
            # Judged inside the act, so that a recorded act is neither judged nor executed again.
            action = action_of(_TOOL, arguments, cwd=context.sandbox.cwd)
            if action is not None:
                judgement = await context.judge(_STEP, action)
                if judgement.effect != "allow":
                    return {"text": denial_text(judgement), "failed": True}
            result = await Toolbox(context.sandbox, keep=context.keep).call(_TOOL, arguments)
            return {"text": result.text, "failed": result.failed}

        try:
            async with context.limited(assignment.seconds):
                result, _ = await context.act(_STEP, [_TOOL, arguments], work)
        except TimeoutError:
            seconds = assignment.seconds
            reason = f"the agent was stopped at its time limit after {seconds:.1f} s"
            outcome = AgentOutcome(claim="timed_out", reason=reason, seconds=seconds, code="time")
        else:
            seconds, output = time.monotonic() - began, result["text"].encode(errors="replace")
            reason = "the patch is applied"
            outcome = AgentOutcome(claim="done", reason=reason, output=output, seconds=seconds)
            if result["failed"]:
                reason = f"the patch does not apply: {result['text'][:300]}"
                outcome = replace(outcome, claim="failed", reason=reason, code="patch_failed")
        return with_message(outcome, message_address(assignment, self.name, "end"), None)
