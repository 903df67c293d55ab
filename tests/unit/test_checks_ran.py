"""The tests of the base that did not run on a tree, by the runners' output."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.checks.ran_tests import (
    RanTests,
    TestMoves,
    count_in_output,
    find_lost_tests,
    names_in_reports,
)
from chargehand.checks.runners.node import NodeTest
from chargehand.checks.runners.table import RUNNERS

GO = """=== RUN   TestAdd
--- PASS: TestAdd (0.00s)
    --- PASS: TestAdd/one (0.00s)
--- SKIP: TestOld (0.00s)
ok  	calc	0.1s
"""
CARGO = """running 3 tests
test adds ... ok
test inner::takes ... FAILED
test slow ... ignored

test result: FAILED. 1 passed; 1 failed;
"""
# Names of binaries and of their tests are on different streams; a binary's name may precede the last one's
# results.
WORKSPACE = """     Running unittests src/lib.rs (target/debug/deps/one-0123456789abcdef)
     Running unittests src/lib.rs (target/debug/deps/two-0123456789abcdef)

running 1 test
test tests::it ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

   Doc-tests one

running 1 test
test tests::it ... ok

running 1 test
test src/lib.rs - f (line 1) ... ok
"""
CTEST = """    Start 1: api_test
1/4 Test #1: api_test .........................   Passed    0.02 sec
    Start 2: roundtrip
2/4 Test #2: roundtrip ........................***Failed    0.10 sec
3/4 Test #3: spec .............................***Not Run   0.00 sec
4/4 Test #4: later ............................***Skipped   0.00 sec

50% tests passed, 1 tests failed out of 4
"""
TAP = """TAP version 13
# Subtest: adds
ok 1 - adds
  ---
  ...
    ok 1 - inner
ok 2 - later # TODO
ok 3 - never # SKIP why
not ok 4 - bad
"""
SPEC = """✔ adds (1.2ms)
▶ group
  ✔ inner (0.3ms)
﹣ never (0.1ms) # SKIP
✔ later (0.1ms) # TODO
ℹ tests 4
ℹ pass 2
"""
UNITTEST = """test_add (test_calc.TestCalc.test_add) ... ok
test_doc (test_calc.TestCalc.test_doc)
What it is about. ... ok
test_old (test_calc.TestCalc) ... FAIL
test_never (test_calc.TestCalc.test_never) ... skipped 'later'

Ran 4 tests in 0.001s
"""
PRINTING = f"""setUpClass (a.S) ... skipped 'no'
test_a (a.T.test_a) ... look
ok
test_b (a.T.test_b)
It (ok) ... it is. ... looseok
test_c (a.T.test_c) ... expected failure
f (a)
Doctest: a.f ... ok

{"-" * 70}
Ran 4 tests in 0.001s

OK (skipped=1, expected failures=1)
"""
# Up to Python 3.10 a test with failed subtests has no result line.
SUBTESTS = f"""test_a (a.T) ... test_b (a.T) ... skipped 'x'
test_c (a.T) ...
  test_c (a.T) (i=1) ... skipped 'x'
test_c (a.T) ... ok

{"=" * 70}
FAIL: test_a (a.T) (i=1)
{"-" * 70}
ok

{"-" * 70}
Ran 3 tests in 0.001s

FAILED (failures=1, skipped=2)
"""
JEST = """  calc
    ✓ adds (3 ms)
    ○ skipped never
    ✕ bad
