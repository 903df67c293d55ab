"""What does the work: adapters that run an agent inside a mission's sandbox."""

from chargehand.agents._command import REPORT, CommandAgent
from chargehand.agents._contract import (
    Agent,
    Assignment,
    AttemptContext,
    Claim,
    Endpoint,
    EndpointModel,
    Outcome,
    Resumed,
)
from chargehand.agents._conversation import made_reply
from chargehand.agents._native import NativeAgent
from chargehand.agents._recorded import RecordedStep, ToolCall, parse_step, read_reply, reply_step
from chargehand.agents._tools_snippet import Snippets
from chargehand.core import AgentConfig, UsageError

__all__ = [
    "REPORT",
    "Agent",
    "Assignment",
    "AttemptContext",
    "Claim",
    "CommandAgent",
    "Endpoint",
    "EndpointModel",
    "NativeAgent",
    "Outcome",
    "RecordedStep",
    "Resumed",
    "Snippets",
    "ToolCall",
    "made_reply",
    "open_agent",
    "parse_step",
    "read_reply",
    "reply_step",
]


def open_agent(name: str, config: AgentConfig, *, models: tuple[str, ...]) -> Agent:
    """Return the agent that a configuration names; `models` are those it may call, the first to begin with.

    Raises `UsageError` (`no_model`) for a native agent without one.
    """
    if config.kind == "command":
        return CommandAgent(name, config.command, models=models)
    if not models:
        raise UsageError(f"agent {name!r} has no model", code="no_model", hint="name one with --model")
    return NativeAgent(name, models=models)
