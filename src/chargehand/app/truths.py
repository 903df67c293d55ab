"""Use cases of later truth: look for the fates of promotions, and record people's feedback."""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta
from typing import Literal

from msgspec import Struct

from chargehand.app.composition import App
from chargehand.core.attempt_events import CheckpointMade
from chargehand.core.errors import ChargehandError, NotFoundError, RefusedError, UsageError
from chargehand.core.events import read_payload
from chargehand.core.mission_events import FeedbackGiven, FeedbackRetracted, PromotionFollowed
from chargehand.core.records import Feedback, Promotion
from chargehand.core.state import SETTLED, AttemptState, MissionState
from chargehand.core.truth import TRUTH_TYPES, MissionTruth
from chargehand.missions.journal import claim_mission
from chargehand.reports.changed_places import ChangedPlace, list_places
from chargehand.reports.documents import Document
from chargehand.store.rows import MissionFilter
from chargehand.workspace.depot import Depot
from chargehand.workspace.presence import find_change

# A look at all promotions leaves out missions that are this much older than the days of survival.
_MERGE_DAYS = 30
_MOST_DAYS = 36_500
# A look that no person asked for ends after so many seconds: a person may wait for a mission to start.
_QUIET_SECONDS = 0.5
_LONGEST_NOTE = 2_000
_MOST_SHOWN = 12
Word = Literal["good", "bad"]


class LookedPromotion(Struct, frozen=True, kw_only=True):
    """A promotion of a mission as it is known now; `note` is the finding of a look that decides nothing."""

    mission: str
    promotion: Promotion
    note: str


class PromotionsDocument(Document, frozen=True):
    """`decision look`: the promotions that were looked at."""

    promotions: tuple[LookedPromotion, ...]


class FeedbackDocument(Document, frozen=True):
    """`feedback`: all feedback on a mission that was not retracted; `warning` if the given word does not count."""

    mission: str
    feedback: tuple[Feedback, ...]
    warning: str | None


def look_at_promotions(app: App, name: str | None, *, project: str | None) -> PromotionsDocument:
    """Look for the fates of a mission's promotions, or of the recent ones of a project or all, and record them.

    A repository that cannot be read is noted with its promotions. Raises `NotFoundError`, `UsageError`.
    """
    missions = _find_promoted(app, project) if name is None else (app.find_mission(name),)
    return PromotionsDocument(promotions=tuple(each for mission in missions for each in _look(app, mission)))


def look_quietly(app: App, project: str | None = None) -> None:
    """Look at recent promotions of a project, or of all, for about half a second, if decisions are learned.

    Each look begins at another promotion, so that all get their turn. Obstacles are not raised: a later look may
    succeed.
    """
    end = time.monotonic() + _QUIET_SECONDS
    with contextlib.suppress(ChargehandError, OSError):
        if app.user_configuration().config.decisions.learned:
            missions = _find_promoted(app, project)
            first = int(app.clock.now().timestamp()) % max(1, len(missions))
            for mission in (*missions[first:], *missions[:first]):
                if time.monotonic() < end:
                    with contextlib.suppress(ChargehandError, OSError):
                        _look(app, mission)


def _find_promoted(app: App, project: str | None) -> tuple[str, ...]:
    """Return the missions whose promotions may still be open, the oldest first."""
    since = app.clock.now() - timedelta(days=min(_survival_days(app) + _MERGE_DAYS, _MOST_DAYS))
    found = app.store.log.summaries(app.workers.live, MissionFilter(project=project, since=since.isoformat()))
    return tuple(each.row.id for each in found if each.summary.commit is not None and not each.summary.parent)


def _look(app: App, mission: str) -> tuple[LookedPromotion, ...]:
    """Record the fates of a mission's open promotions that a look proves; return all its promotions."""
    summary = app.store.log.summary(mission, app.workers.live).summary
    before, note, notes = _read_truth(app, mission), "", dict[str, str]()
    if summary.parent:  # it has no branch of a person's
        note = f"look at its coordinator {summary.parent}"
    elif summary.status not in SETTLED:
        note = f"it is {summary.status}"
    elif open_ones := [each for each in before.promotions if each.fate is None]:
        try:
            depot = app.projects.mission_depot(summary)
            notes = {each.commit: _look_at(app, depot, mission, each) for each in open_ones}
        except ChargehandError as error:  # the repository is gone, or unreadable: nothing is known
            note = error.message
    known = _read_truth(app, mission).promotions if notes else before.promotions
    return tuple(
        LookedPromotion(mission=mission, promotion=each, note=notes.get(each.commit, note)) for each in known
    )


def _look_at(app: App, depot: Depot, mission: str, promotion: Promotion) -> str:
    """Record the fate of one promotion if its branch proves it; return the finding in words."""
    branch = promotion.branch or promotion.base.branch
    if branch is None:
        return "it began on no branch, and was not applied to one"
    found = find_change(depot, branch, promotion.base, promotion.commit)
    if found is None:
        return f"there is no branch {branch!r}"
    days, log = _survival_days(app), app.store.log
    fate = promotion.judge(found.presence, app.clock.now(), days=days)
    if fate is None:
        return f"it is on {branch}" if promotion.landed else f"it is not on {branch} yet"
    try:
        with claim_mission(log, mission, worker=app.member.id, look=app.acting_reader) as epoch:
            # Another process may have looked, or rolled it back, since.
            if promotion in _read_truth(app, mission).promotions:
                log.check(mission)  # nothing is added to a damaged log
                event = PromotionFollowed(commit=promotion.commit, fate=fate, branch=branch, by=found.by)
                log.append(mission, event, epoch=epoch, durable=True)
    except RefusedError as error:
        return error.message
    return f"it survives if it is still there after {days} days" if fate == "merged" else ""


