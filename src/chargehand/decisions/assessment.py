"""The probable cause of a failed attempt, and the probability that a green change is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from chargehand.core.errors import UsageError
from chargehand.decisions.belief_inference import query_network
from chargehand.decisions.beliefs.network import BeliefNetwork
from chargehand.decisions.beliefs.shipping import FAILURE_CAUSE, PROMOTION_RISK, shipped_network

FailureCause = Literal["model_too_weak", "task_unclear", "check_flaky", "environment_broken", "provider", "budget"]
NextStep = Literal[
    "use_stronger_model",
    "ask_person",
    "run_check_again",
    "repair_environment",
    "wait_for_provider",
    "raise_budget",
]
CauseClass = Literal["agent", "check", "provider", "budget", "person", "engine"]
_STEPS: Mapping[FailureCause, NextStep] = {
    "model_too_weak": "use_stronger_model",
    "task_unclear": "ask_person",
    "check_flaky": "run_check_again",
    "environment_broken": "repair_environment",
    "provider": "wait_for_provider",
    "budget": "raise_budget",
}
# Below an even chance the step would more often be the wrong one; then a person looks.
_CLEAR = 0.5
# A review costs about a tenth of the harm of a wrong promotion, so it pays from this probability on.
_REVIEW_FROM = 0.1
# Shares of wrong promotions of authors with a good, usual and poor record, as in the network's note.
_WRONG_RATES = (0.02, 0.1, 0.3)


class FailureFacts(Struct, frozen=True, kw_only=True):
    """The known facts of a failed attempt; `None` is unknown.

    `cause_class` is the class of its code in `missions/causes.toml`. `spent_share` is the share of its budget that
    was spent, 0 to 1 or more. `attempt` counts from 1.
    """

    cause_class: CauseClass | None = None
    end: Literal["finished", "gave_up", "crashed", "stopped"] | None = None
    changed: bool | None = None
    failing_tests: Literal["none", "new", "old"] | None = None
    same_failure: Literal["yes", "no", "none"] | None = None
    provider_faults: int | None = None
    spent_share: float | None = None
    attempt: int | None = None


class FailureDiagnosis(Struct, frozen=True, kw_only=True):
    """The probability of each cause, the most probable one, and the step that mends it.

    The step is `ask_person` if no cause is more probable than not. `network` is the version that was asked.
    """

    causes: Mapping[str, float]
    cause: FailureCause
    probability: float
    next_step: NextStep
    network: str


class PromotionFacts(Struct, frozen=True, kw_only=True):
    """The known facts of a change that passed all checks; `None` is unknown.

    `coverage` is the share of changed lines that tests ran, 0 to 1. `kept` and `reverted` count the earlier
    promotions of the same agent and model by their later truth.
    """

    coverage: float | None = None
    unread_files: int | None = None
    weakened_tests: bool | None = None
    changed_lines: int | None = None
    areas: int | None = None
    attempts: int | None = None
    kept: int = 0
    reverted: int = 0


class PromotionRisk(Struct, frozen=True, kw_only=True):
    """The probability that the change is wrong, and whether a person's review is worth its cost."""

    probability: float
    asks_review: bool
    network: str


def diagnose(facts: FailureFacts, network: BeliefNetwork | None = None) -> FailureDiagnosis:
    """Return the probable cause of a failure by `network`, a version of the shipped `failure-cause` by default."""
    used = network or shipped_network(FAILURE_CAUSE)
    observed = {
        "cause_class": facts.cause_class,
        "end": facts.end,
        "changed": _yes_or_no(facts.changed),
        "failing_tests": facts.failing_tests,
        "same_failure": facts.same_failure,
        "provider_faults": _bucket(facts.provider_faults, (1, 3), ("none", "few", "many")),
        "spent": _bucket(facts.spent_share, (1 / 3, 0.9), ("low", "middle", "high")),
        "attempt": _bucket(facts.attempt, (2, 3), ("first", "second", "later")),
    }
    posterior = query_network(used, ["cause"], _evidence(used, observed)).probabilities
    causes = dict(zip(used.node("cause").states, posterior.tolist(), strict=True))
    cause = max(_STEPS, key=causes.__getitem__)
    return FailureDiagnosis(
        causes=causes,
        cause=cause,
        probability=causes[cause],
        next_step=_STEPS[cause] if causes[cause] >= _CLEAR else "ask_person",
        network=used.version,
    )


def assess_promotion(facts: PromotionFacts, network: BeliefNetwork | None = None) -> PromotionRisk:
    """Return the risk of a green change by `network`, a version of the shipped `promotion-risk` by default."""
    used = network or shipped_network(PROMOTION_RISK)
    observed = {
        "green": "yes",
        "coverage": _bucket(facts.coverage, (0.6, 0.95), ("little", "most", "full")),
        "unread": _bucket(facts.unread_files, (1,), ("none", "some")),
        "weakened": _yes_or_no(facts.weakened_tests),
        "size": _bucket(facts.changed_lines, (51, 301), ("small", "medium", "large")),
        "areas": _bucket(facts.areas, (2,), ("one", "several")),
        "attempts": _bucket(facts.attempts, (2, 3), ("one", "two", "more")),
    }
    evidence = {**_evidence(used, observed), "record": _record_likelihood(facts.kept, facts.reverted)}
    probability = float(query_network(used, ["wrong"], evidence).probabilities[0])
    return PromotionRisk(probability=probability, asks_review=probability >= _REVIEW_FROM, network=used.version)


def _evidence(network: BeliefNetwork, observed: Mapping[str, str | None]) -> dict[str, tuple[float, ...]]:
    return {
        name: tuple(float(each == state) for each in network.node(name).states)
        for name, state in observed.items()
        if state is not None
    }


def _bucket(value: float | None, limits: Sequence[float], names: Sequence[str]) -> str | None:
    """Return the name of the range that contains a value; each limit begins the next range."""
    if value is None:
        return None
    _check_amount(value)
    return names[sum(value >= limit for limit in limits)]


def _yes_or_no(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def _record_likelihood(kept: int, reverted: int) -> tuple[float, ...]:
    """Return how well each record explains earlier promotions, the best as 1."""
    _check_amount(kept)
    _check_amount(reverted)
    logs = [kept * math.log1p(-rate) + reverted * math.log(rate) for rate in _WRONG_RATES]
    return tuple(math.exp(each - max(logs)) for each in logs)


def _check_amount(value: float) -> None:
    if not value >= 0:
        raise UsageError(f"{value!r} is not a number from 0 on", code="evidence_invalid")
