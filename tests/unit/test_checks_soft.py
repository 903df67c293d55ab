"""Measuring tests: a fault with which the code cannot be loaded says nothing of them."""

from __future__ import annotations

from pathlib import Path

from tests.unit._local_sandbox import LocalSandbox

from chargehand.checks.execution import CheckPlan
from chargehand.checks.soft_tests import fault_seconds, measure_tests
from chargehand.checks.suites.faults import find_faults
from chargehand.core.records import CheckResult, Finding
from chargehand.sandbox.contract import Sandbox

LOADS = "LIMIT = 1\nassert LIMIT == 1\n"
TEST = "import unittest\nimport calc\n\n\nclass T(unittest.TestCase):\n    def test_it(self):\n        pass\n"
CHECK = "python3 -m unittest -q"


async def measure(place: Path, code: str, *, must_measure: bool) -> tuple[Finding, ...]:
    (place / "calc.py").write_text(code)
    (place / "test_calc.py").write_text(TEST)
    sandbox = LocalSandbox(place, environment={"PYTHONDONTWRITEBYTECODE": "1"})

    async def base() -> Sandbox:
        return sandbox

    usual = CheckResult(name=CHECK, status="passed", seconds=0.1, exit_code=0, tests=1, reason="", artifact=None)
    return await measure_tests(
        CheckPlan(commands=(CHECK,)),
        [usual],
        find_faults("calc.py", code),
        tree=sandbox,
        base=base,
        inner={},
        seconds=60.0,
        must_measure=must_measure,
    )


async def test_faults_that_keep_the_code_from_loading_measure_nothing(tmp_path: Path) -> None:
    faults = len(find_faults("calc.py", LOADS))
    (found,) = await measure(tmp_path, LOADS, must_measure=True)
    assert (found.rule, found.needs_person) == ("tests_unmeasured", True)
    assert (
        f"with {faults} of {faults} faults that were tried the code could not be built or loaded" in found.message
    )


async def test_faults_in_what_runs_measure_though_others_do_not(tmp_path: Path) -> None:
    code = LOADS + "".join(f"def f{n}():\n    return f'{n}' * {n}\n" for n in range(5))
    assert await measure(tmp_path, code, must_measure=True) == ()


def test_tests_that_were_only_added_to_are_measured_briefly() -> None:
    assert fault_seconds(120.0, must_measure=True) == 120.0
    assert fault_seconds(120.0, must_measure=False) < 30.0
    assert fault_seconds(1.0, must_measure=False) == 1.0
