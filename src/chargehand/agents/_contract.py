"""What an agent is to a mission, whatever program or model stands behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from chargehand.core import AgentKind
from chargehand.sandbox import OnOutput, Sandbox

Claim = Literal["done", "failed", "timed_out"]
"""What the agent says of its own work. "done" is a claim: only a verdict decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One run of an agent: the request, the report of the attempt before it (JSON), and its seconds."""

    mission: str
    attempt: str
    number: int
    request: str
    report: bytes | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the run ended; `output` is what the agent printed, bounded; money is `None` where not known."""

    claim: Claim
    reason: str
    output: bytes
    seconds: float
    exit_code: int | None = None
    truncated: bool = False
    cost_usd: float | None = None
    cost_known: bool = False


class Agent(Protocol):
    """What does the work of an attempt inside its sandbox."""

    name: str
    kind: AgentKind

    async def run(self, assignment: Assignment, sandbox: Sandbox, *, on_output: OnOutput | None) -> Outcome:
        """Work on the workspace mounted in `sandbox` until done, failed or out of time.

        Raises `SandboxDiedError` when the sandbox ends under it. Cancelling the call kills what runs.
        """
        ...
