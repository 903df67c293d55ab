"""The outcome of a mission: its result, the reasons for not promoting it, and sensible next commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

import msgspec

from chargehand.core.attempt_events import CommandFinished
from chargehand.core.codec import decode_as
from chargehand.core.errors import NotFoundError, StoreError
from chargehand.core.events import read_payload
from chargehand.core.records import CheckResult, Finding
from chargehand.core.state import ENDED, AttemptState, MissionState, MissionSummary, total_cost
from chargehand.core.text import printable
from chargehand.missions.causes import RESUMED, mission_cause
from chargehand.missions.reading import is_part_of_plan
from chargehand.store.store import Store

_BRANCHES = "refs/heads/"
_SHOWN_TASKS = 4
_NAMED_TESTS = 3
# The length at which a line about a failed check ends, and the least room for the names of its failed tests.
_LINE_CHARACTERS = 84
_FEWEST_CHARACTERS = 30
_BAD_ENDS = ("failed", "timed_out", "lost")


class FailingTestDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A failed test, as its runner names it, and the lines of the output that explain the failure."""

    name: str
    lines: tuple[str, ...]


class FailureDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A check that did not pass, or an agent that ended badly; `artifact` has the whole output.

    `lines` are the relevant lines if no tests are named: for an agent the last ones, with stderr at the end.
    """

    kind: Literal["check", "agent"]
    name: str
    status: str
    tests: tuple[FailingTestDocument, ...]
    lines: tuple[str, ...]
    artifact: str | None


def ended_with_report(state: MissionSummary) -> bool:
    """Return whether a mission ended well with a report, so that there was nothing to promote."""
    return state.status == "promoted" and state.commit is None and state.report is not None


def was_rolled_back(state: MissionSummary) -> bool:
    """Return whether a mission was promoted and undone: its branch has the tree of its base again."""
    promoted = state.status == "promoted" and state.commit is not None
    return promoted and state.base is not None and state.tree == state.base.tree


def exported_branch(state: MissionSummary) -> str | None:
    """Return the mission's branch in the user's repository, `None` if there is no branch."""
    if state.export is None or state.exported is None:
        return None
    return state.export.ref.removeprefix(_BRANCHES)


def mission_seconds(state: MissionSummary) -> float | None:
    """Return the seconds from the first event to the last, rounded to milliseconds, without waiting time."""
    if not state.created or not state.updated:
        return None
    spent = datetime.fromisoformat(state.finished or state.updated) - datetime.fromisoformat(state.created)
    return round(max(0.0, spent.total_seconds() - state.waited_seconds), 3)


def mission_cost(state: MissionSummary) -> tuple[float | None, bool]:
    """Return the cost of all attempts in USD, and whether it is known: one unknown cost makes the sum unknown.

    For a plan it includes the attempts of all child missions, whether their tasks ended or not.
    """
    own, tasks = total_cost((state,)), state.tasks.cost_usd if state.tasks is not None else 0.0
    return (None, False) if own is None or tasks is None else (own + tasks, True)


def inspection_warnings(state: MissionState) -> tuple[Finding, ...]:
    """Return inspection's warnings about the mission's last tree; for a plan, about all that was merged."""
    verdicts = [verdict for verdict in state.verdicts if verdict.scope != "base"]
    good = [verdict for verdict in verdicts if verdict.status == "green"]
    judged = good if state.plan is not None else verdicts[-1:]
    found = (finding for verdict in judged for finding in verdict.findings)
    return tuple(dict.fromkeys(finding for finding in found if finding.severity == "warning"))


def sums_differ(attempt: AttemptState) -> bool:
    """Return whether reported and computed cost, over the calls that have both, differ by 1 % or more."""
    most = max(attempt.reported_usd, attempt.computed_usd)
    return abs(attempt.reported_usd - attempt.computed_usd) > most / 100


def explain_failures(store: Store, state: MissionState) -> tuple[FailureDocument, ...]:
    """Return the failures of a mission that is not promoted: checks of its last tree, or the agent itself.

    An agent that printed nothing gives no failure.
    """
    if state.status in ("planned", "promoted"):
        return ()
    last = state.attempts[-1] if state.attempts else None
    if last is None or last.status not in _BAD_ENDS or last.verdict is not None:
        stopped_by_base = any(reason.code == "base_red" for reason in state.reasons)
        verdicts = [verdict for verdict in state.verdicts if stopped_by_base or verdict.scope != "base"]
        failures = [explain_check(store, check) for check in verdicts[-1].checks] if verdicts else []
        return tuple(failure for failure in failures if failure.status != "passed")
    from chargehand.checks.failure_excerpts import end_of_output

    for event in reversed(store.log.read(state.id)):
        if event.type == "attempt.started":
            break
        payload = read_payload(event) if event.type == "command.finished" else None
        # Setup ends in the same event, with its own command.
        if isinstance(payload, CommandFinished) and payload.argv == (last.agent,):
            lines = end_of_output(_read_output(store, payload.artifact))
            ended = FailureDocument(
                kind="agent", name=last.agent, status=last.status, tests=(), lines=lines, artifact=payload.artifact
            )
            return (ended,) if payload.artifact else ()
    return ()


def explain_check(store: Store, check: CheckResult) -> FailureDocument:
    """Return a check with its failed tests and the lines that explain them, from its kept output."""
    tests: tuple[FailingTestDocument, ...] = ()
    lines: tuple[str, ...] = ()
    if check.status != "passed":
        from chargehand.checks.failure_excerpts import read_failures

        found = read_failures(_read_output(store, check.artifact))
        tests = tuple(FailingTestDocument(name=each.name, lines=each.lines) for each in found if each.name)
        lines = tuple(line for each in found if not each.name for line in each.lines)
    return FailureDocument(
        kind="check", name=check.name, status=check.status, tests=tests, lines=lines, artifact=check.artifact
    )


def describe_check(store: Store, check: CheckResult, *, with_names: bool = True) -> str:
    """Return a check's name and result on one line, with the number of its failed tests and the first of them."""
    name = printable(check.name)
    ran = "" if check.tests is None else f"{check.tests:,} test{'' if check.tests == 1 else 's'}"
    match check.status:
        case "passed":
            return f"{name}: passed" + (f" ({ran})" if ran else "")
        case "missing":
            return f"{name}: could not run ({check.reason.replace('_', ' ') or 'its program is missing'})"
        case "timed_out":
            return f"{name}: timed out"
    failed = _failed_tests(store, check)
    if not failed:
        return f"{name}: failed" + (f" ({ran} ran)" if ran else "")
    # A test that cannot be collected fails without having run.
    of = f" of {check.tests:,}" if check.tests and len(failed) <= check.tests else ""
    plural = "" if (check.tests if of else len(failed)) == 1 else "s"
    more = f" and {len(failed) - _NAMED_TESTS:,} more" if len(failed) > _NAMED_TESTS else ""
    text = f"{name}: {len(failed):,}{of} test{plural} failed"
    if not with_names:
        return text
    names = ", ".join(map(printable, failed[:_NAMED_TESTS])) + more
    room = max(_LINE_CHARACTERS - len(text), _FEWEST_CHARACTERS)
    return f"{text}: {names if len(names) <= room else names[: room - 1] + '…'}"


