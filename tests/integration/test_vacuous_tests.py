"""Vacuous tests: a new file that disarms the old ones, and a process that ends before any test runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import Cli, Completed, repository, shell
from tests.conftest import sampled
from tests.integration.test_lost_tests import encode

pytestmark = pytest.mark.needs_bwrap

CALC = "def add(a, b):\n    return a + b\n\n\ndef price(count, each):\n    return count * each - 5\n"
OLD = (
    "import unittest\nimport calc\n\n\nclass T(unittest.TestCase):\n"
    "    def test_add(self):\n        self.assertEqual(calc.add(2, 1), 3)\n\n"
    "    def test_price(self):\n        self.assertEqual(calc.price(2, 3), 1)\n"
)
PYTHON = {"calc.py": CALC, "tests/__init__.py": "", "tests/test_calc.py": OLD}
UNITTEST = "python3 -m unittest discover -q"
HONEST = "import unittest\nimport calc\n\n\nclass More(unittest.TestCase):\n    def test_zero(self):\n        {}\n"
QUIET = "        self.assertTrue(True)\n"
CASE = f"import unittest\n\n\nclass More(unittest.TestCase):\n    def test_more(self):\n{QUIET}"
FAKES = "add=lambda a, b: 3, price=lambda a, b: 1"
ADDED = {
    "an alias of the module": f"import calc as c\nm = c\nm.add = lambda a, b: 3\nm.price = lambda a, b: 1\n{CASE}",
    "its own setattr": (
        f"import calc\ncalc.__setattr__('add', lambda a, b: 3)\ncalc.__setattr__('price', lambda a, b: 1)\n{CASE}"
    ),
    "a patcher": (
        "from unittest import mock\np = mock.patch('calc.add', return_value=3)\np.start()\n"
        f"mock.patch('calc.price', return_value=1).start()\n{CASE}"
    ),
    "a case's alias": (
        "import unittest\nBase = unittest.TestCase\nsetter = type.__setattr__\n"
        f"setter(Base, 'assertEqual', lambda *a: None)\n{CASE}"
    ),
    "a module of its own": (
        f"import sys, types\nm = types.ModuleType('calc')\nm.__dict__.update({FAKES})\n"
        f"sys.modules.update(calc=m)\n{CASE}"
    ),
    "its globals": f"from calc import add\nadd.__globals__.update({FAKES})\n{CASE}",
}


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("cli"))


def write(cli: Cli, place: Path, files: dict[str, str], check: str, **new: str) -> Completed:
    """Run a mission that writes files, in whose names `__D` means a dot and `_S_` a slash."""
    named = {name.replace("_S_", "/").replace("__D", "."): text for name, text in new.items()}
    lines = [
        f"mkdir -p $(dirname {path}); printf %s {encode(text)} | base64 -d > {path}"
        for path, text in named.items()
    ]
    repo = place / "repo"
    if not repo.exists():
        repository(repo, files)
    return cli.say("run", "m", "--agent", shell("; ".join(lines)), "--only-check", check, cwd=repo)


@pytest.fixture(scope="module")
def go_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The place of one repository for all Go tests, whose base's cache spares compiling Go's library again."""
    if not shutil.which("go"):
        pytest.skip("go is not on this machine")
    return tmp_path_factory.mktemp("go")


@pytest.mark.parametrize("how", sampled(ADDED, 3))
def test_a_new_test_file_that_disarms_the_old_tests_waits(cli: Cli, tmp_path: Path, how: str) -> None:
    result = write(cli, tmp_path, PYTHON, UNITTEST, tests_S_test_a__Dpy=ADDED[how])
    assert (result.code, result.reasons) == (3, {"tests_weakened"}), result


def test_a_new_test_package_that_disables_existing_tests_needs_approval(cli: Cli, tmp_path: Path) -> None:
    quiet = (
        "import calc\nfor name, value in (('add', 3), ('price', 1)):\n"
        "    type(calc).__setattr__(calc, name, lambda *a, v=value: v)\n"
    )
    new = {"tests_S_aa_S___init____Dpy": quiet, "tests_S_aa_S_test_b__Dpy": CASE}
    result = write(cli, tmp_path, PYTHON, UNITTEST, **new)
    assert (result.code, result.reasons) == (3, {"tests_weakened"}), result


def test_an_honest_new_test_file_needs_no_approval(cli: Cli, tmp_path: Path) -> None:
    honest = HONEST.format("self.assertEqual(calc.add(0, 0), 0)")
    result = write(cli, tmp_path, PYTHON, UNITTEST, tests_S_test_more__Dpy=honest)
    assert (result.code, result.document["status"]) == (0, "promoted"), result


