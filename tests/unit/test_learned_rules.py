"""Learned choices keep the contract of a chooser, leave a person's choice alone, and follow outcomes."""

from __future__ import annotations

import json
import math
import re
import sys
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from test_decision_rules import contexts

from chargehand.core.choices import (
    AgentFacts,
    BenchmarkTally,
    Candidate,
    Choice,
    ChoiceContext,
    ChoiceHistory,
    ChoiceOutcome,
    FixedChoice,
    GreenChange,
    KnownModel,
    PossibleCandidate,
    StandingSetting,
    Strategy,
    TriedCandidate,
    find_fault,
    render_reasons,
)
from chargehand.core.records import ChoiceReason, Reason
from chargehand.decisions.explanation import ChoiceExplanation, explain_choice
from chargehand.decisions.learned import LearnedRules
from chargehand.decisions.reviewing import RiskReview
from chargehand.decisions.routing.published import add_published_prior, model_key, published_prior
from chargehand.decisions.routing.records import RouterCandidate
from chargehand.decisions.rules import FixedRules
from chargehand.testing.choices.conformance import ChooserContract

NATIVE = AgentFacts(name="native")
MODELS = ("one", "two", "three")
RUNGS: tuple[Strategy, ...] = ("model", "best_of")
COSTS = st.none() | st.floats(0.01, 5)
MEANS = LearnedRules(explores=False)


class TestContract(ChooserContract):
    chooser = LearnedRules()


def outcomes(
    *ends: tuple[str | None, bool, float | None], agent: str = "native", kind: str = "p"
) -> ChoiceHistory:
    return ChoiceHistory(
        outcomes=tuple(
            ChoiceOutcome(
                candidate=Candidate(agent=agent, model=model),
                is_good=good,
                cost_usd=cost,
                kind=kind,
                work=str(number),
            )
            for number, (model, good, cost) in enumerate(ends)
        )
    )


def request(*models: str, without_key: tuple[str, ...] = (), fixed: FixedChoice | None = None) -> ChoiceContext:
    known = [KnownModel(name=each, known="configured", has_key=each not in without_key) for each in models]
    return ChoiceContext(
        moment="request",
        kind="p",
        candidates=tuple(PossibleCandidate(agent=NATIVE, model=each) for each in known),
        fixed=fixed or FixedChoice(),
    )


GOOD = outcomes(*[("one", False, 0.5), ("two", True, 0.5), ("three", False, 0.5)] * 15)


def test_the_model_that_solved_is_chosen_and_the_reason_says_so() -> None:
    choice = MEANS.choose(request(*MODELS), GOOD)
    assert choice.chosen == Candidate(agent="native", model="two")
    told = render_reasons(choice.reasons)
    assert told.startswith("native with two: ")
    assert "chance for 0.5" in told
    assert told.endswith("from 45 attempts")
    assert FixedRules().choose(request(*MODELS), GOOD).chosen == Candidate(agent="native", model="one")


def test_who_does_not_want_to_explore_gets_the_best_estimate() -> None:
    even = outcomes(*[("one", True, 0.5), ("two", True, 0.5), ("three", False, 0.5)] * 3)
    asked = [replace(request(*MODELS), money_left=float(100 + number)) for number in range(20)]  # other draws
    explored = {LearnedRules().choose(each, even).chosen for each in asked}
    assert len(explored) > 1
    chosen = {LearnedRules().choose(replace(each, explores=False), even).chosen for each in asked}
    assert chosen == {MEANS.choose(asked[0], even).chosen}


def test_outcomes_of_another_project_count_less_than_its_own() -> None:
    elsewhere = outcomes(*[("one", False, 0.5), ("two", True, 0.5)] * 15, kind="q")
    assert "from 0 attempts" in render_reasons(MEANS.choose(request(*MODELS), elsewhere).reasons)


def benchmarks(solved: dict[str, int], *, suite: str = "bench/s", problems: int = 40) -> ChoiceHistory:
    tallies = [
        BenchmarkTally(
            candidate=Candidate(agent="native", model=model),
            kind=suite,
            attempts=problems,
            good=many,
            priced=problems,
            log_cost=problems * math.log(0.5),
        )
        for model, many in solved.items()
    ]
    return ChoiceHistory(benchmarks=tuple(tallies))


