"""Goldens and helpers outside test directories belong to the tests; the code's data and modules do not."""

from __future__ import annotations

import pytest

from chargehand.checks.inspection import base_tests_tree_plan
from chargehand.checks.suites.support import find_support
from chargehand.checks.trees import MemoryTrees

GO_MOD = {"go.mod": "module example.org/calc\n"}
GO_HELPER = (
    'package testutil\n\nimport "testing"\n\n'
    "func Equal(t *testing.T, a, b int) {\n\tif a != b {\n\t\tt.Fatal()\n\t}\n}\n"
)
GO_TEST = 'package calc\n\nimport (\n\t"testing"\n\n\t"example.org/calc/internal/testutil"\n)\n'
COMPARE = "def same(a, b):\n    assert a == b\n"
JS_TEST = "const { same } = require('../support/compare');\n"
RUST_HELPER = "pub fn same(a: i32, b: i32) {\n    assert_eq!(a, b);\n}\n"
RUST_TEST = "#[cfg(test)]\nmod tests {\n    use crate::testutil::same;\n}\n"
RUST_MACRO = "#[macro_export]\nmacro_rules! same {\n    ($a:expr) => {\n        assert!($a)\n    };\n}\n"
JAVA_HELPER = (
    "package calc;\n\nclass Assertions {\n    static void same(int a) {\n"
    "        throw new AssertionError();\n    }\n}\n"
)
KOTLIN_HELPER = "package calc\n\nfun assertSame(a: Int, b: Int) {\n    check(a == b)\n}\n"
# The path of a file, its text in the base, the other files.
SUPPORT = {
    "a golden": ("expected/out.json", "{}", {"test_a.py": "open('expected/out.json')\n", "a.py": "x = 1\n"}),
    "one of many": ("resources/cases/1.txt", "1", {"test_a.py": "for p in glob(ROOT / 'resources' / 'cases')\n"}),
    "of documentation": ("docs/examples/out.txt", "1", {"test_a.py": "Path('docs/examples/out.txt')\n"}),
    "snapshots": ("snapshots/a.html", "<p>", {"test_a.py": "here / 'snapshots' / name\n", "a.py": "x = 1\n"}),
    "Go's": (
        "_test/extra.txt",
        "1",
        {"extra_test.go": 'var file = "_test/extra.txt"\n', "extra.go": "package a\n"},
    ),
    "JavaScript's": ("golden/a.css", "a", {"a.test.js": "read('./golden/a.css')\n", "a.js": "let x = 1\n"}),
    "Go's helper": (
        "internal/testutil/assert.go",
        GO_HELPER,
        {**GO_MOD, "a_test.go": GO_TEST, "a.go": "package calc\n"},
    ),
    "Python's helper": (
        "pkg/compare.py",
        COMPARE,
        {"test_a.py": "from pkg.compare import same\n", "pkg/a.py": "x = 1\n"},
    ),
    "listed": (
        "pkg/compare.py",
        COMPARE,
        {"tests/test_a.py": "from pkg import (\n    a,\n    compare,\n)\n", "pkg/a.py": ""},
    ),
    "JavaScript's helper": (
        "support/compare.js",
        "exports.same = (a) => expect(a)\n",
        {"test/a.js": JS_TEST, "a.js": ""},
    ),
}
SUPPORT |= {
    "Rust's helper of inner tests": (
        "src/testutil.rs",
        RUST_HELPER,
        {"src/lib.rs": "#[cfg(test)]\npub(crate) mod testutil;\n\npub fn add() {}\n\n" + RUST_TEST},
    ),
    "Rust's helper that all may use": (
        "src/testutil.rs",
        RUST_HELPER,
        {"src/lib.rs": "pub mod testutil;\n// testutil::same\n", "tests/a.rs": "use calc::{add, testutil};\n"},
    ),
    "Rust's helper in a directory": (
        "src/testutil/mod.rs",
        RUST_HELPER,
        {"src/lib.rs": '#[cfg(any(test, feature = "x"))]\nmod testutil;\n'},
    ),
    "Rust's helper with tests": (
        "src/testutil.rs",
        RUST_HELPER + RUST_TEST,
        {"src/lib.rs": "#[cfg(test)]\nmod testutil;\n\npub fn add() {}\n"},
    ),
    "a crate of helpers": (
        "same-values/src/lib.rs",
        RUST_HELPER,
        {"calc/src/lib.rs": "pub fn add() {}\n", "calc/tests/a.rs": "same_values::same(1, 1);\n"},
    ),
    "a macro": (
        "src/helpers.rs",
        RUST_MACRO,
        {"src/lib.rs": "#[macro_use]\nmod helpers;\n", "tests/a.rs": "calc::same!(1 == 1);\n"},
    ),
    "Java's helper": (
        "src/main/java/calc/Assertions.java",
        JAVA_HELPER,
        {
            "src/test/java/calc/CalcTest.java": "Assertions.same(3);\n",
            "src/main/java/calc/Calc.java": "class Calc {}\n",
        },
    ),
    "Kotlin's helper": (
        "src/main/kotlin/calc/Helpers.kt",
        KOTLIN_HELPER.replace("check(", "require(assert("),
        {"src/test/kotlin/calc/CalcTest.kt": "assertSame(3, 3)\n", "src/main/kotlin/calc/Calc.kt": "class Calc\n"},
    ),
}
CODE = {
    "data of the code": (
        "templates/a.html",
        "<p>",
        {"test_a.py": "'templates/a.html'\n", "a.py": "'templates/a.html'\n"},
    ),
    "no test names it": ("expected/out.json", "{}", {"test_a.py": "x = 1\n", "a.py": "x = 1\n"}),
    "a list of packages": ("requirements.txt", "six\n", {"test_a.py": "open('requirements.txt')\n"}),
    "prose": ("README.md", "a", {"test_a.py": "open('README.md')\n"}),
    "code that asserts": (
        "pkg/check.py",
        COMPARE,
        {"test_a.py": "from pkg import check\n", "pkg/a.py": "from . import check\n"},
    ),
    "code under test": (
        "pkg/sums.py",
        "def add(a, b):\n    return a + b\n",
        {"test_a.py": "from pkg import sums\n"},
    ),
    "Rust code": (
        "src/check.rs",
        RUST_HELPER,
        {
            "src/lib.rs": "pub mod check;\n\npub fn add() {\n    check::same(1, 1);\n}\n",
            "tests/a.rs": "use calc::check;\n",
        },
    ),
    "Rust code under test": ("src/sums.rs", "pub fn add() {}\n", {"tests/a.rs": "calc::sums::add();\n"}),
    "the crate itself": ("src/lib.rs", RUST_HELPER, {"tests/a.rs": "use calc::same;\n"}),
    "the tests' own module alone": (
        "src/check.rs",
        RUST_HELPER,
        {"src/lib.rs": "#[cfg(not(test))]\nuse check::same;\n", "tests/a.rs": "use calc::check;\n"},
    ),
    "Java code": (
        "src/main/java/calc/Check.java",
        JAVA_HELPER,
        {
            "src/test/java/calc/CalcTest.java": "Check.same(3);\n",
            "src/main/java/calc/Calc.java": "Check.same(1);\n",
        },
    ),
    "Go code": (
        "internal/sums/a.go",
        GO_HELPER,
        {
            **GO_MOD,
            "a_test.go": GO_TEST.replace("testutil", "sums"),
            "a.go": 'package calc\n\nimport "example.org/calc/internal/sums"\n',
        },
    ),
}


