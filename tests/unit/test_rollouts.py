"""Roll-outs hold an exact part of the projects, leave a person's choice alone, and stop if they are worse."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from test_decision_rules import contexts

from chargehand.app.selection.choice import choose_for_request
from chargehand.app.selection.deciders import make_decider
from chargehand.configuration import extras
from chargehand.configuration.edit import set_user_value
from chargehand.configuration.extras import NotInstalledError
from chargehand.configuration.locations import UserFile, load_user_file
from chargehand.configuration.resolve import resolve
from chargehand.core.attempt_events import AttemptStarted
from chargehand.core.choices import (
    BY_PERSON,
    OF_ROLLOUTS,
    AgentFacts,
    Candidate,
    Choice,
    ChoiceContext,
    ChoiceHistory,
    ChoiceOutcome,
    Chooser,
    FixedChoice,
    KnownModel,
    PossibleCandidate,
    StandingSetting,
    find_fault,
    render_reasons,
)
from chargehand.core.config import AgentConfig, Config, ModelConfig, RolloutConfig
from chargehand.core.errors import ConfigError
from chargehand.core.mission_events import AttemptFinished, MissionCreated
from chargehand.core.records import AttemptStatus, ChoiceReason, MissionRequest, Reason, ReasonCode
from chargehand.decisions.decider import Decider
from chargehand.decisions.rollouts import RolloutRules, SequentialGuard, Verdict, is_member, judge_rollout
from chargehand.decisions.rules import FixedRules
from chargehand.reports.outcomes import OutcomeHistory
from chargehand.store.store import open_store
from chargehand.testing.choices.conformance import ChooserContract

NATIVE = AgentFacts(name="native", model="old", configured=True)
OTHER = AgentFacts(name="other", kind="cli", fallback=("spare",), configured=True)
NOTHING = ChoiceHistory()
ALL = RolloutConfig(model="new", percent=100.0)
HALF = RolloutConfig(model="new", percent=50.0)


def rules(policies: dict[str, FixedRules] | None = None, **rollouts: RolloutConfig) -> RolloutRules:
    return RolloutRules(chooser=FixedRules(), rollouts=rollouts, policies=policies or {"fixed": FixedRules()})


def request(*models: KnownModel, kind: str = "p", agents: tuple[AgentFacts, ...] = (NATIVE,)) -> ChoiceContext:
    known = models or (KnownModel(name="old"), KnownModel(name="new", known="configured", has_key=True))
    return ChoiceContext(
        moment="request",
        kind=kind,
        candidates=tuple(PossibleCandidate(agent=each, model=model) for each in agents for model in known),
    )


def outcome(code: ReasonCode, good: bool, work: str, *, model: str = "new", kind: str = "p") -> ChoiceOutcome:
    why = (ChoiceReason(code, "r", "50"),)
    return ChoiceOutcome(
        candidate=Candidate(agent="native", model=model), is_good=good, kind=kind, work=work, rollouts=why
    )


def history(inside: list[bool], outside: list[bool]) -> ChoiceHistory:
    found: list[ChoiceOutcome] = []
    for number in range(max(len(inside), len(outside))):
        if number < len(inside):
            found.append(outcome("rollout", inside[number], f"in{number}", kind=f"in{number % 3}"))
        if number < len(outside):
            found.append(outcome("rollout_outside", outside[number], f"out{number}", model="old", kind="out"))
    return ChoiceHistory(outcomes=tuple(found))


BAD = history([False] * 40, [True] * 40)


class TestContract(ChooserContract):
    chooser = rules(r=replace(ALL, model="large"), shadow=replace(ALL, model="small", shadow=True))


# --- membership

PROJECTS = [f"project-{number}" for number in range(10_000)]


@pytest.mark.parametrize("percent", [0.0, 0.5, 10.0, 50.0, 99.5, 100.0])
def test_a_percentage_of_the_projects_is_held_within_one_point(percent: float) -> None:
    for name in ("one", "two", "three"):
        held = sum(is_member(name, percent, each) for each in PROJECTS) / 100
        assert abs(held - percent) <= 1
    if percent in (0, 100):
        assert held == percent


@given(st.text(), st.text(), st.floats(0, 100), st.floats(0, 100))
def test_a_project_stays_in_at_each_higher_percentage(name: str, project: str, one: float, two: float) -> None:
    low, high = sorted((one, two))
    assert is_member(name, high, project) >= is_member(name, low, project)
    assert is_member(name, low, project) == is_member(name, low, project)


def test_members_are_the_same_in_each_version_and_differ_between_names() -> None:
    held = [number for number in range(40) if is_member("try-small", 10, PROJECTS[number])]
    assert held == [0, 2, 12, 13, 15, 30, 34, 35, 37]
    one, two = ({each for each in PROJECTS if is_member(name, 50, each)} for name in ("one", "two"))
    assert abs(len(one & two) - 2500) < 150


# --- the choice


def test_a_member_gets_the_model_and_the_reason_names_the_roll_out() -> None:
    choice = rules(r=ALL).choose(request(), NOTHING)
    assert choice.chosen == Candidate(agent="native", model="new", fallback=("old",))
    assert choice.reasons[-1] == ChoiceReason("rollout", "r", "100")
    assert render_reasons(choice.reasons) == "the only one configured, in roll-out r to 100 % of projects"
    assert find_fault(request(), choice) == ""


def test_another_project_keeps_its_choice_and_is_compared() -> None:
    member, other = (next(each for each in PROJECTS if is_member("r", 50, each) is held) for held in (True, False))
    chosen = {each: rules(r=HALF).choose(request(kind=each), NOTHING) for each in (member, other)}
    assert chosen[member].chosen == Candidate(agent="native", model="new", fallback=("old",))
    before = FixedRules().choose(request(kind=other), NOTHING)
    assert chosen[other].chosen == before.chosen
    assert chosen[other].reasons == (*before.reasons, ChoiceReason("rollout_outside", "r", "50"))


def test_the_agent_is_replaced_only_if_it_is_named() -> None:
    context = request(agents=(NATIVE, replace(OTHER, configured=False)))
    choice = rules(r=replace(ALL, agent="other")).choose(context, NOTHING)
    assert choice.chosen == Candidate(agent="other", model="new", fallback=("spare",))
    assert [each.code for each in choice.reasons] == ["rollout"]


PERSON = {
    "option": FixedChoice(agent="native", reasons=(ChoiceReason("option", "native", "--agent"),)),
    "option of a model": FixedChoice(model="old", reasons=(ChoiceReason("option", "old", "--model"),)),
    "role": FixedChoice(agent="native", reasons=(ChoiceReason("role_setting", "native", "developer"),)),
    "role file": FixedChoice(agent="native", reasons=(ChoiceReason("role_file", "native", "developer"),)),
    "plan": FixedChoice(agent="native", reasons=(ChoiceReason("plan", "native"),)),
    "again": FixedChoice(agent="native", reasons=(ChoiceReason("person_again"),)),
    "named": FixedChoice(agent="native", reasons=(ChoiceReason("person_named"),)),
}


@pytest.mark.parametrize("fixed", PERSON.values(), ids=PERSON)
def test_the_choice_of_a_person_a_role_or_a_plan_stays(fixed: FixedChoice) -> None:
    context = replace(request(), fixed=fixed)
    assert rules(r=ALL).choose(context, NOTHING) == FixedRules().choose(context, NOTHING)
    assert {each.reasons[0].code for each in PERSON.values()} == BY_PERSON


@pytest.mark.parametrize("code", ["role_setting", "role_file"])
def test_the_model_of_a_role_stays(code: ReasonCode) -> None:
    setting = StandingSetting(reason=ChoiceReason(code, source="developer"), model="old")
    context = replace(request(), settings=(setting,))
    assert rules(r=ALL).choose(context, NOTHING) == FixedRules().choose(context, NOTHING)


CANNOT = {
    "is not configured": (ALL, request(KnownModel(name="old"))),
    "has no key": (ALL, request(KnownModel(name="old"), KnownModel(name="new", has_key=False))),
    "has an agent that is not configured": (replace(ALL, agent="missing"), request()),
    "is chosen anyway": (replace(ALL, model="old"), request()),
    "is off": (replace(ALL, percent=0.0), request()),
    "has no project": (ALL, request(kind="")),
    "failed too often": (
        ALL,
        replace(
            request(),
            candidates=tuple(
                replace(each, breaker="open" if each.candidate.model == "new" else "closed")
                for each in request().candidates
            ),
        ),
    ),
}


@pytest.mark.parametrize(("rollout", "context"), CANNOT.values(), ids=CANNOT)
def test_a_choice_stays_if_the_model(rollout: RolloutConfig, context: ChoiceContext) -> None:
    assert rules(r=rollout).choose(context, NOTHING) == FixedRules().choose(context, NOTHING)


@pytest.mark.parametrize(("keys", "model"), [({}, "old"), ({"OPENAI_API_KEY": "k"}, "new")])
def test_the_key_is_looked_up_although_the_agent_names_its_model(keys: dict[str, str], model: str) -> None:
    config = Config(
        agents={"coder": AgentConfig(kind="native", model="old")},
        models={"old": ModelConfig(provider="script", script="/s"), "new": ModelConfig(provider="openai")},
        rollouts={"r": ALL},
    )
    chosen, _ = choose_for_request(config, {}, keys, decider=Decider(chooser=rules(r=ALL)), kind="p")
    assert (chosen.agent, chosen.model) == ("coder", model)


def test_an_agent_that_takes_no_model_stays() -> None:
    program = AgentFacts(name="program", kind="command", configured=True)
    context = ChoiceContext(moment="request", kind="p", candidates=(PossibleCandidate(agent=program),))
    assert rules(r=ALL).choose(context, NOTHING) == FixedRules().choose(context, NOTHING)


def test_a_shadow_only_records_what_it_would_choose() -> None:
    before = FixedRules().choose(request(), NOTHING)
    choice = rules(r=replace(ALL, shadow=True)).choose(request(), NOTHING)
    assert choice == replace(before, reasons=choice.reasons)
    assert choice.reasons == (
        *before.reasons,
        ChoiceReason("rollout_shadow", "r", "agent 'native' with model 'new'"),
    )
    assert render_reasons(choice.reasons).endswith(
        "shadow roll-out r would choose agent 'native' with model 'new'"
    )


def test_a_choice_takes_part_in_one_roll_out_and_in_all_shadows() -> None:
    models = tuple(KnownModel(name=each) for each in ("old", "new", "next"))
    choice = rules(a=ALL, b=replace(ALL, model="next"), c=replace(ALL, model="next", shadow=True)).choose(
        request(*models), NOTHING
    )
    assert choice.chosen is not None
    assert choice.chosen.model == "new"
    assert [(each.code, each.subject) for each in choice.reasons[1:]] == [
        ("rollout", "a"),
        ("rollout_shadow", "c"),
    ]


class LastCandidate:
    """A policy that chooses the last candidate, or nothing."""

    def __init__(self, asks: bool = False) -> None:
        self.asks = asks

    def choose(self, context: ChoiceContext, history: ChoiceHistory, /) -> Choice:
        if self.asks:
            return Choice(action="ask", reasons=(ChoiceReason("several_agents"),))
        return Choice(chosen=context.candidates[-1].candidate, reasons=(ChoiceReason("learned", "new", "9"),))


def test_a_policy_chooses_for_members_unless_it_asks_a_person() -> None:
    rollout = RolloutConfig(policy="learned", percent=100.0)
    chooser = RolloutRules(chooser=FixedRules(), rollouts={"r": rollout}, policies={"learned": LastCandidate()})
    choice = chooser.choose(request(), NOTHING)
    assert choice.chosen == Candidate(agent="native", model="new")
    assert [each.code for each in choice.reasons] == ["learned", "rollout"]
    asking = replace(chooser, policies={"learned": LastCandidate(asks=True)})
    assert asking.choose(request(), NOTHING) == FixedRules().choose(request(), NOTHING)
    # And the other way round: some projects go back to the fixed rules.
    back = RolloutRules(
        chooser=LastCandidate(),
        rollouts={"r": RolloutConfig(policy="fixed", percent=100.0)},
        policies={"fixed": FixedRules()},
    )
    chosen = back.choose(request(), NOTHING).chosen
    assert chosen is not None
    assert chosen.model == "old"


def test_a_task_with_another_choice_than_its_mission_is_in_no_roll_out() -> None:
    reasons = (ChoiceReason("only_agent", "native"), ChoiceReason("rollout", "r", "50"))
    current = Candidate(agent="native", model="new", fallback=("old",))
    context = replace(request(), moment="task", current=current, current_reasons=reasons, inherits=True)
    assert rules(r=HALF).choose(context, NOTHING).reasons == reasons
    other = replace(context, fixed=FixedChoice(model="old"))
    assert {each.code for each in rules(r=HALF).choose(other, NOTHING).reasons} == {"only_agent"}


@given(contexts(), st.sampled_from(("m1", "m2", "m3")), st.none() | st.sampled_from("abc"), st.booleans())
@settings(max_examples=150)
def test_any_choice_is_allowed_and_only_requests_change(
    context: ChoiceContext, model: str, agent: str | None, shadow: bool
) -> None:
    context = replace(context, kind="p")
    rollout = RolloutConfig(model=model, agent=agent, percent=100.0, shadow=shadow)
    before, choice = FixedRules().choose(context, NOTHING), rules(r=rollout).choose(context, NOTHING)
    assert find_fault(context, choice) == find_fault(context, before)
    if shadow or context.moment != "request":
        assert (choice.chosen, choice.action, choice.beside) == (before.chosen, before.action, before.beside)
    if choice.chosen != before.chosen:
        assert any(each.code == "rollout" for each in choice.reasons)
        assert not any(each.code in BY_PERSON for each in before.reasons)


# --- the guard


def test_a_roll_out_that_is_worse_stops_and_choices_are_as_before() -> None:
    state = judge_rollout("r", HALF, BAD)
    assert state.verdict == "stopped"
    assert 3 <= state.inside.outcomes <= 15
    assert (state.inside.rate, state.outside.rate) == (0.0, 1.0)
    assert rules(r=ALL).choose(request(), BAD) == FixedRules().choose(request(), BAD)
    # The stop is final: later outcomes, and a higher percentage, change nothing.
    later = ChoiceHistory(outcomes=(*BAD.outcomes, *(outcome("rollout", True, f"late{n}") for n in range(500))))
    now = judge_rollout("r", ALL, later)
    assert (now.verdict, now.inside, now.outside) == ("stopped", state.inside, state.outside)
    # With another model under the same name, it begins anew.
    assert judge_rollout("r", replace(HALF, model="next"), BAD).inside.outcomes == 0


VERDICTS: dict[Verdict, tuple[RolloutConfig, ChoiceHistory]] = {
    "off": (replace(HALF, percent=0.0), NOTHING),
    "shadow": (replace(HALF, shadow=True), NOTHING),
    "too_little": (HALF, history([True] * 9, [False, True] * 20)),
    "running": (HALF, history([True, False] * 20, [True, False] * 20)),
    "better": (HALF, history([True] * 40, [False] * 40)),
    "stopped": (HALF, BAD),
}


@pytest.mark.parametrize("verdict", get_args(Verdict))
def test_each_verdict_follows_from_outcomes(verdict: Verdict) -> None:
    rollout, outcomes = VERDICTS[verdict]
    assert judge_rollout("r", rollout, outcomes).verdict == verdict


def test_only_the_first_outcome_of_a_mission_counts() -> None:
    again = [outcome("rollout", number == 0, "same") for number in range(50)]
    inside = judge_rollout("r", HALF, ChoiceHistory(outcomes=tuple(again))).inside
    assert (inside.outcomes, inside.good, inside.projects) == (1, 1, 1)


def test_outcomes_of_other_roll_outs_and_of_other_models_do_not_count() -> None:
    foreign = outcome("rollout", True, "a", model="old")
    other = replace(outcome("rollout", True, "b"), rollouts=(ChoiceReason("rollout", "q", "50"),))
    plain = replace(outcome("rollout", True, "c"), rollouts=())
    state = judge_rollout("r", ALL, ChoiceHistory(outcomes=(foreign, other, plain)))
    assert (state.inside.outcomes, state.outside.outcomes, state.members, state.known) == (0, 0, 1, 1)
    shadows = tuple(outcome("rollout_shadow", True, work) for work in ("d", "d", "e"))
    assert judge_rollout("r", ALL, ChoiceHistory(outcomes=shadows)).shadowed == 2


def test_a_small_loss_does_not_stop() -> None:
    """A certain loss of five points is less than the ten that stop a roll-out."""
    source = random.Random(5)
    guard = SequentialGuard(0.1, 0.05)
    for _ in range(20_000):
        guard.add(True, source.random() < 0.85)
        guard.add(False, source.random() < 0.9)
    assert not guard.is_lower


def simulate(inside: float, outside: float, share: float, number: int, seed: int) -> Iterator[SequentialGuard]:
    source, guard = random.Random(seed), SequentialGuard(0.1, 0.05)
    for _ in range(number):
        is_inside = source.random() < share
        guard.add(is_inside, source.random() < (inside if is_inside else outside))
        yield guard


@pytest.mark.parametrize(("rate", "share"), [(0.2, 0.5), (0.5, 0.1), (0.8, 0.5), (0.95, 0.1)])
def test_without_a_difference_at_most_one_in_twenty_stops_or_is_called_better(rate: float, share: float) -> None:
    ends = [list(simulate(rate, rate, share, 200, seed))[-1] for seed in range(500)]
    assert sum(each.is_lower for each in ends) <= 25
    assert sum(each.is_higher for each in ends) <= 25


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_fall_from_80_to_50_percent_is_found_within_100_outcomes(share: float) -> None:
    taken: list[int] = []
    for seed in range(200):
        guard = next(each for each in simulate(0.5, 0.8, share, 10_000, seed) if each.is_lower)
        taken.append(guard.sides[True].outcomes)
    assert median(taken) <= 60
    assert sum(each <= 100 for each in taken) >= 180


Block = tuple[list[bool], bool]
BLOCKS = st.lists(st.tuples(st.lists(st.booleans(), min_size=1, max_size=3), st.booleans()), max_size=8)


@given(BLOCKS, st.integers(1, 4), st.floats(0.01, 0.5), st.floats(0, 1), st.floats(0, 1))
def test_no_bet_is_expected_to_gain_without_a_difference(
    before: list[Block], size: int, loss: float, one: float, two: float
) -> None:
    """After any blocks, the capital's expectation over the next block is at most the present capital."""

    def capitals(*blocks: Block) -> tuple[float, float]:
        guard = SequentialGuard(loss, 0.05)
        for outside, inside in blocks:
            for each in outside:
                guard.add(False, each)
            guard.add(True, inside)
        return math.exp(guard.capital_lower), math.exp(guard.capital_higher)

    start = capitals(*before)
    low, high = sorted((one, two))
    # If the success rate inside is not lower, the first test gains nothing; if it is not higher, the second.
    for which, outside, inside in ((0, low, high), (1, high, low)):
        expected = 0.0
        for *others, last in itertools.product((True, False), repeat=size + 1):
            chances = [*(outside if each else 1 - outside for each in others), inside if last else 1 - inside]
            expected += math.prod(chances) * capitals(*before, (others, last))[which]
        assert expected <= start[which] * (1 + 1e-9)


