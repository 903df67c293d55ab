"""Missions whose checks already fail on the base: a person is asked before an agent costs anything."""

from __future__ import annotations

from collections.abc import Sequence

from chargehand.checks.failures import own_name
from chargehand.core.errors import RefusedError, WaitingError
from chargehand.core.mission_events import QuestionAsked
from chargehand.core.records import CheckResult, MissionRequest, Reason
from chargehand.core.text import printable
from chargehand.missions.journal import Journal
from chargehand.missions.verdict.classification import load_failures
from chargehand.missions.verdict.failure_policy import (
    ACCEPT,
    AGAIN,
    FIX,
    LEAVE_OUT,
    RED_BASE,
    STOP,
    find_answer,
    words_of,
)
from chargehand.missions.verdict.judgement import NO_TESTS
from chargehand.missions.verdict.validation import Validator
from chargehand.store.store import Store

_MEANINGS = {
    ACCEPT: "these tests may still fail after the change; no other test may",
    LEAVE_OUT: "ignore these tests, whether they pass or fail",
    AGAIN: "run the checks on the base once more",
    FIX: "the request is to fix these tests: they must pass after the change",
    STOP: "end the mission; no agent has started, and nothing has been spent",
}
_SHOWN_CHECKS, _SHOWN_TESTS = 3, 5


async def heed_red_base(journal: Journal, store: Store, request: MissionRequest, validator: Validator) -> None:
    """Act on failing checks of the base as the request says, before an agent costs anything.

    Raises `RefusedError` (`base_red`) if the mission must stop, `WaitingError` if a person is asked. No question
    is asked if acceptance files or the failing tests themselves are the aim of the request.
    """
    verdict = validator.on_base or await validator.judge_base()
    failed = [check for check in verdict.checks if check.status != "passed" and check.reason != NO_TESTS]
    if verdict.status != "red" or not failed or request.red_base not in ("ask", "stop"):
        return
    names = ", ".join(_describe_check(store, check) for check in failed[:_SHOWN_CHECKS])
    message = f"checks fail on the base, before any change: {names}"
    stopped = RefusedError(
        message,
        code="base_red",
        hint="fix the base first, use --red-base go if fixing it is the request, or --accept-known to let it be",
    )
    if request.red_base == "stop":
        raise stopped
    if request.check_files or _all_named(store, failed, request):
        return
    answer = find_answer(journal.state)
    asked = [each for name, each in journal.state.questions.items() if name.partition("/")[0] == RED_BASE]
    if answer == STOP:
        raise stopped
    if answer is not None and answer != AGAIN:
        return
    if not asked or asked[-1].answer is not None:
        question = QuestionAsked(
            question=f"{RED_BASE}/{len(asked) + 1}" if asked else RED_BASE,
            tree=verdict.tree,
            reasons=(Reason(code="base_red", message=message),),
            text=message,
            options=tuple(_MEANINGS),
            meanings=tuple(_MEANINGS.values()),
            kind="risk",
            closed=True,
        )
        journal.record(journal.limited(question), durable=True)
    raise WaitingError(message, code="base_red")


def _describe_check(store: Store, check: CheckResult) -> str:
    """Return a check's name with its failing tests, as far as the runner names them."""
    tests = _failing_tests(store, check)
    if not tests:
        return printable(check.name)
    more = f" and {len(tests) - _SHOWN_TESTS} more" if len(tests) > _SHOWN_TESTS else ""
    of = f" of {check.tests}" if check.tests else ""
    plural = "s" if (check.tests or len(tests)) != 1 else ""
    return (
        f"{printable(check.name)} ({len(tests)}{of} test{plural}: "
        f"{', '.join(map(printable, tests[:_SHOWN_TESTS]))}{more})"
    )


def _failing_tests(store: Store, check: CheckResult) -> Sequence[str]:
    failures = load_failures(store, check)
    return failures.tests or () if failures is not None else ()


def _all_named(store: Store, failed: Sequence[CheckResult], request: MissionRequest) -> bool:
    """Return whether the request names each failing test: then there is nothing left to ask."""
    named = words_of(request.text)
    tests = [{own_name(check.name, each) for each in _failing_tests(store, check)} for check in failed]
    return all(names and names <= named for names in tests)
