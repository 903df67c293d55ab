"""Faults are small, parse, come first near lost tests, and are measured by the tests that run."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit._local_sandbox import LocalSandbox

from chargehand.checks.execution import CheckPlan
from chargehand.checks.ran_tests import RanTests
from chargehand.checks.reads import Copy, ReadObserver
from chargehand.checks.soft_tests import (
    ChangedTests,
    changed_tests,
    code_under_test,
    describe_tests,
    fault_seconds,
    leave_out_unread,
    measure_tests,
    pick_faults,
)
from chargehand.checks.suites.faults import choose_faults, find_faults, words_of
from chargehand.checks.trees import MemoryTrees
from chargehand.core.records import CheckResult, Finding
from chargehand.sandbox.contract import Sandbox

CODE = """import os


def add(a: int = 1, b=2):
    'Adds 1 + 1.'
    if (a) == 1 and not b:
        return (a) + (b)
    log('x')
    return f'{a - b}'


class T:
    def more(self, x):
        self.n += 1
        return x <= 4
"""
LOADS = "LIMIT = 1\nassert LIMIT == 1\n"
TEST = "import unittest\nimport calc\n\n\nclass T(unittest.TestCase):\n    def test_it(self):\n        pass\n"
CHECK = "python3 -m unittest -q"
RUST = """use a + b;
// a + b
let x = "1 + 2"; /* 3 + 4 */
if a == 1 && b < 10 { return true; }
foo(2)
"""
SOURCES = sorted((Path(__file__).parents[2] / "src/chargehand/checks").rglob("*.py"))


def changed(path: str, source: str) -> set[tuple[int, str]]:
    return {(fault.line, fault.after) for fault in find_faults(path, source)}


def test_faults_in_python_code() -> None:
    found = changed("calc.py", CODE)
    assert {
        (4, "def add(a: int = 2, b=2):"),
        (6, "if (a) != 1 and not b:"),
        (6, "if (a) == 2 and not b:"),
        (6, "if (a) == 1 or not b:"),
        (6, "if (a) == 1 and b:"),
        (7, "return (a) - (b)"),
        (7, "return None"),
        (8, "pass"),
        (8, "log('xx')"),
        (14, "pass"),
        (14, "self.n += 2"),
        (15, "return x > 4"),
        (15, "return x <= 5"),
    } <= found
    # No faults in docstrings or bare names: no test could notice them.
    assert {line for line, _ in found} <= {4, 6, 7, 8, 9, 14, 15}


def test_faults_in_code_of_other_languages() -> None:
    assert changed("lib.rs", RUST) == {
        (4, "if a != 1 && b < 10 { return true; }"),
        (4, "if a == 1 && b >= 10 { return true; }"),
        (5, "foo(3)"),
    }


def test_lines_are_counted_as_compilers_do() -> None:
    assert {line for line, _ in changed("lib.rs", f"\x0c\n// \u2028 \x85\n{RUST}")} == {6, 7}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_every_fault_changes_one_line_and_chosen_faults_parse(path: Path) -> None:
    source = path.read_text()
    found = find_faults("x.py", source)
    for fault in found:
        old, new = source.splitlines(), fault.content.splitlines()
        assert [n + 1 for n, (a, b) in enumerate(zip(old, new, strict=True)) if a != b] == [fault.line]
        assert fault.original == source
    for fault in choose_faults(found[::25], words=(), near=(), limit=len(found)):
        ast.parse(fault.content)


def test_a_long_file_costs_seconds_and_no_copies() -> None:
    """A module of 5,000 lines has thousands of faults: only chosen ones are written out or parsed."""
    source = "\n\n".join(f"def f{n}(a):\n    return a + {n} if a > {n} else a - {n}\n" for n in range(1200))
    began = time.process_time()
    faults = find_faults("long.py", source)
    chosen = choose_faults(faults, words={"f7"}, near={"f9"}, limit=20)
    assert (len(faults) > 4000, len(chosen), chosen[0].within) == (True, 20, ("f9",))
    assert time.process_time() - began < 10


@given(st.text(max_size=80), st.sampled_from(["x.py", "x.rs", "x.js", "x.sh"]))
def test_any_source_yields_reproducible_faults(source: str, path: str) -> None:
    found = find_faults(path, source)
    assert found == find_faults(path, source)
    assert all(fault.content != source for fault in found)


def test_faults_near_lost_tests_come_first() -> None:
    faults = find_faults("calc.py", CODE)
    chosen = choose_faults(faults, words=words_of("T().more(1); add(1)"), near=words_of("more"), limit=6)
    assert [fault.within for fault in chosen] == [("T", "more")] * 5 + [("add",)]
    assert len(choose_faults(faults, words=(), near=(), limit=3)) == 3


def test_faults_are_placed_in_the_tested_code() -> None:
    trees = MemoryTrees()
    tests = "add(1)\nassert more(2)\n"
    files = {"calc.py": CODE, "other.py": "def far():\n    return 1 + 1\n", "test_calc.py": tests}
    old = trees.add(files)
    new = trees.add({**files, "test_calc.py": "add(1)\n", "test_new.py": "pass\n"})
    softer = changed_tests(trees.changes(old, new), (), trees)
    assert [test.path for test in softer] == ["test_calc.py", "test_new.py"]
    faults = pick_faults(trees, new, softer, code_under_test(files), (), ())
    assert faults[0].within == ("T", "more")
    assert faults[-1].path == "other.py"
    assert len(faults) <= 20


def test_code_that_checks_no_longer_open_gets_the_first_faults() -> None:
    trees = MemoryTrees()
    files = {"calc.py": CODE, "other.py": "def far():\n    return 1 + 1\n", "test_calc.py": "add(1)\n"}
    old = trees.add(files)
    for added, first in (({"test_new.py": "add(2)\n"}, "other.py"), ({"test_calc.py": "add(2)\n"}, "calc.py")):
        new = trees.add({**files, **added})
        softer = changed_tests(trees.changes(old, new), (), trees)
        faults = pick_faults(trees, new, softer, ("calc.py",), code_under_test(files), ())
        assert faults[0].path == first
        assert sum(fault.path == "other.py" for fault in faults) <= 2
        assert all(fault.path == "other.py" for fault in pick_faults(trees, new, softer, (), ("other.py",), ()))


def test_added_data_and_data_that_no_check_opened_are_left_out() -> None:
    trees = MemoryTrees()
    old = trees.add({"tests/data.txt": "a", "a.py": "x = 1\n"})
    new = trees.add({"tests/data.txt": "b", "tests/more.txt": "pass\n", "a.py": "x = 2\n"})
    changed = changed_tests(trees.changes(old, new), (), trees)
    assert [test.path for test in changed] == ["tests/data.txt"]
    observer = ReadObserver(directories=())
    observer.complete = True
    assert leave_out_unread(changed, observer) == ()
    observer.opened.append(frozenset({"tests/data.txt"}))
    assert leave_out_unread(changed, observer) == changed


@pytest.mark.parametrize(
    ("time", "anew"),
    [("12.500000000", False), ("12.500000001", True), ("gone", True), ("12", False), ("?", False), ("", False)],
)
def test_a_copy_with_an_unknown_time_counts_as_unchanged(time: str, anew: bool) -> None:
    assert Copy(of="a.py", modified=12_500_000_000).differs(time) is anew


GO = """package calc