# --- outcomes in the store


def test_outcomes_are_in_the_order_of_their_ends_whenever_they_are_read(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    step_by_step = OutcomeHistory(lambda: store)

    def start(mission: str, *codes: ReasonCode) -> None:
        request = MissionRequest(text="t", agent="native", command=(), slug="t", model="new")
        chosen = (ChoiceReason("only_agent", "native"), *(ChoiceReason(each, "r", "50") for each in codes))
        store.log.append(mission, MissionCreated(project="p", repository="/r", request=request, chosen=chosen))

    def attempt(mission: str, number: int, status: AttemptStatus, *codes: str) -> None:
        name = f"{mission}-{number}"
        reasons = tuple(Reason(code=each, message="so it is") for each in codes)
        store.log.append(
            mission,
            AttemptStarted(attempt=name, number=number, agent="native", workspace="w", tree="t"),
            AttemptFinished(attempt=name, status=status, seconds=1.0, reasons=reasons),
        )
        step_by_step()

    try:
        start("inside", "rollout")
        start("outside", "rollout_outside")
        start("plain")
        attempt("inside", 1, "refused", "no_change")
        attempt("outside", 1, "failed", "upstream_unreachable")  # says nothing of agent and model
        attempt("plain", 1, "succeeded")
        attempt("inside", 2, "succeeded")
        attempt("outside", 2, "succeeded")
        history = OutcomeHistory(lambda: store)()
        assert history == step_by_step()
        assert [(each.work, each.is_good) for each in history.outcomes] == [
            ("inside", False),
            ("plain", True),
            ("inside", True),
            ("outside", True),
        ]
        state = judge_rollout("r", HALF, history)
        assert [(each.good, each.outcomes) for each in (state.inside, state.outside)] == [(0, 1), (1, 1)]
    finally:
        store.close()


def test_only_the_learned_policy_needs_the_optional_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)

    def chooser(**rollouts: RolloutConfig) -> Chooser:
        return make_decider(Config(rollouts=rollouts), lambda: pytest.fail("nothing was chosen")).chooser

    assert chooser() == chooser(r=replace(ALL, percent=0.0)) == FixedRules()
    assert chooser(r=replace(ALL, percent=0.0), s=HALF) == rules(s=HALF)
    with pytest.raises(NotInstalledError):
        chooser(r=RolloutConfig(policy="learned", percent=1.0))


