"""Decides how an attempt, and possibly its mission, ends, from the attempt's result and verdict.

Nothing here runs anything: each function takes records and returns an end or findings, so the same result always
ends the same way. First come the ends of any attempt, then the requirements of roles in addition to green checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from chargehand.agents.roles import NO_ROLE, Role, parse_role
from chargehand.checks.execution import CheckOutput
from chargehand.checks.paths import is_test_path
from chargehand.checks.ran_tests import RanTests
from chargehand.core.attempt_events import ReportMade, RoleChosen
from chargehand.core.codec import decode_as
from chargehand.core.errors import NotFoundError, StoreError
from chargehand.core.records import (
    AttemptStatus,
    Change,
    CheckResult,
    Finding,
    MissionRequest,
    MissionStatus,
    Reason,
    Verdict,
)
from chargehand.core.text import printable, shown_path
from chargehand.missions.attempt.result import AttemptResult
from chargehand.missions.causes import FAILING_TEST
from chargehand.store.store import Store
from chargehand.workspace.depot import Depot

# The prefix of the name of a check that ran with the base's tests.
BASE_TESTS = "base's tests: "
NO_TESTS = "no_tests_ran"
# The rule of the finding that names failures which the base has too.
KNOWN_FAILURES = "known_failures"
_CHECK_REASONS = {
    "no_tests_ran": "no test ran",
    "tests_failed": "tests failed",
    "collection_error": "tests could not be collected",
    "no_test_failed": "it failed although no test did, for example because a test file cannot be loaded",
    "exit_code_disagrees": "its exit code contradicts its own report",
    "no_report": "it left no readable report",
    "usage_error": "the command was used incorrectly",
    "command_not_found": "the command was not found",
    "not_executable": "the command is not executable",
    "timed_out": "it exceeded its time limit and was killed",
}


class AttemptEnd(Struct, frozen=True, kw_only=True):
    """The end of an attempt, and the mission's status if it is the last."""

    status: AttemptStatus
    mission: MissionStatus
    reasons: tuple[Reason, ...]


def _refuse(*reasons: Reason) -> AttemptEnd:
    return AttemptEnd(status="refused", mission="refused", reasons=reasons)


def _ask_person(*reasons: Reason) -> AttemptEnd:
    return AttemptEnd(status="succeeded", mission="waiting", reasons=reasons)


def _reasons(findings: Iterable[Finding]) -> tuple[Reason, ...]:
    return tuple(Reason(code=found.rule, message=found.text) for found in findings)


def judge_result(
    result: AttemptResult, *, base_tree: str, partial: bool, role: Role = NO_ROLE
) -> AttemptEnd | None:
    """Return the end of an attempt that can be judged without checks, `None` if they must decide.

    The result of a role that changes nothing is its report; if it changed files anyway, it is refused.
    """
    # Changes discarded by inspection come first: whatever the agent claims, nothing of its work is left.
    if result.discarded:
        return _refuse(*_reasons(result.discarded))
    # Promoting without a full inspection would let through the very changes that inspection must stop.
    if result.degraded:
        return _refuse(Reason(code="inspection_incomplete", message=result.degraded))
    if result.outcome.claim != "done":
        reason = Reason(code=result.outcome.code, message=result.outcome.reason)
        match result.outcome.claim:
            case "timed_out":
                time = Reason(code="time", message=reason.message)
                return AttemptEnd(status="timed_out", mission="exhausted", reasons=(time,))
            case "exhausted":
                return AttemptEnd(status="failed", mission="exhausted", reasons=(reason,))
        return AttemptEnd(status="failed", mission="failed", reasons=(reason,))
    if not role.writes:
        wrong = find_missing_report(result, role, base_tree)
        if wrong:
            return _refuse(*(Reason(code=found.rule, message=found.message) for found in wrong))
        message = f"{role.output} by the {role.name}"
        return AttemptEnd(
            status="succeeded", mission="promoted", reasons=(Reason(code="report", message=message),)
        )
    if result.reverted and not (partial and result.tree != base_tree):
        return _refuse(
            *(Reason(code=each.rule, message=f"{shown_path(each.path)} was reverted") for each in result.reverted)
        )
    if result.tree == base_tree:
        # Writes to ignored places, such as a submodule, are reported in addition.
        ignored = _reasons(found for found in result.findings if found.severity == "warning")
        message = "the agent reported success and changed nothing"
        return _refuse(Reason(code="no_change", message=message), *ignored)
    return None


