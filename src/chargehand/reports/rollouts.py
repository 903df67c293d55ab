"""Lists roll-outs of models and policies with the outcomes of both sides, verdict and next steps."""

from __future__ import annotations

import msgspec

from chargehand.core.choices import NATIVE, ChoiceHistory
from chargehand.core.config import Config, RolloutConfig
from chargehand.decisions.rollouts import ENOUGH_OUTCOMES, RolloutState, judge_rollout
from chargehand.reports.outcomes import OutcomeHistory
from chargehand.reports.reading import StateReader


class RolloutView(msgspec.Struct, frozen=True, kw_only=True):
    """A configured roll-out; `raise_with` and `end_with` are commands, "" if there is nothing to raise or end.

    `problem` says why it changes no choice, "" without a problem. `meaning` is the verdict in words.
    """

    name: str
    gives: str
    percent: float
    state: RolloutState
    meaning: str
    problem: str
    raise_with: str
    end_with: str


class RolloutList(msgspec.Struct, frozen=True, kw_only=True):
    """The roll-outs of the user's configuration, by name."""

    rollouts: tuple[RolloutView, ...]


def list_rollouts(reader: StateReader) -> RolloutList:
    """Return all configured roll-outs; raise `ConfigError` and `StoreError`."""
    config = reader.user_configuration().config
    history = OutcomeHistory(lambda: reader.store)() if config.rollouts else ChoiceHistory()
    found = (_view(config, name, each, history) for name, each in sorted(config.rollouts.items()))
    return RolloutList(rollouts=tuple(found))


def _view(config: Config, name: str, rollout: RolloutConfig, history: ChoiceHistory) -> RolloutView:
    state = judge_rollout(name, rollout, history)
    command = f"chargehand config set rollouts.{name}."
    more = f"{min(100.0, rollout.percent * 2 or 10.0):g}"
    raise_with = f"{command}percent {more}" if rollout.percent < 100 and state.verdict != "stopped" else ""
    given = f"policy {rollout.policy}" if rollout.policy else f"model {rollout.model}"
    return RolloutView(
        name=name,
        gives=f"{rollout.agent} with {given}" if rollout.agent else given,
        percent=rollout.percent,
        state=state,
        meaning=_explain_verdict(rollout, state),
        problem=_find_problem(config, rollout),
        raise_with=f"{command}shadow false" if state.verdict == "shadow" else raise_with,
        end_with=f"{command}percent 0" if rollout.percent else "",
    )


def _find_problem(config: Config, rollout: RolloutConfig) -> str:
    if rollout.policy and (rollout.policy == "learned") == config.decisions.learned:
        return f"all choices follow the policy {rollout.policy} already"
    if rollout.model and rollout.model not in config.models:
        return f"no entry of [models] is named {rollout.model!r}"
    if rollout.agent and rollout.agent not in {NATIVE, *config.agents}:
        return f"no entry of [agents] is named {rollout.agent!r}"
    return ""


def _explain_verdict(rollout: RolloutConfig, state: RolloutState) -> str:
    sure = f"surely (error rate {rollout.error_rate * 100:g} %)"
    points = abs((state.inside.rate or 0.0) - (state.outside.rate or 0.0)) * 100
    match state.verdict:
        case "off":
            return "off: it holds no project"
        case "shadow":
            missions = f"{state.shadowed} mission" + ("" if state.shadowed == 1 else "s")
            return f"shadow: it changes nothing, and would have chosen otherwise for {missions} that ended"
        case "too_little" if rollout.percent >= 100:
            return "not judged: it holds all projects, so there is nothing to compare it with"
        case "too_little":
            return f"too few outcomes for a verdict: it needs {ENOUGH_OUTCOMES} on each side"
        case "running":
            return "running: no sure difference yet"
        case "better":
            return f"better: its success rate is {sure} higher than outside"
        case "stopped":
            lower = f"its success rate was {sure} lower than outside, by {points:.0f} points"
            return f"stopped: {lower}; all choices are as before it"
