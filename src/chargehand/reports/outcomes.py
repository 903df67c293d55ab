"""The outcomes of attempts in the store, as the history of choices."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from chargehand import __version__
from chargehand.core.attempt_events import AttemptResumed
from chargehand.core.choices import OF_ROLLOUTS, Candidate, ChoiceHistory, ChoiceOutcome, task_work
from chargehand.core.codec import unpack_as
from chargehand.core.events import Event, read_payload
from chargehand.core.mission_events import (
    AttemptFinished,
    MissionContinued,
    MissionCreated,
    MissionResumed,
    PromotionDone,
)
from chargehand.core.records import ChoiceReason
from chargehand.core.state import AttemptState
from chargehand.core.truth import LATER_WORDS, TRUTH_TYPES, MissionTruth
from chargehand.missions.causes import attempt_cause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chargehand.store.log import EventLog
    from chargehand.store.rows import MissionListing
    from chargehand.store.store import Store

_PAGE = 1000
# The last three let an ended attempt continue.
_TYPES = (
    *(MissionCreated.type, AttemptFinished.type, *sorted(LATER_WORDS)),
    *(PromotionDone.type, AttemptResumed.type, MissionResumed.type, MissionContinued.type),
)
# The derived file, and the lines after which it is written again. Another program may judge attempts differently.
_FILE, _MANY = "outcomes", 500
_FORM = f"1 {__version__}"


class _KnownOutcomes(Struct, kw_only=True):
    """All that was read up to a position of the log, which had a line of this hash and these erasures.

    `rollouts` are by mission. `outcomes` are by attempt, in the order of first ends; `None` while the end says
    nothing. `judged` are the missions with later words.
    """

    form: str = _FORM
    position: int = 0
    hash: str = ""
    erasures: str = ""
    rollouts: dict[str, tuple[ChoiceReason, ...]] = {}
    outcomes: dict[str, ChoiceOutcome | None] = {}
    judged: set[str] = set()


class OutcomeHistory:
    """Reads the ended attempts of all projects; a later call reads only the missions with new ends or words.

    `store` opens the store at the first call. The history depends only on the logs and on the chosen benchmarks,
    not on when it was read: a derived file saves reading the logs again in a new process, while it fits them.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: _KnownOutcomes | None = None
        self._unsaved = 0

    def __call__(self) -> ChoiceHistory:
        """Return all outcomes in the order in which attempts ended; raise `StoreError`."""
        store = self._store()
        with self._lock:
            known = self._known or _load(store)
            mark = store.log.mark(known.position)
            if (mark.hash, mark.erasures) != (known.hash, known.erasures):
                known = _KnownOutcomes(erasures=mark.erasures)
                with suppress(OSError):  # it may repeat erased lines
                    store.derived.remove(_FILE)
            self._known = known
            while page := store.log.after(known.position, limit=_PAGE, types=_TYPES):
                self._read(known, store.log, [each.event for each in page])
                known.position, known.hash = page[-1].position, page[-1].event.hash
                self._unsaved += len(page)
            if self._unsaved >= _MANY:
                store.derived.write(_FILE, msgspec.msgpack.encode(known))
                self._unsaved = 0
            outcomes = tuple(filter(None, known.outcomes.values()))
            return ChoiceHistory(outcomes=outcomes, benchmarks=store.evidence.read())

    def _read(self, known: _KnownOutcomes, log: EventLog, page: Sequence[Event]) -> None:
        known.judged |= {each.mission for each in page if each.type in LATER_WORDS}
        # A promotion changes only earlier words.
        changed = {
            each.mission
            for each in page
            if each.type != MissionCreated.type
            and (each.type != PromotionDone.type or each.mission in known.judged)
        }
        listings = log.find_summaries(changed)
        for each in page:
            _begin(known, each, listings.get(each.mission))
        for mission, listing in listings.items():
            spoken = mission in known.judged
            truth = MissionTruth.of(log.read(mission, types=TRUTH_TYPES)) if spoken else None
            _update(known, mission, listing, truth)


def _load(store: Store) -> _KnownOutcomes:
    """Return the content of the derived file, or empty knowledge if it does not fit this program."""
    content = store.derived.read(_FILE)
    if content is None:
        return _KnownOutcomes()
    try:
        known = unpack_as(content, _KnownOutcomes)
    except msgspec.MsgspecError:
        return _KnownOutcomes()
    return known if known.form == _FORM else _KnownOutcomes()


def _begin(known: _KnownOutcomes, event: Event, listing: MissionListing | None) -> None:
    """Note a mission's roll-outs, and the place of an ended attempt among the others."""
    payload = read_payload(event)
    if isinstance(payload, MissionCreated):
        if found := tuple(why for why in payload.chosen if why.code in OF_ROLLOUTS):
            known.rollouts[event.mission] = found
    elif isinstance(payload, AttemptFinished):
        known.outcomes.setdefault(payload.attempt, None)
    elif listing is not None and event.type == AttemptFinished.type:  # an erased line does not name its attempt
        for attempt in listing.summary.attempts:
            known.outcomes.setdefault(attempt.id, None)


def _update(known: _KnownOutcomes, mission: str, listing: MissionListing, truth: MissionTruth | None) -> None:
    summary = listing.summary
    for attempt in summary.attempts:
        if attempt.copied or attempt.id not in known.outcomes:  # a copy counts in the mission that it is from
            continue
        is_good = judge_attempt(attempt)
        if is_good is None:
            known.outcomes[attempt.id] = None
            continue
        model = attempt.model or (summary.request.model if summary.request else None)
        outcome = ChoiceOutcome(
            candidate=Candidate(agent=attempt.agent, model=model),
            is_good=is_good,
            cost_usd=attempt.cost_usd if attempt.cost_known else None,
            kind=listing.row.project,
            work=task_work(summary.parent or mission, summary.task),
            rollouts=known.rollouts.get(mission, ()),
            seconds=attempt.seconds,
            proved_right=truth.find_word(attempt.id) if truth is not None and attempt.ended_well else None,
        )
        if outcome != known.outcomes[attempt.id]:  # an unchanged record stays the same object
            known.outcomes[attempt.id] = outcome


def judge_attempt(attempt: AttemptState) -> bool | None:
    """Return whether an attempt was good, `None` if its end says nothing of its agent and model."""
    if attempt.status == "running":
        return None
    if attempt.status == "succeeded":
        return True
    cause = attempt_cause(attempt)
    return False if cause is not None and cause.kind in ("agent", "check") else None
