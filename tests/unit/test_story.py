"""The story of a mission: its lines, each once, and the omitted events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from chargehand.core.events import Payload
from chargehand.core.mission_events import (
    MissionCreated,
    MissionFinished,
    QuestionAsked,
    SetupDetected,
    VerdictGiven,
)
from chargehand.core.records import CheckResult, KnownFailures, MissionRequest, Verdict, VerdictStatus
from chargehand.reports.outcome import describe_check
from chargehand.reports.story import MissionStory
from chargehand.store.store import open_store

TREE = "a" * 40
SETUP = SetupDetected(command="pip install -e .")
ASKED = QuestionAsked(question="base", tree=TREE, reasons=(), text="Go on?")


def on_base(status: VerdictStatus, check: CheckResult) -> VerdictGiven:
    return VerdictGiven(verdict=Verdict(tree=TREE, scope="base", status=status, checks=(check,)))


MISSING = on_base("red", CheckResult(name="pytest", status="missing", seconds=0.1, reason="command_not_found"))
RED = on_base("red", CheckResult(name="pytest", status="failed", seconds=1.0, tests=2))


def told(place: Path, *payloads: Payload, after: Sequence[Payload] = ()) -> list[str]:
    """Return the story of a mission; a follower that starts with `after` has a separate story."""
    with open_store(place) as store:
        request = MissionRequest(text="mend", agent="command:true", command=("true",), slug="mend")
        store.log.append("m-1", MissionCreated(project="p", repository="/r", request=request))
        store.log.append("m-1", *payloads, *after)
        lines: list[str] = []
        stories = MissionStory(store), MissionStory(store)
        for event in store.log.read("m-1")[1:]:
            story = stories[event.seq > 1 + len(payloads)]
            lines += [line.text.strip() for line in story.tell(event)]
        return lines


def test_a_base_that_only_needed_its_setup_is_not_shown_as_red(tmp_path: Path) -> None:
    lines = told(tmp_path, MISSING, SETUP, RED, ASKED)
    assert [line.split()[0] for line in lines[:2]] == ["setup:", "before"]
    assert lines[1] == "before      pytest: failed (2 tests ran)"
    assert not [line for line in lines if "missing" in line]


@pytest.mark.parametrize("then", [ASKED, MissionFinished(status="failed", reasons=())])
def test_a_base_that_no_setup_mends_is_shown_as_red(tmp_path: Path, then: Payload) -> None:
    assert told(tmp_path, MISSING, then)[0] == "before      pytest: could not run (command not found)"


@pytest.mark.parametrize(
    ("failed", "told_of"),
    [
        (["t.py::a"], "pytest: 1 of 1,485 tests failed: t.py::a"),
        (["a", "b", "c", "d", "e"], "pytest: 5 of 1,485 tests failed: a, b, c and 2 more"),
        (["e\x1b[31m"], "pytest: 1 of 1,485 tests failed: e"),
        (["t/" + "x" * 90], "pytest: 1 of 1,485 tests failed: t/" + "x" * 50 + "…"),
        ([], "pytest: failed (1,485 tests ran)"),
    ],
)
def test_a_failed_check_counts_and_names_its_failed_tests(tmp_path: Path, failed: list[str], told_of: str) -> None:
    with open_store(tmp_path) as store:
        kept = store.artifacts.put(
            json.dumps({"reason": "tests_failed", "tests": failed}).encode(), kind="failures"
        )
        check = CheckResult(name="pytest", status="failed", seconds=1.0, tests=1_485, failed=kept)
        assert describe_check(store, check).startswith(told_of)
        assert "\x1b" not in describe_check(store, check)
        assert describe_check(store, check, with_names=False) == told_of.partition(" failed: ")[0] + (
            " failed" if failed else ""
        )


def test_more_failures_than_tests_that_ran_are_not_a_part_of_them(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        kept = store.artifacts.put(
            json.dumps({"reason": "collection_error", "tests": ["a", "b"]}).encode(), kind="failures"
        )
        check = CheckResult(name="pytest", status="failed", seconds=1.0, tests=1, failed=kept)
        assert describe_check(store, check) == "pytest: 2 tests failed: a, b"


def test_following_after_an_answer_shows_setup_and_base_checks_once(tmp_path: Path) -> None:
    lines = told(tmp_path, SETUP, RED, ASKED, after=(SETUP, RED, ASKED))
    assert len([line for line in lines if line.startswith(("setup", "before"))]) == 2


def test_failures_of_the_base_alone_are_no_worse(tmp_path: Path) -> None:
    failed = CheckResult(name="pytest", status="failed", seconds=1.0, tests=2)
    known = (KnownFailures(check="pytest", count=1, tests=("test_a",)),)
    verdict = Verdict(tree=TREE, scope="attempt", status="no_worse", checks=(failed,), known=known)
    assert told(tmp_path, VerdictGiven(verdict=verdict))[0] == "no worse    pytest: failed (2 tests ran)"
