"""Loops are found in any disguise; calls that bring news or wait are not loops."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tests.unit.agent_transcripts import look, next_step

from chargehand.agents.stuck import (
    EscalationLadder,
    LadderStep,
    ObservedCall,
    StuckDetector,
    Turn,
    normalise,
)

WORDS = st.text("abcdefgh", min_size=1, max_size=5)
CALLS = st.builds(
    lambda name, word, result, failed: ObservedCall(
        name=name, arguments={"path": word}, result=result, failed=failed
    ),
    st.sampled_from(["bash", "read", "edit", "search"]),
    WORDS,
    WORDS,
    st.booleans(),
)
TURNS = st.builds(Turn, text=WORDS, calls=st.lists(CALLS, max_size=3).map(tuple), changed=st.booleans())
UNITS = st.lists(
    st.builds(lambda call: Turn(text="", calls=(call,)), CALLS), min_size=1, max_size=4, unique_by=lambda t: str(t)
)


@given(st.lists(TURNS, max_size=12), UNITS)
def test_loops_are_detected(before: list[Turn], unit: list[Turn]) -> None:
    found = look([*before, *unit * 6])
    assert found is not None
    assert 0 <= found.since < len(before) + 6 * len(unit)


@given(st.lists(TURNS, max_size=12), st.lists(WORDS, min_size=1, max_size=40, unique=True))
def test_news_is_never_a_loop(before: list[Turn], words: list[str]) -> None:
    watch = StuckDetector()
    for turn in before:
        watch.add(turn)
    for word in words:  # words without any of the earlier letters
        news = ObservedCall(name="read", arguments={"path": word}, result=f"xyz {word}")
        assert watch.add(Turn(text="", calls=(news,))) is None
        assert watch.progressed


@settings(max_examples=examples(30))
@given(st.lists(TURNS, max_size=12), st.sampled_from(["sleep 2", "wait", "until ./up; do sleep 5; done"]))
def test_a_wait_is_never_a_loop(before: list[Turn], command: str) -> None:
    wait = Turn(
        text="", calls=(ObservedCall(name="bash", arguments={"command": command}, result="[exit code 1]"),)
    )
    assert look([*before, *[wait] * 30]) is None


@given(WORDS, st.lists(st.integers(0, 10**6), min_size=6, max_size=6))
def test_numbers_do_not_hide_a_loop(word: str, numbers: list[int]) -> None:
    turns = [
        Turn(
            text="",
            calls=(
                ObservedCall(name="bash", arguments={"command": f"./{word} {n}"}, result=f"run {n} of {word}"),
            ),
        )
        for n in numbers
    ]
    assert look(turns) is not None


@given(st.text(), st.integers(0, 10**9))
def test_normal_forms_are_stable(text: str, number: int) -> None:
    assert normalise(f"{text} {number} ") == normalise(f"{text} {number + 1} ")


@settings(max_examples=examples(15))
@given(st.lists(TURNS, max_size=12), UNITS, st.integers(0, 2))
def test_escalation_steps_follow_from_recorded_turns(before: list[Turn], unit: list[Turn], others: int) -> None:
    turns, taken = [*before, *unit * 8], list[LadderStep]()
    ladder = EscalationLadder(others=others)
    for count, turn in enumerate(turns, 1):
        ladder.add(turn)
        due = ladder.due()
        assert next_step(turns[:count], taken, others=others) == due
        if due is not None:
            assert due.turn == count
            assert due.stuck.since < count
            ladder.take(due)
            taken.append(due)
    assert taken
    assert taken[0].kind == "nudge"
    assert sum(step.kind == "switch" for step in taken) <= others
