"""Helpers to inspect made-up changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chargehand.checks.areas import Areas
from chargehand.checks.inspection import inspect
from chargehand.checks.trees import MemoryTrees
from chargehand.core.records import Finding

Files = Mapping[str, str | bytes]


def findings(
    old: Files, new: Files, *, modes: Mapping[str, int] | None = None, **areas: Any
) -> tuple[Finding, ...]:
    """Inspect the change from `old` to `new`, given as path to content."""
    trees = MemoryTrees()
    base, tree = trees.add(old), trees.add(new, modes=modes)
    return inspect(trees.changes(base, tree), trees, base, Areas(**areas))


def rules(old: Files, new: Files, **options: Any) -> list[tuple[str, str, str]]:
    """Return (rule, severity, path) of each finding, without repetitions."""
    return list(dict.fromkeys((f.rule, f.severity, f.path) for f in findings(old, new, **options)))


def weakened(old: str | None, new: str | None, path: str = "tests/test_a.py") -> list[tuple[str, str]]:
    """Return (rule, severity) for one changed file; `None` means that the file is missing."""
    before = {} if old is None else {path: old}
    after = {} if new is None else {path: new}
    return [(rule, severity) for rule, severity, _ in rules(before, after)]