def judge_verdict(verdict: Verdict) -> AttemptEnd:
    """Return the consequence of a verdict: promote, ask a person, or refuse."""
    if verdict.status == "missing" and verdict.checks:
        unjudged: tuple[Reason, ...] = ()
        if verdict.elsewhere:
            message = (
                f"the checks loaded {_name_some(verdict.elsewhere)} in place of the changed code; let "
                "project.setup install the project in editable mode (pip install -e .)"
            )
            unjudged = (Reason(code="loaded_elsewhere", message=message),)
        # Unless a finding already says so.
        elif not any(found.rule in ("setup_offline", "setup_missing") for found in verdict.findings):
            message = f"the checks passed, but no check ran the changed code ({_name_some(verdict.unread or ())})"
            unjudged = (Reason(code="change_unread", message=message),)
        return _ask_person(*unjudged, *_reasons(verdict.needs_person))
    if verdict.status == "missing":
        message = "no checks are configured or were found, so nothing shows that the change is good"
        return _ask_person(Reason(code="checks_missing", message=message))
    if verdict.status == "degraded":
        message = "inspection of the tree did not finish in time"
        return _refuse(Reason(code="inspection_incomplete", message=message))
    if not verdict.is_good:
        failed = []
        for check in verdict.checks:
            if check.status != "passed" and not check.base_tests:
                why = _CHECK_REASONS.get(check.reason) or check.reason or check.status
                why = f"ended with exit code {check.exit_code}" if check.reason == "exit_code" else why
                failed.append(Reason(code=f"check_{check.status}", message=f"{check.name}: {why}"))
        errors = [found for found in verdict.findings if found.severity in ("error", "critical")]
        # The first reason decides which remedy is named, and no further attempt helps a check that cannot run.
        blocked = [found for found in errors if found.rule == "checks_blocked"]
        others = [found for found in errors if found.rule != "checks_blocked"]
        return _refuse(*_reasons(blocked), *failed, *_reasons(others))
    if verdict.needs_person:
        return _ask_person(*_reasons(verdict.needs_person))
    return AttemptEnd(status="succeeded", mission="promoted", reasons=())


def retry_known_failures(verdict: Verdict) -> AttemptEnd | None:
    """Return the refusal of a tree with unaccepted known failures, for an attempt that is not the last.

    Fixing them may have been the request. At the last attempt a person decides. `None` for any other verdict.
    """
    known = [found for found in verdict.needs_person if found.rule == KNOWN_FAILURES]
    if verdict.status != "no_worse" or len(known) < len(verdict.needs_person):
        return None
    return _refuse(*(Reason(code=found.rule, message=found.message) for found in known)) if known else None


def _name_some(paths: Sequence[str]) -> str:
    shown = ", ".join(shown_path(path) for path in paths[:_NAMED])
    return shown if len(paths) <= _NAMED else f"{shown} and {len(paths) - _NAMED} more"


def load_ran_tests(store: Store, checks: Sequence[CheckResult]) -> tuple[RanTests, ...]:
    """Return the tests that ran in checks, as recorded; runs with the base's tests have the same names."""
    names = [_load_names(store, check.ran) for check in checks]
    return tuple(
        RanTests(check=check.name.removeprefix(BASE_TESTS), names=known, count=check.tests)
        for check, known in zip(checks, names, strict=True)
    )


def _load_names(store: Store, artifact: str | None) -> tuple[str, ...] | None:
    if artifact is None:
        return None
    try:
        return decode_as(store.artifacts.get(artifact), tuple[str, ...])
    except (NotFoundError, StoreError, ValueError):  # removed by `gc`, or damaged: then it is unknown
        return None


def person_may_promote(verdict: Verdict) -> bool:
    """Return whether a person's approval suffices for a tree: never against its own checks or an error in it.

    A person may approve a tree without checks, a changed check surface, failures that the base has too, flaky
    tests, and intentionally changed tests, so that the base's version of them fails.
    """
    # The base's tests may fail if the request is to change their assertions; the tree's own may not.
    own = (check for check in verdict.checks if not check.base_tests)
    wrong = any(found.severity in ("error", "critical") for found in verdict.findings)
    if verdict.status == "degraded":
        return False
    return not wrong and (verdict.is_good or all(check.status == "passed" for check in own))


