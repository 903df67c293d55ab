"""Weakened tests: each rule with a change that it must catch and a clean twin that it must accept."""

from __future__ import annotations

import textwrap

import pytest
from tests.unit._inspecting import findings, rules, weakened

REMOVED, SKIPPED = [("test_removed", "warning")], [("test_skipped", "warning")]
DELETED = [("test_deleted", "warning")]
ASKED = {"test_removed", "test_skipped", "test_deleted"}
FEWER, LOOSER = [("assertions_removed", "warning")], [("tolerance_loosened", "warning")]

PLAIN = "import pytest\n\ndef test_one():\n    assert f() == 1\n\ndef test_two():\n    assert f() == 2\n"


def py(text: str) -> str:
    return textwrap.dedent(text)


def test_a_deleted_test_file_is_found_and_a_rename_is_not():
    assert weakened(PLAIN, None) == DELETED
    assert rules({"tests/test_a.py": PLAIN}, {"tests/unit/test_b.py": PLAIN}) == []


def test_a_file_rename_that_loses_a_test_names_the_lost_test():
    kept = PLAIN[: PLAIN.index("def test_two")]
    (finding,) = findings({"tests/test_a.py": PLAIN}, {"tests/test_b.py": kept})
    assert (finding.rule, finding.severity) == ("test_deleted", "warning")
    assert "test_two" in finding.message
    assert "test_one" not in finding.message


@pytest.mark.parametrize(
    "place",
    ["tests/helpers_a.py", "src/a.py", "build/test_b.py", ".hidden/test_b.py", "tests/testb.py", "t/test_a.txt"],
)
def test_tests_moved_to_an_uncollected_path_are_lost(place: str):
    assert ("test_deleted", "warning", "tests/test_a.py") in rules({"tests/test_a.py": PLAIN}, {place: PLAIN})


def test_support_files_of_the_tests_only_warn():
    assert rules({"tests/data/x.json": "{}"}, {}) == [("test_deleted", "warning", "tests/data/x.json")]
    assert rules({"tests/data/x.json": "{}"}, {"tests/data/y.json": "{}"}) == []
    assert rules({"data/x.json": "{}"}, {}) == []


def test_a_test_file_of_an_unknown_shape_is_found_when_deleted():
    assert weakened("describe_things()\n", None) == DELETED
    assert weakened("\n", None) == []


def test_a_test_file_that_becomes_a_symlink_has_lost_its_tests():
    old = {"tests/test_a.py": PLAIN}
    found = findings(old, {"tests/test_a.py": "../elsewhere.py"}, modes={"tests/test_a.py": 0o120000})
    assert {finding.rule for finding in found} == {"test_removed"}


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (PLAIN.replace("def test_two", "def _test_two"), REMOVED),
        (PLAIN.replace("def test_two", "def test_three"), []),
        (
            PLAIN.replace("def test_two():\n    assert f() == 2", "def test_three():\n    assert f() in (2, 3)"),
            REMOVED,
        ),
        (PLAIN.replace("def test_two", "@pytest.mark.skip\ndef test_three"), REMOVED),
        (PLAIN.replace("def test_two", "def test_one"), REMOVED),
        (PLAIN.replace("def test_two():\n    assert f() == 2\n", ""), REMOVED),
        (PLAIN.replace("def test_two():", "'''\ndef test_two():") + "'''\n", REMOVED),
        ("if False:\n" + textwrap.indent(PLAIN, "    "), REMOVED),
        (PLAIN.replace("def test_two", "def test_zero():\n    assert f() == 0\n\ndef test_two"), []),
        ("import os\n" + PLAIN.replace("f()", "g()"), []),
        ("if True:\n" + textwrap.indent(PLAIN, "    "), []),
    ],
)
def test_removed_and_renamed_functions(new: str, expected: list[tuple[str, str]]):
    assert weakened(PLAIN, new) == expected


CLASS = """
class TestThing(Base):
    def test_one(self):
        assert f() == 1
"""


