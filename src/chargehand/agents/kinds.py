"""The registered kinds of agents; light, because reading a configuration needs only their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chargehand.core.registry import Registry

if TYPE_CHECKING:
    from chargehand.agents.contract import AgentAdapter

AGENTS: Registry[AgentAdapter] = Registry("agents", "agent kind")
AGENTS.register("command", "chargehand.agents.opening:COMMAND", "any program, given the request")
AGENTS.register("native", "chargehand.agents.opening:NATIVE", "a model with our tools")
AGENTS.register("cli", "chargehand.agents.opening:CLI", "a known agent CLI, driven by its own output")
AGENTS.register("acp", "chargehand.agents.opening:ACP", "a program that speaks the Agent Client Protocol")
AGENTS.register("patch", "chargehand.agents.opening:PATCH", "a patch that is applied")