# --- the settings

SET = "[rollouts.r]\nmodel = 'new'\n"


def test_settings_are_read_and_set_by_their_dotted_names(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    for key, value in {
        "model": "new",
        "percent": "12.5",
        "agent": "native",
        "loss": "0.2",
        "shadow": "true",
    }.items():
        set_user_value(path, f"rollouts.r.{key}", value)
    config = resolve(user=load_user_file(path), environ={"CHARGEHAND_ROLLOUTS_R_PERCENT": "25"}).config
    assert config.rollouts == {
        "r": RolloutConfig(model="new", agent="native", percent=25.0, loss=0.2, shadow=True, by="project")
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{SET}percent = 120", ":3: percent must be from 0 to 100, got 120"),
        (f"{SET}percent = -0.1", ":3: percent must be from 0 to 100, got -0.1"),
        (f"{SET}percent = nan", ":3: percent must be from 0 to 100, got nan"),
        (f"{SET}percent = true", ":3: percent must be from 0 to 100, got true"),
        (f"{SET}loss = 0", ":3: loss must be greater than 0 and less than 1, got 0"),
        (f"{SET}loss = 1.0", ":3: loss must be greater than 0 and less than 1, got 1.0"),
        (f"{SET}error_rate = inf", ":3: error_rate must be greater than 0 and less than 1, got inf"),
        (f"{SET}error_rate = 'five'", ":3: error_rate must be greater than 0 and less than 1, got 'five'"),
        (f"{SET}by = 'moon'", ":3: unknown by 'moon'"),
        ("[rollouts.r]\npolicy = 'greedy'", ":2: unknown policy 'greedy'"),
        (f"{SET}policy = 'fixed'", "the roll-out 'r' needs either a model, for which an agent may be named, or a"),
        ("[rollouts.r]\npercent = 5", ":2: the roll-out 'r' needs either a model"),
        ("[rollouts.r]\npolicy = 'fixed'\nagent = 'native'", "the roll-out 'r' needs either a model"),
        ("[rollouts.r]", ":1: [rollouts.r] is empty"),
        ("[rollouts.'a b']\nmodel = 'new'", "'a b' is not a valid name for a roll-out"),
    ],
)
def test_a_bad_setting_is_refused_with_its_value(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        resolve(user=UserFile(path=Path("/c/config.toml"), text=text))


@pytest.mark.parametrize("value", ["120", "nan", "-1", "1e400", "half"])
def test_a_bad_percentage_is_not_written(tmp_path: Path, value: str) -> None:
    path = tmp_path / "config.toml"
    set_user_value(path, "rollouts.r.model", "new")
    before = path.read_text()
    with pytest.raises(ConfigError, match=r"percent must be from 0 to 100, got "):
        set_user_value(path, "rollouts.r.percent", value)
    assert path.read_text() == before


def test_codes_of_roll_outs_are_not_those_of_persons() -> None:
    assert not OF_ROLLOUTS & BY_PERSON
