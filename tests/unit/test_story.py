"""The story of a mission: its lines, each once, and the omitted events."""

from __future__ import annotations

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
    assert [line.split()[0] for line in lines[:2]] == ["setup", "before"]
    assert "red: pytest: failed (2 tests)" in lines[1]
    assert not [line for line in lines if "missing" in line]


@pytest.mark.parametrize("then", [ASKED, MissionFinished(status="failed", reasons=())])
def test_a_base_that_no_setup_mends_is_shown_as_red(tmp_path: Path, then: Payload) -> None:
    assert told(tmp_path, MISSING, then)[0] == "before      red: pytest: missing"


def test_following_after_an_answer_shows_setup_and_base_checks_once(tmp_path: Path) -> None:
    lines = told(tmp_path, SETUP, RED, ASKED, after=(SETUP, RED, ASKED))
    assert len([line for line in lines if line.startswith(("setup", "before"))]) == 2


def test_failures_of_the_base_alone_are_no_worse(tmp_path: Path) -> None:
    failed = CheckResult(name="pytest", status="failed", seconds=1.0, tests=2)
    known = (KnownFailures(check="pytest", count=1, tests=("test_a",)),)
    verdict = Verdict(tree=TREE, scope="attempt", status="no_worse", checks=(failed,), known=known)
    assert told(tmp_path, VerdictGiven(verdict=verdict))[0] == "no worse    pytest: failed (2 tests)"
