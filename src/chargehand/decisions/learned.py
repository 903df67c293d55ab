"""Rules that learn: they choose by earlier outcomes where people and settings leave a choice open."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.choices import (
    Choice,
    ChoiceContext,
    ChoiceHistory,
    PossibleCandidate,
    find_exclusion,
)
from chargehand.core.records import ChoiceReason, ReasonCode
from chargehand.decisions.arms import add_known_priors, describe_estimate, make_arm, name_arm
from chargehand.decisions.folds import fold_outcomes
from chargehand.decisions.learned_steps import StepStakes, choose_next_step
from chargehand.decisions.routing.records import RouterBudget, RouterChoice
from chargehand.decisions.routing.router import choose_from
from chargehand.decisions.routing.state import TaskBelief
from chargehand.decisions.rules import FixedRules

# The fixed rules choose or ask for these reasons only if nothing but the order of names speaks for a candidate.
_ARBITRARY: frozenset[ReasonCode] = frozenset({"first_with_key", "first_model", "key_set", "several_agents"})


class LearnedRules(Struct, frozen=True, kw_only=True):
    """The fixed rules, with the router for choices that they make by order or leave to a person.

    `worth_usd` is the worth of a solved task, `person_usd` the cost of asking a person. The choice of a person or
    of a setting stays.
    """

    worth_usd: float = 5.0
    person_usd: float = 2.0
    explores: bool = True

    def choose(self, context: ChoiceContext, history: ChoiceHistory, /) -> Choice:
        """Return the choice of the fixed rules, or of the router among candidates that they do not tell apart."""
        choice = FixedRules().choose(context, history)
        if context.moment == "retry":
            stakes = StepStakes(worth_usd=self.worth_usd, person_usd=self.person_usd)
            return choose_next_step(context, history, choice, stakes)
        options = _find_options(context, choice)
        if len(options) < 2:
            return choice
        found = self._route(context, options, history)
        ranked = [each.id for each in found.considered]
        best = next((each for each in options if name_arm(each.candidate) == ranked[0]), None) if ranked else None
        if best is None:
            return choice
        considered = found.considered[0]
        said = describe_estimate(
            considered.expected_chance, considered.expected_price, costs=considered.costs, outcomes=found.outcomes
        )
        evidence = msgspec.json.encode(found).decode()
        reason = ChoiceReason("learned", ranked[0], said, evidence)
        before = choice.chosen or best.candidate
        fallback = tuple(each for each in before.fallback if each != best.candidate.model)
        chosen = replace(best.candidate, fallback=fallback)
        return replace(
            choice, action="use", chosen=chosen, reasons=(*_find_lasting_reasons(choice), reason), beside=()
        )

    def _route(
        self, context: ChoiceContext, options: Sequence[PossibleCandidate], history: ChoiceHistory
    ) -> RouterChoice:
        # Equal facts and history give an equal choice, so a worker that takes a mission over chooses alike.
        seed = zlib.crc32(msgspec.json.encode(context)) ^ len(history.outcomes)
        budget = RouterBudget(
            worth=self.worth_usd,
            attempts=1,  # all attempts of a mission keep its agent and model
            money_left=context.money_left,
            explores=self.explores and context.explores,
        )
        arms = add_known_priors([make_arm(each) for each in options], history)
        state = fold_outcomes(history, arms, budget)
        return choose_from(state, TaskBelief(kind=context.kind), arms, budget, seed)


def _find_options(context: ChoiceContext, choice: Choice) -> list[PossibleCandidate]:
    """Return the candidates that the fixed rules do not tell apart; they have no reason for their choice."""
    if context.moment != "request" or not choice.reasons or choice.reasons[-1].code not in _ARBITRARY:
        return []
    fixed = context.fixed
    named = [
        each
        for each in context.candidates
        if fixed.agent in ("", each.agent.name) and fixed.model in (None, each.candidate.model)
    ]
    return [each for each in named if _can_start(context, each)]


def _can_start(context: ChoiceContext, each: PossibleCandidate) -> bool:
    has_key = each.model is None or each.model.has_key is not False
    return each.is_ready and has_key and find_exclusion(context, each) is None


def _find_lasting_reasons(choice: Choice) -> tuple[ChoiceReason, ...]:
    """Return the reasons for the agent that stay true."""
    return tuple(each for each in choice.reasons if each.code not in _ARBITRARY)
