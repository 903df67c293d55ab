"""Edits that replace expected values stay inside their tests; every other edit may reach tests of other files."""

from __future__ import annotations

import pytest

from chargehand.checks.suites.literals import stays_inside

PYTHON = """import calc
import pytest

TABLE = [1, 2]


def test_price():
    want = 6
    got = calc.price(2)
    assert got == want
    with pytest.raises(ValueError, match="negative"):
        calc.price(-1)


class TestRates:
    def test_rate(self):
        self.assertEqual(calc.rate("a"), 3)
        calc.LIMIT = 4
"""
GO = """package calc

import "testing"

var table = []int{1, 2}

func TestPrice(t *testing.T) {
	got := Price(2)
	if got != 6 {
		t.Errorf("price is %d", got)
	}
	limit = 4
	for _, each := range []row{
		{"six", 6},
	} {
		write("rates.txt", each)
	}
}
"""
JAVASCRIPT = """const calc = require("../calc");
const table = [1, 2];

test("price", () => {
  expect(calc.price(2)).toBe(6);
  jest.mock("../rate", 3);
  expect(calc.say(6)).toBe(
    "six",
  );
  expect(calc.read("table")).toBe(3);
  expect(name).toBe("six");
});
"""


@pytest.mark.parametrize(
    ("path", "text", "old", "new", "inside"),
    [
        ("test_calc.py", PYTHON, "want = 6", "want = 7", True),
        ("test_calc.py", PYTHON, '"negative"', '"below zero"', True),
        ("test_calc.py", PYTHON, 'rate("a"), 3', 'rate("a"), 5', True),
        ("test_calc.py", PYTHON, "want = 6", "want = 6\n    assert got > 2", True),
        ("test_calc.py", PYTHON, "got == want", "got >= want", True),
        ("test_calc.py", PYTHON, "assertEqual", "assertLess", True),
        # The second one calls its second argument.
        ("test_calc.py", PYTHON, "assertEqual", "assertRaises", False),
        ("test_calc.py", PYTHON, "assertEqual", "assertOwn", False),
        ("test_calc.py", PYTHON, "self.assertEqual", "self.skipTest", False),
        # A string that code is called with may be a path.
        ("test_calc.py", PYTHON, 'rate("a"), 3', 'rate("b"), 3', False),
        ("test_calc.py", PYTHON, "want = 6", 'want = "calc.py"', False),
        # Another file may import it.
        ("test_calc.py", PYTHON, "TABLE = [1, 2]", "TABLE = []", False),
        ("test_calc.py", PYTHON, "TABLE = [1, 2]", "TABLE = [1, 3]", False),
        # It outlasts the test.
        ("test_calc.py", PYTHON, "calc.LIMIT = 4", "calc.LIMIT = 5", False),
        ("test_calc.py", PYTHON, "got == want", "got", False),
        ("test_calc.py", PYTHON, "calc.price(2)", "calc.price.start()", False),
        ("test_calc.py", PYTHON, "want = 6", "calc.price = lambda n: 6", False),
        ("test_calc.py", PYTHON, "want = 6", 'want = setattr(calc, "price", 6)', False),
        ("test_calc.py", PYTHON, "assert got == want", "assert True", False),
        ("calc_test.go", GO, "got != 6", "got != 7", True),
        ("calc_test.go", GO, '"price is %d"', '"the price is %d"', True),
        ("calc_test.go", GO, "{1, 2}", "{}", False),
        ("calc_test.go", GO, "{1, 2}", "{1, 3}", False),
        ("calc_test.go", GO, "limit = 4", "limit = 5", False),
        ("calc_test.go", GO, "got != 6", "got != got", False),
        ("calc_test.go", GO, '"rates.txt"', '"price.go"', False),
        ("calc_test.go", GO, '"six", 6', '"six", 7', True),
        ("calc_test.go", GO, '"six", 6', '"calc.go", 6', False),
        ("calc.test.js", JAVASCRIPT, "toBe(6)", "toBe(7)", True),
        ("calc.test.js", JAVASCRIPT, 'name).toBe("six")', 'name).toBe("seven")', True),
        ("calc.test.js", JAVASCRIPT, '"table"', '"calc.js"', False),
        ("calc.test.js", JAVASCRIPT, "[1, 2]", "[1, 3]", False),
        ("calc.test.js", JAVASCRIPT, '"../rate", 3', '"../rate", 4', False),
        ("calc.test.js", JAVASCRIPT, '"../calc"', '"../other"', False),
        ("calc_test.rb", "assert_equal 1, price\n", "1", "2", False),
    ],
)
def test_only_edits_of_expected_values_stay_inside_their_test(
    path: str, text: str, old: str, new: str, inside: bool
) -> None:
    assert text.count(old) == 1
    assert stays_inside(path, text, text) is True
    assert stays_inside(path, text, text.replace(old, new)) is inside


def test_an_edited_statement_with_effects_on_other_code_is_not_inside() -> None:
    text = "def test_a(monkeypatch):\n    assert monkeypatch.setattr('calc.price', 1) is None\n"
    assert not stays_inside("test_a.py", text, text.replace("calc.price", "calc.rate"))
    shared = "def test_a():\n    global LIMIT\n    LIMIT = 1\n"
    assert not stays_inside("test_a.py", shared, shared.replace("1", "2"))


def test_an_assertion_of_another_object_is_compared_as_it_is() -> None:
    text = "import kit\n\n\ndef test_a():\n    kit.assertTrue(1, 1)\n"
    assert not stays_inside("test_a.py", text, text.replace("assertTrue", "assertEqual"))


def test_text_that_cannot_be_parsed_does_not_stay_inside() -> None:
    assert not stays_inside("test_a.py", "def test_a(:\n", "def test_b(:\n")
