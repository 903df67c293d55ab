"""Rules that learn: they choose by earlier outcomes where people and settings leave a choice open."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.choices import (
    Candidate,
    Choice,
    ChoiceContext,
    ChoiceHistory,
    PossibleCandidate,
    find_exclusion,
)
from chargehand.core.records import ChoiceReason, ReasonCode
from chargehand.decisions.routing.published import add_published_prior
from chargehand.decisions.routing.records import (
    AttemptEnds,
    HistoryRecord,
    RouterBudget,
    RouterCandidate,
    RouterChoice,
    TaskBegins,
    Verdict,
)
from chargehand.decisions.routing.router import choose
from chargehand.decisions.rules import FixedRules

# The router keeps so many open tasks at least; a mission with a later attempt begins a new task.
_OPEN_TASKS = 200
# The fixed rules choose or ask for these reasons only if nothing but the order of names speaks for a candidate.
_ARBITRARY: frozenset[ReasonCode] = frozenset({"first_with_key", "first_model", "key_set", "several_agents"})


class LearnedRules(Struct, frozen=True, kw_only=True):
    """The fixed rules, with the router for choices that they make by order or leave to a person.

    `worth_usd` is the worth of a solved task. The choice of a person or of a setting stays.
    """

    worth_usd: float = 5.0
    explores: bool = True

    def choose(self, context: ChoiceContext, history: ChoiceHistory, /) -> Choice:
        """Return the choice of the fixed rules, or of the router among candidates that they do not tell apart."""
        choice = FixedRules().choose(context, history)
        options = _find_options(context, choice)
        if len(options) < 2:
            return choice
        found = self._route(context, options, history)
        ranked = [each.id for each in found.considered]
        best = next((each for each in options if name_arm(each.candidate) == ranked[0]), None) if ranked else None
        if best is None:
            return choice
        considered = found.considered[0]
        price = (
            f"for {considered.expected_price:.2f} USD"
            if considered.expected_price >= 0.005
            else "for less than 0.01 USD"
        )
        if not considered.costs:
            price = "at a price not known yet"
        said = f"{considered.expected_chance:.0%} chance {price}, from {_count(found.outcomes)}"
        evidence = msgspec.json.encode(found).decode()
        reason = ChoiceReason("learned", ranked[0], said, evidence)
        before = choice.chosen or best.candidate
        fallback = tuple(each for each in before.fallback if each != best.candidate.model)
        chosen = replace(best.candidate, fallback=fallback)
        return replace(
            choice, action="use", chosen=chosen, reasons=(*_find_lasting_reasons(choice), reason), beside=()
        )

    def _route(
        self, context: ChoiceContext, options: Sequence[PossibleCandidate], history: ChoiceHistory
    ) -> RouterChoice:
        # Equal facts and history give an equal choice, so a worker that takes a mission over chooses alike.
        seed = zlib.crc32(msgspec.json.encode(context)) ^ len(history.outcomes)
        records = [*read_history(history), TaskBegins(features={"kind": context.kind})]
        budget = RouterBudget(
            worth=self.worth_usd,
            # All attempts of a mission keep its agent and model; a task's later rounds may try others.
            attempts=1 if context.moment == "request" else len(options),
            money_left=context.money_left,
            explores=self.explores,
        )
        return choose(records, add_published_prior([_arm(each) for each in options]), budget, seed)


def _find_options(context: ChoiceContext, choice: Choice) -> list[PossibleCandidate]:
    """Return the candidates that the fixed rules do not tell apart; they have no reason for their choice."""
    if any(each.strategy for each in context.candidates):  # a task's next round: which of the other models
        if choice.chosen is None or choice.chosen.strategy != "model":
            return []
        seen = {each.candidate.model for each in context.tried}
        rung = [each for each in context.candidates if each.strategy == "model"]
        same = [each for each in rung if each.agent.name == choice.chosen.agent]
        return [each for each in same if each.candidate.model not in seen and _can_start(context, each)]
    if context.moment != "request" or not choice.reasons or choice.reasons[-1].code not in _ARBITRARY:
        return []
    fixed = context.fixed
    named = [
        each
        for each in context.candidates
        if fixed.agent in ("", each.agent.name) and fixed.model in (None, each.candidate.model)
    ]
    return [each for each in named if _can_start(context, each)]


def _can_start(context: ChoiceContext, each: PossibleCandidate) -> bool:
    has_key = each.model is None or each.model.has_key is not False
    return each.is_ready and has_key and find_exclusion(context, each) is None


def _find_lasting_reasons(choice: Choice) -> tuple[ChoiceReason, ...]:
    """Return the reasons for the agent that stay true."""
    return tuple(each for each in choice.reasons if each.code not in {*_ARBITRARY, "retry"})


def name_arm(candidate: Candidate) -> str:
    """Return the name of an agent with its model, as the router's records have it."""
    return candidate.agent + (f" with {candidate.model}" if candidate.model else "")


def _arm(each: PossibleCandidate) -> RouterCandidate:
    candidate, served = each.candidate, each.model.served if each.model else ""
    return RouterCandidate(id=name_arm(candidate), agent=candidate.agent, model=served or candidate.model or "")


def _count(outcomes: int) -> str:
    return f"{outcomes} attempt" + ("" if outcomes == 1 else "s")


def read_history(history: ChoiceHistory) -> list[HistoryRecord]:
    """Return the history as the router reads it: each mission is a task."""
    records: list[HistoryRecord] = []
    begun: dict[str, None] = {}
    for each in history.outcomes:
        if each.work not in begun:
            if len(begun) == _OPEN_TASKS:
                del begun[next(iter(begun))]
            begun[each.work] = None
            records.append(TaskBegins(features={"kind": each.kind}, task=each.work))
        verdict: Verdict = "green" if each.is_good else "red"
        records.append(
            AttemptEnds(arm=name_arm(each.candidate), verdict=verdict, cost=each.cost_usd, task=each.work)
        )
    return records
