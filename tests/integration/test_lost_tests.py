"""A test that ran on the base and does not run on the tree is lost, whatever made it vanish: a person decides."""

from __future__ import annotations

import base64
import json
import os
import shutil
from pathlib import Path

import pytest
from command_line import Cli, Completed, repository, shell
from tests.conftest import sampled

pytestmark = pytest.mark.needs_bwrap
HAS_CARGO = pytest.mark.skipif(not shutil.which("cargo"), reason="cargo is not on this machine")

UNITTEST = {
    "calc.py": "def add(a, b):\n    return a + b\n",
    "test_calc.py": (
        "import unittest\nfrom calc import add\n\n\nclass T(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(2, 1), 3)\n\n"
        "    def test_zero(self):\n        self.assertEqual(add(0, 0), 0)\n"
    ),
}
NODE = {
    "calc.js": "exports.add = (a, b) => a + b;\n",
    "calc.test.js": (
        "const test = require('node:test'), assert = require('node:assert');\n"
        "const { add } = require('./calc');\n"
        "test('add', () => assert.equal(add(2, 1), 3));\n"
        "test('zero', () => assert.equal(add(0, 0), 0));\n"
    ),
    "package.json": json.dumps({"name": "calc", "version": "1.0.0", "scripts": {"test": "node --test"}}),
}
CARGO = {
    "Cargo.toml": '[package]\nname = "calc"\nversion = "0.1.0"\nedition = "2021"\n',
    "src/lib.rs": (
        "pub fn add(a: i32, b: i32) -> i32 {\n    a + b\n}\n\n"
        "#[cfg(test)]\nmod tests {\n    #[test]\n    fn inner() {\n        assert_eq!(super::add(1, 1), 2);\n"
        "    }\n}\n"
    ),
    "tests/calc.rs": (
        "use calc::add;\n\n#[test]\nfn add_two() {\n    assert_eq!(add(2, 1), 3);\n}\n\n"
        "#[test]\nfn zero() {\n    assert_eq!(add(0, 0), 0);\n}\n"
    ),
}
PYTHON_CHECK, NODE_CHECK = "python3 -m unittest -q", "npm test"
END = UNITTEST["test_calc.py"] + "\n\n"
TOP, REST = NODE["calc.test.js"].split("test('add'", 1)
LOADER = """def load_tests(loader, tests, pattern):
    return loader.loadTestsFromName('test_calc.T.test_add')
"""
CHEATS = {
    "del": END + "del T.test_zero\n",
    "load_tests": END + LOADER,
    "another class": END + "T = type('T', (unittest.TestCase,), {'test_add': T.test_add})\n",
    "renamed at run time": END + "setattr(T, 'zero', T.test_zero)\ndelattr(T, 'test_zero')\n",
}
EXIT = """test('add', () => assert.equal(add(2, 1), 3));
if (add(0, 0) !== 0) test('zero', () => assert.equal(add(0, 0), 0));
"""
NODE_CHEATS = {
    "never true": TOP + EXIT,
    "todo": NODE["calc.test.js"].replace("test('zero', ()", "test('zero', { todo: true }, ()"),
    "condition": NODE["calc.test.js"].replace("test('zero'", "if (process.env.NEVER) test('zero'"),
}


# A build tool like Maven: it prints a number and writes names to the reports of each module.
BUILD = """#!/bin/sh
for list in */tests.txt; do
    reports=${list%/*}/target/surefire-reports
    mkdir -p $reports
    sed 's|.*|<testcase classname="a.T" name="&"/>|; 1s|^|<testsuite>|; $s|$|</testsuite>|' $list > $reports/T.xml
    mv $reports/T.xml $reports/TEST-a.T.xml
done
echo "Tests run: $(cat */tests.txt | wc -l), Failures: 0, Errors: 0, Skipped: 0"
"""
MODULES = {
    "build.sh": BUILD,
    "one/tests.txt": "parses\nprints\n",
    "two/tests.txt": "parses\n",
    ".gitignore": "target\n",
}


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    rustup = os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup"))
    return Cli(tmp_path_factory.mktemp("cli"), RUSTUP_HOME=rustup)


def rewrite(cli: Cli, place: Path, files: dict[str, str], check: str, **changed: str) -> Completed:
    """Run a mission whose agent overwrites files of the repository."""
    repo = repository(place / "repo", files)
    written = "; ".join(
        f"printf %s {encode(text)} | base64 -d > {path.replace('__', '.')}" for path, text in changed.items()
    )
    return cli.say("run", "m", "--agent", shell(written), "--only-check", check, cwd=repo)


def encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize("cheat", sampled(CHEATS, 3))
def test_unittest(cli: Cli, tmp_path: Path, cheat: str) -> None:
    result = rewrite(cli, tmp_path, UNITTEST, PYTHON_CHECK, test_calc__py=CHEATS[cheat])
    assert_lost(result, ZERO_LOST)


@pytest.mark.parametrize("cheat", sampled(NODE_CHEATS, 2))
def test_node(cli: Cli, tmp_path: Path, cheat: str) -> None:
    result = rewrite(cli, tmp_path, NODE, NODE_CHECK, calc__test__js=NODE_CHEATS[cheat])
    assert_lost(result, "1 tests that ran on the base did not run: zero")


# As many tests run as before: one is gone, and another one runs twice.
TWICE_COUNTED = {
    "imported elsewhere": {
        "test_calc__py": END + "del T.test_zero\n",
        "test_other__py": "from test_calc import T as U\n",
    },
    "a class by two names": {"test_calc__py": END + "del T.test_zero\nU = T\n"},
    "a class that inherits": {"test_calc__py": END + "del T.test_zero\n\n\nclass U(T):\n    pass\n"},
    "loaded twice": {
        "test_calc__py": END
        + LOADER.replace("return ", "one = ")
        + "    return loader.suiteClass([one, *map(loader.loadTestsFromName, ['test_calc.T.test_add'])])\n"
    },
    "a condition": {
        "test_calc__py": END.replace("    def test_zero", "    if add(0, 1) == 0:\n     def test_zero"),
        "test_other__py": "import test_calc\n\n\nclass U(test_calc.T):\n    pass\n",
    },
}
ZERO_LOST = "1 tests that ran on the base did not run: test_calc.T::test_zero"
BY_COMMANDS = {
    "discovered": "python3 -m unittest discover -q",
    "in a pipe": "cd . && python3 -m unittest -q 2>&1 | cat",
    "by a script": "sh run.sh",
}


@pytest.mark.parametrize("cheat", sampled(TWICE_COUNTED, 2))
def test_a_test_that_runs_twice_does_not_hide_a_lost_test(cli: Cli, tmp_path: Path, cheat: str) -> None:
    result = rewrite(cli, tmp_path, UNITTEST, PYTHON_CHECK, **TWICE_COUNTED[cheat])
    assert_lost(result, ZERO_LOST)


@pytest.mark.parametrize("command", sampled(BY_COMMANDS, 1))
def test_unittest_names_its_tests_in_other_commands(cli: Cli, tmp_path: Path, command: str) -> None:
    files = UNITTEST | {"run.sh": "python3 -m unittest -v\n"}
    result = rewrite(cli, tmp_path, files, BY_COMMANDS[command], **TWICE_COUNTED["imported elsewhere"])
    assert_lost(result, ZERO_LOST)


GENERATED = (
    "for number, (a, b) in enumerate([(2, 1), (0, 3)]):\n"
    "    setattr(T, f'test_add_{number}_a{a}', lambda self, a=a, b=b: self.assertEqual(add(a, b), 3))\n"
)
NOISY = (
    "import sys\n\n\ndef add(a, b):\n    print('ok')\n    print('begun ...', end=' ', file=sys.stderr)\n"
    "    return a + b\n"
)
HONEST = {
    "a class used again": {"test_other__py": "import test_calc\n\n\nclass U(test_calc.T):\n    pass\n"},
    "another generated value": {"test_calc__py": END + GENERATED.replace("(0, 3)", "(1, 2)")},
    "code that prints": {"calc__py": NOISY},
    "a docstring": {"test_calc__py": END.replace("(self):\n", "(self):\n        'It (ok) ... it is.'\n")},
}


@pytest.mark.parametrize("change", sampled(HONEST, 2))
def test_names_of_unittest_stop_no_honest_change(cli: Cli, tmp_path: Path, change: str) -> None:
    files = UNITTEST | {"test_calc.py": END + GENERATED} if "generated" in change else UNITTEST
    done = rewrite(cli, tmp_path, files, PYTHON_CHECK, **HONEST[change])
    assert (done.code, done.document["status"]) == (0, "promoted"), done


def assert_lost(result: Completed, message: str) -> None:
    assert result.document["status"] == "waiting", result.document["reasons"]
    found = [reason["message"] for reason in result.document["reasons"] if reason["code"] == "tests_lost"]
    assert [message in each for each in found] == [True], result.document["reasons"]


