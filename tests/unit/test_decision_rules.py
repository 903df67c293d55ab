"""The fixed rules through the port: what they promise for any facts, and the sentences of their reasons."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chargehand.core.choices import (
    BY_PERSON,
    SENTENCES,
    AgentFacts,
    BreakerFact,
    Candidate,
    Choice,
    ChoiceContext,
    FixedChoice,
    KnownModel,
    Moment,
    PossibleCandidate,
    StandingSetting,
    TriedCandidate,
    find_fault,
    render_reason,
    render_reasons,
)
from chargehand.core.events import decode
from chargehand.core.records import ChoiceReason, ReasonCode
from chargehand.decisions.decider import Decider

MODELS = ("m1", "m2", "m3")
AGENTS = tuple(
    AgentFacts(name=name, kind=kind, configured=True, offers=offers)
    for name, kind, offers in (("a", "native", ()), ("b", "cli", ("gpu",)), ("c", "command", ()))
)
SOURCES: tuple[ReasonCode, ...] = ("role_setting", "role_file")


def choose(context: ChoiceContext) -> Choice:
    return Decider().choose(context)


@st.composite
def contexts(draw: st.DrawFn, *moments: Moment) -> ChoiceContext:
    """Return facts as their callers gather them: the current pair and what settings name are possible."""
    agents = draw(st.lists(st.sampled_from(AGENTS), min_size=1, unique=True))
    moment = draw(st.sampled_from(moments or get_args(Moment)))
    # Breakers are read when work begins.
    breakers = st.sampled_from(get_args(BreakerFact) if moment in ("attempt", "retry") else ("unknown",))
    known = st.sampled_from(("named", "configured", "key", "local"))
    pairs = [
        PossibleCandidate(agent=agent, model=model, breaker=draw(breakers))
        for agent in agents
        for model in (
            *(KnownModel(name=name, known=draw(known), has_key=draw(st.booleans())) for name in MODELS),
            None,
        )
    ]
    of_current = draw(st.sampled_from([each for each in pairs if each.is_ready]))
    current = replace(of_current.candidate, fallback=tuple(draw(st.lists(st.sampled_from(MODELS), unique=True))))
    names = st.one_of(st.none(), st.sampled_from(MODELS))
    settings = [
        StandingSetting(
            reason=ChoiceReason(draw(st.sampled_from(SOURCES)), source=str(number)),
            model=draw(names),
            fallback=tuple(draw(st.lists(st.sampled_from(MODELS), max_size=2))),
            general=draw(st.booleans()),
        )
        for number in range(draw(st.integers(0, 2)))
    ]
    return ChoiceContext(
        moment=moment,
        candidates=tuple(pairs),
        settings=tuple(settings),
        current=current,
        needs=tuple(draw(st.lists(st.just("gpu"), max_size=1))),
        same_role=draw(st.booleans()),
        inherits=draw(st.booleans()) if not settings else False,
        current_named=tuple(draw(st.lists(st.just("model"), max_size=1))),
        fault=draw(st.sampled_from(("", "the provider failed"))),
    )


@given(contexts())
def test_a_choice_is_allowed_final_and_explained(context: ChoiceContext) -> None:
    choice = choose(context)  # raises for a choice that is not among the candidates
    assert choose(context) == choice
    assert choice.action != "stop", "the fixed rules ask a person first"
    assert choice.chosen is not None or render_reasons(choice.reasons)
    excluded = {each.candidate for each in choice.considered if each.excluded}
    assert replace(choice.chosen, fallback=()) not in excluded if choice.chosen else True


@given(contexts("request", "task", "attempt", "retry"), st.data())
def test_what_a_person_named_is_chosen(context: ChoiceContext, data: st.DataObject) -> None:
    named = data.draw(st.sampled_from([each for each in context.candidates if each.model is not None]))
    assert named.model is not None
    reasons = (ChoiceReason("person_named", named.agent.name),)
    fixed = FixedChoice(agent=named.agent.name, model=named.model.name, reasons=reasons, forced=True)
    choice = choose(replace(context, fixed=fixed, candidates=(named,), needs=()))
    assert choice.chosen is not None
    assert (choice.chosen.agent, choice.chosen.model) == (fixed.agent, fixed.model)
    assert choice.reasons[0] == reasons[0]


@given(contexts("attempt", "retry"))
def test_an_open_breaker_is_never_chosen_and_never_a_fallback(context: ChoiceContext) -> None:
    state = {(each.agent.name, each.candidate.model): each.breaker for each in context.candidates}
    assert context.current is not None
    choice = choose(context)
    if choice.chosen is None:
        chain = (context.current.model, *context.current.fallback)
        assert context.fault or all(state[context.current.agent, model] == "open" for model in chain)
        return
    assert state[choice.chosen.agent, choice.chosen.model] != "open"
    if choice.chosen != context.current:
        assert all(state[choice.chosen.agent, model] == "closed" for model in choice.chosen.fallback)
        assert not context.fault


def test_only_a_person_overrides_an_open_breaker() -> None:
    broken = PossibleCandidate(agent=AGENTS[2], breaker="open")
    context = ChoiceContext(moment="attempt", candidates=(broken,), current=broken.candidate)
    assert (choose(context).action, choose(context).reasons[0].code) == ("ask", "breaker_open")
    again = FixedChoice(agent="c", reasons=(ChoiceReason("person_again", "c"),), forced=True)
    assert choose(replace(context, fixed=again)).chosen == broken.candidate
    assert "failed too often" in find_fault(context, Choice(chosen=broken.candidate))


def round_of(*rungs: str, models: tuple[str, ...] = ("m1", "m2"), cause: str = "check") -> ChoiceContext:
    ready = [KnownModel(name=name) for name in models]
    return ChoiceContext(
        moment="retry",
        candidates=(
            PossibleCandidate(agent=AGENTS[0], strategy="approach"),
            *(PossibleCandidate(agent=AGENTS[0], model=each, strategy="model") for each in ready),
            *(PossibleCandidate(agent=AGENTS[0], model=each, strategy="best_of") for each in ready),
        ),
        tried=tuple(
            TriedCandidate(
                candidate=Candidate(agent="a", model=models[0] if rung != "model" else models[-1]),
                cause=cause,
                rung=rung,
                round=number,
            )
            for number, rung in enumerate(rungs, 1)
        ),
        current=Candidate(agent="a", model="m1"),
    )


def test_the_ladder_is_climbed_rung_by_rung_with_the_reasons_for_the_others() -> None:
    def steps(*rungs: str) -> tuple[str, list[str | None], list[str]]:
        choice = choose(round_of(*rungs))
        chosen = [each.model for each in (choice.chosen, *choice.beside) if each is not None]
        considered = [each.excluded.code for each in choice.considered if each.excluded]
        return (choice.chosen.strategy if choice.chosen else choice.action), chosen, considered

    assert steps("first") == ("approach", [None], [])
    assert steps("first", "approach") == ("model", ["m2"], ["tried"])
    assert steps("first", "approach", "model") == ("best_of", ["m1", "m2"], ["tried", "tried"])
    assert steps("first", "approach", "model", "best_of")[::2] == ("ask", ["tried", "tried", "tried"])


@pytest.mark.parametrize(
    ("context", "code"),
    [(replace(round_of("first"), money_left=0.0), "no_money"), (round_of("first", cause="engine"), "other_cause")],
)
def test_the_ladder_is_not_climbed_without_money_or_for_our_own_faults(context: ChoiceContext, code: str) -> None:
    choice = choose(context)
    assert choice.action == "ask"
    assert {each.excluded.code for each in choice.considered if each.excluded} == {code}


def test_each_code_has_a_sentence_and_each_sentence_a_code() -> None:
    codes = get_args(ReasonCode)
    assert {*SENTENCES} == {*codes}
    assert {*codes} >= BY_PERSON
    assert all(render_reason(ChoiceReason(code, "subject", "source")) for code in codes)


@pytest.mark.parametrize(
    ("reasons", "sentence"),
    [
        ([], ""),
        ([("option", "a", "--agent"), ("role_setting", "m", "tester")], "--agent, m by [roles.tester]"),
        ([("role_file", "a", "tester")], "the file of role tester"),
        ([("option", "a", "--agent"), ("served_locally", "m", "")], "--agent, m: Ollama runs on this machine"),
        (
            [("breaker_open", "m1", "a"), ("breaker_open", "", "c"), ("probe", "m2", "")],
            "agent 'a' with model 'm1', agent 'c' failed too often",
        ),
        ([("probe", "m2", "")], "it gets a probe after failing too often"),
    ],
)
def test_reasons_are_rendered_to_one_sentence(reasons: list[tuple[ReasonCode, str, str]], sentence: str) -> None:
    assert render_reasons([ChoiceReason(*each) for each in reasons]) == sentence


@pytest.mark.parametrize(
    ("kind", "payload", "field"),
    [
        ("agent.selected", b'{"agent":"a","kind":"command","reason":"--agent"}', "reasons"),
        (
            "mission.created",
            b'{"project":"p","repository":"/r","request":{"text":"t","agent":"a","command":[],"slug":"t"}}',
            "chosen",
        ),
        (
            "task.started",
            b'{"task":"t","mission":"m","round":1,"rung":"first","base":"0","why":"it is ready"}',
            "reasons",
        ),
    ],
)
def test_events_from_before_structured_reasons_load(kind: str, payload: bytes, field: str) -> None:
    assert getattr(decode(kind, payload), field) == ()