func Add(a, b int) int {
	if a == 0 {
		return b
	}
	return a + b
}

func (c *Till) Price(n int) int {
	return n * 3
}
"""


def test_faults_found_by_tokens_include_their_function() -> None:
    assert [fault.within for fault in find_faults("calc.go", GO)] == [("Add",)] * 3 + [("Price",)] * 2


def test_code_named_near_a_lost_line_gets_the_first_faults() -> None:
    trees = MemoryTrees()
    test = "func TestPrice(t *testing.T) {\n\tgot := till.Price(2)\n\tif got != 6 {\n\t\tt.Fatal(got)\n\t}\n}\n"
    test += "\n" * 9 + "func TestAdd(t *testing.T) {\n\tif Add(1, 2) != 3 {\n\t\tt.Fatal()\n\t}\n}\n"
    old = trees.add({"calc.go": GO, "calc_test.go": test})
    new = trees.add({"calc.go": GO, "calc_test.go": test.replace("got != 6", "got != got")})
    softer = changed_tests(trees.changes(old, new), (), trees)
    faults = pick_faults(trees, new, softer, ("calc.go",), (), ())
    assert [fault.within for fault in faults][:2] == [("Price",)] * 2


async def measure(place: Path, code: str, *, must_measure: bool) -> tuple[Finding, ...]:
    (place / "calc.py").write_text(code)
    (place / "test_calc.py").write_text(TEST)
    sandbox = LocalSandbox(place, environment={"PYTHONDONTWRITEBYTECODE": "1"})

    async def opened() -> Sandbox:
        return sandbox

    usual = CheckResult(name=CHECK, status="passed", seconds=0.1, exit_code=0, tests=1, reason="", artifact=None)
    return await measure_tests(
        CheckPlan(commands=(CHECK,)),
        [usual],
        find_faults("calc.py", code),
        ChangedTests(),
        tree=opened,
        base=opened,
        seconds=60.0,
        must_measure=must_measure,
    )


async def test_faults_that_prevent_loading_leave_tests_unmeasured(tmp_path: Path) -> None:
    faults = len(find_faults("calc.py", LOADS))
    (found,) = await measure(tmp_path, LOADS, must_measure=True)
    assert (found.rule, found.needs_person) == ("tests_unmeasured", True)
    assert (
        f"with {faults} of {faults} faults that were tried the code could not be built or loaded" in found.message
    )


async def test_faults_in_running_code_suffice_despite_load_failures(tmp_path: Path) -> None:
    code = LOADS + "".join(f"def f{n}():\n    return f'{n}' * {n}\n" for n in range(5))
    assert await measure(tmp_path, code, must_measure=True) == ()


CASE = "import unittest\nfrom calc import add\n\n\nclass T(unittest.TestCase):\n"
OTHER = f"{CASE}    def test_other(self):\n        self.assertEqual(add(1, 1), 2)\n"
NEAR = CASE + "    def test_add(self):\n        self.assertEqual(add(2, 3), {result})\n"


@pytest.mark.parametrize("notices", [True, False])
async def test_a_slow_suite_is_measured_by_the_changed_tests_first(tmp_path: Path, notices: bool) -> None:
    code = "def add(a, b):\n    return a + b\n"
    files = {"calc.py": code, "test_near.py": NEAR.format(result="5"), "test_other.py": OTHER}
    softer = {**files, "test_near.py": files["test_near.py"] if notices else NEAR.format(result="add(2, 3)")}
    for name, text in softer.items():
        (tmp_path / name).write_text(text)
    trees = MemoryTrees()
    changes = trees.changes(trees.add({**files, "test_near.py": NEAR.format(result="2 + 3")}), trees.add(softer))
    [fault] = find_faults("calc.py", code)[:1]
    ran = RanTests(check=CHECK, names=("test_near.T::test_add", "test_other.T::test_other"))
    own = describe_tests(changes, {}, trees, [ran], ()).own
    sandbox = LocalSandbox(tmp_path, environment={"PYTHONDONTWRITEBYTECODE": "1"})

    async def opened() -> Sandbox:
        return sandbox

    usual = CheckResult(name=CHECK, status="passed", seconds=600.0, exit_code=0, tests=2, reason="", artifact=None)
    plan = CheckPlan(commands=(CHECK,))
    # Too little time for three runs of all tests.
    found = await measure_tests(
        *(plan, [usual], [fault], ChangedTests(own=own)),
        tree=opened, base=opened, seconds=300.0, must_measure=True,
    )  # fmt: skip
    assert [each.rule for each in found] == ([] if notices else ["tests_unmeasured"])
    assert own == {CHECK: ("test_near.T::test_add",)}


def test_own_tests_come_from_changed_files_and_are_a_minority() -> None:
    trees = MemoryTrees()
    changes = trees.changes(
        trees.add({"test_near.py": NEAR.format(result="4")}), trees.add({"test_near.py": NEAR.format(result="5")})
    )
    there = ("test_far.T::test_add", "test_far.T::test_more", "test_near.T::test_add")
    assert describe_tests(changes, {}, trees, [RanTests(check=CHECK, names=there)], ()).own == {CHECK: there[2:]}
    # If a name does not show its file, each test of that name is meant.
    assert describe_tests(changes, {}, trees, [RanTests(check=CHECK, names=("test_add", "x"))], ()).own == {
        CHECK: ("test_add",)
    }
    for names in (("test_near.T::test_add",), ("test_near.T::test_new", "x", "y"), None):
        assert describe_tests(changes, {}, trees, [RanTests(check=CHECK, names=names)], ()).own == {}
    data = trees.changes(trees.add({"tests/data.txt": "a"}), trees.add({"tests/data.txt": "b"}))
    assert describe_tests([*changes, *data], {}, trees, [RanTests(check=CHECK, names=there)], ()).own == {}


def test_own_tests_of_a_large_file_are_those_with_changed_text() -> None:
    trees, more = (
        MemoryTrees(),
        NEAR + "".join(f"    def test_{n}(self):\n        add({n}, 1)\n" for n in range(6)),
    )
    added = more + "    def test_new(self):\n        self.assertTrue(add(1, 1))\n"
    there = tuple(f"test_near.T::test_{name}" for name in ("add", *range(6), "new"))

    def own(now: str) -> Mapping[str, Sequence[str]]:
        old, new = trees.add({"test_near.py": more.format(result="4")}), trees.add({"test_near.py": now})
        return describe_tests(trees.changes(old, new), {}, trees, [RanTests(check=CHECK, names=there)], ()).own

    assert own(added.format(result="5")) == {CHECK: (there[0], there[-1])}
    assert own(added.format(result="4")) == {CHECK: (there[-1],)}
    # It may affect all tests of the file, which are too many.
    assert own("import calc\ncalc.add = None\n" + added.format(result="5")) == {}


ALONE = "    def test_alone(self):\n        self.assertEqual(1, 1)\n"


@pytest.mark.parametrize(
    ("base_near", "tree_other", "seconds", "expected"),
    [
        # The changed test notices the fault in neither version; the other test no longer notices it.
        (CASE + ALONE, OTHER.replace("add(1, 1), 2", "2, 2"), 3000.0, ["tests_weakened"]),
        (CASE + ALONE, OTHER, 3000.0, []),
        # With time for one run of all tests only: a disarmed test, and a test that still notices the fault.
        (CASE + ALONE, OTHER.replace("add(1, 1), 2", "2, 2"), 250.0, ["tests_unmeasured"]),
        (CASE + ALONE, OTHER, 250.0, []),
        # The base's version notices the fault, which cannot be proven in this time.
        (NEAR.format(result="5"), OTHER, 250.0, ["tests_unmeasured"]),
    ],
)
async def test_faults_unnoticed_by_changed_tests_are_tried_with_all_tests(
    tmp_path: Path, base_near: str, tree_other: str, seconds: float, expected: list[str]
) -> None:
    code = "def add(a, b):\n    return a + b\n"
    files = {
        "tree": {"calc.py": code, "test_near.py": CASE + ALONE, "test_x.py": tree_other},
        "base": {"calc.py": code, "test_near.py": base_near, "test_x.py": OTHER},
    }
    for side, texts in files.items():
        (tmp_path / side).mkdir()
        for path, text in texts.items():
            (tmp_path / side / path).write_text(text)
    sides = {side: LocalSandbox(tmp_path / side, environment={"PYTHONDONTWRITEBYTECODE": "1"}) for side in files}

    async def tree() -> Sandbox:
        return sides["tree"]

    async def base() -> Sandbox:
        return sides["base"]

    usual = CheckResult(name=CHECK, status="passed", seconds=200.0, exit_code=0, tests=2, reason="", artifact=None)
    tests = ChangedTests(own={CHECK: ("test_near.T::test_alone", "test_near.T::test_add")})
    found = await measure_tests(
        *(CheckPlan(commands=(CHECK,)), [usual], find_faults("calc.py", code)[:1], tests),
        tree=tree, base=base, seconds=seconds, must_measure=True,
    )  # fmt: skip
    assert [each.rule for each in found] == expected


class CountingSandbox:
    """A sandbox that counts the runs of all tests; the changed ones alone are selected by `-k`."""

    def __init__(self, place: Path) -> None:
        self._sandbox = LocalSandbox(place, environment={"PYTHONDONTWRITEBYTECODE": "1"})
        self.whole = 0

    async def exec(self, argv: Sequence[str], **options: Any) -> Any:
        self.whole += any("unittest" in word and "-k" not in word for word in argv)
        return await self._sandbox.exec(argv, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)


TWO = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n"
FAR = "def far(a, b):\n    return a * b\n"
NEAR_TWO = "import unittest\nfrom two import add, sub\n\n\nclass T(unittest.TestCase):\n"
NEAR_TWO += "    def test_add(self):\n        self.assertEqual(add(2, {b}), {c})\n"
FAR_TEST = "import unittest\nimport far\n\n\nclass F(unittest.TestCase):\n"
FAR_TEST += "    def test_far(self):\n        self.assertEqual(far.far(2, 3), {result})\n"
MORE = "import unittest\n\n\nclass M(unittest.TestCase):\n"
MORE += "".join(f"    def test_{n}(self):\n        self.assertEqual({n}, {n})\n" for n in range(4))


async def measure_values(
    place: Path, rest: dict[str, str], new: dict[str, str], code: Sequence[str], *, seconds: float
) -> tuple[tuple[Finding, ...], int]:
    """Measure a test that compares other values; return the findings and the number of runs of all tests."""
    check = "python3 -m unittest -v"
    sides = {
        side: {**rest, "test_two.py": NEAR_TWO.format(**values)}
        for side, values in {"base": {"b": "3", "c": "5"}, "tree": new}.items()
    }
    opened: list[CountingSandbox] = []

    def opener(side: str) -> Callable[[], Awaitable[Sandbox]]:
        async def open_side() -> Sandbox:
            home = place / str(len(opened))
            home.mkdir()
            for path, text in sides[side].items():
                (home / path).write_text(text)
            opened.append(CountingSandbox(home))
            return cast(Sandbox, opened[-1])

        return open_side

    trees = MemoryTrees()
    before, after = trees.add(sides["base"]), trees.add(sides["tree"])
    changes = changed_tests(trees.changes(before, after), (), trees)
    cases = {path[:-3]: re.findall(r"class (\w+)|def (test_\w+)", text) for path, text in sides["tree"].items()}
    names = [
        f"{file}.{found[0][0]}::{test}" for file, found in cases.items() if found for _, test in found if test
    ]
    ran = RanTests(check=check, names=tuple(names))
    tests = describe_tests(changes, {}, trees, [ran], [ran])
    assert (tests.isolated, tests.own) == (True, {check: ("test_two.T::test_add",)})
    usual = CheckResult(name=check, status="passed", seconds=60.0, exit_code=0, tests=6, reason="", artifact=None)
    found = await measure_tests(
        *(CheckPlan(commands=(check,)), [usual], pick_faults(trees, after, changes, code, (), ()), tests),
        tree=opener("tree"), base=opener("base"), seconds=seconds, must_measure=True,
    )  # fmt: skip
    return found, sum(each.whole for each in opened)


@pytest.mark.parametrize(
    ("new", "far_result", "rules", "whole"),
    [
        # Another value is compared: the test alone shows it, and the test of `far` that others are at work.
        ({"b": "5", "c": "7"}, "6", [], 0),
        # The new value is that of faults too: all tests run to confirm it.
        ({"b": "0", "c": "2"}, "6", ["tests_weakened"], 1),
        # A test of `far` that notices nothing is no proof, so all tests run once, on both versions.
        ({"b": "5", "c": "7"}, "far.far(2, 3)", [], 2),
    ],
)
async def test_changed_values_are_measured_by_their_tests_alone(
    tmp_path: Path, new: dict[str, str], far_result: str, rules: list[str], whole: int
) -> None:
    rest = {"two.py": TWO, "far.py": FAR, "test_far.py": FAR_TEST.format(result=far_result), "test_more.py": MORE}
    found, runs = await measure_values(tmp_path, rest, new, ["two.py", "far.py"], seconds=600.0)
    assert sorted({each.rule for each in found}) == rules
    assert min(runs, 2) == whole


async def test_no_run_of_all_tests_begins_without_enough_time(tmp_path: Path) -> None:
    blind = FAR_TEST.format(result="far.far(2, 3)")
    rest = {"two.py": TWO, "far.py": FAR, "test_far.py": blind, "test_more.py": MORE}
    new = {"b": "5", "c": "7"}
    found, runs = await measure_values(tmp_path, rest, new, ["two.py", "far.py"], seconds=55.0)
    assert ([each.rule for each in found], runs) == (["tests_unmeasured"], 0)


async def test_enough_faults_are_tried_if_the_changed_test_names_little_code(tmp_path: Path) -> None:
    rest = {"two.py": "def add(a, b):\n    return a + b\n\n\nsub = add\n", "test_more.py": MORE}
    for number in range(6):
        far = FAR.replace("def far", f"def far_{number}")
        test = FAR_TEST.format(result="6").replace("import far", f"import far_{number}")
        rest[f"far_{number}.py"] = far
        rest[f"test_far_{number}.py"] = test.replace("far.far(", f"far_{number}.far_{number}(")
    code = [path for path in rest if not path.startswith("test_")]
    found, _ = await measure_values(tmp_path, rest, {"b": "5", "c": "7"}, code, seconds=600.0)
    assert found == ()


def test_tests_that_were_only_added_to_are_measured_briefly() -> None:
    assert fault_seconds(120.0, must_measure=True) == 120.0
    assert fault_seconds(120.0, must_measure=False) < 30.0
    assert fault_seconds(1.0, must_measure=False) == 1.0


@pytest.mark.parametrize(("load", "seconds"), [(0.1, 120.0), (1.0, 120.0), (2.0, 240.0), (9.0, 360.0)])
def test_a_busy_machine_has_more_time_before_a_person_has_to_decide(load: float, seconds: float) -> None:
    assert fault_seconds(120.0, must_measure=True, load=load) == seconds
    assert fault_seconds(120.0, must_measure=False, load=load) == fault_seconds(120.0, must_measure=False)
    assert fault_seconds(1.0, must_measure=True, load=load) == 1.0, "it is off"
