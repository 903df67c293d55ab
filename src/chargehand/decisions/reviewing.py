"""Asks a person to review a green change that is probably enough wrong."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from chargehand.core.choices import ChoiceHistory, GreenChange
from chargehand.core.records import Finding
from chargehand.decisions.arms import name_arm
from chargehand.decisions.assessment import PromotionFacts, assess_promotion


class RiskReview(Struct, frozen=True, kw_only=True):
    """Asks for a review from a probability `limit` on, 0 to 1; the `history` has the author's earlier results."""

    limit: float
    history: Callable[[], ChoiceHistory] = ChoiceHistory

    def __call__(self, change: GreenChange) -> Finding | None:
        """Return the finding that needs a person, `None` below the limit."""
        author = name_arm(change.author)
        known = [each.proved_right for each in self.history().outcomes if name_arm(each.candidate) == author]
        facts = PromotionFacts(
            unread_files=change.unread_files,
            changed_lines=change.changed_lines,
            areas=change.areas,
            attempts=change.attempts,
            kept=known.count(True),
            reverted=known.count(False),
        )
        risk = assess_promotion(facts).probability
        if risk < self.limit:
            return None
        message = (
            f"all checks pass, and still the change is wrong with a probability of {risk:.0%} (changed lines:"
            f" {change.changed_lines}, top-level directories: {change.areas}, attempt: {change.attempts})"
        )
        return Finding(rule="promotion_risk", severity="warning", path=".", message=message, needs_person=True)