def test_classes_that_runners_pass_over_hold_no_tests():
    bare = CLASS.replace("(Base)", "")
    assert weakened(bare, bare.replace("TestThing", "Thing")) == REMOVED
    assert weakened(bare, bare.replace("    def test", "    def __init__(self): ...\n    def test")) == REMOVED
    assert weakened(bare, bare.replace("TestThing", "TestOther")) == []
    assert weakened(CLASS, CLASS.replace("TestThing", "Thing")) == []
    assert weakened(CLASS, CLASS.replace("    def", "    __test__ = False\n    def", 1)) == SKIPPED


@pytest.mark.parametrize(
    "mark",
    [
        "@pytest.mark.skip",
        "@pytest.mark.skip(reason='later')",
        "@pytest.mark.skipif(True, reason='x')",
        "@pytest.mark.xfail",
        "@unittest.skip('later')",
        "@unittest.skipIf(True, 'x')",
        "@unittest.skipUnless(False, 'x')",
        "@unittest.expectedFailure",
        "@mark.skip",
        "@skip_on_ci",
        "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.skip)])",
    ],
)
def test_a_skip_mark_is_reported_on_an_existing_but_not_on_a_new_test(mark: str):
    assert weakened(PLAIN, PLAIN.replace("def test_two", f"{mark}\ndef test_two")) == SKIPPED
    assert weakened(PLAIN, f"{PLAIN}\n{mark}\ndef test_new():\n    assert f()\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "pytest.skip('later')",
        "pytest.xfail('later')",
        "raise unittest.SkipTest('x')",
        "raise SkipTest",
        "self.skipTest('x')",
        "pytest.importorskip('nothing')",
        "helper()",
    ],
)
def test_skipping_inside_an_existing_test_is_found(line: str):
    source = PLAIN + "\ndef helper():\n    deeper()\n\ndef deeper():\n    pytest.skip('no')\n"
    body = "def test_two():\n"
    assert weakened(source, source.replace(body, f"{body}    {line}\n")) == SKIPPED
    assert weakened(source, source.replace(body, f"{body}    reader.skip(1)\n    pytest_skip = 1\n")) == []


@pytest.mark.parametrize(
    "head",
    [
        "pytestmark = pytest.mark.skip\n",
        "pytestmark = [pytest.mark.slow, pytest.mark.xfail]\n",
        "pytest.skip('all', allow_module_level=True)\n",
        "import sys\nif sys.argv:\n    raise unittest.SkipTest('all')\n",
        "__test__ = False\n",
        "def setup_module():\n    pytest.skip('all')\n",
        "@pytest.fixture(autouse=True)\ndef gate():\n    pytest.skip('all')\n",
        "np = pytest.importorskip('numpy')\n",
    ],
)
def test_skipping_a_whole_file_is_reported_once(head: str):
    (finding,) = findings({"tests/test_a.py": PLAIN}, {"tests/test_a.py": head + PLAIN})
    assert (finding.rule, finding.severity, finding.line) == ("test_skipped", "warning", None)
    assert weakened(head + PLAIN, head + PLAIN + "\n# more\n") == []
    assert weakened(head + PLAIN, PLAIN) == []


def test_marks_behind_aliases_are_seen():
    for head, mark in [
        ("import pytest as pt\n", "@pt.mark.skip"),
        ("from pytest import mark as m\n", "@m.skip"),
        ("later = pytest.mark.skip\n", "@later"),
        ("from unittest import skip as s\n", "@s"),
    ]:
        source = head + PLAIN
        assert weakened(source, source.replace("def test_two", f"{mark}\ndef test_two")) == SKIPPED
        assert weakened(PLAIN, f"{source}\n{mark}\ndef test_new():\n    assert f()\n") == []


def test_an_existing_skip_may_change_its_reason_but_not_its_condition():
    old = "import pytest\n@pytest.mark.skipif(OLD, reason='a')\ndef test_one():\n    assert f()\n"
    assert weakened(old, old.replace("'a'", "'b'")) == []
    assert weakened(old, old.replace("OLD", "True")) == SKIPPED
    assert weakened(old, old.replace("@pytest.mark.skipif(OLD, reason='a')\n", "")) == []


