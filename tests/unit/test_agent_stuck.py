"""A native agent that goes in circles is distinguished from a working or waiting one, on realistic transcripts."""

from __future__ import annotations

import pytest
from tests.unit.agent_transcripts import FAILURE, HONEST, LOOPS, bash, edit, look, next_step, read, says, together

from chargehand.agents.stuck import (
    EscalationLadder,
    LadderStep,
    ObservedCall,
    Stuck,
    StuckDetector,
    Turn,
    is_waiting,
    normalise,
)


@pytest.mark.parametrize("name", LOOPS)
def test_each_loop_is_detected_with_its_pattern(name: str) -> None:
    pattern, turns = LOOPS[name]
    found = look(turns)
    assert found is not None
    assert found.pattern == pattern
    assert found.message


@pytest.mark.parametrize("name", LOOPS)
def test_half_a_loop_is_not_detected(name: str) -> None:
    _, turns = LOOPS[name]
    assert look(turns[: len(turns) // 2]) is None


@pytest.mark.parametrize("name", HONEST)
def test_work_and_waiting_are_never_a_loop(name: str) -> None:
    watch = StuckDetector()
    assert [found for turn in HONEST[name] if (found := watch.add(turn)) is not None] == []


@pytest.mark.parametrize("name", LOOPS)
def test_a_wait_after_a_loop_is_a_fresh_start(name: str) -> None:
    _, turns = LOOPS[name]
    wait = bash("sleep 5", "")
    assert look([*turns, wait]) is None
    assert look([*turns, wait, turns[-1]]) is None


def test_a_loop_begins_at_its_first_turn() -> None:
    before = [read("a.py", "import os"), edit("a.py", "os", "sys")]
    circles = [turn for _ in range(4) for turn in (bash("ls", "a.py"), bash("cat a.py", "import sys"))]
    found = look([*before, *circles])
    assert found is not None
    assert found.since == 2
    assert look([*before, *(says("Well.") for _ in range(4))]) == Stuck(
        pattern="monologue", message="The last 4 replies called no tool.", since=2
    )


def test_six_equal_changes_are_a_loop_but_five_are_not() -> None:
    add = bash("echo x >> notes.txt", "", changed=True)
    assert look([add] * 5) is None
    found = look([add] * 6)
    assert found is not None
    assert found.pattern == "same_result"


def test_a_different_exit_code_is_a_different_result() -> None:
    assert look([bash("./flaky", "ran", code) for code in (0, 1, 0)]) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("took 1.32s", "took 980ms"),
        ("at 0x7f3a21 in <f>", "at 0xdeadbeef in <f>"),
        ("commit 3f2a9bc1", "commit 0a1b2c3d4e"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id 00000000-0000-4000-8000-00000000000a"),
        ("2025-01-02T03:04:05.6Z up", "2024-12-31 23:59:59 up"),
        ("/tmp/tmpa1b2c3d4/x", "/tmp/tmp.Zz9Yy8Xx7W/x"),
        ("/tmp/pytest-of-me/pytest-7/x", "/tmp/pytest-of-me/pytest-12/x"),
        ("attempt 7", "attempt 8"),
    ],
)
def test_numbers_times_and_ids_make_no_difference(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("one", "other"), [("defaced", "feedbed"), ("tmp_folder", "tmp_foo"), ("3 passed", "3 failed"), ("a", "b")]
)
def test_words_make_a_difference(one: str, other: str) -> None:
    assert normalise(one) != normalise(other)


WAITS = ["sleep 5", "make & sleep 2m", "cd x && sleep $N",
         "timeout 60 bash -c 'until curl -s x; do sleep 1; done'", "wait", "make & wait $!",
         "tail -f log", "tail -n 5 --follow log", "curl -s --retry 5 localhost",
         "python -c 'import time; time.sleep(3)'"]  # fmt: skip
WORKS = ["grep -rn sleep src", "sleep 0.1; pytest", "sleep 0", "cat wait.py", "./wait-less", "tail -n 5 log",
         "git log"]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "waits"), [*((each, True) for each in WAITS), *((each, False) for each in WORKS)]
)
def test_commands_that_wait_are_recognized(command: str, waits: bool) -> None:
    assert is_waiting(ObservedCall(name="bash", arguments={"command": command}, result="[exit code 0]")) is waits


