"""The cause of an attempt's or mission's end: its class, code and remedy.

The class follows only from typed codes (of reasons, errors and findings), never from the words of a message:
messages quote agents and programs, which must not be able to choose their class. The table is `causes.toml`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Literal, get_args

from msgspec import Struct

from chargehand.core.records import AttemptStatus, MissionStatus, Reason
from chargehand.core.state import SETTLED, AttemptState, Ending, MissionSummary

CauseClass = Literal["agent", "check", "provider", "budget", "person", "engine"]
CAUSE_CLASSES: tuple[CauseClass, ...] = get_args(CauseClass)
# Causes after which a failed mission may be resumed: its work was not at fault.
RESUMED: tuple[CauseClass, ...] = ("engine", "provider", "person")
# Statuses in which a mission continues only if a person makes it; a paused one has not ended.
ENDED: frozenset[MissionStatus] = SETTLED - {"paused"}
# The code of a mission whose role had to add a failing test and did so: it waits for a developer.
FAILING_TEST = "failing_test_added"
# The code of failures that the base has too, and that were not accepted.
STILL_FAILING = "still_failing"


class Cause(Struct, frozen=True, kw_only=True):
    """One class of cause, with its remedy; `code` is `None` if the log gives no reason."""

    kind: CauseClass
    code: str | None
    remedy: str


class Remedy(Struct, frozen=True, kw_only=True):
    """A remedy for some codes of one class."""

    kind: CauseClass
    codes: tuple[str, ...]
    text: str


class CauseTable(Struct, frozen=True, kw_only=True):
    """The contents of `causes.toml`.

    `causeless` codes explain no end. `fallbacks` are the remedies of a class if no reason has a known code.
    `figures` and `model_figures` define the figures of the statistics.
    """

    remedies: tuple[Remedy, ...]
    by_code: Mapping[str, Remedy]
    causeless: frozenset[str]
    meanings: Mapping[CauseClass, str]
    fallbacks: Mapping[CauseClass, str]
    figures: Mapping[str, str]
    model_figures: Mapping[str, str]


@cache
def load_causes() -> CauseTable:
    """Return the table, read on first use: most commands name no cause and need not parse it."""
    text = (resources.files("chargehand.missions") / "causes.toml").read_text("utf-8")
    table = tomllib.loads(text)
    remedies = tuple(
        Remedy(kind=each["class"], codes=tuple(each["codes"]), text=each["remedy"]) for each in table["cause"]
    )
    return CauseTable(
        remedies=remedies,
        by_code={code: remedy for remedy in remedies for code in remedy.codes},
        causeless=frozenset(table["causeless"]),
        meanings={kind: table["class"][kind]["meaning"] for kind in CAUSE_CLASSES},
        fallbacks={kind: table["class"][kind]["remedy"] for kind in CAUSE_CLASSES},
        figures=table["figure"],
        model_figures=table["model_figure"],
    )


# If no reason has a known code, the status alone decides the class.
_BY_ATTEMPT: Mapping[AttemptStatus, CauseClass] = {
    "refused": "check",
    "failed": "engine",
    "timed_out": "budget",
    "cancelled": "person",
    "lost": "engine",
}
_BY_MISSION: Mapping[MissionStatus, CauseClass] = {
    "waiting": "person",
    "refused": "check",
    "failed": "engine",
    "exhausted": "budget",
    "cancelled": "person",
    "discarded": "person",
}


def attempt_cause(attempt: AttemptState) -> Cause | None:
    """Return why an attempt did not succeed; `None` if it succeeded or still runs."""
    # A lost attempt has no worker left to record its reason.
    reasons = (Reason(code="worker_lost", message=""),) if attempt.status == "lost" else attempt.reasons
    return _find_cause(_BY_ATTEMPT.get(attempt.status), reasons)


def mission_cause(state: MissionSummary | Ending) -> Cause | None:
    """Return why a mission did not end promoted; `None` if it did, or has not ended."""
    return _find_cause(_BY_MISSION.get(state.status), state.reasons)


def _find_cause(by_status: CauseClass | None, reasons: Sequence[Reason]) -> Cause | None:
    """Return the cause by the first reason with a known code, else by the class of the status."""
    if by_status is None:
        return None
    table = load_causes()
    codes = {reason.code for reason in reasons}
    for reason in reasons:
        remedy = table.by_code.get(reason.code)
        # No further attempt is needed for a test that failed before the change too.
        if reason.code == "check_failed" and STILL_FAILING in codes and "new_failures" not in codes:
            return Cause(kind="check", code=reason.code, remedy=table.by_code[STILL_FAILING].text)
        if remedy is not None:
            return Cause(kind=remedy.kind, code=reason.code, remedy=remedy.text)
    # A later version's code is still shown: its class is then the status's.
    code = next((reason.code for reason in reasons if reason.code not in table.causeless), None)
    return Cause(kind=by_status, code=code, remedy=table.fallbacks[by_status])