def test_runs_of_one_suite_count_as_one_with_all_their_attempts() -> None:
    one = benchmarks({"one": 10, "two": 30})
    halves = benchmarks({"one": 5, "two": 15}, problems=20)
    twice = replace(halves, benchmarks=halves.benchmarks * 2)
    assert MEANS.choose(request("one", "two"), twice) == MEANS.choose(request("one", "two"), one)


def test_benchmarks_rank_models_before_the_first_outcome_and_are_outweighed_by_outcomes() -> None:
    known = benchmarks({"one": 10, "two": 30, "three": 12})
    assert MEANS.choose(request(*MODELS), ChoiceHistory()).chosen == Candidate(agent="native", model="one")
    choice = MEANS.choose(request(*MODELS), known)
    assert choice.chosen == Candidate(agent="native", model="two")
    assert "from 0 attempts" in render_reasons(choice.reasons)
    own = outcomes(*[("two", False, 0.5), ("one", True, 0.5)] * 15)
    both = replace(own, benchmarks=known.benchmarks)
    assert MEANS.choose(request(*MODELS), both).chosen == Candidate(agent="native", model="one")


def test_an_easy_suite_promises_nothing_about_a_project() -> None:
    easy = benchmarks({"one": 40, "two": 40, "three": 40})
    hard = benchmarks({"one": 1, "two": 1, "three": 1})
    chances = [
        re.findall(r"(\d+)% chance", render_reasons(MEANS.choose(request(*MODELS), each).reasons))
        for each in (easy, hard, ChoiceHistory())
    ]
    assert chances[0] == chances[1] == chances[2]


def test_a_cheap_model_is_preferred_while_a_task_is_worth_little() -> None:
    history = outcomes(*[("one", True, 4.0), ("two", True, 0.05)] * 10)
    assert MEANS.choose(request("one", "two"), history).chosen == Candidate(agent="native", model="two")


@pytest.mark.parametrize(
    "context",
    [
        request(*MODELS, fixed=FixedChoice(agent="native", model="one", reasons=(ChoiceReason("option", "one"),))),
        request("one"),
        request("one", "two", without_key=("two",)),
        ChoiceContext(
            moment="request",
            candidates=request(*MODELS).candidates,
            settings=(StandingSetting(reason=ChoiceReason("role_setting", source="default"), model="three"),),
        ),
    ],
    ids=["an option", "one model", "one key", "a setting"],
)
def test_nothing_is_learned_where_there_is_no_choice(context: ChoiceContext) -> None:
    assert MEANS.choose(context, GOOD) == FixedRules().choose(context, GOOD)


def test_several_agents_are_chosen_from_instead_of_a_question() -> None:
    agents = [AgentFacts(name=name, kind="command", configured=True) for name in ("x", "y")]
    context = ChoiceContext(
        moment="request", kind="p", candidates=tuple(PossibleCandidate(agent=each) for each in agents)
    )
    assert FixedRules().choose(context, ChoiceHistory()).action == "ask"
    ends = [
        *outcomes(*[(None, True, 0.1)] * 8, agent="y").outcomes,
        *outcomes(*[(None, False, 0.1)] * 8, agent="x").outcomes,
    ]
    choice = MEANS.choose(context, ChoiceHistory(outcomes=tuple(ends)))
    assert (choice.action, choice.chosen) == ("use", Candidate(agent="y"))


def failed_round(*ends: Reason, cause: str = "check", money: float | None = None) -> ChoiceContext:
    """Return the facts after two rounds of the model `zero` on a task; `ends` are those of both."""

    def rung(model: str, strategy: Strategy) -> PossibleCandidate:
        return PossibleCandidate(agent=NATIVE, model=KnownModel(name=model), strategy=strategy)

    return ChoiceContext(
        moment="retry",
        kind="p",
        work="m/t",
        candidates=(
            PossibleCandidate(agent=NATIVE, strategy="approach"),
            *(rung(model, strategy) for strategy in RUNGS for model in ("zero", *MODELS)),
        ),
        current=Candidate(agent="native", model="zero"),
        tried=tuple(
            TriedCandidate(
                candidate=Candidate(agent="native", model="zero"), cause=cause, rung=each, round=number, ends=ends
            )
            for number, each in enumerate(("first", "approach"), 1)
        ),
        money_left=money,
    )


