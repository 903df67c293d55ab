"""From what an agent left and the verdict on it to how the attempt, and perhaps the mission, ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chargehand.agents.roles import NO_ROLE, Role
from chargehand.core.mission_events import AttemptFinished
from chargehand.core.records import AttemptStatus, CheckResult, Finding, MissionStatus, Reason, Verdict
from chargehand.core.state import MissionState
from chargehand.core.text import shown_path
from chargehand.missions._attempt import Left
from chargehand.missions._contracts import FAILING_TEST

_WORDS = {
    "no_tests_ran": "no test ran",
    "tests_failed": "tests failed",
    "collection_error": "tests could not be collected",
    "no_test_failed": "it failed though no test did, as where a file of tests cannot be loaded",
    "exit_code_disagrees": "its exit code contradicts its own report",
    "no_report": "it left no report that can be read",
    "usage_error": "the command was called wrongly",
    "command_not_found": "the command is not there",
    "not_executable": "the command cannot be executed",
    "timed_out": "it ran into its time limit and was killed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How an attempt ends, and what the mission becomes if it is the last."""

    status: AttemptStatus
    mission: MissionStatus
    reasons: tuple[Reason, ...]


def before_checks(left: Left, *, base_tree: str, partial: bool, role: Role = NO_ROLE) -> End | None:
    """Return the end of an attempt that needs no checks to be judged, `None` where they must decide.

    What comes of a role that changes nothing is its report; whatever it changed all the same refuses it.
    """
    if left.discarded:
        return _refused(_reasons(left.discarded))
    if left.degraded:
        return _refused((Reason(code="inspection_incomplete", message=left.degraded),))
    if left.outcome.claim == "timed_out":
        reason = Reason(code="time", message=left.outcome.reason)
        return End(status="timed_out", mission="exhausted", reasons=(reason,))
    if left.outcome.claim == "exhausted":
        reason = Reason(code=left.outcome.code, message=left.outcome.reason)
        return End(status="failed", mission="exhausted", reasons=(reason,))
    if left.outcome.claim == "failed":
        reason = Reason(code=left.outcome.code, message=left.outcome.reason)
        return End(status="failed", mission="failed", reasons=(reason,))
    if not role.writes:
        return _reported(left, role, base_tree)
    if left.reverted and not (partial and left.tree != base_tree):
        return _refused(tuple(_reverted(rule.path, rule.rule) for rule in left.reverted))
    if left.tree == base_tree:
        return _refused((Reason(code="no_change", message="the agent said it is done and changed nothing"),))
    return None


def _reported(left: Left, role: Role, base_tree: str) -> End:
    wrong = missed_report(left, role, base_tree)
    if wrong:
        return _refused(tuple(Reason(code=found.rule, message=found.message) for found in wrong))
    message = f"the role {role.name} ends with a {role.output}, so there was nothing to promote"
    return End(status="succeeded", mission="promoted", reasons=(Reason(code="report", message=message),))


def missed_report(left: Left, role: Role, base_tree: str) -> tuple[Finding, ...]:
    """Return what is wrong with the end of a role that changes nothing."""
    changed = [change.path for change in left.changes] or [each.path for each in left.reverted]
    if left.tree != base_tree or changed:
        path = changed[0] if changed else "."
        message = f"the role {role.name} changes nothing, and {shown_path(path)} was changed"
        return (Finding(rule="role_wrote", severity="error", path=path, message=message),)
    if left.report is None:
        message = f"the role {role.name} ends with a {role.output}, and the agent said nothing"
        return (Finding(rule="report_empty", severity="error", path=".", message=message),)
    return ()


def tests_as_asked(verdict: Verdict) -> End | None:
    """Return the end of work whose task was a test that fails, `None` where it is not there."""
    found = next((found for found in verdict.findings if found.rule == FAILING_TEST), None)
    if found is None:
        return None
    message = f"{found.message}; it is not promoted before a developer makes it pass"
    return _waiting((Reason(code="failing_test_added", message=message),))


def after_checks(verdict: Verdict) -> End:
    """Return what a verdict means: promote, ask a person, or refuse."""
    if verdict.status == "missing":
        message = "no checks are configured or were found, so nothing says that the change is good"
        return _waiting((Reason(code="checks_missing", message=message),))
    if verdict.status == "degraded":
        return _refused(
            (Reason(code="inspection_incomplete", message="inspection could not look at all of the tree in time"),)
        )
    if verdict.status != "green":
        failed = [check for check in verdict.checks if check.status != "passed"]
        reasons = tuple(
            Reason(code=f"check_{check.status}", message=f"{check.name}: {_in_words(check)}") for check in failed
        )
        errors = [found for found in verdict.findings if found.severity in ("error", "critical")]
        return _refused(reasons + _reasons(errors))
    if verdict.needs_person:
        return _waiting(_reasons(verdict.needs_person))
    return End(status="succeeded", mission="promoted", reasons=())


def end_attempts(state: MissionState, reason: Reason) -> list[AttemptFinished]:
    """Return the ends of the attempts that waited, for a person or a worker, and now never go on."""
    return [
        AttemptFinished(
            attempt=attempt.id,
            status="cancelled",
            seconds=state.seconds_of(f"attempt/{attempt.number}/"),
            reasons=(reason,),
            cost_usd=attempt.cost_usd if attempt.calls else 0.0,
            cost_known=attempt.cost_known or not attempt.calls,
        )
        for attempt in state.attempts
        if attempt.status in ("running", "lost")
    ]


def person_may_promote(verdict: Verdict) -> bool:
    """Tell whether a person's word suffices for a tree: never against its own checks or an error found in it.

    What a person may let in: a tree without checks, a changed check surface, and tests that were changed on
    purpose, so that the base's version of them fails.
    """
    own = (check for check in verdict.checks if not check.base_tests)
    wrong = any(found.severity in ("error", "critical") for found in verdict.findings)
    if verdict.status == "degraded":
        return False
    return not wrong and all(check.status == "passed" for check in own)


def _in_words(check: CheckResult) -> str:
    ended = f"ended with exit code {check.exit_code}"
    return _WORDS.get(check.reason) or (ended if check.reason == "exit_code" else check.reason or check.status)


def _refused(reasons: tuple[Reason, ...]) -> End:
    return End(status="refused", mission="refused", reasons=reasons)


def _waiting(reasons: tuple[Reason, ...]) -> End:
    return End(status="succeeded", mission="waiting", reasons=reasons)


def _reasons(findings: Iterable[Finding]) -> tuple[Reason, ...]:
    return tuple(
        Reason(code=found.rule, message=f"{shown_path(found.path)}: {found.message}") for found in findings
    )


def _reverted(path: str, rule: str) -> Reason:
    return Reason(code=rule, message=f"{shown_path(path)} was set back")