def _read_truth(app: App, mission: str) -> MissionTruth:
    return MissionTruth.of(app.store.log.read(mission, types=TRUTH_TYPES))


def _survival_days(app: App) -> int:
    return app.user_configuration().config.decisions.survival_days


def give_feedback(
    app: App,
    name: str,
    *,
    word: Word | None = None,
    attempt: int | None = None,
    hunk: str | None = None,
    note: str = "",
    retract: bool = False,
) -> FeedbackDocument:
    """Record a person's word on an attempt, by default the promoted or last one; `hunk` is a `PATH:LINE` of it.

    With `retract` that person's earlier words on the mission, or on the attempt, count no more. Raises
    `UsageError`, `NotFoundError` (also for a place that is not in the attempt's change), and `RefusedError`
    (`no_attempt`, `no_feedback`).
    """
    if retract == (word is not None):
        raise UsageError("give either good or bad, or --retract", hint=f"chargehand feedback {name} good")
    state = app.mission_state(name)
    if retract:
        return _retract(app, state, attempt)
    if len(note) > _LONGEST_NOTE:
        raise UsageError(f"the note has more than {_LONGEST_NOTE} characters", hint="shorten it")
    judged = _find_attempt(app, state, attempt)
    if hunk is not None:
        _check_place(app, state, judged, hunk)
    given = FeedbackGiven(
        identity=app.identity(), attempt=judged.id, good=word == "good", place=hunk or "", note=note
    )
    warning = None
    if not judged.ended_well:
        end = f"{judged.status} with a red verdict" if judged.verdict == "red" else judged.status
        warning = f"attempt {judged.number} is {end}: choices learn from that, not from this word"
    return _record(app, state.id, given, warning)


def _check_place(app: App, state: MissionState, judged: AttemptState, place: str) -> None:
    """Raise `UsageError` unless a place is a line of the attempt's change, and name the hunks of that."""
    path, _, line = place.rpartition(":")
    if not path or not line.isascii() or not line.isdecimal() or int(line[:9]) < 1:
        raise UsageError(f"{place!r} is not a place in a file", hint="write PATH:LINE, such as src/app.py:12")
    places = _find_places(app, state, judged)
    if any(each.has(path, int(line[:9])) for each in places):
        return
    # Those of the named file come first: a wrong line is the likeliest mistake.
    shown = [str(each) for each in sorted(places, key=lambda each: each.path != path)]
    shown[_MOST_SHOWN:] = ["..."] if len(shown) > _MOST_SHOWN else []
    raise NotFoundError(
        f"{place!r} is not in the change of attempt {judged.number}",
        hint=f"its hunks are {', '.join(shown)}" if shown else "it changed no file: leave the place out",
    )


def _find_places(app: App, state: MissionState, judged: AttemptState) -> tuple[ChangedPlace, ...]:
    """Return the hunks of an attempt's change: as it was promoted, otherwise as in its last checkpoint."""
    depot = app.projects.mission_depot(state)
    promoted = [each for each in _read_truth(app, state.id).promotions if each.attempt == judged.id]
    if promoted:
        return tuple(list_places(depot, promoted[-1].base.tree, depot.tree_of(promoted[-1].commit)))
    lines = map(read_payload, app.store.log.read(state.id, types=(CheckpointMade.type,)))
    made = [each for each in lines if isinstance(each, CheckpointMade) and each.attempt == judged.id]
    if not made or state.base is None:
        return ()
    return tuple(list_places(depot, state.base.tree, made[-1].checkpoint.tree))


def _retract(app: App, state: MissionState, attempt: int | None) -> FeedbackDocument:
    meant = "" if attempt is None else _find_attempt(app, state, attempt).id
    own = [each.attempt for each in _read_truth(app, state.id).feedback if each.identity == app.identity()]
    if not own or (meant and meant not in own):
        hint = f"chargehand mission show {state.id} shows all feedback"
        raise RefusedError(f"{app.identity()} has no feedback on it that counts", code="no_feedback", hint=hint)
    return _record(app, state.id, FeedbackRetracted(identity=app.identity(), attempt=meant), None)


def _record(
    app: App, mission: str, event: FeedbackGiven | FeedbackRetracted, warning: str | None
) -> FeedbackDocument:
    # Without a claim: whatever a worker does with the mission, it does not depend on feedback.
    app.store.log.append(mission, event, durable=True)
    return FeedbackDocument(mission=mission, feedback=_read_truth(app, mission).feedback, warning=warning)


def _find_attempt(app: App, state: MissionState, number: int | None) -> AttemptState:
    """Return the attempt with a number; without one the promoted one, else the last one that ended."""
    if number is not None:
        if (found := state.attempt(number)) is not None:
            return found
        known = ", ".join(str(each.number) for each in state.attempts) or "none"
        raise NotFoundError(f"mission {state.id!r} has no attempt {number}", hint=f"it has: {known}")
    promoted = {each.attempt for each in _read_truth(app, state.id).promotions[-1:]}
    ended = [each for each in state.attempts if each.status not in ("running", "lost")]
    if not ended:
        hint = "its tasks are missions with attempts of their own" if state.tasks else "wait until one has ended"
        raise RefusedError(f"mission {state.id!r} has no ended attempt", code="no_attempt", hint=hint)
    return next((each for each in ended if each.id in promoted), ended[-1])