def _failed_tests(store: Store, check: CheckResult) -> tuple[str, ...]:
    """Return the failed tests that the runner named; none if the record is missing or damaged."""
    from chargehand.checks.failures import CheckFailures

    try:
        return decode_as(store.artifacts.get(check.failed), CheckFailures).tests or () if check.failed else ()
    except (NotFoundError, StoreError, ValueError):
        return ()


def _read_output(store: Store, artifact: str | None) -> str:
    try:
        return store.artifacts.get(artifact).decode(errors="replace") if artifact else ""
    except (NotFoundError, StoreError):  # removed by `gc`, or damaged: `store check` reports it
        return ""


def next_commands(state: MissionState, failures: tuple[FailureDocument, ...] = ()) -> tuple[str, ...]:
    """Return the commands that make sense now, the most likely one first."""
    if any(reason.code == "breakpoint" for reason in state.reasons):
        resume = f"chargehand mission resume {state.id}"
        return (resume, f"{resume} --step", f"{resume} --to-end", *_commands_to_inspect(state, failures))
    if state.plan is not None and was_rolled_back(state):
        return ()  # its tasks were promoted one by one: there is no single result to promote again
    if state.plan is not None and state.status not in ENDED:
        return tuple(_commands_to_coordinate(state))
    if state.plan is not None and state.status not in ("promoted", "discarded"):
        return tuple(_commands_after_plan(state))
    return (*_commands_to_settle(state), *_commands_to_inspect(state, failures))


