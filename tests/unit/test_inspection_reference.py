"""The page of rules names every rule with its severity in the code, and no other rule."""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/inspection.md").read_text()
SEVERITIES = ("info", "warning", "error", "critical")
NO_RULES = {"pack", *SEVERITIES}
"""Words of git that precede a word which is also a severity."""
BY_FUNCTION = {"_ask": "warning", "_error": "error", "_warning": "warning"}


def documented() -> Mapping[str, set[str]]:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE)
    assert len(rows) == len({rule for rule, _ in rows}), "each rule once"
    return {rule: {s for s in SEVERITIES if re.search(rf"\b{s}\b", severity)} for rule, severity in rows}


def made() -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for package in ("checks", "workspace"):
        for path in sorted((ROOT / "src/chargehand" / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                for rule, severity in stated(node):
                    found[rule].add(severity)
    return found


def stated(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each rule with its severity in a call or tuple: by keyword, by position, or by the function."""
    if isinstance(node, ast.Tuple):
        yield from beside(node.elts)
    elif isinstance(node, ast.Call):
        yield from beside(node.args)
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        if {"rule", "severity"} <= set(named):
            rules, severities = constants(named["rule"]), constants(named["severity"])
            yield from ((rule, severity) for rule in rules for severity in severities)
        function = ast.unparse(node.func).rpartition(".")[2]
        if function in BY_FUNCTION and node.args:
            yield from ((rule, BY_FUNCTION[function]) for rule in constants(node.args[0]))


def beside(parts: list[ast.expr]) -> Iterator[tuple[str, str]]:
    for first, second in itertools.pairwise(parts):
        for severity in constants(second):
            if severity in SEVERITIES:
                yield from (
                    (rule, severity)
                    for rule in constants(first)
                    if re.fullmatch(r"[a-z]+(_[a-z]+)*", rule) and rule not in NO_RULES
                )


def constants(node: ast.expr) -> list[str]:
    if isinstance(node, ast.IfExp):
        return constants(node.body) + constants(node.orelse)
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def test_the_page_names_every_rule_with_its_severity() -> None:
    told, known = documented(), dict(made())
    # The areas pass their rule as a variable: both of its values are errors.
    for rule in ("area_forbidden", "area_outside", "config_protected"):
        assert f'"{rule}"' in (ROOT / "src/chargehand/checks/areas.py").read_text()
        known[rule] = {"error"}
    assert told == {rule: severities for rule, severities in known.items() if rule}


def test_a_rule_or_severity_that_is_new_in_the_code_is_seen() -> None:
    for source, pair in [
        ("_error('new_rule', path, 'x')", ("new_rule", "error")),
        ("Finding(rule='new_rule', severity='info' if a else 'warning')", ("new_rule", "info")),
        ("self.add('new_rule', 'critical', path, 'x')", ("new_rule", "critical")),
        ("('new_rule', 'error', 'message')", ("new_rule", "error")),
    ]:
        found = [each for node in ast.walk(ast.parse(source)) for each in stated(node)]
        assert pair in found


def test_the_page_marks_the_rules_that_need_a_person() -> None:
    needing = {
        rule
        for rule, severity in re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE)
        if "person" in severity
    }
    assert needing == {
        *(
            "area_protected",
            "attributes_stale",
            "check_surface",
            "check_suppressed",
            "dependency_source",
            "entry_filter",
            "runs_later",
            "unmeasured_code",
        ),
        *("tests_lost", "tests_unmeasured", "tests_weakened", "test_deleted", "test_removed", "test_skipped"),
    }
