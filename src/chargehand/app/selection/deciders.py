"""Makes the decider that a configuration asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chargehand.core.choices import ChoiceHistory, Chooser
from chargehand.core.config import Config
from chargehand.decisions.decider import Decider
from chargehand.decisions.rules import FixedRules
from chargehand.reports.outcomes import OutcomeHistory

if TYPE_CHECKING:
    from collections.abc import Callable

    from chargehand.store.store import Store

_BELIEFS = "beliefs"


def make_decider(config: Config, store: Callable[[], Store]) -> Decider:
    """Return the decider that a configuration asks for; raise `NotInstalledError` if it needs a missing part."""
    decisions, rollouts = config.decisions, {name: each for name, each in config.rollouts.items() if each.percent}
    if not decisions.learned and not rollouts:
        return Decider()
    policies: dict[str, Chooser] = {"fixed": FixedRules()}
    if decisions.learned or any(each.policy == "learned" for each in rollouts.values()):
        from chargehand.configuration.extras import require_extra

        require_extra("decisions")
        from chargehand.decisions.learned import LearnedRules

        policies["learned"] = LearnedRules(
            worth_usd=decisions.worth_usd, person_usd=decisions.person_usd, explores=decisions.explore
        )
    chooser = policies["learned" if decisions.learned else "fixed"]
    if rollouts:
        from chargehand.decisions.rollouts import RolloutRules

        chooser = RolloutRules(chooser=chooser, rollouts=rollouts, policies=policies)
    history = OutcomeHistory(store)
    if not decisions.learned:
        return Decider(chooser=chooser, history=history)
    from chargehand.decisions.forecasts import forecast_mission
    from chargehand.decisions.plan_forecasts import forecast_plan
    from chargehand.decisions.reviewing import RiskReview

    limit = decisions.review_percent / 100
    review = RiskReview(limit=limit, history=history) if limit else None
    learned = _LearnedHistory(history, store)
    return Decider(
        chooser=chooser,
        history=learned,
        review=review,
        forecaster=forecast_mission,
        plan_forecaster=forecast_plan,
        keep=learned.keep_beliefs,
    )


class _LearnedHistory:
    """The outcomes, with checkpoints of the beliefs that follow from them in a derived file of the store."""

    def __init__(self, outcomes: OutcomeHistory, store: Callable[[], Store]) -> None:
        self._outcomes = outcomes
        self._store = store
        self._is_loaded = False

    def __call__(self) -> ChoiceHistory:
        from chargehand.decisions.folds import load_checkpoints

        if not self._is_loaded:
            load_checkpoints(self._store().derived.read(_BELIEFS) or b"")
            self._is_loaded = True
        return self._outcomes()

    def keep_beliefs(self) -> None:
        """Write the checkpoints again after many new outcomes."""
        from chargehand.decisions.folds import save_checkpoints

        if content := save_checkpoints():
            self._store().derived.write(_BELIEFS, content)
