"""The progress of a verdict on the base decides which of several setups is kept."""

from __future__ import annotations

from itertools import pairwise

from chargehand.core.records import CheckResult, CheckStatus, Verdict
from chargehand.missions.results.tree_judge import measure_progress


def verdict(status: CheckStatus, reason: str = "") -> Verdict:
    check = CheckResult(name="python -m pytest -q", status=status, seconds=1, reason=reason)
    return Verdict(tree="t", scope="base", status="red", checks=(check,))


def test_a_check_gets_from_missing_over_unloaded_and_red_to_green() -> None:
    stages = [
        verdict("missing", "command_not_found"),
        verdict("failed", "collection_error"),
        verdict("failed", "tests_failed"),
        verdict("passed"),
    ]
    assert all(measure_progress(before) < measure_progress(after) for before, after in pairwise(stages))
