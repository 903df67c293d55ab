"""From what a person writes after `--agent` to an agent's configuration."""

from __future__ import annotations

import shlex

from chargehand.agents import Agent, open_agent
from chargehand.app._config_keys import agent_keys
from chargehand.app._config_model import Resolved
from chargehand.app._config_values import parse_text, parse_value, shown
from chargehand.core import AgentConfig, Config, ConfigError, MissionRequest, NotFoundError, nearest

NATIVE = "native"
"""The agent that is always there: a model with tools."""
_HOW = (
    'configure one with [agents.NAME] and command = ["program", "argument"], or use --agent "command:PROGRAM ARG"'
)
_SHORT = ("command:PROGRAM ARG…", "native:MODEL")


def agent_from_option(text: str) -> AgentConfig:
    """Return the agent that `command:PROGRAM ARG…` (words split as a shell splits them) or `native:MODEL` says.

    Raises `ConfigError` for another kind, unbalanced quotes or no program.
    """
    kind, colon, rest = text.partition(":")
    if not colon or kind not in agent_keys()["kind"].choices:
        forms = ", ".join(_SHORT)
        raise ConfigError(f"--agent: unknown agent kind {shown(kind)} in {shown(text)}", hint=f"known: {forms}")
    if kind == NATIVE:
        return AgentConfig(kind="native", model=parse_text(agent_keys()["model"], rest, "--agent"))
    try:
        words = shlex.split(rest)
    except ValueError as error:
        reason = str(error).lower()
        raise ConfigError(f"--agent: {shown(text)} cannot be split into words: {reason}", hint=_HOW) from error
    return AgentConfig(kind="command", command=parse_value(agent_keys()["command"], words, "--agent"))


def find_agent(config: Config, name: str) -> AgentConfig:
    """Return the configured agent of that name; `native` is there without configuration.

    Raises `NotFoundError` with the nearest name, the list and how to configure one.
    """
    agent = config.agents.get(name)
    if agent is not None:
        return agent
    if name == NATIVE:
        return AgentConfig(kind="native")
    names = {*config.agents, NATIVE}
    guess = nearest(name, names)
    known = "known: " + ", ".join(sorted(names))
    hint = f"{guess} {known}" if guess.startswith("did") else known
    raise NotFoundError(f"no agent named {shown(name)}", hint=f"{hint}; {_HOW}")


def named_agent(resolved: Resolved, option: str) -> AgentConfig:
    """Return the agent of that name or short form; raises `NotFoundError` or `ConfigError`."""
    return agent_from_option(option) if ":" in option else find_agent(resolved.config, option)


def requested_agent(resolved: Resolved, request: MissionRequest) -> Agent:
    """Return the agent of a mission, with the models it may call; raises as `named_agent` and `open_agent` do."""
    models = (*([request.model] if request.model else ()), *request.fallback)
    return open_agent(request.agent, named_agent(resolved, request.agent), models=tuple(dict.fromkeys(models)))
