"""Makes the decider that a configuration asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chargehand.core.choices import Chooser
from chargehand.core.config import Config
from chargehand.decisions.decider import Decider
from chargehand.decisions.rules import FixedRules
from chargehand.missions.outcomes import OutcomeHistory

if TYPE_CHECKING:
    from collections.abc import Callable

    from chargehand.store.store import Store


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
    from chargehand.decisions.reviewing import RiskReview

    limit = decisions.review_percent / 100
    review = RiskReview(limit=limit, history=history) if limit else None
    return Decider(chooser=chooser, history=history, review=review, forecaster=forecast_mission)