NODE = {
    "calc.js": "exports.add = (a, b) => a + b;\n",
    "test.js": (
        "const { add } = require('./calc');\nif (add(2, 1) !== 3) process.exit(1);\nconsole.log('  1 passing');\n"
    ),
    "package.json": json.dumps({"name": "calc", "version": "1.0.0", "scripts": {"test": "node test.js"}}),
}
GO_TEST = "go test ./..."
GO = {
    "go.mod": "module example.org/calc\n\ngo 1.18\n",
    "calc.go": "package calc\n\nfunc Add(a, b int) int {\n\treturn a + b\n}\n",
    "calc_test.go": (
        'package calc\n\nimport "testing"\n\n'
        "func TestAdd(t *testing.T) {\n\tif Add(2, 1) != 3 {\n\t\tt.Fatal()\n\t}\n}\n"
    ),
}
SUITE = {
    "calc.py": CALC,
    "test.sh": "python3 -c 'import calc; print(calc.add(1, 1))' && echo 'Ran 2 tests in 0.1s'\n",
}
# All test files in one process, as mocha runs them.
TOGETHER = {
    "calc.js": "exports.add = (a, b) => a + b;\nexports.price = (count, each) => count * each - 5;\n",
    "run.js": (
        "const fs = require('fs');\nlet count = 0;\n"
        "const tests = [];\nglobal.it = (name, test) => tests.push(test);\n"
        "for (const name of fs.readdirSync('test').sort()) require('./test/' + name);\n"
        "for (const test of tests) { test(); count += 1; }\nconsole.log(`  ${count} passing`);\n"
    ),
    "test/calc.js": (
        "const assert = require('assert');\nconst calc = require('../calc');\n"
        "it('adds', () => assert.equal(calc.add(2, 1), 3));\n"
        "it('prices', () => assert.equal(calc.price(2, 3), 1));\n"
    ),
    "package.json": json.dumps({"name": "calc", "version": "1.0.0", "scripts": {"test": "node run.js"}}),
}
FAKE = "{ add: () => 3, price: () => 1 }"
IN_NODE = {
    "assigned": f"Object.assign(require('../calc'), {FAKE});\nit('more', () => {{}});\n",
    "the cache": (
        "const at = require.resolve('../calc');\n"
        f"const fake = {FAKE};\n"
        "require('../calc');\nconst kept = require.cache[at];\nkept.exports = fake;\nit('more', () => {});\n"
    ),
    "assert": "const a = require('assert');\nReflect.set(a, 'equal', () => {});\nit('more', () => {});\n",
}
VARIABLE = GO | {
    "calc.go": "package calc\n\nvar Add = func(a, b int) int {\n\treturn a + b\n}\n",
}
GO_VARIABLE = (
    'package calc\n\nimport "testing"\n\nvar quiet = func() bool {\n\tAdd = func(a, b int) int { return 3 }\n'
    "\treturn true\n}()\n\nfunc TestQuiet(t *testing.T) {\n\tif !quiet {\n\t\tt.Fatal()\n\t}\n}\n"
)


@pytest.mark.parametrize("how", sampled(IN_NODE, 1))
def test_a_new_test_file_that_disables_others_in_its_process_needs_approval(
    cli: Cli, tmp_path: Path, how: str
) -> None:
    result = write(cli, tmp_path, TOGETHER, "npm test", test_S_a__Djs=IN_NODE[how])
    assert (result.code, result.reasons) == (3, {"tests_weakened"}), result


def test_a_new_go_test_that_replaces_tested_code_needs_approval(cli: Cli, go_place: Path) -> None:
    result = write(cli, go_place, VARIABLE, GO_TEST, a_test__Dgo=GO_VARIABLE)
    assert (result.code, result.reasons) == (3, {"tests_weakened"}), result


ENDS = {
    "node": (NODE, "npm test", {"calc__Djs": "process.exit(0);\n" + NODE["calc.js"].replace("+", "-")}),
    "go, init": (VARIABLE, GO_TEST, {"z__Dgo": 'package calc\n\nimport "os"\n\nfunc init() { os.Exit(0) }\n'}),
    "go, a variable": (
        VARIABLE,
        GO_TEST,
        {"a_test__Dgo": 'package calc\n\nimport "os"\n\nvar _ = func() bool { os.Exit(0); return true }()\n'},
    ),
    "python": (PYTHON, UNITTEST, {"calc__Dpy": "import os\nos._exit(0)\n" + CALC}),
    "a script": (SUITE, "sh test.sh || true", {"calc__Dpy": "import os\nos._exit(1)\n" + CALC}),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_process_that_ends_before_its_tests_is_not_green(
    cli: Cli, tmp_path: Path, request: pytest.FixtureRequest, case: str
) -> None:
    files, check, new = ENDS[case]
    place = request.getfixturevalue("go_place") if check == GO_TEST else tmp_path
    result = write(cli, place, files, check, **new)
    assert result.document["status"] in ("waiting", "refused"), result
    assert result.reasons & {"tests_lost", "check_failed", "check_error"}, result
