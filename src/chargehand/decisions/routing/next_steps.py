"""The best way to go on after failed attempts on a task: a finite Markov decision process over the untried steps.

A state is the set of steps that were tried since and were red. A step costs its price and solves the task with a
chance that falls with each red one, because difficulty is shared. A person or no further attempt end the process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from chargehand.decisions.processes.mdp import Transition, sparse_process
from chargehand.decisions.processes.solving import iterate_values
from chargehand.decisions.routing.conclusion import FEW_OUTCOMES
from chargehand.decisions.routing.records import FollowingStep, PossibleStep, StepChoice, StepDraw, ValuedStep
from chargehand.decisions.routing.value import chances_all_red, solve_chances

STEP_POLICY = "next-step-1"
ASK, STOP = "ask", "stop"
# More arms than this would need too many sums; the last steps are left out.
MOST_STEP_ARMS = 8


def choose_step(
    steps: Sequence[PossibleStep], draw: StepDraw, *, outcomes: int, causes: Mapping[str, float] = {}
) -> StepChoice:
    """Return the step with the highest value; of equal ones the first of `steps`, then a person, then no other."""
    steps = _limit(steps)
    prices = _list_prices(steps)
    values, red = _value_steps(steps, draw)
    count = len(steps)
    valued = [
        ValuedStep(
            name=step.name,
            strategy=step.strategy,
            chance=1 - red[1 << place],
            price=prices[place],
            value=values[0][place],
            costs=step.costs,
        )
        for place, step in enumerate(steps)
    ]
    if draw.person_price is not None:
        person = ValuedStep(
            name=ASK, strategy=ASK, chance=draw.person_chance, price=draw.person_price, value=values[0][count]
        )
        valued.append(person)
    valued.append(ValuedStep(name=STOP, strategy=STOP, chance=0.0, price=0.0, value=0.0))
    ranked = tuple(sorted(valued, key=lambda each: -each.value))
    return StepChoice(
        policy=STEP_POLICY,
        chosen=ranked[0].name,
        valued=ranked,
        steps=tuple(steps),
        draw=draw,
        causes=causes,
        outcomes=outcomes,
        guess=outcomes < FEW_OUTCOMES,
    )


def list_ladder(choice: StepChoice) -> tuple[tuple[FollowingStep, ...], ...]:
    """Return for each valued step, in their order, the path that begins with it and goes on with the best steps.

    A path ends with a person or no further attempt.
    """
    names = [*(each.name for each in choice.steps), ASK, STOP]
    values, red = _value_steps(choice.steps, choice.draw)
    return tuple(_follow(choice, names.index(each.name), values, red) for each in choice.valued)


def _follow(
    choice: StepChoice, action: int, values: Sequence[Sequence[float]], red: Sequence[float]
) -> tuple[FollowingStep, ...]:
    prices, count = _list_prices(choice.steps), len(choice.steps)
    path, tried = list[FollowingStep](), 0
    while action < count:
        step, after = choice.steps[action], tried | 1 << action
        chance = 1 - red[after] / red[tried] if red[tried] > 0 else 0.0
        price, value = prices[action], values[tried][action]
        path.append(
            FollowingStep(
                name=step.name, reached=red[tried], chance=chance, price=price, value=value, costs=step.costs
            )
        )
        tried = after
        # Of equal values the first, as in a choice.
        action = values[tried].index(max(values[tried]))
    asks = action == count
    end = FollowingStep(
        name=ASK if asks else STOP,
        reached=red[tried],
        chance=choice.draw.person_chance if asks else 0.0,
        price=(choice.draw.person_price or 0.0) if asks else 0.0,
        value=values[tried][action],
    )
    return (*path, end)


def _list_prices(steps: Sequence[PossibleStep]) -> list[float]:
    return [sum(float.fromhex(arm.price) for arm in step.arms) for step in steps]


def _value_steps(steps: Sequence[PossibleStep], draw: StepDraw) -> tuple[list[list[float]], list[float]]:
    """Return per set of red steps (a bit mask) the value of each step, a person and the end, and their chance."""
    prices, red = _list_prices(steps), _chances_red(steps, draw)
    count, places = len(steps), 1 << len(steps)
    rewards = np.zeros((places + 1, count + 2))
    allowed = np.zeros((places + 1, count + 2), dtype=np.bool_)
    transitions: list[Transition] = []
    for tried in range(places):
        for step in range(count):
            after = tried | 1 << step
            if after == tried:
                continue
            chance = 1 - red[after] / red[tried] if red[tried] > 0 else 0.0
            allowed[tried, step] = True
            rewards[tried, step] = draw.worth * chance - prices[step]
            transitions += [Transition(tried, step, places, chance), Transition(tried, step, after, 1 - chance)]
        if draw.person_price is not None:
            allowed[tried, count] = True
            rewards[tried, count] = draw.worth * draw.person_chance - draw.person_price
            transitions.append(Transition(tried, count, places, 1.0))
        allowed[tried, count + 1] = True
        transitions.append(Transition(tried, count + 1, places, 1.0))
    process = sparse_process(transitions, rewards, discount=1.0, allowed=allowed)
    found: list[list[float]] = process.action_values(iterate_values(process).values).tolist()
    return found, red


def replay_step(choice: StepChoice) -> StepChoice:
    """Return the choice computed again from its own draw; it equals `choice` bit by bit."""
    return choose_step(choice.steps, choice.draw, outcomes=choice.outcomes, causes=choice.causes)


def _limit(steps: Sequence[PossibleStep]) -> list[PossibleStep]:
    found, arms = list[PossibleStep](), 0
    for step in steps:
        arms += len(step.arms)
        if arms > MOST_STEP_ARMS:
            break
        found.append(step)
    return found


def _chances_red(steps: Sequence[PossibleStep], draw: StepDraw) -> list[float]:
    """Return for each set of steps (a bit mask) the chance that all fail."""
    arms = [arm for step in steps for arm in step.arms]
    reds = [
        [[1 - chance for chance in row] for row in solve_chances(float.fromhex(arm.skill), draw.rho)]
        for arm in arms
    ]
    weights = (
        [float.fromhex(each) for each in draw.difficulty],
        {family: [[float.fromhex(x) for x in row] for row in rows] for family, rows in draw.families.items()},
    )
    all_red = chances_all_red(reds, [arm.family for arm in arms], weights)
    masks, place = list[int](), 0
    for step in steps:
        masks.append(((1 << len(step.arms)) - 1) << place)
        place += len(step.arms)
    mendable = float.fromhex(draw.mendable)
    return [
        1 - mendable + mendable * all_red[sum(mask for number, mask in enumerate(masks) if tried >> number & 1)]
        for tried in range(1 << len(steps))
    ]
