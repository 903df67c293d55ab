"""Additions to tests: more tests weaken nothing, an early exit may; and tests inside Rust's code."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.checks.paths import is_source
from chargehand.checks.soft_tests import changed_tests, may_say_less, restore_inner_tests
from chargehand.checks.trees import MemoryTrees

PYTHON = """import unittest
from calc import add

CASES = [
    (1, 2, 3),
]


class T(unittest.TestCase):
    def test_add(self):
        total = add(2, 1)
        self.assertEqual(total, 3)
        self.assertIn(add(1, 1), (2,))

    def test_cases(self):
        for a, b, c in CASES:
            self.assertEqual(add(a, b), c)
"""
HEAD, TEST = "class T(unittest", "    def test_add"
FIRST, LAST = "        total = add", "        self.assertEqual("
PYTHON_ADDED = {
    "a test": (PYTHON + "\n    def test_zero(self):\n        total = add(0, 0)\n        assert not total\n", True),
    "a row": (PYTHON.replace("    (1, 2, 3),\n", "    (1, 2, 3),\n    (0, 0, 0),\n"), True),
    "an assertion": (PYTHON.replace(FIRST, "        self.assertEqual(add(0, 0), 0)\n" + FIRST), True),
    "more at the end": (PYTHON.replace("(2,))", "(2,))\n        total = add(4, 4)\n        assert total"), True),
    "a class with a test of that name": (
        PYTHON + "\n\nclass U(unittest.TestCase):\n    def test_add(self):\n        return\n",
        True,
    ),
    "a helper": (PYTHON.replace(HEAD, f"def twice(x):\n    return 2 * x\n\n\n{HEAD}"), True),
    "an import": ("import json\n" + PYTHON.replace("import add", "import add, sub"), True),
    "a comment": (PYTHON.replace(FIRST, f"        # Sums.\n{FIRST}"), True),
    "a return": (PYTHON.replace(FIRST, f"        return\n{FIRST}"), False),
    "a condition": (PYTHON.replace(FIRST, f"        if add(0, 0) == 0:\n            return\n{FIRST}"), False),
    "a return in a loop": (PYTHON.replace("CASES:\n", "CASES:\n            continue\n"), False),
    "another value": (PYTHON.replace(f"{LAST}total", f"        total = 3\n{LAST}total"), False),
    "another function": (PYTHON.replace(HEAD, f"def add(a, b):\n    return 3\n\n\n{HEAD}"), False),
    "another import": (PYTHON.replace("from calc", "from fake"), False),
    "a member": (PYTHON.replace(HEAD, f"unittest.TestCase.assertEqual = print\n\n\n{HEAD}"), False),
    "an assertion of its own": (PYTHON.replace(TEST, f"    def assertEqual(*x):\n        pass\n\n{TEST}"), False),
    "another run": (PYTHON.replace(TEST, f"    def run(self, result):\n        pass\n\n{TEST}"), False),
    "an exit": (PYTHON.replace(HEAD, f"raise SystemExit\n\n\n{HEAD}"), False),
    "a wider choice": (PYTHON.replace("(2,)", "(2, 3)"), False),
    "a decorator": (PYTHON.replace("    def test_add", "    @property\n    def test_add"), False),
    "a loader": (PYTHON + "\n\ndef load_tests(loader, tests, pattern):\n    return tests\n", False),
    "a test that reaches others": (PYTHON + "\n    def test_x(self):\n        unittest.case.x = 1\n", False),
    "no end": (PYTHON + "(", False),
}  # fmt: skip
GO = """package calc

import "testing"