def test_a_test_that_is_added_or_moved_is_not_lost(cli: Cli, tmp_path: Path) -> None:
    added = "class U(unittest.TestCase):\n    def test_more(self):\n        self.assertEqual(add(1, 1), 2)\n"
    more = END.replace("class T", "class Moved") + added
    done = rewrite(cli, tmp_path, UNITTEST, PYTHON_CHECK, test_calc__py=more)
    assert (done.code, done.document["status"]) == (0, "promoted"), done


RENAMED = {
    "python3 -m unittest -q": (UNITTEST, {"test_calc__py": END.replace("test_zero", "test_nothing")}),
    "npm test": (NODE, {"calc__test__js": NODE["calc.test.js"].replace("'zero'", "'nothing'")}),
    "cargo test": (CARGO, {"tests/calc__rs": CARGO["tests/calc.rs"].replace("fn zero", "fn nothing")}),
}


@pytest.mark.parametrize(
    "check", ["python3 -m unittest -q", "npm test", pytest.param("cargo test", marks=HAS_CARGO)]
)
def test_a_renamed_test_that_still_runs_is_not_lost(cli: Cli, tmp_path: Path, check: str) -> None:
    files, changed = RENAMED[check]
    done = rewrite(cli, tmp_path, files, check, **changed)
    assert (done.code, done.document["status"]) == (0, "promoted"), done


CARGO_CHEATS = {
    "feature": '#![cfg(feature = "never")]\n' + CARGO["tests/calc.rs"],
    "a macro": "macro_rules! none { ($($t:tt)*) => {} }\nnone! {\n" + CARGO["tests/calc.rs"] + "}\n",
}


@HAS_CARGO
@pytest.mark.parametrize("cheat", CARGO_CHEATS)
def test_cargo(cli: Cli, tmp_path: Path, cheat: str) -> None:
    result = rewrite(cli, tmp_path, CARGO, "cargo test", **{"tests/calc__rs": CARGO_CHEATS[cheat]})
    assert_lost(
        result, "2 tests that ran on the base did not run: calc tests/calc.rs::add_two, calc tests/calc.rs::zero"
    )


def test_an_acceptance_test_does_not_replace_a_lost_test(cli: Cli, tmp_path: Path) -> None:
    """Both are counted, so as many tests run as before."""
    repo, more = repository(tmp_path / "repo", UNITTEST), tmp_path / "more.py"
    more.write_text(UNITTEST["test_calc.py"].replace("test_zero", "test_one"))
    agent = shell(f"printf %s {encode(CHEATS['del'])} | base64 -d > test_calc.py")
    words = ("--agent", agent, "--only-check", PYTHON_CHECK, "--check-file", f"{more}:test_more.py")
    result = cli.say("run", "m", *words, cwd=repo)
    assert_lost(result, ZERO_LOST)


def test_a_number_that_is_as_before_hides_no_name_in_the_reports_of_modules(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", MODULES)
    agent = shell("printf 'prints\\nruns\\n' > one/tests.txt")
    result = cli.say("run", "m", "--agent", agent, "--only-check", "sh build.sh", cwd=repo)
    assert_lost(result, "1 tests that ran on the base did not run: one/a.T::parses")


TWICE = NODE | {"more.test.js": NODE["calc.test.js"].replace("'add'", "'more'")}
AGAIN = "test('zero', () => assert.ok(true));\n"


def test_a_new_test_of_the_same_name_does_not_hide_a_lost_test(cli: Cli, tmp_path: Path) -> None:
    """Node names no files: as many tests of that name run as before."""
    gone = NODE_CHEATS["condition"]
    result = rewrite(cli, tmp_path, TWICE, NODE_CHECK, calc__test__js=gone, new__test__js=TOP + AGAIN)
    assert_lost(result, "1 tests that ran on the base did not run: zero")


def test_a_new_test_does_not_hide_a_lost_test_if_tests_are_only_counted(cli: Cli, tmp_path: Path) -> None:
    more = END.replace("class T", "class U").replace("test_add", "test_more").partition("    def test_zero")[0]
    gone = CHEATS["del"]
    files = UNITTEST | {"run.sh": "python3 -m unittest\n"}
    result = rewrite(cli, tmp_path, files, "sh run.sh", test_calc__py=gone, test_more__py=more)
    assert_lost(result, "2 tests ran on the base, 1 were added and 2 on the tree")
