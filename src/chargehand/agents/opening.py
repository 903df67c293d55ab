"""Opens the agent that a configuration names.

Each adapter is imported when one of its kind is opened: a mission with a command agent loads neither the native
loop nor ACP.
"""

from __future__ import annotations

from collections.abc import Callable

from chargehand.agents.contract import ABILITIES, Agent, AgentAdapter, AgentSetup, McpServer
from chargehand.agents.kinds import AGENTS
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
    (`no_model`) for a native agent without a model, and the errors of `read` and `AGENTS.find`.
    """
    return AGENTS.find(config.kind).open(AgentSetup(name=name, config=config, models=models, read=read, mcp=mcp))


def _open_command(setup: AgentSetup) -> Agent:
    from chargehand.agents.programs.command import CommandAgent

    return CommandAgent(setup.name, setup.config.command, models=setup.models)


def _open_cli(setup: AgentSetup) -> Agent:
    from chargehand.agents.programs.cli import CliAgent

    assert setup.config.cli is not None
    return CliAgent(setup.name, setup.config.cli, command=setup.config.command, models=setup.models)


def _open_acp(setup: AgentSetup) -> Agent:
    from chargehand.agents.acp.agent import AcpAgent

    return AcpAgent(setup.name, command=setup.config.command, cli=setup.config.cli, models=setup.models)


def _open_patch(setup: AgentSetup) -> Agent:
    from chargehand.agents.native.patch_agent import PatchAgent

    file, read = setup.config.patch, setup.read
    return PatchAgent(setup.name, patch=read(file) if file is not None and read is not None else None)


def _open_native(setup: AgentSetup) -> Agent:
    from chargehand.agents.native.loop import NativeAgent

    if not setup.models:
        raise UsageError(f"agent {setup.name!r} has no model", code="no_model", hint="name one with --model")
    return NativeAgent(setup.name, models=setup.models, mcp=setup.mcp)


COMMAND = AgentAdapter(ABILITIES["command"], _open_command)
CLI = AgentAdapter(ABILITIES["cli"], _open_cli)
ACP = AgentAdapter(ABILITIES["acp"], _open_acp)
PATCH = AgentAdapter(ABILITIES["patch"], _open_patch)
NATIVE = AgentAdapter(ABILITIES["native"], _open_native)