func TestAdd(t *testing.T) {
	for _, c := range []struct{ a, b, sum int }{
		{1, 2, 3},
	} {
		if Add(c.a, c.b) != c.sum {
			t.Fatal("add")
		}
	}
}
"""
ROW = "\t\t{1, 2, 3},\n"
GO_ADDED = {
    "a test": (GO + '\nfunc TestZero(t *testing.T) {\n\tif Add(0, 0) != 0 {\n\t\tt.Fatal("zero")\n\t}\n}\n', True),
    "a row": (GO.replace(ROW, ROW + "\t\t{0, 0, 0},\n"), True),
    "an import": (GO.replace('import "testing"', 'import "testing"\nimport "strings"'), True),
    "a return": (GO.replace("{\n\tfor", "{\n\treturn\n\tfor"), False),
    "a continue": (GO.replace("} {\n", "} {\n\t\tcontinue\n"), False),
    "an init": (GO + "\nfunc init() {\n\tAdd = nil\n}\n", False),
    "an assignment": (GO.replace("\t\tif", "\t\tc.sum = Add(c.a, c.b)\n\t\tif"), False),
    "an exit": (GO + "\nfunc TestMain(m *testing.M) {\n}\n", False),
}
JS = """const test = require('node:test'), assert = require('node:assert');
const { add } = require('./calc');
test('add', () => {
  assert.equal(add(2, 1), 3);
});
"""
JS_ADDED = {
    "a test": (JS + "test('zero', () => {\n  const sum = add(0, 0);\n  assert.equal(sum, 0);\n});\n", True),
    "a test before": (JS.replace("test('add'", "test('z', () => {\n  assert.ok(add);\n});\ntest('add'"), True),
    "a test inside": (JS.replace("3);\n", "3);\n  test('in', () => {\n    assert.ok(add(1, 1));\n  });\n"), True),
    "an assertion": (JS.replace("  assert", "  assert.equal(add(0, 0), 0);\n  assert"), True),
    "a return": (JS.replace("  assert", "  return;\n  assert"), False),
    "an exit": ("process.exit(0);\n" + JS, False),
    "a member": (JS.replace("test('add'", "assert.equal = () => {};\ntest('add'"), False),
    "a member in a test": (JS + "test('x', () => {\n  assert.equal = () => {};\n});\n", False),
    "a module's mock": (JS + "test('x', () => {\n  jest.mock('./calc');\n});\n", False),
    "a try": (JS.replace("  assert", "  try {\n  assert").replace("3);\n", "3);\n  } catch (e) {}\n"), False),
    "a shadow": (JS.replace("  assert", "  const add = () => 3;\n  assert"), False),
    "before each": (JS + "test.beforeEach(() => {\n  assert.equal = () => {};\n});\n", False),
}  # fmt: skip
RUST = """use calc::add;

#[test]
fn adds() {
    assert_eq!(add(2, 1), 3);
}
"""
RUST_ADDED = {
    "a test": (RUST + "\n#[test]\n#[should_panic]\nfn fails() {\n    if add(0, 0) == 0 { panic!() }\n}\n", True),
    "a return": (RUST.replace("    assert", "    return;\n    assert"), False),
    "a macro": (RUST.replace("#[test]", "macro_rules! assert_eq { ($($t:tt)*) => {} }\n\n#[test]"), False),
    "a mark": (RUST.replace("#[test]", "#[test]\n#[ignore]"), False),
    "a function": (RUST.replace("#[test]", "fn add(a: i32, b: i32) -> i32 {\n    3\n}\n\n#[test]"), False),
}
ALL = [
    pytest.param(path, old, new, alone, id=f"{path} {name}")
    for path, old, cases in (
        ("test_calc.py", PYTHON, PYTHON_ADDED),
        ("calc_test.go", GO, GO_ADDED),
        ("calc.test.js", JS, JS_ADDED),
        ("tests/calc.rs", RUST, RUST_ADDED),
    )
    for name, (new, alone) in cases.items()
]


def says_less(old: dict[str, str], new: dict[str, str], inner: tuple[str, ...] = ()) -> bool:
    trees = MemoryTrees()
    return may_say_less(trees.changes(trees.add(old), trees.add(new)), inner, trees)


@pytest.mark.parametrize(("path", "old", "new", "alone"), ALL)
def test_whether_an_addition_weakens_the_tests(path: str, old: str, new: str, alone: bool) -> None:
    assert new != old
    assert says_less({path: old}, {path: new}) is not alone


ALIGNED = 'func TestA() {\n\tcheck(add(1,   want), "x  y") // first\n\tcheck(more, `p  q`)\n}\n'


@pytest.mark.parametrize(
    ("path", "before", "after", "less"),
    [
        ("calc_test.go", "1,   want", "1, want", False),
        ("calc_test.go", "// first", "// one", False),
        ("calc_test.go", "x  y", "x y", True),
        ("calc_test.go", "p  q", "p q", True),
        ("calc_test.go", "1,   want", "2, want", True),
        ("calc_test.go", "check(more", "t.Skip(); check(more", True),
        ("src/test/java/CalcTest.java", "1,   want", "1, want", False),
        ("tests/calc.rs", "1,   want", "1,\twant", False),
        ("calc.test.js", "1,   want", "1, want", True),  # it may be part of a pattern
    ],
)
def test_alignment_alone_says_no_less(path: str, before: str, after: str, less: bool) -> None:
    changed = ALIGNED.replace(before, after)
    assert changed != ALIGNED
    assert says_less({path: ALIGNED}, {path: changed}) is less


CHOICE = "try:\n    from fast import check\nexcept ImportError:\n    from slow import check\n"
CHOOSING = f"""{CHOICE}
def test_a():
    from one import word
    check(word)

