"""A changed test must still notice the faults that it noticed before: faults are tried on both of its versions."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command_line import Cli, Completed, repository, shell
from tests.conftest import sampled
from tests.integration.test_lost_tests import HAS_CARGO, encode, rewrite

pytestmark = pytest.mark.needs_bwrap

CALC = """def add(a, b):
    return a + b


def price(count, each):
    if count > 10:
        return count * each - 5
    return count * each
"""
TESTS = """import unittest
from calc import add, price


class T(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(2, 1), 3)

    def test_price(self):
        self.assertEqual(price(2, 3), 6)
        self.assertEqual(price(11, 2), 17)
"""
PYTHON = {"calc.py": CALC, "test_calc.py": TESTS}
ADD, PRICE = "self.assertEqual(add(2, 1), 3)", "self.assertEqual(price(11, 2), 17)"
SOFT = {
    "itself": TESTS.replace(ADD, "self.assertEqual(add(2, 1), add(2, 1))"),
    "overwritten": TESTS.replace(
        "    def test_add", "    def assertEqual(self, *values):\n        pass\n\n    def test_add"
    ),
    "caught": TESTS.replace(ADD, f"try:\n            {ADD}\n        except AssertionError:\n            pass"),
    "loose": TESTS.replace(PRICE, "self.assertIn(price(11, 2), range(100))"),
    "true": TESTS.replace(ADD, "self.assertTrue(add(2, 1))"),
    "near": TESTS.replace(ADD, "self.assertAlmostEqual(add(2, 1), 3, delta=9)"),
    "patched": "import calc\ncalc.add = lambda a, b: 3\n" + TESTS,
    "early": TESTS.replace(f"        {ADD}", f"        if add(0, 0) == 0:\n            return\n        {ADD}"),
}
HONEST = {
    "another form": TESTS.replace(ADD, "total = add(2, 1)\n        self.assertEqual(total, 3)"),
    "a helper": TESTS.replace(ADD, "self.check(add(2, 1), 3)")
    + "\n    def check(self, found, wanted):\n        self.assertEqual(found, wanted)\n",
    "one more": TESTS + "\n    def test_zero(self):\n        self.assertEqual(add(0, 0), 0)\n",
    "other values": TESTS.replace(ADD, "self.assertEqual(add(7, 4), 11)"),
    "tidied": TESTS.replace("class T", "# What the till adds up.\nclass T"),
}
NODE = {
    "calc.js": "exports.add = (a, b) => a + b;\n",
    "calc.test.js": (
        "const test = require('node:test'), assert = require('node:assert');\n"
        "const { add } = require('./calc');\n"
        "test('add', () => assert.equal(add(2, 1), 3));\n"
    ),
    "package.json": json.dumps({"name": "calc", "version": "1.0.0", "scripts": {"test": "node --test"}}),
}


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    rustup = os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup"))
    return Cli(tmp_path_factory.mktemp("cli"), RUSTUP_HOME=rustup)


def weakened(result: Completed) -> list[str]:
    return [each["message"] for each in result.document["reasons"] if each["code"] == "tests_weakened"]


@pytest.mark.parametrize("how", sampled(SOFT, 4))
def test_a_test_that_went_soft_waits_with_the_fault(cli: Cli, tmp_path: Path, how: str) -> None:
    result = rewrite(cli, tmp_path, PYTHON, "python3 -m unittest -q", test_calc__py=SOFT[how])
    assert result.document["status"] == "waiting", result
    assert weakened(result), result.document["reasons"]
    assert all("calc.py:" in message and " in place of " in message for message in weakened(result))


@pytest.mark.parametrize("how", sampled(HONEST, 3))
def test_a_test_of_equal_strength_needs_no_approval(cli: Cli, tmp_path: Path, how: str) -> None:
    result = rewrite(cli, tmp_path, PYTHON, "python3 -m unittest -q", test_calc__py=HONEST[how])
    assert (result.code, result.document["status"]) == (0, "promoted"), result.document["reasons"]


def test_faults_are_injected_by_tokens_without_a_parser(cli: Cli, tmp_path: Path) -> None:
    soft = NODE["calc.test.js"].replace("add(2, 1), 3", "add(2, 1), add(2, 1)")
    (message,) = weakened(rewrite(cli, tmp_path, NODE, "npm test", calc__test__js=soft))
    assert "calc.js:1: 'exports.add = (a, b) => a - b;' in place of 'exports.add = (a, b) => a + b;'" in message


# A run takes longer than faults may be tried, even three times as long on a busy machine: not one can be tried.
SLOW = "python3 -c 'import time; time.sleep(4)' && python3 -m unittest -q"


@pytest.mark.parametrize(
    ("changed", "seconds", "status"),
    [
        (TESTS.replace(ADD, "self.assertEqual(add(2, 1), 1 + 2)"), "1.1", "waiting"),
        (SOFT["early"], "1.1", "waiting"),
        (HONEST["one more"].replace("import add, price", "import price, add"), "1.1", "promoted"),
        (TESTS.replace(ADD, "self.assertEqual(add(2, 1), 1 + 2)"), "1", "promoted"),
    ],
    ids=["a line gone", "an early end", "added", "not wanted"],
)
def test_a_test_not_measured_in_time_is_reported(
    cli: Cli, tmp_path: Path, changed: str, seconds: str, status: str
) -> None:
    repo = repository(tmp_path / "repo", PYTHON)
    agent = shell(f"printf %s {encode(changed)} | base64 -d > test_calc.py")
    short = {"CHARGEHAND_LIMITS_FAULT_TIME": seconds}
    result = cli.say("run", "m", "--agent", agent, "--only-check", SLOW, cwd=repo, environ=short)
    assert result.document["status"] == status, result
    assert "tests_unmeasured" in cli.say("mission", "show", result.document["mission"], cwd=repo).stdout


def test_code_without_possible_faults_is_reported(cli: Cli, tmp_path: Path) -> None:
    files = PYTHON | {"calc.py": CALC + "\n# " + "long " * 50_000}
    changed = TESTS.replace(ADD, "self.assertEqual(add(2, 1), 1 + 2)")
    result = rewrite(cli, tmp_path, files, "python3 -m unittest -q", test_calc__py=changed)
    assert (result.document["status"], result.reasons) == ("waiting", {"tests_unmeasured"}), result


RUST = {
    "Cargo.toml": '[package]\nname = "calc"\nversion = "0.1.0"\nedition = "2021"\n',
    "Cargo.lock": 'version = 3\n\n[[package]]\nname = "calc"\nversion = "0.1.0"\n',
    "src/lib.rs": (
        "pub fn add(a: i32, b: i32) -> i32 {\n    a + b\n}\n\n"
        "#[cfg(test)]\nmod tests {\n    use super::add;\n\n    #[test]\n    fn adds() {\n"
        "        let limit = 10 + 1;\n        assert!(add(2, 1) < limit);\n        assert_eq!(add(2, 1), 3);\n"
        "    }\n}\n"
    ),
}
INNER = "assert_eq!(add(2, 1), 3)"


@HAS_CARGO
def test_tests_inside_the_code_are_measured_too(cli: Cli, tmp_path: Path) -> None:
    soft = RUST["src/lib.rs"].replace(INNER, "assert_eq!(add(2, 1), add(2, 1))")
    result = rewrite(cli, tmp_path, RUST, "cargo test", **{"src/lib__rs": soft})
    assert result.document["status"] == "waiting", result
    (message,) = weakened(result)
    assert "src/lib.rs:2: 'a - b' in place of 'a + b'" in message


@HAS_CARGO
@pytest.mark.parametrize("how", ["another form", "one more"])
def test_inline_tests_of_equal_strength_need_no_approval(cli: Cli, tmp_path: Path, how: str) -> None:
    form = "let sum = add(2, 1);\n        assert_eq!(sum, 3)"
    new = form if how == "another form" else f"{INNER};\n        assert_eq!(add(0, 0), 0)"
    done = rewrite(cli, tmp_path, RUST, "cargo test", **{"src/lib__rs": RUST["src/lib.rs"].replace(INNER, new)})
    assert (done.code, done.document["status"]) == (0, "promoted"), done.document["reasons"]


@HAS_CARGO
def test_the_base_s_tests_inside_the_code_judge_the_tree(cli: Cli, tmp_path: Path) -> None:
    wrong = RUST["src/lib.rs"].replace("a + b", "a + b + 1").replace(INNER, "assert_eq!(add(2, 1), 4)")
    result = rewrite(cli, tmp_path, RUST, "cargo test", **{"src/lib__rs": wrong})
    assert result.document["status"] == "waiting", result
    assert [each["message"] for each in result.document["reasons"]] == [
        "cargo test: with the changed code 1 of the base's tests fail: calc src/lib.rs::tests::adds"
    ]


CASES = {
    "calc.py": CALC,
    "tests/cases.json": json.dumps([[2, 3, 6], [11, 2, 17]]),
    "tests/notes.txt": "Prices as of today.\n",
    "tests/test_calc.py": (
        "import json, pathlib, unittest\nfrom calc import price\n\n\nclass T(unittest.TestCase):\n"
        "    def test_price(self):\n"
        "        for count, each, sum in json.loads(pathlib.Path('tests/cases.json').read_text()):\n"
        "            self.assertEqual(price(count, each), sum)\n"
    ),
    "tests/__init__.py": "",
}


def test_data_of_tests_that_says_less_waits_with_the_fault(cli: Cli, tmp_path: Path) -> None:
    result = rewrite(cli, tmp_path, CASES, "python3 -m unittest -q", **{"tests/cases__json": "[[2, 3, 6]]"})
    assert result.document["status"] == "waiting", result
    assert weakened(result), result.document["reasons"]


@pytest.mark.parametrize("path", ["tests/cases__json", "tests/notes__txt"])
def test_stronger_or_unread_test_data_needs_no_approval(cli: Cli, tmp_path: Path, path: str) -> None:
    changed = json.dumps([[2, 3, 6], [11, 2, 17], [0, 1, 0]]) if "json" in path else "Prices as of tomorrow.\n"
    done = rewrite(cli, tmp_path, CASES, "python3 -m unittest -q", **{path: changed})
    assert (done.code, done.document["status"]) == (0, "promoted"), done.document["reasons"]
    looked = json.loads(done.stdout)["attempts"][0]
    assert looked["verdict"] == "green"


GOLDEN = {
    "calc.py": CALC,
    "expected/prices.json": json.dumps([[2, 3, 6], [11, 2, 17]]),
    "kit/compare.py": "def same(found, wanted):\n    assert found == wanted, (found, wanted)\n",
    "kit/__init__.py": "",
    "test_calc.py": (
        "import json, pathlib, unittest\nfrom calc import price\nfrom kit.compare import same\n\n\n"
        "class T(unittest.TestCase):\n    def test_price(self):\n"
        "        for path in pathlib.Path('expected').glob('*.json'):\n"
        "            for count, each, sum in json.loads(path.read_text()):\n"
        "                same(price(count, each), sum)\n"
    ),
}
BROKEN = CALC.replace("count * each - 5", "count * each - 6")
REWRITTEN = {
    "a golden with the code": {"calc__py": BROKEN, "expected/prices__json": "[[2, 3, 6], [11, 2, 16]]"},
    "a helper with the code": {"calc__py": BROKEN, "kit/compare__py": "def same(found, wanted):\n    pass\n"},
    "a golden alone": {"expected/prices__json": "[[2, 3, 6]]"},
    "a helper alone": {"kit/compare__py": "def same(found, wanted):\n    assert found == found\n"},
}


@pytest.mark.parametrize("how", sampled(REWRITTEN, 2))
def test_goldens_and_helpers_elsewhere_are_not_rewritten_by_themselves(cli: Cli, tmp_path: Path, how: str) -> None:
    result = rewrite(cli, tmp_path, GOLDEN, "python3 -m unittest -q", **REWRITTEN[how])
    assert result.document["status"] in ("waiting", "refused"), result
    assert result.reasons & {"base_tests_fail", "check_failed", "tests_weakened"}, result


@pytest.mark.parametrize(
    "change",
    [
        {"calc__py": CALC.replace("return count * each\n", "return each * count\n")},
        {"expected/prices__json": json.dumps([[2, 3, 6], [11, 2, 17], [1, 1, 1]])},
        {"kit/compare__py": GOLDEN["kit/compare.py"] + "\n\ndef near(found, wanted):\n    same(found, wanted)\n"},
    ],
    ids=["the code", "one more case", "one more helper"],
)
def test_golden_files_and_helpers_of_equal_strength_need_no_approval(
    cli: Cli, tmp_path: Path, change: dict[str, str]
) -> None:
    done = rewrite(cli, tmp_path, GOLDEN, "python3 -m unittest -q", **change)
    assert (done.code, done.document["status"]) == (0, "promoted"), done.document["reasons"]