def test_a_condition_around_an_existing_test_is_a_skip():
    old = "def test_one():\n    assert f()\n"
    assert weakened(old, "if sys.platform == 'win32':\n    def test_one():\n        assert f()\n") == SKIPPED


@pytest.mark.parametrize(
    "body", ["pass", "...", "'later'", "assert True", "return\n    assert f() == 2", "assert 1 == 1"]
)
def test_an_emptied_test_is_found(body: str):
    new = PLAIN.replace("assert f() == 2", body)
    assert weakened(PLAIN, new) == SKIPPED
    assert weakened(new, new + "\n# more\n") == []
    assert weakened(new, PLAIN) == []


def test_a_test_moved_and_skipped_on_the_way_is_found():
    moved = "import pytest\n@pytest.mark.skip\ndef test_two():\n    assert f() == 2\n"
    old = {"tests/test_a.py": PLAIN, "tests/test_b.py": "def test_b():\n    assert g()\n"}
    kept = PLAIN[: PLAIN.index("def test_two")]
    assert rules(old, {**old, "tests/test_a.py": kept, "tests/test_c.py": moved}) == [
        ("test_skipped", "warning", "tests/test_c.py")
    ]
    clean = moved.replace("@pytest.mark.skip\n", "")
    assert rules(old, {**old, "tests/test_a.py": kept, "tests/test_c.py": clean}) == []


def test_a_removed_test_is_reported_despite_an_equal_name_in_another_file():
    old = {"tests/test_a.py": PLAIN, "tests/test_b.py": PLAIN}
    kept = PLAIN[: PLAIN.index("def test_two")]
    assert rules(old, {**old, "tests/test_b.py": kept}) == [("test_removed", "warning", "tests/test_b.py")]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("assert a == 1\n    assert b == 2", "assert a == 1", FEWER),
        ("assert a == 1\n    assert b == 2", "assert a == 1\n    assert True", FEWER),
        ("assert a == 1\n    assert b == 2", "assert a == 1\n    assert b == 3 or True", FEWER),
        ("self.assertEqual(a, 1)\n    self.assertTrue(b)", "self.assertTrue(b)", FEWER),
        ("with pytest.raises(E):\n        f()\n    assert b", "f()\n    assert b", FEWER),
        ("assert a == 1\n    assert b == 2", "assert b == 2\n    assert a == 3", []),
        ("assert a == 1", "assert a == 1\n    assert b == 2", []),
        ("assert a == approx(1, rel=1e-6)", "assert a == approx(1, rel=1e-2)", LOOSER),
        ("assert a == approx(1, 1e-6)", "assert a == approx(1, 0.1)", LOOSER),
        ("assert a == approx(1, abs=10**-6)", "assert a == approx(1, abs=10**-1)", LOOSER),
        ("assert isclose(a, 1, rel_tol=1e-9)", "assert isclose(a, 1, rel_tol=1e-3)", LOOSER),
        ("self.assertAlmostEqual(a, 1, places=7)", "self.assertAlmostEqual(a, 1, places=2)", LOOSER),
        ("self.assertAlmostEqual(a, 1, 7)", "self.assertAlmostEqual(a, 1, 2)", LOOSER),
        ("assert a == 1", "assert a == approx(1)", LOOSER),
        ("assert a == approx(1, rel=1e-2)", "assert a == approx(1, rel=1e-6)", []),
        ("self.assertAlmostEqual(a, 1, places=2)", "self.assertAlmostEqual(a, 1, places=7)", []),
        ("assert a == approx(1)", "assert a == 1", []),
    ],
)
def test_assertions_and_tolerances(old: str, new: str, expected: list[tuple[str, str]]):
    assert weakened(f"def test_x(self):\n    {old}\n", f"def test_x(self):\n    {new}\n") == expected


def test_fewer_parameter_sets_are_reported():
    old = "@pytest.mark.parametrize('x', [1, 2, 3])\ndef test_x(x):\n    assert f(x)\n"
    assert weakened(old, old.replace(", 3", "")) == FEWER
    assert weakened(old, old.replace(", 3", ", 3, 4")) == []
    assert weakened(old, old.replace("[1, 2, 3]", "all_cases()")) == []


