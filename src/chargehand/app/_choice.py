"""Which agent works, with which model, where the person did not say: the first of what is there, and why."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chargehand.agents.roles import NO_ROLE, Role
from chargehand.app._config_agents import NATIVE, agent_from_option, find_agent
from chargehand.app._models import USUAL_KEYS, has_key, model_config
from chargehand.app._ollama import find_ollama
from chargehand.app._role_map import Level, agent_of, fallback_of, levels_of, model_of
from chargehand.core.config import AgentConfig, Config
from chargehand.core.errors import UsageError
from chargehand.core.ports import KeySource

DEFAULT_MODELS: Mapping[str, str] = {"anthropic": "anthropic:claude-sonnet-5-5", "openai": "openai:gpt-6.1-sol"}
"""The model that is taken where only a provider's key is there."""
AGENT_PROGRAMS = ("claude", "codex", "gemini", "qwen", "opencode", "cursor-agent")
"""Coding agents that are looked for on PATH."""
_WAYS = (
    "chargehand init   asks what you have and sets it up",
    "chargehand secret set ANTHROPIC_API_KEY   or export it, or OPENAI_API_KEY, for the native agent",
    '--agent "command:PROGRAM ARG"   puts any program to work',
)
_WITHOUT_MODELS = ("command", "patch")
Which = Callable[[str], str | None]
Ollama = Callable[[Mapping[str, str]], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The agent as `--agent` would name it, its model (`None`: it has none) and why it was taken, in words.

    `fallback` are the models to switch to from that one, in order.
    """

    agent: str
    model: str | None
    why: str
    fallback: tuple[str, ...] = ()


def choose(
    config: Config,
    environ: Mapping[str, str],
    keys: KeySource,
    *,
    agent: str | None = None,
    model: str | None = None,
    role: Role = NO_ROLE,
    which: Which = shutil.which,
    ollama: Ollama = find_ollama,
) -> Choice:
    """Return what works: what `agent` and `model` (the options) say, else who works in the role (`levels_of`),
    else what is configured, else what is found.

    An agent that takes no model of itself (a command, a patch) is given none by the role. Raises `UsageError`
    (`no_agent`, `agent_ambiguous`, `no_model`), `NotFoundError` and `ConfigError`.
    """
    if model is not None:
        model_config(config, model)
    levels = levels_of(config, role)
    name, why = _agent(config, agent, model, levels)
    found = _named(config, name) if name is not None else None
    takes = found is None or found.kind not in _WITHOUT_MODELS
    below = levels if takes else ()
    own = Level(where="the agent's own", model=found.model, fallback=found.fallback) if found else None
    said = (model, "--model") if model else model_of((*below, *([own] if own else [])))
    if name is not None and said is not None:
        if said[1].startswith(("[", "the file")) and said[1] not in why:
            why = f"{why}, {said[0]} by {said[1]}"
        return Choice(agent=name, model=said[0], why=why, fallback=_rest(config, below, own, said[0]))
    if name is not None and found is not None and found.kind != NATIVE:
        return Choice(agent=name, model=None, why=why, fallback=_rest(config, below, own, None))
    taken = _model(config, environ, keys, ollama)
    if taken is not None:
        chosen, reason = taken
        why = reason if name is None else f"{why}, {reason}"
        return Choice(agent=name or NATIVE, model=chosen, why=why, fallback=_rest(config, below, own, chosen))
    raise _nothing(name, programs_on_path(which))


def _rest(config: Config, levels: Sequence[Level], own: Level | None, model: str | None) -> tuple[str, ...]:
    rest = fallback_of((*levels, *([own] if own else [])), model)
    for each in rest:
        model_config(config, each)
    return rest


def _named(config: Config, option: str) -> AgentConfig:
    """Return the agent of that name or short form; raises `NotFoundError` or `ConfigError`."""
    found = agent_from_option(option) if ":" in option else find_agent(config, option)
    for model in (*([found.model] if found.model else ()), *found.fallback):
        model_config(config, model)
    return found


def programs_on_path(which: Which = shutil.which) -> dict[str, str]:
    """Return the known coding agents that are installed, with their paths."""
    found = {name: which(name) for name in AGENT_PROGRAMS}
    return {name: path for name, path in found.items() if path is not None}


def _agent(
    config: Config, option: str | None, model: str | None, levels: Sequence[Level]
) -> tuple[str | None, str]:
    if option is not None:
        return option, "--agent"
    named, by_role = agent_of(levels), model_of(levels)
    if named is not None:
        return named
    names = sorted(config.agents)
    if by_role is not None and model is None:  # a model is meant for somebody who takes one
        names = [name for name in names if config.agents[name].kind not in _WITHOUT_MODELS]
        if len(names) != 1:
            return NATIVE, by_role[1]
    if len(names) == 1:
        return names[0], "the only one configured"
    if names:
        known = ", ".join(names)
        raise UsageError(
            f"{len(names)} agents are configured, so one has to be named: {known}",
            code="agent_ambiguous",
            hint=f"add --agent {names[0]}",
        )
    return (NATIVE, "--model") if model is not None else (None, "")


def _model(config: Config, environ: Mapping[str, str], keys: KeySource, ollama: Ollama) -> tuple[str, str] | None:
    """Return the model of a native agent that names none, and why."""
    if config.models:
        return _configured(config, keys)
    for provider, model in DEFAULT_MODELS.items():
        if keys.get(USUAL_KEYS[provider]):
            return model, f"{model}: {USUAL_KEYS[provider]} is there"
    names = ollama(environ)
    return (f"ollama:{names[0]}", f"ollama:{names[0]}: Ollama runs on this machine") if names else None


def _configured(config: Config, keys: KeySource) -> tuple[str, str]:
    names = sorted(config.models)
    if len(names) == 1:
        return names[0], f"{names[0]}, the only model configured"
    for name in names:
        if has_key(config.models[name], keys):
            return name, f"{name}, the first of {len(names)} models that has its key"
    return names[0], f"{names[0]}, the first of {len(names)} models"


def _nothing(agent: str | None, programs: Mapping[str, str]) -> UsageError:
    found = f"; found on PATH: {', '.join(programs)} (`chargehand agent list` says how)" if programs else ""
    hint = "\n".join(_WAYS)
    if agent is not None:
        message = f"agent {agent!r} has no model to work with, and none was found{found}"
        return UsageError(message, code="no_model", hint=hint)
    return UsageError(f"no agent is configured and --agent was not given{found}", code="no_agent", hint=hint)
