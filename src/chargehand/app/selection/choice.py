"""Chooses the agent and model of a mission if the request does not name them, and gives the reason."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from chargehand.agents.roles import NO_ROLE, Role
from chargehand.app.providers.ollama import find_ollama
from chargehand.app.providers.served import has_key, model_config, usual_key
from chargehand.app.selection.agents import NATIVE, named_agent
from chargehand.core.config import Config
from chargehand.core.errors import UsageError
from chargehand.core.ports import KeySource

# `[roles.default]` applies to every role without settings of its own.
DEFAULT_ROLE = "default"


class RoleSetting(Struct, frozen=True, kw_only=True):
    """A setting of agent and models for a role; `where` describes its source to people."""

    where: str
    agent: str | None = None
    model: str | None = None
    fallback: tuple[str, ...] = ()


def role_settings(config: Config, role: Role) -> tuple[RoleSetting, ...]:
    """Return the settings of a role by precedence: [roles.NAME], the role's file, [roles.default]."""
    first, *rest = role.models or ("",)
    levels = (
        _role_entry(config, role.name),
        RoleSetting(
            where=f"the file of role {role.name}", agent=role.agent, model=first or None, fallback=tuple(rest)
        ),
        _role_entry(config, DEFAULT_ROLE),
    )
    return tuple(level for level in levels if level.agent or level.model or level.fallback)


def specific_settings(config: Config, role: Role) -> tuple[RoleSetting, ...]:
    """Return the settings of this role only: `role_settings` without [roles.default]."""
    everyone = f"[roles.{DEFAULT_ROLE}]"
    return tuple(level for level in role_settings(config, role) if level.where != everyone)


def _role_entry(config: Config, name: str) -> RoleSetting:
    entry = config.roles.get(name)
    where = f"[roles.{name}]"
    if entry is None:
        return RoleSetting(where=where)
    return RoleSetting(where=where, agent=entry.agent, model=entry.model, fallback=entry.fallback)


def assigned_model(levels: Sequence[RoleSetting]) -> tuple[str, str] | None:
    """Return the first configured model and its source, `None` if no setting has a model."""
    return next(((level.model, level.where) for level in levels if level.model), None)


# The default model of each provider, used if only its key is available.
DEFAULT_MODELS: Mapping[str, str] = {"anthropic": "anthropic:claude-sonnet-5-5", "openai": "openai:gpt-6.1-sol"}
# Coding agents searched for on PATH.
AGENT_PROGRAMS = ("claude", "codex", "gemini", "qwen", "opencode", "cursor-agent")
_SETUP_HINTS = (
    "chargehand init   sets up an agent, a model and chargehand.toml",
    "chargehand secret set ANTHROPIC_API_KEY   or export it, or OPENAI_API_KEY, for the native agent",
    '--agent "command:PROGRAM ARG"   puts any program to work',
)
# Kinds of agents that get no model from a role.
WITHOUT_MODELS = ("command", "patch")
Which = Callable[[str], str | None]
Ollama = Callable[[Mapping[str, str]], Sequence[str]]


class AgentChoice(Struct, frozen=True, kw_only=True):
    """The agent in the form of `--agent`, its model (`None`: no model), and the reason in words.

    `fallback` are the models to switch to, in order.
    """

    agent: str
    model: str | None
    why: str
    fallback: tuple[str, ...] = ()


