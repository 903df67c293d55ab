"""The only caller of a chooser: gives it the history, and refuses a choice that breaks its contract."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from chargehand.core.choices import Choice, ChoiceContext, ChoiceHistory, Chooser, GreenChange, find_fault
from chargehand.core.errors import InfrastructureError
from chargehand.core.records import Finding, MissionForecast
from chargehand.decisions.forecast_records import ForecastFacts, PlanFacts
from chargehand.decisions.rules import FixedRules


class Decider(Struct, frozen=True, kw_only=True):
    """A chooser with the source of its history.

    `forecaster` and `plan_forecaster` are `None` if decisions are not learned.
    `review` says why a person has to see a green change. `keep` is called after each use of the history, to keep
    what was learned from it.
    """

    chooser: Chooser = field(default_factory=FixedRules)
    history: Callable[[], ChoiceHistory] = ChoiceHistory
    review: Callable[[GreenChange], Finding | None] | None = None
    forecaster: Callable[[ForecastFacts, ChoiceHistory], MissionForecast] | None = None
    plan_forecaster: Callable[[PlanFacts, ChoiceHistory], MissionForecast] | None = None
    keep: Callable[[], object] = tuple

    def forecast(self, facts: ForecastFacts) -> MissionForecast | None:
        """Return the forecast of a mission, `None` without a forecaster."""
        if self.forecaster is None:
            return None
        found = self.forecaster(facts, self.history())
        self.keep()
        return found

    def forecast_plan(self, facts: PlanFacts) -> MissionForecast | None:
        """Return the forecast of a plan, `None` without a forecaster."""
        if self.plan_forecaster is None:
            return None
        found = self.plan_forecaster(facts, self.history())
        self.keep()
        return found

    def choose(self, context: ChoiceContext) -> Choice:
        """Return the chooser's choice; raise `InfrastructureError` (`choice_invalid`) if it is not allowed."""
        choice = self.chooser.choose(context, self.history())
        self.keep()
        fault = find_fault(context, choice)
        if fault:
            message = f"the choice for this {context.moment} is not allowed: {fault}"
            raise InfrastructureError(message, code="choice_invalid")
        return choice
