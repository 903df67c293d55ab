"""The outcomes of attempts in the store, as the history of choices; also makes the chooser that reads it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from chargehand.core.choices import Candidate, ChoiceHistory, ChoiceOutcome
from chargehand.core.config import DecisionsConfig
from chargehand.core.mission_events import AttemptFinished
from chargehand.core.state import AttemptState, MissionSummary
from chargehand.decisions.decider import Decider
from chargehand.missions.causes import attempt_cause

if TYPE_CHECKING:
    from collections.abc import Callable

    from chargehand.store.store import Store

_PAGE = 1000


class OutcomeHistory:
    """Reads the ended attempts of all projects; a later call reads only the missions with new ends.

    `store` opens the store at the first call.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._position = 0
        self._seen = set[str]()
        self._outcomes: list[ChoiceOutcome] = []

    def __call__(self) -> ChoiceHistory:
        """Return all outcomes in the order in which attempts ended; raise `StoreError`."""
        log = self._store().log
        with self._lock:
            while page := log.after(self._position, limit=_PAGE, types=(AttemptFinished.type,)):
                for mission in dict.fromkeys(each.event.mission for each in page):
                    listing = log.summary(mission)
                    self._add(mission, listing.row.project, listing.summary)
                self._position = page[-1].position
            return ChoiceHistory(outcomes=tuple(self._outcomes))

    def _add(self, mission: str, project: str, summary: MissionSummary) -> None:
        for attempt in summary.attempts:
            is_good = _judge(attempt)
            if is_good is None or attempt.id in self._seen:
                continue
            self._seen.add(attempt.id)
            model = attempt.model or (summary.request.model if summary.request else None)
            outcome = ChoiceOutcome(
                candidate=Candidate(agent=attempt.agent, model=model),
                is_good=is_good,
                cost_usd=attempt.cost_usd if attempt.cost_known else None,
                kind=project,
                work=mission,
                seconds=attempt.seconds,
            )
            self._outcomes.append(outcome)


def _judge(attempt: AttemptState) -> bool | None:
    """Return whether an attempt was good, `None` if its end says nothing of its agent and model."""
    if attempt.copied or attempt.status == "running":
        return None
    if attempt.status == "succeeded":
        return True
    cause = attempt_cause(attempt)
    return False if cause is not None and cause.kind in ("agent", "check") else None


def make_decider(decisions: DecisionsConfig, store: Callable[[], Store]) -> Decider:
    """Return the decider that a configuration asks for; raise `NotInstalledError` if it needs a missing part."""
    if not decisions.learned:
        return Decider()
    from chargehand.configuration.extras import require_extra

    require_extra("decisions")
    from chargehand.decisions.forecasts import forecast_mission
    from chargehand.decisions.learned import LearnedRules

    chooser = LearnedRules(worth_usd=decisions.worth_usd, explores=decisions.explore)
    return Decider(chooser=chooser, history=OutcomeHistory(store), forecaster=forecast_mission)
