"""What becomes of a mission whose checks fail on the base already."""

from __future__ import annotations

import re
from collections.abc import Sequence

from chargehand.checks.ran_tests import RanTests
from chargehand.core.errors import RefusedError, WaitingError
from chargehand.core.mission_events import QuestionAsked
from chargehand.core.records import MissionRequest, Reason, Verdict
from chargehand.core.text import printable
from chargehand.missions.journal import Journal
from chargehand.missions.verdict.judgement import NO_TESTS

_RED_BASE, _GO_ON, _STOP = "red_base", "go on", "stop"
_SHOWN_CHECKS = 3


def heed_red_base(
    journal: Journal, request: MissionRequest, verdict: Verdict, ran_tests: Sequence[RanTests]
) -> None:
    """Act as the request wants where checks fail on the base already, before an agent costs anything.

    Raises `RefusedError` (`base_red`) where it is to stop, `WaitingError` where a person is asked. Nobody is
    asked where acceptance files or a test that the request names are the aim.
    """
    failed = [check for check in verdict.checks if check.status != "passed" and check.reason != NO_TESTS]
    if request.red_base == "go" or not failed:
        return
    names = ", ".join(printable(check.name) for check in failed[:_SHOWN_CHECKS])
    message = f"checks fail on the base, before any change: {names}"
    stopped = RefusedError(
        message, code="base_red", hint="fix the base first, or use --red-base go if fixing it is the request"
    )
    if request.red_base == "stop":
        raise stopped
    named = set(re.findall(r"\w+", request.text))
    ran = {name.split("::")[-1].split("[")[0] for tests in ran_tests for name in tests.names or ()}
    if request.check_files or not ran.isdisjoint(named):
        return
    asked = journal.state.questions.get(_RED_BASE)
    if asked is not None and asked.answer is not None:
        if asked.answer == _STOP:
            raise stopped
        return
    if asked is None:
        question = QuestionAsked(
            question=_RED_BASE,
            tree=verdict.tree,
            reasons=(Reason(code="base_red", message=message),),
            text=f"{message}. Nothing was spent yet. Go on?",
            options=(_GO_ON, _STOP),
            kind="risk",
            closed=True,
        )
        journal.record(journal.limited(question), durable=True)
    raise WaitingError(message, code="base_red")