def told(choice: Choice) -> ChoiceExplanation:
    found = explain_choice(choice.reasons[-1])
    assert found is not None
    assert found.replayed
    return found


def test_the_next_round_tries_the_step_with_the_best_prospects() -> None:
    context = failed_round()
    assert FixedRules().choose(context, GOOD).chosen == Candidate(agent="native", model="one", strategy="model")
    choice = MEANS.choose(context, GOOD)
    assert choice.chosen == Candidate(agent="native", model="two", strategy="model")
    assert [each.code for each in choice.reasons] == ["retry", "learned"]
    names = [each.name for each in told(choice).candidates]
    assert names[0] == "native with two"
    assert [path.steps[0].name for path in told(choice).paths] == names
    assert {
        "asking a person",
        "no further attempt",
        "native with zero and native with one and native with two",
    } < {*names}


def test_red_rounds_of_a_task_show_that_it_is_hard() -> None:
    red = outcomes(*[("zero", False, 0.5)] * 3).outcomes
    here = ChoiceHistory(outcomes=(*GOOD.outcomes, *(replace(each, work="m/t") for each in red)))
    elsewhere = ChoiceHistory(outcomes=(*GOOD.outcomes, *red))

    def chance(history: ChoiceHistory) -> float:
        shown = told(MEANS.choose(failed_round(), history)).candidates
        return next(each.chance for each in shown if each.name == "native with two")

    assert chance(here) < chance(elsewhere) - 0.05


def test_a_person_is_asked_when_no_attempt_can_help() -> None:
    unclear = failed_round(Reason(code="no_change", message="nothing changed"))
    choice = replace(MEANS, worth_usd=3.0, person_usd=0.2).choose(unclear, ChoiceHistory())
    assert choice.action == "ask"
    assert choice.reasons[0].code == "not_worth_it"
    shown = told(choice)
    assert (shown.chosen, shown.candidates[0].name) == ("", "asking a person")
    assert sum(shown.causes.values()) == pytest.approx(1)


def test_a_step_is_explained_without_the_part_that_computes_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    (_, reason) = MEANS.choose(failed_round(), GOOD).reasons
    monkeypatch.setitem(sys.modules, "chargehand.decisions.routing.next_steps", None)
    found = explain_choice(reason)
    assert found is not None
    assert found.paths == ()
    assert (found.replayed, found.candidates[0].name) == (None, "native with two")


def test_no_round_costs_more_than_the_money_left() -> None:
    assert MEANS.choose(failed_round(money=10.0), GOOD).action == "use"
    assert MEANS.choose(failed_round(money=0.1), GOOD).action == "ask"


def attempt_again(**changes: object) -> ChoiceContext:
    current = Candidate(agent="native", model="one")
    one = PossibleCandidate(agent=NATIVE, model=KnownModel(name="one"), breaker="closed")
    tried = (TriedCandidate(candidate=current, cause="check"),)
    context = ChoiceContext(moment="retry", kind="p", work="m", candidates=(one,), current=current, tried=tried)
    return replace(context, **changes)


def test_another_attempt_that_is_not_worth_its_price_is_left_out() -> None:
    hopeless = outcomes(*[("one", False, 2.0)] * 25)
    choice = MEANS.choose(attempt_again(), hopeless)
    assert (choice.action, [each.code for each in choice.reasons]) == ("stop", ["not_worth_it"])
    assert "native with one again has a " in render_reasons(choice.reasons)
    assert told(choice).candidates[0].name == "no further attempt"
    assert replace(MEANS, worth_usd=500.0).choose(attempt_again(), hopeless).action == "use"
    assert MEANS.choose(attempt_again(), outcomes(*[("one", True, 2.0)] * 25)).action == "use"


