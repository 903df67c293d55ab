"""Missions that work in a directory of a larger repository: agent, checks and detection are that project's."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import git
from tests.integration.desk import Desk, Said, repository

FILES = {
    ".gitignore": "__pycache__/\nignored/\n",
    "README.md": "# Two projects\n",
    "services/api/pyproject.toml": '[project]\nname = "api"\nversion = "1"\n',
    "services/api/calc/__init__.py": "",
    "services/api/calc/core.py": "def add(a, b):\n    return a - b\n",
    "services/api/tests/__init__.py": "",
    "services/api/tests/test_core.py": (
        "import unittest\n\nfrom calc.core import add\n\n\n"
        "class CoreTest(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n\n"
        "    def test_nothing(self):\n        self.assertEqual(add(0, 0), 0)\n"
    ),
    "packages/web/package.json": '{"name": "web", "scripts": {"test": "node --test"}}\n',
    "packages/web/index.js": "exports.twice = (n) => n + 2;\n",
    "packages/web/test/index.test.js": (
        "const test = require('node:test');\nconst assert = require('node:assert');\n"
        "test('twice', () => assert.equal(require('../index.js').twice(4), 8));\n"
    ),
}
GOLD = "command:sed -i s/a.-.b/a+b/ calc/core.py"
HALF = "command:sed -i s/a.-.b/a*b/ calc/core.py"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def monorepo(tmp_path: Path) -> Path:
    return repository(tmp_path / "repo", FILES)


def run(desk: Desk, cwd: Path, agent: str, *words: str) -> Said:
    return desk.say("run", "mend it", "--agent", agent, *words, cwd=cwd)


def test_a_fix_from_a_sub_directory_is_promoted_and_half_of_one_refused(desk: Desk, monorepo: Path) -> None:
    api = monorepo / "services/api"
    good = run(desk, api / "calc", GOLD)
    assert (good.code, good.document["directory"]) == (0, "services/api"), good
    state = desk.state(good)
    (check,) = state.verdicts[-1].checks
    assert (check.name, check.tests) == ("python -m unittest discover", 2)
    assert state.verdicts[-1].unread == ()
    changed = git(monorepo, "diff", "--name-only", "HEAD", good.document["branch"])
    assert changed.split() == ["services/api/calc/core.py"]
    bad = run(desk, api, HALF)
    assert (bad.code, bad.reasons) == (1, {"check_failed"}), bad
    web = run(desk, monorepo, "command:sed -i s/n.+.2/n*2/ index.js", "--dir", "packages/web")
    assert (web.code, web.document["directory"]) == (0, "packages/web"), web
    assert [check.name for check in desk.state(web).verdicts[-1].checks] == ["npm test"]
