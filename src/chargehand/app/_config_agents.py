"""From what a person writes after `--agent` to an agent's configuration."""

from __future__ import annotations

import shlex

from chargehand.app._config_keys import agent_keys
from chargehand.app._config_values import parse_value, shown
from chargehand.core import AgentConfig, Config, ConfigError, NotFoundError, nearest

_HOW = (
    'configure one with [agents.NAME] and command = ["program", "argument"], or use --agent "command:PROGRAM ARG"'
)


def agent_from_option(text: str) -> AgentConfig:
    """Return the agent that `command:PROGRAM ARG…` describes, its words split as a shell splits them.

    Raises `ConfigError` for another kind, unbalanced quotes or no program.
    """
    kind, colon, rest = text.partition(":")
    kinds = agent_keys()["kind"].choices
    if not colon or kind not in kinds:
        forms = ", ".join(f"{known}:PROGRAM ARG…" for known in kinds)
        raise ConfigError(f"--agent: unknown agent kind {shown(kind)} in {shown(text)}", hint=f"known: {forms}")
    try:
        words = shlex.split(rest)
    except ValueError as error:
        reason = str(error).lower()
        raise ConfigError(f"--agent: {shown(text)} cannot be split into words: {reason}", hint=_HOW) from error
    return AgentConfig(kind="command", command=parse_value(agent_keys()["command"], words, "--agent"))


def find_agent(config: Config, name: str) -> AgentConfig:
    """Return the configured agent of that name.

    Raises `NotFoundError` with the nearest name, the list and how to configure one.
    """
    agent = config.agents.get(name)
    if agent is not None:
        return agent
    guess = nearest(name, config.agents)
    known = "known: " + (", ".join(sorted(config.agents)) or "none")
    hint = f"{guess} {known}" if guess.startswith("did") else known
    raise NotFoundError(f"no agent named {shown(name)}", hint=f"{hint}; {_HOW}")
