"""The records that the router reads and writes: its history, its candidates, its budget and its choice."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal

from msgspec import Struct

Verdict = Literal["green", "red"]


class TaskBegins(Struct, frozen=True, kw_only=True, tag_field="type", tag="task"):
    """A task begins; `features["kind"]` names a class of tasks with its own prices and rates (a repository).

    `task` tells tasks apart that run at the same time; empty: attempts belong to the task that began last.
    """

    features: Mapping[str, str] = {}
    task: str = ""


class AttemptEnds(Struct, frozen=True, kw_only=True, tag_field="type", tag="attempt"):
    """An attempt ends; `arm` is a candidate's id, `cost` in USD is `None` or 0 if it is unknown."""

    arm: str
    verdict: Verdict
    cost: float | None = None
    task: str = ""


class TruthFound(Struct, frozen=True, kw_only=True, tag_field="type", tag="truth"):
    """A green result of an arm proved right, or wrong, later."""

    arm: str
    is_right: bool
    kind: str = ""


HistoryRecord = TaskBegins | AttemptEnds | TruthFound


class ArmPrior(Struct, frozen=True, kw_only=True):
    """The published outcomes of an arm, relative to the level of a kind of task.

    `skill` is in probits, `log_price` in log USD per attempt; each has the variance of this part.
    """

    skill: float
    skill_variance: float
    log_price: float
    log_price_variance: float


class RouterPrior(Struct, frozen=True, kw_only=True):
    """The level of a kind of task without outcomes, with its variances; arms add their own parts."""

    skill: float = 0.35
    skill_variance: float = 0.24
    log_price: float = -0.6
    log_price_variance: float = 1.0


class RouterCandidate(Struct, frozen=True, kw_only=True):
    """An agent with a model and a strategy; `list_price` is in USD per million output tokens, if known.

    The attempts of one that `is_free` cost nothing; a recorded cost of 0 alone says only that it is not known.
    """

    id: str
    agent: str
    model: str = ""
    list_price: float | None = None
    is_free: bool = False
    strategy: str = ""
    prior: ArmPrior | None = None
    level: RouterPrior = RouterPrior()

    @property
    def family(self) -> str:
        """The maker's line that the model belongs to; models of one family fail on the same tasks more often."""
        return find_family(self.model or self.agent)


class RouterBudget(Struct, frozen=True, kw_only=True):
    """The worth of a solved task, and limits of spending; all money is in USD.

    `wrong_price` is that of a wrong promotion, by default the worth. `check_price` is that of one verdict.
    `false_green` and `false_red` are the rates at which a verdict is wrong. `attempts` bounds a task,
    `money_left` the rest of the task. With `per_task` the worth is adapted until a task costs that much on
    average. Without `explores` the router uses means and tries nothing in order to learn.
    """

    worth: float = 5.0
    wrong_price: float | None = None
    check_price: float = 0.0
    false_green: float = 0.0
    false_red: float = 0.0
    attempts: int = 4
    money_left: float | None = None
    per_task: float | None = None
    explores: bool = True


class ConsideredArm(Struct, frozen=True, kw_only=True):
    """A compared arm: chance to solve now, price of the attempt, value of trying it first and then the best rest.

    These three follow from one draw of the beliefs; `expected_chance` and `expected_price` are the estimates.
    `costs` counts the known costs of the arm in this kind of task: without any the price is assumed. `skill` and
    `price_exact` are the drawn skill and price as hex floats, from which all the others follow.
    """

    id: str
    family: str
    chance: float
    price: float
    value: float
    expected_chance: float
    expected_price: float
    costs: int
    skill: str
    price_exact: str


class ExcludedArm(Struct, frozen=True, kw_only=True):
    """An arm that was not compared: `tried`, `no_money`, `price_unknown` (too dear to find out), `worse`."""

    id: str
    reason: Literal["tried", "no_money", "price_unknown", "worse"]


