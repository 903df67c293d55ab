"""The fixed rules: a person's choice, then standing settings, then the first candidate that can start.

They never read the history, and never stop while a person can still be asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.choices import (
    NATIVE,
    AgentFacts,
    Candidate,
    Choice,
    ChoiceContext,
    ChoiceHistory,
    ConsideredCandidate,
    StandingSetting,
    Strategy,
    find_exclusion,
)
from chargehand.core.records import ChoiceReason, ReasonCode

# How many candidates work side by side on one task, the ladder's last rung before a person.
BEST_OF = 3
# Classes of causes that another round of a task may mend.
_MENDABLE = {"agent", "check", "provider"}
_OWN = ChoiceReason("recorded")


class FixedRules(Struct, frozen=True):
    """The rules that choose without learning from outcomes."""

    def choose(self, context: ChoiceContext, history: ChoiceHistory, /) -> Choice:
        """Return the choice that follows from the context alone."""
        # Only the candidates of a task's next round have strategies.
        if any(each.strategy for each in context.candidates):
            return _choose_next_round(context)
        rules = {"request": _choose_for_request, "task": _choose_for_task}
        choice = rules.get(context.moment, _choose_for_attempt)(context)
        return replace(choice, considered=_consider(context))


def _ask(code: ReasonCode, subject: str = "", source: str = "") -> Choice:
    return Choice(action="ask", reasons=(ChoiceReason(code, subject, source),))


def _consider(context: ChoiceContext) -> tuple[ConsideredCandidate, ...]:
    return tuple(
        ConsideredCandidate(candidate=each.candidate, excluded=find_exclusion(context, each))
        for each in context.candidates
    )


# --- a request


def _choose_for_request(context: ChoiceContext) -> Choice:
    """Precedence: the options, the role's agent, the role's model, the configuration, detection."""
    fixed, agents = context.fixed, {each.name: each for each in context.agents}
    if fixed.agent:
        by_option = all(each.code == "option" for each in fixed.reasons)
        return _complete(context, agents[fixed.agent], fixed.reasons, fixed.model, by_name=by_option)
    native = agents.get(NATIVE, AgentFacts(name=NATIVE))
    configured = [each for each in context.agents if each.configured]
    by_role = next((each for each in context.settings if each.model), None)
    if by_role is not None and fixed.model is None:  # the role's model is for an agent that takes one
        configured = [each for each in configured if each.takes_models]
        if len(configured) != 1:
            return _complete(context, native, (replace(by_role.reason, subject=NATIVE),))
    if len(configured) == 1:
        only = ChoiceReason("only_agent", configured[0].name)
        return _complete(context, configured[0], (only,), fixed.model)
    if configured:
        return _ask("several_agents", source=str(len(configured)))
    return _complete(context, native, fixed.reasons, fixed.model)


def _complete(
    context: ChoiceContext,
    agent: AgentFacts,
    reasons: tuple[ChoiceReason, ...],
    model: str | None = None,
    *,
    by_name: bool = False,
) -> Choice:
    """Return the choice of an agent with its model: `model`, a setting's, the agent's own, or one found here.

    A short form chosen `by_name` names its model as an option does. A role's model is only for agents that take
    models.
    """
    own = StandingSetting(reason=_OWN, model=agent.model, fallback=agent.fallback)
    levels = (*(context.settings if agent.takes_models else ()), own)
    if model is None and by_name and agent.short:
        model = agent.model
    level = next((each for each in levels if each.model), None)
    if model is None and level is not None:
        model = level.model
        known = {(each.code, each.source) for each in reasons}
        if level is not own and (level.reason.code, level.reason.source) not in known:
            reasons = (*reasons, replace(level.reason, subject=model or ""))
    if model is None and agent.kind == NATIVE:
        found = _find_native_model(context, agent)
        if found is None:
            return _ask("no_model", agent.name) if reasons else _ask("no_agent")
        model, reasons = found.subject, (*reasons, found)
    chosen = Candidate(agent=agent.name, model=model, fallback=_choose_fallback(levels, model))
    return Choice(chosen=chosen, reasons=reasons)


def _choose_fallback(levels: Sequence[StandingSetting], model: str | None) -> tuple[str, ...]:
    """Return the fallback models of `model`: those of its setting, otherwise of the first setting below it."""
    start = next((number for number, level in enumerate(levels) if level.model == model), 0)
    found = next((level.fallback for level in levels[start:] if level.fallback), ())
    return tuple(each for each in found if each != model)


def _find_native_model(context: ChoiceContext, agent: AgentFacts) -> ChoiceReason | None:
    """Return the model of a native agent without a configured one, as the reason for it."""
    models = [each.model for each in context.candidates if each.agent == agent and each.model is not None]
    configured, keyed, served = (
        [each for each in models if each.known == known] for known in ("configured", "key", "local")
    )
    if len(configured) == 1:
        return ChoiceReason("only_model", configured[0].name)
    if configured:
        ready = next((each for each in configured if each.has_key), None)
        code: ReasonCode = "first_model" if ready is None else "first_with_key"
        return ChoiceReason(code, (ready or configured[0]).name, str(len(configured)))
    if keyed:
        return ChoiceReason("key_set", keyed[0].name, keyed[0].key)
    return ChoiceReason("served_locally", served[0].name) if served else None


# --- a task


def _choose_for_task(context: ChoiceContext) -> Choice:
    """Precedence: the plan, the settings of the task's role, the choice for the whole mission.

    A task with needs goes to an agent that announces them all, preferably to an agent that did not fail it.
    """
    current, fixed = context.current, context.fixed
    assert current is not None
    if context.inherits and fixed.agent in ("", current.agent):
        chosen = replace(current, model=fixed.model or current.model)
        return Choice(chosen=chosen, reasons=fixed.reasons or context.current_reasons)
    agents = {each.name: each for each in context.agents}
    # The choice for the whole mission already considered the settings of its role.
    own = () if context.same_role else tuple(each for each in context.settings if not each.general)
    first, reasons = fixed.agent or current.agent, fixed.reasons or context.current_reasons
    if context.needs:
        by_role = next((each.agent for each in own if each.agent), None)
        wanted = (fixed.agent,) if fixed.agent else (by_role or current.agent, current.agent, *agents)
        able = [name for name in dict.fromkeys(wanted) if name in agents and _is_able(context, agents[name])]
        if not able:
            return _ask("unable", fixed.agent)
        failed = {each.candidate.agent for each in context.tried}
        first = next((name for name in able if name not in failed), able[0])
        reasons = (ChoiceReason("needs", first),)
    agent = agents[first]
    model = fixed.model or _inherit_model(context, current, agent, own)
    return _complete(context, agent, reasons, model, by_name=True)


def _is_able(context: ChoiceContext, agent: AgentFacts) -> bool:
    return agent.configured and {*context.needs} <= {*agent.offers}


def _inherit_model(
    context: ChoiceContext, current: Candidate, agent: AgentFacts, own: Sequence[StandingSetting]
) -> str | None:
    """Return the whole mission's model if it applies to a task in a role, `None` if other settings decide.

    The role's model and that of the task's own agent take precedence, and so does `[roles.default]` unless a
    person named the model for the run. A configured model that no setting names never replaces it.
    """
    is_same = agent.name == current.agent
    if any(each.model for each in own) or (not is_same and agent.model):
        return None
    if "model" in context.current_named or (is_same and context.same_role):
        return current.model
    if not agent.takes_models or agent.model or any(each.model for each in context.settings):
        return None
    return current.model


# --- an attempt, and a later one


def _choose_for_attempt(context: ChoiceContext) -> Choice:
    """Keep the current agent and model; otherwise a person's answer, its next model, or the request as a patch."""
    current, fixed = context.current, context.fixed
    assert current is not None
    if fixed.forced:
        chosen = Candidate(agent=fixed.agent, model=fixed.model, fallback=fixed.fallback)
        return Choice(chosen=chosen, reasons=fixed.reasons)
    now = context.find(current.agent, current.model)
    if not context.fault and now is not None and now.breaker == "closed":
        return Choice(chosen=current)
    found = None if context.fault else _choose_next_model(context, current)
    if found is not None:
        return found
    patches = [each.name for each in context.agents if each.kind == "patch" and each.short]
    if patches and patches != [current.agent]:
        return Choice(chosen=Candidate(agent=patches[-1]), reasons=(ChoiceReason("patch", patches[-1]),))
    return _ask("provider_fault" if context.fault else "breaker_open", current.model or "", current.agent)