def choose_agent(
    config: Config,
    environ: Mapping[str, str],
    keys: KeySource,
    *,
    agent: str | None = None,
    model: str | None = None,
    role: Role = NO_ROLE,
    agent_from: str = "--agent",
    which: Which = shutil.which,
    ollama: Ollama = find_ollama,
) -> AgentChoice:
    """Choose the agent and model.

    Precedence: the options `agent` and `model`, the role (`role_settings`), the configuration, detection on this
    machine. An agent that takes no model by itself (a command, a patch) gets none from the role. `agent_from`
    describes in words where `agent` comes from. Raises `UsageError` (`no_agent`, `agent_ambiguous`, `no_model`),
    `NotFoundError` and `ConfigError`.
    """
    if model is not None:
        model_config(config, model)
    levels = role_settings(config, role)
    name, why = (agent, agent_from) if agent else _choose_agent_name(config, model, levels)
    found = None
    if name is not None:
        found = named_agent(config, name)
        # Called only for its error, before anything is recorded, like the other calls of `model_config` here.
        for known in (*([found.model] if found.model else ()), *found.fallback):
            model_config(config, known)
    takes = found is None or found.kind not in WITHOUT_MODELS
    below = levels if takes else ()
    own = RoleSetting(where="the agent's own", model=found.model, fallback=found.fallback) if found else None
    if model is None and agent is not None and ":" in agent and found is not None:
        model = found.model  # `native:MODEL` names the model as `--model` does
    said = (model, "--model") if model else assigned_model((*below, *([own] if own else [])))
    if name is not None and said is not None:
        if said[1].startswith(("[", "the file")) and said[1] not in why:
            why = f"{why}, {said[0]} by {said[1]}"
        return AgentChoice(
            agent=name, model=said[0], why=why, fallback=_fallback_models(config, below, own, said[0])
        )
    if name is not None and found is not None and found.kind != NATIVE:
        return AgentChoice(agent=name, model=None, why=why, fallback=_fallback_models(config, below, own, None))
    taken = _choose_native_model(config, environ, keys, ollama)
    if taken is not None:
        chosen, reason = taken
        why = reason if name is None else f"{why}, {reason}"
        return AgentChoice(
            agent=name or NATIVE, model=chosen, why=why, fallback=_fallback_models(config, below, own, chosen)
        )
    programs = programs_on_path(which)
    on_path = f"; found on PATH: {', '.join(programs)} (`chargehand agent list` says how)" if programs else ""
    hint = "\n".join(_SETUP_HINTS)
    if name is not None:
        message = f"agent {name!r} needs a model, and no model was found{on_path}"
        raise UsageError(message, code="no_model", hint=hint)
    raise UsageError(f"no agent is configured and --agent was not given{on_path}", code="no_agent", hint=hint)


def _fallback_models(
    config: Config, levels: Sequence[RoleSetting], own: RoleSetting | None, model: str | None
) -> tuple[str, ...]:
    """Return the fallback models of `model`: those of its own setting, otherwise of the first setting below it."""
    levels = (*levels, *([own] if own else []))
    places = [number for number, level in enumerate(levels) if level.model == model]
    start = places[0] if places else 0
    said = next((level.fallback for level in levels[start:] if level.fallback), ())
    rest = tuple(each for each in said if each != model)
    for each in rest:
        model_config(config, each)
    return rest


def programs_on_path(which: Which = shutil.which) -> dict[str, str]:
    """Return the known coding agents that are installed, with their paths."""
    found = {name: which(name) for name in AGENT_PROGRAMS}
    return {name: path for name, path in found.items() if path is not None}


def _choose_agent_name(config: Config, model: str | None, levels: Sequence[RoleSetting]) -> tuple[str | None, str]:
    named = next(((level.agent, level.where) for level in levels if level.agent), None)
    by_role = assigned_model(levels)
    if named is not None:
        return named
    names = sorted(config.agents)
    if by_role is not None and model is None:  # the role's model is for an agent that takes one
        names = [name for name in names if config.agents[name].kind not in WITHOUT_MODELS]
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


def _choose_native_model(
    config: Config, environ: Mapping[str, str], keys: KeySource, ollama: Ollama
) -> tuple[str, str] | None:
    """Return a model for a native agent without a configured model, and the reason."""
    if config.models:
        names = sorted(config.models)
        if len(names) == 1:
            return names[0], f"{names[0]}, the only model configured"
        for name in names:
            if has_key(config.models[name], keys):
                return name, f"{name}, the first of {len(names)} models that has its key"
        return names[0], f"{names[0]}, the first of {len(names)} models"
    for provider, model in DEFAULT_MODELS.items():
        if keys.get(usual_key(provider)):
            return model, f"{model}: {usual_key(provider)} is set"
    served = ollama(environ)
    return (f"ollama:{served[0]}", f"ollama:{served[0]}: Ollama runs on this machine") if served else None
