"""Opens the agent that a configuration names.

Each adapter is imported when one of its kind is opened: a mission with a command agent loads neither the native
loop nor ACP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from chargehand.agents.contract import Agent, McpServer
from chargehand.core.config import AgentConfig
from chargehand.core.errors import UsageError


def open_agent(
    name: str,
    config: AgentConfig,
    *,
    models: tuple[str, ...],
    read: Callable[[str], str] | None = None,
    mcp: tuple[McpServer, ...] = (),
) -> Agent:
    """Open the agent that a configuration names; `models` are those it may call, the first to begin with.

    `read` returns the text of a patch agent's file, `mcp` are the servers of a native agent. Raises `UsageError`
    (`no_model`) for a native agent without a model, and the errors of `read`.
    """
    match config.kind:
        case "command":
            from chargehand.agents.programs.command import CommandAgent

            return CommandAgent(name, config.command, models=models)
        case "cli":
            from chargehand.agents.programs.cli import CliAgent

            assert config.cli is not None
            return CliAgent(name, config.cli, command=config.command, models=models)
        case "acp":
            from chargehand.agents.acp.agent import AcpAgent

            return AcpAgent(name, command=config.command, cli=config.cli, models=models)
        case "patch":
            from chargehand.agents.native.patch_agent import PatchAgent

            text = read(config.patch) if config.patch is not None and read is not None else None
            return PatchAgent(name, patch=text)
        case "native":
            from chargehand.agents.native.loop import NativeAgent

            if not models:
                raise UsageError(f"agent {name!r} has no model", code="no_model", hint="name one with --model")
            return NativeAgent(name, models=models, mcp=mcp)
        case _:
            assert_never(config.kind)