def test_b():
    from two import word
    check(word)
"""
MORE = "\ndef test_c():\n    check(3)\n"


@pytest.mark.parametrize(
    ("new", "alone"),
    [
        (CHOOSING + MORE, True),
        (CHOOSING.replace(CHOICE, f"import json\n{CHOICE}") + MORE, True),
        (CHOOSING.replace("check(word)\n", "check(word)\n    check(word, 2)\n", 1), True),
        (CHOOSING + "from slow import check\n", False),
        (CHOOSING.replace("from two", "from one"), False),
        (CHOOSING.replace("    from two import word\n", ""), False),
        (CHOOSING.replace("fast", "x").replace("slow", "fast").replace("x", "slow"), False),
        (CHOOSING.replace("except ImportError:\n    from slow import check\n", "finally:\n    pass\n"), False),
    ],
)
def test_a_name_that_is_imported_from_several_places_hides_no_addition(new: str, alone: bool) -> None:
    assert says_less({"test_calc.py": CHOOSING}, {"test_calc.py": new}) is not alone


PATHS = (
    "from calc.helpers import check\n\n\n@pytest.mark.usefixtures('armed')\n"
    "def test_a():\n    check(near, near.helpers.far)\n"
)


@pytest.mark.parametrize(
    ("line", "alone"),
    [
        ("from calc import helpers", True),
        ("import calc.helpers", True),
        ("from fake import check", False),
        ("from fake import armed", False),
        ("from fake import near", False),
        ("from fake import *", False),
    ],
)
def test_an_import_may_bind_a_word_of_another_imports_path(line: str, alone: bool) -> None:
    assert says_less({"test_calc.py": PATHS}, {"test_calc.py": f"{line}\n{PATHS}"}) is not alone
    assert says_less({"test_calc.py": PATHS}, {"test_calc.py": f"{PATHS}{line}\n"}) is not alone


def test_tests_that_moved_say_no_less_and_those_that_went_do() -> None:
    moved = {"test_calc.py": PYTHON[: PYTHON.index("    def test_cases")], "test_more.py": PYTHON}
    assert not says_less({"test_calc.py": PYTHON}, {"test_new.py": PYTHON})
    assert says_less({"test_calc.py": PYTHON}, {"test_calc.py": moved["test_calc.py"]})


@pytest.mark.parametrize(
    ("path", "text", "outlasts"),
    [
        ("tests/test_a.py", "import unittest\nunittest.TestCase.assertEqual = print\n", True),
        ("tests/test_a.py", "import calc\n\n\ndef test_a():\n    setattr(calc, 'add', max)\n", True),
        ("tests/test_a.py", "from unittest.mock import patch\npatch('calc.add').start()\n", True),
        ("tests/test_a.py", "import calc\ncalc.add.__code__ = max.__code__\n", True),
        ("tests/test_a.py", "import os\nos._exit(0)\n", True),
        (
            "tests/sub/__init__.py",
            "def load_tests(loader, tests, pattern):\n    return loader.suiteClass()\n",
            True,
        ),
        (
            "tests/test_a.py",
            "import calc\n\n\ndef test_a(monkeypatch):\n    monkeypatch.setattr(calc, 'x', 1)\n",
            False,
        ),
        (
            "tests/test_a.py",
            "import os\n\n\ndef test_a(self):\n    os.environ['A'] = '1'\n    self.x = 1\n",
            False,
        ),
        ("tests/test_a.py", PYTHON, False),
        ("a_test.go", GO + "\nfunc TestMain(m *testing.M) {\n\tm.Run()\n}\n", True),
        ("a_test.go", GO + "\nfunc init() {\n}\n", True),
        ("a_test.go", GO, False),
        ("test/a.test.js", JS + "assert.equal = () => {};\n", True),
        ("test/a.test.js", JS + "process.on('exit', () => process.exit(0));\n", True),
        ("test/a.test.js", JS + "module.exports = { add };\nprocess.env.A = '1';\n", False),
        ("test/a_test.rb", "module Minitest\n  def assert(*); end\nend\n", True),
        ("test/a_test.rb", "class ATest < Minitest::Test\nend\n", False),
        ("tests/data.json", "{}", False),
    ],
)
def test_a_new_test_file_with_lasting_effects_may_weaken_tests(path: str, text: str, outlasts: bool) -> None:
    trees = MemoryTrees()
    changes = trees.changes(trees.add({}), trees.add({path: text}))
    assert bool(changed_tests(changes, (), trees)) is is_source(path)
    assert may_say_less(changes, (), trees) is outlasts


def test_a_script_that_may_not_be_run_or_has_another_name_says_less() -> None:
    trees = MemoryTrees()
    base = trees.add({"tests/a.sh": "exit 1\n"}, modes={"tests/a.sh": 0o100755})
    for left in ({"tests/a.sh": "exit 1\n"}, {"tests/a.sh.off": "exit 1\n"}, {"tests/off/a.sh": "exit 1\n"}):
        changes = trees.changes(base, trees.add(left))
        assert changed_tests(changes, (), trees)
        assert may_say_less(changes, (), trees)


@given(st.text(), st.text())
def test_whatever_is_added_to_a_text_is_compared(old: str, more: str) -> None:
    for path in ("test_a.py", "a.test.js", "a_test.go", "tests/a.rs", "ATest.java", "tests/a.c"):
        says_less({path: old}, {path: f"{old}\n{more}"})


CODE = """pub fn open() -> char {
    '{' // }
}
"""
OLD = "#[cfg(test)]\nmod tests {\n    #[test]\n    fn t() {\n        assert_eq!(super::open(), '{');\n    }\n}\n"
OTHER = "pub fn other() {}\n"
SOFT = OLD.replace("assert_eq!(super::open(), '{')", "super::open();")


def laid_over(old: str, new: str) -> str:
    """Return a file of Rust with the base's tests inside."""
    trees = MemoryTrees()
    return restore_inner_tests({"src/lib.rs": old}, trees, trees.add({"src/lib.rs": new}))["src/lib.rs"].decode()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (CODE + OLD, ["tests"]),
        (CODE, []),
        ("#[cfg(not(test))]\nmod real { }\n", []),
        ('#[cfg(feature = "x")]\nmod real { }\n', []),
        ('#[cfg(all(test, feature = "x"))]\n#[allow(dead_code)]\npub(crate) mod t { mod u { } }\n', ["t"]),
        ("#[cfg(test)]\nmod tests;\n", []),
        ("#[cfg(test)]\nmod tests { fn f() {\n", []),
        (
            '/* #[cfg(test)] mod a {} */ const A: &str = "#[cfg(test)] mod b {}"; const B: &str = r#"""#;\n' + OLD,
            ["tests"],
        ),
        (
            "#[cfg(test)]\nmod t { fn f<'a>(x: &'a str) { let q = '\\''; let b = b'}'; let s = \"}\\\"}\"; } }\n",
            ["t"],
        ),
    ],
)
def test_modules_that_are_gone_come_back_whole(source: str, names: list[str]) -> None:
    found = laid_over(source, OTHER).removeprefix(OTHER).strip()
    assert re.findall(r"^(?:pub\(crate\) )?mod (\w+)", found, re.MULTILINE) == names
    assert found in source
    assert not names or (found[0], found[-1]) == ("#", "}")
    assert laid_over(source, source) == source