class RouterDraw(Struct, frozen=True, kw_only=True):
    """All numbers that a choice was computed from, as hex floats where rounding matters.

    `difficulty` has the weight of each point of difficulty, `families` those of each family's own part: one
    row of weights per point of difficulty.
    """

    rho: float
    worth: float
    wrong_price: float
    attempts_left: int
    difficulty: tuple[str, ...]
    families: Mapping[str, tuple[tuple[str, ...], ...]]
    budget: RouterBudget


class ArmEstimates(Struct, frozen=True, kw_only=True):
    """The mean beliefs about arms, in order.

    Skills are in probits, with their standard deviations, prices in USD; `costs` counts the known ones.
    `rho`, `difficulty` and `families` as in `RouterDraw`. `outcomes` counts those of the kind of task.
    """

    rho: float
    arm_families: tuple[str, ...]
    skills: tuple[float, ...]
    deviations: tuple[float, ...]
    prices: tuple[float, ...]
    costs: tuple[int, ...]
    difficulty: tuple[str, ...]
    families: Mapping[str, tuple[tuple[str, ...], ...]]
    outcomes: int


class RouterChoice(Struct, frozen=True, kw_only=True):
    """The arm to try next, `None` to stop; `gain` in USD is its value over the second's (or over stopping).

    `guess` is set before 20 outcomes of the kind are known.
    """

    policy: str
    chosen: str | None
    gain: float
    guess: bool
    considered: tuple[ConsideredArm, ...]
    excluded: tuple[ExcludedArm, ...]
    outcomes: int
    draw: RouterDraw


class StepArm(Struct, frozen=True, kw_only=True):
    """An attempt of a step: the skill in probits and the expected price in USD, both as hex floats."""

    family: str
    skill: str
    price: str


class PossibleStep(Struct, frozen=True, kw_only=True):
    """A way to go on, whose attempts run at the same time; `strategy` as in a task's next round.

    `costs` counts the known costs of its arm with the fewest: without any, the price is only assumed.
    """

    name: str
    strategy: str
    arms: tuple[StepArm, ...]
    costs: int


class StepDraw(Struct, frozen=True, kw_only=True):
    """All numbers that a choice of the next step was computed from, as in `RouterDraw`.

    `mendable` is the probability, as hex float, that an attempt can help at all. `person_price` is the cost of
    asking a person in USD, `None` if that is not possible, `person_chance` the chance that this solves the task.
    """

    rho: float
    worth: float
    person_price: float | None
    person_chance: float
    mendable: str
    difficulty: tuple[str, ...]
    families: Mapping[str, tuple[tuple[str, ...], ...]]


class ValuedStep(Struct, frozen=True, kw_only=True):
    """A step with its chance to solve the task now, its price, and its value with the best steps after it."""

    name: str
    strategy: str
    chance: float
    price: float
    value: float
    costs: int = 0


class StepChoice(Struct, frozen=True, kw_only=True):
    """The chosen step, `ask` or `stop`, and all valued ones, the best first.

    `causes` has the probability of each cause of the last failure, from which `mendable` follows.
    """

    policy: str
    chosen: str
    valued: tuple[ValuedStep, ...]
    steps: tuple[PossibleStep, ...]
    draw: StepDraw
    causes: Mapping[str, float]
    outcomes: int
    guess: bool


class FollowingStep(Struct, frozen=True, kw_only=True):
    """A step on a path of steps: `reached` is the chance that all steps before it are red.

    Chance, price and value are as in `ValuedStep`, given that it is reached.
    """

    name: str
    reached: float
    chance: float
    price: float
    value: float
    costs: int = 0


class RouterForecast(Struct, frozen=True, kw_only=True):
    """A forecast of the next tasks: the cost of all in USD with its band, the number solved with its band.

    `single_low` and `single_high` are the band of one task's cost, `chance` its probability to be solved.
    """

    tasks: int
    level: float
    cost: float
    low: float
    high: float
    solved: float
    solved_low: float
    solved_high: float
    chance: float
    single_low: float
    single_high: float
    guess: bool


@cache
def find_family(model: str) -> str:
    """Return the family of a model: its first word, without maker and version, such as `claude` or `gpt`."""
    word = model.rsplit("/", 1)[-1].lower()
    letters = ""
    for char in word:
        if not char.isalpha():
            break
        letters += char
    return letters or word
