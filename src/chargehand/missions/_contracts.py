"""What a role has to leave, held against what is there: typed findings, for the agent to hear what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from chargehand.agents.roles import NO_ROLE, Role, parse_role
from chargehand.checks._paths import is_test_path
from chargehand.checks._run import CheckOutput
from chargehand.core.agent_events import ReportMade, RoleChosen
from chargehand.core.records import Change, CheckResult, Finding, MissionRequest, Verdict
from chargehand.core.text import printable, shown_path
from chargehand.store._store import Store
from chargehand.workspace._depot import Depot

FAILING_TEST = "failing_test_added"
_RECORDS = frozenset({"decisions", "decision-records", "adr", "adrs"})
_DOCUMENTS = (".md", ".rst", ".adoc", ".txt")
_FEWEST_WORDS = 40
_LARGEST_RECORD = 1 << 20
_FAILED = ("tests_failed", "exit_code")
_NAMED = 5
_NOWHERE = "."


def role_of(store: Store, request: MissionRequest) -> Role:
    """Return the role of a mission as its file was when it was asked for; raises `ConfigError`, `StoreError`."""
    if not request.role or request.role_text is None:
        return NO_ROLE
    return parse_role(request.role, store.artifacts.get(request.role_text).decode(), place=request.role_from)


def missing_record(role: Role, depot: Depot, changes: Sequence[Change]) -> tuple[Finding, ...]:
    """Return what says that no decision record was added; nothing where one was, or need not be.

    A record is a new document in a directory of decision records, with a heading and at least 40 words. Whether
    the decision is a good one is not looked at.
    """
    if role.must_add != "decision_record":
        return ()
    new = [change for change in changes if change.kind == "added" and _is_record(change.path)]
    if any(change.new_id is not None and _has_text(depot, change.new_id) for change in new):
        return ()
    short = f"has no heading, or fewer than {_FEWEST_WORDS} words"
    why = f"{shown_path(new[0].path)} {short}" if new else "there is none"
    return (
        Finding(
            rule="no_decision_record",
            severity="error",
            path=_NOWHERE,
            message=f"the role has to add a decision record (such as docs/decisions/0001-title.md): {why}",
        ),
    )


def _is_record(path: str) -> bool:
    *directories, name = path.lower().split("/")
    return not _RECORDS.isdisjoint(directories) and name.endswith(_DOCUMENTS)


def _has_text(depot: Depot, blob: str) -> bool:
    text = depot.read_blob(blob, limit=_LARGEST_RECORD).decode(errors="replace").strip()
    lines = text.splitlines()
    underlined = len(lines) > 1 and len(lines[1]) >= 3 and not lines[1].strip("=-~ ")
    return bool(lines) and (lines[0].startswith(("# ", "= ")) or underlined) and len(text.split()) >= _FEWEST_WORDS


def with_failing_test(
    verdict: Verdict, base: Verdict, outputs: Mapping[str, CheckOutput], changes: Sequence[Change]
) -> Verdict:
    """Return the verdict with what says whether the change adds a test that fails.

    The tree is the base and the change of tests, so a test that fails here and in no check of the base fails for
    want of what it tests. `outputs` name the failing tests where the runner does.
    """
    problem = _problem(verdict, base, outputs, changes)
    if problem is not None:
        return replace(verdict, status="red", findings=(*verdict.findings, problem))
    failing = _failing(verdict)
    names = [test.name for check in failing for test in outputs.get(check.name, _SILENT).failing]
    which = ": " + ", ".join(names[:_NAMED]) if names else ""
    said = f"{failing[0].name} passes on the base and fails with the new tests{which}"
    found = Finding(rule="failing_test_added", severity="info", path=_NOWHERE, message=said)
    return replace(verdict, findings=(*verdict.findings, found))


_SILENT = CheckOutput(tail="")


def _failing(verdict: Verdict) -> list[CheckResult]:
    """Return the checks in which tests ran and some failed."""
    return [check for check in verdict.checks if not check.base_tests and _tests_failed(check)]


def _tests_failed(check: CheckResult) -> bool:
    return check.status == "failed" and check.reason in _FAILED and bool(check.tests)


def _problem(
    verdict: Verdict, base: Verdict, outputs: Mapping[str, CheckOutput], changes: Sequence[Change]
) -> Finding | None:
    """Return why no failing test was added, `None` where one was."""
    tests = [change.path for change in changes if change.kind != "deleted" and is_test_path(change.path)]
    if not tests:
        return _no_test("the role has to add a test that fails, and no test file was added or changed")
    before = {check.name: check for check in base.checks}
    own = [check for check in verdict.checks if not check.base_tests]
    failing = _failing(verdict)
    spoilt = next((check for check in own if check not in failing and _passed_before(check, before)), None)
    if spoilt is not None:
        return _spoilt(spoilt)
    if not failing:
        return _no_test("every test passes, or none was seen to run: a new test has to fail on the base")
    if not any(_passed_before(check, before) for check in failing):
        message = (
            f"{failing[0].name} fails on the base already, so the machine cannot tell whether the new test fails "
            "for its own reason"
        )
        return Finding(rule="tests_untold", severity="error", path=_NOWHERE, message=message)
    return _strangers(failing, outputs, tests) or _unfit(failing, outputs)


def _no_test(message: str) -> Finding:
    return Finding(rule="no_failing_test", severity="error", path=_NOWHERE, message=message)


def _broke(message: str) -> Finding:
    return Finding(rule="role_broke_checks", severity="error", path=_NOWHERE, message=message)


def _spoilt(check: CheckResult) -> Finding:
    if check.reason == "collection_error":
        return _no_test(
            f"{check.name}: the new tests cannot be collected, which shows nothing; import what does not exist "
            "yet inside the test, so that the test itself fails"
        )
    return _broke(f"{check.name} passes on the base and ended with {check.reason or check.status}")


def _passed_before(check: CheckResult, before: Mapping[str, CheckResult]) -> bool:
    """Tell whether a check that does not pass now did on the base, or had no test to run there."""
    known = before.get(check.name)
    return (
        check.status != "passed"
        and known is not None
        and (known.status == "passed" or known.reason == "no_tests_ran")
    )


def _strangers(
    failing: Sequence[CheckResult], outputs: Mapping[str, CheckOutput], tests: Sequence[str]
) -> Finding | None:
    """Return what says that tests fail which the change did not touch, as far as the runner names them."""
    names = [test.name for check in failing for test in outputs.get(check.name, _SILENT).failing]
    others = [name for name in names if not any(_is_of(name, path) for path in tests)]
    if others and len(others) == len(names):
        return _no_test(f"only tests fail that were there before: {', '.join(others[:_NAMED])}")
    if others:
        return _broke(f"tests fail that were not touched: {', '.join(others[:_NAMED])}")
    return None


def _unfit(failing: Sequence[CheckResult], outputs: Mapping[str, CheckOutput]) -> Finding | None:
    """Return what says that a test broke before or after its own words, as far as the runner tells that."""
    broken = [test.name for check in failing for test in outputs.get(check.name, _SILENT).failing if test.outside]
    if not broken:
        return None
    return _no_test(
        f"tests that broke in what is set up or taken down around them, which shows nothing: "
        f"{', '.join(broken[:_NAMED])}; call what does not exist yet inside the test, so that it fails itself"
    )


def _is_of(test: str, path: str) -> bool:
    """Tell whether a test, named as `module.Class::name`, is of a file: some end of its path without suffix."""
    owner = test.partition("::")[0].split(".")
    module = path.rpartition(".")[0].split("/")
    return any(module[-count:] == owner[:count] for count in range(1, len(owner) + 1))


_SHOWN = 4_000


def role_chosen(request: MissionRequest, role: Role) -> RoleChosen:
    """Return what the log tells of a mission's role and of who works in it."""
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


def report_made(store: Store, role: Role, attempt: str, artifact: str | None) -> tuple[ReportMade, ...]:
    """Return what the log tells of a report that was left; nothing where there is none."""
    if artifact is None:
        return ()
    text = printable(store.artifacts.get(artifact).decode(errors="replace"))
    return (ReportMade(attempt=attempt, role=role.name, kind=role.output, artifact=artifact, text=text[:_SHOWN]),)
