"""Beliefs about each agent with its model in a project: chance and price."""

from __future__ import annotations

import math

from chargehand.core.choices import ChoiceHistory
from chargehand.decisions.arms import add_known_priors, name_arm
from chargehand.decisions.explanation import LearnedArm
from chargehand.decisions.folds import fold_outcomes
from chargehand.decisions.routing.records import RouterCandidate
from chargehand.decisions.routing.router import estimate_arms
from chargehand.decisions.routing.state import TaskBelief

# The bounds of an 80 % band, in standard deviations.
_BAND = 1.2816


def learn_arms(history: ChoiceHistory, kind: str) -> tuple[LearnedArm, ...]:
    """Return the beliefs about all agents with models that ended an attempt in a project, the best first."""
    ends = [each for each in history.outcomes if each.kind == kind]
    candidates = {name_arm(each.candidate): each.candidate for each in ends}
    if not candidates:
        return ()
    arms = add_known_priors(
        [
            RouterCandidate(id=name, agent=each.agent, model=each.model or "")
            for name, each in sorted(candidates.items())
        ],
        history,
    )
    state = fold_outcomes(history, arms)
    estimates = estimate_arms(state, TaskBelief(kind=kind), arms)
    found = []
    for place, arm in enumerate(arms):
        own = [each for each in ends if name_arm(each.candidate) == arm.id]
        skill, width = estimates.skills[place], _BAND * estimates.deviations[place]
        found.append(
            LearnedArm(
                name=arm.id,
                attempts=len(own),
                good=sum(each.is_good for each in own),
                chance=_share(skill),
                low=_share(skill - width),
                high=_share(skill + width),
                price_usd=estimates.prices[place] if estimates.costs[place] else None,
            )
        )
    return tuple(sorted(found, key=lambda each: -each.chance))


def _share(skill: float) -> float:
    """Return the share of tasks that a skill in probits solves, over all difficulties."""
    return 0.5 * math.erfc(-skill / math.sqrt(2))
