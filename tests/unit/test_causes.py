"""One cause class for every end, from typed codes alone; remedies name existing commands and keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.cli.main import chargehand
from chargehand.core.records import AttemptStatus, MissionStatus, Reason
from chargehand.core.state import AttemptState, MissionState
from chargehand.missions.causes import (
    CAUSE_CLASSES,
    ENDED,
    CauseClass,
    attempt_cause,
    load_causes,
    mission_cause,
)

CONFIGURATION = (Path(__file__).parents[2] / "docs/reference/configuration.md").read_text()
TABLE = load_causes()
CODES = [code for remedy in TABLE.remedies for code in remedy.codes]
WELL: set[AttemptStatus] = {"running", "succeeded"}


def attempt(status: AttemptStatus, *codes: str, message: str = "") -> AttemptState:
    reasons = tuple(Reason(code=code, message=message) for code in codes)
    return AttemptState(id="a-1", number=1, agent="a", workspace="w-1", status=status, reasons=reasons)


def mission(status: MissionStatus, *codes: str) -> MissionState:
    return MissionState(id="m-1", status=status, reasons=tuple(Reason(code=code, message="") for code in codes))


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        ("failed", "agent_failed", "agent"),
        ("refused", "no_change", "agent"),
        ("refused", "check_failed", "check"),
        ("refused", "secret", "check"),
        ("failed", "registry_refused", "provider"),
        ("timed_out", "time", "budget"),
        ("cancelled", "cancelled", "person"),
        ("failed", "config_invalid", "person"),
        ("failed", "sandbox_died", "engine"),
        ("failed", "no_space", "engine"),
    ],
)
def test_the_code_of_an_ended_attempt_decides(status: AttemptStatus, code: str, kind: CauseClass) -> None:
    cause = attempt_cause(attempt(status, code))
    assert cause is not None
    assert (cause.kind, cause.code) == (kind, code)
    assert cause.remedy


def test_more_attempts_are_not_advised_for_tests_that_failed_before_the_change() -> None:
    known, new = attempt_cause(attempt("refused", "check_failed", "still_failing")), "new_failures"
    assert known is not None
    assert (known.kind, known.code) == ("check", "check_failed")
    assert "before your change too" in known.remedy
    for codes in (("check_failed",), ("check_failed", new), ("check_failed", new, "still_failing")):
        cause = attempt_cause(attempt("refused", *codes))
        assert cause is not None
        assert "--attempts" in cause.remedy


@pytest.mark.parametrize(
    ("status", "kind"),
    [("refused", "check"), ("failed", "engine"), ("timed_out", "budget"), ("cancelled", "person")],
)
@pytest.mark.parametrize("codes", [(), ("of_a_newer_version",)])
def test_without_a_known_code_the_status_decides(
    status: AttemptStatus, kind: CauseClass, codes: tuple[str, ...]
) -> None:
    cause = attempt_cause(attempt(status, *codes))
    assert cause is not None
    assert (cause.kind, cause.code) == (kind, codes[0] if codes else None)
    assert cause.remedy


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        ("refused", "merge_conflict", "person"),
        ("failed", "setup_failed", "person"),
        ("failed", "worker_lost", "engine"),
        ("failed", "of_a_newer_version", "engine"),
        ("waiting", "checks_missing", "person"),
        ("waiting", "of_a_newer_version", "person"),
        ("exhausted", "of_a_newer_version", "budget"),
        ("cancelled", "cancelled", "person"),
        ("discarded", "discarded", "person"),
        ("refused", "of_a_newer_version", "check"),
    ],
)
def test_the_code_of_an_ended_mission_decides(status: MissionStatus, code: str, kind: CauseClass) -> None:
    cause = mission_cause(mission(status, code))
    assert cause is not None
    assert (cause.kind, cause.code) == (kind, code)


def test_the_engine_is_the_cause_of_a_lost_attempt() -> None:
    for lost in (attempt("lost"), attempt("lost", "check_failed")):
        cause = attempt_cause(lost)
        assert cause is not None
        assert (cause.kind, cause.code) == ("engine", "worker_lost")


def test_the_first_known_reason_decides() -> None:
    cause = attempt_cause(attempt("refused", "of_a_newer_version", "secret", "no_change"))
    assert cause is not None
    assert (cause.kind, cause.code) == ("check", "secret")


@given(st.text(), st.sampled_from(CODES), st.sampled_from(get_args(AttemptStatus)))
def test_no_message_changes_the_cause(message: str, code: str, status: AttemptStatus) -> None:
    assert attempt_cause(attempt(status, code, message=message)) == attempt_cause(attempt(status, code))


@given(st.lists(st.sampled_from([*CODES, *TABLE.causeless, "other", ""]), max_size=4))
def test_exactly_the_unsuccessful_ends_have_a_cause_class(codes: list[str]) -> None:
    for status in get_args(AttemptStatus):
        cause = attempt_cause(attempt(status, *codes))
        assert (cause is None) == (status in WELL)
        assert cause is None or cause.kind in CAUSE_CLASSES
    for status in get_args(MissionStatus):
        found = mission_cause(mission(status, *codes))
        assert (found is None) == (status == "promoted" or status not in ENDED)


def test_a_mission_that_waits_for_a_worker_has_not_ended() -> None:
    assert mission_cause(mission("paused", "worker_lost")) is None
    assert mission_cause(mission("promoted", "recovered")) is None
    assert mission_cause(mission("running")) is None


def test_each_code_is_in_the_table_once() -> None:
    assert len(CODES) == len(set(CODES))
    assert not set(CODES) & TABLE.causeless
    assert {remedy.kind for remedy in TABLE.remedies} == set(CAUSE_CLASSES) == set(TABLE.meanings)


@pytest.mark.parametrize("text", [remedy.text for remedy in TABLE.remedies])
def test_a_remedy_names_commands_and_keys_that_exist(text: str) -> None:
    for quoted in re.findall(r"`([^`]+)`", text):
        if quoted.startswith("chargehand "):
            command_of(quoted.split()[1:])
        elif "." in quoted:
            assert f"`CHARGEHAND_{quoted.upper().replace('.', '_')}`" in CONFIGURATION, quoted


def command_of(words: list[str]) -> None:
    command: click.Command = chargehand
    while isinstance(command, click.Group) and not words[0].startswith("-"):
        name = words.pop(0)
        found = command.get_command(click.Context(command), name)
        assert found is not None, name
        command = found
    known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    before = words[: words.index("--")] if "--" in words else words
    assert {word for word in before if word.startswith("-")} <= known


def test_a_remedy_that_names_no_command_is_found() -> None:
    with pytest.raises(AssertionError, match="mend"):
        command_of(["mission", "mend", "MISSION"])
    with pytest.raises(AssertionError):
        command_of(["mission", "show", "--cause"])