def test_inner_tests_of_the_base_replace_changed_tests() -> None:
    changed = CODE.replace("open", "first") + SOFT + "pub fn last() {}\n"
    assert laid_over(CODE + OLD, changed) == changed.replace(SOFT, OLD)
    # Removed tests come back, new ones stay.
    more = OLD.replace("mod tests", "mod more")
    laid = laid_over(CODE + OLD, CODE + more)
    assert laid.startswith(CODE + more)
    assert laid.removeprefix(CODE + more).strip() == OLD.strip()


def test_modules_with_equal_names_are_matched_by_order() -> None:
    old = f"mod a {{ {OLD} }}\nmod b {{ {SOFT} }}\n"
    new = f"mod a {{ {SOFT} }}\nmod b {{ {SOFT} }}\n"
    assert laid_over(old, new) == old
    whole = old.replace(SOFT, OLD)
    assert says_less({"src/lib.rs": whole}, {"src/lib.rs": old}, inner=("src/lib.rs",)), "the last counts too"
    assert not says_less({"src/lib.rs": old}, {"src/lib.rs": old + OTHER}, inner=("src/lib.rs",))


CHANGED_FORM = """import re, warnings
from contextlib import contextmanager
from os import (path,
                sep)
import unittest

# A helper that nothing calls.
@contextmanager
def quiet():
    warnings.simplefilter("ignore")
    yield

class TestAll(unittest.TestCase):
    '''Says "all".'''
    def test_it(self, x=1):
        "Tries it."
        self.assertEquals(path.join("a",
            'b'), "a" + sep + "b")
        with self.assertRaises(ValueError):
            raise ValueError()
        re.compile("x")
"""
SAME = """import re
import unittest
from os import path, sep


class TestAll(unittest.TestCase):
    def test_it(self, x: int = 1) -> None:
        self.assertEqual(path.join("a", "b"), "a" + sep + "b")
        with self.assertRaises(ValueError):
            raise ValueError
        re.compile("x")
"""


