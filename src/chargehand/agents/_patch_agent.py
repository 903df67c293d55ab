"""The patch agent: a patch that is there already, applied to the last letter or not at all; no model is asked."""

from __future__ import annotations

import time

from chargehand.agents._claims import addressed, with_message
from chargehand.agents._contract import Abilities, Assignment, AttemptContext, Outcome
from chargehand.agents._judged import action_of, refusal
from chargehand.agents._patch_envelope import BEGIN
from chargehand.agents._tools import Toolbox
from chargehand.core.config import AgentKind

_STEP = "patch"
_TOOL = "apply_patch"


class PatchAgent:
    """Applies a given patch, in either notation of `apply_patch`; without one the request itself is the patch.

    The same base and patch give the same tree each time. The write is one recorded act: it is judged, and what is
    recorded is not done again.
    """

    kind: AgentKind = "patch"
    driven = True
    abilities = Abilities(judged=True, asks=True, resumes="step")
    models: tuple[str, ...] = ()

    def __init__(self, name: str, *, patch: str | None = None) -> None:
        self.name = name
        self._patch = patch

    def prepare(self) -> None:
        """Nothing is needed ahead of time."""

    async def run(self, assignment: Assignment, context: AttemptContext) -> Outcome:
        """Apply the patch; see `Agent.run`."""
        known = addressed(assignment, self.name, "end")
        return with_message(await self._run(assignment, context), known, None)

    async def _run(self, assignment: Assignment, context: AttemptContext) -> Outcome:
        began = time.monotonic()
        arguments = {"patch": self._patch if self._patch is not None else _of_request(assignment.request)}

        async def applied() -> object:
            action = action_of(_TOOL, arguments)
            if action is not None:
                judgement = await context.judge(_STEP, action)
                if judgement.effect != "allow":
                    return {"text": refusal(judgement), "failed": True}
            result = await Toolbox(context.sandbox, keep=context.keep).call(_TOOL, arguments)
            return {"text": result.text, "failed": result.failed}

        try:
            async with context.limited(assignment.seconds):
                made, _ = await context.act(_STEP, [_TOOL, arguments], applied)
        except TimeoutError:
            reason = f"the agent was stopped at its time limit after {assignment.seconds:.1f} s"
            return Outcome(claim="timed_out", reason=reason, output=b"", seconds=assignment.seconds, code="time")
        seconds, output = time.monotonic() - began, made["text"].encode(errors="replace")
        if made["failed"]:
            reason = f"the patch does not apply: {made['text'][:300]}"
            return Outcome(claim="failed", reason=reason, output=output, seconds=seconds, code="patch_failed")
        return Outcome(claim="done", reason="the patch is applied", output=output, seconds=seconds)


def _of_request(request: str) -> str:
    """Return the patch of a request: what stands from its envelope on, else all of it."""
    start = request.find(BEGIN)
    return request[start:] if start >= 0 else request