"""


@pytest.mark.parametrize(
    ("runner", "text", "names"),
    [
        ("go", GO, ("calc::TestAdd", "calc::TestAdd/one")),
        ("cargo", CARGO, ("adds", "inner::takes")),
        (
            "unittest",
            UNITTEST,
            ("test_calc.TestCalc::test_add", "test_calc.TestCalc::test_doc", "test_calc.TestCalc::test_old"),
        ),
        ("cargo", "test it ... ok\ntest it ... ok\n", ("it", "it")),
        ("go", "--- PASS: TestA\nok  \tx\n--- PASS: TestA\nFAIL\nFAIL\ty\t0.1s\n", ("x::TestA", "y::TestA")),
        ("go", "--- PASS: TestA\npanic: out of time\n", ("TestA",)),
        (
            "cargo",
            WORKSPACE,
            ("one src/lib.rs::tests::it", "one::src/lib.rs - f (line 1)", "two src/lib.rs::tests::it"),
        ),
        (
            "cargo",
            WORKSPACE.replace("Doc-tests one", "Doc-tests"),
            ("src/lib.rs - f (line 1)", "tests::it", "tests::it"),
        ),
        ("node", "✔ a (1ms)\n✖ b (1ms)\n\n✖ failing tests:\n\n✖ b (1ms)\n✔ a (1ms)\n", ("a", "a", "b")),
        ("node", TAP, ("adds", "adds::inner", "bad")),
        ("node", SPEC, ("adds", "inner")),
        ("node", JEST, ("adds", "bad")),
        (
            "node",
            "ok 1 - a.js # time=21.3ms {\n    ok 1 - adds\n}\nok 2 - b.js # time=1s\n",
            ("a.js", "a.js::adds", "b.js"),
        ),
        ("node", " ✓ test/a.test.ts (24 tests) 9ms\n   ✓ slow 320ms\n\n Tests  24 passed (24)\n", None),
        # vitest 1 writes two spaces.
        ("node", " ✓ test/a.test.ts  (24 tests) 9ms\n\n Tests  24 passed (24)\n", None),
        ("node", " ❯ |ts| test/a.test.ts  (2 tests | 1 failed) 9ms\n\n Tests  1 failed, 1 passed (2)\n", None),
        ("node", " ✓ test/a.test.ts (24 tests | 1 skipped) 9ms\n\n Tests  23 passed (24)\n", None),
        (
            "node",
            " ✓ test/a.test.ts > adds 9ms\n ✓ test/a.test.ts > zero\n",
            ("test/a.test.ts > adds", "test/a.test.ts > zero"),
        ),
        ("go", "ok  \tcalc\t0.1s\n", None),
        ("unittest", PRINTING, ("a.T::test_a", "a.T::test_b", "a.T::test_c", "a::f")),
        ("unittest", SUBTESTS, ("a.T::test_a", "a.T::test_c")),
        # A hidden name leaves only the count.
        ("unittest", PRINTING.replace("test_b (a.T.test_b)\nIt", "test_b(a.T.test_b):"), None),
        ("unittest", PRINTING.replace("Ran 4", "Ran 5"), None),
        ("plain", PRINTING, ("a.T::test_a", "a.T::test_b", "a.T::test_c", "a::f")),
        ("plain", CTEST, ("api_test", "roundtrip")),
        ("plain", TAP, None),
    ],
)
def test_names(runner: str, text: str, names: tuple[str, ...] | None) -> None:
    assert RUNNERS[runner].names(text) == names


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("[INFO] Tests run: 12, Failures: 0, Errors: 0, Skipped: 2\n", 10),
        ("[WARNING] Tests run: 3, Failures: 0, Errors: 0, Skipped: 1\n", 2),
        ("Ran 4 tests in 0.001s\n\nOK\n", 4),
        ("Ran 4 tests in 0.001s\n\nOK (skipped=3)\n", 1),
        ("Ran 4 tests in 0.001s\n\nFAILED (failures=1, skipped=2, expected failures=1)\n", 2),
        ("Tests:       1 failed, 2 skipped, 5 passed, 8 total\n", 5),
        (" Tests  1 failed | 7 passed (8)\n", 7),
        ("  12 passing (30ms)\n  1 pending\n", 12),
        ("==== 5 passed, 1 skipped in 0.10s ====\n", 5),
        ("62 passed in 1.2s\n", 62),
        ("100% tests passed, 0 tests failed out of 9\n", 9),
        ("OK (5 tests, 9 assertions)\n", 5),
        ("12 examples, 0 failures\n", 12),
        ("test result: ok. 103 passed; 0 failed;\ntest result: ok. 2 passed; 0 failed;\n", 105),
        ("# tests 3\n# pass 3\n", 3),
        ("all good\n", None),
        ("", None),
    ],
)
def test_counts(text: str, count: int | None) -> None:
    assert count_in_output(text) == count


def lost(
    before: tuple[str, ...] | int | None,
    after: tuple[str, ...] | int | None,
    *,
    check: str = "c",
    moves: TestMoves | None = None,
) -> list[str]:
    found = find_lost_tests([ran(before, check)], [ran(after, check)], moves or TestMoves())
    assert all(each.needs_person and each.rule == "tests_lost" for each in found)
    return [each.message for each in found]


def ran(tests: tuple[str, ...] | int | None, check: str) -> RanTests:
    if isinstance(tests, tuple):
        return RanTests(check=check, names=tests, count=len(tests))
    return RanTests(check=check, count=tests)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (("a::one", "a::two"), ("a::one",), "1 tests that ran on the base did not run: a::two"),
        (("a::one", "a::two"), ("a::one", "a::new"), "1 tests that ran on the base did not run: a::two"),
        (("a::t[1]", "a::t[2]"), ("a::t[1]",), "1 tests that ran on the base did not run: a::t[2]"),
        (103, 62, "103 tests ran on the base and 62 on the tree"),
        (("a", "b"), 1, "2 tests ran on the base and 1 on the tree"),
        (3, 0, "3 tests ran on the base and 0 on the tree"),
    ],
)
def test_lost_tests_are_reported(before: tuple[str, ...] | int, after: tuple[str, ...] | int, said: str) -> None:
    assert lost(before, after) == [f"c: {said}"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("a::one",), ("a::one", "a::two")),
        (("a::one",), ("b::one",)),
        (("a.T::one", "a.T::two"), ("b.U::two", "b.U::one")),
        (2, 3),
        (None, 3),
        (None, ("a",)),
    ],
)
def test_added_or_moved_tests_are_not_reported_as_lost(
    before: tuple[str, ...] | int | None, after: tuple[str, ...] | int | None
) -> None:
    assert lost(before, after) == []


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        # Two packages have a test of this name: one of them is gone.
        (("T", "T"), ("T",), ["T"]),
        (("a::one", "a::two"), ("a::one", "b::2"), []),
        (("a::one", "a::two"), ("a::one",), ["a::two"]),
        # One new name replaces one old name.
        (("a::two", "b::two"), ("a::2",), ["b::two"]),
        (("a::two[x]", "a::two[y]"), ("a::2[x]", "a::2[y]"), []),
        (("a::two[x]", "a::two[y]"), ("a::2[x]",), ["a::two[y]"]),
    ],
)
def test_a_renamed_test_is_lost_if_its_new_name_does_not_run(
    before: tuple[str, ...], after: tuple[str, ...], said: list[str]
) -> None:
    found = lost(before, after, check="pytest -q", moves=TestMoves(renamed={"two": "2"}))
    assert [message.partition("did not run: ")[2] for message in found] == said


@pytest.mark.parametrize(
    ("check", "before", "after", "kept"),
    [
        ("pytest -q", ("a::t[1]", "a::t[2]"), ("a::t[1-x]", "a::t[2-x]"), True),
        ("python -m unittest", ("a.T::test_0_x", "a.T::test_1_y"), ("a.T::test_0_x", "a.T::test_1_z"), True),
        ("python -m unittest", ("a.T::test_0_x", "a.T::test_1_y"), ("a.T::test_0_x", "a.T::test_2_y"), False),
        ("python -m unittest", ("a.T::test_0_x",), ("a.U::test_0_y",), False),
        ("python -m unittest", ("a.T::test_0", "a.T::test_1"), ("a.T::test_1", "a.T::test_2"), False),
        ("go test ./...", ("TestAdd/one", "TestAdd"), ("TestAdd/first", "TestAdd"), True),
        ("npm test", ("GET /orders",), ("GET /x",), False),
        ("npm test", ("adds [fast]",), ("adds [slow]",), False),
        ("cargo test", ("a::b/c",), ("a::b/d",), False),
        # An example in the documentation, moved by another line above it.
        ("cargo test", ("src/lib.rs - f (line 3)",), ("src/lib.rs - f (line 4)",), True),
        ("cargo test", ("src/lib.rs - (line 3) - compile",), ("src/lib.rs - (line 2) - compile",), True),
        ("cargo test", ("src/lib.rs - f (line 3) - compile fail",), ("src/lib.rs - f (line 3)",), False),
        (
            "cargo test",
            ("src/lib.rs - f (line 3)", "src/lib.rs - f (line 9)"),
            ("src/lib.rs - f (line 9)",),
            False,
        ),
    ],
)
def test_variants_are_those_of_the_runner(
    check: str, before: tuple[str, ...], after: tuple[str, ...], kept: bool
) -> None:
    assert (lost(before, after, check=check) == []) == kept


@pytest.mark.parametrize(
    ("check", "before", "after", "said"),
    [
        # A third package has a new test of this name, which does not replace the missing one.
        ("go test ./...", ("a::TestParse", "b::TestParse"), ("b::TestParse", "c::TestParse"), ["a::TestParse"]),
        (
            "go test ./...",
            ("a::TestP", "a::TestP/one", "b::TestP", "b::TestP/one"),
            ("a::TestP", "b::TestP", "b::TestP/one", "b::TestP/two"),
            ["a::TestP/one"],
        ),
        (
            "cargo test",
            ("one lib::t::it", "two lib::t::it"),
            ("one lib::t::it", "one new::t::it"),
            ["two lib::t::it"],
        ),
        ("mvn -B test", ("m/a.T::t", "n/a.T::t"), ("n/a.T::t", "n/a.U::t"), ["m/a.T::t"]),
        ("pytest -q", ("a.T::t[a::b]", "a.U::t[c]"), ("a.U::t[c]", "a.V::t[a::b]"), ["a.T::t[a::b]"]),
    ],
)
def test_a_rewritten_test_does_not_replace_a_missing_test_of_the_same_name(
    check: str, before: tuple[str, ...], after: tuple[str, ...], said: list[str]
) -> None:
    found = lost(before, after, check=check, moves=TestMoves(rewritten={"TestParse", "TestP", "it", "t"}))
    assert [message.partition("did not run: ")[2] for message in found] == said
    if not any("/" in name.partition("::")[2] for name in said):
        assert lost(before, after, check=check) == []


SAME = "# Subtest: one\n    ok 1 - it\nok 1 - one\n# Subtest: two\n    ok 1 - it\nok 2 - two\n"


def test_node_tests_are_named_with_their_group() -> None:
    assert NodeTest().names(SAME) == ("one", "one::it", "two", "two::it")


@pytest.mark.parametrize(
    ("check", "before", "after", "added", "said"),
    [
        # Another file has a new test of this name, and the number of tests is unchanged.
        ("npm test", ("it", "it"), ("it", "it"), {"it": 1}, "1 tests that ran on the base did not run: it"),
        ("npm test", ("it", "it"), ("it", "it", "it"), {"it": 1}, ""),
        ("npm test", ("it",), ("it",), {"new": 1}, ""),
        ("npm test", ("it",), ("it",), {"it": -1}, ""),
        ("pytest", ("a::it", "b::it"), ("a::it", "b::it"), {"it": 1}, ""),
        ("make", 10, 10, {"it": 1}, "10 tests ran on the base, 1 were added and 10 on the tree"),
        ("make", 10, 11, {"it": 1}, ""),
        ("make", 10, 10, {"it": 1, "old": -1}, ""),
        ("make", 10, 10, {"old": -1}, ""),
    ],
)
def test_a_new_test_does_not_replace_a_lost_test(
    check: str,
    before: tuple[str, ...] | int,
    after: tuple[str, ...] | int,
    added: dict[str, int],
    said: str,
) -> None:
    found = lost(before, after, check=check, moves=TestMoves(added={check: added}))
    assert any(said in message for message in found) if said else not found


@pytest.mark.parametrize("check", ["go test ./...", "npm test", "sh test.sh", "python3 -m unittest"])
@pytest.mark.parametrize("before", [3, ("a::one", "a::two", "a::three")])
def test_a_run_that_reports_no_test_loses_all_of_them(check: str, before: tuple[str, ...] | int) -> None:
    (message,) = lost(before, None, check=check)
    assert "3 tests ran on the base, and the run on the tree reports none" in message
    assert lost(None, None, check=check) == lost((), None, check=check) == []
    assert lost(("a::one",), 1, check=check) == []
    assert "1 tests ran on the base and 0 on the tree" in lost(("a::one",), 0, check=check)[0]


def test_variants_of_a_method_with_new_parameter_types_are_not_lost() -> None:
    before, after = ("a.T::t(int)[1]", "a.T::t(int)[2]"), ("a.T::t(long)[1]", "a.T::t(long)[2]")
    assert lost(before, after, check="mvn -B test") == []


def test_names_in_reports_have_their_module() -> None:
    report = (
        b'<testsuite><testcase name="t" classname="a.T"/>'
        b'<testcase name="u" classname="a.T"><skipped/></testcase></testsuite>'
    )
    reports = {"target/surefire-reports/TEST-a.T.xml": report, "m/n/build/test-results/test/TEST-a.T.xml": report}
    assert names_in_reports(reports)[0] == ("a.T::t", "m/n/a.T::t")
    assert names_in_reports({**reports, "x/target/surefire-reports/TEST-b.xml": b"<!DOCTYPE"}) == (None, None)
    assert names_in_reports({}) == (None, None)


def test_checks_are_compared_with_themselves() -> None:
    before = [RanTests(check="one", count=3), RanTests(check="two", count=5)]
    assert (
        find_lost_tests(before, [RanTests(check="two", count=5), RanTests(check="new", count=1)], TestMoves())
        == ()
    )


@given(st.sets(st.text("abc:[]/", min_size=1, max_size=6)), st.data())
def test_every_test_that_did_not_run_is_reported(names: set[str], data: st.DataObject) -> None:
    kept = data.draw(st.sets(st.sampled_from(sorted(names)))) if names else set[str]()
    assert bool(lost(tuple(sorted(names)), tuple(sorted(kept)))) == (kept != names)