def test_a_short_time_limit_is_no_wait() -> None:
    cut_off = "[timed out after 5 s: everything it started was killed.]"
    call = ObservedCall(name="bash", arguments={"command": "npm start"}, result=cut_off, failed=True)
    found = look([Turn(text="", calls=(call,))] * 3)
    assert found is not None
    assert found.pattern == "same_error"


CIRCLE = bash("pytest -q", FAILURE.format(0.2), 1)
WORK = [read("b.py", "import re"), edit("b.py", "re", "os"), bash("make", "built b")]


def climb(turns: list[Turn], others: int) -> list[LadderStep]:
    """Return the steps taken if every due step is taken right after its turn."""
    ladder, taken = EscalationLadder(others=others), []
    for turn in turns:
        ladder.add(turn)
        step = ladder.due()
        if step is not None:
            ladder.take(step)
            taken.append(step)
    return taken


def test_the_ladder_is_climbed_step_by_step() -> None:
    steps = climb([read("a.py", "x"), *[CIRCLE] * 15], others=1)
    assert [step.kind for step in steps] == ["nudge", "switch", "roll_back", "ask", "ask"]
    assert [step.turn for step in steps] == [4, 7, 10, 13, 16]


def test_escalation_without_another_model_skips_the_switch() -> None:
    assert [step.kind for step in climb([CIRCLE] * 12, others=0)] == ["nudge", "roll_back", "ask", "ask"]


def test_every_step_refers_to_the_start_of_the_loop() -> None:
    before = [read("a.py", "x"), edit("a.py", "x", "y")]
    steps = climb([*before, *[CIRCLE] * 9], others=0)
    assert [step.stuck.since for step in steps] == [2, 2, 2]


def test_a_new_loop_after_a_step_begins_at_its_first_turn() -> None:
    ladder = EscalationLadder(others=0)
    for turn in [CIRCLE] * 3:
        ladder.add(turn)
    first = ladder.due()
    assert first is not None
    ladder.take(first)
    one, other = (
        together(*(bash(f"cat {side}{name}", f"{name}{side}") for name in "abcde")) for side in ("left", "right")
    )
    for turn in [*WORK, *[one, other] * 3]:
        ladder.add(turn)
    due = ladder.due()
    assert due is not None
    assert (due.kind, due.stuck.pattern, due.stuck.since) == ("nudge", "alternation", 6)


def test_a_single_new_result_does_not_reset_the_escalation() -> None:
    steps = climb([*[CIRCLE] * 3, read("b.py", "import re"), *[CIRCLE] * 3], others=1)
    assert [step.kind for step in steps] == ["nudge", "switch"]


def test_no_progress_gets_ten_more_turns() -> None:
    talk = [bash(f"echo {chr(97 + n % 26)}{chr(97 + n // 26)}x", "") for n in range(36)]
    steps = climb(talk, others=0)
    assert [(step.kind, step.turn) for step in steps] == [("nudge", 25), ("roll_back", 35)]


def test_progress_leads_back_to_the_bottom_and_another_model_is_switched_to_once() -> None:
    steps = climb([*[CIRCLE] * 6, *WORK, *[bash("ls", "a b")] * 6], others=1)
    assert [step.kind for step in steps] == ["nudge", "switch", "nudge", "roll_back"]


def test_the_next_step_depends_only_on_turns_and_taken_steps() -> None:
    turns = [read("a.py", "x"), *[CIRCLE] * 12]
    taken: list[LadderStep] = []
    ladder = EscalationLadder(others=1)
    for count, turn in enumerate(turns, 1):
        ladder.add(turn)
        due = ladder.due()
        assert next_step(turns[:count], taken, others=1) == due
        if due is not None:
            ladder.take(due)
            taken.append(due)
            assert next_step(turns[:count], taken, others=1) is None
    assert len(taken) == 4