@pytest.mark.parametrize(
    ("changes", "history"),
    [
        ({}, outcomes(*[("one", False, 2.0)] * 5)),
        ({}, outcomes(*[("one", False, None)] * 25)),
        ({"fault": "the provider failed"}, outcomes(*[("one", False, 2.0)] * 25)),
        (
            {"fixed": FixedChoice(agent="native", model="one", forced=True)},
            outcomes(*[("one", False, 2.0)] * 25),
        ),
    ],
    ids=["few outcomes", "no known price", "a fault of the provider", "a person's answer"],
)
def test_a_mission_is_not_ended_by_value_on_thin_ground(
    changes: dict[str, object], history: ChoiceHistory
) -> None:
    context = attempt_again(**changes)
    assert MEANS.choose(context, history) == FixedRules().choose(context, history)


def test_a_choice_is_explained_by_its_evidence_and_computed_again() -> None:
    (reason,) = MEANS.choose(request(*MODELS), GOOD).reasons
    found = explain_choice(reason)
    assert found is not None
    assert (found.chosen, found.replayed, found.outcomes, found.is_guess) == ("native with two", True, 45, False)
    assert found.candidates[0].name == "native with two"
    assert found.candidates[0].known_costs == 15
    assert found.candidates[0].value_usd - max(0.0, found.candidates[1].value_usd) == pytest.approx(found.gain_usd)
    assert explain_choice(ChoiceReason("only_agent", "native")) is None
    assert explain_choice(replace(reason, evidence="{")) is None
    evidence = json.loads(str(reason.evidence))
    evidence["considered"][0]["chance"] += 0.1  # of the draw
    changed = explain_choice(replace(reason, evidence=json.dumps(evidence)))
    assert changed is not None
    assert not changed.replayed
    evidence["considered"][0]["skill"] = "no number"
    assert explain_choice(replace(reason, evidence=json.dumps(evidence))) is None


def test_a_price_that_no_attempt_showed_is_not_stated() -> None:
    unknown = outcomes(*[("one", False, None), ("two", True, None)] * 8)
    assert "at a price not known yet" in render_reasons(MEANS.choose(request("one", "two"), unknown).reasons)


def test_a_free_model_is_preferred_for_its_price_and_costs_of_0_are_not_free() -> None:
    own, paid = (KnownModel(name=name, known="configured", has_key=True) for name in ("own", "paid"))
    zero = outcomes(*[("own", True, 0.0), ("paid", True, 0.5)] * 12)

    def choose(*models: KnownModel) -> Choice:
        candidates = tuple(PossibleCandidate(agent=NATIVE, model=each) for each in models)
        return MEANS.choose(ChoiceContext(moment="request", kind="p", candidates=candidates), zero)

    free = choose(replace(own, is_free=True), paid)
    assert free.chosen == Candidate(agent="native", model="own")
    assert "chance for nothing, from 24 attempts" in render_reasons(free.reasons)
    by_name = {each.name: each for each in told(choose(own, paid)).candidates}
    assert by_name["native with own"].price_usd > 0.05
    assert by_name["native with own"].known_costs == 0


def test_a_late_attempt_of_an_old_mission_counts_for_its_project() -> None:
    many = [(name, True, 0.5) for _ in range(150) for name in ("one", "two")]
    history = outcomes(*many)
    late = ChoiceHistory(outcomes=(*history.outcomes, history.outcomes[0]))
    assert "from 301 attempts" in render_reasons(MEANS.choose(request("one", "two"), late).reasons)


