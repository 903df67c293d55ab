"""The later truth about a mission's results: the fates of its promotions, and people's feedback on its attempts.

A promotion belongs to the last attempt that succeeded before. If a result is promoted again,
for example on a branch that has moved, the newer promotion replaces the older one.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import asdict, replace

from chargehand.core.events import Event, Payload, read_payload
from chargehand.core.mission_events import (
    ApplyChanged,
    AttemptFinished,
    BaseResolved,
    FeedbackGiven,
    FeedbackRetracted,
    MissionRolledBack,
    PromotionDone,
    PromotionFollowed,
)
from chargehand.core.records import Base, Fate, Feedback, Promotion

_HEADS = "refs/heads/"
# The types of the events that may change the truth about an attempt that ended before.
LATER_WORDS = frozenset(
    {PromotionFollowed.type, FeedbackGiven.type, FeedbackRetracted.type, MissionRolledBack.type}
)
# The types of all events that `MissionTruth.after` reads.
TRUTH_TYPES = LATER_WORDS | {AttemptFinished.type, BaseResolved.type, PromotionDone.type, ApplyChanged.type}


class MissionTruth(Struct, frozen=True, kw_only=True):
    """The promotions of a mission, the oldest first, and the feedback that counts, in the order given.

    `base` and `succeeded`, the last attempt that succeeded, are those of the next promotion.
    """

    promotions: tuple[Promotion, ...] = ()
    feedback: tuple[Feedback, ...] = ()
    base: Base | None = None
    succeeded: str = ""

    @classmethod
    def of(cls, events: Iterable[Event]) -> MissionTruth:
        """Return the truth after a mission's events of `TRUTH_TYPES`; unreadable ones change nothing."""
        truth = cls()
        for event in events:
            truth = truth.after(read_payload(event), event.time)
        return truth

    def after(self, event: Payload | None, time: str) -> MissionTruth:
        """Return the truth after one more event, written at `time` (ISO 8601, UTC)."""
        match event:
            case BaseResolved():
                return replace(self, base=event.base)
            case AttemptFinished(status="succeeded"):
                return replace(self, succeeded=event.attempt)
            case PromotionDone() | MissionRolledBack():
                return self._move(event)
            case ApplyChanged() if event.export.state == "done":
                branch = event.export.ref.removeprefix(_HEADS)
                return self._change(event.commit, "merged", branch=branch, time=time)
            case PromotionFollowed():
                return self._change(event.commit, event.fate, branch=event.branch, time=time, by=event.by)
            case FeedbackGiven():
                own = (event.identity, event.attempt, event.place)
                others = (each for each in self.feedback if (each.identity, each.attempt, each.place) != own)
                return replace(self, feedback=(*others, Feedback(**asdict(event), time=time)))
            case FeedbackRetracted():
                left = (
                    each
                    for each in self.feedback
                    if each.identity != event.identity or (event.attempt and each.attempt != event.attempt)
                )
                return replace(self, feedback=tuple(left))
        return self

    def find_word(self, attempt: str) -> bool | None:
        """Return whether a result proved right, by the last feedback on the attempt, else by its promotion's fate.

        `None` without any word, or while the fate is open.
        """
        for each in reversed(self.feedback):
            if each.attempt == attempt:
                return each.good
        fates = [each.fate for each in self.promotions if each.attempt == attempt and each.fate is not None]
        return fates[-1] == "survived" if fates else None

    def _move(self, event: PromotionDone | MissionRolledBack) -> MissionTruth:
        """Return the truth after a change of the mission's branch: a promotion, or a roll-back."""
        # A roll-back gives the branch the tree of its base; after a crash in it, it is a `PromotionDone`.
        undone = [each for each in self.promotions if each.base.tree == event.tree]
        if undone or isinstance(event, MissionRolledBack) or self.base is None:
            kept = (
                replace(each, fate="rolled_back", by=event.commit) if each in undone else each
                for each in self.promotions
            )
            return replace(self, promotions=tuple(kept))
        made = Promotion(attempt=self.succeeded, commit=event.commit, base=self.base)
        others = (each for each in self.promotions if each.attempt != made.attempt)
        return replace(self, promotions=(*others, made))

    def _change(self, commit: str, fate: Fate, *, branch: str, time: str, by: str = "") -> MissionTruth:
        def change(each: Promotion) -> Promotion:
            if each.commit != commit or each.fate is not None:
                return each
            if fate == "merged":
                return each if each.landed else replace(each, branch=branch, landed=time)
            return replace(each, branch=branch, fate=fate, by=by)

        return replace(self, promotions=tuple(map(change, self.promotions)))