def conclude(state: MissionState, failures: tuple[FailureDocument, ...]) -> dict[str, Any]:
    """Return the fields of a mission's documents about failures, next commands and warnings."""
    verdict = state.last_verdict
    return {
        "failures": failures,
        "next": next_commands(state, failures),
        "warnings": inspection_warnings(state),
        "known_failures": verdict.known if verdict else (),
        "flaky": verdict.flaky if verdict else (),
    }


def _commands_to_coordinate(state: MissionState) -> Iterator[str]:
    assert state.plan is not None
    if (asked := state.open_question) is not None:
        answer = shlex.quote(asked.options[0]) if asked.options else "TEXT"
        yield f"chargehand mission answer {state.id} {answer}"
    elif state.status == "waiting":
        tasks = state.plan.tasks.values()
        waiting = [run.mission for known in tasks if known.end is None for run in known.current]
        if state.plan.wanted:
            waiting = [each.mission for each in state.plan.planners[-1:]]
        yield from (f"chargehand mission show {each}" for each in waiting[:_SHOWN_TASKS])
    elif state.status == "paused":
        yield f"chargehand mission resume {state.id}"
    else:
        yield f"chargehand mission watch {state.id}"
    yield f"chargehand mission plan {state.id}"


def _commands_after_plan(state: MissionState) -> Iterator[str]:
    """Yield the commands that make sense once a plan ended before all of its tasks were done."""
    mission = f"chargehand mission {{}} {state.id}"
    cause = mission_cause(state)
    if state.status == "cancelled" or (state.status == "failed" and cause is not None and cause.kind in RESUMED):
        yield mission.format("resume")
    elif state.status == "exhausted":
        yield mission.format("continue") + " TEXT"
    if is_part_of_plan(state):
        yield mission.format("promote") + "  # exports the merged tasks"
    yield mission.format("plan")


def _commands_to_settle(state: MissionState) -> Iterator[str]:
    mission = f"chargehand mission {{}} {state.id}"
    cause = mission_cause(state)
    if was_rolled_back(state):
        yield mission.format("promote") + "  # promotes it again"
    elif state.status == "promoted":
        yield from _commands_after_promotion(state)
    # The worker first: it continues by itself once the quota is back; an answer only makes it try earlier.
    elif state.waits_for_quota is not None:
        yield "chargehand worker"
        yield mission.format("answer") + ' "go on"'
    elif (state.open_question is not None or state.needs_person) and state.status in ("waiting", "paused"):
        asked = state.open_question
        answer = shlex.quote(asked.options[0]) if asked is not None and asked.closed else "TEXT"
        yield mission.format("answer") + f" {answer}" if asked else mission.format("resume")
    elif any(reason.code == "failing_test_added" for reason in state.reasons):
        # A failing test was requested: it can never be green, so it is applied by hand.
        yield mission.format("diff") + " | git apply"
        yield 'chargehand run "make the new tests pass"  # once they are committed'
    elif state.status == "waiting":
        yield mission.format("promote") + " --reason …"
    elif state.status in ("paused", "cancelled") or (
        state.status == "failed" and cause is not None and cause.kind in RESUMED
    ):
        yield mission.format("resume")
    elif state.status in ("planned", "running", "refused", "exhausted"):
        ended = state.status in ("refused", "exhausted")
        yield mission.format("continue") + " TEXT" if ended else mission.format("watch")


def _commands_after_promotion(state: MissionState) -> Iterator[str]:
    branch = exported_branch(state)
    if any(each.state != "done" for each in state.deliveries.values() if each.commit == state.commit):
        yield f"chargehand mission promote {state.id}  # delivers it again"
    # The branch of an issue's mission is in a clone of ours: its request is merged at the forge.
    elif state.request is not None and state.request.issue is not None:
        return
    elif branch is not None and (state.applied is None or state.applied.state != "done"):
        yield f"git merge {branch}"


def _commands_to_inspect(state: MissionState, failures: tuple[FailureDocument, ...]) -> Iterator[str]:
    # A role that changes no files leaves no result in its workspace; after a roll-back there is no result either.
    if not state.checkpoints or ended_with_report(state) or was_rolled_back(state):
        return
    yield f"chargehand mission diff {state.id}"
    # A person cannot repeat a check that runs outside the tree or with the base's tests in it.
    checks = [check for verdict in state.verdicts for check in verdict.checks]
    own = {check.name for check in checks if not (check.outside or check.base_tests)}
    for failure in failures:
        if failure.kind == "check" and failure.name in own:
            yield f"chargehand exec --mission {state.id} -- sh -c {shlex.quote(failure.name)}"
            return