def support(path: str, text: str, others: dict[str, str], new: dict[str, str]) -> frozenset[str]:
    trees = MemoryTrees()
    base = trees.add({path: text, **others})
    return find_support(trees.changes(base, trees.add({**others, **new})), trees, base)


@pytest.mark.parametrize("case", SUPPORT)
def test_files_used_only_by_tests_belong_to_the_tests(case: str) -> None:
    path, text, others = SUPPORT[case]
    for new in ({}, {path: f"{text}\n\n"}):
        assert support(path, text, others, new) == {path}


@pytest.mark.parametrize("case", CODE)
def test_files_used_by_code_or_unnamed_do_not_belong_to_the_tests(case: str) -> None:
    path, text, others = CODE[case]
    assert support(path, text, others, {path: f"{text}\n\n"}) == frozenset()


def test_an_added_file_is_no_support_of_tests() -> None:
    trees = MemoryTrees()
    base = trees.add({"test_a.py": "open('expected/out.json')\n"})
    changes = trees.changes(
        base, trees.add({"test_a.py": "open('expected/out.json')\n", "expected/out.json": "{}"})
    )
    assert find_support(changes, trees, base) == frozenset()


def test_support_and_attributes_go_back_to_the_base() -> None:
    trees = MemoryTrees()
    base = trees.add({"test_a.py": "x", "expected/a": "1", ".gitattributes": "*.txt text\n"})
    tree = trees.add({"test_a.py": "x", "expected/a": "2", ".gitattributes": "expected/* eol=crlf\n"})
    changes = trees.changes(base, tree)
    plan = base_tests_tree_plan(changes, trees, base, support={"expected/a"})
    assert plan == {path: trees.lookup(base, path) for path in (".gitattributes", "expected/a")}
