"""The outcomes of attempts in the store, as the history of choices; also makes the chooser that reads it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from chargehand.core.choices import OF_ROLLOUTS, Candidate, ChoiceHistory, ChoiceOutcome, Chooser, task_work
from chargehand.core.config import Config
from chargehand.core.events import read_payload
from chargehand.core.mission_events import AttemptFinished, MissionCreated
from chargehand.core.records import ChoiceReason
from chargehand.core.state import AttemptState
from chargehand.decisions.decider import Decider
from chargehand.decisions.rules import FixedRules
from chargehand.missions.causes import attempt_cause

if TYPE_CHECKING:
    from collections.abc import Callable

    from chargehand.store.rows import MissionListing
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
        self._rollouts: dict[str, tuple[ChoiceReason, ...]] = {}
        self._outcomes: list[ChoiceOutcome] = []

    def __call__(self) -> ChoiceHistory:
        """Return all outcomes in the order in which attempts ended; raise `StoreError`."""
        log = self._store().log
        with self._lock:
            while page := log.after(
                self._position, limit=_PAGE, types=(MissionCreated.type, AttemptFinished.type)
            ):
                listings: dict[str, MissionListing] = {}
                for each in page:
                    mission = each.event.mission
                    payload = read_payload(each.event)
                    if isinstance(payload, MissionCreated):
                        self._rollouts[mission] = tuple(why for why in payload.chosen if why.code in OF_ROLLOUTS)
                    elif each.event.type == AttemptFinished.type:
                        if mission not in listings:
                            listings[mission] = log.summary(mission)
                        # An erased line does not name its attempt: then all that ended are read now.
                        ended = payload.attempt if isinstance(payload, AttemptFinished) else ""
                        self._add(mission, listings[mission], ended)
                self._position = page[-1].position
            return ChoiceHistory(outcomes=tuple(self._outcomes))

    def _add(self, mission: str, listing: MissionListing, ended: str) -> None:
        summary = listing.summary
        for attempt in summary.attempts:
            is_good = _judge(attempt) if ended in ("", attempt.id) else None
            if is_good is None or attempt.id in self._seen:
                continue
            self._seen.add(attempt.id)
            model = attempt.model or (summary.request.model if summary.request else None)
            outcome = ChoiceOutcome(
                candidate=Candidate(agent=attempt.agent, model=model),
                is_good=is_good,
                cost_usd=attempt.cost_usd if attempt.cost_known else None,
                kind=listing.row.project,
                work=task_work(listing.summary.parent or mission, listing.summary.task),
                rollouts=self._rollouts.get(mission, ()),
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

    review = RiskReview(limit=decisions.review_percent / 100) if decisions.review_percent else None
    return Decider(chooser=chooser, history=history, review=review, forecaster=forecast_mission)
