"""What decides whether a tree is good: inspection of its changes, and the project's own checks."""

from chargehand.checks._areas import Areas
from chargehand.checks._cache import InspectionCache, LayeredCache, MemoryCache
from chargehand.checks._detect import Detected, detect_checks, detect_setup
from chargehand.checks._formatters import Formatter, detect_formatters, formatted_by
from chargehand.checks._inspect import Inspection, Limits, base_tests_tree_plan, examine, inspect
from chargehand.checks._junit import FailingTest
from chargehand.checks._paths import is_test_path
from chargehand.checks._plan import CheckPlan, judge
from chargehand.checks._reader import MemoryTrees, TreeReader
from chargehand.checks._report import FailingCheck, Report, report
from chargehand.checks._run import CheckOutput, OnResult, run_checks

__all__ = [
    "Areas",
    "CheckOutput",
    "CheckPlan",
    "Detected",
    "FailingCheck",
    "FailingTest",
    "Formatter",
    "Inspection",
    "InspectionCache",
    "LayeredCache",
    "Limits",
    "MemoryCache",
    "MemoryTrees",
    "OnResult",
    "Report",
    "TreeReader",
    "base_tests_tree_plan",
    "detect_checks",
    "detect_formatters",
    "detect_setup",
    "examine",
    "formatted_by",
    "inspect",
    "is_test_path",
    "judge",
    "report",
    "run_checks",
]
