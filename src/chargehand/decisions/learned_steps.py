"""What to do after failed attempts, by value: the same again, another candidate, several, a person, or nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.choices import Candidate, Choice, ChoiceContext, ChoiceHistory, Strategy, find_exclusion
from chargehand.core.records import ChoiceReason
from chargehand.decisions.arms import add_known_priors, describe_estimate, name_arm
from chargehand.decisions.assessment import CauseClass, FailureFacts, diagnose
from chargehand.decisions.folds import fold_outcomes
from chargehand.decisions.routing.next_steps import ASK, STOP, choose_step
from chargehand.decisions.routing.records import (
    ArmEstimates,
    PossibleStep,
    RouterCandidate,
    StepArm,
    StepChoice,
    StepDraw,
)
from chargehand.decisions.routing.router import estimate_arms
from chargehand.decisions.routing.state import TaskBelief
from chargehand.decisions.rules import FixedRules

# A person who is asked solves most tasks, or sees that they are not wanted.
_PERSON_CHANCE = 0.9
# With these causes no further attempt helps.
_HOPELESS = ("task_unclear", "environment_broken", "budget")
_CLASSES: Mapping[str, CauseClass] = {each: each for each in get_args(CauseClass)}
_STRATEGIES: tuple[Strategy, ...] = ("approach", "model", "best_of")


class StepStakes(Struct, frozen=True, kw_only=True):
    """The worth of a solved task and the cost of asking a person, in USD."""

    worth_usd: float
    person_usd: float


class _Way(Struct, frozen=True, kw_only=True):
    """A possible step; its candidates run at the same time, `arms` are their names for the router."""

    name: str
    candidates: tuple[Candidate, ...]
    arms: tuple[str, ...]

    @property
    def strategy(self) -> Strategy:
        return self.candidates[0].strategy


def choose_next_step(context: ChoiceContext, history: ChoiceHistory, fixed: Choice, stakes: StepStakes) -> Choice:
    """Return the choice after a failed attempt or round; `fixed` is that of the fixed rules.

    Only steps that they allow are compared, with a question to a person and the end.
    """
    if fixed.chosen is None or context.fault or context.fixed.forced:
        return fixed
    is_round = bool(fixed.chosen.strategy)
    if not is_round and fixed.chosen != context.current:
        return fixed  # a probe, or the model after a failing one
    ways = _list_ways(context) if is_round else [_repeat(fixed.chosen)]
    estimates = _estimate(context, history, ways)
    found = _value(context, ways, estimates, stakes, asks=is_round)
    if not is_round:
        # Without known costs, or with few outcomes, the person's limit of attempts is the better guess.
        return _end(found) if found.chosen == STOP and estimates.costs[0] and not found.guess else fixed
    way = next((each for each in ways if each.name == found.chosen), None)
    if way is None:
        return replace(_end(found), considered=fixed.considered)
    first, *beside = way.candidates
    best = found.valued[0]
    said = describe_estimate(best.chance, best.price, costs=best.costs, outcomes=found.outcomes)
    reason = ChoiceReason("learned", way.name, said, _encode(found))
    return replace(
        fixed,
        chosen=first,
        beside=tuple(beside),
        reasons=(ChoiceReason("retry", first.agent, way.strategy), reason),
    )


def _list_ways(context: ChoiceContext) -> list[_Way]:
    """Return each step that the fixed rules allow in some order: an approach, each model, the best of several."""
    ways: list[_Way] = []
    seen = {each.candidate.model for each in context.tried}
    for strategy in _STRATEGIES:
        only = tuple(each for each in context.candidates if each.strategy == strategy)
        choice = FixedRules().choose(replace(context, candidates=only), ChoiceHistory()) if only else Choice()
        chosen = choice.chosen
        if chosen is None or chosen.strategy != strategy:
            continue
        if strategy == "model":
            free = [each.candidate for each in only if find_exclusion(context, each) is None]
            own = [each for each in free if each.agent == chosen.agent and each.model not in seen]
            ways += [_Way(name=name_arm(each), candidates=(each,), arms=(name_arm(each),)) for each in own]
        elif strategy == "approach":
            current = context.current
            same = current is not None and current.agent == chosen.agent
            arm = name_arm(replace(chosen, model=current.model if current and same else None))
            ways.append(_Way(name=f"{arm} again" if same else arm, candidates=(chosen,), arms=(arm,)))
        else:
            several = (chosen, *choice.beside)
            arms = tuple(map(name_arm, several))
            ways.append(_Way(name=" and ".join(arms), candidates=several, arms=arms))
    return ways


def _repeat(chosen: Candidate) -> _Way:
    return _Way(name=f"{name_arm(chosen)} again", candidates=(chosen,), arms=(name_arm(chosen),))


def _estimate(context: ChoiceContext, history: ChoiceHistory, ways: Sequence[_Way]) -> ArmEstimates:
    """Return the estimates for all arms of the steps, in their order, on the task as its attempts show it."""
    arms = add_known_priors(
        [
            RouterCandidate(id=arm, agent=candidate.agent, model=arm.removeprefix(f"{candidate.agent} with "))
            for way in ways
            for arm, candidate in zip(way.arms, way.candidates, strict=True)
        ],
        history,
    )
    unique = tuple({each.id: each for each in arms}.values())
    state = fold_outcomes(history, unique)
    task = state.tasks.get(context.work) or TaskBelief(kind=context.kind)
    return estimate_arms(state, task, arms)


def _value(
    context: ChoiceContext, ways: Sequence[_Way], estimates: ArmEstimates, stakes: StepStakes, *, asks: bool
) -> StepChoice:
    """Return the valued steps; of a round, those that cost more than the money left are not among them."""
    steps, place = list[PossibleStep](), 0
    limit = math.inf if context.money_left is None else context.money_left
    for way in ways:
        numbers = range(place, place + len(way.arms))
        place += len(way.arms)
        if asks and sum(estimates.prices[each] for each in numbers) > limit:
            continue
        arms = tuple(
            StepArm(
                family=estimates.arm_families[number],
                skill=estimates.skills[number].hex(),
                price=estimates.prices[number].hex(),
            )
            for number in numbers
        )
        costs = min(estimates.costs[each] for each in numbers)
        steps.append(PossibleStep(name=way.name, strategy=way.strategy, arms=arms, costs=costs))
    causes = _find_causes(context)
    draw = StepDraw(
        rho=estimates.rho,
        worth=stakes.worth_usd,
        person_price=stakes.person_usd if asks else None,
        person_chance=_PERSON_CHANCE,
        mendable=(1.0 - math.fsum(causes[each] for each in _HOPELESS)).hex(),
        difficulty=estimates.difficulty,
        families=estimates.families,
    )
    return choose_step(steps, draw, outcomes=estimates.outcomes, causes=causes)


def _find_causes(context: ChoiceContext) -> Mapping[str, float]:
    """Return the probability of each cause of the last failure, from the attempts on the task so far."""
    if not context.tried:
        return diagnose(FailureFacts()).causes
    *before, last = context.tried
    same: Literal["yes", "no", "none"] | None = None
    if last.ends:
        same = "none" if not before else "yes" if last.ends == before[-1].ends else "no"
    by_work = last.cause in ("agent", "check")
    facts = FailureFacts(
        cause_class=_CLASSES.get(last.cause),
        changed=all(each.code != "no_change" for each in last.ends) if by_work and last.ends else None,
        same_failure=same,
        attempt=len(context.tried),
    )
    return diagnose(facts).causes


def _end(found: StepChoice) -> Choice:
    """Return the choice of a person, or of no further attempt, and name the best attempt."""
    best = next((each for each in found.valued if each.name not in (ASK, STOP)), None)
    told = "" if best is None else f": {best.name} has a {best.chance:.0%} chance for {best.price:.2f} USD"
    reason = ChoiceReason("not_worth_it", best.name if best else "", told, _encode(found))
    return Choice(action="ask" if found.chosen == ASK else "stop", reasons=(reason,))


def _encode(found: StepChoice) -> str:
    return msgspec.json.encode(found).decode()