# --- roles: required results, as findings that the agent reads in its next attempt's report

_RECORDS = frozenset({"decisions", "decision-records", "adr", "adrs"})
_DOCUMENTS = (".md", ".rst", ".adoc", ".txt")
_FEWEST_WORDS = 40
_LARGEST_RECORD_BYTES = 1 << 20
_FAILED = ("tests_failed", "exit_code")
_NAMED = 5
_NOWHERE = "."
_SHOWN_CHARACTERS = 4_000


def load_role(store: Store, request: MissionRequest) -> Role:
    """Return a mission's role from its file at request time; raises `ConfigError`, `StoreError`."""
    if not request.role or request.role_text is None:
        return NO_ROLE
    return parse_role(request.role, store.artifacts.get(request.role_text).decode(), place=request.role_from)


def role_event(request: MissionRequest, role: Role) -> RoleChosen:
    """Return the event that names a mission's role, agent and models."""
    assert request.role_text is not None
    return RoleChosen(
        role=role.name,
        digest=request.role_text,  # artifacts are named by the SHA-256 of their content
        artifact=request.role_text,
        origin=request.role_from,
        agent=request.agent,
        models=tuple(dict.fromkeys((*((request.model,) if request.model else ()), *request.fallback))),
        writes=role.writes,
        why=request.why,
    )


def report_event(store: Store, role: Role, attempt: str, artifact: str | None) -> tuple[ReportMade, ...]:
    """Return the event of an attempt's report, () without a report."""
    if artifact is None:
        return ()
    text = printable(store.artifacts.get(artifact).decode(errors="replace"))
    return (
        ReportMade(
            attempt=attempt, role=role.name, kind=role.output, artifact=artifact, text=text[:_SHOWN_CHARACTERS]
        ),
    )


def find_missing_report(result: AttemptResult, role: Role, base_tree: str) -> tuple[Finding, ...]:
    """Return the problems of a report-only role's result."""
    changed = [change.path for change in result.changes] or [each.path for each in result.reverted]
    if result.tree != base_tree or changed:
        path = changed[0] if changed else "."
        message = f"the role {role.name} must not change files, and {shown_path(path)} was changed"
        return (Finding(rule="role_wrote", severity="error", path=path, message=message),)
    if result.report is None:
        message = f"the role {role.name} ends with a {role.output}, and the agent wrote nothing"
        return (Finding(rule="report_empty", severity="error", path=".", message=message),)
    return ()


def find_missing_record(role: Role, depot: Depot, changes: Sequence[Change]) -> tuple[Finding, ...]:
    """Return the finding that a required decision record is missing, if so.

    A record is a new document in a directory of decision records, with a heading and at least 40 words. The
    quality of the decision is not checked.
    """
    if role.must_add != "decision_record":
        return ()
    new = []
    for change in changes:
        *directories, name = change.path.lower().split("/")
        is_record = not _RECORDS.isdisjoint(directories) and name.endswith(_DOCUMENTS)
        if is_record and change.kind == "added":
            new.append(change)
    for blob in (change.new_id for change in new if change.new_id is not None):
        text = depot.read_blob(blob, limit=_LARGEST_RECORD_BYTES).decode(errors="replace").strip()
        lines = text.splitlines()
        # A heading of Markdown (`#`), AsciiDoc (`=`), or underlined as in reStructuredText.
        underlined = len(lines) > 1 and len(lines[1]) >= 3 and not lines[1].strip("=-~ ")
        headed = bool(lines) and (lines[0].startswith(("# ", "= ")) or underlined)
        if headed and len(text.split()) >= _FEWEST_WORDS:
            return ()
    short = f"has no heading, or fewer than {_FEWEST_WORDS} words"
    why = f"{shown_path(new[0].path)} {short}" if new else "there is none"
    message = f"the role must add a decision record (such as docs/decisions/0001-title.md): {why}"
    return (_problem("no_decision_record", message),)


def judge_failing_test(verdict: Verdict) -> AttemptEnd | None:
    """Return the end of a task to add a failing test, `None` if the test is missing."""
    found = next((found for found in verdict.findings if found.rule == FAILING_TEST), None)
    if found is None:
        return None
    message = f"{found.message}; it is not promoted before a developer makes it pass"
    return _ask_person(Reason(code="failing_test_added", message=message))