def _choose_next_model(context: ChoiceContext, current: Candidate) -> Choice | None:
    """Return the first model of the request whose breaker is closed or permits a probe."""
    models = (current.model, *current.fallback)
    known = [context.find(current.agent, model) for model in models]
    for place, each in enumerate(known):
        if each is None or each.breaker == "open":
            continue
        # Models before this one are left out, not moved to the end: the gateway must not fall back to them.
        rest = [other for other in known[place + 1 :] if other is not None and other.breaker == "closed"]
        passed = tuple(ChoiceReason("breaker_open", model or "", current.agent) for model in models[:place])
        probe = (ChoiceReason("probe", each.candidate.model or ""),) if each.breaker == "ready" else ()
        chosen = replace(each.candidate, fallback=tuple(other.model.name for other in rest if other.model))
        return Choice(chosen=chosen, reasons=(*passed, *probe))
    return None


# --- the next round of a task


def _choose_next_round(context: ChoiceContext) -> Choice:
    """Climb the ladder: another approach, each other model, the best of several; then a person decides."""
    agent = context.agents[0]
    last = max((each.round for each in context.tried), default=0)
    causes = {each.cause for each in context.tried if each.round == last}
    taken = {each.rung for each in context.tried}
    seen = {each.candidate.model for each in context.tried}

    def of(strategy: Strategy) -> list[Candidate]:
        ready = (each for each in context.candidates if each.agent == agent and each.strategy == strategy)
        return [each.candidate for each in ready if each.is_ready and each.breaker != "open"]

    models, best = [each for each in of("model") if each.model not in seen], of("best_of")
    approach = of("approach") if context.fresh or (agent.takes_models and causes & {"agent", "check"}) else []
    rungs: dict[Strategy, tuple[list[Candidate], ReasonCode]] = {
        "approach": (approach, "no_advice"),
        "model": (models[:1], "no_other_model"),
        "best_of": (best[:BEST_OF] if len(best) > 1 and not models else [], "no_models"),
    }
    considered: list[ConsideredCandidate] = []
    for rung, (found, obstacle) in rungs.items():
        if rung in taken and not (rung == "model" and models):
            obstacle = "tried"
        elif context.money_left is not None and context.money_left <= 0:
            obstacle = "no_money"
        elif not causes & _MENDABLE:
            obstacle = "other_cause"
        elif found:
            why, beside = (ChoiceReason("retry", agent.name, rung),), tuple(found[1:])
            return Choice(chosen=found[0], reasons=why, considered=tuple(considered), beside=beside)
        excluded = ChoiceReason(obstacle, agent.name)
        candidate = Candidate(agent=agent.name, strategy=rung)
        considered.append(ConsideredCandidate(candidate=candidate, excluded=excluded))
    return replace(_ask("tried", agent.name), considered=tuple(considered))