def test_a_rewrite_that_changes_only_the_form_says_no_less() -> None:
    assert not says_less({"tests/test_a.py": CHANGED_FORM}, {"tests/test_a.py": SAME})


@pytest.mark.parametrize(
    ("was", "is_now"),
    [
        ("self.assertEqual(", "print("),
        ("self.assertEqual(", "self.assertTrue("),
        ('"a" + sep + "b"', 'path.join("a", "b")'),
        ("            raise ValueError", "            raise TypeError"),
        ("        with self", "        return\n        with self"),
        ("    def test_it", "    @unittest.skip('')\n    def test_it"),
        ("def test_it", "def try_it"),
        ("class TestAll(unittest.TestCase)", "class TestAll"),
        ("from os import path, sep", "from os import sep, path\nunittest.TestCase.assertEqual = print"),
    ],
)
def test_a_rewrite_with_another_meaning_says_less(was: str, is_now: str) -> None:
    assert was in SAME
    assert says_less({"tests/test_a.py": CHANGED_FORM}, {"tests/test_a.py": SAME.replace(was, is_now)})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # Called by name, by importing modules, or at once.
        ("def pytest_runtest_call(item):\n    check(item)\n", ""),
        ("def setup_module():\n    arm()\n", ""),
        ("@pytest.fixture(autouse=True)\ndef armed():\n    arm()\n", ""),
        ("@atexit.register\ndef last():\n    assert seen\n", ""),
        ("def check(x):\n    assert x == 1\n", "def check(x):\n    pass\n"),
        ("def test_a():\n    assert 1\n", ""),
        ("import strict\n\n\ndef test_a():\n    assert 1\n", "def test_a():\n    pass\n"),
        ("def test_a():\n    '>>> add(1, 1)\\n    2'\n    assert add\n", "def test_a():\n    assert add\n"),
        ("def run():\n    'add'\n    go(run.__doc__)\n", "def run():\n    ''\n    go(run.__doc__)\n"),
        ("def broken(:\n    assert 1\n", "def broken(:\n    pass\n"),
    ],
)
def test_changing_code_that_runners_call_or_import_weakens_tests(old: str, new: str) -> None:
    assert says_less({"tests/conftest.py": old}, {"tests/conftest.py": new})
