"""What does the work: adapters that run an agent inside a mission's sandbox."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, assert_never

from chargehand.agents._acp import AcpAgent
from chargehand.agents._cli import CliAgent
from chargehand.agents._cli_specs import SPECS, CliSpec
from chargehand.agents._command import REPORT, CommandAgent
from chargehand.agents._contract import (
    Abilities,
    Agent,
    Assignment,
    AttemptContext,
    Claim,
    Endpoint,
    EndpointModel,
    McpServer,
    Metered,
    Outcome,
    Resumed,
)
from chargehand.agents._conversation import made_reply
from chargehand.agents._message_file import MESSAGE
from chargehand.agents._native import NativeAgent
from chargehand.agents._patch_agent import PatchAgent
from chargehand.agents._probe import AgentSeen, see_agent
from chargehand.agents._recorded import RecordedStep, ToolCall, parse_step, read_reply, reply_step
from chargehand.agents._role_file import check_role_name, parse_role
from chargehand.agents._roles import (
    DEVELOPER,
    NO_ROLE,
    Role,
    RoleOutput,
    role_digest,
    shipped_roles,
)
from chargehand.agents._tools_snippet import Snippets
from chargehand.core import AgentConfig, AgentKind, UsageError

if TYPE_CHECKING:
    from chargehand.agents._conformance import AgentContract
    from chargehand.agents._conformance_kit import AgentCase, Desk, scripted_endpoint

__all__ = [
    "DEVELOPER",
    "MESSAGE",
    "NO_ROLE",
    "REPORT",
    "SPECS",
    "Abilities",
    "AcpAgent",
    "Agent",
    "AgentCase",
    "AgentContract",
    "AgentSeen",
    "Assignment",
    "AttemptContext",
    "Claim",
    "CliAgent",
    "CliSpec",
    "CommandAgent",
    "Desk",
    "Endpoint",
    "EndpointModel",
    "McpServer",
    "Metered",
    "NativeAgent",
    "Outcome",
    "PatchAgent",
    "RecordedStep",
    "Resumed",
    "Role",
    "RoleOutput",
    "Snippets",
    "ToolCall",
    "abilities_of",
    "check_role_name",
    "made_reply",
    "open_agent",
    "parse_role",
    "parse_step",
    "read_reply",
    "reply_step",
    "role_digest",
    "scripted_endpoint",
    "see_agent",
    "shipped_roles",
]

_LAZY = {
    "AgentContract": "_conformance",
    **dict.fromkeys(("AgentCase", "Desk", "scripted_endpoint"), "_conformance_kit"),
}
"""The suite for authors of adapters: it needs pytest."""


def __getattr__(name: str) -> Any:
    """Import what is in `_LAZY` when it is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


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
