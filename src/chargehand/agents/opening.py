"""Opens the agent that a configuration names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

from chargehand.agents._acp import AcpAgent
from chargehand.agents._cli import CliAgent
from chargehand.agents._command import CommandAgent
from chargehand.agents._contract import Abilities, Agent, McpServer
from chargehand.agents._native import NativeAgent
from chargehand.agents._patch_agent import PatchAgent
from chargehand.core.config import AgentConfig, AgentKind
from chargehand.core.errors import UsageError

_ABILITIES: Mapping[AgentKind, Abilities] = {
    "command": CommandAgent.abilities,
    "cli": CliAgent.abilities,
    "acp": AcpAgent.abilities,
    "patch": PatchAgent.abilities,
    "native": NativeAgent.abilities,
}


def abilities_of(kind: AgentKind) -> Abilities:
    """Return what every agent of a kind can do."""
    return _ABILITIES[kind]


def open_agent(
    name: str,
    config: AgentConfig,
    *,
    models: tuple[str, ...],
    read: Callable[[str], str] | None = None,
    mcp: tuple[McpServer, ...] = (),
) -> Agent:
    """Return the agent that a configuration names; `models` are those it may call, the first to begin with.

    `read` returns the text of a patch agent's file, `mcp` are the servers of a native one. Raises `UsageError`
    (`no_model`) for a native agent without a model, and what `read` raises.
    """
    match config.kind:
        case "command":
            return CommandAgent(name, config.command, models=models)
        case "cli":
            assert config.cli is not None
            return CliAgent(name, config.cli, command=config.command, models=models)
        case "acp":
            return AcpAgent(name, command=config.command, cli=config.cli, models=models)
        case "patch":
            text = read(config.patch) if config.patch is not None and read is not None else None
            return PatchAgent(name, patch=text)
        case "native":
            if not models:
                raise UsageError(f"agent {name!r} has no model", code="no_model", hint="name one with --model")
            return NativeAgent(name, models=models, mcp=mcp)
        case _:
            assert_never(config.kind)
