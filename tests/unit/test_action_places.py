"""State directories of actions: found by part of their id, owned by one process, with bounded output."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chargehand.core.errors import NotFoundError, UsageError
from chargehand.durable.actions import ActionLocation, ActionLock, ActionRegistry, OutputLine


@pytest.fixture
def places(tmp_path: Path) -> ActionRegistry:
    return ActionRegistry(tmp_path)


def made(places: ActionRegistry) -> ActionLock:
    held = places.make()
    places.put(ActionLocation(action=held.action, log="p-1", after=3))
    return held


def test_a_claim_is_exclusive_until_released(places: ActionRegistry) -> None:
    held = made(places)
    assert places.live(held.action)
    assert places.hold(held.action) is None
    held.let_go()
    held.let_go()
    assert not places.live(held.action)
    again = places.hold(held.action)
    assert again is not None
    again.let_go()
    with pytest.raises(ValueError, match="already released"):
        held.fileno()


def test_a_lock_that_is_handed_on_is_never_free(places: ActionRegistry) -> None:
    held = made(places)
    handed = os.dup(held.fileno())
    held.let_go(handed_on=True)
    assert places.live(held.action)
    taken = places.take_over(held.action, handed)
    assert places.hold(held.action) is None
    taken.let_go()
    assert not places.live(held.action)


def test_actions_are_found_by_part_of_their_id(places: ActionRegistry) -> None:
    with pytest.raises(NotFoundError):
        places.find("last")
    first, second = made(places), made(places)
    ids = sorted((first.action, second.action))
    assert places.ids() == ids
    assert places.find("last") == ids[-1]
    for action in ids:
        assert {places.find(action), places.find(action.upper()), places.find(action[2:])} == {action}
        assert places.get(action).after == 3
    with pytest.raises(UsageError, match="matches 2"):
        places.find("x-1")
    for name in ("", "nowhere", "../x"):
        with pytest.raises(NotFoundError):
            places.find(name)
    first.let_go()
    second.let_go()


def test_reading_output_returns_only_complete_lines(places: ActionRegistry) -> None:
    held = made(places)
    assert places.read(held.action) == ([], 0)
    output = places.output(held.action)
    lines = [OutputLine(time="t", stream="stdout", line=text) for text in ("a", "b\u2028c", "")]
    lines[-1] = OutputLine(time="t", stream="stderr", line="😀")
    output.write(lines[0])
    found, offset = places.read(held.action)
    assert found == lines[:1]
    for line in lines[1:]:
        output.write(line)
    with (places.directory / held.action / "output.jsonl").open("ab") as file:
        file.write(b'{"time":"t","str')
    found, end = places.read(held.action, offset)
    assert found == lines[1:]
    assert places.read(held.action, end) == ([], end)
    output.close()
    held.let_go()


def test_output_is_cut_and_says_so(places: ActionRegistry) -> None:
    held = made(places)
    output = places.output(held.action)
    long = OutputLine(time="t", stream="stdout", line="x" * 3_000_000)
    for _ in range(5):
        output.write(long)
    assert (output.lines, output.truncated) == (3, True)
    output.write(OutputLine(time="t", stream="stdout", line="short"))
    assert output.lines == 3, "nothing after a gap: what is there is the beginning"
    output.close()
    held.let_go()


def test_old_incomplete_directories_are_removed_unless_owned(places: ActionRegistry) -> None:
    dead, living = places.make(), places.make()
    dead.let_go()
    for held in (dead, living):
        os.utime(places.directory / held.action, (0, 0))
    last = made(places)
    assert not (places.directory / dead.action).exists()
    assert (places.directory / living.action).exists()
    for held in (living, last):
        held.let_go()
