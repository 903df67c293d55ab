"""Gathers the facts for the choice of a mission's agent and model, and calls the port that chooses."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from chargehand.agents.roles import NO_ROLE, Role
from chargehand.app.providers.ollama import find_ollama
from chargehand.app.providers.served import has_key, model_config
from chargehand.app.selection.agents import NATIVE, named_agent
from chargehand.core.choices import (
    AgentFacts,
    Candidate,
    Choice,
    ChoiceContext,
    FixedChoice,
    KnownModel,
    PossibleCandidate,
    StandingSetting,
    render_reason,
    render_reasons,
)
from chargehand.core.config import Config, ModelConfig
from chargehand.core.errors import UsageError
from chargehand.core.ports import KeySource
from chargehand.core.records import ChoiceReason
from chargehand.decisions.decider import Decider
from chargehand.models.registries import usual_key

# `[roles.default]` applies to every role without settings of its own.
DEFAULT_ROLE = "default"


class RoleSetting(Struct, frozen=True, kw_only=True):
    """A setting of agent and models for a role; `where` describes its source to people."""

    where: str
    agent: str | None = None
    model: str | None = None
    fallback: tuple[str, ...] = ()


def role_settings(config: Config, role: Role) -> tuple[RoleSetting, ...]:
    """Return the settings of a role by precedence, for people."""
    return tuple(
        RoleSetting(where=render_reason(each.reason), agent=each.agent, model=each.model, fallback=each.fallback)
        for each in standing_settings(config, role)
    )


def standing_settings(config: Config, role: Role) -> tuple[StandingSetting, ...]:
    """Return the settings of a role by precedence: [roles.NAME], the role's file, [roles.default]."""
    first, *rest = role.models or ("",)
    file = ChoiceReason("role_file", source=role.name)
    levels = (
        _role_entry(config, role.name),
        StandingSetting(reason=file, agent=role.agent, model=first or None, fallback=tuple(rest)),
        _role_entry(config, DEFAULT_ROLE),
    )
    return tuple(level for level in levels if level.agent or level.model or level.fallback)


def _role_entry(config: Config, name: str) -> StandingSetting:
    entry, general = config.roles.get(name), name == DEFAULT_ROLE
    reason = ChoiceReason("role_setting", source=name)
    if entry is None:
        return StandingSetting(reason=reason, general=general)
    return StandingSetting(
        reason=reason, agent=entry.agent, model=entry.model, fallback=entry.fallback, general=general
    )


# The default model of each provider, used if only its key is available.
DEFAULT_MODELS: Mapping[str, str] = {
    "anthropic": "anthropic:claude-sonnet-5-5",
    "openai": "openai:gpt-6.1-sol",
    "gemini": "gemini:gemini-3.7-flash",
}
# Coding agents searched for on PATH.
AGENT_PROGRAMS = ("claude", "codex", "gemini", "qwen", "opencode", "cursor-agent")
_SETUP_HINTS = (
    "export ANTHROPIC_API_KEY or OPENAI_API_KEY, or run: chargehand model add",
    'to let a program of yours work: --agent "command:PROGRAM ARG"',
)
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


class CandidateSource(Struct, frozen=True, kw_only=True):
    """Finds the agents and models that can be chosen on this machine."""

    config: Config
    environ: Mapping[str, str]
    keys: KeySource
    ollama: Ollama = find_ollama

    def agent(self, name: str) -> AgentFacts:
        """Return the facts of an agent; raise as `named_agent`."""
        return AgentFacts.of(self.config, name, named_agent(self.config, name))

    def find(
        self,
        agents: Iterable[AgentFacts],
        *,
        fixed: FixedChoice,
        settings: Sequence[StandingSetting],
        current: str | None = None,
        detects: bool,
    ) -> tuple[PossibleCandidate, ...]:
        """Return each of `agents` with each model that it may work with; only a fixed model if there is one.

        `current` is the whole mission's model. Keys and Ollama are looked up only if the choice may depend on
        them (`detects`): that reads keyrings and opens connections.
        """
        if fixed.model is not None:
            model = KnownModel(name=fixed.model)
            return tuple(PossibleCandidate(agent=each, model=model) for each in agents)
        known = self._known_models(detects=detects)
        for setting in settings:
            for name in (setting.model, *setting.fallback):
                known.setdefault(name or "", KnownModel(name=name or ""))
        known.pop("", None)
        found = []
        for each in agents:
            models = {**known} if each.takes_models else {}
            for name in (current, each.model, *each.fallback):
                if name is not None:
                    models.setdefault(name, KnownModel(name=name))
            found += [PossibleCandidate(agent=each, model=model) for model in (*models.values(), None)]
        return tuple(found)

    def _known_models(self, *, detects: bool) -> dict[str, KnownModel]:
        """Return the configured models, otherwise those with a key in their usual place, otherwise Ollama's."""
        from chargehand.models.catalogue import is_free  # only where models are chosen

        # A roll-out gives no model that lacks its key.
        rolled_out = {each.model for each in self.config.rollouts.values() if each.percent}
        found = {
            name: KnownModel(
                name=name,
                known="configured",
                has_key=has_key(entry, self.keys) if detects or name in rolled_out else None,
                served=entry.model or "",
                is_free=is_free(entry.provider, entry),
            )
            for name, entry in sorted(self.config.models.items())
        }
        if found or not detects:
            return found
        found = {
            name: KnownModel(name=name, known="key", has_key=True, key=usual_key(provider))
            for provider, name in DEFAULT_MODELS.items()
            if has_key(ModelConfig(provider=provider), self.keys)
        }
        served = () if found else self.ollama(self.environ)
        return found or {
            f"ollama:{name}": KnownModel(name=f"ollama:{name}", known="local", is_free=True) for name in served
        }