def test_source_that_cannot_be_parsed_is_read_by_patterns():
    broken = "def (:\n" + PLAIN
    assert weakened(PLAIN, broken) == []
    assert weakened(PLAIN, broken.replace("def test_two", "def two")) == REMOVED
    assert weakened(PLAIN, broken.replace("def test_two():", "def test_two():\n    pytest.skip('x')")) == SKIPPED
    assert weakened(PLAIN, "(" * 5000 + PLAIN) == []
    assert weakened(PLAIN, "\0" + PLAIN) == [("binary_file", "warning")]


def test_tests_that_are_gone_wait_for_a_person_once_for_each_file():
    names = [f"test_{number}" for number in range(52)]
    many = "\n".join(f"def {name}():\n    assert f({name[5:]})\n" for name in names)
    skipped = many.replace("def test", "@pytest.mark.skip\ndef test")
    kept = many[: many.index("def test_2(")]
    for new, rule in ((kept, "test_removed"), (skipped, "test_skipped"), ("", "test_removed")):
        (finding,) = findings({"tests/test_a.py": many, "a.py": ""}, {"tests/test_a.py": new, "a.py": ""})
        assert (finding.rule, finding.severity, finding.needs_person) == (rule, "warning", True)
        assert finding.message.count("test_") == 5, finding.message
    (deleted,) = findings({"tests/test_a.py": many}, {})
    assert (deleted.rule, deleted.severity, deleted.needs_person) == ("test_deleted", "warning", True)


def test_tests_with_equal_names_may_be_renamed_in_place():
    one = "  it('shuold fail', () => { expect(%d).toBe(1) })\n"
    old = "".join(f"describe('{n}', () => {{\n{one % n}}})\n" for n in range(21))
    assert weakened(old, old.replace("shuold", "should"), "a.test.js") == []
    assert weakened(old, old.replace("shuold", "should", 20), "a.test.js") == []
    # One assertion is gone, and its replacement asserts something else.
    lost = old.replace("shuold", "should").replace("expect(7).toBe(1)", "expect(1).toBe(1)")
    assert weakened(old, lost, "a.test.js") == REMOVED


JS = (
    "describe('sum', () => {\n"
    "  it('adds', () => { expect(1).toBe(1) })\n"
    "  test(`zero`, () => { expect(0).toBe(0) })\n"
    "})\n"
)
GO = (
    "package a\n"
    "\n"
    "func TestA(t *testing.T) {\n"
    "\tif f() != 1 { t.Fatal() }\n"
    "}\n"
    "\n"
    "func TestB(t *testing.T) {\n"
    "\tt.Error()\n"
    "}\n"
)
RUST = (
    "fn f() {}\n"
    "#[cfg(test)]\n"
    "mod tests {\n"
    "    #[test]\n"
    "    fn one() { assert_eq!(1, 1); }\n"
    "    #[test]\n"
    "    fn two() { assert!(true); }\n"
    "}\n"
)
JAVA = (
    "class ATest {\n"
    "  @Test\n"
    "  void one() { assertEquals(1, 1); }\n"
    "  @Test\n"
    "  public void two() { assertTrue(x); }\n"
    "}\n"
)
RUBY = (
    "describe 'x' do\n"
    "  it 'adds' do\n"
    "    expect(1).to eq 1\n"
    "  end\n"
    "  it 'zero' do\n"
    "    expect(0).to eq 0\n"
    "  end\n"
    "end\n"
)