def test_published_outcomes_rank_models_before_the_first_attempt() -> None:
    weak = KnownModel(name="nemotron-3-nano", known="configured", has_key=True)
    strong = KnownModel(name="house", known="configured", has_key=True, served="openai/GPT-5.5")
    candidates = tuple(PossibleCandidate(agent=NATIVE, model=each) for each in (weak, strong))
    context = ChoiceContext(moment="request", kind="p", candidates=candidates)
    choice = MEANS.choose(context, ChoiceHistory())
    assert choice.chosen == Candidate(agent="native", model="house")
    assert "from 0 attempts" in render_reasons(choice.reasons)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("anthropic:claude-opus-4-6", "claude-opus-4-6"),
        ("Claude-Opus-4.6", "claude-opus-4-6"),
        ("openrouter/anthropic/claude-opus-4.6", "claude-opus-4-6"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("gpt-5.2-2025-12-11", "gpt-5-2"),
        ("", ""),
    ],
)
def test_names_of_one_model_are_found_under_one_key(name: str, key: str) -> None:
    assert model_key(name) == key


def test_an_unknown_family_has_no_published_prior() -> None:
    names = ("claude-opus-4-6", "claude-opus-9", "house", "")
    known, newer, house, none = add_published_prior(
        [RouterCandidate(id=str(number), agent="native", model=name) for number, name in enumerate(names)]
    )
    assert known.prior is not None
    assert newer.prior is not None
    assert newer.prior.skill_variance > known.prior.skill_variance
    assert (house.prior, none.prior) == (None, None)
    assert house.level == known.level
    assert all(each.model == model_key(each.model) for each in published_prior().arms)


@settings(max_examples=150, deadline=None)
@given(
    contexts(),
    st.lists(
        st.tuples(st.sampled_from(["m1", "m2", "m3"]), st.booleans(), st.none() | st.floats(0.01, 5)), max_size=6
    ),
)
def test_each_choice_is_allowed_and_repeats(
    context: ChoiceContext, ends: list[tuple[str, bool, float | None]]
) -> None:
    history = outcomes(*ends, agent="a")
    choice = LearnedRules().choose(context, history)
    assert find_fault(context, choice) == ""
    assert LearnedRules().choose(context, history) == choice
    fixed = FixedRules().choose(context, history)
    if choice.chosen is None:
        assert choice == fixed or (context.moment == "retry" and choice.reasons[0].code == "not_worth_it")
    elif context.moment == "retry":  # what the fixed rules forbid stays forbidden
        assert fixed.chosen is not None


RATES = {"one": 0.35, "two": 0.6, "three": 0.85}


def simulate(tasks: int, *, falls_at: int, seed: int) -> list[str]:
    """Return the model chosen for each of so many tasks, where the best one does worse from a task on."""
    random, history, chosen = Random(seed), ChoiceHistory(), list[str]()
    for number in range(tasks):
        candidate = LearnedRules().choose(request(*MODELS), history).chosen
        assert candidate is not None
        assert candidate.model is not None
        rate = 0.3 if candidate.model == "three" and number >= falls_at else RATES[candidate.model]
        ended = ChoiceOutcome(
            candidate=candidate, is_good=random.random() < rate, cost_usd=0.5, kind="p", work=str(number)
        )
        history = history.after(ended)
        chosen.append(candidate.model)
    return chosen


def test_the_best_model_is_found_and_left_when_it_becomes_worse() -> None:
    runs = [simulate(260, falls_at=160, seed=seed) for seed in range(3)]
    lost = [sum(RATES["three"] - RATES[each] for each in chosen[:160]) for chosen in runs]
    assert sum(lost) / len(lost) < 8  # tasks of 160; a choice at random loses 40
    assert sum(chosen[100:160].count("three") for chosen in runs) > 0.85 * 60 * len(runs)
    assert sum(chosen[210:].count("three") for chosen in runs) < 0.5 * 50 * len(runs)


def test_the_record_of_an_author_changes_the_risk_of_its_change() -> None:
    author = Candidate(agent="native", model="one")
    change = GreenChange(author=author, changed_lines=100, areas=2, attempts=2, unread_files=0)

    def risk(*words: bool | None) -> bool:
        ends = tuple(
            ChoiceOutcome(candidate=author, is_good=True, proved_right=word, work=str(number))
            for number, word in enumerate(words)
        )
        found = RiskReview(limit=0.15, history=lambda: ChoiceHistory(outcomes=ends))(change)
        assert found is None or found.needs_person
        return found is not None

    assert risk(*[True] * 8, *[False] * 4)
    assert not risk(*[True] * 30, None)