def needs_detection(
    agent: AgentFacts, fixed: FixedChoice, settings: Sequence[StandingSetting], current: str | None = None
) -> bool:
    """Return whether an agent needs a model and nothing names one for it."""
    return agent.kind == NATIVE and not (
        fixed.model or current or agent.model or any(each.model for each in settings)
    )


def require_models(config: Config, *models: str | None) -> None:
    """Return if models are known; raise `NotFoundError` before anything is recorded."""
    for model in models:
        if model:
            model_config(config, model)


def choose_for_request(
    config: Config,
    environ: Mapping[str, str],
    keys: KeySource,
    *,
    agent: str | None = None,
    model: str | None = None,
    role: Role = NO_ROLE,
    which: Which = shutil.which,
    ollama: Ollama = find_ollama,
    decider: Decider | None = None,
    kind: str = "",
    explores: bool = True,
) -> tuple[Candidate, tuple[ChoiceReason, ...]]:
    """Choose the agent and model of a mission, with the reasons.

    A person fixes them with the options `agent` and `model`, and the agent with a setting of the role. Raises
    `UsageError` (`no_agent`, `agent_ambiguous`, `no_model`), `NotFoundError` and `ConfigError`.
    """
    require_models(config, model)
    settings = standing_settings(config, role)
    source = CandidateSource(config=config, environ=environ, keys=keys, ollama=ollama)
    by_role = next((each for each in settings if each.agent), None)
    name, reason = agent or "", ChoiceReason("option", agent or "", "--agent")
    if not agent and by_role is not None:
        name, reason = by_role.agent or "", replace(by_role.reason, subject=by_role.agent or "")
    elif not agent:
        reason = ChoiceReason("option", model or "", "--model")
    fixed = FixedChoice(agent=name, model=model, reasons=(reason,) if name or model else ())
    agents = [source.agent(each) for each in ((name,) if name else config.agents)]
    if not agents or not (name or NATIVE in config.agents or not (config.models or model or settings)):
        agents.append(source.agent(NATIVE))
    if name:
        require_models(config, agents[0].model, *agents[0].fallback)
    context = ChoiceContext(
        moment="request",
        kind=kind,
        explores=explores,
        candidates=source.find(
            agents,
            fixed=fixed,
            settings=settings,
            detects=all(needs_detection(each, fixed, settings) for each in agents),
        ),
        fixed=fixed,
        settings=settings,
    )
    choice = (decider or Decider()).choose(context)
    chosen = choice.chosen
    if chosen is None:
        raise explain_refusal(config, choice, context, which)
    own = source.agent(chosen.agent)
    require_models(config, own.model, *own.fallback, *chosen.fallback)
    return chosen, choice.reasons


def agent_choice(chosen: Candidate, reasons: Sequence[ChoiceReason]) -> AgentChoice:
    """Return a choice with its reasons in words."""
    why = render_reasons(reasons)
    return AgentChoice(agent=chosen.agent, model=chosen.model, why=why, fallback=chosen.fallback)


def explain_refusal(config: Config, choice: Choice, context: ChoiceContext, which: Which) -> UsageError:
    """Return the error for a request or task without a choice; raise `NotFoundError` for unknown models."""
    reason = choice.reasons[0]
    require_models(
        config, *(model for each in context.agents if each.name == reason.subject for model in each.fallback)
    )
    if reason.code == "several_agents":
        names = sorted(each.name for each in context.agents if each.configured)
        return UsageError(
            f"{len(names)} agents are configured, so one has to be named: {', '.join(names)}",
            code="agent_ambiguous",
            hint=f"add --agent {names[0]}",
        )
    programs = programs_on_path(which)
    on_path = f"; found on PATH: {', '.join(programs)} (`chargehand agent list` says how)" if programs else ""
    hint = "\n".join(_SETUP_HINTS)
    if reason.code == "no_model":
        message = f"agent {reason.subject!r} needs a model, and no model was found{on_path}"
        return UsageError(message, code="no_model", hint=hint)
    if reason.code == "no_agent":
        message = f"no model is set up{on_path}"
    else:
        message = f"no agent was chosen: {render_reasons(choice.reasons)}"
    return UsageError(message, code="no_agent", hint=hint)


def programs_on_path(which: Which = shutil.which) -> dict[str, str]:
    """Return the known coding agents that are installed, with their paths."""
    found = {name: which(name) for name in AGENT_PROGRAMS}
    return {name: path for name, path in found.items() if path is not None}
