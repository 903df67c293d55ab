"""The conformance suite: the promises of every chooser, as checks that its author runs.

pytest collects them from a subclass with the attribute `chooser`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from chargehand.core.choices import (
    AgentFacts,
    Candidate,
    ChoiceContext,
    ChoiceHistory,
    ChoiceOutcome,
    Chooser,
    FixedChoice,
    KnownModel,
    PossibleCandidate,
    Strategy,
    TriedCandidate,
    find_fault,
    render_reasons,
)

_PLAIN = PossibleCandidate(agent=AgentFacts(name="plain", kind="command", configured=True, offers=("gpu",)))
_THINKER = AgentFacts(name="thinker", configured=True)


def _possible(model: str, strategy: Strategy = "") -> PossibleCandidate:
    return PossibleCandidate(agent=_THINKER, model=KnownModel(name=model), breaker="closed", strategy=strategy)


_PAIRS = (_PLAIN, _possible("small"), _possible("large"), PossibleCandidate(agent=_THINKER))
_CURRENT = Candidate(agent="thinker", model="small", fallback=("large",))
_ROUND = ChoiceContext(
    moment="retry",
    current=Candidate(agent="thinker", model="small"),
    candidates=(
        PossibleCandidate(agent=_THINKER, strategy="approach"),
        _possible("large", "model"),
        _possible("small", "best_of"),
        _possible("large", "best_of"),
    ),
    tried=(
        TriedCandidate(candidate=Candidate(agent="thinker", model="small"), cause="check", rung="first", round=1),
    ),
)
# One context for each moment, and those in which little is possible.
CONTEXTS = (
    ChoiceContext(moment="request", candidates=_PAIRS),
    ChoiceContext(moment="request"),
    ChoiceContext(moment="task", candidates=_PAIRS, current=_CURRENT),
    ChoiceContext(moment="task", candidates=_PAIRS, current=_CURRENT, needs=("gpu",)),
    ChoiceContext(moment="attempt", candidates=_PAIRS, current=_CURRENT),
    ChoiceContext(moment="attempt", candidates=_PAIRS, current=_CURRENT, fault="the provider failed"),
    ChoiceContext(moment="retry", candidates=_PAIRS, current=_CURRENT),
    _ROUND,
    replace(_ROUND, money_left=0.0),
)


class ChooserContract:
    """All promises of a chooser, one test each; subclass it and set `chooser`."""

    chooser: ClassVar[Chooser]
    history: ClassVar[ChoiceHistory] = ChoiceHistory().after(ChoiceOutcome(candidate=_CURRENT, is_good=True))

    def test_each_choice_is_allowed(self) -> None:
        """It is possible, ready, and gives a reason if nothing is chosen."""
        for context in CONTEXTS:
            assert find_fault(context, self.chooser.choose(context, self.history)) == ""

    def test_equal_facts_give_equal_choices(self) -> None:
        """A worker that takes a mission over chooses alike."""
        for context in CONTEXTS:
            first = self.chooser.choose(context, self.history)
            assert self.chooser.choose(replace(context), self.history) == first

    def test_a_person_wins(self) -> None:
        """The agent and model that a person named are chosen, even if they failed too often."""
        fixed = FixedChoice(agent="thinker", model="large", forced=True)
        broken = replace(_possible("large"), breaker="open")
        for context in CONTEXTS:
            if not any(each.strategy for each in context.candidates) and not context.needs:
                asked = replace(context, fixed=fixed, candidates=(broken,))
                chosen = self.chooser.choose(asked, self.history).chosen
                assert chosen is not None
                assert (chosen.agent, chosen.model) == ("thinker", "large")

    def test_what_failed_too_often_is_left_alone(self) -> None:
        """No candidate with an open breaker is chosen, or switched to."""
        for context in CONTEXTS:
            if context.moment in ("attempt", "retry"):
                broken = tuple(replace(each, breaker="open") for each in context.candidates)
                assert self.chooser.choose(replace(context, candidates=broken), self.history).chosen is None

    def test_each_reason_has_a_sentence(self) -> None:
        """Reasons are codes of the documented set."""
        for context in CONTEXTS:
            choice = self.chooser.choose(context, self.history)
            assert choice.chosen is not None or render_reasons(choice.reasons)
            assert all(render_reasons((each.excluded,)) for each in choice.considered if each.excluded)
