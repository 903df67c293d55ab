"""Judgement, digests of plans, reports, and the parsing of JUnit XML."""

from __future__ import annotations

import json

import pytest

from chargehand.checks.execution import CheckOutput, CheckPlan, judge, report
from chargehand.checks.junit import FailingTest, ReportError, read_junit
from chargehand.core.records import CheckResult, CheckStatus, Finding, Reverted, Severity, Verdict


def check(status: CheckStatus, name: str = "c") -> CheckResult:
    return CheckResult(name=name, status=status, seconds=1.0, exit_code=1, reason="exit_code")


def found(severity: Severity, *, person: bool = False) -> Finding:
    return Finding(rule="r", severity=severity, path="p", message="m", needs_person=person)


def test_a_verdict_without_checks_is_missing_unless_explicit():
    assert judge((), (), explicit_none=False) == "missing"
    assert judge((), (), explicit_none=True) == "green"
    assert judge((check("passed"),), (), explicit_none=False) == "green"


@pytest.mark.parametrize("status", ["failed", "timed_out", "missing", "error"])
def test_a_check_that_did_not_pass_is_red(status: CheckStatus):
    assert judge((check("passed"), check(status)), (), explicit_none=False) == "red"


@pytest.mark.parametrize(
    ("severity", "status"), [("critical", "red"), ("error", "red"), ("warning", "green"), ("info", "green")]
)
def test_findings_act_by_their_severity(severity: Severity, status: str):
    for person in (False, True):
        assert judge((check("passed"),), (found(severity, person=person),), explicit_none=False) == status
    assert judge((), (found(severity),), explicit_none=True) == status


def test_the_digest_changes_with_whatever_changes_the_judgement():
    plan = CheckPlan(commands=("a", "b"), acceptance=(("x", "1"), ("y", "2")))
    same = CheckPlan(commands=("a", "b"), acceptance=(("y", "2"), ("x", "1")), seconds_each=900)
    assert plan.digest() == same.digest() == CheckPlan(commands=("a", "b"), acceptance=plan.acceptance).digest()
    others = [
        CheckPlan(commands=("a",), acceptance=plan.acceptance),
        CheckPlan(commands=("b", "a"), acceptance=plan.acceptance),
        CheckPlan(commands=("a b",), acceptance=plan.acceptance),
        CheckPlan(commands=plan.commands, acceptance=plan.acceptance, seconds_each=1),
        CheckPlan(commands=plan.commands, acceptance=(("x", "1"), ("y", "3"))),
    ]
    assert len({plan.digest(), *(other.digest() for other in others)}) == 1 + len(others)


def test_a_report_lists_failures_in_printable_text():
    verdict = Verdict(
        tree="t1",
        scope="attempt",
        status="red",
        checks=(check("passed", "good"), check("failed", "bad"), check("missing", "none")),
        findings=(Finding(rule="r", severity="error", path="a\udcff\n", message="m\x1b[31m"),),
    )
    test = FailingTest(name="t::a", message="why", file="a.py", line=3)
    outputs = {"bad": CheckOutput(tail="the end", failing=(test,))}
    document = json.loads(report(verdict, outputs, reverted=(Reverted(path="b\udcff", rule="r"),)).encode())
    assert (document["schema"], document["tree"], document["status"], document["passed"]) == (
        1,
        "t1",
        "red",
        ["good"],
    )
    bad, none = document["failing"]
    assert (bad["name"], bad["output"], bad["reason"]) == ("bad", "the end", "exit_code")
    assert bad["failing_tests"] == [
        {"name": "t::a", "message": "why", "file": "a.py", "line": 3, "outside": False}
    ]
    assert (none["status"], none["output"], none["failing_tests"]) == ("missing", "", [])
    assert document["findings"][0]["path"] == "a\\xff\\x0a"
    assert document["findings"][0]["message"] == "m"
    assert document["reverted"] == [{"path": "b\\xff", "rule": "r"}]


SUITE = "<testsuites><testsuite>{}</testsuite></testsuites>"


def read(cases: str):
    return read_junit(SUITE.format(cases).encode())


def test_junit_counts():
    counts = read(
        "<testcase name='a'/><testcase name='b'><skipped message='x'/></testcase>"
        "<testcase classname='m' name='c' file='f.py' line='7'><failure message='no'>text</failure></testcase>"
        "<testcase name='d'><error message='collection failure'>x/y.py:12: in f\nz.py:5: E\n</error></testcase>"
    )
    assert (counts.ran, counts.skipped, counts.bad, counts.collection_errors) == (2, 1, 2, 1)
    first, second = counts.failing
    assert first == FailingTest(name="m::c", message="no", file="f.py", line=7)
    assert (second.file, second.line) == ("z.py", 5)
    around = read(
        "<testcase name='e'><error message='failed on setup with &quot;E&quot;'>f.py:1: E</error></testcase>"
    )
    assert (first.outside, around.failing[0].outside, around.ran) == (False, True, 1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not xml",
        b"<other/>",
        b"<testsuite>",
        b"<!DOCTYPE t [<!ENTITY a 'b'>]><testsuite>&a;</testsuite>",
        "<?xml version='1.0' encoding='utf-16'?><!DOCTYPE t><testsuite/>".encode("utf-16"),
        b"<testsuite>" + b"<a>" * 100 + b"</a>" * 100 + b"</testsuite>",
        b"<testsuite>" + b" " * 32_000_000 + b"</testsuite>",
    ],
)
def test_an_invalid_junit_report_is_refused(content: bytes):
    with pytest.raises(ReportError):
        read_junit(content)
    assert read("").ran == 0


def test_parsed_reports_of_many_failures_are_limited_in_size():
    counts = read("<testcase name='a'><failure message='%s'/></testcase>" % ("x" * 9000) * 200)
    assert (counts.bad, len(counts.failing), len(counts.failing[0].message)) == (200, 50, 2000)