@pytest.mark.parametrize(
    ("path", "old", "new", "expected"),
    [
        ("a.test.js", JS, JS.replace("it('adds'", "it.skip('adds'"), SKIPPED),
        ("a.test.js", JS, JS.replace("it('adds'", "xit('adds'"), SKIPPED),
        ("a.test.ts", JS, JS.replace("test(`zero`", "test.todo(`zero`"), SKIPPED),
        ("a.test.ts", JS, JS.replace("test(`zero`", "test.only(`zero`"), SKIPPED),
        ("a.spec.tsx", JS, JS.replace("describe(", "describe.skip("), SKIPPED),
        ("a.spec.tsx", JS, JS.replace("describe(", "xdescribe("), SKIPPED),
        ("__tests__/a.js", JS, JS.replace("describe(", "describe.only("), SKIPPED),
        ("a.test.js", JS, JS.replace("it('adds'", "it('sums'"), []),
        ("a.test.js", JS, JS.replace("it('adds'", "it.skip('sums'"), REMOVED),
        (
            "a.test.js",
            JS,
            JS.replace("it('adds', () => { expect(1).toBe(1)", "it('sums', () => { expect(1).toBe(2)"),
            REMOVED,
        ),
        ("a_test.go", GO, GO.replace("func TestB", "func TestC"), []),
        ("src/lib.rs", RUST, RUST.replace("fn two", "fn second"), []),
        ("a.test.js", JS, JS.replace("  it('adds'", "  // it('adds'"), REMOVED),
        ("a.test.js", JS, JS.replace("describe(", "/* describe(") + "*/", REMOVED),
        ("a.test.js", JS, JS.replace("expect(0).toBe(0)", ""), FEWER),
        ("a.test.js", JS, JS.replace("toBe(1)", "toBe('http://x // y')") + "it('new', () => {})\n", []),
        ("a_test.go", GO, GO.replace("\tt.Error()", "\tt.Skip()"), [*SKIPPED, *FEWER]),
        ("a_test.go", GO, GO.replace("func TestB", "func testB"), REMOVED),
        ("a_test.go", GO, "//go:build ignore\n" + GO, SKIPPED),
        ("a_test.go", GO, GO + "\nfunc TestC(t *testing.T) {\n\tt.Skip()\n}\n", []),
        ("src/lib.rs", RUST, RUST.replace("#[test]\n    fn two", "#[test]\n    #[ignore]\n    fn two"), SKIPPED),
        ("src/lib.rs", RUST, RUST.replace("#[test]\n    fn two", "fn two"), REMOVED),
        ("src/lib.rs", RUST, RUST.replace("fn f() {}", "fn f() { g() }"), []),
        ("src/test/java/ATest.java", JAVA, JAVA.replace("@Test\n  public", "@Disabled @Test\n  public"), SKIPPED),
        ("src/test/java/ATest.java", JAVA, "@Disabled\n" + JAVA, SKIPPED),
        ("src/test/java/ATest.java", JAVA, JAVA.replace("@Test\n  public", "public"), REMOVED),
        ("src/test/java/ATest.java", JAVA, JAVA.replace("class", "final class"), []),
        ("spec/a_spec.rb", RUBY, RUBY.replace("it 'zero'", "xit 'zero'"), SKIPPED),
        ("spec/a_spec.rb", RUBY, RUBY.replace("    expect(0)", "    skip\n    expect(0)"), SKIPPED),
        ("spec/a_spec.rb", RUBY, RUBY.replace("  it 'zero'", "  # it 'zero'"), REMOVED),
        ("spec/a_spec.rb", RUBY, RUBY + "it 'new' do\nend\n", []),
    ],
)
def test_other_languages(path: str, old: str, new: str, expected: list[tuple[str, str]]):
    found = weakened(old, new, path)
    assert expected == [] or set(expected) <= set(found)
    assert {rule for rule, _ in found if rule in ASKED} == {rule for rule, _ in expected if rule in ASKED}


def test_hostile_sources_are_read_in_linear_steps():
    for path, piece in [("a.test.js", "/*"), ("src/a.rs", "#[a]\n"), ("a_test.go", "`"), ("a.test.js", "it(")]:
        assert weakened("", piece * 100_000, path) in ([], SKIPPED)
    deep = "x = " + "+".join(["1"] * 20_000) + "\n"
    assert weakened(PLAIN, deep + PLAIN) == weakened(None, deep) == []
    assert weakened(PLAIN, deep) == REMOVED
