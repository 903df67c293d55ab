"""The outcomes of attempts in the store, as the history of choices."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from chargehand.core.attempt_events import AttemptResumed
from chargehand.core.choices import OF_ROLLOUTS, Candidate, ChoiceHistory, ChoiceOutcome, task_work
from chargehand.core.events import Event, read_payload
from chargehand.core.mission_events import AttemptFinished, MissionContinued, MissionCreated, MissionResumed
from chargehand.core.records import ChoiceReason
from chargehand.core.state import AttemptState
from chargehand.core.truth import LATER_WORDS, TRUTH_TYPES, MissionTruth
from chargehand.missions.causes import attempt_cause

if TYPE_CHECKING:
    from collections.abc import Callable

    from chargehand.store.rows import MissionListing
    from chargehand.store.store import Store

_PAGE = 1000
# The last three let an ended attempt continue.
_TYPES = (
    *(MissionCreated.type, AttemptFinished.type, *sorted(LATER_WORDS)),
    *(AttemptResumed.type, MissionResumed.type, MissionContinued.type),
)


class OutcomeHistory:
    """Reads the ended attempts of all projects; a later call reads only the missions with new ends or words.

    `store` opens the store at the first call. The history depends only on the logs, not on when it was read.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._position = 0
        self._rollouts: dict[str, tuple[ChoiceReason, ...]] = {}
        # By attempt, in the order of first ends; `None` while the end says nothing. Each mission's later truth.
        self._outcomes: dict[str, ChoiceOutcome | None] = {}
        self._truths: dict[str, MissionTruth] = {}

    def __call__(self) -> ChoiceHistory:
        """Return all outcomes in the order in which attempts ended; raise `StoreError`."""
        log = self._store().log
        with self._lock:
            while page := log.after(self._position, limit=_PAGE, types=_TYPES):
                for mission in {each.event.mission for each in page if each.event.type in LATER_WORDS}:
                    self._truths[mission] = MissionTruth.of(log.read(mission, types=TRUTH_TYPES))
                listings: dict[str, MissionListing] = {}
                for each in page:
                    mission = each.event.mission
                    if each.event.type != MissionCreated.type and mission not in listings:
                        listings[mission] = log.summary(mission)
                    self._begin(each.event, listings.get(mission))
                for mission, listing in listings.items():
                    self._update(mission, listing)
                self._position = page[-1].position
            return ChoiceHistory(outcomes=tuple(filter(None, self._outcomes.values())))

    def _begin(self, event: Event, listing: MissionListing | None) -> None:
        """Note a mission's roll-outs, and the place of an ended attempt among the others."""
        payload = read_payload(event)
        if isinstance(payload, MissionCreated):
            self._rollouts[event.mission] = tuple(why for why in payload.chosen if why.code in OF_ROLLOUTS)
        elif isinstance(payload, AttemptFinished):
            self._outcomes.setdefault(payload.attempt, None)
        elif (
            listing is not None and event.type == AttemptFinished.type
        ):  # an erased line does not name its attempt
            for attempt in listing.summary.attempts:
                self._outcomes.setdefault(attempt.id, None)

    def _update(self, mission: str, listing: MissionListing) -> None:
        summary, truth = listing.summary, self._truths.get(mission)
        for attempt in summary.attempts:
            if attempt.copied or attempt.id not in self._outcomes:  # a copy counts in the mission that it is from
                continue
            is_good = _judge(attempt)
            if is_good is None:
                self._outcomes[attempt.id] = None
                continue
            model = attempt.model or (summary.request.model if summary.request else None)
            outcome = ChoiceOutcome(
                candidate=Candidate(agent=attempt.agent, model=model),
                is_good=is_good,
                cost_usd=attempt.cost_usd if attempt.cost_known else None,
                kind=listing.row.project,
                work=task_work(summary.parent or mission, summary.task),
                rollouts=self._rollouts.get(mission, ()),
                seconds=attempt.seconds,
                proved_right=truth.find_word(attempt.id) if truth is not None and attempt.ended_well else None,
            )
            if outcome != self._outcomes[attempt.id]:  # an unchanged record stays the same object
                self._outcomes[attempt.id] = outcome


def _judge(attempt: AttemptState) -> bool | None:
    """Return whether an attempt was good, `None` if its end says nothing of its agent and model."""
    if attempt.status == "running":
        return None
    if attempt.status == "succeeded":
        return True
    cause = attempt_cause(attempt)
    return False if cause is not None and cause.kind in ("agent", "check") else None
