"""The tree at which an attempt resumes, and its result, after a person changed the mission's last tree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chargehand.core.attempt_events import AttemptStarted, CheckpointMade
from chargehand.core.clock import SteppedClock
from chargehand.core.mission_events import CheckpointRestored, MissionCreated, StepFinished
from chargehand.core.records import Checkpoint, MissionRequest
from chargehand.missions.attempt.context import find_last_tree
from chargehand.missions.journal import Journal
from chargehand.missions.transcript import WORK
from chargehand.missions.verdict.restored import restored_after_work
from chargehand.store.store import open_store

CREATED = MissionCreated(
    project="p", repository="/r", request=MissionRequest(text="x", agent="a", command=("x",), slug="x")
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with open_store(tmp_path) as store:
        store.log.append("m-1", CREATED, started(1))
        yield Journal(store, "m-1", clock=SteppedClock())


def started(number: int) -> AttemptStarted:
    return AttemptStarted(attempt=f"a-{number}", number=number, agent="a", workspace="w", tree="base")


def act(number: int, turn: int, tree: str) -> StepFinished:
    name = f"{WORK.format(number=number)}/{turn}/call"
    return StepFinished(step=name, input="", output={"tree": tree}, seconds=0.0)


def work(number: int) -> StepFinished:
    return StepFinished(step=WORK.format(number=number), input="", output={}, seconds=0.0)


def restored(tree: str) -> CheckpointRestored:
    made = Checkpoint(commit=f"commit of {tree}", tree=tree, parent="", trigger="restored files", changed=1)
    return CheckpointRestored(workspace="", checkpoint=made)


def test_an_interrupted_attempt_resumes_at_its_last_act_or_restored_tree(journal: Journal) -> None:
    journal.record(act(1, 1, "first"), act(1, 2, "second"))
    assert find_last_tree(journal, 1) == "second"
    journal.record(restored("taken back"))
    assert find_last_tree(journal, 1) == "taken back"
    # Its workspace is reset to that tree, which records its own checkpoint.
    made = Checkpoint(commit="c", tree="taken back", parent="", trigger="resumed", changed=1)
    journal.record(CheckpointMade(attempt="a-1", checkpoint=made))
    assert find_last_tree(journal, 1) == "taken back"
    journal.record(act(1, 3, "third"))
    assert find_last_tree(journal, 1) == "third"
    # A restore during the work does not change its result.
    journal.record(work(1))
    assert restored_after_work(journal.state, 1) is None


def test_an_attempt_without_acts_restarts_from_the_restored_tree(journal: Journal) -> None:
    assert find_last_tree(journal, 1) is None
    journal.record(restored("taken back"))
    assert find_last_tree(journal, 1) == "taken back"
    assert find_last_tree(journal, 2) is None


def test_the_last_tree_after_the_work_takes_the_place_of_its_result(journal: Journal) -> None:
    journal.record(work(1), restored("one"), restored("two"))
    found = restored_after_work(journal.state, 1)
    assert found is not None
    assert found.checkpoint.tree == "two"
    # The next attempt begins there: a restore during it concerns only that attempt.
    journal.record(started(2), restored("three"))
    found = restored_after_work(journal.state, 1)
    assert found is not None
    assert found.checkpoint.tree == "two"
    assert restored_after_work(journal.state, 2) is None
    journal.record(work(2), restored("four"))
    assert [each.checkpoint.tree for each in journal.state.restored] == ["one", "two", "three", "four"]
    assert restored_after_work(journal.state, 2) == journal.state.restored[-1]
