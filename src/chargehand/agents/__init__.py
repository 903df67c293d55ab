"""What does the work: adapters that run an agent inside a mission's sandbox."""

from chargehand.agents._command import REPORT, CommandAgent
from chargehand.agents._contract import Agent, Assignment, Claim, Outcome
from chargehand.core import AgentConfig

__all__ = ["REPORT", "Agent", "Assignment", "Claim", "CommandAgent", "Outcome", "open_agent"]


def open_agent(name: str, config: AgentConfig) -> Agent:
    """Return the agent that a configuration names."""
    return CommandAgent(name, config)