_SILENT = CheckOutput(tail="")


def require_failing_test(
    verdict: Verdict, base: Verdict, outputs: Mapping[str, CheckOutput], changes: Sequence[Change]
) -> Verdict:
    """Return the verdict with a finding on whether the change adds a failing test.

    The tree is the base plus the change of tests, so a test that fails here but in no check of the base fails
    because the tested behaviour is missing. `outputs` names the failing tests if the runner does.
    """
    own = [check for check in verdict.checks if not check.base_tests]
    # Tests ran and some failed: a check that could not even start shows nothing about a test.
    failing = [check for check in own if check.status == "failed" and check.reason in _FAILED and check.tests]
    problem = _find_test_problem(own, failing, base, outputs, changes)
    if problem is not None:
        return replace(verdict, status="red", findings=(*verdict.findings, problem))
    names = [test.name for check in failing for test in outputs.get(check.name, _SILENT).failing]
    which = ": " + ", ".join(names[:_NAMED]) if names else ""
    message = f"{failing[0].name} passes on the base and fails with the new tests{which}"
    found = Finding(rule="failing_test_added", severity="info", path=_NOWHERE, message=message)
    return replace(verdict, findings=(*verdict.findings, found))


def _problem(rule: str, message: str) -> Finding:
    return Finding(rule=rule, severity="error", path=_NOWHERE, message=message)


def _find_test_problem(
    own: Sequence[CheckResult],
    failing: Sequence[CheckResult],
    base: Verdict,
    outputs: Mapping[str, CheckOutput],
    changes: Sequence[Change],
) -> Finding | None:
    """Return why no failing test was added, `None` if one was."""
    tests = [change.path for change in changes if change.kind != "deleted" and is_test_path(change.path)]
    if not tests:
        return _problem(
            "no_failing_test", "the role must add a test that fails, and no test file was added or changed"
        )
    before = {check.name: check for check in base.checks}
    for check in own:
        if check not in failing and _passed_before(check, before):
            if check.reason == "collection_error":
                return _problem(
                    "no_failing_test",
                    f"{check.name}: the new tests cannot be collected, which shows nothing; import missing "
                    "code inside the test, so that the test itself fails",
                )
            return _problem(
                "role_broke_checks",
                f"{check.name} passes on the base and ended with {check.reason or check.status}",
            )
    if not failing:
        return _problem(
            "no_failing_test", "every test passes, or none was seen to run: a new test must fail on the base"
        )
    if not any(_passed_before(check, before) for check in failing):
        message = (
            f"{failing[0].name} fails on the base already, so new failures cannot be distinguished from old ones"
        )
        return _problem("tests_untold", message)
    return _find_unrelated_failures(failing, outputs, tests)


def _passed_before(check: CheckResult, before: Mapping[str, CheckResult]) -> bool:
    """Return whether a check that does not pass now did on the base, or had no test to run there."""
    known = before.get(check.name)
    return (
        check.status != "passed"
        and known is not None
        and (known.status == "passed" or known.reason == "no_tests_ran")
    )


def _find_unrelated_failures(
    failing: Sequence[CheckResult], outputs: Mapping[str, CheckOutput], tests: Sequence[str]
) -> Finding | None:
    """Return why failing tests do not count: old tests, or broken setup, as far as the runner reports."""

    def is_of(test: str, path: str) -> bool:
        # A test is named as `module.Class::name`; some end of the path without suffix begins its module.
        owner = test.partition("::")[0].split(".")
        module = path.rpartition(".")[0].split("/")
        return any(module[-count:] == owner[:count] for count in range(1, len(owner) + 1))

    failed = [test for check in failing for test in outputs.get(check.name, _SILENT).failing]
    others = [test.name for test in failed if not any(is_of(test.name, path) for path in tests)]
    if others and len(others) == len(failed):
        return _problem("no_failing_test", f"only existing tests fail: {', '.join(others[:_NAMED])}")
    if others:
        return _problem("role_broke_checks", f"tests fail that were not changed: {', '.join(others[:_NAMED])}")
    outside = [test.name for test in failed if test.outside]
    if not outside:
        return None
    return _problem(
        "no_failing_test",
        f"tests that failed in their setup or teardown, which shows nothing: {', '.join(outside[:_NAMED])}; call "
        "missing code inside the test, so that it fails itself",
    )
